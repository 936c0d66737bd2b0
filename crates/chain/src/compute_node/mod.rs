//! A compute node of a peer that has several: one commits, the others follow it. [`replica`] decides which one is the
//! primary. This module implements what a node does in each role ([`roles`]), and answers proposals in both.

mod followed;
mod roles;
mod running;
mod setup;

pub use followed::FollowedChannel;
pub use running::{ActivePrimary, ComputeNode, DRAIN_MAX, DRAIN_MIN};
pub use setup::{ComputeNodeSetup, PeerMemory};
