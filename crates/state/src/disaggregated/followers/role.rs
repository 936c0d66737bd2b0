//! The role of a compute node: the primary, which writes, or a follower, which reads.

use replica::JoinedState;

/// The role of a compute node in its peer.
pub enum ComputeRole {
    /// It changes remote memory.
    Primary,
    /// It follows a primary.
    Follower(JoinedState),
}

impl ComputeRole {
    /// The follower's session state, if this is a follower.
    #[inline]
    pub fn joined(&self) -> Option<&JoinedState> {
        match self {
            ComputeRole::Primary => None,
            ComputeRole::Follower(life) => Some(life),
        }
    }
}
