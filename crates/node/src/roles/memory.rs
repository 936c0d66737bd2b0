//! Gives sections of its memory to peers, within a budget, and is passive otherwise: peers read and write them with verbs
//! of their own, in which no code of this role has a part.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::Stop;
use pool::{MemoryNode, MemoryNodeOptions, Usage};
use rma::{Fabric, Host, HostOptions, NodeId, Token};

use crate::network::NodeError;

/// What a memory node is made of.
pub(crate) struct Options<'a> {
    /// For errors.
    pub name: &'a str,
    /// Its number among memory nodes.
    pub number: u16,
    pub fabric: &'a dyn Fabric,
    /// Where it answers.
    pub address: &'a str,
    /// The owners that it gives memory to, with their tokens.
    pub owners: BTreeMap<String, Token>,
    /// Bytes that it may give.
    pub budget_bytes: u64,
    pub section_bytes: u64,
}

/// A memory node that runs.
pub(crate) struct Memory {
    host: Arc<dyn Host>,
    node: Arc<MemoryNode>,
}

impl Memory {
    pub(crate) async fn start(options: Options<'_>) -> Result<Memory, NodeError> {
        let name = options.name.to_owned();
        let owners = options.owners;
        let host_options = HostOptions {
            node: NodeId(options.number.into()),
            tokens: Arc::new(move |owner| owners.get(owner).cloned()),
        };
        let host = options.fabric.host(options.address, host_options).await;
        let host = host.map_err(|source| NodeError::Fabric { who: name.clone(), source })?;
        let node = MemoryNode::start(MemoryNodeOptions {
            host: Arc::clone(&host),
            budget_bytes: options.budget_bytes,
            section_bytes: options.section_bytes,
            stop: Stop::new(),
        })
        .await
        .map_err(|source| NodeError::Pool { who: name, source })?;
        Ok(Memory { host, node })
    }

    /// Where it can be reached.
    pub(crate) fn address(&self) -> String {
        self.host.address()
    }

    /// What it has given.
    pub(crate) fn usage(&self) -> Usage {
        self.node.usage()
    }

    /// Completes when it serves nobody any more: it was stopped, or its host has ended by itself.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.node.ended().clone();
        async move { ended.stopped().await }
    }

    /// Ends; whoever had memory here has lost it.
    pub(crate) async fn stop(&self) {
        self.node.stop().await;
    }
}

#[cfg(test)]
mod tests {
    use rma::shm::Shm;

    use super::*;

    /// One write of a tenant ended the thread that served the memory of all of them. The process lived on, its health
    /// was good, and nobody started it again.
    #[tokio::test]
    async fn memory_ends_with_its_host() {
        let memory = Memory::start(Options {
            name: "memory-1",
            number: 1,
            fabric: &Shm::default(),
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
