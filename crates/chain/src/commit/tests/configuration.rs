//! Tests of configuration blocks: when a new configuration takes effect, and which block ends the channel.

use base::rt::CancellationToken;
use base::rt::net::Parties;
use prost::Message as _;
use proto::common::{Envelope, Payload, SignatureHeader};

use super::*;
use crate::remote::{PeerTarget, RemotePeer, RemotePeerConfig, ServiceScope, serve_peer};
use crate::view::PeerView as _;

/// A block of a channel recorded from Fabric, as an orderer sent it.
pub(super) fn recorded(number: u64) -> Block {
    let path = format!("{}/../ledger/tests/fabric-channel/blocks/{number:04}.block", env!("CARGO_MANIFEST_DIR"));
    Block::parse(&std::fs::read(path).expect("recorded blocks are in the tree").into()).expect("Fabric wrote it")
}

/// Follows the recorded channel, whose first blocks change its configuration; `root` keeps what the peer commits.
pub(super) async fn follow_recorded(root: &Directory, listener: &mut Listener, from: u64) -> (Arc<Peer>, Link) {
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

pub(super) const RECORDED: &str = "goldchannel";

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
            target: PeerTarget::Node("links".to_owned()),
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
