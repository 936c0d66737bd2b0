//! Work that a primary has its readers do beside following it: pieces that come to the same at every node of the peer that
//! has followed to one height. What is in a piece is the matter of whoever asks, and of the reader's [`Helper`].
//!
//! 1. A reader says with each acknowledgement how busy its processors are ([`Helper::load`]).
//! 2. Whoever has a piece asks for a [`Place`]: a reader that holds a lease, is no busier than the caller allows, has room among
//!    [`PIECES_MAX`] pieces, has not failed anybody within [`SHUNNED`], and is trusted by the caller, who knows it by name. Of several the one with the fewest pieces is taken,
//!    and of those the least busy.
//! 3. The primary sends the piece on the reader's link, behind every update that led to its own height, together with that
//!    height.
//! 4. The reader does it in a task of its own, if it has followed to that height, holds a lease by its own clock, and has room;
//!    else it says at once that it has not done it. It says so too if its lease has ended by the time the work is done.
//! 5. An answer counts if, when it arrives, the reader that was asked is still one of the holders, its lease has not ended by the
//!    primary's record, it has acknowledged the update that was the newest when the piece was sent, and it began at no lower
//!    height than it was given.
//! 6. The caller waits for as long as it allows and no longer. A reader that is late, gone, fenced or unfit is passed over for
//!    [`SHUNNED`], unless it joins anew, and what it may still say to that piece is thrown away: the caller does the piece itself.
//!
//! Invariants:
//! * A caller gets an answer that counts, or nothing, within the time that it allows; nothing depends on getting one.
//! * No answer of a reader counts that was fenced, is not of this reign, or has not followed to the height of the question.
//! * Of one reader no more than [`PIECES_MAX`] pieces of [`PIECE_BYTES_MAX`] bytes are on their way or in work, so that its updates
//!   and leases are not kept waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::OneshotSender;
use base::rt::{self, Instant};

use super::super::lease::HolderId;
use super::holders::Holders;
use crate::events;

/// Pieces that one reader has at a time.
pub const PIECES_MAX: usize = 4;
/// Bytes of one piece.
pub const PIECE_BYTES_MAX: usize = 256 << 10;
/// For how long a reader is asked nothing that has failed a caller.
pub const SHUNNED: Duration = Duration::from_secs(1);
/// The load of a reader that takes no work.
pub const NO_WORK: u8 = u8::MAX;

/// What a reader does for its primary.
#[async_trait]
pub trait Helper: Send + Sync + 'static {
    /// How busy this node's processors are, in percent.
    fn load(&self) -> u8;

    /// Does a piece; nothing where it cannot. It is ended when the reader joins anew.
    async fn work(&self, piece: Bytes) -> Option<Bytes>;
}

/// The pieces of one reader, as its primary knows of them.
#[derive(Default)]
pub(super) struct Pieces {
    open: BTreeMap<u64, Open>,
    shunned_until: Option<Instant>,
}

/// A piece that was given a place.
struct Open {
    /// The update that the reader must have acknowledged.
    position: u64,
    height: u64,
    /// Once it was sent.
    answer: Option<OneshotSender<Option<Bytes>>>,
}

impl Pieces {
    pub(super) fn count(&self) -> usize {
        self.open.len()
    }

    pub(super) fn have_room(&self, now: Instant) -> bool {
        self.open.len() < PIECES_MAX && self.shunned_until.is_none_or(|until| until <= now)
    }

    pub(super) fn open(&mut self, number: u64, position: u64, height: u64) {
        self.open.insert(number, Open { position, height, answer: None });
    }

    /// The piece is sent. Gives the height that it is sent with.
    pub(super) fn sent(&mut self, number: u64, answer: OneshotSender<Option<Bytes>>) -> Option<u64> {
        let open = self.open.get_mut(&number)?;
        open.answer = Some(answer);
        Some(open.height)
    }

    /// An answer has come, begun at `height`, of a reader in the fold or not, which has acknowledged the updates to `acked`.
    pub(super) fn done(&mut self, number: u64, height: u64, answer: Bytes, is_in_fold: bool, acked: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let Some(waiting) = open.answer.take() else { return };
        let counts = is_in_fold && acked >= open.position && height >= open.height && !answer.is_empty();
        // Whoever asked may have gone on without it.
        let _ = waiting.send(counts.then_some(answer));
    }

    pub(super) fn close(&mut self, number: u64, has_failed: bool) {
        self.open.remove(&number);
        if has_failed {
            self.shunned_until = Some(rt::now() + SHUNNED);
        }
    }
}

/// Room for a piece at one reader, until it is dropped.
pub struct Place {
    holders: Arc<Holders>,
    holder: HolderId,
    name: Arc<str>,
    number: u64,
    has_failed: bool,
}

impl Place {
    pub(super) fn new(holders: Arc<Holders>, holder: HolderId, name: Arc<str>, number: u64) -> Place {
        Place { holders, holder, name, number, has_failed: false }
    }

    /// The reader: the name that its link proved, else one that it bears until it joins anew.
    pub fn reader(&self) -> &Arc<str> {
        &self.name
    }

    /// Has the reader do a piece of [`PIECE_BYTES_MAX`] bytes at most, and waits for its answer for so long.
    pub async fn work(mut self, piece: Bytes, patience: Duration) -> Option<Bytes> {
        assert!(piece.len() <= PIECE_BYTES_MAX, "pieces are bounded");
        let answer = match self.holders.send_piece(self.holder, self.number, piece) {
            Some(answer) => rt::timeout(patience, answer).await.ok().and_then(Result::ok).flatten(),
            None => None,
        };
        self.has_failed = answer.is_none();
        if self.has_failed { &events::PiecesFailed } else { &events::PiecesDone }.add(1);
        answer
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.holders.close_piece(self.holder, self.number, self.has_failed);
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
            let mut pieces = Pieces::default();
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
