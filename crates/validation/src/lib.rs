//! Decides which transactions of a block are valid.
//!
//! 1. [`verify`] checks everything that depends only on the transaction and on the channel's policies: the format, the
//!    creator's signature, and the endorsements. Transactions of any blocks can be checked concurrently, in any order.
//!    If a block changes the policies, later blocks that were verified ahead are verified again.
//! 2. [`block::validate_block`] takes the blocks in order. It finds transaction ids that occurred before. If a
//!    transaction writes to a contract or collection in which keys may have policies of their own, it checks the
//!    transaction's endorsements again ([`key_policies`]).
//! 3. [`conflicts`] compares the versions that a transaction read with the state and with the writes of earlier
//!    transactions, in the order of the block. The result includes the batch of changes that the state applies.
//!    [`parallel`] does the same with several workers, which follow the block's dependency [`graph`].
//!
//! A transaction gets the code of the first check that it fails. The order of the checks is Fabric's:
//!
//! | step | check | code |
//! |---|---|---|
//! | 1 | envelope, payload, headers, type, epoch, nonce, creator | 255, 2, 3 |
//! | 2 | the creator is a member, and the creator's signature is valid | 4 |
//! | 3 | the type may occur in a block | 7 |
//! | 4 | the transaction id | 8 |
//! | 5 | one action, endorsed for this proposal | 5 |
//! | 6 | the channel | 14 |
//! | 7 | no committed block has the transaction id | 9 |
//! | 8 | header extension, result, read-write set, chaincode, event | 19, 21, 22, 255, 25 |
//! | 9 | no namespace twice; keys the state can hold | 23, 24 |
//! | 10 | defined namespaces; the policies of the chaincode and of everything written ([`endorsement`]) | 25, 10 |
//! | 11 | no earlier transaction of this block that passed steps 1 to 10 has the transaction id | 9 |
//! | 12 | conflicts | 11, 12 |
//!
//! A configuration skips steps 4, 5 and 7 to 12, because nobody endorses it. It is valid only if it is alone in its
//! block (code 6 otherwise). If no authorised update leads to it from the configuration in force, its block ends the
//! channel (`chain::commit`).
//!
//! Other compute nodes of the same peer may verify signatures for the primary: [`offload`].
//!
//! [`updates`] computes the changes of the valid transactions, and [`expiry`] the private hashes that the block itself
//! removes.
//!
//! Invariant: a verdict depends only on the chain up to the transaction, so all peers agree. A compute node never
//! relies on the verdict of another organisation. It verifies each signature of a block once, with three exceptions: a
//! follower lied about a chunk, the policies changed after the check, or a transaction writes to a contract or
//! collection in which keys may have policies of their own.
//!
//! ```
//! use base::{Bytes, Version};
//! use ledger::rwset::{ReadWriteSet, ReadWriteSetRecorder};
//! use validation::footprint::Footprint;
//! use validation::graph::GraphBuilder;
//!
//! let transfer = |from: &str, to: &str| {
//!     let mut recorder = ReadWriteSetRecorder::new();
//!     for account in [from, to] {
//!         recorder.read(&"bank".into(), account, Some(Version::new(7, 0)));
//!         recorder.write(&"bank".into(), account, Bytes::from_static(b"balance"));
//!     }
//!     ReadWriteSet::decode(recorder.encode()).expect("just encoded")
//! };
//! let block = [transfer("ann", "bob"), transfer("cem", "dora"), transfer("bob", "eve"), transfer("eve", "ann")];
//! let mut builder = GraphBuilder::default();
//! block.iter().for_each(|set| builder.add(&Footprint::of(set), set));
//! let graph = builder.finish();
//! assert_eq!(graph.predecessors(1), []); // Nobody else has these accounts.
//! assert_eq!(graph.predecessors(2), [0]);
//! assert_eq!(graph.predecessors(3), [2]); // That it also comes after 0 follows.
//! ```
//!
//! # Neighbours
//!
//! `rules` has the policies in force, `state` the versions and rows, `storage` the transaction ids of earlier blocks, `replica` the
//! followers that verify for the primary. Above, `chain::commit` calls this crate for each block that a peer receives.

#![deny(missing_docs)]

pub mod accesses;
pub mod block;
pub mod conflicts;
pub mod endorsement;
pub mod error;
pub mod events;
mod expiry;
pub mod footprint;
pub mod graph;
pub mod key_policies;
pub mod known_rows;
pub mod offload;
pub mod parallel;
pub mod updates;
pub mod verify;
pub mod view;

pub use error::Error;
