//! Composes a whole network from the other crates, in one process or in one process per role. It has no logic of the
//! ledger itself.
//!
//! The first step is the configuration. This example stops there: a running network needs ports and a directory, as in
//! `tests/network`.
//!
//! ```
//! use node::HeddleConfig;
//!
//! let text = r#"
//! [network]
//! channel = "trade"
//! organizations = ["Buyer", "Seller"]
//! policy = "all"
//!
//! [batch]
//! timeout_ms = 20
//! "#;
//! let config = HeddleConfig::parse(text, "heddle.toml").expect("every key that is absent has a default");
//! assert_eq!(config.network.organizations, ["Buyer", "Seller"]);
//! assert_eq!((config.tls, config.ports.gateway), (true, 7051));
//!
//! // Errors name the key, and say what to do.
//! let error = HeddleConfig::parse("[batch]\nmessages = 0", "heddle.toml").expect_err("a block has a transaction");
//! assert!(error.to_string().contains("batch.messages is 0; it must be from 1 to 100000"));
//!
//! // The genesis block fixes some keys for ever. Others may differ at every start.
//! let mut changed = config.clone();
//! changed.ports.gateway = 8051;
//! changed.check_same_network(&config).expect("the ports are not in the genesis block");
//! changed.network.policy = "any".to_owned();
//! changed.check_same_network(&config).expect_err("the policy is in the genesis block");
//! ```
//!
//! * [`config`]: the configuration file.
//! * [`network`]: certificates, genesis block, orderer, peers and gateways; creates, opens, runs and stops a network.
//! * [`process`]: runs one role as a separate process. [`plan`]: the processes of a network, and their files.
//! * [`Endpoints`]: the listening addresses of a network, for clients on the same machine.
//! * [`Overview`]: metrics and health of all processes of a network on one page.
//! * [`control`]: the interface through which an operator queries and changes the memory of a running peer and the
//!   members of an ordering group.
//! * [`added_nodes`] and [`joining`]: the compute nodes that are added to a peer, and their files.
//! * [`membership`]: the files of an orderer that is added or removed.
//! * [`kv`]: the replicated key-value store as a program, and its client.
//! * [`metrics`]: the page of metrics and health, for roles outside of this crate too.
//! * [`logging`]: log lines. Metrics are served by the running network.
//!
//! # Guarantees
//!
//! * A configuration with an unusable value is rejected before anything is created or bound; the error says what to do.
//! * Creating a network writes the genesis block last. After an interruption the next start creates the network again
//!   from the beginning.
//! * Only one process at a time uses a data directory.
//! * [`RunningNetwork::stop`] and [`Process::stop`] finish the accepted work and persist the state. The next start
//!   continues there.
//! * Organisations in one process share only immutable bytes.
//!
//! # What it needs around it
//!
//! * Above: `heddle`, the command-line program, reads arguments, calls [`Network`] or [`Process`], and stops them on
//!   SIGTERM.
//! * Below: the crates that this one composes. `gateway` answers clients, `chain` endorses, orders and commits, `state`
//!   and `pool` hold the world state, `storage` holds blocks and rows, and `sift` and `raft` replicate logs.
//! * Rules of the ledger, protocols and formats belong to those crates.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "files of tests need not outlive a loss of power"))]
#![deny(missing_docs)]

pub mod added_nodes;
mod boxed;
mod chaincode_port;
mod chaincodes;
pub mod config;
mod contracts;
pub mod control;
pub mod credentials;
mod endpoints;
mod free_ports;
pub mod joining;
pub mod joining_memory;
pub mod kv;
pub mod logging;
pub mod membership;
pub mod metrics;
pub mod network;
mod overview;
pub mod plan;
mod planned;
mod planned_chaincodes;
mod planned_identities;
mod planner;
mod policy_record;
mod ports;
pub mod process;
mod profile;
mod roles;
mod services;

pub(crate) use boxed::Boxed;
pub use config::{ConfigError, HeddleConfig};
pub use contracts::first_definitions;
pub use endpoints::{Endpoints, GatewayEndpoint};
pub use network::{Endpoint, EndpointRole, Network, NodeError, RunningNetwork};
pub use overview::Overview;
pub use plan::{Placement, PlannedProcess, ProcessPlan};
pub use process::{Process, ProcessEnd, ProcessRole, Ready};
pub use services::log_panics;
