//! Roles, configuration and composition: what makes a running network of the layers below.
//!
//! * [`Config`]: one TOML file for everything.
//! * [`Network`]: a network in a directory: made once, opened and run as often as wanted.
//! * [`Endpoints`]: what of it listens where, for clients on this machine.
//! * [`layout`]: where its files are. [`metrics`] and [`logging`]: how it is watched.
//!
//! No protocol logic is here.

mod config;
mod endpoints;
mod error;
mod founding;
pub mod layout;
pub mod logging;
pub mod metrics;
mod network;
mod profile;

pub use config::{
    Batch, Config, ConfigError, Contracts, Endorsers, Limits, NetworkConfig, ORGANIZATIONS_MAX, Ports, StorageConfig,
    Tls,
};
pub use endpoints::{Endpoints, GatewayEndpoint};
pub use error::NodeError;
pub use network::{Network, Running};
