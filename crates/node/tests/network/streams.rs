//! Streams of commit statuses, events and blocks: their start, their end, and the clients that may read them. The answers
//! to bad requests for them are in [`answers`](super::answers).

use std::time::Duration;

use crate::common::{CHANNEL, TestNetwork, args, config};
use base::Bytes;
use gateway::client::{BlockView, GatewayClient, GrpcCode, GrpcConnection, StartPosition};
use identity::deny::{Denial, DeniedCertificate};
use identity::issue::CertificateTerms;
use identity::{DenyList, KeyKind};
use proto::common::Status as Answer;
use proto::protos::deliver_response::Type;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Generous: the test measures nothing, and only a hanging test must fail.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);

async fn create(client: &GatewayClient, id: &str) -> gateway::client::CommittedTransaction {
    let committed = client.transact(CHANNEL, "events", "CreateAsset", &args(&[id, "blue", "5", "Ada", "300"])).await;
    let committed = committed.unwrap_or_else(|status| panic!("{status}"));
    assert!(committed.commit.is_valid(), "{committed:?}");
    committed
}

#[tokio::test(flavor = "multi_thread")]
async fn events_start_where_the_client_says_and_leave_out_what_is_invalid() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let mut following =
        client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a stream");
    let first = create(&client, "a").await;
    let second = create(&client, "b").await;
    let event = following.next().await.expect("events").expect("events");
    assert_eq!((event.block_number, &event.events[0].tx_id), (first.commit.block, &first.tx_id));
    assert_eq!(event.events[0].event_name, "CreateAsset");
    assert!(event.events[0].payload.starts_with(b"{"));

    // Two endorsed against the same state: the later one conflicts, and its event never shows.
    let transfer = |owner: &str| client.proposal(CHANNEL, "events", "TransferAsset", &args(&["a", owner])).sign();
    let (winner, loser) = (transfer("Grace"), transfer("Edsger"));
    let winning = client.endorse(&winner).await.expect("an endorsement");
    let losing = client.endorse(&loser).await.expect("an endorsement");
    client.submit(&winning).await.expect("an orderer");
    assert!(client.commit_status(CHANNEL, winner.tx_id()).await.expect("a commit").is_valid());
    client.submit(&losing).await.expect("an orderer");
    assert_eq!(client.commit_status(CHANNEL, loser.tx_id()).await.expect("a commit").code, 11);
    let last = create(&client, "c").await;

    let mut replayed =
        client.chaincode_events(CHANNEL, "events", StartPosition::Block(0), None).await.expect("a stream");
    let mut seen = Vec::new();
    while seen.last() != Some(&last.tx_id) {
        let events = replayed.next().await.expect("events").expect("events");
        seen.extend(events.events.into_iter().map(|event| event.tx_id));
    }
    assert_eq!(seen, [&first.tx_id, &second.tx_id, winner.tx_id(), &last.tx_id]);

    let mut after = client
        .chaincode_events(CHANNEL, "events", StartPosition::Block(0), Some(&second.tx_id))
        .await
        .expect("a stream");
    let event = after.next().await.expect("events").expect("events");
    assert_eq!(event.events[0].tx_id, winner.tx_id());
    let mut other = client.chaincode_events(CHANNEL, "basic", StartPosition::Block(0), None).await.expect("a stream");
    let silent = tokio::time::timeout(Duration::from_millis(200), other.next()).await;
    assert!(silent.is_err(), "events of another contract: {silent:?}");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn filtered_blocks_name_events_and_leave_their_payload_out() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let committed = create(&client, "a").await;
    let block = committed.commit.block;
    let mut blocks =
        client.deliver(CHANNEL, StartPosition::Block(0), Some(block), BlockView::Filtered).await.expect("a stream");
    let Some(Type::FilteredBlock(genesis)) = blocks.next().await.expect("a block") else { panic!("no block") };
    assert_eq!((genesis.number, genesis.channel_id.as_str()), (0, CHANNEL));
    let mut last = None;
    for _ in 0..block {
        last = blocks.next().await.expect("a block");
    }
    let Some(Type::FilteredBlock(filtered)) = last else { panic!("{last:?}") };
    let transaction = &filtered.filtered_transactions[0];
    assert_eq!((transaction.txid.as_str(), transaction.tx_validation_code), (committed.tx_id.as_str(), 0));
    let Some(proto::protos::filtered_transaction::Data::TransactionActions(actions)) = &transaction.data else {
        panic!("{transaction:?}")
    };
    let event = actions.chaincode_actions[0].chaincode_event.as_ref().expect("an event");
    assert_eq!((event.event_name.as_str(), event.payload.len()), ("CreateAsset", 0));
    assert_eq!(blocks.next().await, Ok(Some(Type::Status(Answer::Success as i32))));
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_are_waited_for_and_follow_one_another() {
    let network = TestNetwork::start(&config(2)).await;
    let client = network.client(0).await;
    let mut blocks = client.deliver(CHANNEL, StartPosition::NextCommit, None, BlockView::Full).await.expect("a stream");
    let height =
        network.running.peer(0).expect("a peer with one compute node").channel(CHANNEL).expect("a channel").height();
    let early = tokio::time::timeout(Duration::from_millis(100), blocks.next()).await;
    assert!(early.is_err(), "{early:?}");
    let committed = create(&client, "a").await;
    let Some(Type::Block(block)) = blocks.next().await.expect("a block") else { panic!("no block") };
    let header = block.header.expect("a header");
    assert_eq!(header.number, height);
    assert_eq!(header.number, committed.commit.block);
    assert!(!header.data_hash.is_empty());
    let metadata = block.metadata.expect("metadata");
    assert_eq!(metadata.metadata[2][..], [0]);
    network.stop().await;
}

/// Regression: a thief of a key kept the open streams, and read every block and event until it hung up.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_end_when_their_certificate_is_denied() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let issuer = network.issuer(&CertificateTerms::starting_now(KeyKind::P256));
    let stolen = issuer.issue(identity::MemberRole::Client, "stolen").expect("it can be issued");
    let thief = network.client_of(stolen.clone()).await;
    let open = async |client: &GatewayClient| {
        let events =
            client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a stream");
        let full = client.deliver(CHANNEL, StartPosition::NextCommit, None, BlockView::Full).await.expect("a stream");
        let filtered =
            client.deliver(CHANNEL, StartPosition::NextCommit, None, BlockView::Filtered).await.expect("a stream");
        (events, [full, filtered])
    };
    let (mut events, mut blocks) = open(&thief).await;
    let patient = network.client_of(stolen.clone()).await;
    let waiting = tokio::spawn(async move { patient.commit_status(CHANNEL, "never").await });
    let (mut others_events, mut others_blocks) = open(&client).await;
    create(&client, "a").await;
    // The streams wait for the next block, which does not come.
    assert!(events.next().await.expect("events").is_some());
    for blocks in &mut blocks {
        assert!(matches!(blocks.next().await, Ok(Some(Type::Block(_) | Type::FilteredBlock(_)))));
    }

    let holder = DeniedCertificate::Serial("Org1MSP".into(), stolen.certificate().serial().to_vec());
    // Repeatedly, since the list is the process's: a network that another test starts puts its own list in force.
    let denying = async {
        loop {
            let denial = Denial { holder: holder.clone(), reason: "stolen".to_owned(), until: None };
            DenyList::of_process().replace(vec![denial]);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = tokio::time::timeout(STREAM_TIMEOUT, async {
        assert_eq!(events.next().await.expect_err("denied").code, GrpcCode::PermissionDenied);
        let status = waiting.await.expect("no panic").expect_err("denied");
        assert_eq!(status.code, GrpcCode::PermissionDenied);
        for blocks in &mut blocks {
            assert_eq!(blocks.next().await, Ok(Some(Type::Status(Answer::Forbidden as i32))));
            assert_eq!(blocks.next().await, Ok(None));
        }
    });
    tokio::select! {
        ended = ended => ended.expect("the streams end"),
        () = denying => unreachable!("it has no end"),
    }

    let created = create(&client, "b").await;
    for _ in ["a", "b"] {
        let event = others_events.next().await.expect("events").expect("events");
        assert!(event.block_number <= created.commit.block);
        for blocks in &mut others_blocks {
            assert!(matches!(blocks.next().await, Ok(Some(Type::Block(_) | Type::FilteredBlock(_)))));
        }
    }
    DenyList::of_process().replace(Vec::new());
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_call_more_than_may_be_in_progress_is_refused_at_once() {
    let mut config = config(1);
    // One connection gets at most half of the permits for calls.
    config.limits.calls = 6;
    config.limits.streams = 2;
    let network = TestNetwork::start(&config).await;
    let client = network.client(0).await;
    let others = [network.client(0).await, network.client(0).await];
    let waiting: Vec<_> = (0..6)
        .map(|index| {
            let client = others[index % 2].with_deadline(Some(Duration::from_millis(700)));
            tokio::spawn(async move { client.commit_status(CHANNEL, "unknown").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let status = client.commit_status(CHANNEL, "unknown").await.expect_err("no place");
    assert_eq!(status.code, GrpcCode::ResourceExhausted, "{status}");
    for call in waiting {
        assert_eq!(call.await.expect("no panic").expect_err("no commit").code, GrpcCode::DeadlineExceeded);
    }
    create(&client, "a").await;
    let first = client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a place");
    let _second = client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a place");
    let refused = client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await;
    assert_eq!(refused.err().map(|status| status.code), Some(GrpcCode::ResourceExhausted));
    drop(first);
    tokio::time::sleep(Duration::from_millis(200)).await;
    client
        .chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None)
        .await
        .expect("a place that was given back");
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_misses_nothing_and_holds_up_nobody() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let mut slow = client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a stream");
    let mut slow_blocks =
        client.deliver(CHANNEL, StartPosition::NextCommit, None, BlockView::Full).await.expect("a stream");
    let payload = "x".repeat(200_000);
    let mut expected = Vec::new();
    for index in 0..40 {
        let id = format!("asset-{index}");
        let created =
            client.transact(CHANNEL, "events", "CreateAsset", &args(&[&id, &payload, "5", "Ada", "300"])).await;
        let created = created.unwrap_or_else(|status| panic!("{status}"));
        assert!(created.commit.is_valid());
        expected.push((created.commit.block, created.tx_id));
    }
    for (block, tx_id) in &expected {
        let events = slow.next().await.expect("events").expect("events");
        assert_eq!((events.block_number, &events.events[0].tx_id), (*block, tx_id));
        let Some(Type::Block(delivered)) = slow_blocks.next().await.expect("a block") else { panic!("no block") };
        assert_eq!(delivered.header.expect("a header").number, *block);
    }
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_nearly_full_takes_nothing_new_and_still_answers() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let committed = create(&client, "a").await;
    let TestNetwork { running, folder } = network;
    let mut config = running.network().config().clone();
    running.stop().await.expect("a stop without errors");
    config.storage.free_bytes_min = 1 << 60;
    let running =
        node::Network::open_with(folder.path(), &config).await.expect("a network").run().await.expect("it runs");
    let network = TestNetwork { running, folder };
    let client = network.client(0).await;
    let proposal = client.proposal(CHANNEL, "events", "DeleteAsset", &args(&["a"])).sign();
    let status = client.endorse(&proposal).await.expect_err("no room");
    assert_eq!(status.code, GrpcCode::Unavailable, "{status}");
    assert!(status.message.contains("disk"), "{status}");
    let status = client
        .submit_envelope(CHANNEL, "", crate::common::signed(Bytes::from_static(b"payload"), client.signer()))
        .await
        .expect_err("no room");
    assert_eq!(status.code, GrpcCode::Unavailable, "{status}");
    let read = client.proposal(CHANNEL, "events", "ReadAsset", &args(&["a"])).sign();
    client.evaluate(&read).await.expect("an answer");
    assert!(client.commit_status(CHANNEL, &committed.tx_id).await.expect("a status").is_valid());
    network.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_as_unavailable_when_the_network_stops() {
    let network = TestNetwork::start(&config(1)).await;
    let client = network.client(0).await;
    let mut events =
        client.chaincode_events(CHANNEL, "events", StartPosition::NextCommit, None).await.expect("a stream");
    let mut blocks = client.deliver(CHANNEL, StartPosition::NextCommit, None, BlockView::Full).await.expect("a stream");
    tokio::time::sleep(Duration::from_millis(100)).await;
    network.stop().await;
    assert_eq!(events.next().await.expect_err("an end").code, GrpcCode::Unavailable);
    assert_eq!(blocks.next().await.expect_err("an end").code, GrpcCode::Unavailable);
}

/// Regression: the orderer's channel could end by itself, and the only sign was that transactions never committed.
#[tokio::test(flavor = "multi_thread")]
async fn an_orderer_that_stops_by_itself_does_not_go_unseen() {
    let network = TestNetwork::start(&config(1)).await;
    let running = &network.running;
    let client = network.client(0).await;
    create(&client, "a").await;
    assert_eq!(health(running).await, "HTTP/1.1 200 OK: ok");
    let waiting = tokio::time::timeout(Duration::from_millis(50), running.failed()).await;
    assert!(waiting.is_err(), "nothing has failed");

    let chain = running.orderer().channel(CHANNEL).expect("a channel that was joined");
    // Another writer appends to the orderer's log, which then rejects the orderer's own append.
    let tip = chain.store().tip();
    let strange = ledger::Block::build(base::BlockNumber(tip.height), Some(tip.header_hash), &[]);
    let new = storage::blocks::NewBlock {
        number: base::BlockNumber(tip.height),
        header_hash: strange.hash(),
        previous_hash: tip.header_hash,
        epoch: base::Epoch(0),
        parts: &strange.parts(),
        transactions: &[],
    };
    chain.store().append(new).await.expect("it follows");
    let proposal = client.proposal(CHANNEL, "events", "DeleteAsset", &args(&["a"])).sign();
    let transaction = client.endorse(&proposal).await.expect("the peer is well");
    client.submit(&transaction).await.expect("it is taken before it is stored");
    let ended = tokio::time::timeout(Duration::from_secs(20), running.failed()).await.expect("it is noticed");
    let reason = ended.reason;
    assert!(reason.starts_with("orderer.example.com has stopped: ordering: "), "{reason}");
    assert_eq!(health(running).await, format!("HTTP/1.1 503 Service Unavailable: {reason}"));
    let status = client.submit(&transaction).await.expect_err("nobody takes it");
    assert_eq!(status.code, GrpcCode::Unavailable, "{status}");
    network.stop().await;
}

/// The first line of the answer to `/healthz`, and its body.
async fn health(running: &node::RunningNetwork) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let metrics = running.endpoints().iter().find(|endpoint| endpoint.role == node::EndpointRole::Metrics);
    let address = metrics.expect("metrics are served").address;
    let mut socket = tokio::net::TcpStream::connect(address).await.expect("a port that listens");
    socket.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("room");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    format!("{}: {}", head.lines().next().unwrap_or_default(), body.trim_end())
}

/// Opens streams with requests for blocks that are not envelopes, on a connection whose client reads no answers.
async fn garbage_streams(network: &TestNetwork, count: u32) -> TcpStream {
    let address = network.running.gateway(0).address;
    let mut socket = TcpStream::connect(address).await.expect("a port that listens");
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = (payload.len() as u32).to_be_bytes();
        let mut bytes = vec![length[1], length[2], length[3], kind, flags];
        bytes.extend(stream.to_be_bytes());
        bytes.extend(payload);
        bytes
    };
    let mut headers = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/protos.Deliver/Deliver"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
    ] {
        headers.extend([0, name.len() as u8]);
        headers.extend(name.as_bytes());
        headers.push(value.len() as u8);
        headers.extend(value.as_bytes());
    }
    // HTTP/2's preface, and settings with an initial window of 0.
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &[0, 4, 0, 0, 0, 0]));
    for number in 0..count {
        let stream = 2 * number + 1;
        bytes.extend(frame(1, 4, stream, &headers));
        bytes.extend(frame(0, 0, stream, b"\0\0\0\0\x07garbage"));
    }
    socket.write_all(&bytes).await.expect("room");
    // The content of the answer does not matter; any answer shows that the connection has reached the calls.
    let mut heard = [0; 1 << 10];
    let read = tokio::time::timeout(Duration::from_secs(20), socket.read(&mut heard)).await;
    assert!(read.expect("a server that answers").expect("an open connection") > 0);
    socket
}

/// Regression: a stream whose request was rejected, and whose client read no answers, kept its permit for ever. Two
/// thousand of them, from a client without any certificate, took all permits of a port.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_streams_leaves_their_places_to_members() {
    let mut config = config(2);
    config.tls = false;
    config.limits.streams = 16;
    let network = TestNetwork::start(&config).await;
    let _first = garbage_streams(&network, 1500).await;
    let _second = garbage_streams(&network, 1500).await;
    let client = network.client(0).await;
    let mut blocks = client.deliver(CHANNEL, StartPosition::Oldest, Some(0), BlockView::Full).await.expect("a stream");
    let served = tokio::time::timeout(Duration::from_secs(10), blocks.next()).await.expect("a place");
    assert!(matches!(served, Ok(Some(Type::Block(_)))), "{served:?}");
    network.stop().await;
}

/// Regression: a member of one organisation opened streams until no permit was left, and nobody else could follow the
/// ledger.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_one_organization_leave_places_to_another() {
    let mut config = config(2);
    config.limits.streams = 130;
    let network = TestNetwork::start(&config).await;
    let greedy = network.client(0).await;
    let mut held = Vec::new();
    let refused = loop {
        let mut blocks =
            greedy.deliver(CHANNEL, StartPosition::Oldest, None, BlockView::Full).await.expect("a connection");
        match blocks.next().await {
            Ok(Some(_)) => held.push(blocks),
            other => break other.expect_err("a refusal"),
        }
        assert!(held.len() <= 130, "one organisation has all places");
    };
    assert_eq!(refused.code, GrpcCode::ResourceExhausted, "{refused}");
    assert!(refused.message.contains("its organisation"), "{refused}");
    let connection = GrpcConnection::connect(&network.running.gateway(0)).await.expect("a gateway");
    let other = GatewayClient::new(connection, network.running.user(1));
    let mut blocks = other.deliver(CHANNEL, StartPosition::Oldest, Some(0), BlockView::Full).await.expect("a stream");
    assert!(matches!(blocks.next().await, Ok(Some(Type::Block(_)))));
    network.stop().await;
}
