//! Raft: the consensus engine for networks without a memory pool, and the baseline against which Sift is measured. The
//! external crate `raft`, here called *the crate*, implements the algorithm (Ongaro and Ousterhout, In search of an
//! understandable consensus algorithm, 2014, with pre-vote, check-quorum and learners as in Ongaro's thesis). This
//! module adds time, disks, links, reads and the state machine.
//!
//! ```
//! use base::rt::{self, net::BoxFuture, simulation::Simulation};
//! use base::Bytes;
//! use raft::{AppliedEntry, Error, Raft, RaftConfig, RaftMember, StateMachine};
//! use std::time::Duration;
//!
//! /// Counts entries.
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     type Output = u64;
//!
//!     fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<u64> {
//!         (self.0 + 1..).zip(&entries).map(|(count, _)| (self.0 = count, count).1).collect()
//!     }
//!
//!     fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
//!         let count = Bytes::copy_from_slice(&self.0.to_le_bytes());
//!         Box::pin(async move { Ok(count) })
//!     }
//!
//!     fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
//!         let count = snapshot[..].try_into().map_err(|_| Error::Corrupt("a count has eight bytes"))?;
//!         self.0 = u64::from_le_bytes(count);
//!         Ok(())
//!     }
//! }
//!
//! let report = Simulation::new(7).run(|_| async {
//!     let member = |id| RaftMember { id, address: format!("node-{id}"), is_learner: false };
//!     let mut nodes = Vec::new();
//!     for id in 1..=3 {
//!         nodes.push(Raft::start(RaftConfig::new(1, id, (1..=3).map(member).collect()), Counter(0)).await?);
//!     }
//!     // One node is elected. A proposal completes once its entry is committed and applied there.
//!     loop {
//!         for node in &nodes {
//!             match node.propose(Bytes::from_static(b"an entry")).await {
//!                 Err(Error::NotLeading(_) | Error::Busy) => {}
//!                 outcome => return outcome.map(|done| done.output),
//!             }
//!         }
//!         rt::sleep(Duration::from_millis(10)).await;
//!     }
//! });
//! assert_eq!(report.expect("the run succeeds").value, Ok(1));
//! ```
//!
//! # Protocol
//!
//! ```text
//!  callers ── propose, barrier, change ──▶ engine (one task a node) ── frames ──▶ other nodes' engines
//!                                            │   │    ▲
//!                         Machine ◀─ apply ──┘   └────┴── records, group fsync: log-…, snapshot-…
//! ```
//!
//! 1. One task ([`engine`]) takes all events that have arrived (proposals, messages, ticks, completed syncs) at once,
//!    gives them to the crate, and does what the crate then asks for. In this way many proposals share one step of the
//!    crate, one record on disk, and one message to each member.
//! 2. A leader sends entries while it writes them to its own disk; it counts itself into the majority only once they
//!    are durable there (thesis, 10.2.1). A follower confirms entries, and votes, once term, vote and entries are
//!    durable. Only one sync runs at a time; records that are written during a sync are made durable by the next one
//!    ([`disk`]).
//! 3. An entry that a majority has made durable is committed. It is then applied to the [`StateMachine`], and its
//!    proposer gets the result.
//! 4. A leader that loses its leadership answers all waiting proposals and changes of members with
//!    [`Error::Ambiguous`], and all waiting barriers with [`Error::NotLeading`].
//! 5. A read needs no entry. Either it reads the machine of a leader and then checks that the leader's *lease* stands
//!    ([`Raft::may_read`]), or it passes a [`Raft::barrier`] and then reads the machine.
//! 6. When the log on disk is long, a snapshot of the machine replaces it. If a member lacks entries that the leader
//!    has dropped, the leader sends it a snapshot, over a separate link ([`links`]).
//! 7. Members change one at a time: a new member starts as a learner and then gets a vote
//!    (`ordered_log::raft::RaftLog::admit`), or a member is removed ([`Raft::remove`]). The log and the snapshots
//!    contain the members and their addresses; a node's [`RaftConfig::addresses`] overrides these addresses.
//!
//! The lease. A leader sends a round of heartbeats at time t by its clock, and a majority of voters answers them. While
//! the lease from that round stands, no other leader is elected. Only this leader then commits entries, and its machine
//! has every entry whose proposer it has answered, so a read of the machine is current.
//!
//! Why no other leader is elected. From the moment at which a voter receives the heartbeat, it abstains (neither votes
//! nor stands for election) for one election time-out by its own clock. The time-out has *e* ticks
//! ([`RaftTimeouts::election_ticks`]); the first of them may be due at once, so only *e* - 1 full ticks are certain.
//! Ticks are never closer together than [`RaftTimeouts::tick`], even after a late tick. A node that has just started
//! abstains for a full election time-out, since it may have answered a heartbeat before it ended. An election needs the
//! vote of at least one voter of that majority. Hence no other leader is elected before t + (*e* - 1) ticks, less the
//! drift of both clocks ([`base::lease`]). In the crate's own transfer of leadership, a candidate asks for votes in
//! spite of a lease; nodes ignore such requests. Therefore a leader that hands over ([`Raft::transfer_leadership`])
//! steps down and does not stand for election for a while, and the others elect a leader as if the old one had crashed.
//!
//! When the lease stands. It starts when the leader has applied all entries that were committed when the round started.
//! These include all entries of earlier terms, since a round starts only after an entry of the leader's own term is
//! committed. The lease ends with every change of members. When a leader loses its leadership, the lease ends before
//! the node sends any message that follows from the loss.
//!
//! Randomness. Left alone, the crate draws election time-outs from its own random generator. Therefore this module
//! gives it a range of a single value, and delays each node's candidacy by a random number of ticks from `base::rt`. So
//! in a simulation the seed determines the elections too.
//!
//! # Guarantees
//!
//! The simulation in `kv`'s `tests/kv/raft_simulation` checks them under faults:
//! * A term has at most one leader.
//! * Every node, also after each of its restarts, applies the same entry at an index; that entry was proposed.
//! * An entry whose proposer got its result is never lost while a majority of the disks survives (without directories:
//!   a majority of the nodes).
//! * Reads are linearizable.
//! * The node ends if a log is damaged before its last records. Damage in the last records, which were not durable yet,
//!   is a torn tail and is cut off ([`disk`]).
//! * After a node has lost its log, members that have heard of it before accept neither its votes nor its confirmations
//!   ([`incarnations`]).
//! * At most one node, of all processes, uses a directory at a time.
//! * Bounded: waiting proposals ([`WAITING_MAX`]), waiting reads and changes ([`REQUESTS_MAX`]), uncommitted entries
//!   ([`RaftConfig::uncommitted_bytes_max`]), frames in flight, and entries in memory. Of applied entries a node keeps
//!   at most [`RaftConfig::log_bytes`] in memory, and a leader up to four times as much while a member lags. A node
//!   with a directory also keeps all entries since its last snapshot: [`RaftConfig::snapshot_after_bytes`], and the
//!   entries that are applied while the next snapshot is made.
//!
//! Without directories nothing is durable: the group lasts as long as a majority of its nodes runs. A node that ends
//! loses the record of its votes, so it must not start again under its number: it is removed, and added under another
//! number.
//!
//! # What it needs around it
//!
//! * `storage` locks a node's directory. Links are those of [`base::rt::net`], whose transport authenticates the
//!   members; all of them trust one another. Clocks drift by at most [`base::lease::CLOCK_DRIFT_PPM_MAX`].
//! * `ordered_log` has an ordered log on this engine, in which each CPU node keeps the entries in its own log store;
//!   `kv` has a key-value store on this engine, as the baseline for its store on Sift.
//! * The layers above decide what entries mean, and who becomes a member.
#![deny(missing_docs)]

mod codec;
mod config;
mod disk;
mod engine;
mod entries;
mod error;
pub mod fault;
#[doc(hidden)]
pub mod fuzz;
mod incarnations;
pub mod links;
mod membership;
mod raft_core;
mod raft_handle;
mod state_machine;
#[cfg(test)]
mod tests;

pub use base::Term;
pub use config::{PROPOSAL_BYTES_MAX, REQUESTS_MAX, RaftConfig, RaftTimeouts, WAITING_MAX};
pub use error::Error;
pub use membership::{MemberHealth, MembershipReport, RaftMember, RaftStatus};
pub use raft_handle::Raft;
pub use state_machine::{AppliedEntry, ProposalOutcome, StateMachine};

use membership::MembershipChange;
use raft_core::RaftCore;
