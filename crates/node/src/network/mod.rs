//! A network in one directory, run in one process: orderers, and for each organisation one peer with a gateway.
//!
//! ```text
//! <directory>
//!   VERSION, LOCK                       the format; the lock of the process that uses the directory
//!   heddle.toml                         the configuration
//!   organizations/                      certificates and keys, in the layout of Fabric's tools
//!   genesis.block                       written last: a directory without it is unfinished, and creation starts again
//!   orderer/blocks                      the orderer's log
//!   peers/<organisation>/blocks, state  blocks and world state, each a data directory of its own
//!   nodes/<process>                     files of each process, if roles run as separate processes; in any case each
//!                                       compute node's control socket, budget and rules.json
//!   denied.toml                         the deny list, if the operator wrote one
//!   profiles/, client/                  connection profiles, and a client to start from
//! ```
//!
//! 1. [`Network::create`] makes keys, certificates, the genesis block and the files.
//! 2. [`Network::open`] reads these files and checks that the configuration still agrees with the genesis block.
//! 3. [`Network::run`] starts everything; [`RunningNetwork::stop`] finishes the accepted work and persists the state.
//!    Alternatively, [`Network::plan`] writes the files of processes that run one role each ([`crate::process`]).
//!
//! Organisations share nothing but the process and immutable bytes: each has its own keys, stores, state and identity
//! cache.

mod endpoint;
mod error;
mod files;
pub(crate) mod layout;
pub(crate) mod material;
mod opened;
mod opening;
pub mod orderer_set;
mod run;
mod running;
mod signer;

pub use endpoint::{Endpoint, EndpointRole};
pub use error::NodeError;
use files::ORGANIZATIONS;
pub(crate) use files::{CONFIG_FILE, write, write_private};
pub use opened::Network;
pub use opening::open_directory;
pub use running::RunningNetwork;
pub(crate) use signer::orderer_signer;
