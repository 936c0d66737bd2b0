//! Chaincode as a service: contracts that run outside of this process, with Fabric's unmodified shims.
//!
//! A chaincode and the peer exchange [`ChaincodeMessage`](proto::protos::ChaincodeMessage)s over one stream, which either
//! side may have opened. The peer's side of the protocol:
//!
//! 1. The chaincode sends REGISTER with its package id. The peer compares the id with the one that it expects, and answers
//!    REGISTERED, then READY with the sizes of batches that it takes ([`registration`]).
//! 2. A call sends TRANSACTION, or INIT if the client initialises the contract, with the arguments and the client's signed
//!    proposal ([`service`]). Many calls run on one stream; channel and transaction id together name a call ([`calls`]).
//! 3. The chaincode sends requests, one at a time for each call: GET_STATE, PUT_STATE, INVOKE_CHAINCODE and so on. The peer
//!    answers each from the call's [`ContractStub`](crate::ContractStub) with RESPONSE, or with ERROR and a text
//!    ([`answer`]). The results of a query come in batches of 100 ([`query`]).
//! 4. The chaincode ends the call with COMPLETED, which holds a response and an optional event, or with ERROR.
//!
//! | message | from | payload | answer |
//! |---|---|---|---|
//! | REGISTER | chaincode | `ChaincodeID` | REGISTERED, READY |
//! | TRANSACTION, INIT | peer | `ChaincodeInput` | COMPLETED or ERROR, after the call's requests |
//! | GET_STATE, GET_PRIVATE_DATA_HASH | chaincode | `GetState` | the value or hash; nothing if there is none |
//! | GET_STATE_MULTIPLE | chaincode | `GetStateMultiple` | `GetStateMultipleResult` |
//! | PUT_STATE, DEL_STATE, PURGE_PRIVATE_DATA | chaincode | `PutState`, `DelState`, `PurgePrivateState` | an empty RESPONSE |
//! | WRITE_BATCH_STATE | chaincode | `WriteBatchState` | an empty RESPONSE |
//! | GET_STATE_METADATA | chaincode | `GetStateMetadata` | `StateMetadataResult` |
//! | PUT_STATE_METADATA | chaincode | `PutStateMetadata` | an empty RESPONSE |
//! | GET_STATE_BY_RANGE, GET_QUERY_RESULT, GET_HISTORY_FOR_KEY | chaincode | of the same name | `QueryResponse` |
//! | QUERY_STATE_NEXT, QUERY_STATE_CLOSE | chaincode | of the same name | `QueryResponse` |
//! | INVOKE_CHAINCODE | chaincode | `ChaincodeSpec` | a COMPLETED message with a `Response` |
//! | KEEPALIVE | chaincode | | none; the peer never sends it, because one of the shims exits on it |
//!
//! # Invariants
//!
//! * What a chaincode does on behalf of a call reaches the stub of that call, and of no other. A call that was abandoned (a
//!   time limit, a client that went) keeps its name until the chaincode has ended its run, so that a later call of the same
//!   transaction never records what an earlier run computed from other reads.
//! * A chaincode calls itself in one transaction only through another stream; a second call of the same transaction on one
//!   stream is refused, as in Fabric.
//! * A failure of the world state ends the call. The chaincode learns of it, but cannot turn it into an answer.
//! * When a stream ends, each of its calls fails at once with an error that asks for a retry. The next call connects again.
//!
//! # Bounds
//!
//! A chaincode is as untrusted as a client. A message has at most [`MESSAGE_BYTES_MAX`] bytes, and batches in it have at most
//! [`BATCH_MAX`] entries, counted before memory is allocated for them. A call has one request under way, at most
//! [`OPEN_QUERIES_MAX`] open queries and [`QUERY_ROWS_MAX`] results of a query. Messages of transactions that do not run are
//! dropped and counted. A stream that carries anything else is closed. What a chaincode does not read delays only its own
//! calls, whose time `chain` limits.
//!
//! Left to others: streams over gRPC (`gateway`), and which package runs (`chain`).

mod answer;
mod calls;
mod fault;
#[doc(hidden)]
#[cfg(debug_assertions)]
pub mod fuzz;
mod query;
mod registration;
mod service;
mod stream;
#[cfg(test)]
mod tests;

pub use answer::BATCH_MAX;
pub use fault::Mutant;
#[cfg(debug_assertions)]
pub use fault::plant;
pub use query::{OPEN_QUERIES_MAX, QUERY_ROWS_MAX};
pub use registration::{ChaincodeConnection, Registration};
pub use service::ChaincodeService;
pub use stream::{ChaincodeConnector, ChaincodeStream, MESSAGE_BYTES_MAX, MessageReceiver, MessageSender, ShimError};
