//! The rules of a channel: how its contracts are defined, and which policies are in force.
//!
//! 1. [`definitions`] reads the definitions of contracts from the world state, and compiles each of them under a channel
//!    configuration.
//! 2. [`access::ChannelPolicies`] joins a channel configuration and the definitions in force. It decides who may do what
//!    in the channel: call, read, order, endorse. It never changes; a new configuration or definition makes a new one.
//! 3. [`interest`] states which policies the endorsements of one transaction must satisfy, for those who choose endorsers.
//!
//! Endorsement, ordering, validation and the gateway ask the same [`access::ChannelPolicies`], so they cannot disagree
//! on a rule.
#![deny(missing_docs)]

pub mod access;
pub mod definitions;
pub mod interest;
