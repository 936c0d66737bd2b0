//! The addresses of a peer's compute nodes.

use base::rt::net::Parties;
use storage_copies::CopySet;

use crate::followers::FOLLOWERS_MAX;

/// The largest number of compute nodes of one peer.
pub const NODES_MAX: usize = FOLLOWERS_MAX + 1;
/// The largest number of those that may become the primary. Every node looks for the primary at each of their addresses.
pub const CANDIDATES_MAX: usize = 9;

const _: () = assert!(CANDIDATES_MAX <= NODES_MAX);

/// Where the nodes of a peer answer.
#[derive(Clone)]
pub struct PeerAddresses {
    /// The peer's storage nodes.
    pub storage: CopySet,
    /// The one channel that the compute nodes commit.
    pub channel: String,
    /// Where this node answers the others while it is the primary; `None` if it never becomes the primary.
    pub address: Option<String>,
    /// Where the other candidates answer while they are the primary.
    pub others: Vec<String>,
    /// The other compute nodes, by the names that their links prove. Only these may follow the state.
    pub parties: Parties,
}

impl PeerAddresses {
    /// Whether no other node of the peer can be its primary.
    pub(super) fn is_only_candidate(&self) -> bool {
        self.address.is_some() && self.others.is_empty()
    }
}
