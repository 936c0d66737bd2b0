//! Several compute nodes of a peer: its primary, and readers.
//!
//! A *reader* serves snapshots of the same state from the same remote memory, with one-sided reads, and has caches and a
//! delta of its own. It is the same code as the primary's ([`super::read`], [`super::range`], [`super::cache`]); what
//! differs is where its knowledge comes from: one link to the primary ([`message`], docs/formats/readers.md). FlexChain
//! (section 4.2) invalidates the caches of other compute nodes record by record; here it is one message for each node and
//! block (docs/adr, several compute nodes).
//!
//! Joining:
//! 1. The reader connects, and says which version it speaks. The primary waits until it has every durable block itself and no
//!    reader of an earlier primary holds a lease ([`Disaggregated::admit_readers`](super::Disaggregated::admit_readers)), and
//!    has storage make rows of the blocks, so that there is little to tell.
//! 2. It has each section shared with the reader (a capability to read, of this reader alone). Then, with the writer's lock
//!    held, it does so for the sections leased since, and takes down where the index lies, what the delta holds, and the
//!    height. From here on it logs every change for this reader. Sections whose donor is silent the reader goes without: it
//!    finds in storage what lies there.
//! 3. The reader enters all that, and follows.
//!
//! Following:
//! 4. The primary logs what changes: sections, subtables, records evicted or gone, what storage has, and the writes of blocks,
//!    each after it was done in remote memory. An *update* carries everything logged since the last one. There is one for
//!    each block, before its height is raised, and one every [`HEARTBEAT`].
//! 5. The reader puts an update in force, whole and in order: a block goes to the delta, then to the caches, which kills
//!    every token of its keys, then its height is shown. Then it acknowledges, and thereby asks for a lease from that moment
//!    on.
//! 6. The primary raises its height when every reader has acknowledged the block's update, or its lease has ended
//!    ([`Holders::told`]). A lease is granted with a heartbeat, and only after storage has confirmed, upon a question sent
//!    after the reader asked, that no newer primary has begun. A reader that is behind acknowledges nothing and gets none.
//! 7. A snapshot is given, and an answer counts, only under a live lease ([`Life::is_live`]); a look into remote memory begins
//!    only under one.
//! 8. A buffer is put aside only when everybody who holds a lease has acknowledged that nothing leads to it
//!    ([`Writer::put_aside`](super::Writer)). Versions are reclaimed below the oldest view of all ([`Holders::floor`]).
//!    Eviction asks readers what they have in use.
//! 9. What a reader finds in storage alone it asks the primary to bring back to memory, and what is in no memory to have
//!    storage make rows of. Such requests may be dropped.
//!
//! Readers may also do work for the primary: see [`work`].
//!
//! Ends:
//! 10. A reader whose link is lost, or that lets [`UPDATES_MAX`](holders::UPDATES_MAX) updates wait, is fenced: its
//!     capabilities are revoked, its lease is waited for, and it joins anew, with empty caches. A reader that hears nothing
//!     for [`SILENCE_MAX`], or gets no lease for [`LEASELESS_MAX`], gives up by itself.
//! 11. A new primary has fenced the old one at storage and memory. It raises no height, and shows none that it finds, before
//!     every lease that the old one can have granted has ended. Its readers join it anew; one of them may be the process that
//!     it runs in.
//!
//! Invariants:
//! * When a height has been raised at the primary, no reader answers from a snapshot below it that was taken afterwards.
//! * A snapshot at height `h` sees exactly the blocks below `h`, at any node.
//! * Nobody but the primary writes to remote memory.
//! * A height that a reader shows may be raised at the primary a little later; its block is durable, so it is never taken back.

pub mod holders;
pub mod message;
mod reader;
mod serve;
#[cfg(test)]
mod tests;
pub mod work;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::channel::Sender;
use base::rt::sync::Notify;
use base::rt::{self, Instant};

use super::fault::{Mutant, mutant};
use super::lease::LEASE;
pub use holders::Holders;
pub use reader::{Patience, Reader, Surroundings};
pub use work::{Helper, Place};

/// Readers of one primary: memory nodes serve twice as many connections of one owner.
pub const READERS_MAX: usize = 8;
/// How often the primary sends an update without a block.
pub const HEARTBEAT: Duration = Duration::from_millis(10);
/// How long a reader waits for a word of its primary before it joins anew.
pub const SILENCE_MAX: Duration = Duration::from_millis(200);
/// How long it follows without a lease. It misses nothing meanwhile: storage may be slow to confirm.
pub const LEASELESS_MAX: Duration = Duration::from_secs(1);
/// How long joining may take.
pub const JOIN_MAX: Duration = Duration::from_secs(5);
/// How long a read waits for a lease that has lapsed.
const LAPSE_MAX: Duration = LEASE;

/// What a compute node is to its peer.
pub enum Role {
    /// It changes remote memory.
    Primary,
    /// It follows a primary.
    Reader(Life),
}

impl Role {
    /// The reader's life, if it is one.
    #[inline]
    pub fn life(&self) -> Option<&Life> {
        match self {
            Role::Primary => None,
            Role::Reader(life) => Some(life),
        }
    }
}

/// What a reader holds from one joining to the next.
pub struct Life {
    /// Nanoseconds of this node's clock; 0 before the first lease.
    ends: AtomicU64,
    over: AtomicBool,
    renewed: Notify,
    /// What the primary is asked for.
    requests: Sender<Bytes>,
}

impl Life {
    fn new(requests: Sender<Bytes>) -> Life {
        Life { ends: AtomicU64::new(0), over: AtomicBool::new(false), renewed: Notify::new(), requests }
    }

    /// Whether answers count.
    #[inline]
    pub fn is_live(&self) -> bool {
        let ends = self.ends.load(Ordering::Acquire);
        (rt::now().nanos() < ends || (ends > 0 && mutant(Mutant::ServePastLease))) && !self.over.load(Ordering::Acquire)
    }

    /// Whether it is live, or will be soon.
    pub async fn is_live_soon(&self) -> bool {
        let since = rt::now();
        loop {
            let renewed = self.renewed.notified();
            if self.is_live() {
                return true;
            }
            let waited = since.elapsed();
            if waited >= LAPSE_MAX || self.over.load(Ordering::Acquire) {
                return false;
            }
            let _woken = rt::timeout(LAPSE_MAX - waited, renewed).await;
        }
    }

    /// A lease that was asked for at this time of this node's was granted.
    fn renew(&self, asked: Instant) {
        self.ends.fetch_max((asked + LEASE).nanos(), Ordering::AcqRel);
        self.renewed.notify_waiters();
    }

    /// Nothing counts any more, ever.
    fn end(&self) {
        self.over.store(true, Ordering::Release);
        self.renewed.notify_waiters();
    }

    /// Asks the primary for something; it may be lost.
    pub fn ask(&self, request: Bytes) {
        // Nothing depends on it.
        let _ = self.requests.try_send(request);
    }
}
