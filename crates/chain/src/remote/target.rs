//! Where a peer answers.

/// Where a peer answers ([`super::serve_peer`]).
#[derive(Clone, Debug)]
pub enum PeerTarget {
    /// At one node, which is used as it is: a peer without followers, or one compute node for proposals.
    Node(String),
    /// At its primary, which is the one node that shows the peer's channels. It is at one of these addresses, and may
    /// change.
    Primary(Vec<String>),
}

impl PeerTarget {
    pub(super) fn addresses(&self) -> &[String] {
        match self {
            PeerTarget::Node(address) => std::slice::from_ref(address),
            PeerTarget::Primary(addresses) => addresses,
        }
    }

    /// Whether the node at the other end is used only while it is the primary.
    pub(super) fn moves(&self) -> bool {
        matches!(self, PeerTarget::Primary(_))
    }
}
