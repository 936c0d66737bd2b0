//! Gives sections of its memory to peers, within a budget. Otherwise it is passive: peers read and write the sections
//! with one-sided verbs, which run no code of this role.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::CancellationToken;
use pool::{MemoryNode, MemoryNodeConfig, MemoryNodeUsage};
use rma::{Host, HostConfig, NodeId, Provider, Token};

use crate::network::NodeError;

/// What a memory node needs.
pub(crate) struct MemoryConfig<'a> {
    /// For errors.
    pub name: &'a str,
    /// The node's number among the memory nodes.
    pub number: u16,
    pub provider: &'a dyn Provider,
    /// The address at which the node answers.
    pub address: &'a str,
    /// The owners that may get sections, with their tokens.
    pub owners: BTreeMap<String, Token>,
    /// Bytes that the node may give.
    pub budget_bytes: u64,
    pub section_bytes: u64,
}

/// A running memory node.
pub(crate) struct MemoryInstance {
    host: Arc<dyn Host>,
    node: Arc<MemoryNode>,
}

impl MemoryInstance {
    pub(crate) async fn start(options: MemoryConfig<'_>) -> Result<MemoryInstance, NodeError> {
        let name = options.name.to_owned();
        let owners = options.owners;
        let host_options = HostConfig {
            node: NodeId(options.number.into()),
            tokens: Arc::new(move |owner| owners.get(owner).cloned()),
        };
        let host = options.provider.host(options.address, host_options).await;
        let host = host.map_err(|source| NodeError::Provider { who: name.clone(), source })?;
        let node = MemoryNode::start(MemoryNodeConfig {
            host: Arc::clone(&host),
            budget_bytes: options.budget_bytes,
            section_bytes: options.section_bytes,
            stop: CancellationToken::new(),
        })
        .await
        .map_err(|source| NodeError::Pool { who: name, source })?;
        Ok(MemoryInstance { host, node })
    }

    /// The address at which the node can be reached.
    pub(crate) fn address(&self) -> String {
        self.host.address()
    }

    /// The memory that the node has given.
    pub(crate) fn usage(&self) -> MemoryNodeUsage {
        self.node.usage()
    }

    /// Completes when the node has stopped serving: it was stopped, or its host has ended by itself.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.node.ended().clone();
        async move { ended.cancelled().await }
    }

    /// Stops the node; owners lose the sections that they had on it.
    pub(crate) async fn stop(&self) {
        self.node.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use rma::shm::ShmProvider;

    use super::*;

    /// Regression: one write of a tenant ended the thread that served the memory of all tenants. The process lived on,
    /// its health was good, and nothing restarted it.
    #[tokio::test]
    async fn memory_ends_with_its_host() {
        let memory = MemoryInstance::start(MemoryConfig {
            name: "memory-1",
            number: 1,
            provider: &ShmProvider::default(),
            address: "local:",
            owners: BTreeMap::new(),
            budget_bytes: 1 << 20,
            section_bytes: 1 << 20,
        })
        .await
        .expect("there is memory");
        memory.host.close().await;
        memory.ended().await;
    }
}
