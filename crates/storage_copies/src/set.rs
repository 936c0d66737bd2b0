//! The storage nodes that may have copies of a channel.

use std::fmt;
use std::sync::Arc;

use base::{Bytes, Epoch, ErrorKind};
use storage::Error;
use storage::node::{CopyStatus, RemoteStoreConfig};

use crate::control::CopiesControl;

/// A storage node as the peer knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyNode {
    /// The name by which views call it. It stays when the address changes.
    pub name: String,
    /// Where it serves the peer.
    pub address: String,
}

/// The storage nodes of a peer, and how many of them are to have a copy.
#[derive(Clone)]
pub struct CopySet {
    /// The nodes. A channel without a view lies on the first one.
    pub nodes: Vec<CopyNode>,
    /// The token that the nodes ask for.
    pub token: Bytes,
    /// Copies that the primary keeps up, at least 1. It does not remove further ones by itself.
    pub wanted: usize,
    /// Reaches the copies while this process is the primary.
    pub control: Arc<CopiesControl>,
}

impl CopySet {
    /// Several storage nodes, of which this many are to have a copy.
    pub fn new(nodes: Vec<CopyNode>, token: Bytes, wanted: usize) -> CopySet {
        CopySet { nodes, token, wanted, control: Arc::default() }
    }

    /// One storage node. Channels on it have no views, unless it had copies elsewhere before.
    pub fn single(address: impl Into<String>, token: Bytes) -> CopySet {
        let address = address.into();
        CopySet::new(vec![CopyNode { name: address.clone(), address }], token, 1)
    }

    /// Whether there is only one node.
    pub fn is_single(&self) -> bool {
        self.nodes.len() == 1
    }

    /// The first node.
    ///
    /// # Panics
    /// If there is none: a configuration names at least one.
    pub fn first(&self) -> &CopyNode {
        self.nodes.first().expect("a peer has a storage node")
    }

    /// The node of this name.
    pub fn node(&self, name: &str) -> Option<&CopyNode> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// How to reach a node of the set.
    pub(crate) fn remote(&self, node: &CopyNode, channel: &str, epoch: Epoch) -> RemoteStoreConfig {
        let (address, token) = (node.address.clone(), self.token.clone());
        RemoteStoreConfig { address, token, channel: channel.to_owned(), epoch }
    }

    /// How to reach the first node under an epoch.
    pub fn first_remote(&self, channel: &str, epoch: Epoch) -> RemoteStoreConfig {
        self.remote(self.first(), channel, epoch)
    }
}

/// Checks that a node calls itself by the name under which it was asked.
pub(crate) fn check_name(node: &CopyNode, status: &CopyStatus) -> Result<(), Error> {
    match status.registered.own_copy() {
        Some(copy) if copy.name != node.name => Err(error(
            node,
            ErrorKind::Rejected,
            format!("it is {}, and not {}: the addresses of storage nodes are mixed up", copy.name, node.name),
        )),
        _ => Ok(()),
    }
}

pub(crate) fn error(node: &CopyNode, kind: ErrorKind, text: impl Into<String>) -> Error {
    Error::Remote { node: node.name.as_str().into(), kind, text: text.into() }
}

/// Whether another attempt, or another copy, may give an answer.
pub(crate) fn passes(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Retry | ErrorKind::Ambiguous | ErrorKind::Closed)
}

impl fmt::Debug for CopySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the token.
        f.debug_struct("CopySet").field("nodes", &self.nodes).field("wanted", &self.wanted).finish_non_exhaustive()
    }
}
