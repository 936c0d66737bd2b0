//! Borrowed workers: the primary of a peer has other compute nodes of the same peer verify signatures of a block.
//!
//! FlexChain (section 4) validates a block on all compute nodes of a peer. Most of the cost is signatures and policies, which
//! depend on the transaction and the channel's rules alone; those can be judged anywhere. Everything else of a transaction the
//! primary reads by itself, which is cheap, and it resolves conflicts by itself. All the nodes are one organisation's: what
//! another one verified counts for nothing.
//!
//! 1. A block's transactions are examined in chunks ([`crate::commit::pipeline`]). For each the primary decides whether it is worth
//!    a journey ([`When`]): not if it is never to borrow; else, of `n` readers and itself, every `n + 1`th chunk is its own;
//!    and where idle ones only are to be asked, not while its own processors are less than [`BUSY_PERCENT`] busy, and of no
//!    reader whose are more than [`IDLE_PERCENT`] busy.
//! 2. It sends the chunk's envelopes with the block's number, the place of the first, and the [digest](Rules::digest) of the rules
//!    that it judges by ([`Chunk`]), as a piece of work of [`state::disaggregated::readers::work`]. That sees to it that
//!    an answer counts only of a reader that holds a lease and has followed to the primary's height.
//! 3. The reader [examines](super::examine) each envelope by its own rules, and answers with a [`Word`] for each, under the
//!    digest of its own rules, the number and the place ([`Words`]).
//! 4. The words are for this chunk if digest, number and place are those of the question and there is one for each transaction.
//! 5. The primary doubts some of them, and examines those transactions whole: every one whose word is not [`Word::Sound`], one
//!    of the chunk by chance, and of the others one in [`Borrowing::spot_check_one_in`] by chance. The reader cannot know which. The
//!    others the primary examines with the word in the place of the signatures ([`examine_with`]).
//! 6. A reader whose word differs from what the primary found is a liar, or broken: none of its words of that chunk counts, it
//!    is asked nothing more until this process ends ([`Counts::liars`]), and the operator is told.
//! 7. When no word counts, and when there was none within [`BORROWED_MAX`], the primary examines the chunk whole, by itself.
//!
//! Which height counts. Blocks are examined while their predecessors wait for the disk, so no compute node has followed to a
//! block's predecessor when its signatures are verified, not even the primary. Signatures need the rules that hold at the
//! block: those of the configuration in force, which the digest names. A configuration that changed would end examining ahead:
//! the height of the question is then the first at which the rules hold.
//!
//! Invariants:
//! * A block's verdict is the one that the primary would have come to alone, whoever has answered, late or not at all, as long
//!   as the peer's own compute nodes do not lie.
//! * A reader that lies makes no valid transaction invalid. One that calls a forged transaction sound is found out with a
//!   probability of 1/16 or more for each forged transaction in a chunk of 16; until then the forgery counts. Who cannot live with that sets the
//!   spot check to one in 1, or borrows nothing.
//! * Nothing waits for a reader for longer than [`BORROWED_MAX`] a chunk, and no chunk is lent twice.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::bytes::{Buf as _, BufMut as _};
use base::{Bytes, BytesMut, rt};
use ledger::Hash;
use state::WorldState;
use state::disaggregated::readers::Helper;
use state::disaggregated::readers::work::PIECE_BYTES_MAX;

use super::examine::{Examined, Word, examine, examine_with};
use crate::access::Rules;
use crate::commit::pipeline::EXAMINE_CHUNK_TRANSACTIONS;
use crate::events;

/// How long a chunk's words are waited for.
pub const BORROWED_MAX: Duration = Duration::from_millis(20);
/// From here on a primary's processors are busy enough for it to borrow others.
pub const BUSY_PERCENT: u8 = 70;
/// A reader that is busier is not asked.
pub const IDLE_PERCENT: u8 = 50;

/// Of how many lent words one is verified again, unless the operator says otherwise.
pub const SPOT_CHECK_ONE_IN: u32 = 64;
/// Liars that are remembered: a peer has fewer other compute nodes, each with one name.
const LIARS_MAX: usize = 64;

/// Whether a primary has others verify signatures for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum When {
    /// It does everything by itself.
    Never,
    /// When it is busy, and they are not.
    #[default]
    Idle,
    /// Whenever there are others, however busy.
    Always,
}

/// Says how busy this node's processors are, in percent.
#[derive(Clone)]
pub struct Meter(Arc<dyn Fn() -> u8 + Send + Sync>);

impl Meter {
    /// One that asks this function, often and from any task.
    pub fn new(percent: impl Fn() -> u8 + Send + Sync + 'static) -> Meter {
        Meter(Arc::new(percent))
    }

    /// What it says, 100 at most.
    pub fn percent(&self) -> u8 {
        (self.0)().min(100)
    }
}

impl Default for Meter {
    /// Of a node of which nothing is known: neither idle nor in need.
    fn default() -> Meter {
        Meter::new(|| BUSY_PERCENT - 1)
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

/// How a compute node borrows and lends, and how much it has.
#[derive(Clone, Debug)]
pub struct Borrowing {
    pub when: When,
    /// Of how many words of others that a transaction's signatures are sound the primary verifies one by itself, beside one a
    /// chunk; from 1, which is all of them.
    pub spot_check_one_in: u32,
    pub meter: Meter,
    pub counts: Arc<Counts>,
}

impl Default for Borrowing {
    fn default() -> Borrowing {
        let (when, meter, counts) = Default::default();
        Borrowing { when, spot_check_one_in: SPOT_CHECK_ONE_IN, meter, counts }
    }
}

/// What came of it since the node was started. Counts are of transactions.
#[derive(Default, Debug)]
pub struct Counts {
    borrowed: AtomicU64,
    lent: AtomicU64,
    chunks: AtomicU64,
    liars: Mutex<BTreeSet<Arc<str>>>,
}

impl Counts {
    /// Whose signatures others have verified for this node.
    pub fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::Relaxed)
    }

    /// Whose signatures this node has verified for others.
    pub fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
    }

    /// The other nodes that were found to lie about signatures.
    pub fn liars(&self) -> Vec<Arc<str>> {
        self.liars_lock().iter().cloned().collect()
    }

    pub(super) fn trusts(&self, reader: &str) -> bool {
        let liars = self.liars_lock();
        liars.len() < LIARS_MAX && !liars.contains(reader)
    }

    fn shun(&self, reader: &Arc<str>) {
        self.liars_lock().insert(Arc::clone(reader));
    }

    fn liars_lock(&self) -> MutexGuard<'_, BTreeSet<Arc<str>>> {
        self.liars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const _: () = assert!(IDLE_PERCENT < BUSY_PERCENT);

/// Room for a chunk at another node.
pub type Place = state::disaggregated::readers::Place;

impl Borrowing {
    /// Step 1: room for a chunk with envelopes of so many bytes at another compute node of the peer, if it is to go there.
    pub fn place(&self, state: &dyn WorldState, envelopes: impl Iterator<Item = usize>) -> Option<Place> {
        match (self.when, state.readers()) {
            (When::Never, _) | (_, 0) => None,
            (_, readers) => {
                let load_max = self.asked_at(readers, chunk_bytes(envelopes))?;
                state.place_work(load_max, &|reader| self.counts.trusts(reader))
            }
        }
    }

    /// How busy a reader may be that is asked for a chunk of so many bytes; nothing if none is to be asked.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn asked_at(&self, readers: usize, chunk_bytes: usize) -> Option<u8> {
        if chunk_bytes > PIECE_BYTES_MAX {
            return None;
        }
        let load_max = match self.when {
            When::Never => return None,
            When::Idle if self.meter.percent() < BUSY_PERCENT => return None,
            When::Idle => IDLE_PERCENT,
            When::Always => 100,
        };
        let turn = self.counts.chunks.fetch_add(1, Ordering::Relaxed) % (readers as u64 + 1);
        (turn > 0).then_some(load_max)
    }

    /// Steps 2 to 7 for a chunk that has a place.
    pub async fn examine(&self, place: Place, chunk: &Chunk, rules: &Rules) -> Vec<Examined> {
        let reader = Arc::clone(place.reader());
        let answer = place.work(chunk.encode(), BORROWED_MAX).await;
        let words = answer.and_then(|answer| words_for(chunk, answer));
        match words.and_then(|words| self.examine_lent(&reader, chunk, words, rules)) {
            Some(examined) => examined,
            None => {
                events::TransactionsNotBorrowed.add(chunk.envelopes.len() as u64);
                examine(chunk.envelopes.iter().cloned(), rules)
            }
        }
    }
}

impl Borrowing {
    /// Steps 5 and 6: the chunk, examined with a reader's words; nothing if it has lied.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn examine_lent(
        &self,
        reader: &Arc<str>,
        chunk: &Chunk,
        words: Vec<Word>,
        rules: &Rules,
    ) -> Option<Vec<Examined>> {
        let chosen = rt::random_below(words.len().max(1) as u64);
        let mut is_doubted = |(index, word): (u64, &Word)| {
            let by_chance = index == chosen || rt::random_below(u64::from(self.spot_check_one_in.max(1))) == 0;
            (*word != Word::Sound || by_chance) && !rt::fault_point("chain.borrow.mutant.believed")
        };
        let doubted: Vec<bool> = (0..).zip(&words).map(&mut is_doubted).collect();
        let of_doubted = chunk.envelopes.iter().zip(&doubted).filter(|(_, doubted)| **doubted);
        let mut examined_here = examine(of_doubted.map(|(envelope, _)| envelope.clone()), rules).into_iter();
        let mut all = Vec::with_capacity(words.len());
        for (((envelope, word), doubted), index) in chunk.envelopes.iter().zip(words).zip(&doubted).zip(0..) {
            if !doubted {
                all.push(examine_with(envelope, rules, word));
                continue;
            }
            let examined = examined_here.next().expect("all that are doubted were examined");
            let found = examined.word();
            if found != word {
                let (block, place): (u64, u64) = (chunk.block, u64::from(chunk.first) + index);
                tracing::error!(
                    reader = &**reader, block, place, said = ?word, ?found,
                    "another compute node of this peer lied about the signatures of a transaction; it is asked nothing more until \
                     this process ends. Take it out of the peer and find out who has its keys"
                );
                events::LiarsFound.add(1);
                self.counts.shun(reader);
                return None;
            }
            all.push(examined);
        }
        let doubted = doubted.iter().filter(|doubted| **doubted).count() as u64;
        let borrowed = all.len() as u64 - doubted;
        self.counts.borrowed.fetch_add(borrowed, Ordering::Relaxed);
        events::TransactionsBorrowed.add(borrowed);
        events::TransactionsDoubted.add(doubted);
        Some(all)
    }
}

/// Envelopes of a block, one behind the other (docs/formats/readers.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// Of the rules by which they are to be judged.
    pub rules: Hash,
    /// The block.
    pub block: u64,
    /// The place of the first envelope in it.
    pub first: u32,
    pub envelopes: Vec<Bytes>,
}

/// What a reader says of a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Words {
    /// Of the rules by which it has judged.
    pub rules: Hash,
    pub block: u64,
    pub first: u32,
    /// One for each envelope.
    pub words: Vec<Word>,
}

/// Bytes that are no chunk, or no words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a message of borrowed workers: {0}")]
pub struct Malformed(&'static str);

/// Bytes before the envelopes, or the words.
const HEAD_BYTES: usize = 32 + 8 + 4;
/// Envelopes of one chunk.
const ENVELOPES_MAX: usize = 64;
const _: () = assert!(EXAMINE_CHUNK_TRANSACTIONS <= ENVELOPES_MAX);
/// Bytes before each envelope.
const LENGTH_BYTES: usize = 4;

/// How long a chunk's message is.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn chunk_bytes(envelopes: impl Iterator<Item = usize>) -> usize {
    HEAD_BYTES + envelopes.map(|bytes| LENGTH_BYTES + bytes).sum::<usize>()
}

fn put_head(bytes: &mut BytesMut, rules: &Hash, block: u64, first: u32) {
    bytes.put_slice(rules);
    bytes.put_u64_le(block);
    bytes.put_u32_le(first);
}

fn take_head(bytes: &mut Bytes) -> Result<(Hash, u64, u32), Malformed> {
    if bytes.len() < HEAD_BYTES {
        return Err(Malformed("it is too short"));
    }
    let mut rules = Hash::default();
    bytes.copy_to_slice(&mut rules);
    Ok((rules, bytes.get_u64_le(), bytes.get_u32_le()))
}

impl Chunk {
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(chunk_bytes(self.envelopes.iter().map(Bytes::len)));
        put_head(&mut bytes, &self.rules, self.block, self.first);
        for envelope in &self.envelopes {
            bytes.put_u32_le(u32::try_from(envelope.len()).expect("it fits into a piece of work"));
            bytes.put_slice(envelope);
        }
        bytes.freeze()
    }

    /// Reads a chunk. Its envelopes share the message's memory.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(mut bytes: Bytes) -> Result<Chunk, Malformed> {
        let (rules, block, first) = take_head(&mut bytes)?;
        // Four bytes are enough for one.
        let mut envelopes = Vec::with_capacity(ENVELOPES_MAX.min(bytes.len() / LENGTH_BYTES));
        while !bytes.is_empty() {
            let length = bytes.try_get_u32_le().map_err(|_| Malformed("a length is cut off"))? as usize;
            if length > bytes.len() {
                return Err(Malformed("an envelope is cut off"));
            }
            if envelopes.len() == ENVELOPES_MAX {
                return Err(Malformed("it has more envelopes than a chunk"));
            }
            envelopes.push(bytes.split_to(length));
        }
        Ok(Chunk { rules, block, first, envelopes })
    }
}

impl Words {
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEAD_BYTES + self.words.len());
        put_head(&mut bytes, &self.rules, self.block, self.first);
        self.words.iter().for_each(|word| bytes.put_u8(*word as u8));
        bytes.freeze()
    }

    /// Reads what a reader says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(mut bytes: Bytes) -> Result<Words, Malformed> {
        let (rules, block, first) = take_head(&mut bytes)?;
        let word = |byte| match byte {
            0 => Ok(Word::Unsigned),
            1 => Ok(Word::Unendorsed),
            2 => Ok(Word::Sound),
            _ => Err(Malformed("an unknown word")),
        };
        if bytes.len() > ENVELOPES_MAX {
            return Err(Malformed("it has more words than a chunk has envelopes"));
        }
        let words = bytes.iter().map(|byte| word(*byte)).collect::<Result<_, _>>()?;
        Ok(Words { rules, block, first, words })
    }
}

/// Step 4: the words of an answer, if they are of this chunk and judged by the same rules.
fn words_for(chunk: &Chunk, answer: Bytes) -> Option<Vec<Word>> {
    let words =
        Words::decode(answer).inspect_err(|error| tracing::warn!(%error, "a reader says what it must not")).ok()?;
    let answers = (words.rules, words.block, words.first) == (chunk.rules, chunk.block, chunk.first);
    let counts = answers || rt::fault_point("chain.borrow.mutant.unchecked");
    (counts && words.words.len() == chunk.envelopes.len()).then_some(words.words)
}

/// A node that lends its processors: step 3.
pub struct Lender {
    rules: Arc<Rules>,
    borrowing: Borrowing,
}

impl Lender {
    pub fn new(rules: Arc<Rules>, borrowing: Borrowing) -> Lender {
        Lender { rules, borrowing }
    }
}

#[async_trait]
impl Helper for Lender {
    fn load(&self) -> u8 {
        self.borrowing.meter.percent()
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn work(&self, piece: Bytes) -> Option<Bytes> {
        let chunk = Chunk::decode(piece).inspect_err(|error| tracing::warn!(%error, "a piece of work is none")).ok()?;
        if rt::fault_point("chain.borrow.late") {
            rt::sleep(BORROWED_MAX.mul_f64(3.0 * rt::random_below(1000) as f64 / 1000.0)).await;
        }
        let examined = examine(chunk.envelopes.iter().cloned(), &self.rules);
        let words: Vec<Word> = examined.iter().map(Examined::word).collect();
        let count = words.len() as u64;
        let mut answer = Words { rules: *self.rules.digest(), block: chunk.block, first: chunk.first, words };
        // What a simulation has a reader be: one of another configuration, one that answers for another block, one that lies.
        if rt::fault_point("chain.borrow.other_rules") {
            answer.rules[0] ^= 1;
            answer.words.fill(Word::Sound);
        }
        if rt::fault_point("chain.borrow.other_block") {
            answer.block -= 1;
            answer.words.fill(Word::Unendorsed);
        }
        if rt::fault_point("chain.borrow.lie")
            && let Some(word) = answer.words.get_mut(rt::random_below(count.max(1)) as usize)
        {
            *word = if *word == Word::Sound { Word::Unsigned } else { Word::Sound };
        }
        self.borrowing.counts.lent.fetch_add(count, Ordering::Relaxed);
        events::TransactionsLent.add(count);
        Some(answer.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        let envelopes = ["one", "", "three"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
        Chunk { rules: [7; 32], block: 5, first: 16, envelopes }
    }

    fn words() -> Words {
        Words { rules: [7; 32], block: 5, first: 16, words: vec![Word::Sound, Word::Unsigned, Word::Unendorsed] }
    }

    #[test]
    fn messages_have_the_documented_bytes_and_are_read_again() {
        let head = [&[7; 32][..], b"\x05\0\0\0\0\0\0\0\x10\0\0\0"].concat();
        let encoded = chunk().encode();
        assert_eq!(encoded[..], [&head[..], b"\x03\0\0\0one\0\0\0\0\x05\0\0\0three"].concat());
        assert_eq!(encoded.len(), chunk_bytes(chunk().envelopes.iter().map(Bytes::len)));
        assert_eq!(Chunk::decode(encoded), Ok(chunk()));
        let encoded = words().encode();
        assert_eq!(encoded[..], [&head[..], b"\x02\0\x01"].concat());
        assert_eq!(Words::decode(encoded), Ok(words()));
    }

    proptest::proptest! {
        #[test]
        fn whatever_arrives_is_a_message_or_an_error(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..100),
            lengths in proptest::collection::vec(0..20u8, 0..20),
        ) {
            let framed = lengths.iter().flat_map(|length| [*length, 0, 0, 0].into_iter().chain(bytes.iter().copied().take(9)));
            for bytes in [bytes.clone(), [0; HEAD_BYTES].into_iter().chain(framed).collect()] {
                let bytes = Bytes::from(bytes);
                if let Ok(chunk) = Chunk::decode(bytes.clone()) {
                    proptest::prop_assert_eq!(chunk.encode(), bytes.clone());
                }
                if let Ok(words) = Words::decode(bytes.clone()) {
                    proptest::prop_assert_eq!(words.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn words_count_for_their_own_chunk_by_the_same_rules() {
        type Change = fn(&mut Words);
        let change = |change: Change| {
            let mut words = words();
            change(&mut words);
            words_for(&chunk(), words.encode())
        };
        assert_eq!(change(|_| {}), Some(words().words));
        let others: [(&str, Change); 5] = [
            ("by other rules", |words| words.rules[31] = 8),
            ("of another block", |words| words.block = 4),
            ("of another chunk", |words| words.first = 0),
            ("too few", |words| words.words.truncate(2)),
            ("too many", |words| words.words.push(Word::Sound)),
        ];
        for (what, other) in others {
            assert_eq!(change(other), None, "{what}");
        }
        assert_eq!(words_for(&chunk(), Bytes::from_static(b"none at all")), None);
    }

    #[test]
    fn a_primary_asks_when_it_is_to_and_keeps_its_share() {
        let asked = |when, percent, readers, bytes| {
            let borrowing = Borrowing { when, meter: Meter::new(move || percent), ..Borrowing::default() };
            let turns: Vec<_> = (0..6).map(|_| borrowing.asked_at(readers, bytes)).collect();
            let load_max = turns.iter().flatten().next().copied();
            (load_max, turns.iter().flatten().count())
        };
        assert_eq!(asked(When::Never, 100, 2, 100), (None, 0));
        assert_eq!(asked(When::Always, 0, 2, 100), (Some(100), 4), "every third is its own");
        assert_eq!(asked(When::Always, 0, 1, 100), (Some(100), 3), "every second is");
        assert_eq!(asked(When::Always, 0, 1, PIECE_BYTES_MAX + 1), (None, 0), "it is too large");
        assert_eq!(asked(When::Idle, BUSY_PERCENT, 1, 100), (Some(IDLE_PERCENT), 3));
        assert_eq!(asked(When::Idle, BUSY_PERCENT - 1, 1, 100), (None, 0), "it has time itself");
        let unknown = Borrowing::default();
        assert_eq!(unknown.asked_at(3, 100), None, "nothing is known of its load");
        assert!(unknown.meter.percent() > IDLE_PERCENT, "nor is it asked");
    }
}
