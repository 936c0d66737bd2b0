//! One module per command, and the helpers that the commands share, such as the paths of a network's files.
//!
//! `genesis.block` is written last when a network is created, so its presence means that the network is complete.

pub mod bench;
pub mod chaincode;
mod chaincode_build;
mod chaincode_process;
mod chaincode_template;
mod collections_file;
pub mod contract;
mod definition;
pub mod deny;
pub mod down;
pub mod elastic;
pub mod executors;
mod executors_beside;
mod executors_node;
mod executors_relay;
mod executors_top;
pub mod farmem;
mod farmem_at_executor;
mod farmem_preloading;
mod farmem_profile;
pub mod isolate;
pub mod kv;
mod kv_isolate;
mod live;
pub mod orderer;
mod parent;
pub mod peer;
pub mod peer_storage;
pub mod pool;
pub mod process;
pub mod replay;
pub mod show;
pub mod status;
mod stopped_storage;
mod stored;
pub mod up;
pub mod verify;

use parent::end_with_parent;
use stored::{StoppedStore, block_store, config, organization, state_engine, store_in};
