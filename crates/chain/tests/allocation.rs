//! Measures how much memory this process allocates for a hostile message.
//!
//! Regression: ninety megabytes of two-byte fields became a gigabyte and a half before any signature was checked. Here each
//! decoder of messages of clients, peers and other organisations gets two kinds of messages: random ones, and messages that
//! consist only of the smallest parts that the message may repeat. The allocator records the peak. It may be at most twice
//! the message until the message's signature is checked, and at most four times the message after.

use base::Bytes;
use block_transport::protocol::DeliverResponse;
use chain::remote::messages::{self, CommitNotification, PeerRequest, ResultResponse, Welcome};
use ledger::Block;
use ledger::proposal::Proposal;
use ledger::rwset::{NAMESPACES_MAX, ReadWriteSet};
use ledger::transaction::Transaction;
use ledger::wire::put_bytes;
use peak_alloc::PeakAlloc;
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, TestRunner};
use validation::offload::{SignatureVerdicts, VerificationPart};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// The allocation that does not depend on the message's size: small structures, error texts, the identity in a
/// certificate.
const SMALL_BYTES: usize = 64 << 10;
/// The size in bytes of a message of tiny parts.
const LARGE_BYTES: usize = 1 << 20;

/// The peak of allocated memory while `run` runs, beyond the memory that was allocated before.
fn peak_of<T>(run: impl FnOnce() -> T) -> usize {
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    let result = run();
    let peak = PEAK.peak_usage();
    drop(result);
    peak.saturating_sub(before)
}

/// A decoder: its name, how many times the message's size it may allocate, and its function.
type Case = (&'static str, usize, fn(Bytes));

const CASES: [Case; 12] = [
    ("a proposal, unsigned", 2, |bytes| {
        let _ = Proposal::parse(&bytes).map(|proposal| proposal.check_form());
    }),
    ("a proposal, its signature checked", 4, |bytes| {
        let _ = Proposal::parse(&bytes).map(|proposal| proposal.invocation().map(|invocation| invocation.args.len()));
    }),
    ("an envelope, unsigned", 2, |bytes| {
        let _ = Transaction::parse(&bytes);
    }),
    ("an envelope, its signature checked", 4, |bytes| {
        let _ = Transaction::parse(&bytes).and_then(|transaction| {
            let action = transaction.action()?;
            action.outcome(transaction.header())
        });
    }),
    ("a read-write set, its endorsements unchecked", 2, |bytes| {
        let _ = ReadWriteSet::decode(bytes).map(|set| set.has_valid_keys());
    }),
    ("a block", 2, |bytes| {
        let _ = Block::parse(&bytes);
    }),
    ("an orderer's message", 2, |bytes| {
        let _ = DeliverResponse::decode(bytes);
    }),
    ("a request over a link", 2, |bytes| {
        let _ = PeerRequest::read(bytes);
    }),
    ("an answer of another organisation's peer", 4, |bytes| {
        let _ = ResultResponse::read(bytes).map(|answer| answer.failure.map(|failure| failure.into_endorse()));
    }),
    ("a notice", 4, |bytes| {
        let _ = messages::decode::<CommitNotification>(bytes);
    }),
    ("a welcome", 4, |bytes| {
        let _ = messages::decode::<Welcome>(bytes);
    }),
    ("a piece of borrowed work and its answer", 2, |bytes| {
        let _ = (VerificationPart::decode(bytes.clone()), SignatureVerdicts::decode(bytes));
    }),
];

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, number, content);
    bytes
}

/// Parts of the smallest size, as many as fill a message.
fn tiny(part: &[u8]) -> Vec<u8> {
    part.repeat(LARGE_BYTES / part.len())
}

/// A proposal with correct headers, with this input and these entries after it.
fn proposal(input: &[u8], behind: &[u8]) -> Bytes {
    let extension = field(2, &field(2, b"basic"));
    let channel_header = [&[0x08, 3][..], &field(4, b"ch"), &field(7, &extension)].concat();
    let signature_header = [field(1, b"creator"), field(2, b"nonce")].concat();
    let header = [field(1, &channel_header), field(2, &signature_header)].concat();
    let spec = field(1, &field(3, input));
    let payload = [field(1, &spec), behind.to_vec()].concat();
    let proposal = [field(1, &header), field(2, &payload)].concat();
    [field(1, &proposal), field(2, b"signature")].concat().into()
}

/// An envelope with a correct header whose endorsed action contains these bytes.
fn envelope(endorsed: &[u8]) -> Bytes {
    let channel_header = [&[0x08, 3][..], &field(4, b"ch")].concat();
    let signature_header = [field(1, b"creator"), field(2, b"nonce")].concat();
    let header = [field(1, &channel_header), field(2, &signature_header)].concat();
    let payload = [field(1, b"proposal"), field(2, endorsed)].concat();
    let action = [field(1, &signature_header), field(2, &payload)].concat();
    let payload = [field(1, &header), field(2, &field(1, &action))].concat();
    [field(1, &payload), field(2, b"signature")].concat().into()
}

/// A read-write set with these entries in its only namespace.
fn entries(entries: &[u8]) -> Bytes {
    field(2, &[field(1, b"basic"), field(2, entries)].concat()).into()
}

fn block(entry: &[u8]) -> Bytes {
    let header = [&[0x08, 1][..], &field(2, &[1; 32]), &field(3, &[2; 32])].concat();
    [field(1, &header), field(2, &tiny(entry)), field(3, &tiny(&[0x0a, 0]))].concat().into()
}

/// Messages of the smallest parts only, for every field that a message repeats.
fn hostile() -> Vec<Bytes> {
    let entry = |key: &[u8]| field(2, &field(1, key));
    let distinct: Vec<u8> = (0..60_000u32).flat_map(|number| entry(format!("{number}").as_bytes())).collect();
    vec![
        proposal(&tiny(&[0x0a, 0]), &[]),
        proposal(&tiny(&[0x0a, 1, b'x']), &[]),
        proposal(&tiny(&[0x12, 0]), &[]),
        proposal(&tiny(&[0x12, 2, 0x0a, 0]), &[]),
        proposal(&[], &tiny(&[0x12, 0])),
        proposal(&[], &distinct),
        // The largest number that is accepted.
        proposal(&[0x0a, 20].into_iter().chain([b'a'; 20]).collect::<Vec<_>>().repeat(4096), &[]),
        proposal(&[], &(0..1000).flat_map(|number| entry(format!("{number:0100}").as_bytes())).collect::<Vec<u8>>()),
        proposal(&[], &entry(&vec![b'k'; LARGE_BYTES])),
        envelope(&tiny(&[0x12, 0])),
        envelope(&tiny(&[0x12, 4, 0x0a, 0, 0x12, 0])),
        block(&[0x0a, 0]),
        block(&[0x0a, 1, 7]),
        block(&[0x0a, 6, 0x0a, 1, 1, 0x12, 1, 1]),
        entries(&tiny(&[0x0a, 0])),
        // The smallest reads and writes that are kept, and some that are not.
        entries(&tiny(&field(1, &field(1, b"key of 12 by")))),
        entries(&tiny(&field(1, &field(1, b"key of 13 byt")))),
        entries(&tiny(&field(3, &field(1, b"of 6by")))),
        entries(&tiny(&field(3, &field(1, b"of 7 by")))),
        entries(&tiny(&[0x12, 0])),
        entries(&tiny(&[0x12, 2, 0x22, 0])),
        entries(&tiny(&[0x1a, 0])),
        entries(&field(2, &field(4, &tiny(&[0x0a, 0])))),
        entries(&field(2, &field(5, &[&[0x08, 50][..], &tiny(&[0x1a, 0])].concat()))),
        field(2, &[]).repeat(NAMESPACES_MAX).into(),
        tiny(&[0x0a, 0]).into(),
        tiny(&[0x12, 0]).into(),
        tiny(&[0x1a, 0]).into(),
        field(2, &tiny(&[0x12, 0])).into(),
        field(2, &tiny(&[0x12, 1, b'x'])).into(),
        field(1, &vec![b'x'; LARGE_BYTES]).into(),
        tiny(&[0]).into(),
        vec![2; LARGE_BYTES].into(),
    ]
}

#[test]
fn no_message_makes_anybody_allocate_more_than_a_small_multiple_of_itself() {
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let any = proptest::collection::vec(proptest::collection::vec(proptest::prelude::any::<u8>(), 0..40), 0..400);
    let mut generated: Vec<Bytes> = hostile();
    for _ in 0..100 {
        let parts = any.new_tree(&mut runner).expect("a value").current();
        let fields: Vec<u8> = parts.iter().zip((1..4).cycle()).flat_map(|(part, number)| field(number, part)).collect();
        generated.extend([
            fields.clone().into(),
            proposal(&fields, &fields),
            envelope(&fields),
            block(&field(1, &fields)[..8.min(fields.len())]),
        ]);
    }
    for (index, message) in generated.iter().enumerate() {
        for (what, times, decode) in CASES {
            let copy = message.clone();
            let peak = peak_of(|| decode(copy));
            let most = times * message.len() + SMALL_BYTES;
            assert!(peak <= most, "{what}, message {index} of {} bytes: {peak} bytes, {most} allowed", message.len());
        }
    }
    // The allocator records what is allocated.
    assert!(peak_of(|| vec![1u8; LARGE_BYTES]) >= LARGE_BYTES);
}
