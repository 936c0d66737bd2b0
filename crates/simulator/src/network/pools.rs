//! The passive parts of a disaggregated peer: memory nodes, which lose their contents in a crash, and the storage node.

use std::sync::Arc;

use base::rt::CancellationToken;
use base::rt::net::Parties;
use base::{Bytes, ErrorKind};
use pool::{MemoryNode, MemoryNodeConfig};
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use storage::blocks::BlockStoreConfig;
use storage::node::{StorageNode, StorageNodeConfig};
use storage::tables::ModelEngine;
use storage::{DataDirectory, GroupSync};

use super::Network;
use super::nodes::{DATA, Ended, TABLES};
use crate::mutant::LyingHost;

/// The token with which compute nodes prove their identity to memory nodes.
pub const MEMORY_TOKEN: Token = Token::new([7; TOKEN_BYTES]);
/// The token that they present to storage nodes.
pub const STORAGE_TOKEN: &[u8] = b"a token of the simulation";
/// Numbers of memory nodes that one peer may have.
const MEMORY_NODES_PER_PEER_MAX: usize = 16;

/// The address of a storage node.
pub fn storage_address(node: &str) -> String {
    format!("{node} service")
}

/// A storage node that runs, and the handle that stops it in order.
pub struct RunningStorageNode {
    /// Stops the node in order.
    pub stop: CancellationToken,
}

/// A memory node's role.
pub async fn run_memory_node(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let place = network.organization_index(&name);
    let number = network.scenario.memory_nodes(place).iter().position(|node| *node == name).unwrap_or_default();
    let pools = network.scenario.peer_modes[place].pools().expect("only disaggregated peers have memory nodes");
    let owner = super::compute::owner(place);
    let options = HostConfig {
        node: NodeId((place * MEMORY_NODES_PER_PEER_MAX + number) as u32),
        tokens: Arc::new(move |asking| (asking == owner).then_some(MEMORY_TOKEN)),
    };
    let host = network.provider.host(&name, options).await?;
    let node = MemoryNode::start(MemoryNodeConfig {
        host: LyingHost::over(&network, place, host),
        budget_bytes: pools.donor_sections * pools.section_bytes,
        section_bytes: pools.section_bytes,
        stop: CancellationToken::new(),
    })
    .await?;
    std::future::pending::<()>().await;
    drop(node);
    Err(Ended { kind: ErrorKind::Closed, reason: "nothing ends a memory node but a crash".to_owned() })
}

/// A storage node's role.
pub async fn run_storage_node(network: Arc<Network>, name: String) -> Result<(), Ended> {
    let data = DataDirectory::open(DATA).await?;
    let tables = ModelEngine::open(data.subdirectory(TABLES).await?).await?;
    let node = StorageNode::open(StorageNodeConfig {
        name: name.clone(),
        data,
        sync: GroupSync::new(),
        tables,
        materializer: Arc::new(ledger::BlockMaterializer),
        token: Bytes::from_static(STORAGE_TOKEN),
        blocks: BlockStoreConfig { segment_bytes: network.scenario.segment_bytes, ..BlockStoreConfig::default() },
    })
    .await?;
    node.serve(&storage_address(&name), &Parties::anyone()).await?;
    let stop = CancellationToken::new();
    let _handle = network.storage_nodes.register(&name, Arc::new(RunningStorageNode { stop: stop.clone() }));
    let Some(failure) = stop.run_until_cancelled(node.failed()).await else { return Ok(node.stop().await?) };
    // It has ended all the same.
    let _ = node.stop().await;
    Err(failure.into())
}
