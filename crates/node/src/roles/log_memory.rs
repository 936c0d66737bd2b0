//! Holds the log of an ordering group in passive memory: the coordinator writes the log with one-sided verbs.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::rt::CancellationToken;
use rma::{HostConfig, NodeId, Provider, Token};
use sift::{GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig};

use super::orderer::GROUP;
use crate::network::NodeError;

/// What such a memory node needs.
pub(crate) struct LogMemoryConfig<'a> {
    /// For errors.
    pub name: &'a str,
    /// The node's number among the group's memory nodes.
    pub number: u16,
    pub provider: &'a dyn Provider,
    /// The address at which the node answers.
    pub address: &'a str,
    /// The orderers, with their tokens.
    pub orderers: BTreeMap<String, Token>,
    /// Size of the log in bytes.
    pub log_bytes: u64,
}

/// A running memory node.
pub(crate) struct LogMemoryInstance(Arc<LogMemoryNode>);

impl LogMemoryInstance {
    pub(crate) async fn start(options: LogMemoryConfig<'_>) -> Result<LogMemoryInstance, NodeError> {
        let name = options.name.to_owned();
        let orderers = options.orderers;
        let host_options = HostConfig {
            node: NodeId(options.number.into()),
            tokens: Arc::new(move |orderer| orderers.get(orderer).cloned()),
        };
        let host = options.provider.host(options.address, host_options).await;
        let host = host.map_err(|source| NodeError::Provider { who: name, source })?;
        let groups = vec![GroupMemory { id: GROUP, layout: GroupLayout::of_log(options.log_bytes) }];
        Ok(LogMemoryInstance(
            LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() }).await?,
        ))
    }

    /// The address at which the node can be reached.
    pub(crate) fn address(&self) -> String {
        self.0.address()
    }

    /// Completes when the node has stopped serving: it was stopped, or its host has ended by itself.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let ended = self.0.ended().clone();
        async move { ended.cancelled().await }
    }

    /// Stops the node; its memory is lost.
    pub(crate) async fn stop(&self) {
        self.0.stop().await;
    }
}
