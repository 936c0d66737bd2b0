//! The passive parts of a disaggregated peer: memory nodes, which lose all they have in a crash, and the storage node.

use std::sync::Arc;

use base::rt::Stop;
use base::rt::net::Parties;
use base::{Bytes, ErrorKind};
use pool::{MemoryNode, MemoryNodeOptions};
use rma::{Fabric, HostOptions, NodeId, TOKEN_BYTES, Token};
use storage::blocks::BlockOptions;
use storage::node::{NodeOptions, StorageNode};
use storage::tables::ModelEngine;
use storage::{DataDirectory, GroupSync};

use super::Network;
use super::nodes::{DATA, Ended, TABLES};
use crate::mutant::LyingHost;

/// What compute nodes prove themselves to memory nodes with.
pub const MEMORY_TOKEN: Token = Token::new([7; TOKEN_BYTES]);
/// What they present to storage nodes.
pub const STORAGE_TOKEN: &[u8] = b"a token of the simulation";
/// Numbers of memory nodes that one peer may have.
const NUMBERS: usize = 16;

/// Where a storage node answers.
pub fn storage_address(node: &str) -> String {
    format!("{node} service")
}

/// A storage node that runs, and how it is told to stop in order.
pub struct Store {
    pub stop: Stop,
}

/// A memory node's role.
pub async fn lend(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.place(&name);
    let number = network.scenario.memory_nodes(place).iter().position(|node| *node == name).unwrap_or_default();
    let pools = network.scenario.forms[place].pools().expect("only disaggregated peers have memory nodes");
    let owner = super::compute::owner(place);
    let options = HostOptions {
        node: NodeId((place * NUMBERS + number) as u32),
        tokens: Arc::new(move |asking| (asking == owner).then_some(MEMORY_TOKEN)),
    };
    let host = network.fabric.host(&name, options).await?;
    let node = MemoryNode::start(MemoryNodeOptions {
        host: LyingHost::over(&network, place, host),
        budget_bytes: pools.donor_sections * pools.section_bytes,
        section_bytes: pools.section_bytes,
        stop: Stop::new(),
    })
    .await?;
    std::future::pending::<()>().await;
    drop(node);
    Err(Ended { kind: ErrorKind::Closed, reason: "nothing ends a memory node but a crash".to_owned() })
}

/// A storage node's role.
pub async fn keep(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let data = DataDirectory::open(DATA).await?;
    let tables = ModelEngine::open(data.subdirectory(TABLES).await?).await?;
    let node = StorageNode::open(NodeOptions {
        name: name.clone(),
        data,
        sync: GroupSync::new(),
        tables,
        materializer: Arc::new(chain::BlockRows),
        token: Bytes::from_static(STORAGE_TOKEN),
        blocks: BlockOptions { segment_bytes: network.scenario.segment_bytes, ..BlockOptions::default() },
    })
    .await?;
    node.serve(&storage_address(&name), &Parties::anyone()).await?;
    let stop = Stop::new();
    let _handle = network.stores.show(&name, Arc::new(Store { stop: stop.clone() }));
    let Some(failure) = stop.or_stopped(node.failed()).await else { return Ok(node.stop().await?) };
    // It has ended all the same.
    let _ = node.stop().await;
    Err(failure.into())
}
