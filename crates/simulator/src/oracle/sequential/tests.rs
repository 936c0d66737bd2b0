//! Tests the oracle with scripts of small blocks, and with blocks that Fabric wrote.
//!
//! A script is a list of blocks, and a block is a list of transactions. A version is `block.transaction`:
//!
//! ```text
//! w k=v      writes a value          d k      deletes
//! r k@1.0    read this version       r k-     found nothing
//! s a..c=a@1.0,b@1.1                 scanned from a up to c, c excluded, to the end, and found a and b
//! p a..b=a@1.0,b@1.1                 scanned from a and stopped after b, the last key found
//! ```

use base::rt::simulation::Simulation;
use base::{BlockNumber, Bytes};
use ledger::Block;
use prost::Message;
use proto::kvrwset::range_query_info::ReadsInfo;
use proto::kvrwset::{KvRead, KvWrite, KvrwSet, QueryReads, QueryReadsMerkleSummary, RangeQueryInfo, Version};
use proto::rwset::{NsReadWriteSet, TxReadWriteSet};

use super::{ChannelPolicies, Code, Oracle, commit_hash, header_hash};
use crate::client::envelope::{EnvelopeDefect, Proposal, endorse};
use crate::network::members::{CHANNEL, Members};
use crate::scenario::Scenario;

fn read(text: &str) -> KvRead {
    if let Some(key) = text.strip_suffix('-') {
        return KvRead { key: key.to_owned(), version: None };
    }
    let (key, version) = text.split_once('@').expect("key@version");
    let (block, transaction) = version.split_once('.').expect("block.transaction");
    let number = |text: &str| text.parse().expect("a number");
    let version = Version { block_num: number(block), tx_num: number(transaction) };
    KvRead { key: key.to_owned(), version: Some(version) }
}

fn range(text: &str, exhausted: bool) -> RangeQueryInfo {
    let (bounds, results) = text.split_once('=').expect("bounds=results");
    let (start, end) = bounds.split_once("..").expect("start..end");
    let kv_reads = results.split(',').filter(|result| !result.is_empty()).map(read).collect();
    RangeQueryInfo {
        start_key: start.to_owned(),
        end_key: end.to_owned(),
        itr_exhausted: exhausted,
        reads_info: Some(ReadsInfo::RawReads(QueryReads { kv_reads })),
    }
}

/// The read-write set that a script's transaction stands for, in one namespace.
fn set(script: &str, namespace: &str) -> Bytes {
    let mut set = KvrwSet::default();
    let mut words = script.split_whitespace();
    while let Some(verb) = words.next() {
        let what = words.next().expect("every verb has an object");
        match verb {
            "r" => set.reads.push(read(what)),
            "s" => set.range_queries_info.push(range(what, true)),
            "p" => set.range_queries_info.push(range(what, false)),
            "d" => set.writes.push(KvWrite { key: what.to_owned(), is_delete: true, ..KvWrite::default() }),
            "w" => {
                let (key, value) = what.split_once('=').expect("key=value");
                let value = Bytes::copy_from_slice(value.as_bytes());
                set.writes.push(KvWrite { key: key.to_owned(), value, is_delete: false });
            }
            verb => panic!("{verb} is no verb"),
        }
    }
    let namespace = NsReadWriteSet {
        namespace: namespace.to_owned(),
        rwset: set.encode_to_vec().into(),
        ..NsReadWriteSet::default()
    };
    TxReadWriteSet { ns_rwset: vec![namespace], ..TxReadWriteSet::default() }.encode_to_vec().into()
}

struct TestChannel {
    members: Members,
    oracle: Oracle,
    tip: Block,
}

impl TestChannel {
    fn new() -> TestChannel {
        let members = Members::found(&Scenario::of(0, None)).expect("the members are founded");
        let config = ledger::ChannelConfig::from_block(&members.genesis).expect("the genesis block is usable");
        let mut oracle = Oracle::new(ChannelPolicies {
            channel: CHANNEL.to_owned(),
            members: config.msps().clone(),
            endorsements_min: 2,
            organizations: crate::network::members::ORGANIZATIONS,
            contracts: ["ycsb".to_owned(), "basic".to_owned()].into(),
            collections: Default::default(),
        });
        oracle.add(&members.genesis.to_bytes()).expect("the genesis block is the first");
        let tip = members.genesis.clone();
        TestChannel { members, oracle, tip }
    }

    fn proposal(&self) -> Proposal {
        Proposal::new(&self.members.clients[0], CHANNEL, "ycsb", vec![Bytes::from_static(b"f")])
    }

    fn envelope(&self, proposal: &Proposal, set: Bytes, endorsers: &[usize], spoiled: EnvelopeDefect) -> Bytes {
        let result = proposal.forged_result(set);
        let endorsements: Vec<_> =
            endorsers.iter().map(|place| endorse(&self.members.peers[*place], &result)).collect();
        proposal.envelope(&self.members.clients[0], &result, &endorsements, spoiled)
    }

    fn add(&mut self, envelopes: &[Bytes]) -> Vec<Code> {
        let number = self.tip.number().get() + 1;
        self.tip = Block::build(BlockNumber(number), Some(self.tip.hash()), envelopes);
        let judged = self.oracle.add(&self.tip.to_bytes()).expect("the block follows");
        judged.transactions.into_iter().map(|(_, code)| code).collect()
    }

    fn run(&mut self, block: &[&str]) -> Vec<Code> {
        let envelopes: Vec<Bytes> = block
            .iter()
            .map(|script| self.envelope(&self.proposal(), set(script, "ycsb"), &[0, 1], EnvelopeDefect::Not))
            .collect();
        self.add(&envelopes)
    }

    fn state(&self) -> String {
        let rows = self.oracle.state().iter().map(|((_, key), row)| {
            format!("{key}={}@{}.{}", String::from_utf8_lossy(&row.value), row.version.0, row.version.1)
        });
        rows.collect::<Vec<_>>().join(" ")
    }
}

/// Runs a function that needs the simulated world's randomness and time.
fn simulated<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    Simulation::new(1).run(|_| async { run() }).expect("the run succeeds").value
}

#[test]
fn conflicts_are_checked_in_the_order_of_the_block() {
    use Code::{MvccReadConflict as Conflict, PhantomReadConflict as Phantom, Valid};
    let script: &[(&[&str], &[Code], &str)] = &[
        (&["w a=1 w b=2", "r never- w c=3"], &[Valid, Valid], "a=1@1.0 b=2@1.0 c=3@1.1"),
        // The first writer wins; a transaction that read before is too late, in this block and in the next.
        (&["r a@1.0 w a=4", "r a@1.0 w a=5", "r b@1.0"], &[Valid, Conflict, Valid], "a=4@2.0 b=2@1.0 c=3@1.1"),
        (&["r a@1.0 w a=6", "r a@2.0 w a=7"], &[Conflict, Valid], "a=7@3.1 b=2@1.0 c=3@1.1"),
        // A write in the block is a conflict even if it changes nothing, and even with the right version.
        (&["d never", "r never-"], &[Valid, Conflict], "a=7@3.1 b=2@1.0 c=3@1.1"),
        (&["w b=3", "r b@5.0"], &[Valid, Conflict], "a=7@3.1 b=3@5.0 c=3@1.1"),
        // Writes of invalid transactions have no effect.
        (&["r b- w d=1", "r d- w d=2"], &[Conflict, Valid], "a=7@3.1 b=3@5.0 c=3@1.1 d=2@6.1"),
        // An empty value deletes; a blind write never conflicts.
        (&["w d=", "w c=9"], &[Valid, Valid], "a=7@3.1 b=3@5.0 c=9@7.1"),
        // Ranges: to their end, stopped early, with a key missing, and with a new key of the same block.
        (
            &["s a..c=a@3.1,b@5.0", "p a..b=a@3.1,b@5.0", "s a..=a@3.1,b@5.0", "w bb=1", "s a..c=a@3.1,b@5.0"],
            &[Valid, Valid, Phantom, Valid, Phantom],
            "a=7@3.1 b=3@5.0 bb=1@8.3 c=9@7.1",
        ),
        (&["p a..b=a@3.1,b@5.0", "s x..z=", "s b..a="], &[Valid; 3], "a=7@3.1 b=3@5.0 bb=1@8.3 c=9@7.1"),
        // Reads come before ranges.
        (&["r a- s x..z=c@1.0"], &[Conflict], "a=7@3.1 b=3@5.0 bb=1@8.3 c=9@7.1"),
    ];
    simulated(move || {
        let mut chain = TestChannel::new();
        for (block, codes, state) in script {
            assert_eq!(chain.run(block), *codes, "{block:?}");
            assert_eq!(chain.state(), *state, "{block:?}");
        }
    });
}

#[test]
fn long_ranges_are_compared_by_their_hashes() {
    simulated(|| {
        let mut chain = TestChannel::new();
        let writes: Vec<String> = (0..60).map(|number| format!("w k{number:02}=v")).collect();
        assert_eq!(chain.run(&[&writes.join(" ")]), [Code::Valid]);
        let reads: Vec<KvRead> = (0..60).map(|number| read(&format!("k{number:02}@1.0"))).collect();
        let hash = |reads: &[KvRead]| {
            Bytes::copy_from_slice(&identity::sha256([&QueryReads { kv_reads: reads.to_vec() }.encode_to_vec()[..]]))
        };
        let summary = QueryReadsMerkleSummary {
            max_degree: 50,
            max_level: 1,
            max_level_hashes: vec![hash(&reads[..51]), hash(&reads[51..])],
        };
        let info = RangeQueryInfo {
            start_key: "k".to_owned(),
            itr_exhausted: true,
            reads_info: Some(ReadsInfo::ReadsMerkleHashes(summary)),
            ..RangeQueryInfo::default()
        };
        let reads = KvrwSet { range_queries_info: vec![info], ..KvrwSet::default() };
        let namespace = NsReadWriteSet {
            namespace: "ycsb".to_owned(),
            rwset: reads.encode_to_vec().into(),
            ..NsReadWriteSet::default()
        };
        let set = Bytes::from(TxReadWriteSet { ns_rwset: vec![namespace], ..Default::default() }.encode_to_vec());
        let scan = |chain: &TestChannel| chain.envelope(&chain.proposal(), set.clone(), &[0, 1], EnvelopeDefect::Not);
        let envelope = scan(&chain);
        assert_eq!(chain.add(&[envelope]), [Code::Valid]);
        assert_eq!(chain.run(&["w k30=w"]), [Code::Valid]);
        let envelope = scan(&chain);
        assert_eq!(chain.add(&[envelope]), [Code::PhantomReadConflict]);
    });
}

#[test]
fn what_is_wrong_by_itself_has_its_code_in_fabrics_order() {
    simulated(|| {
        let mut chain = TestChannel::new();
        let envelope =
            |set: Bytes, endorsers: &[usize], spoiled| chain.envelope(&chain.proposal(), set, endorsers, spoiled);
        let write = || set("w a=1", "ycsb");
        let mut twice = TxReadWriteSet::decode(write()).expect("our own set decodes");
        twice.ns_rwset.push(twice.ns_rwset[0].clone());
        let envelopes = [
            (envelope(write(), &[0, 1], EnvelopeDefect::Not), Code::Valid),
            (envelope(write(), &[2, 1], EnvelopeDefect::Not), Code::Valid),
            (envelope(write(), &[0], EnvelopeDefect::Not), Code::EndorsementPolicyFailure),
            (envelope(write(), &[0, 0], EnvelopeDefect::Not), Code::EndorsementPolicyFailure),
            (envelope(write(), &[0, 1], EnvelopeDefect::Endorsement), Code::EndorsementPolicyFailure),
            (envelope(write(), &[0, 1, 2], EnvelopeDefect::Endorsement), Code::Valid),
            (envelope(write(), &[0, 1], EnvelopeDefect::Result), Code::EndorsementPolicyFailure),
            (envelope(write(), &[0, 1], EnvelopeDefect::Arguments), Code::InvalidEndorserTransaction),
            (envelope(write(), &[0, 1], EnvelopeDefect::TransactionId), Code::BadProposalTxid),
            (envelope(write(), &[0, 1], EnvelopeDefect::Epoch), Code::BadCommonHeader),
            (envelope(write(), &[0, 1], EnvelopeDefect::Signature), Code::BadCreatorSignature),
            (envelope(set("w a=1", "_lifecycle"), &[0, 1], EnvelopeDefect::Not), Code::Valid),
            (envelope(set("r b-", "_lifecycle"), &[0, 1], EnvelopeDefect::Not), Code::Valid),
            (envelope(set("w a=1", "lscc"), &[0, 1], EnvelopeDefect::Not), Code::InvalidChaincode),
            (envelope(set("w a=1", "nobody"), &[0, 1], EnvelopeDefect::Not), Code::InvalidChaincode),
            (envelope(set("w a=1", "basic"), &[0, 1], EnvelopeDefect::Not), Code::Valid),
            (envelope(twice.encode_to_vec().into(), &[0, 1], EnvelopeDefect::Not), Code::IllegalWriteset),
            (envelope(Bytes::from_static(b"\xff"), &[0, 1], EnvelopeDefect::Not), Code::BadRwset),
            (Bytes::from_static(b"\xff"), Code::InvalidOtherReason),
        ];
        let (envelopes, expected): (Vec<Bytes>, Vec<Code>) = envelopes.into_iter().unzip();
        assert_eq!(chain.add(&envelopes), expected);
        // Every transaction that is on the ledger is a duplicate, unless an earlier check fails.
        let again: Vec<Code> = chain.add(&envelopes);
        let duplicates = expected.iter().map(|code| match code {
            Code::BadCommonHeader
            | Code::BadCreatorSignature
            | Code::BadProposalTxid
            | Code::InvalidEndorserTransaction
            | Code::InvalidOtherReason => *code,
            _ => Code::DuplicateTxid,
        });
        assert_eq!(again, duplicates.collect::<Vec<_>>());
    });
}

#[test]
fn of_two_with_one_id_in_a_block_the_first_that_is_endorsed_counts() {
    simulated(|| {
        let mut chain = TestChannel::new();
        let proposal = chain.proposal();
        let envelope =
            |endorsers: &[usize]| chain.envelope(&proposal, set("r a-", "ycsb"), endorsers, EnvelopeDefect::Not);
        let envelopes = [envelope(&[0]), envelope(&[0, 1]), envelope(&[1, 2])];
        let expected = [Code::EndorsementPolicyFailure, Code::Valid, Code::DuplicateTxid];
        assert_eq!(chain.add(&envelopes), expected);
    });
}

#[test]
fn blocks_that_do_not_follow_are_errors() {
    simulated(|| {
        let mut chain = TestChannel::new();
        let genesis = chain.members.genesis.clone();
        let skipping = Block::build(BlockNumber(2), Some(genesis.hash()), &[]).to_bytes();
        let unlinked = Block::build(BlockNumber(1), Some([7; 32]), &[]).to_bytes();
        let mut changed = Block::build(BlockNumber(1), Some(genesis.hash()), &[Bytes::from_static(b"xyz")]).to_bytes();
        changed = changed.iter().map(|byte| if *byte == b'y' { b'z' } else { *byte }).collect::<Vec<_>>().into();
        for block in [skipping, unlinked, changed, Bytes::from_static(b"\xff"), genesis.to_bytes()] {
            chain.oracle.add(&block).expect_err("it does not follow");
        }
    });
}

#[test]
fn hashes_are_those_of_fabrics_own_blocks() {
    let golden = |bytes: &'static [u8]| proto::common::Block::decode(bytes).expect("a golden block decodes");
    for (one, next) in [
        (
            &include_bytes!("../../../../proto/tests/golden/b0.block")[..],
            &include_bytes!("../../../../proto/tests/golden/b1.block")[..],
        ),
        (
            &include_bytes!("../../../../proto/tests/golden/b8.block")[..],
            &include_bytes!("../../../../proto/tests/golden/b9.block")[..],
        ),
    ] {
        let (one, next) = (golden(one).header.expect("a header"), golden(next).header.expect("a header"));
        assert_eq!(header_hash(&one)[..], next.previous_hash[..]);
    }
    // Computed by hand from the layout: no writes, one valid transaction, no previous hash.
    assert_eq!(commit_hash(&[0], &Default::default(), None), identity::sha256([&[1u8, 0][..]]));
}
