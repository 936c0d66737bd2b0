//! Purges and waiting sets of a channel whose blocks are made here.

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::{Sim, Simulation};
use base::{BlockNumber, Bytes, Epoch, MspId, TxId, rt};
use identity::hex;
use ledger::hash::sha256;
use ledger::rwset::{PrivateSet, ReadWriteSet, ReadWriteSetRecorder, private_writes};
use ledger::transaction::proposal_hash;
use ledger::{Block, Hash};
use prost::Message;
use proto::common::{ChannelHeader, Envelope, Header, HeaderType, Payload, SignatureHeader};
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEndorsedAction, ChaincodeHeaderExtension, ChaincodeId,
    ChaincodeProposalPayload, ProposalResponsePayload, Response, Transaction, TransactionAction,
};
use storage::blocks::{BlockStore, BlockStoreConfig, Blocks, NO_PREVIOUS, NewBlock};
use storage::tables::ModelEngine;
use storage::{GroupSync, LocalPrivateRows, PrivateTable};

use super::*;
use crate::collect::BlockTransaction;
use crate::rows::{SETS, SWEEPS, WaitingSet};
use crate::settle::STAGED_BLOCKS_MAX;
use crate::{CollectionAccess, MemberPeers, PrivateChannel, PrivateStore, PrivateValues};

const VAULT: &str = "vault";
const PAIR: &str = "pair";
const OTHER: &str = "Org2MSP";
const VALID: u8 = 0;
const INVALID: u8 = 11;

/// One collection, of two organisations.
struct Definitions;

impl CollectionPolicies for Definitions {
    fn access(&self, contract: &str, collection: &str) -> Option<CollectionAccess> {
        let config = proto::protos::StaticCollectionConfig {
            member_orgs_policy: Some(proto::protos::CollectionPolicyConfig {
                payload: Some(proto::protos::collection_policy_config::Payload::SignaturePolicy(
                    identity::policy::parse("OR('Org1MSP.member', 'Org2MSP.member')").expect("a policy"),
                )),
            }),
            ..Default::default()
        };
        (contract == VAULT && collection == PAIR).then(|| CollectionAccess::of_definition(&config))
    }

    fn block_to_live(&self, _: &str, _: &str) -> u64 {
        0
    }

    fn expiring(&self) -> Vec<(String, String, u64)> {
        Vec::new()
    }

    fn is_member(&self, _: &MspId) -> bool {
        true
    }

    fn digest(&self) -> Hash {
        [0; 32]
    }
}

/// A transaction, with the private set that it commits to.
#[derive(Clone)]
struct TestTransaction {
    tx_id: TxId,
    public: Bytes,
    sets: Vec<PrivateSet>,
    envelope: Bytes,
}

impl TestTransaction {
    fn new(name: &str, write: impl FnOnce(&mut ReadWriteSetRecorder, &Arc<str>)) -> TestTransaction {
        let mut recorder = ReadWriteSetRecorder::default();
        write(&mut recorder, &VAULT.into());
        let (tx_id, sets) = (TxId::new(hex::encode(sha256(name.as_bytes()))), recorder.private_sets());
        let public = recorder.encode();
        let envelope = envelope(&tx_id, public.clone());
        TestTransaction { tx_id, public, sets, envelope }
    }

    /// Writes keys as their own values.
    fn put(name: &str, keys: &[&str]) -> TestTransaction {
        TestTransaction::new(name, |recorder, vault| {
            keys.iter()
                .for_each(|key| recorder.private_write(vault, PAIR, key, Bytes::copy_from_slice(key.as_bytes())));
        })
    }

    fn purge(name: &str, key: &str) -> TestTransaction {
        TestTransaction::new(name, |recorder, vault| recorder.private_purge(vault, PAIR, key))
    }
}

fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

fn envelope(tx_id: &TxId, results: Bytes) -> Bytes {
    let id = Some(ChaincodeId { name: VAULT.into(), ..ChaincodeId::default() });
    let channel_header = encode(&ChannelHeader {
        r#type: HeaderType::EndorserTransaction as i32,
        channel_id: "trade".into(),
        tx_id: tx_id.as_str().into(),
        extension: encode(&ChaincodeHeaderExtension { chaincode_id: id.clone(), ..Default::default() }),
        ..ChannelHeader::default()
    });
    let (creator, nonce) = (Bytes::from_static(b"creator"), Bytes::from_static(b"nonce"));
    let signature_header = encode(&SignatureHeader { creator, nonce });
    let response = Some(Response { status: 200, ..Response::default() });
    let action = ChaincodeAction { results, response, chaincode_id: id, ..ChaincodeAction::default() };
    let proposal = encode(&ChaincodeProposalPayload { input: Bytes::from_static(b"input"), ..Default::default() });
    let proposal_hash = proposal_hash(&channel_header, &signature_header, &proposal);
    let proposal_response_payload = encode(&ProposalResponsePayload {
        extension: encode(&action),
        proposal_hash: Bytes::copy_from_slice(&proposal_hash),
    });
    let action = ChaincodeActionPayload {
        chaincode_proposal_payload: proposal,
        action: Some(ChaincodeEndorsedAction { endorsements: Vec::new(), proposal_response_payload }),
    };
    let action = TransactionAction { header: signature_header.clone(), payload: encode(&action) };
    let data = encode(&Transaction { actions: vec![action] });
    let payload = encode(&Payload { header: Some(Header { channel_header, signature_header }), data });
    encode(&Envelope { payload, signature: Bytes::from_static(b"signature") })
}

/// A peer's tables and blocks, which outlast its processes.
struct TestPeer {
    store: PrivateStore,
    blocks: BlockStore,
    previous: Hash,
}

impl TestPeer {
    async fn new() -> TestPeer {
        let directory = async |name| Directory::open(name).await.expect("the simulated disk works");
        let engine = ModelEngine::open(directory("tables").await).await.expect("the directory is empty");
        let open =
            async |table| Arc::new(LocalPrivateRows::open(engine.as_ref(), "trade", table, 0).await.expect("it opens"));
        let store = PrivateStore::new(open(PrivateTable::Committed).await, open(PrivateTable::Transient).await);
        let opened = BlockStore::open(directory("blocks").await, GroupSync::new(), BlockStoreConfig::default()).await;
        let mut peer = TestPeer { store, blocks: opened.expect("the directory is empty").0, previous: NO_PREVIOUS };
        peer.append(&[]).await;
        peer
    }

    fn height(&self) -> u64 {
        Blocks::height(&self.blocks)
    }

    /// The task of a process that has just started.
    fn process(&self) -> Upkeep {
        let members = Arc::new(MemberPeers::default());
        let private = PrivateChannel::new("trade".into(), MspId::new("Org1MSP"), self.store.clone(), members);
        Upkeep { private: Arc::new(private), blocks: Arc::new(self.blocks.clone()) }
    }

    async fn append(&mut self, transactions: &[(&TestTransaction, u8)]) {
        let number = BlockNumber(self.height());
        let envelopes: Vec<Bytes> = transactions.iter().map(|(transaction, _)| transaction.envelope.clone()).collect();
        let block = Block::build(number, (number.get() > 0).then_some(self.previous), &envelopes);
        let parts: [Bytes; 3] = block.parts();
        let named: Vec<(TxId, u8)> =
            transactions.iter().map(|(transaction, code)| (transaction.tx_id.clone(), *code)).collect();
        let new = NewBlock {
            number,
            header_hash: block.hash(),
            previous_hash: self.previous,
            epoch: Epoch::default(),
            parts: &parts,
            transactions: &named,
        };
        Blocks::append(&self.blocks, new).await.expect("it continues the chain");
        Blocks::sync(&self.blocks).await.expect("the disk works");
        self.previous = block.hash();
    }

    /// Commits a block as the commit pipeline does.
    async fn commit(&mut self, transactions: &[(&TestTransaction, u8)]) {
        let sets: Vec<ReadWriteSet> = transactions
            .iter()
            .map(|(transaction, _)| ReadWriteSet::decode(transaction.public.clone()).expect("it was just encoded"))
            .collect();
        let transactions_of_block = (0_u32..).zip(transactions.iter().zip(&sets)).map(|(position, (given, set))| {
            BlockTransaction { position, tx_id: &given.0.tx_id, set, is_valid: given.1 == VALID }
        });
        let private = self.process().private;
        let rows = private.collect(self.height(), transactions_of_block, &Definitions).await.expect("the tables work");
        private.write(rows).await.expect("the tables work");
        self.append(transactions).await;
    }

    /// What another organisation sends.
    async fn receive(&self, transaction: &TestTransaction) {
        let (from, upkeep, height) = (MspId::new(OTHER), self.process(), self.height());
        let accepted = upkeep.private.accept(&from, &Definitions, height, &transaction.tx_id, &transaction.sets);
        accepted.await.expect("it comes from a member");
    }

    /// Does all work that is due in a process that has just started.
    async fn tidy_up(&self) {
        let upkeep = self.process();
        let mut laps = upkeep.laps();
        upkeep.complete_purges(&Definitions, self.height(), &mut laps).await.expect("the tables work");
        laps.go_on(&Definitions, self.height()).await.expect("the tables work");
    }

    /// The same in a process that ends at a fault point.
    async fn tidy_up_until(&self, sim: &Sim, fault_point: &str) {
        sim.inject_next(fault_point, 1);
        let ended = rt::timeout(Duration::from_millis(50), self.tidy_up()).await;
        assert!(ended.is_err(), "{fault_point} is passed");
    }

    /// The transactions whose sets wait.
    async fn waiting(&self) -> Vec<TxId> {
        let page = self.store.waiting(&[]).await.expect("the tables work");
        page.entries.iter().map(|entry| WaitingSet::of_key(&entry.key).expect("it is a set's").tx_id).collect()
    }

    /// The keys in the committed sets.
    async fn committed_keys(&self) -> Vec<String> {
        let mut found = Vec::new();
        for set in self.rows(SETS).await {
            found.extend(private_writes(&set).expect("it is a set").into_iter().map(|write| write.key));
        }
        found
    }

    /// The committed rows of a namespace.
    async fn rows(&self, namespace: &str) -> Vec<Bytes> {
        let [committed, _] = self.store.tables();
        let query = storage::tables::RangeQuery {
            namespace,
            start: &[],
            end: &[],
            through: BlockNumber(u64::MAX),
            limit: usize::MAX,
        };
        let page = committed.range(query).await.expect("the tables work");
        page.entries.into_iter().map(|entry| entry.value).collect()
    }

    /// Whether a table holds the key or its value, in any version that can still be read.
    async fn holds(&self, key: &str) -> bool {
        let contains = |bytes: &[u8]| bytes.windows(key.len()).any(|window| window == key.as_bytes());
        for table in self.store.tables() {
            for through in (0..=self.height()).chain([u64::MAX]) {
                for namespace in [SETS, "vault$$ppair"] {
                    let (start, end, through) = (&[][..], &[][..], BlockNumber(through));
                    let query = storage::tables::RangeQuery { namespace, start, end, through, limit: usize::MAX };
                    // The tables refuse to read what they have dropped.
                    let Ok(page) = table.range(query).await else { continue };
                    if page.entries.iter().any(|entry| contains(&entry.key) || contains(&entry.value)) {
                        return true;
                    }
                }
            }
        }
        false
    }
}

fn run<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce(Sim, TestPeer) -> F + Send + 'static) {
    let run = Simulation::new(3).run(|sim| async move {
        let peer = TestPeer::new().await;
        test(sim, peer).await;
    });
    run.expect("the run succeeds");
}

#[test]
fn the_sets_of_committed_transactions_leave_the_transient_table_whether_they_are_valid_or_not() {
    run(async |_, mut peer| {
        let [valid, invalid, later] = ["valid", "invalid", "later"].map(|name| TestTransaction::put(name, &[name]));
        for transaction in [&valid, &invalid, &later] {
            peer.receive(transaction).await;
        }
        peer.tidy_up().await;
        assert_eq!(peer.waiting().await.len(), 3, "nothing is committed");
        peer.commit(&[(&valid, VALID), (&invalid, INVALID)]).await;
        // A block that is stored, and not committed yet.
        let mut laps = peer.process().laps();
        laps.go_on(&Definitions, peer.height() - 1).await.expect("the tables work");
        assert_eq!(peer.waiting().await.len(), 3);
        laps.go_on(&Definitions, peer.height()).await.expect("the tables work");
        assert_eq!(peer.waiting().await, [later.tx_id]);
        assert_eq!(peer.committed_keys().await, ["valid", "invalid"]);
    });
}

#[test]
fn a_set_whose_transaction_was_not_ordered_waits_a_number_of_blocks() {
    run(async |_, mut peer| {
        let lost = TestTransaction::put("lost", &["a"]);
        peer.receive(&lost).await;
        let mut laps = peer.process().laps();
        let arrived = peer.height();
        laps.go_on(&Definitions, arrived + STAGED_BLOCKS_MAX).await.expect("the tables work");
        assert_eq!(peer.waiting().await, std::slice::from_ref(&lost.tx_id));
        laps.go_on(&Definitions, arrived + STAGED_BLOCKS_MAX + 1).await.expect("the tables work");
        assert!(peer.waiting().await.is_empty());
        // It may come again.
        peer.receive(&lost).await;
        assert_eq!(peer.waiting().await, std::slice::from_ref(&lost.tx_id));
        peer.commit(&[(&lost, VALID)]).await;
        assert_eq!(peer.committed_keys().await, ["a"]);
    });
}

#[test]
fn a_set_that_arrives_after_its_block_is_kept_if_it_is_missing_and_removed_otherwise() {
    run(async |_, mut peer| {
        let missing = TestTransaction::put("missing", &["a", "b"]);
        let (other, known) = (TestTransaction::put("other", &["x"]), TestTransaction::put("known", &["c"]));
        peer.receive(&known).await;
        peer.commit(&[(&known, VALID), (&missing, VALID)]).await;
        assert_eq!(peer.rows(MISSING).await.len(), 1);
        let purge = TestTransaction::purge("purge", "a");
        peer.receive(&purge).await;
        peer.commit(&[(&purge, VALID)]).await;
        peer.tidy_up().await;
        assert_eq!(peer.rows(MISSING).await.len(), 1, "nobody has sent it yet");

        // Another set under the missing one's name is no reason to stop waiting for it.
        peer.receive(&TestTransaction { sets: other.sets, ..missing.clone() }).await;
        peer.receive(&known).await;
        peer.tidy_up().await;
        assert!(peer.waiting().await.is_empty());
        assert_eq!(peer.rows(MISSING).await.len(), 1);

        peer.receive(&missing).await;
        peer.tidy_up().await;
        assert!(peer.waiting().await.is_empty());
        assert!(peer.rows(MISSING).await.is_empty());
        assert_eq!(peer.committed_keys().await, ["c", "b"]);
        let value = async |key| peer.store.value(VAULT, PAIR, key, 10).await.expect("the tables work");
        assert_eq!((value("a").await, value("b").await), (None, Some(Bytes::from_static(b"b"))));
    });
}

/// The processes of a peer end wherever they can between two steps; the last one finds the rest of the work.
#[test]
fn a_purge_leaves_nothing_in_any_table_wherever_processes_end() {
    for fault_points in [
        &[][..],
        &["private.sweep.sets"],
        &["private.sweep.values"],
        &["private.settle.adopted"],
        &["private.settle.removed"],
        &["private.sweep.waiting"],
        &["private.sweep.values", "private.settle.adopted", "private.settle.removed", "private.sweep.waiting"],
    ] {
        run(async move |sim, mut peer| {
            let key = "the purged key";
            let [known, late] = ["known", "late"].map(|name| TestTransaction::put(name, &[key]));
            peer.receive(&known).await;
            peer.commit(&[(&known, VALID), (&late, VALID)]).await;
            // A copy that other members send once more, and one that is missing.
            peer.receive(&known).await;
            peer.receive(&late).await;
            let purge = TestTransaction::purge("purge", key);
            // The peer lacks the set of the purge, which names the key.
            peer.commit(&[(&purge, VALID)]).await;
            assert!(peer.holds(key).await);
            for fault_point in fault_points {
                peer.tidy_up_until(&sim, fault_point).await;
                assert_eq!(peer.rows(SWEEPS).await.len(), 1, "{fault_point}: the purge is not complete");
            }
            peer.tidy_up().await;
            assert!(peer.rows(SWEEPS).await.is_empty(), "{fault_points:?}");
            assert!(!peer.holds(key).await, "{fault_points:?}");
            // The set of the purge is the one that is still missing.
            assert_eq!(peer.rows(MISSING).await.len(), 1);

            peer.receive(&known).await;
            peer.receive(&late).await;
            for fault_point in fault_points.iter().filter(|name| name.starts_with("private.settle")) {
                peer.tidy_up_until(&sim, fault_point).await;
            }
            peer.tidy_up().await;
            assert!(!peer.holds(key).await, "{fault_points:?}: it came once more");
        });
    }
}

/// A block's private data are written before the block. The purge was completed then, although sets of the block could still wait.
#[test]
fn a_purge_is_not_completed_before_its_block_is_committed() {
    run(async |_, mut peer| {
        let (put, purge) = (TestTransaction::put("put", &["the key"]), TestTransaction::purge("purge", "the key"));
        peer.receive(&put).await;
        peer.commit(&[(&put, VALID), (&purge, VALID)]).await;
        let upkeep = peer.process();
        let mut laps = upkeep.laps();
        let is_left = upkeep.complete_purges(&Definitions, peer.height() - 1, &mut laps).await;
        assert!(is_left.expect("the tables work"));
        assert_eq!((peer.rows(SWEEPS).await.len(), peer.waiting().await.len()), (1, 1));
        peer.tidy_up().await;
        assert!(peer.rows(SWEEPS).await.is_empty() && !peer.holds("the key").await);
    });
}
