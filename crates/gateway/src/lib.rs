//! Fabric's gRPC services.
#![warn(missing_docs)]

pub mod client;
pub mod events;
pub mod rpc;
pub mod server;
pub mod service;
