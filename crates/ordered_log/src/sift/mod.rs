//! Ordering on passive memory nodes: each entry is one record of a [`sift::Coordinator`]'s log, and becomes deliverable
//! once a majority of the CPU nodes has it on disk.
//!
//! ```text
//!  CPU nodes    Standby, or Coordinator and leader        acceptor + log store (disk)  ◀── calls: fence, align, append
//!                    │ one record an entry                       ▲
//!  memory nodes      ▼                                           │ committed entries
//!               the group's log, in memory ──────────────────────┘
//! ```
//!
//! 1. Every CPU node runs an acceptor ([`acceptor`]) for its log store and a standby of the group. The node that wins
//!    an election starts to lead ([`leader`]) under the group's term, in steps 2 to 4.
//! 2. Fence: a majority of the acceptors, the leader's own among them, promise to accept nothing from an earlier term.
//!    Each acceptor reports the height of its log store and the term that adopted the log store last.
//! 3. Choose: among the fenced log stores, the leader chooses the one with the latest adoption, and the longest where
//!    several have that adoption. It makes its own log store equal to the chosen one, then appends the entries that the
//!    group's log has beyond it.
//! 4. Adopt: the leader makes each fenced log store equal to its own, on disk, and has the acceptor record that its
//!    term adopted it. Once a majority is adopted, all entries of the leader's log store are deliverable, and the node
//!    leads.
//! 5. The leader posts an entry to the group's log. When the entry is committed there, the leader sends it to all
//!    adopted log stores, in order and pipelined; each acceptor makes all entries that it has received durable with one
//!    sync. An entry is deliverable when a majority of CPU nodes has it on disk and the leader's own log store has it.
//!    If entries are committed and none becomes deliverable for a long time, the leader steps down: another node may
//!    reach more disks. Acceptors that appear while the term runs are fenced, and their log stores are made equal and
//!    adopted. Every append tells the acceptor how many entries are deliverable.
//! 6. The leader trims records from the group's log once they are on a majority of disks, but it always leaves the
//!    log's last record. So the first record of the log shows up to which position a majority of disks once had all
//!    entries. A newly elected node may find that no log store that it hears of reaches that position, because disks
//!    were replaced or restored. Then the node's engine ends with an error: if the node led, it would assign positions
//!    of delivered entries a second time.
//! 7. The group may lose so many memories that its log can no longer be read; a power failure takes all of them. A CPU
//!    node then makes a majority of acceptors promise the first term of the next generation, under a new nonce. This
//!    term is greater than any term that was ever used. Under this term the CPU node reformats the group, with an empty
//!    log, on a majority of its memory nodes, as [`sift::format`](mod@sift::format) describes. The other memory nodes
//!    are re-admitted as blank ones, whatever they hold. The first formatting works the same way. If the CPU node ends
//!    during the reformatting, acceptors are left with a promise of a term that no election reaches. They reject the
//!    next node that is elected; that node then starts another generation in the same way.
//!
//! Why deliverable entries stay, and no other entry ever takes their position. The log stores are themselves a
//! replicated log, and its views are the terms. Take an entry that became deliverable in term *t*: a majority of log
//! stores, adopted in *t*, had it on disk before any of them promised a greater term. By induction, every log store
//! that is adopted in *t* or a later term has the entry: the leader of such a later term has heard from a majority of
//! acceptors, so from one whose log store had the entry when it promised. Among the log stores that the leader heard
//! of, it chooses one with the latest adoption. That adoption is of *t* or later, so the chosen log store has the
//! entry. One case remains: a leader was making a log store equal to the chosen one, and ended before it adopted the
//! log store. The log store then still has its old adoption, and holds a prefix of the chosen log. It has lost no
//! deliverable entry: it was truncated only to what it has in common with the chosen log, which has all of them. So
//! safety does not depend on the group's log. The group's log only preserves those entries that are committed and not
//! yet on disks when the leader ends.
//!
//! Why the records of the group's log continue the chosen log store. A leader posts records only after its term has
//! adopted a majority of the log stores. If the group's memory was not lost since, the next leader finds all records
//! that were not trimmed, and hears of a log store that was adopted in that term or a later one. That log store has
//! every entry before the first remaining record, since only entries on a majority of disks are trimmed. If the memory
//! was lost, the group's log is empty. Where the log store and the group's log have the same position, the two entries
//! are compared.
//!
//! Why a group may be reformatted without some of its memory nodes. The memory of the absent nodes is not needed: the
//! acceptors' promise came first, so no entry of an earlier term becomes deliverable any more, and deliverable entries
//! are on disks. That memory does no harm either. It does not count as a copy, since it has the number of another
//! generation. A CPU node may have been elected with the votes of the absent memory nodes, in a term that no other CPU
//! node knows of. That CPU node cannot start to lead with the entries of that log: terms of elections stay within a
//! generation, and a majority of acceptors has promised a term of the next one. Since every generation starts with such
//! a promise, a node that hears from a majority of acceptors knows the latest generation.
//!
//! When all memory is lost at once, the entries that were committed and not yet on a majority of disks are lost. None
//! of these was delivered. A *volatile* log delivers entries once they are committed in memory, so its users accept the
//! loss of delivered entries in this case. A takeover without a loss of memory loses nothing in a volatile log either.
//!
//! Invariants:
//! * Every delivered entry is in this node's log store and, unless the log is volatile, on a majority of disks.
//! * An acceptor accepts entries of one term at a time, into a log store that this term has adopted.
//! * Only failures of this node end its engine: a failure of its log store, or a panic. An invalid answer of another
//!   node counts as no answer. There are two exceptions, which both show that logs contradict each other. One is a
//!   group's log that does not continue the log stores (step 6). The other is a leader's request to truncate entries
//!   that were delivered here. (In a volatile log such a request can come after all other nodes have lost their power.
//!   When this node starts again, it follows their log.)
//! * Bounded: entries in flight ([`IN_FLIGHT_MAX`]), messages to an acceptor ([`APPENDS_MAX`]) and the bytes of entries
//!   that it queues, connections.

mod acceptor;
mod client;
mod config;
#[doc(hidden)]
pub mod fuzz;
mod leader;
mod limits;
mod log_core;
mod message;
mod recovery;
mod sift_log;

pub use config::{CpuNode, SiftConfig};
pub use limits::{APPENDS_MAX, IN_FLIGHT_MAX};
pub use sift_log::SiftLog;

use limits::REQUESTS_MAX;

#[cfg(test)]
mod tests;
