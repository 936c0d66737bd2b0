//! Tests of the commit pipeline: restarts, replay, hostile orderers, waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::rt::disk::Directory;
use base::rt::net::{self, Link, Listener, Parties};
use base::rt::simulation::Simulation;
use base::rt::{self, CancellationToken, production};
use base::{BlockNumber, Bytes, ErrorKind, TxId};
use block_transport::protocol::{DeliverRequest, DeliverResponse};
use ledger::Block;
use ledger::block::OrdererMetadata;
use ledger::config::EndorsementRule;
use prost::Message as _;
use proto::common::{Envelope, Payload, SignatureHeader};
use state::{Snapshot, UpdateBatch, WorldState};
use storage::blocks::{Blocks, ChainTip, NewBlock, StoredBlock, TransactionLocation};
use storage::tables::ModelEngine;

use super::pipeline::append_block;
use super::recent::CommittedBlock;
use super::replay::stored_updates;
use crate::Error;
use crate::access::ChannelPolicies;
use crate::channel::Channel;
use crate::endorse::{Endorse, EndorseError};
use crate::order::{Broadcast, CuttingMode, Orderer};
use crate::peer::{Peer, PeerSetup};
use crate::remote::{RemotePeer, RemotePeerConfig, ServiceScope, serve_peer};
use crate::stores::{ChannelStores, PeerStores};
use crate::support::{
    CHANNEL, Client, Consortium, ConsortiumConfig, directory, orderer, orderer_address, orderer_options, peer,
    peer_options, submit,
};
use crate::validate::Code;
use crate::view::PeerView as _;

async fn root(scratch: &tempfile::TempDir) -> Directory {
    Directory::open(scratch.path()).await.expect("it exists")
}

/// One organisation, which alone endorses.
fn one_organization() -> Consortium {
    Consortium::create(ConsortiumConfig::seeded(1, EndorsementRule::Any))
}

async fn engine(root: &Directory, folder: &str) -> Arc<ModelEngine> {
    ModelEngine::open(directory(root, folder).await).await.expect("the engine opens")
}

/// Opens a peer and joins the channel.
async fn joined(consortium: &Consortium, options: PeerSetup) -> Arc<Peer> {
    let peer = Peer::open(options).await.expect("the peer opens");
    peer.join(&consortium.genesis).await.expect("it joins");
    peer
}

fn channel(peer: &Peer) -> Arc<Channel> {
    peer.channel(CHANNEL).expect("joined")
}

async fn at_height(channel: &Channel, height: u64) {
    let mut committed = channel.committed();
    let wait = committed.wait_for(|committed| *committed >= height);
    rt::timeout(Duration::from_secs(20), wait).await.expect("blocks are committed").expect("the channel runs");
}

/// Creates accounts and moves money between them; returns the ids.
async fn traffic(client: &Client, peer: &Arc<Peer>, orderer: &Orderer, round: usize) -> Vec<TxId> {
    let mut ids = Vec::new();
    for number in 0..12 {
        let name = format!("c{round}-{number}");
        let args = [name.as_str(), name.as_str(), "100", "100"];
        ids.push(submit(client, &[peer], orderer, "smallbank", "create_account", &args).await);
    }
    for id in &ids {
        channel(peer).wait_committed(id).await.expect("the channel runs");
    }
    for number in 0..12 {
        let (from, to) = (format!("c{round}-{number}"), format!("c{round}-{}", (number + 1) % 12));
        // Run against one state, so that neighbouring transactions conflict.
        ids.push(submit(client, &[peer], orderer, "smallbank", "send_payment", &["1", &to, &from]).await);
    }
    ids
}

#[test]
fn peers_agree_whatever_they_did_between_blocks() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::Any));
        let root = root(&scratch).await;
        let client = consortium.client();
        let mut steady_orderer = orderer(&consortium, &root).await;
        let steady = peer(&consortium, &root, 0).await;
        let mut heights = vec![];
        for round in 0..3 {
            // The second peer runs for a part of each round only: it catches up, and replays when it opens.
            let visitor = peer(&consortium, &root, 1).await;
            let ids = traffic(&client, &steady, &steady_orderer, round).await;
            for id in &ids {
                channel(&steady).wait_committed(id).await.expect("the channel runs");
            }
            at_height(&channel(&visitor), channel(&steady).height().saturating_sub(1)).await;
            heights.push(channel(&visitor).height());
            visitor.stop().await.expect("the peer stops");
            // The orderer restarts too; the steady peer reconnects to it.
            steady_orderer.stop().await;
            steady_orderer = orderer(&consortium, &root).await;
        }
        let visitor = peer(&consortium, &root, 1).await;
        let height = channel(&steady).height();
        at_height(&channel(&visitor), height).await;
        let (steady_channel, visitor_channel) = (channel(&steady), channel(&visitor));
        for number in 0..height {
            let block = steady_channel.read_block(number).await.expect("reads").expect("committed");
            assert_eq!(
                visitor_channel.read_block(number).await.expect("reads").expect("committed"),
                block,
                "block {number}"
            );
        }
        let digest = steady_channel.state().digest().await.expect("reads");
        assert_eq!(visitor_channel.state().digest().await.expect("reads"), digest);

        // An empty peer receives all blocks from the orderer and reaches the same state.
        let tables = engine(&root, "new tables").await;
        let mut options = peer_options(&consortium, &root, 1, tables.clone()).await;
        let ledger = directory(&root, "new").await;
        options.stores = Arc::new(chain::LocalStores::new("new", ledger, storage::GroupSync::new(), tables));
        let newcomer = joined(&consortium, options).await;
        at_height(&channel(&newcomer), height).await;
        assert_eq!(channel(&newcomer).state().digest().await.expect("reads"), digest);

        // Conflicts occurred, so the filter matters; and every block has a commit hash.
        let mut codes = std::collections::BTreeSet::new();
        for number in 1..height {
            let block = steady_channel.committed_block(number).await.expect("reads").expect("committed");
            codes.extend(block.transactions().iter().map(|transaction| transaction.code));
            assert!(block.block().metadata().commit_hash().expect("well formed").is_some());
        }
        assert!(codes.contains(&Code::VALID) && codes.contains(&Code::MVCC_READ_CONFLICT), "{codes:?}");
        for peer in [steady, visitor, newcomer] {
            peer.stop().await.expect("the peer stops");
        }
        steady_orderer.stop().await;
    });
}

#[test]
fn a_peer_whose_state_is_lost_replays_its_blocks_without_an_orderer() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let orderer = orderer(&consortium, &root).await;
        let first = peer(&consortium, &root, 0).await;
        for id in traffic(&consortium.client(), &first, &orderer, 0).await {
            channel(&first).wait_committed(&id).await.expect("the channel runs");
        }
        let (height, digest) = (channel(&first).height(), channel(&first).state().digest().await.expect("reads"));
        first.stop().await.expect("the peer stops");
        orderer.stop().await;

        let tables = engine(&root, "empty tables").await;
        let again = Peer::open(peer_options(&consortium, &root, 0, tables).await).await.expect("the peer opens");
        assert_eq!(channel(&again).height(), height);
        assert_eq!(channel(&again).state().digest().await.expect("reads"), digest);
        again.stop().await.expect("the peer stops");
    });
}

#[test]
fn a_wait_ends_with_the_commit_however_it_is_timed() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let orderer = orderer(&consortium, &root).await;
        let peer = peer(&consortium, &root, 0).await;
        let client = consortium.client();
        let proposal = client.proposal("basic", "InitLedger", &[]);
        let response = peer.process(proposal.bytes.clone()).await.expect("in order");
        let envelope = client.envelope(&proposal, &[response]);
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let (channel, id) = (channel(&peer), proposal.tx_id.clone());
                rt::spawn(async move { channel.wait_committed(&id).await })
            })
            .collect();
        // Dropped before the commit.
        let here = channel(&peer);
        let gone = rt::timeout(Duration::from_millis(1), here.wait_committed(&proposal.tx_id));
        assert!(gone.await.is_err());
        assert!(channel(&peer).tx_status(&proposal.tx_id).await.expect("reads").is_none());
        orderer.broadcast(CHANNEL, envelope.clone()).await.expect("taken");
        for waiting in waiting {
            let status = waiting.await.expect("not aborted").expect("the channel runs");
            assert_eq!((status.code, status.block), (Code::VALID, 1));
        }
        // Sent again: the envelope is ordered and marked as a duplicate, and its first status stays.
        orderer.broadcast(CHANNEL, envelope).await.expect("taken");
        at_height(&channel(&peer), 3).await;
        let second = channel(&peer).committed_block(2).await.expect("reads").expect("committed");
        assert_eq!(second.transactions()[0].code, Code::DUPLICATE_TXID);
        assert_eq!(second.transactions()[0].tx_id, Some(proposal.tx_id.clone()));
        let status = channel(&peer).wait_committed(&proposal.tx_id).await.expect("the channel runs");
        assert_eq!((status.code, status.block), (Code::VALID, 1));

        let never = {
            let channel = channel(&peer);
            rt::spawn(async move { channel.wait_committed(&TxId::from("never")).await })
        };
        rt::yield_now().await;
        peer.stop().await.expect("the peer stops");
        never.await.expect("not aborted").expect_err("the channel has ended");
        orderer.stop().await;
    });
}

#[test]
fn repetitions_within_a_block_are_duplicates() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        // One block holds all three.
        let mut options = orderer_options(&consortium, &root).await;
        options.settings.cutting = CuttingMode::Limits;
        let orderer = Orderer::open(options).await.expect("the orderer opens");
        orderer.join(&consortium.genesis).await.expect("the orderer joins");
        orderer.serve(&orderer_address(&root)).await.expect("the address is free");
        let peer = peer(&consortium, &root, 0).await;
        let client = consortium.client();
        let proposal = client.proposal("basic", "InitLedger", &[]);
        let response = peer.process(proposal.bytes.clone()).await.expect("in order");
        let mut unendorsed = response.clone();
        unendorsed.endorsement = None;
        // The first transaction has no endorsement and is invalid, so the second one with the same id is no duplicate.
        for responses in [[unendorsed], [response.clone()], [response]] {
            orderer.broadcast(CHANNEL, client.envelope(&proposal, &responses)).await.expect("taken");
        }
        at_height(&channel(&peer), 2).await;
        let block = channel(&peer).recent(1).expect("it is new");
        let codes: Vec<Code> = block.transactions().iter().map(|transaction| transaction.code).collect();
        assert_eq!(codes, [Code::ENDORSEMENT_POLICY_FAILURE, Code::VALID, Code::DUPLICATE_TXID]);
        assert!(block.transactions().iter().all(|transaction| transaction.outcome.is_some()));
        peer.stop().await.expect("the peer stops");
        orderer.stop().await;
    });
}

/// An orderer that sends the blocks that the test chooses, to one peer at a time.
struct Hostile {
    listener: Listener,
}

impl Hostile {
    async fn accept(&mut self, from: u64) -> Link {
        let mut link = self.listener.accept().await.expect("it listens");
        let request = link.receive().await.expect("the peer asks");
        let expected = DeliverRequest { channel: CHANNEL.to_owned(), from };
        assert_eq!(DeliverRequest::decode(&request), Ok(expected));
        link
    }
}

#[test]
fn nothing_but_the_next_signed_block_is_taken() {
    let run = Simulation::new(1).run(|_| async {
        let consortium = one_organization();
        let root = Directory::open("root").await.expect("it is made");
        let listener = net::listen(&orderer_address(&root)).await.expect("the address is free");
        let mut hostile = Hostile { listener };
        let peer = peer(&consortium, &root, 0).await;
        let client = consortium.client();
        let envelope = client.seal(Bytes::from_static(b"no payload at all"));
        let metadata = OrdererMetadata { last_config: 0, consenter: Bytes::new() };
        let signed = |number, previous, envelopes: &[Bytes]| {
            Block::build(BlockNumber(number), previous, envelopes).sign(&consortium.orderer, &metadata)
        };
        let genesis = consortium.genesis.hash();
        let good = signed(1, Some(genesis), std::slice::from_ref(&envelope));
        let other = signed(1, Some(genesis), &[]);
        let swapped = ledger::EncodedBlock { data: other.encoded().data.clone(), ..good.encoded().clone() };
        let unsigned = Block::build(BlockNumber(1), Some(genesis), std::slice::from_ref(&envelope));
        let by_client = unsigned.sign(&client.signer, &metadata);
        for (what, bytes) in [
            ("garbage", Bytes::from_static(b"garbage")),
            ("nothing", Bytes::new()),
            ("a strange kind", Bytes::from_static(&[0, 9])),
            ("a refusal", DeliverResponse::Rejection("no".to_owned()).encode()),
            ("the genesis block again", consortium.genesis.to_bytes()),
            ("a block too far", signed(2, Some(good.hash()), &[]).to_bytes()),
            ("one with another past that nobody signed", Block::build(BlockNumber(1), Some([7; 32]), &[]).to_bytes()),
            ("one with other data", swapped.to_bytes()),
            ("one without a signature", unsigned.to_bytes()),
            ("one that a client signed", by_client.to_bytes()),
        ] {
            let mut link = hostile.accept(1).await;
            link.send(DeliverResponse::Keepalive.encode()).await.expect("the link holds");
            link.send(bytes).await.expect("the link holds");
            let ended = rt::timeout(Duration::from_secs(10), link.receive()).await;
            assert!(ended.is_ok_and(|ended| ended.is_err()), "{what} must end the link");
            assert_eq!(channel(&peer).height(), 1, "{what}");
        }
        // The peer takes the good block after all the bad ones, and marks its malformed transaction as invalid.
        let link = hostile.accept(1).await;
        link.send(good.to_bytes()).await.expect("the link holds");
        at_height(&channel(&peer), 2).await;
        let block = channel(&peer).recent(1).expect("it is new");
        assert_eq!(block.transactions()[0].code, Code::BAD_PAYLOAD);
        assert!(channel(&peer).failure().is_none());
        drop(link);
        let _next = hostile.accept(2).await;
        peer.stop().await.expect("the peer stops");
    });
    run.expect("the run succeeds");
}

/// Regression: all orderers of a volatile group lost power, and with it a block that a peer had received. The peer kept
/// asking for the block after it, reported itself healthy, and endorsed on state that the channel did not have.
#[test]
fn a_peer_whose_blocks_the_orderers_have_lost_says_so_and_stops() {
    let run = Simulation::new(1).run(|_| async {
        let consortium = one_organization();
        let root = Directory::open("root").await.expect("it is made");
        let metadata = OrdererMetadata { last_config: 0, consenter: Bytes::new() };
        let signed = |number, previous, envelopes: &[Bytes]| {
            Block::build(BlockNumber(number), Some(previous), envelopes).sign(&consortium.orderer, &metadata)
        };
        let envelope = consortium.client().seal(Bytes::from_static(b"no payload at all"));
        let shown = signed(1, consortium.genesis.hash(), std::slice::from_ref(&envelope));
        let another = signed(1, consortium.genesis.hash(), &[]);
        let (next, other) = (signed(2, shown.hash(), &[]), signed(2, another.hash(), &[]));
        let orderers = ["o1", "o2", "o3"].map(str::to_owned);
        // The reply of each orderer to a request for a block, one string after the other.
        let refusal = |height: u64| DeliverResponse::Rejection(format!("this orderer has {height} blocks")).encode();
        let mut listeners = Vec::new();
        for address in &orderers {
            listeners.push(Hostile { listener: net::listen(address).await.expect("the address is free") });
        }
        let tables = engine(&root, "tables").await;
        let mut options = peer_options(&consortium, &root, 0, tables).await;
        options.orderers = orderers.to_vec().into();
        let peer = joined(&consortium, options).await;
        listeners[0].accept(1).await.send(shown.to_bytes()).await.expect("the link holds");
        at_height(&channel(&peer), 2).await;
        // All orderers lose power: no orderer has the block.
        for which in [1, 2, 0] {
            assert_eq!(channel(&peer).stalled(), None);
            let mut link = listeners[which].accept(2).await;
            link.send(refusal(1)).await.expect("the link holds");
            let _ended = link.receive().await;
        }
        rt::sleep(Duration::from_millis(1)).await;
        let reason = channel(&peer).stalled().expect("all have refused");
        assert!(reason.contains("this orderer has 1 blocks"), "{reason}");
        // One orderer continues without the block, another has it after all: the peer continues.
        let mut link = listeners[1].accept(2).await;
        link.send(other.to_bytes()).await.expect("the link holds");
        assert!(link.receive().await.is_err(), "it is left");
        listeners[2].accept(2).await.send(next.to_bytes()).await.expect("the link holds");
        at_height(&channel(&peer), 3).await;
        assert_eq!(channel(&peer).stalled(), None);
        let (next, other) = (signed(3, next.hash(), &[]), signed(3, other.hash(), &[]));
        // Two of three orderers fork, one of them twice before: that is a majority.
        for which in [0, 1, 2, 0] {
            let mut link = listeners[which].accept(3).await;
            assert!(channel(&peer).failure().is_none());
            if which == 0 {
                link.send(other.to_bytes()).await.expect("the link holds");
                let _ended = link.receive().await;
            }
        }
        let link = listeners[1].accept(3).await;
        assert!(channel(&peer).failure().is_none(), "one orderer may be wrong");
        link.send(other.to_bytes()).await.expect("the link holds");
        rt::timeout(Duration::from_secs(10), channel(&peer).stopped()).await.expect("it stops");
        let failure = channel(&peer).failure().expect("it has an error");
        assert!(matches!(&*failure, Error::OtherChain { block: 3, .. }), "{failure}");
        let proposal = consortium.client().proposal("smallbank", "create_account", &["1", "a", "1", "1"]);
        let refused = peer.process(proposal.bytes).await.map(drop).expect_err("its state is not the channel's");
        assert!(matches!(refused, EndorseError::ChannelStopped { .. }), "{refused}");
        drop(next);
        let _ = peer.stop().await;
    });
    run.expect("the run succeeds");
}

#[test]
fn blocks_that_fabric_wrote_are_read_as_committed() {
    let golden = |name: &str| {
        let path = format!("{}/../proto/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
        Bytes::from(std::fs::read(path).expect("golden blocks are in the tree"))
    };
    let genesis = Block::parse(&golden("b0.block")).expect("Fabric wrote it");
    let config = Arc::new(ledger::ChannelConfig::from_block(&genesis).expect("Fabric wrote it"));
    let definitions = [("basic", "1.0")].map(|(name, version)| {
        let definition = crate::access::ContractDefinition { version: version.to_owned(), ..Default::default() };
        (name.to_owned(), definition)
    });
    let rules = ChannelPolicies::new(config, definitions.into()).expect("the policies are in order");
    let block8 = Block::parse(&golden("b8.block")).expect("Fabric wrote it");
    let block9 = Block::parse(&golden("b9.block")).expect("Fabric wrote it");
    for block in [&block8, &block9] {
        let committed = CommittedBlock::of_stored(block.clone()).expect("it has a filter");
        for (transaction, envelope) in committed.transactions().iter().zip(block.envelopes()) {
            assert_eq!(transaction.code, Code::VALID);
            let examined = crate::validate::verify::verify_transaction(&envelope, &rules);
            let name = examined.outcome.as_ref().and_then(|outcome| outcome.chaincode()).expect("it names one");
            // The chaincode's name in the golden ledger decides whether it is one of ours; the transaction is
            // well-formed in any case.
            assert_eq!(examined.form, Code::VALID);
            assert!(matches!(examined.endorsement, Code::VALID | Code::INVALID_CHAINCODE), "{name:?}");
            assert_eq!(examined.tx_id, transaction.tx_id);
        }
        // The commit hash is the one that Fabric's own peer computed, given the previous one.
        let batch = stored_updates(block).expect("it reads");
        assert!(!batch.is_empty());
        let previous = block8.metadata().commit_hash().expect("well formed").expect("it has one");
        if block.number().get() == 9 {
            let codes: Vec<Code> = block.metadata().filter().iter().map(|code| Code(*code)).collect();
            let hash = crate::validate::block::commit_hash(&codes, &batch, Some(&previous));
            assert_eq!(Some(hash), block.metadata().commit_hash().expect("well formed"));
        }
    }
}

#[test]
fn the_savepoint_follows_the_height() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let orderer = orderer(&consortium, &root).await;
        let tables = engine(&root, "tables0").await;
        let mut options = peer_options(&consortium, &root, 0, tables).await;
        options.settings.commit.persist_interval_blocks = 2;
        options.settings.commit.replay_blocks_max = 3;
        let peer = joined(&consortium, options).await;
        for number in 0..8 {
            let name = number.to_string();
            let args = [name.as_str(), "blue", "5", "Tom", "300"];
            let id = submit(&consortium.client(), &[&peer], &orderer, "basic", "CreateAsset", &args).await;
            channel(&peer).wait_committed(&id).await.expect("the channel runs");
            let channel = channel(&peer);
            // The stage that publishes may be one block ahead of the wait for the savepoint.
            assert!(channel.height() - channel.state().savepoint() <= 4);
        }
        peer.stop().await.expect("the peer stops");
        orderer.stop().await;
    });
}

/// Regression: a peer whose pipeline had failed kept endorsing on the state of that moment, and kept answering queries
/// from it.
#[test]
fn a_peer_whose_pipeline_failed_runs_nothing_on_its_old_state() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let client = consortium.client();
        let orderer = orderer(&consortium, &root).await;
        let peer = peer(&consortium, &root, 0).await;
        let account = |name: &'static str| client.proposal("smallbank", "create_account", &[name, name, "1", "1"]);
        let first = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["1", "a", "1", "1"]).await;
        channel(&peer).wait_committed(&first).await.expect("the channel runs");

        // Another writer appends to the peer's store, which then rejects what the peer appends.
        let tip = channel(&peer).store().tip();
        let strange = Block::build(BlockNumber(tip.height), Some(tip.header_hash), &[]);
        append_block(channel(&peer).store().as_ref(), &strange, &[]).await.expect("it follows");
        let second = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["2", "b", "1", "1"]).await;
        let ended = rt::timeout(Duration::from_secs(20), channel(&peer).wait_committed(&second)).await;
        assert!(matches!(ended, Ok(Err(Error::Stopped))), "{ended:?}");
        for refused in
            [peer.process(account("3").bytes).await.map(drop), peer.evaluate(account("4").bytes).await.map(drop)]
        {
            let refused = refused.expect_err("the state is old");
            assert!(matches!(&refused, EndorseError::ChannelStopped { channel, .. } if channel == CHANNEL));
            assert_eq!(refused.kind(), base::ErrorKind::Closed);
            assert!(refused.to_string().contains("operator"), "{refused}");
        }
        let height = client.proposal("qscc", "GetChainInfo", &[CHANNEL]);
        peer.evaluate(height.bytes).await.expect("what is committed can still be read");
        orderer.stop().await;
        let _ = peer.stop().await;
    });
}

/// Regression: on a full disk orderer and peer waited, and only their logs said so.
#[test]
fn a_channel_that_waits_for_its_disk_says_so() {
    let run = Simulation::new(1).run(|sim| async move {
        let node = sim.node("both");
        let disk = node.disk();
        let both = node.spawn(async move {
            let consortium = one_organization();
            let root = Directory::open("root").await.expect("it is made");
            let client = consortium.client();
            let orderer = orderer(&consortium, &root).await;
            let peer = peer(&consortium, &root, 0).await;
            let chain = orderer.channel(CHANNEL).expect("joined");
            assert_eq!((chain.stalled(), channel(&peer).stalled()), (None, None));
            disk.fill();
            let id = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["1", "a", "1", "1"]).await;
            rt::sleep(Duration::from_secs(1)).await;
            let reason = chain.stalled().expect("there is no room");
            assert!(reason.starts_with("a block cannot be stored yet: "), "{reason}");
            assert!(chain.failure().is_none(), "it waits");
            disk.set_capacity(None);
            channel(&peer).wait_committed(&id).await.expect("there is room");
            assert_eq!((chain.stalled(), channel(&peer).stalled()), (None, None));
            peer.stop().await.expect("the peer stops");
            orderer.stop().await;
        });
        both.await.expect("it runs to its end");
    });
    run.expect("the run succeeds");
}

/// A state whose store has materialised more blocks than are applied here, as a storage node does by itself.
struct Ahead(Arc<dyn WorldState>);

#[async_trait]
impl WorldState for Ahead {
    fn height(&self) -> u64 {
        self.0.height()
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.0.snapshot()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), state::Error> {
        self.0.apply(number, batch).await
    }

    async fn persist(&self) -> Result<u64, state::Error> {
        self.0.persist().await
    }

    fn savepoint(&self) -> u64 {
        self.0.height() + 3
    }

    async fn digest(&self) -> Result<[u8; 32], state::Error> {
        self.0.digest().await
    }
}

struct AheadStores(Arc<dyn PeerStores>);

#[async_trait]
impl PeerStores for AheadStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        self.0.channels().await
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let ChannelStores { blocks, state, history } = self.0.open(channel).await?;
        Ok(ChannelStores { blocks, state: Arc::new(Ahead(state)), history })
    }
}

/// Regression: a storage node materialised blocks that were durable and that its peer had not applied yet. The peer's
/// last stage subtracted the savepoint from the smaller height, and the channel ended with a panic.
#[test]
fn a_savepoint_ahead_of_what_is_applied_is_no_trouble() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = one_organization();
        let root = root(&scratch).await;
        let client = consortium.client();
        let orderer = orderer(&consortium, &root).await;
        let engine = engine(&root, "tables").await;
        let mut options = peer_options(&consortium, &root, 0, engine).await;
        options.stores = Arc::new(AheadStores(options.stores));
        let peer = joined(&consortium, options).await;
        for account in ["a", "b", "c"] {
            let args = [account, account, "1", "1"];
            let id = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &args).await;
            channel(&peer).wait_committed(&id).await.expect("the channel runs");
        }
        // The stage continues after the answer.
        let height = channel(&peer).height() + 1;
        let id = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["d", "d", "1", "1"]).await;
        channel(&peer).wait_committed(&id).await.expect("the channel runs");
        at_height(&channel(&peer), height).await;
        assert!(channel(&peer).failure().is_none());
        peer.stop().await.expect("the peer stops");
        orderer.stop().await;
    });
}

/// A block store that may be away: it then accepts as many blocks as it has space for, and none becomes durable.
struct Remote {
    inner: Arc<dyn Blocks>,
    is_away: Arc<AtomicBool>,
    has_room: bool,
}

impl Remote {
    fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Blocks for Remote {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), storage::Error> {
        if self.is_away() && !self.has_room {
            std::future::pending::<()>().await;
        }
        self.inner.append(block).await
    }

    async fn sync(&self) -> Result<u64, storage::Error> {
        if self.is_away() {
            std::future::pending::<()>().await;
        }
        self.inner.sync().await
    }

    fn tip(&self) -> ChainTip {
        self.inner.tip()
    }

    fn durable_height(&self) -> u64 {
        self.inner.durable_height()
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.inner.subscribe_durable()
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, storage::Error> {
        self.inner.read(number).await
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, storage::Error> {
        self.inner.read_stored(number).await
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, storage::Error> {
        self.inner.read_page(from, limit).await
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, storage::Error> {
        self.inner.transactions(number).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, storage::Error> {
        self.inner.number_by_hash(header_hash).await
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, storage::Error> {
        self.inner.find_transactions(ids).await
    }

    async fn close(&self) -> Result<(), storage::Error> {
        self.inner.close().await
    }
}

struct RemoteStores {
    inner: Arc<dyn PeerStores>,
    is_away: Arc<AtomicBool>,
    has_room: bool,
}

#[async_trait]
impl PeerStores for RemoteStores {
    async fn channels(&self) -> Result<Vec<String>, Error> {
        self.inner.channels().await
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, Error> {
        let ChannelStores { blocks, state, history } = self.inner.open(channel).await?;
        let blocks = Remote { inner: blocks, is_away: self.is_away.clone(), has_room: self.has_room };
        Ok(ChannelStores { blocks: Arc::new(blocks), state, history })
    }
}

/// Runs an orderer and a peer with a committed transaction over a remote store. From then on the store is away. Sends
/// another transaction, and then runs `what` on the peer.
fn with_a_store_away<F>(has_room: bool, what: impl FnOnce(Arc<Peer>) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let run = Simulation::new(1).run(move |sim| async move {
        let both = sim.node("both").spawn(async move {
            let consortium = one_organization();
            let root = Directory::open("root").await.expect("it is made");
            let client = consortium.client();
            let orderer = orderer(&consortium, &root).await;
            let engine = engine(&root, "tables").await;
            let mut options = peer_options(&consortium, &root, 0, engine).await;
            let is_away = Arc::new(AtomicBool::new(false));
            options.stores = Arc::new(RemoteStores { inner: options.stores, is_away: is_away.clone(), has_room });
            let peer = joined(&consortium, options).await;
            let first = submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["1", "a", "1", "1"]).await;
            channel(&peer).wait_committed(&first).await.expect("the channel runs");
            is_away.store(true, Ordering::Relaxed);
            submit(&client, &[&peer], &orderer, "smallbank", "create_account", &["2", "b", "1", "1"]).await;
            rt::sleep(Duration::from_secs(1)).await;
            what(peer).await;
            orderer.stop().await;
        });
        both.await.expect("it runs to its end");
    });
    run.expect("the run succeeds");
}

/// Regression: the storage node of a peer was away, and the peer's stop waited for it for ever.
#[test]
fn a_peer_stops_while_its_storage_is_away() {
    with_a_store_away(true, |peer| async move {
        let stopped = rt::timeout(Duration::from_secs(15), peer.stop()).await.expect("it stops");
        assert_eq!(stopped.map_err(|error| error.kind()), Err(ErrorKind::Ambiguous));
    });
    with_a_store_away(false, |peer| async move {
        let stopped = rt::timeout(Duration::from_secs(1), peer.stop()).await.expect("it stops at once");
        stopped.expect("what was taken is durable");
    });
}

/// Regression: a compute node was stopped while it started as the primary. It forgot its peer, whose channel kept
/// running.
#[test]
fn the_channels_of_a_peer_that_is_dropped_end() {
    with_a_store_away(true, |peer| async move {
        let (here, channel) = (channel(&peer), Arc::downgrade(&channel(&peer)));
        drop(peer);
        rt::timeout(Duration::from_secs(1), here.stopped()).await.expect("it ends");
        drop(here);
        rt::sleep(Duration::from_secs(15)).await;
        assert_eq!(channel.strong_count(), 0, "nothing holds it");
    });
}

/// A block of a channel recorded from Fabric, as an orderer sent it.
fn recorded(number: u64) -> Block {
    let path = format!("{}/../ledger/tests/fabric-channel/blocks/{number:04}.block", env!("CARGO_MANIFEST_DIR"));
    Block::parse(&std::fs::read(path).expect("recorded blocks are in the tree").into()).expect("Fabric wrote it")
}

/// Follows the recorded channel, whose first blocks change its configuration; `root` keeps what the peer commits.
async fn follow_recorded(root: &Directory, listener: &mut Listener, from: u64) -> (Arc<Peer>, Link) {
    let consortium = one_organization();
    let mut options = peer_options(&consortium, root, 0, engine(root, "tables").await).await;
    options.orderers = vec!["fabric".to_owned()].into();
    let peer = Peer::open(options).await.expect("the peer opens");
    peer.join(&recorded(0)).await.expect("it joins");
    let mut link = listener.accept().await.expect("it listens");
    let request = DeliverRequest::decode(&link.receive().await.expect("the peer asks"));
    assert_eq!(request, Ok(DeliverRequest { channel: RECORDED.to_owned(), from }));
    (peer, link)
}

const RECORDED: &str = "goldchannel";

#[test]
fn configurations_take_effect_in_the_order_of_blocks_and_after_a_restart() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let mut listener = net::listen("fabric").await.expect("the address is free");
        let (peer, link) = follow_recorded(&root, &mut listener, 1).await;
        let channel = |peer: &Peer| peer.channel(RECORDED).expect("joined");
        assert_eq!(channel(&peer).config().sequence(), 0);
        for number in 1..=2 {
            link.send(recorded(number).to_bytes()).await.expect("the link holds");
        }
        at_height(&channel(&peer), 3).await;
        assert_eq!(channel(&peer).config().sequence(), 2);
        peer.stop().await.expect("the peer stops");
        drop((peer, link));

        let (peer, link) = follow_recorded(&root, &mut listener, 3).await;
        assert_eq!(channel(&peer).config().sequence(), 2);
        assert_eq!(channel(&peer).config().batch().messages_max, 10);
        let (anyone, stop) = (Parties::anyone(), CancellationToken::new());
        let serving = serve_peer(peer.clone(), ServiceScope::Own, "links", &anyone, stop.clone()).await;
        let serving = serving.expect("the address is free");
        let gateway = RemotePeer::new(RemotePeerConfig {
            name: "peer".to_owned(),
            addresses: vec!["links".to_owned()],
            parties: anyone,
            definitions: Default::default(),
        });
        let shown = async |sequence| {
            let config = || Some(gateway.channel(RECORDED)?.policies().config().sequence());
            while config() != Some(sequence) {
                rt::sleep(Duration::from_millis(10)).await;
            }
        };
        rt::timeout(Duration::from_secs(20), shown(2)).await.expect("the gateway learns it");
        link.send(recorded(3).to_bytes()).await.expect("the link holds");
        at_height(&channel(&peer), 4).await;
        rt::timeout(Duration::from_secs(20), shown(3)).await.expect("a notice reports the change");
        stop.cancel();
        serving.await.expect("it ends");
        assert_eq!(channel(&peer).config().batch().messages_max, 12);
        for number in 1..=3 {
            let stored = channel(&peer).read_block(number).await.expect("reads").expect("committed");
            let (stored, fabrics) = (Block::parse(&stored).expect("stored here"), recorded(number));
            assert_eq!(stored.metadata().filter(), fabrics.metadata().filter());
            assert_eq!(stored.metadata().commit_hash(), fabrics.metadata().commit_hash(), "block {number}");
            let header = ledger::Transaction::decode(&fabrics.envelope(0)).expect("Fabric wrote it");
            assert_eq!(header.header().tx_id(), "", "an orderer gives a configuration no id");
            let found = channel(&peer).tx_status(&header.header().indexed_tx_id()).await.expect("reads");
            assert_eq!(found.map(|status| (status.block, status.code)), Some((number, Code::VALID)));
        }
        let row = channel(&peer).state().snapshot().get("", ledger::config::CONFIG_KEY).await.expect("reads");
        assert_eq!(row.expect("it is there").version, base::Version::new(3, 0));
        peer.stop().await.expect("the peer stops");
    });
    run.expect("the run succeeds");
}

#[test]
fn a_configuration_that_nobody_asked_for_ends_the_channel() {
    let run = Simulation::new(1).run(|_| async {
        let root = Directory::open("root").await.expect("it is made");
        let mut listener = net::listen(&orderer_address(&root)).await.expect("the address is free");
        let consortium = one_organization();
        let peer = peer(&consortium, &root, 0).await;
        let mut link = listener.accept().await.expect("it listens");
        link.receive().await.expect("the peer asks");
        // The orderer signs the configuration of the genesis block once more.
        let genesis = ledger::Transaction::decode(&consortium.genesis.envelope(0)).expect("made here");
        let header = proto::common::Header {
            channel_header: Bytes::copy_from_slice(genesis.header().channel_header()),
            signature_header: SignatureHeader {
                creator: consortium.orderer.serialized().clone(),
                nonce: Bytes::from_static(b"nonce"),
            }
            .encode_to_vec()
            .into(),
        };
        let payload = Bytes::from(Payload { header: Some(header), data: genesis.data() }.encode_to_vec());
        let signature = consortium.orderer.sign(&payload);
        let envelope = Bytes::from(Envelope { payload, signature }.encode_to_vec());
        let signed = |number: u64, previous, envelopes: &[Bytes]| {
            let metadata = OrdererMetadata { last_config: 0, consenter: Bytes::new() };
            Block::build(BlockNumber(number), Some(previous), envelopes).sign(&consortium.orderer, &metadata)
        };
        // Beside another transaction it is invalid and changes nothing.
        let other = consortium.client().seal(Bytes::from_static(b"no payload at all"));
        let both = signed(1, consortium.genesis.hash(), &[envelope.clone(), other]);
        link.send(both.to_bytes()).await.expect("the link holds");
        at_height(&channel(&peer), 2).await;
        let stored = channel(&peer).read_block(1).await.expect("reads").expect("committed");
        let codes = Block::parse(&stored).expect("stored here").metadata().filter().clone();
        assert_eq!(codes[0], Code::INVALID_CONFIG_TRANSACTION.0);
        // Alone it would take effect.
        link.send(signed(2, both.hash(), &[envelope]).to_bytes()).await.expect("the link holds");
        rt::timeout(Duration::from_secs(10), channel(&peer).stopped()).await.expect("it stops");
        let failure = channel(&peer).failure().expect("it has an error");
        assert!(matches!(&*failure, Error::Configuration { block: 2, .. }), "{failure}");
        assert_eq!((channel(&peer).height(), channel(&peer).store().height()), (2, 2));
        let _ = peer.stop().await;
    });
    run.expect("the run succeeds");
}
