//! Fabric's services, on top of `chain`.
//!
//! 1. [`PeerService`]: the services of an organisation's port: `gateway.Gateway`, `protos.Deliver`, `protos.Endorser`,
//!    `discovery.Discovery`.
//! 2. [`OrdererService`]: the service of an orderer's port: `orderer.AtomicBroadcast`.
//! 3. Both answer `grpc.health.v1.Health`.
//!
//! Permits limit how many calls a port handles at once ([`crate::grpc::permits`]). A call with one answer takes a
//! permit when its message has arrived; a stream takes one when its signer is verified. Without a free permit the
//! answer is `RESOURCE_EXHAUSTED`. When the signature of a call is verified, its connection counts as authenticated
//! ([`crate::grpc::Caller::authenticate`]).
//!
//! A contract may occupy a processor for a long time. It therefore runs in a separate task, so that the other calls of
//! the connection do not wait for it. All other work is done in the connection's task.

mod assemble;
mod balance;
mod broadcast;
mod caller_identity;
mod commit_status;
mod deliver;
mod discovery;
mod dispatch;
mod endorse;
mod endorser;
mod evaluate;
mod events;
mod filtered;
#[doc(hidden)]
pub mod fuzz;
mod health;
mod intake;
mod layout;
mod method;
mod proposal;
mod seek;
mod service_core;
mod submit;

pub use crate::grpc::permits::CallLimits;
pub use balance::{BalancedEndorser, REPORT_AGE_MAX, REPORT_PERIOD};
pub use dispatch::{OrdererService, PeerService};
pub use intake::TransactionIntake;
pub use method::{OrdererMethod, PeerMethod};
pub use service_core::{Endorser, OrdererEndpoint, PeerServiceConfig};

pub(crate) use service_core::{OrdererServiceCore, PeerServiceCore};

use service_core::{channel_status, run_in_task, stopping_status};
