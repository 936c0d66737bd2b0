//! Work that a primary offloads to its followers. Every node of the peer that has reached a work item's height computes
//! the same result. Only the caller and the follower's [`WorkHandler`] interpret the item's content.
//!
//! 1. A follower reports with each acknowledgement how busy its cores are ([`WorkHandler::load`]).
//! 2. The caller asks for a [`WorkPermit`]. A follower is eligible if it holds a lease, is no busier than the caller
//!    allows, has fewer than [`WORK_ITEMS_MAX`] work items, has not failed a caller within [`AVOIDED_FOR`], is not about
//!    to leave, and has a name that the caller trusts. The permit goes to the most idle eligible follower: the one with
//!    the lowest reported load, to which each item in flight adds a part ([`crate::WorkPermit::load`]).
//! 3. The primary sends the work item, together with the primary's height, on the follower's link. Every update that
//!    led to this height precedes the item on the link.
//! 4. The follower does the work in a separate task if the follower has reached that height, holds a lease by its own
//!    clock, and has fewer than [`WORK_ITEMS_MAX`] items. Otherwise it answers at once that it has not done the work.
//!    It gives the same answer if its lease has ended by the time the work is done.
//! 5. When an answer arrives, it counts if all of these hold: the follower is still a member; its lease has not ended
//!    by the primary's record; it has acknowledged the update that was the newest when the permit was given; and it
//!    started the work at the item's height or above.
//! 6. The caller waits up to its own time-out, then does the work itself. A follower that gives no answer that counts
//!    (it is late, gone, fenced or unable) gets no work items for [`AVOIDED_FOR`], unless it joins again. A late
//!    answer to that item is discarded.
//!
//! Invariants:
//! * Within its time-out a caller gets an answer that counts or no answer. Without an answer the caller does the work
//!   itself, so nothing depends on followers.
//! * An answer does not count if its follower was fenced, belongs to another epoch, or has not reached the item's
//!   height.
//! * One follower has at most [`WORK_ITEMS_MAX`] items of [`WORK_ITEM_BYTES_MAX`] bytes in flight or in work, so that
//!   its updates and leases are not delayed.
//!
//! [`WorkPermit`]: crate::WorkPermit

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::Instant;
use base::rt::channel::OneshotSender;
use base::{Bytes, rt};

use crate::load::LoadReport;

/// Work items that one follower has at a time.
pub const WORK_ITEMS_MAX: usize = 4;
/// Bytes of one work item: a block of 200 transactions of four kilobytes fits into one.
pub const WORK_ITEM_BYTES_MAX: usize = 1 << 20;
/// For how long a follower that failed a caller gets no work items.
pub const AVOIDED_FOR: Duration = Duration::from_secs(1);
/// The load that a follower reports if it takes no work.
pub const NO_WORK: u8 = u8::MAX;

/// Handles work items on a follower, for its primary.
#[async_trait]
pub trait WorkHandler: Send + Sync + 'static {
    /// How loaded this node is.
    fn load(&self) -> LoadReport;

    /// Does a work item; `None` if it cannot. The call is cancelled when the follower joins again.
    async fn work(&self, item: Bytes) -> Option<Bytes>;
}

/// The work items of one follower, as its primary records them.
#[derive(Default)]
pub(super) struct WorkItems {
    open: BTreeMap<u64, OpenWorkItem>,
    avoided_until: Option<Instant>,
}

/// A work item that has a permit.
struct OpenWorkItem {
    /// The update that the follower must have acknowledged.
    position: u64,
    height: u64,
    /// Set once the item was sent.
    answer: Option<OneshotSender<Option<Bytes>>>,
}

impl WorkItems {
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    pub(super) fn have_capacity(&self, now: Instant) -> bool {
        self.open.len() < WORK_ITEMS_MAX && self.avoided_until.is_none_or(|until| until <= now)
    }

    pub(super) fn open(&mut self, number: u64, position: u64, height: u64) {
        self.open.insert(number, OpenWorkItem { position, height, answer: None });
    }

    /// Records that the item is sent; returns the height to send with it.
    pub(super) fn sent(&mut self, number: u64, answer: OneshotSender<Option<Bytes>>) -> Option<u64> {
        let open = self.open.get_mut(&number)?;
        open.answer = Some(answer);
        Some(open.height)
    }

    /// Takes an answer to an item that was started at `height`. `is_in_fold`: the follower's lease is live; `acked`:
    /// the update up to which it has acknowledged.
    pub(super) fn done(&mut self, number: u64, height: u64, answer: Bytes, is_in_fold: bool, acked: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let Some(waiting) = open.answer.take() else { return };
        let counts = is_in_fold && acked >= open.position && height >= open.height && !answer.is_empty();
        // The caller may have stopped waiting.
        let _ = waiting.send(counts.then_some(answer));
    }

    pub(super) fn close(&mut self, number: u64, has_failed: bool) {
        self.open.remove(&number);
        if has_failed {
            self.avoided_until = Some(rt::now() + AVOIDED_FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::rt::channel::oneshot;

    use super::*;

    #[test]
    fn an_answer_counts_at_the_height_and_position_of_its_question_and_once() {
        let answer = Bytes::from_static(b"answer");
        let cases = [
            ("as it was asked", 7, 20, &answer, true, 10, true),
            ("later blocks are known", 7, 23, &answer, true, 12, true),
            ("of another piece", 8, 20, &answer, true, 10, false),
            ("begun at an earlier height", 7, 19, &answer, true, 10, false),
            ("an update is not acknowledged", 7, 20, &answer, true, 9, false),
            ("without a lease", 7, 20, &answer, false, 10, false),
            ("not done", 7, 20, &Bytes::new(), true, 10, false),
        ];
        for (what, number, height, answer, is_in_fold, acked, counts) in cases {
            let mut pieces = WorkItems::default();
            pieces.open(7, 10, 20);
            let (sender, mut answered) = oneshot();
            assert_eq!(pieces.sent(7, sender), Some(20));
            pieces.done(number, height, answer.clone(), is_in_fold, acked);
            assert_eq!(matches!(answered.try_recv(), Ok(Some(_))), counts, "{what}");
            pieces.done(7, 20, answer.clone(), true, 10);
            assert!(!matches!(answered.try_recv(), Ok(Some(_))) || number != 7, "{what}: told twice");
        }
    }
}
