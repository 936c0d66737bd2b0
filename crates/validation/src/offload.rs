//! Offloading: the primary of a peer has the most idle compute node of the same peer verify the signatures of a block.
//!
//! FlexChain (section 3.2, steps 4 and 5) has the orderers send each block to the node of a peer that is the most idle.
//! That node evaluates the endorsement policies, and sends the block with a bit for each transaction to the primary. Here
//! the primary receives the block, sends it to the most idle node, and gets the verdicts back (docs/adr/0043). The work
//! is the same: nearly all of the cost is signatures and policies, which depend only on the transaction and on the
//! channel's policies, so any compute node can check them. The primary itself parses everything else of a transaction,
//! which is cheap, and checks conflicts. All these nodes belong to one organisation: the primary never uses a verdict of
//! another organisation.
//!
//! 1. A block is one part; a block of more than [`PART_TRANSACTIONS_MAX`] transactions or
//!    [`WORK_ITEM_BYTES_MAX`] bytes is several ([`parts`]). For each part
//!    the primary decides whether to offload it, and to whom ([`OffloadConfig::reserve`]). With `Never` it offloads none.
//!    With `Idle` a part goes to the most idle node: to a follower if, by the loads that both have measured, it is more
//!    idle than the primary by [`IDLE_MARGIN_PERCENT`](replica::offload::IDLE_MARGIN_PERCENT) at least. With `Always` and
//!    `n` followers, the primary keeps every `n + 1`th part.
//! 2. The primary sends a work item ([`replica::followers::work`], [`VerificationPart`]): the part's envelopes, the block's
//!    number, the position of the first envelope, and the [digest](ChannelPolicies::digest) of the primary's channel
//!    policies. The module `work` accepts an answer only if the follower holds a lease and has followed to the primary's
//!    height.
//! 3. The follower [verifies](crate::verify) the envelopes by its own channel policies, on all of its cores
//!    ([`verify_in_chunks`]). It answers with one [`SignatureVerdict`] per envelope, the digest of its own policies, the
//!    block's number and the position ([`SignatureVerdicts`]).
//! 4. The primary accepts the verdicts for this part if digest, number and position equal those of the request, and if
//!    there is one verdict per transaction.
//! 5. The primary verifies some of these transactions completely itself: every transaction whose verdict is not
//!    [`SignatureVerdict::Valid`], one random transaction of each
//!    [`SPOT_CHECK_GROUP`](replica::offload::SPOT_CHECK_GROUP), and each remaining transaction with a probability
//!    of one in [`OffloadConfig::spot_check_one_in`]. The follower cannot know which ones. For the transactions that it
//!    does not verify, the primary uses the verdict in place of the signatures ([`verify_with_verdict`]).
//! 6. If a follower's verdict differs from the primary's own result, the follower lies or is broken. The primary discards
//!    all verdicts of the follower on that part, sends it no more work until this process ends ([`liars`](replica::offload::OffloadCounts::liars)),
//!    and reports it to the operator.
//! 7. If the verdicts were rejected or discarded, or did not arrive within [`OFFLOAD_TIMEOUT`] and
//!    [`OFFLOAD_TIMEOUT_PER_TRANSACTION`] for each transaction, the primary verifies the whole part itself.
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
//! * A follower that lies makes no valid transaction invalid. The primary verifies each transaction with a
//!   probability of at least 1/16. With this probability a follower that calls a forged
//!   transaction valid is detected; an undetected forgery passes the signature checks. An operator who cannot accept
//!   that sets [`OffloadConfig::spot_check_one_in`] to 1, or turns offloading off.
//! * The primary waits for a follower within the time of step 7, and offloads each part at most once. A follower that is
//!   lost or stands still costs its work and nothing else.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use base::rt::AbortOnDrop;
use base::{Bytes, rt};
use ledger::Hash;
use replica::followers::work::WORK_ITEM_BYTES_MAX;
use replica::load::LoadReport;
use replica::offload::{OFFLOAD_TIMEOUT, OFFLOAD_TIMEOUT_PER_TRANSACTION, OffloadConfig};
use replica::{WorkHandler, WorkPermit};
use rules::access::{ChannelPolicies, CurrentPolicies};
use wire::{Malformed, Reader, Writer};

use crate::events;
use crate::verify::{SignatureVerdict, VerifiedTransaction, verify_transactions, verify_with_verdict};

/// The parts of a block whose envelopes have these lengths, by the positions of their transactions. Each has at most
/// [`PART_TRANSACTIONS_MAX`] transactions and fits into a work item, unless it is one larger envelope.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn parts(envelopes: impl Iterator<Item = usize>) -> Vec<(Range<usize>, usize)> {
    let mut parts: Vec<(Range<usize>, usize)> = Vec::new();
    for (index, bytes) in envelopes.enumerate() {
        let bytes = LENGTH_BYTES + bytes;
        match parts.last_mut() {
            Some((part, total)) if part.len() < PART_TRANSACTIONS_MAX && *total + bytes <= WORK_ITEM_BYTES_MAX => {
                (part.end, *total) = (index + 1, *total + bytes);
            }
            _ => parts.push((index..index + 1, HEAD_BYTES + bytes)),
        }
    }
    parts
}

/// Verifies transactions in chunks of [`VERIFY_CHUNK_TRANSACTIONS`], each in a task of its own, so that all cores take part.
pub async fn verify_in_chunks(envelopes: &[Bytes], policies: &Arc<ChannelPolicies>) -> Vec<VerifiedTransaction> {
    let policies = Arc::clone(policies);
    in_chunks(envelopes, move |chunk: &[Bytes]| verify_transactions(chunk.iter().cloned(), &policies)).await
}

/// Runs `verify` on chunks of `all`, each in a task of its own; the results are in the order of `all`.
async fn in_chunks<T, F>(all: &[T], verify: F) -> Vec<VerifiedTransaction>
where
    T: Clone + Send + 'static,
    F: Fn(&[T]) -> Vec<VerifiedTransaction> + Clone + Send + 'static,
{
    let chunks = all.chunks(VERIFY_CHUNK_TRANSACTIONS);
    if chunks.len() == 1 {
        return verify(all);
    }
    let task = |chunk: &[T]| {
        let (chunk, verify) = (chunk.to_vec(), verify.clone());
        rt::spawn(async move { verify(&chunk) }).abort_on_drop()
    };
    let tasks: Vec<AbortOnDrop<Vec<VerifiedTransaction>>> = chunks.clone().map(task).collect();
    let mut verified = Vec::with_capacity(all.len());
    for (task, chunk) in tasks.into_iter().zip(chunks) {
        // A task ends without a result only with the runtime, or by a defect that shows here as well.
        verified.extend(task.await.unwrap_or_else(|_| verify(chunk)));
    }
    verified
}

/// Steps 2 to 7 for a part that has a permit.
pub async fn verify_at_follower(
    config: &OffloadConfig,
    permit: WorkPermit,
    part: &VerificationPart,
    policies: &Arc<ChannelPolicies>,
) -> Vec<VerifiedTransaction> {
    let follower = Arc::clone(permit.follower());
    let count = u32::try_from(part.envelopes.len()).unwrap_or(u32::MAX);
    let timeout = OFFLOAD_TIMEOUT.saturating_add(OFFLOAD_TIMEOUT_PER_TRANSACTION.saturating_mul(count));
    let answer = permit.work(part.encode(), timeout).await;
    if let Some(verdicts) = answer.and_then(|answer| verdicts_for(part, answer))
        && let Some(verified) = verify_offloaded(config, &follower, part, verdicts, policies).await
    {
        return verified;
    }
    events::TransactionsOffloadFailed.add(count.into());
    verify_in_chunks(&part.envelopes, policies).await
}

/// Steps 5 and 6: the part, verified with a follower's verdicts; `None` if the follower has lied.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub async fn verify_offloaded(
    config: &OffloadConfig,
    follower: &Arc<str>,
    part: &VerificationPart,
    verdicts: Vec<SignatureVerdict>,
    policies: &Arc<ChannelPolicies>,
) -> Option<Vec<VerifiedTransaction>> {
    let are_doubted = config.choose_doubted(verdicts.iter().map(|verdict| *verdict == SignatureVerdict::Valid));
    let all = || part.envelopes.iter().zip(&verdicts).zip(&are_doubted);
    let doubted: Vec<Bytes> =
        all().filter(|(_, doubted)| **doubted).map(|((envelope, _), _)| envelope.clone()).collect();
    let mut verified_here = verify_in_chunks(&doubted, policies).await.into_iter();
    let doubted_verdicts = (0_u64..).zip(all()).filter(|(_, (_, doubted))| **doubted);
    for ((index, ((_, verdict), _)), verified) in doubted_verdicts.zip(verified_here.as_slice()) {
        let found = verified.signature_verdict();
        if found != *verdict {
            let (block, place): (u64, u64) = (part.block, u64::from(part.first) + index);
            tracing::error!(
                reader = &**follower, block, place, said = ?verdict, ?found,
                "another compute node of this peer lied about the signatures of a transaction; it is asked nothing more until \
                 this process ends. Take it out of the peer and find out who has its keys"
            );
            config.counts.distrust(follower);
            return None;
        }
    }
    let believed = all().filter(|(_, doubted)| !**doubted).map(|((envelope, verdict), _)| (envelope.clone(), *verdict));
    let believed: Vec<(Bytes, SignatureVerdict)> = believed.collect();
    let by = Arc::clone(policies);
    let parse = move |chunk: &[(Bytes, SignatureVerdict)]| {
        chunk.iter().map(|(envelope, verdict)| verify_with_verdict(envelope, &by, *verdict)).collect()
    };
    let mut parsed = in_chunks(&believed, parse).await.into_iter();
    let next = |doubted: &bool| if *doubted { verified_here.next() } else { parsed.next() };
    let verified = are_doubted.iter().filter_map(next).collect();
    let offloaded = believed.len() as u64;
    config.counts.add_offloaded(offloaded);
    events::TransactionsOffloaded.add(offloaded);
    events::TransactionsReverified.add(doubted.len() as u64);
    Some(verified)
}

/// A part of a block: consecutive envelopes (docs/formats/followers.md).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerificationPart {
    /// The digest of the channel policies by which to verify them.
    pub policies_digest: Hash,
    /// The block.
    pub block: u64,
    /// The position of the first envelope in the block.
    pub first: u32,
    /// The encoded envelopes, in the order of the block.
    pub envelopes: Vec<Bytes>,
}

/// A follower's verdicts on a part.
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
/// The largest number of transactions in a part.
pub const PART_TRANSACTIONS_MAX: usize = 512;

/// Bytes before the envelopes or the verdicts.
const HEAD_BYTES: usize = 32 + 8 + 4;
/// Bytes before each envelope.
const LENGTH_BYTES: usize = 4;

fn read_head(reader: &mut Reader<Bytes>) -> Result<(Hash, u64, u32), Malformed> {
    Ok((reader.array()?, reader.u64()?, reader.u32()?))
}

impl VerificationPart {
    /// The part's bytes, in the form that [`VerificationPart::decode`] reads.
    pub fn encode(&self) -> Bytes {
        let lengths = self.envelopes.iter().map(|envelope| LENGTH_BYTES.saturating_add(envelope.len()));
        let mut writer = Writer::with_capacity(lengths.fold(HEAD_BYTES, usize::saturating_add));
        writer.put(&self.policies_digest).u64(self.block).u32(self.first);
        self.envelopes.iter().fold(&mut writer, |writer, envelope| writer.long(envelope)).done()
    }

    /// Reads a part. Its envelopes share the message's memory.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<VerificationPart, Malformed> {
        let mut reader = Reader::new(bytes);
        let (policies_digest, block, first) = read_head(&mut reader)?;
        // Each envelope takes four bytes at least.
        let mut envelopes = Vec::with_capacity(PART_TRANSACTIONS_MAX.min(reader.left() / LENGTH_BYTES));
        while !reader.is_empty() {
            if envelopes.len() == PART_TRANSACTIONS_MAX {
                return Err(reader.malformed("it has more envelopes than a part"));
            }
            envelopes.push(reader.long(usize::MAX)?);
        }
        Ok(VerificationPart { policies_digest, block, first, envelopes })
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
        if reader.left() > PART_TRANSACTIONS_MAX {
            return Err(reader.malformed("it has more verdicts than a part has envelopes"));
        }
        let words = reader.peek().iter().map(|byte| word(*byte)).collect::<Result<_, _>>()?;
        Ok(SignatureVerdicts { rules, block, first, verdicts: words })
    }
}

/// Step 4: the verdicts of an answer, if they belong to this part and the follower used the same channel policies.
fn verdicts_for(part: &VerificationPart, answer: Bytes) -> Option<Vec<SignatureVerdict>> {
    let words = SignatureVerdicts::decode(answer)
        .inspect_err(|error| tracing::warn!(%error, "a reader says what it must not"))
        .ok()?;
    let answers = (words.rules, words.block, words.first) == (part.policies_digest, part.block, part.first);
    let counts = answers || rt::fault_point("chain.offload.mutant.unchecked");
    (counts && words.verdicts.len() == part.envelopes.len()).then_some(words.verdicts)
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
    fn load(&self) -> LoadReport {
        self.config.load.report()
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn work(&self, work_item: Bytes) -> Option<Bytes> {
        let _queued = self.config.load.enter();
        let part = VerificationPart::decode(work_item)
            .inspect_err(|error| tracing::warn!(%error, "a piece of work is none"))
            .ok()?;
        if rt::fault_point("chain.offload.late") {
            rt::sleep(OFFLOAD_TIMEOUT.mul_f64(3.0 * rt::random_below(1000) as f64 / 1000.0)).await;
        }
        let policies = self.policies.get();
        if *policies.digest() != part.policies_digest {
            // The primary is about to change the configuration, or has changed it since this node looked.
            return None;
        }
        let examined = verify_in_chunks(&part.envelopes, &policies).await;
        let words: Vec<SignatureVerdict> = examined.iter().map(VerifiedTransaction::signature_verdict).collect();
        let count = words.len() as u64;
        let mut answer =
            SignatureVerdicts { rules: *policies.digest(), block: part.block, first: part.first, verdicts: words };
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

    fn part() -> VerificationPart {
        let envelopes = ["one", "", "three"].map(|text| Bytes::from_static(text.as_bytes())).to_vec();
        VerificationPart { policies_digest: [7; 32], block: 5, first: 16, envelopes }
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
        let encoded = part().encode();
        assert_eq!(encoded[..], [&head[..], b"\x03\0\0\0one\0\0\0\0\x05\0\0\0three"].concat());
        let lengths = part().envelopes.iter().map(Bytes::len).collect::<Vec<_>>();
        assert_eq!(parts(lengths.into_iter()), vec![(0..3, encoded.len())]);
        assert_eq!(VerificationPart::decode(encoded), Ok(part()));
        let encoded = words().encode();
        assert_eq!(encoded[..], [&head[..], b"\x02\0\x01"].concat());
        assert_eq!(SignatureVerdicts::decode(encoded), Ok(words()));
    }

    #[test]
    fn a_block_is_one_part_unless_it_is_large() {
        let ends = |lengths: &[usize]| -> Vec<usize> {
            parts(lengths.iter().copied()).into_iter().map(|(range, _)| range.end).collect()
        };
        assert_eq!(ends(&[]), [0; 0]);
        assert_eq!(ends(&[4_000; 200]), [200]);
        assert_eq!(ends(&[100; 1_100]), [512, 1_024, 1_100]);
        assert_eq!(ends(&[600_000, 600_000, 10]), [1, 3]);
        assert_eq!(ends(&[10, 2 << 20, 10]), [1, 2, 3], "the one that fits into no work item is alone");
        for (range, bytes) in parts([300_000; 20].into_iter()) {
            assert!(bytes <= WORK_ITEM_BYTES_MAX && range.len() == 3 || range.end == 20, "{range:?}");
        }
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
                if let Ok(part) = VerificationPart::decode(bytes.clone()) {
                    proptest::prop_assert_eq!(part.encode(), bytes.clone());
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
            verdicts_for(&part(), words.encode())
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
        assert_eq!(verdicts_for(&part(), Bytes::from_static(b"none at all")), None);
    }
}
