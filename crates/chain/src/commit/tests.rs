//! Tests of the commit pipeline: restarts, replay, hostile orderers, waiting.

mod configuration;
mod definitions;
mod private_data;
mod recorded;
mod stores;

use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::net::{self, Link, Listener};
use base::rt::simulation::Simulation;
use base::rt::{self, production};
use base::{BlockNumber, Bytes, ErrorKind, TxId};
use block_transport::protocol::{DeliverRequest, DeliverResponse};
use ledger::Block;
use ledger::Code;
use ledger::block::OrdererMetadata;
use ledger::config::EndorsementRule;
use rules::access::ChannelPolicies;
use storage::tables::ModelEngine;

use super::pipeline::append_block;
use super::recent::CommittedBlock;
use super::replay::stored_updates;
use crate::Error;
use crate::channel::Channel;
use crate::endorse::{Endorse, EndorseError};
use crate::order::{Broadcast, CuttingMode, Orderer};
use crate::peer::{Peer, PeerSetup};
use crate::support::{
    CHANNEL, Client, Consortium, ConsortiumConfig, directory, orderer, orderer_address, orderer_options, peer,
    peer_options, submit,
};

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
    let definitions =
        [("basic", "1.0")].map(|(name, version)| (name.to_owned(), rules::definitions::by_channel_policy(version)));
    let rules = ChannelPolicies::new(config, definitions.into()).expect("the policies are in order");
    let block8 = Block::parse(&golden("b8.block")).expect("Fabric wrote it");
    let block9 = Block::parse(&golden("b9.block")).expect("Fabric wrote it");
    for block in [&block8, &block9] {
        let committed = CommittedBlock::of_stored(block.clone()).expect("it has a filter");
        for (transaction, envelope) in committed.transactions().iter().zip(block.envelopes()) {
            assert_eq!(transaction.code, Code::VALID);
            let examined = validation::verify::verify_transactions([envelope.clone()], &rules).remove(0);
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
            let hash = validation::block::commit_hash(&codes, &batch, Some(&previous));
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
            assert_eq!(refused.kind(), ErrorKind::Closed);
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
