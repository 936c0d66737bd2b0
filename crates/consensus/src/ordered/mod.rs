//! A replicated ordered log as one of its processors sees it, and the promise that every engine behind it keeps.
//!
//! ```text
//!  whoever orders   ── append(term, position, entry) ─▶  OrderedLog  ── entries, in order ─▶  Journal (own disk)
//!                   ◀─ role, safe ──────────────────────     │
//!                                                         other processors, memory nodes, logs: the engine's matter
//! ```
//!
//! Entries are bytes without a meaning here. They have *positions*, counted from 0 without a gap; the entries that a
//! journal holds before its engine starts (the first of them is the same everywhere) are the log's beginning. Positions are
//! the caller's numbers, not an engine's: an engine that keeps entries of its own among them hides those.
//!
//! 1. Every processor opens its engine with its [`Journal`], which only the engine appends to from then on.
//! 2. [`OrderedLog::role`] says who leads. Whoever leads in a term is told so once everything that was agreed on before is in its
//!    own journal, with the position at which it goes on.
//! 3. The leader appends: the next position, under the term in which it leads. Appending is pipelined: it completes when the entry
//!    has its place, before anything is agreed on. Entries under one term take their places in the order of their positions.
//! 4. The engine brings entries that are agreed on into the journal of *every* processor, in order, and then moves
//!    [`OrderedLog::safe`] there: the number of entries that may be shown to the world.
//! 5. Whoever loses the lead learns it from `role`. What it appended and what is not safe then may become safe or not; nothing
//!    is said about it but by what stands at its position once that is safe.
//!
//! What every engine promises:
//! 1. **One entry a position.** Where two processors, or one before and after a crash, find a position below `safe`, they read
//!    the same bytes there.
//! 2. **Safe is safe.** An entry below `safe` at any processor, ever, survives whatever the engine is made for: the loss of
//!    F processors or their disks' unsynced bytes, and, unless the engine was opened as volatile, that all of them end at once.
//! 3. **Readable.** What is below `safe` can be read from this processor's journal. After a crash, `safe` may begin below where it
//!    was, and grows again.
//! 4. **One leader a term**, terms only grow, and an entry appended under a term is refused once a greater one has begun to
//!    lead. Two processors may both believe that they lead for a while; only one gets entries to be safe.
//! 5. **Nothing is made up.** What becomes safe was appended by a leader, under that position.
//! 6. **Progress.** While enough processors and whatever else the engine needs are up and reach one another, somebody leads, and
//!    what the leader appends becomes safe, everywhere that is reached.
//! 7. **Bounds.** What is appended and not safe is bounded; [`OrderedLog::append`] waits for room.
//!
//! What callers promise: one task appends at a time; an entry has at most [`OrderedLog::entry_bytes_max`] bytes; the journal is
//! the engine's until [`OrderedLog::stop`] has returned.

pub mod fault;
pub mod sift;
pub mod solo;

use std::fmt;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::WatchReceiver;

use crate::{Error, Term};

/// The number of a processor among those of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Processor(pub u64);

impl fmt::Display for Processor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What a processor is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It leads; it has everything before `next` in its journal, and may append from there on.
    Leading {
        /// Under which term it appends.
        term: Term,
        /// The position of the first entry that it may append.
        next: u64,
    },
    /// It does not.
    Following {
        /// Who leads, as far as it knows.
        leader: Option<Processor>,
    },
}

impl Role {
    /// The term in which it leads.
    pub fn term(&self) -> Option<Term> {
        match self {
            Role::Leading { term, .. } => Some(*term),
            Role::Following { .. } => None,
        }
    }
}

/// One processor's part in a replicated ordered log. See [the module](self) for what it promises.
#[async_trait]
pub trait OrderedLog: Send + Sync {
    /// What this processor is. Follows every change; a receiver may miss those that were over quickly.
    fn role(&self) -> WatchReceiver<Role>;

    /// How many entries may be shown: all below this are safe, and in this processor's journal. Never falls while the engine
    /// runs.
    fn safe(&self) -> WatchReceiver<u64>;

    /// Gives an entry the next position under a term. On return it has its place, and is agreed on when `safe` has passed it; it
    /// may never be. Waits for room. When the future is dropped, or anything but `Ok` comes back, the term is over for this caller:
    /// the entry may have its place or not, and the next one may only be appended after `role` has told of another term.
    ///
    /// # Errors
    /// [`Error::Fenced`] when this processor does not lead in that term any more; [`Error::Invalid`] for a position that is not
    /// the next one, or an entry that is too long; [`Error::Closed`] when the engine has ended.
    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error>;

    /// Bytes of the longest entry.
    fn entry_bytes_max(&self) -> usize;

    /// Completes when the engine has ended, with the reason; [`Error::Closed`] when it was stopped. An engine that cannot reach the
    /// others does not end, it waits; one whose journal fails does.
    async fn ended(&self) -> Error;

    /// Ends this processor's part. What is appended and not safe is left to the others. On return the journal is the caller's.
    async fn stop(&self);
}

/// The entries that one processor has on its own disk.
///
/// An engine appends in order from one task, and reads from any. Its failures end the engine, but not what an entry is refused for that
/// another processor gave.
#[async_trait]
pub trait Journal: Send + Sync {
    /// How many entries there are, durable or not; at least one.
    fn height(&self) -> u64;

    /// How many entries are durable.
    fn durable(&self) -> u64;

    /// The entry at a position; nothing at and above the height.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when it is not what was appended; [`Error::Journal`].
    fn read(&self, position: u64) -> Result<Option<Bytes>, Error>;

    /// Appends the entry at a position, which is the height. Readable on return, durable after [`Journal::sync`]. A full disk is
    /// waited for.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes that cannot follow the entry before, which leave the journal as it was; [`Error::Journal`];
    /// [`Error::Closed`] when it was told to stop while it waited.
    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error>;

    /// Makes all that was appended before durable, and gives how many entries are. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Journal`].
    async fn sync(&self) -> Result<u64, Error>;

    /// Gives up the entries from a position on, 1 at least. Durable on return; a crash on the way leaves any number of them, from the
    /// beginning on. Only entries that are not safe are ever given up.
    ///
    /// # Errors
    /// [`Error::Journal`].
    async fn cut(&self, height: u64) -> Result<(), Error>;

    /// The engine's own note beside the entries, a few words; empty when there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Journal`].
    fn note(&self) -> Result<Bytes, Error>;

    /// Replaces the note. Durable on return; a crash on the way leaves the old one or the new one.
    ///
    /// # Errors
    /// [`Error::Journal`].
    async fn set_note(&self, note: Bytes) -> Result<(), Error>;
}

/// Whether an entry may be appended.
pub(crate) fn check(entry: &Bytes, bytes_max: usize) -> Result<(), Error> {
    match entry.len() {
        0 => Err(Error::Invalid("an entry of no bytes".to_owned())),
        length if length > bytes_max => {
            Err(Error::Invalid(format!("an entry of {length} bytes: this log takes at most {bytes_max}")))
        }
        _ => Ok(()),
    }
}
