//! The interface of an ordering engine: the log that it appends to, and the store that it recovers from.

use std::fmt;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::{Bytes, Term};

use crate::error::Error;

/// No generation follows the last one.
pub(crate) const LAST_TERM: Error = Error::Corrupt("a term at the end of all terms");

/// The number of a CPU node among those of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CpuNodeId(pub u64);

impl fmt::Display for CpuNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The current role of a CPU node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leadership {
    /// It is the leader: its log store has every entry before `next`, and it may append from there on.
    Leading {
        /// The term under which it appends.
        term: Term,
        /// The position of the first entry that it may append.
        next: u64,
    },
    /// It is not the leader.
    Following {
        /// The leader, as far as this node knows.
        leader: Option<CpuNodeId>,
    },
}

impl Leadership {
    /// The term in which this node is the leader.
    pub fn term(&self) -> Option<Term> {
        match self {
            Leadership::Leading { term, .. } => Some(*term),
            Leadership::Following { .. } => None,
        }
    }
}

/// One CPU node's part in a replicated ordered log. See [the module](self) for its guarantees.
#[async_trait]
pub trait OrderedLog: Send + Sync {
    /// The current role of this node. Follows every change; a receiver may miss short-lived ones.
    fn leadership(&self) -> WatchReceiver<Leadership>;

    /// The number of deliverable entries: all entries below it are committed, and in this node's log store. Never falls while
    /// the engine runs.
    fn deliverable(&self) -> WatchReceiver<u64>;

    /// Appends an entry at the next position, under a term. On return the entry has its position in the log; it is committed
    /// once `deliverable` has passed the position, which may never happen. Waits for space. If the future is dropped or returns
    /// anything but `Ok`, the term is over for this caller: the entry may or may not have its position, and the caller may
    /// append again only after `leadership` has reported another term.
    ///
    /// # Errors
    /// [`Error::Fenced`] when this node no longer leads in that term; [`Error::Invalid`] for a position that is not the next
    /// one, or an entry that is too long; [`Error::Closed`] when the engine has ended.
    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error>;

    /// Bytes of the longest entry.
    fn entry_bytes_max(&self) -> usize;

    /// Completes when the engine has ended, with the reason; [`Error::Closed`] when it was stopped. An engine that cannot reach
    /// the other nodes does not end: it waits. An engine whose log store fails does.
    async fn ended(&self) -> Error;

    /// Stops this node's engine. The entries that are appended and not deliverable are left to the other nodes. On return the
    /// log store belongs to the caller again.
    async fn stop(&self);
}

/// The entries that one CPU node has on its own disk.
///
/// An engine appends in order from one task, and reads from any task. An I/O error of the log store ends the engine. The
/// rejection of an entry that another node sent does not.
#[async_trait]
pub trait LogStore: Send + Sync {
    /// The number of entries, durable or not; at least one.
    fn height(&self) -> u64;

    /// The number of durable entries.
    fn durable(&self) -> u64;

    /// The entry at a position; `None` at and above the height.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when the stored bytes are not the ones that were appended; [`Error::LogStore`].
    fn read(&self, position: u64) -> Result<Option<Bytes>, Error>;

    /// Appends an entry at a position, which must equal the height. The entry is readable on return, and durable after
    /// [`LogStore::sync`]. Waits while the disk is full.
    ///
    /// # Errors
    /// [`Error::Invalid`] for bytes that cannot follow the entry before, in which case the log store is unchanged;
    /// [`Error::LogStore`]; [`Error::Closed`] when it was stopped while it waited.
    async fn append(&self, position: u64, entry: Bytes) -> Result<(), Error>;

    /// Makes all entries that were appended before durable, and returns the number of durable entries. Dropping the future is
    /// safe.
    ///
    /// # Errors
    /// [`Error::LogStore`].
    async fn sync(&self) -> Result<u64, Error>;

    /// Truncates the log to `height` entries, 1 at least. Durable on return; a crash during the call leaves any number of the
    /// truncated entries, from the first of them on. Deliverable entries are never truncated.
    ///
    /// # Errors
    /// [`Error::LogStore`].
    async fn truncate(&self, height: u64) -> Result<(), Error>;

    /// The engine's hard state, kept beside the entries: a few integers. Empty when there is none.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::LogStore`].
    fn hard_state(&self) -> Result<Bytes, Error>;

    /// Replaces the hard state. Durable on return; a crash during the call leaves the old one or the new one.
    ///
    /// # Errors
    /// [`Error::LogStore`].
    async fn set_hard_state(&self, note: Bytes) -> Result<(), Error>;
}

/// Checks whether an entry may be appended.
pub(crate) fn check(entry: &Bytes, bytes_max: usize) -> Result<(), Error> {
    match entry.len() {
        0 => Err(Error::Invalid("an entry has no bytes: append at least one".to_owned())),
        length if length > bytes_max => {
            Err(Error::Invalid(format!("an entry of {length} bytes: this log takes at most {bytes_max}")))
        }
        _ => Ok(()),
    }
}
