//! A whole network, in one process or in a process for each role: composition, and nothing else.
//!
//! * [`config`]: the configuration file.
//! * [`network`]: certificates, genesis block, orderer, peers and gateways; created, opened, run, stopped.
//! * [`process`]: one role as a process of its own. [`plan`]: which processes a network has, and their files.
//! * [`Endpoints`]: what of a network listens where, for clients on the same machine.
//! * [`transport`]: links that leave the process, over TCP and mutual TLS.
//! * [`Overview`]: metrics and health of all processes of a network on one page.
//! * [`control`]: how an operator asks a running peer about its memory, and orderers about their group, and changes them.
//! * [`enlist`]: the files of one orderer more, or less.
//! * [`kv`]: a replicated key-value store as a program, and a client of it.
//! * [`logging`]: log lines. Metrics are served by the running network.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]
#![warn(missing_docs)]

pub mod config;
mod contracts;
pub mod control;
pub mod credentials;
mod disk;
mod endpoints;
pub mod enlist;
pub mod kv;
mod load;
pub mod logging;
mod metrics;
pub mod network;
mod overview;
pub mod plan;
mod ports;
pub mod process;
mod profile;
mod roles;
mod rules;
mod services;
pub mod transport;

/// What somebody outside this crate awaits, where it does much. It is boxed because what an `async fn` does, and all that it
/// awaits, is compiled where it is awaited: so it is compiled here, and not with the program, each time that this is.
pub(crate) type Boxed<'a, T> = futures_util::future::BoxFuture<'a, T>;

pub use config::{Config, ConfigError};
pub use endpoints::{Endpoints, GatewayEndpoint};
pub use network::{Endpoint, Network, NodeError, Role, Running};
pub use overview::Overview;
pub use plan::{Placement, Plan, Planned};
pub use process::{Ended, Process, ProcessRole, Ready};
pub use services::log_panics;
