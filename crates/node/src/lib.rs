//! A whole network in one process: composition, and nothing else.
//!
//! * [`config`]: the configuration file.
//! * [`network`]: certificates, genesis block, orderer, peers and gateways; created, opened, run, stopped.
//! * [`Endpoints`]: what of a network listens where, for clients on the same machine.
//! * [`transport`]: links that leave the process, over TCP and mutual TLS.
//! * [`logging`]: log lines. Metrics are served by the running network.
#![warn(missing_docs)]

pub mod config;
mod contracts;
mod disk;
mod endpoints;
pub mod logging;
mod metrics;
pub mod network;
mod profile;
pub mod transport;

pub use config::{Config, ConfigError};
pub use endpoints::{Endpoints, GatewayEndpoint};
pub use network::{Endpoint, Network, NodeError, Role, Running};
