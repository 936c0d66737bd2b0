//! Fabric's gRPC services.
#![warn(missing_docs)]

pub mod client;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
pub mod rpc;
pub mod server;
pub mod service;
