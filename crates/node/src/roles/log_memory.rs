//! Keeps the log of a group of orderers in its memory, and is passive otherwise: whoever leads writes it with verbs of its own.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::Stop;
use consensus::{GroupMemory, Layout, MemoryNode, MemoryNodeOptions};
use rma::{Fabric, HostOptions, NodeId, Token};

use super::orderer::GROUP;
use crate::network::NodeError;

/// What such a memory node is made of.
pub(crate) struct Options<'a> {
    /// For errors.
    pub name: &'a str,
    /// Its number among them.
    pub number: u16,
    pub fabric: &'a dyn Fabric,
    /// Where it answers.
    pub address: &'a str,
    /// The orderers, with their tokens.
    pub orderers: BTreeMap<String, Token>,
    /// Bytes of the log.
    pub log_bytes: u64,
}

/// A memory node that runs.
pub(crate) struct LogMemory(Arc<MemoryNode>);

impl LogMemory {
    pub(crate) async fn start(options: Options<'_>) -> Result<LogMemory, NodeError> {
        let name = options.name.to_owned();
        let orderers = options.orderers;
        let host_options = HostOptions {
            node: NodeId(options.number.into()),
            tokens: Arc::new(move |orderer| orderers.get(orderer).cloned()),
        };
        let host = options.fabric.host(options.address, host_options).await;
        let host = host.map_err(|source| NodeError::Fabric { who: name, source })?;
        let groups = vec![GroupMemory { id: GROUP, layout: Layout::of_log(options.log_bytes) }];
        Ok(LogMemory(MemoryNode::start(MemoryNodeOptions { host, groups, stop: Stop::new() }).await?))
    }

    /// Where it can be reached.
    pub(crate) fn address(&self) -> String {
        self.0.address()
    }

    /// Completes when it serves nobody any more: it was stopped, or its host has ended by itself.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.0.ended().clone();
        async move { ended.stopped().await }
    }

    /// Ends; what it held is gone.
    pub(crate) async fn stop(&self) {
        self.0.stop().await;
    }
}
