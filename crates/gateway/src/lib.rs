//! Fabric's gRPC services over a peer and an orderer, and a client of them.
//!
//! Before a port verifies a signature, it decodes the request, and refuses a request that it cannot decode. The example
//! shows this step only, because all later steps need a socket and a running peer; for these see `tests/transport` and
//! the tests of `node`.
//!
//! ```
//! use bytes::Bytes;
//! use gateway::grpc::GrpcCode;
//! use gateway::grpc::message::{PREFIX_BYTES, frame};
//! use gateway::service::{PeerMethod, TransactionIntake};
//! use prost::Message as _;
//! use proto::common::Envelope;
//! use proto::gateway::SubmitRequest;
//!
//! let envelope = Envelope { payload: Bytes::from_static(b"payload"), signature: Bytes::from_static(b"signature") };
//! let request = SubmitRequest {
//!     transaction_id: String::new(),
//!     channel_id: "trade".to_owned(),
//!     prepared_transaction: Some(envelope.clone()),
//! };
//! let message = frame(&request).slice(PREFIX_BYTES..); // The message without gRPC's prefix.
//! PeerMethod::Submit.read(message).expect("the request names a channel and has a signature");
//!
//! let unsigned = Envelope { signature: Bytes::new(), ..envelope };
//! let request = SubmitRequest { prepared_transaction: Some(unsigned), ..request };
//! let status = PeerMethod::Submit.read(request.encode_to_vec().into()).expect_err("nobody signed it");
//! assert_eq!(status.code, GrpcCode::InvalidArgument);
//!
//! // While the disk is nearly full, new transactions are refused, and clients learn the reason.
//! let intake = TransactionIntake::default();
//! intake.close("the disk is nearly full; retry later".to_owned());
//! assert_eq!(intake.problem().as_deref(), Some("the disk is nearly full; retry later"));
//! intake.open();
//! assert_eq!(intake.problem(), None);
//! ```
//!
//! * [`service`]: the meaning of each method, on top of `chain`.
//! * [`grpc`]: calls, messages and statuses over HTTP/2.
//! * [`server`]: a listening port with TLS and its limits.
//! * [`chaincode`]: streams to contracts outside of the peer, which `contract` speaks Fabric's shim protocol over.
//! * [`client`]: a client like an SDK, for tests, tools and measurements.
//!
//! # Guarantees
//!
//! * Fabric's SDKs work unchanged: services, messages and statuses are Fabric's.
//! * A call is answered exactly once, with a status that tells the client whether to retry.
//! * A port bounds what unauthenticated clients can make it spend: connections, calls, streams and bytes of unfinished
//!   messages. Until the signature of a request is verified, the request takes at most twice its size plus a few KiB of
//!   memory.
//! * When a port stops, it lets calls in progress finish for a grace period.
//!
//! # What it needs around it
//!
//! * Above: `node` binds ports, and gives each port a certificate, a peer or an orderer, and limits. It closes the
//!   [intake](service::TransactionIntake) during a problem that more work would make worse.
//! * Below: `chain` endorses, orders, waits for commits and reads blocks, in this process or in another one; `base`
//!   admits connections.
//! * Only caches and permits outlive a call. The crate decides nothing about the validity of a transaction.
//! * The crate uses tokio directly, so it cannot run in a simulation. The simulator replaces it by messages over links.
#![deny(missing_docs)]

pub mod chaincode;
pub mod client;
pub mod disk_space;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
pub mod grpc;
pub mod server;
pub mod service;
