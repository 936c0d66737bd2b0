//! Tests of ordering: which envelopes are rejected and how, what is in the log, and what peers get.

mod configuration;

use std::sync::Arc;
use std::time::Duration;

use base::admission::Principal;
use base::rt::disk::Directory;
use base::rt::simulation::Simulation;
use base::rt::{net, production};
use base::{Bytes, ErrorKind, event, rt};
use block_transport::protocol::{BLOCK_ACKNOWLEDGED, DeliverRequest, DeliverResponse, WINDOW_BLOCKS};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use ledger::config::EndorsementRule;
use ledger::{Block, Transaction};
use proto::common::{Envelope, HeaderType, Payload, Status};

use super::*;
use crate::order::broadcast::{AcknowledgeMode, CuttingMode};
use crate::support::{
    CHANNEL, Client, Consortium, ConsortiumConfig, ProposalOverrides, batch, encode, orderer, orderer_address,
    orderer_options,
};

fn consortium() -> Consortium {
    Consortium::create(ConsortiumConfig { batch: batch(3), ..ConsortiumConfig::seeded(1, EndorsementRule::Any) })
}

async fn root(scratch: &tempfile::TempDir) -> Directory {
    Directory::open(scratch.path()).await.expect("it exists")
}

/// A signed envelope whose data is this text.
fn message(client: &Client, shape: ProposalOverrides, text: &str) -> Bytes {
    let header = client.shaped(shape, "basic", "none", &[]).header;
    client.seal(encode(&Payload { header: Some(header), data: Bytes::copy_from_slice(text.as_bytes()) }))
}

/// A signed envelope of the usual shape whose data is this text.
fn plain(client: &Client, text: &str) -> Bytes {
    message(client, ProposalOverrides::default(), text)
}

/// An orderer with these settings, in the channel.
async fn orderer_with(consortium: &Consortium, root: &Directory, settings: BroadcastConfig) -> Arc<Orderer> {
    let mut options = orderer_options(consortium, root).await;
    options.settings = settings;
    let orderer = Orderer::open(options).await.expect("the orderer opens");
    orderer.join(&consortium.genesis).await.expect("the orderer joins");
    orderer
}

/// The texts of each block from block 1 on.
fn texts(orderer: &Orderer) -> Vec<Vec<String>> {
    let chain = orderer.channel(CHANNEL).expect("joined");
    (1..chain.height())
        .map(|number| {
            let block = chain.block(number).expect("the log reads").expect("it is durable");
            let block = Block::parse(&block).expect("the orderer wrote it");
            let text = |envelope| {
                let transaction = Transaction::decode(&envelope).expect("an envelope");
                String::from_utf8(transaction.data().to_vec()).expect("text")
            };
            block.envelopes().map(text).collect()
        })
        .collect()
}

async fn at_height(orderer: &Orderer, height: u64) {
    let mut durable = orderer.channel(CHANNEL).expect("joined").deliverable();
    let wait = durable.wait_for(|durable| *durable >= height);
    rt::timeout(Duration::from_secs(10), wait).await.expect("blocks are cut").expect("the chain runs");
}

/// Regression: any TLS certificate of any organisation was enough to receive every block of every channel. Links proved
/// their organisation, but the orderer did not check it.
#[test]
fn blocks_go_to_members_of_the_channel_and_to_nobody_else() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let orderer = orderer(&consortium, &root(&scratch).await).await;
        let members: Vec<String> = orderer.channel(CHANNEL).expect("joined").members();
        let first_reply = async |organization: &str| {
            let mut listener = net::listen("blocks-for-members").await.expect("the address is free");
            let mut near = net::connect("blocks-for-members").await.expect("it listens");
            let far = listener.accept().await.expect("it was connected to");
            let far = far.with_principal(Principal::new(organization, "a certificate"));
            let answering = rt::spawn(block_transport::serve_link(orderer.clone(), far)).abort_on_drop();
            near.send(DeliverRequest { channel: CHANNEL.to_owned(), from: 0 }.encode()).await.expect("it is served");
            let reply = rt::timeout(Duration::from_secs(10), near.receive()).await.expect("it answers");
            drop(answering);
            DeliverResponse::decode(reply.expect("it answers")).expect("a reply")
        };
        for member in &members {
            assert!(matches!(first_reply(member).await, DeliverResponse::Block(_)), "{member}");
        }
        let DeliverResponse::Rejection(reason) = first_reply("StrangerMSP").await else {
            panic!("a stranger was sent a block")
        };
        assert!(reason.contains("StrangerMSP is no member of channel"), "{reason}");
        orderer.stop().await;
    });
}

#[test]
fn envelopes_are_refused_with_fabrics_status() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let orderer = orderer(&consortium, &root(&scratch).await).await;
        let client = consortium.client();
        let stranger = IssuingOrganization::create("Org1MSP", "org1.example.com", &CertificateTerms::seeded([1; 32]))
            .expect("fine names");
        let stranger = Client { signer: stranger.issue(MemberRole::Client, "User1").expect("fine names") };
        let good = plain(&client, "good");
        let mut wrong = <Envelope as prost::Message>::decode(good.clone()).expect("just encoded");
        wrong.signature = client.signer.sign(b"other");
        let kind = |kind: HeaderType| {
            message(&client, ProposalOverrides { kind: kind as i32, ..ProposalOverrides::default() }, "kind")
        };
        let elsewhere = message(
            &client,
            ProposalOverrides { channel: "elsewhere".into(), ..ProposalOverrides::default() },
            "elsewhere",
        );
        let spoofed = ProposalOverrides {
            creator: Some(consortium.peers[0].serialized().clone()),
            ..ProposalOverrides::default()
        };
        // Regression: a small transaction with a field of 99 MiB that no limit counted. Two of them made a block that
        // no client could receive; six made a block that the log rejected, which ended ordering.
        let longer = [&good[..], b"\x7a\x01x"].concat().into();
        for (what, envelope, status) in [
            ("nothing", Bytes::new(), Status::BadRequest),
            ("garbage", Bytes::from_static(b"\x0a\xff"), Status::BadRequest),
            ("no payload", encode(&Envelope::default()), Status::BadRequest),
            ("a configuration", kind(HeaderType::Config), Status::BadRequest),
            ("an update", kind(HeaderType::ConfigUpdate), Status::BadRequest),
            ("an orderer's transaction", kind(HeaderType::OrdererTransaction), Status::BadRequest),
            ("another channel", elsewhere.clone(), Status::NotFound),
            ("a large one", plain(&client, &"x".repeat(1 << 20)), Status::BadRequest),
            ("one with more than counts", longer, Status::BadRequest),
            ("a stranger's", message(&stranger, ProposalOverrides::default(), "x"), Status::Forbidden),
            ("one in another's name", message(&client, spoofed, "x"), Status::Forbidden),
            ("a wrong signature", encode(&wrong), Status::Forbidden),
        ] {
            let refused = orderer.broadcast(CHANNEL, envelope).await.expect_err(what);
            assert_eq!((refused.status(), refused.kind()), (status, ErrorKind::Rejected), "{what}: {refused}");
        }
        let refused = orderer.broadcast("elsewhere", elsewhere).await.expect_err("not held");
        assert_eq!(refused.status(), Status::NotFound);
        orderer.broadcast(CHANNEL, good).await.expect("the good one is taken");
        orderer.stop().await;
    });
}

#[test]
fn an_orderer_counts_that_it_leads_until_it_does_not() {
    let run = Simulation::new(1).run(|_| async {
        let consortium = consortium();
        let root = Directory::open("root").await.expect("it is made");
        let orderer = orderer(&consortium, &root).await;
        orderer.broadcast(CHANNEL, plain(&consortium.client(), "x")).await.expect("it leads");
        at_height(&orderer, 2).await;
        let counted = || {
            let events = event::snapshot();
            (events.gauge("heddle_chain_orderers_leading"), events.counter("heddle_chain_leaderships_started_total"))
        };
        assert_eq!(counted(), (1, 1));
        orderer.stop().await;
        assert_eq!(counted(), (0, 1));
    });
    run.expect("the run succeeds");
}

#[test]
fn an_expired_creator_is_refused() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = Consortium::create(ConsortiumConfig {
            terms: CertificateTerms::valid(KeyKind::P256, 1_000_000_000, 1_100_000_000),
            ..ConsortiumConfig::seeded(1, EndorsementRule::Any)
        });
        let orderer = orderer(&consortium, &root(&scratch).await).await;
        let refused = orderer.broadcast(CHANNEL, plain(&consortium.client(), "late")).await;
        let refused = refused.expect_err("its certificate ended in 2004");
        assert_eq!(refused.status(), Status::BadRequest);
        assert!(refused.to_string().contains("expired"), "{refused}");
        orderer.stop().await;
    });
}

#[test]
fn blocks_chain_and_carry_the_orderers_signature() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        // The blocks that the limits make of seven messages.
        let settings = BroadcastConfig { cutting: CuttingMode::Limits, ..BroadcastConfig::default() };
        let orderer = orderer_with(&consortium, &root(&scratch).await, settings).await;
        let client = consortium.client();
        for number in 0..7 {
            orderer.broadcast(CHANNEL, plain(&client, &number.to_string())).await.expect("taken");
        }
        at_height(&orderer, 4).await;
        assert_eq!(texts(&orderer), [vec!["0", "1", "2"], vec!["3", "4", "5"], vec!["6"]]);
        let chain = orderer.channel(CHANNEL).expect("joined");
        let mut previous = None;
        for number in 0..4 {
            let block = Block::parse(&chain.block(number).expect("reads").expect("durable")).expect("a block");
            block.check_follows(number, previous.as_ref()).expect("it follows");
            block.check_data_hash().expect("it holds its envelopes");
            if number > 0 {
                block.verify_signatures(chain.policies().config()).expect("the orderer signed it");
            }
            previous = Some(block.hash());
        }
        orderer.stop().await;
    });
}

#[test]
fn a_restarted_orderer_goes_on_where_its_log_ends() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    // One thread, so that the orderer is stopped before any of its tasks has started.
    let runtime = production::Runtime::current_thread().expect("a runtime");
    runtime.block_on(async {
        let consortium = consortium();
        let root = root(&scratch).await;
        let client = consortium.client();
        for (round, expected) in [(0, 1), (1, 2), (2, 3)] {
            let orderer = orderer(&consortium, &root).await;
            assert_eq!(orderer.channel(CHANNEL).expect("joined").height(), expected);
            // Queued and not cut: stopping cuts it.
            let text = format!("round {round}");
            orderer.broadcast(CHANNEL, plain(&client, &text)).await.expect("taken");
            orderer.stop().await;
            let late = orderer.broadcast(CHANNEL, plain(&client, "late")).await;
            assert_eq!(late.expect_err("it has stopped").kind(), ErrorKind::Closed);
        }
        let orderer = orderer(&consortium, &root).await;
        assert_eq!(texts(&orderer), [["round 0"], ["round 1"], ["round 2"]]);
        orderer.stop().await;
    });
}

#[test]
fn durable_acknowledgements_come_after_the_block() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let settings = BroadcastConfig { acknowledge: AcknowledgeMode::Durable, ..BroadcastConfig::default() };
        let orderer = orderer_with(&consortium, &root(&scratch).await, settings).await;
        let client = consortium.client();
        orderer.broadcast(CHANNEL, plain(&client, "a")).await.expect("taken");
        assert_eq!(texts(&orderer), [["a"]]);
        orderer.stop().await;
    });
}

#[test]
fn a_full_queue_is_an_answer() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    // One thread, so that no other task empties the queue while this task does not wait.
    let runtime = production::Runtime::current_thread().expect("a runtime");
    runtime.block_on(async {
        let consortium = consortium();
        let settings =
            BroadcastConfig { queue_messages_max: 2, queue_wait_max: Duration::ZERO, ..BroadcastConfig::default() };
        let orderer = orderer_with(&consortium, &root(&scratch).await, settings).await;
        let client = consortium.client();
        for _ in 0..2 {
            orderer.broadcast(CHANNEL, plain(&client, "fits")).await.expect("there is room");
        }
        let refused = orderer.broadcast(CHANNEL, plain(&client, "one too many")).await;
        let refused = refused.expect_err("the queue is full");
        assert_eq!((refused.kind(), refused.status()), (ErrorKind::Retry, Status::ServiceUnavailable));
        orderer.stop().await;
    });
}

/// Regression: the queue was bounded by count only. 4096 envelopes of 90 MiB each could wait while the disk was busy,
/// more than any memory holds.
#[test]
fn a_queue_without_room_for_the_bytes_is_an_answer() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    // One thread, so that no other task empties the queue while this task does not wait.
    let runtime = production::Runtime::current_thread().expect("a runtime");
    runtime.block_on(async {
        let consortium = consortium();
        let settings =
            BroadcastConfig { queue_bytes_max: 100_000, queue_wait_max: Duration::ZERO, ..BroadcastConfig::default() };
        let orderer = orderer_with(&consortium, &root(&scratch).await, settings).await;
        let client = consortium.client();
        let large = |text: &str| plain(&client, &text.repeat(60_000));
        orderer.broadcast(CHANNEL, large("1")).await.expect("there is room");
        let refused = orderer.broadcast(CHANNEL, large("2")).await.expect_err("there is no room for two");
        assert_eq!((refused.kind(), refused.status()), (ErrorKind::Retry, Status::ServiceUnavailable));
        orderer.broadcast(CHANNEL, plain(&client, "small")).await.expect("it fits");
        at_height(&orderer, 2).await;
        orderer.broadcast(CHANNEL, large("3")).await.expect("what left the queue gave its room back");
        orderer.stop().await;
    });
}

#[test]
fn peers_get_blocks_from_where_they_ask_and_follow_the_tip() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let root = root(&scratch).await;
        let orderer = orderer(&consortium, &root).await;
        let client = consortium.client();
        let send = |text: &'static str| {
            let (orderer, envelope) = (Arc::clone(&orderer), plain(&client, text));
            async move { orderer.broadcast(CHANNEL, envelope).await.expect("taken") }
        };
        send("one").await;
        at_height(&orderer, 2).await;
        let address = orderer_address(&root);
        let mut link = net::connect(&address).await.expect("it listens");
        let request = DeliverRequest { channel: CHANNEL.to_owned(), from: 1 };
        link.send(request.encode()).await.expect("the link holds");
        for number in 1..4 {
            let Ok(DeliverResponse::Block(bytes)) =
                DeliverResponse::decode(link.receive().await.expect("the link holds"))
            else {
                panic!("a block was expected");
            };
            assert_eq!(Block::parse(&bytes).expect("a block").number().get(), number);
            send("more").await;
        }
        for bad in [
            DeliverRequest { channel: "elsewhere".to_owned(), from: 0 }.encode(),
            DeliverRequest { channel: CHANNEL.to_owned(), from: 100 }.encode(),
            Bytes::from_static(b"nonsense"),
            Bytes::new(),
        ] {
            let mut link = net::connect(&address).await.expect("it listens");
            link.send(bad).await.expect("the link holds");
            let reply = DeliverResponse::decode(link.receive().await.expect("the link holds"));
            assert!(matches!(reply, Ok(DeliverResponse::Rejection(_))), "{reply:?}");
            link.receive().await.expect_err("a refused link ends");
        }
        orderer.stop().await;
    });
}

#[test]
fn a_peer_that_takes_nothing_gets_a_windowful() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let root = root(&scratch).await;
        let orderer = orderer(&consortium, &root).await;
        let client = consortium.client();
        for _ in 0..3 * (WINDOW_BLOCKS + 2) {
            orderer.broadcast(CHANNEL, plain(&client, "x")).await.expect("taken");
        }
        at_height(&orderer, WINDOW_BLOCKS as u64 + 3).await;
        let mut link = net::connect(&orderer_address(&root)).await.expect("it listens");
        let request = DeliverRequest { channel: CHANNEL.to_owned(), from: 1 };
        link.send(request.encode()).await.expect("the link holds");
        for _ in 0..WINDOW_BLOCKS {
            link.receive().await.expect("the link holds");
        }
        let more = rt::timeout(Duration::from_millis(50), link.receive()).await;
        assert!(more.is_err(), "the window is full");
        link.send(Bytes::from_static(BLOCK_ACKNOWLEDGED)).await.expect("the link holds");
        link.receive().await.expect("one was taken, one comes");
        link.send(Bytes::from_static(b"nonsense")).await.expect("the link holds");
        let reply = DeliverResponse::decode(link.receive().await.expect("the link holds"));
        assert!(matches!(reply, Ok(DeliverResponse::Rejection(_))), "{reply:?}");
        orderer.stop().await;
    });
}

#[test]
fn a_channel_is_joined_once() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let consortium = consortium();
        let orderer = orderer(&consortium, &root(&scratch).await).await;
        orderer.join(&consortium.genesis).await.expect("joining again does nothing");
        let other = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::Any));
        let refused = orderer.join(&other.genesis).await.expect_err("another genesis block");
        assert!(matches!(refused, Error::ChannelExists(_)), "{refused}");
        orderer.stop().await;
    });
}

/// Regression: the directory of an orderer that orders alone was emptied. The orderer started a new chain, accepted and
/// acknowledged envelopes, and put them into blocks that no peer could take. An orderer whose directory was replaced by
/// an earlier copy built other blocks at numbers that peers already had.
#[test]
fn an_orderer_whose_log_is_older_than_its_note_does_not_start() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let root = root(&scratch).await;
        let consortium = consortium();
        let open = async || {
            let watermarks = Some(root.subdirectory("watermarks").await.expect("the directory can be made"));
            let options = OrdererSetup { watermarks, ..orderer_options(&consortium, &root).await };
            let orderer = Orderer::open(options).await?;
            orderer.join(&consortium.genesis).await.map(|()| orderer)
        };
        let order = async |orderer: &Orderer, text: &str| {
            let height = orderer.channel(CHANNEL).expect("joined").height();
            let envelope = plain(&consortium.client(), text);
            orderer.broadcast(CHANNEL, envelope).await.expect("there is room");
            at_height(orderer, height + 1).await;
        };
        let (log, copy) = (root.path().join("orderer"), root.path().join("copy"));
        let put_away = || base::durable::rename(&log, &copy).expect("the disk works");
        let first = open().await.expect("the first start");
        order(&first, "first").await;
        first.stop().await;
        put_away();
        let error = open().await.err().expect("it has lost a block");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let text = error.to_string();
        assert!(text.contains("has 1 blocks, and has had 2"), "{text}");
        assert!(text.contains(&format!("remove {}", root.path().join("watermarks").join(CHANNEL).display())), "{text}");

        // The way out that the error names, and then another block at the same number.
        std::fs::remove_file(root.path().join("watermarks").join(CHANNEL)).expect("it is there");
        let second = open().await.expect("nothing is noted any more");
        order(&second, "another").await;
        order(&second, "and one more").await;
        second.stop().await;
        std::fs::remove_dir_all(&log).expect("the disk works");
        base::durable::rename(&copy, &log).expect("the disk works");
        let error = open().await.err().expect("its log is an earlier copy");
        assert!(error.to_string().contains("has 2 blocks, and has had 3"), "{error}");

        // A log that has grown beyond the note, with other blocks.
        let watermarks = root.path().join("watermarks").join(CHANNEL);
        let noted = std::fs::read(&watermarks).expect("it is there");
        std::fs::remove_file(&watermarks).expect("it is there");
        let third = open().await.expect("nothing is noted any more");
        order(&third, "x").await;
        order(&third, "y").await;
        third.stop().await;
        base::durable::write(&watermarks, &noted, base::durable::FileAccess::Owner).expect("the disk works");
        let error = open().await.err().expect("it is another chain");
        assert!(error.to_string().contains("has another block 2 than it has had"), "{error}");
    });
}

/// Regression: with Raft the log is synced after 64 MiB. A note of the height that was durable by itself stayed that
/// far behind, and a note of the height that was shown would be ahead of the log after a crash.
#[test]
fn a_note_is_of_blocks_that_were_made_durable_for_it() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let (root, consortium) = (root(&scratch).await, consortium());
        let log_store = ChannelLogStore::open(&root, CHANNEL, GroupSync::new()).await.expect("the disk works");
        let notes = root.subdirectory("watermarks").await.expect("the disk works");
        let watermark = WatermarkFile::open(notes.clone(), CHANNEL).expect("there is none yet");
        let mut blocks = vec![consortium.genesis];
        for number in 1..4 {
            let before = blocks.last().expect("there is the first one").hash();
            blocks.push(Block::build(base::BlockNumber(number), Some(before), &[]));
        }
        for (position, block) in (0..).zip(&blocks) {
            log_store.append(position, block.to_bytes()).await.expect("it follows");
        }
        assert_eq!(log_store.durable(), 0, "nobody has synced");
        // Blocks that were not shown may be truncated.
        log_store.raise_watermark(&watermark, 3).await;
        let noted = WatermarkFile::open(notes, CHANNEL).expect("it is whole").current().await;
        assert_eq!((noted.height, noted.block_hash), (3, blocks[2].hash()));
        assert!(log_store.durable() >= 3, "{} blocks are durable", log_store.durable());
        log_store.truncate(3).await.expect("the disk works");
        log_store.check_watermark(&watermark).await.expect("it has what was noted");
        log_store.truncate(2).await.expect("the disk works");
        let error = log_store.check_watermark(&watermark).await.expect_err("it has less");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    });
}
