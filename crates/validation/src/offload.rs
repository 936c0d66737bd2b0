//! Offloading: the primary of a peer has other compute nodes of the same peer verify signatures of a block.
//!
//! FlexChain (section 4) validates a block on all compute nodes of a peer. Most of the cost is signatures and policies,
//! which depend only on the transaction and on the channel's policies, so any compute node can check them. The primary
//! itself parses everything else of a transaction, which is cheap, and checks conflicts. All these nodes belong to one
//! organisation: the primary never uses a verdict of another organisation.
//!
//! 1. A block's transactions are verified in chunks (`chain::commit::pipeline`). For each chunk the primary decides
//!    whether to offload it ([`OffloadMode`](replica::offload::OffloadMode)). With `Never` it offloads no chunk. Otherwise, with `n`
//!    followers, the primary keeps every `n + 1`th chunk. With `Idle` it also keeps every chunk while its
//!    own cores are less than [`BUSY_PERCENT`](replica::offload::BUSY_PERCENT) busy, and asks no follower whose cores are more than [`IDLE_PERCENT`](replica::offload::IDLE_PERCENT) busy.
//! 2. The primary sends the chunk's envelopes with the block's number, the position of the first envelope, and the
//!    [digest](ChannelPolicies::digest) of its own channel policies ([`VerificationChunk`]), as a work item of
//!    [`replica::followers::work`]. That module accepts an answer only if the follower holds a lease and has
//!    followed to the primary's height.
//! 3. The follower [verifies](crate::verify) each envelope by its own channel policies. It answers with one
//!    [`SignatureVerdict`] per envelope, the digest of its own policies, the block's number and the position
//!    ([`SignatureVerdicts`]).
//! 4. The primary accepts the verdicts for this chunk if digest, number and position equal those of the request, and if
//!    there is one verdict per transaction.
//! 5. The primary verifies some of these transactions completely itself: every transaction whose verdict is not
//!    [`SignatureVerdict::Valid`], one random transaction of the chunk, and each remaining transaction with a probability
//!    of one in [`OffloadConfig::spot_check_one_in`]. The follower cannot know which ones. For the transactions that it
//!    does not verify, the primary uses the verdict in place of the signatures ([`verify_with_verdict`]).
//! 6. If a follower's verdict differs from the primary's own result, the follower lies or is broken. The primary discards
//!    all verdicts of the follower on that chunk, sends it no more work until this process ends ([`liars`](replica::offload::OffloadCounts::liars)),
//!    and reports it to the operator.
//! 7. If the verdicts were rejected or discarded, or did not arrive within [`OFFLOAD_TIMEOUT`], the primary verifies the
//!    whole chunk itself.
//!
//! Which height a request names: the primary's current height, not that of the block's predecessor. Blocks are verified
//! ahead, while their predecessors wait for the disk, so even the primary may not have reached the predecessor yet. The
//! current height is enough: verification depends only on the channel policies, which the digest names, and verifying
//! ahead stops at a block that changes the configuration (`chain::commit::pipeline`). A follower whose policies have
//! another digest verifies nothing.
//!
//! Invariants:
//! * As long as the peer's own compute nodes do not lie, a block's verdict is the one that the primary would have reached
//!   alone, regardless of which followers answered, and when.
//! * A follower that lies makes no valid transaction invalid. The primary verifies each transaction of a chunk, which
//!   has at most 16, with a probability of at least 1/16. With this probability a follower that calls a forged
//!   transaction valid is detected; an undetected forgery passes the signature checks. An operator who cannot accept
//!   that sets [`OffloadConfig::spot_check_one_in`] to 1, or turns offloading off.
//! * The primary waits for a follower at most [`OFFLOAD_TIMEOUT`] per chunk, and offloads each chunk at most once.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;

use async_trait::async_trait;
use base::{Bytes, rt};
use ledger::Hash;
use replica::offload::{OFFLOAD_TIMEOUT, OffloadConfig};
use replica::{WorkHandler, WorkPermit};
use rules::access::{ChannelPolicies, CurrentPolicies};
use wire::{Malformed, Reader, Writer};

use crate::events;
use crate::verify::{SignatureVerdict, VerifiedTransaction, verify_transactions, verify_with_verdict};

/// Steps 2 to 7 for a chunk that has a permit.
pub async fn verify_at_follower(
    config: &OffloadConfig,
    permit: WorkPermit,
    chunk: &VerificationChunk,
    policies: &ChannelPolicies,
) -> Vec<VerifiedTransaction> {
    let follower = Arc::clone(permit.follower());
    let answer = permit.work(chunk.encode(), OFFLOAD_TIMEOUT).await;
    let verdicts = answer.and_then(|answer| verdicts_for(chunk, answer));
    match verdicts.and_then(|words| verify_offloaded(config, &follower, chunk, words, policies)) {
        Some(examined) => examined,
        None => {
            events::TransactionsOffloadFailed.add(chunk.envelopes.len() as u64);
            verify_transactions(chunk.envelopes.iter().cloned(), policies)
        }
    }
}

/// Steps 5 and 6: the chunk, verified with a follower's verdicts; `None` if the follower has lied.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn verify_offloaded(
    config: &OffloadConfig,
    follower: &Arc<str>,
    chunk: &VerificationChunk,
    verdicts: Vec<SignatureVerdict>,
    policies: &ChannelPolicies,
) -> Option<Vec<VerifiedTransaction>> {
    let doubted = config.choose_doubted(verdicts.iter().map(|verdict| *verdict == SignatureVerdict::Valid));
    let of_doubted = chunk.envelopes.iter().zip(&doubted).filter(|(_, doubted)| **doubted);
    let mut examined_here = verify_transactions(of_doubted.map(|(envelope, _)| envelope.clone()), policies).into_iter();
    let mut all = Vec::with_capacity(verdicts.len());
    for (((envelope, word), doubted), index) in chunk.envelopes.iter().zip(verdicts).zip(&doubted).zip(0..) {
        if !doubted {
            all.push(verify_with_verdict(envelope, policies, word));
            continue;
        }
        let examined = examined_here.next().expect("all that are doubted were examined");
        let found = examined.signature_verdict();
        if found != word {
            let (block, place): (u64, u64) = (chunk.block, u64::from(chunk.first) + index);
            tracing::error!(
                reader = &**follower, block, place, said = ?word, ?found,
                "another compute node of this peer lied about the signatures of a transaction; it is asked nothing more until \
                 this process ends. Take it out of the peer and find out who has its keys"
            );
            config.counts.distrust(follower);
            return None;
        }
        all.push(examined);
    }
    let doubted = doubted.iter().filter(|doubted| **doubted).count() as u64;
    let borrowed = all.len() as u64 - doubted;
    config.counts.add_offloaded(borrowed);
    events::TransactionsOffloaded.add(borrowed);
    events::TransactionsReverified.add(doubted);
    Some(all)
}

/// Consecutive envelopes of a block (docs/formats/followers.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerificationChunk {
    /// The digest of the channel policies by which to verify them.
    pub policies_digest: Hash,
    /// The block.
    pub block: u64,
    /// The position of the first envelope in the block.
    pub first: u32,
    /// The encoded envelopes, in the order of the block.
    pub envelopes: Vec<Bytes>,
}

/// A follower's verdicts on a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignatureVerdicts {
    /// The digest of the channel policies by which the follower verified.
    pub rules: Hash,
    /// The block's number, repeated from the request.
    pub block: u64,
    /// The position of the first envelope in the block, repeated from the request.
    pub first: u32,
    /// One for each envelope.
    pub verdicts: Vec<SignatureVerdict>,
}

/// The number of transactions that one task verifies: about a millisecond of signatures.
pub const VERIFY_CHUNK_TRANSACTIONS: usize = 16;

/// Bytes before the envelopes or the verdicts.
const HEAD_BYTES: usize = 32 + 8 + 4;
/// The largest number of envelopes in a chunk.
const ENVELOPES_MAX: usize = 64;
const _: () = assert!(VERIFY_CHUNK_TRANSACTIONS <= ENVELOPES_MAX);
/// Bytes before each envelope.
const LENGTH_BYTES: usize = 4;

/// The length of a chunk's message.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn chunk_bytes(envelopes: impl Iterator<Item = usize>) -> usize {
    HEAD_BYTES + envelopes.map(|bytes| LENGTH_BYTES + bytes).sum::<usize>()
}

fn read_head(reader: &mut Reader<Bytes>) -> Result<(Hash, u64, u32), Malformed> {
    Ok((reader.array()?, reader.u64()?, reader.u32()?))
}

impl VerificationChunk {
    /// The chunk's bytes, in the form that [`VerificationChunk::decode`] reads.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(chunk_bytes(self.envelopes.iter().map(Bytes::len)));
        writer.put(&self.policies_digest).u64(self.block).u32(self.first);
        self.envelopes.iter().fold(&mut writer, |writer, envelope| writer.long(envelope)).done()
    }

    /// Reads a chunk. Its envelopes share the message's memory.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<VerificationChunk, Malformed> {
        let mut reader = Reader::new(bytes);
        let (policies_digest, block, first) = read_head(&mut reader)?;
        // Each envelope takes four bytes at least.
        let mut envelopes = Vec::with_capacity(ENVELOPES_MAX.min(reader.left() / LENGTH_BYTES));
        while !reader.is_empty() {
            if envelopes.len() == ENVELOPES_MAX {
                return Err(reader.malformed("it has more envelopes than a chunk"));
            }
            envelopes.push(reader.long(usize::MAX)?);
        }
        Ok(VerificationChunk { policies_digest, block, first, envelopes })
    }
}

impl SignatureVerdicts {
    /// The verdicts' bytes, in the form that [`SignatureVerdicts::decode`] reads.
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::with_capacity(HEAD_BYTES.saturating_add(self.verdicts.len()));
        writer.put(&self.rules).u64(self.block).u32(self.first);
        self.verdicts.iter().fold(&mut writer, |writer, verdict| writer.u8(*verdict as u8)).done()
    }

    /// Reads a follower's verdicts.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<SignatureVerdicts, Malformed> {
        let mut reader = Reader::new(bytes);
        let (rules, block, first) = read_head(&mut reader)?;
        let word = |byte| match byte {
            0 => Ok(SignatureVerdict::Unsigned),
            1 => Ok(SignatureVerdict::Unendorsed),
            2 => Ok(SignatureVerdict::Valid),
            _ => Err(reader.malformed("an unknown verdict")),
        };
        if reader.left() > ENVELOPES_MAX {
            return Err(reader.malformed("it has more verdicts than a chunk has envelopes"));
        }
        let words = reader.peek().iter().map(|byte| word(*byte)).collect::<Result<_, _>>()?;
        Ok(SignatureVerdicts { rules, block, first, verdicts: words })
    }
}

/// Step 4: the verdicts of an answer, if they belong to this chunk and the follower used the same channel policies.
fn verdicts_for(chunk: &VerificationChunk, answer: Bytes) -> Option<Vec<SignatureVerdict>> {
    let words = SignatureVerdicts::decode(answer)
        .inspect_err(|error| tracing::warn!(%error, "a reader says what it must not"))
        .ok()?;
    let answers = (words.rules, words.block, words.first) == (chunk.policies_digest, chunk.block, chunk.first);
    let counts = answers || rt::fault_point("chain.offload.mutant.unchecked");
    (counts && words.verdicts.len() == chunk.envelopes.len()).then_some(words.verdicts)
}

/// A follower that verifies for the primary: step 3.
pub struct VerificationWorker {
    policies: Arc<CurrentPolicies>,
    config: OffloadConfig,
}

impl VerificationWorker {
    /// A worker that verifies by the `policies` in force, and shows its load and its counts through `config`.
    pub fn new(policies: Arc<CurrentPolicies>, config: OffloadConfig) -> VerificationWorker {
        VerificationWorker { policies, config }
    }
}

#[async_trait]
impl WorkHandler for VerificationWorker {
    fn load(&self) -> u8 {
        self.config.meter.percent()
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn work(&self, work_item: Bytes) -> Option<Bytes> {
        let chunk = VerificationChunk::decode(work_item)
            .inspect_err(|error| tracing::warn!(%error, "a piece of work is none"))
            .ok()?;
        if rt::fault_point("chain.offload.late") {
            rt::sleep(OFFLOAD_TIMEOUT.mul_f64(3.0 * rt::random_below(1000) as f64 / 1000.0)).await;
        }
        let policies = self.policies.get();
        if *policies.digest() != chunk.policies_digest {
            // The primary is about to change the configuration, or has changed it since this node looked.
            return None;
        }
        let examined = verify_transactions(chunk.envelopes.iter().cloned(), &policies);
        let words: Vec<SignatureVerdict> = examined.iter().map(VerifiedTransaction::signature_verdict).collect();
        let count = words.len() as u64;
        let mut answer =
            SignatureVerdicts { rules: *policies.digest(), block: chunk.block, first: chunk.first, verdicts: words };
        // A simulation may make the follower wrong: with another configuration, with an answer for another block, or
        // lying.
        if rt::fault_point("chain.offload.other_policies") {
            answer.rules[0] ^= 1;
            answer.verdicts.fill(SignatureVerdict::Valid);
        }
        if rt::fault_point("chain.offload.other_block") {
            answer.block -= 1;
            answer.verdicts.fill(SignatureVerdict::Unendorsed);
        }
        if rt::fault_point("chain.offload.lie")
            && let Some(word) = answer.verdicts.get_mut(rt::random_below(count.max(1)) as usize)
        {
            *word = if *word == SignatureVerdict::Valid { SignatureVerdict::Unsigned } else { SignatureVerdict::Valid };
        }
        self.config.counts.add_verified_for_others(count);
        events::TransactionsVerifiedForPrimary.add(count);
        Some(answer.encode())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> VerificationChunk {
        let envelopes = ["one", "", "three"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
        VerificationChunk { policies_digest: [7; 32], block: 5, first: 16, envelopes }
    }

    fn words() -> SignatureVerdicts {
        SignatureVerdicts {
            rules: [7; 32],
            block: 5,
            first: 16,
            verdicts: vec![SignatureVerdict::Valid, SignatureVerdict::Unsigned, SignatureVerdict::Unendorsed],
        }
    }

    #[test]
    fn messages_have_the_documented_bytes_and_are_read_again() {
        let head = [&[7; 32][..], b"\x05\0\0\0\0\0\0\0\x10\0\0\0"].concat();
        let encoded = chunk().encode();
        assert_eq!(encoded[..], [&head[..], b"\x03\0\0\0one\0\0\0\0\x05\0\0\0three"].concat());
        assert_eq!(encoded.len(), chunk_bytes(chunk().envelopes.iter().map(Bytes::len)));
        assert_eq!(VerificationChunk::decode(encoded), Ok(chunk()));
        let encoded = words().encode();
        assert_eq!(encoded[..], [&head[..], b"\x02\0\x01"].concat());
        assert_eq!(SignatureVerdicts::decode(encoded), Ok(words()));
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
                if let Ok(chunk) = VerificationChunk::decode(bytes.clone()) {
                    proptest::prop_assert_eq!(chunk.encode(), bytes.clone());
                }
                if let Ok(words) = SignatureVerdicts::decode(bytes.clone()) {
                    proptest::prop_assert_eq!(words.encode(), bytes);
                }
            }
        }
    }

    #[test]
    fn words_count_for_their_own_chunk_by_the_same_rules() {
        type Change = fn(&mut SignatureVerdicts);
        let change = |change: Change| {
            let mut words = words();
            change(&mut words);
            verdicts_for(&chunk(), words.encode())
        };
        assert_eq!(change(|_| {}), Some(words().verdicts));
        let others: [(&str, Change); 5] = [
            ("by other rules", |words| words.rules[31] = 8),
            ("of another block", |words| words.block = 4),
            ("of another chunk", |words| words.first = 0),
            ("too few", |words| words.verdicts.truncate(2)),
            ("too many", |words| words.verdicts.push(SignatureVerdict::Valid)),
        ];
        for (what, other) in others {
            assert_eq!(change(other), None, "{what}");
        }
        assert_eq!(verdicts_for(&chunk(), Bytes::from_static(b"none at all")), None);
    }
}
