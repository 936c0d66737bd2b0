//! Tests that unauthenticated connections hold few resources, and that they keep no other client out.

use std::time::Instant;

use gateway::grpc::client::{RequestStream, ResponseStream};

use super::raw::{DATA, END_HEADERS, GOAWAY, HEADERS, INITIAL_WINDOW_SIZE, RST_STREAM, Raw, frame as http, headers};
use super::*;

const MIB: usize = 1 << 20;

/// The story: idle sockets took all connections of a port, and the server closed the newcomer.
#[tokio::test(flavor = "multi_thread")]
async fn silent_sockets_give_way_to_newcomers_and_members_do_not() {
    for with_tls in [true, false] {
        let handshake_timeout = Duration::from_secs(60);
        let limits = PortLimits {
            connections_max: 40,
            unauthenticated_per_address_max: 0,
            handshake_timeout,
            ..PortLimits::default()
        };
        let settings = ConnectionConfig { preface_timeout: handshake_timeout, ..ConnectionConfig::default() };
        let server = Server::start(with_tls, settings, limits).await;
        let member = server.channel().await;
        prove(&member).await;
        let mut silent = Vec::new();
        for _ in 0..120 {
            silent.push(TcpStream::connect(server.address).await.expect("a port that listens"));
        }
        let begin = Instant::now();
        echo(&server.channel().await, 100).await;
        assert!(begin.elapsed() < Duration::from_secs(20), "a newcomer waited for {:?}", begin.elapsed());
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), silent[0].read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "the oldest silent socket is still there");
        echo(&member, 100).await;
        drop(silent);
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_address_has_a_share_of_the_strangers() {
    let limits = PortLimits { unauthenticated_per_address_max: 3, ..PortLimits::default() };
    let settings = ConnectionConfig { preface_timeout: Duration::from_secs(60), ..ConnectionConfig::default() };
    let server = Server::start(false, settings, limits).await;
    let mut first = TcpStream::connect(server.address).await.expect("a port that listens");
    let more = futures_util::future::join_all([(); 3].map(|()| TcpStream::connect(server.address))).await;
    assert!(more.iter().all(Result::is_ok));
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), first.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "the oldest of four connections is still there");
    drop(more);
    server.end().await;
}

/// The story: a client that answered pings and did nothing else kept its connection forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_without_a_call_is_told_to_go_and_a_member_is_not() {
    let settings = ConnectionConfig {
        keep_alive_interval: Duration::from_secs(1),
        unauthenticated_idle_max: Duration::from_secs(2),
        grace: Duration::from_millis(100),
        ..ConnectionConfig::default()
    };
    let server = Server::start(false, settings, PortLimits::default()).await;
    let member = server.channel().await;
    prove(&member).await;
    let mut stranger = Raw::connect(server.address).await;
    assert!(stranger.closed().await, "a connection that is closed for being idle hears GOAWAY");
    echo(&member, 100).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_a_call_for_long_is_told_to_go() {
    let settings = ConnectionConfig {
        keep_alive_interval: Duration::from_secs(1),
        member_idle_max: Duration::from_secs(1),
        ..ConnectionConfig::default()
    };
    let server = Server::start(false, settings, PortLimits::default()).await;
    let mut member = Raw::connect(server.address).await;
    let call = [http(HEADERS, END_HEADERS, 1, &headers("/echo/Prove")), http(DATA, 1, 1, &frame(&envelope(3)))];
    member.send(&call.concat()).await.expect("an open connection");
    member.answered(1).await;
    assert!(member.closed().await);
    server.end().await;
}

/// The story: watching a port's health needs no certificate, and kept a connection forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_told_to_go_after_a_while_whatever_it_does() {
    let settings = ConnectionConfig {
        keep_alive_interval: Duration::from_millis(100),
        unauthenticated_time_max: Duration::from_millis(400),
        grace: Duration::from_millis(100),
        ..ConnectionConfig::default()
    };
    let server = Server::start(false, settings, PortLimits::default()).await;
    let mut stranger = Raw::connect(server.address).await;
    let open = [http(HEADERS, END_HEADERS, 1, &headers("/echo/Stream")), http(DATA, 0, 1, &frame(&envelope(3)))];
    stranger.send(&open.concat()).await.expect("an open connection");
    assert!(stranger.closed().await);
    server.end().await;
}

/// The story: a socket that sent HTTP/2's preface and nothing more was kept for half a minute.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_half_a_preface_or_no_more_than_one_is_dropped() {
    let settings = ConnectionConfig { preface_timeout: Duration::from_millis(300), ..ConnectionConfig::default() };
    let server = Server::start(false, settings, PortLimits::default()).await;
    for said in [&b"PRI * HTTP/2.0"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut socket = TcpStream::connect(server.address).await.expect("a port that listens");
        socket.write_all(said).await.expect("room");
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "the server keeps a client that says {} bytes", said.len());
    }
    server.end().await;
}

/// A message that announces `announced` bytes and stops after `sent`; returns the number of bytes that the server took.
async fn unfinished(
    connection: &GrpcConnection,
    announced: usize,
    sent: usize,
) -> ((RequestStream, ResponseStream), usize) {
    let (mut requests, responses) = connection.open("/echo/Once", None).await.expect("a stream");
    let mut start = BytesMut::new();
    start.put_u8(0);
    start.put_u32(announced as u32);
    requests.send_framed(start.freeze()).await.expect("room in the window");
    let mut taken = 0;
    while taken < sent {
        let chunk = Bytes::from(vec![7; 32 << 10]);
        let sending = tokio::time::timeout(Duration::from_millis(500), requests.send_framed(chunk)).await;
        if !matches!(sending, Ok(Ok(()))) {
            break;
        }
        taken += 32 << 10;
    }
    ((requests, responses), taken)
}

/// The story: five messages that announced 99 MiB each and stopped at 98 held the port's whole budget for unfinished
/// messages for ten minutes, and no client's message of more than a frame was accepted.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_messages_keep_no_newcomer_out() {
    let limits = PortLimits { unfinished_bytes_max: 32 * MIB as u64, ..PortLimits::default() };
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(60), ..ConnectionConfig::default() };
    let server = Server::start(false, settings, limits).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        let connection = server.channel().await;
        let (call, taken) = unfinished(&connection, 99 * MIB, 2 * MIB).await;
        assert!(taken <= 2 * MIB, "{taken} bytes of strangers at one address were taken");
        held.push((connection, call));
    }
    let newcomer = server.channel().await;
    let begin = Instant::now();
    for _ in 0..5 {
        echo(&newcomer, 128 << 10).await;
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "a newcomer waited for {:?}", begin.elapsed());
    server.end().await;
}

/// The server takes messages of some megabytes from unknown clients, and messages up to its configured limit from members.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_may_send_longer_messages_than_a_stranger() {
    let limits = PortLimits { unfinished_bytes_max: 32 * MIB as u64, ..PortLimits::default() };
    let settings = ConnectionConfig { message_bytes_max: 6 * MIB, ..ConnectionConfig::default() };
    let server = Server::start(true, settings, limits).await;
    let channel = server.channel().await;
    echo(&channel, MIB - 10_000).await;
    let status = channel.unary::<_, Envelope>("/echo/Once", &envelope(5 * MIB), None).await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::ResourceExhausted);
    assert!(status.message.contains("one successful call"), "{status}");
    prove(&channel).await;
    echo(&channel, 5 * MIB).await;
    server.end().await;
}

/// The story: each received megabyte gave a message 64 s more time, so 98 of them gave it ten minutes.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_arrived_fast_and_pauses_is_ended_as_one_that_never_came() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(2), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    prove(&channel).await;
    let (mut requests, mut responses) = channel.open("/echo/Once", None).await.expect("a stream");
    let framed = frame(&envelope(8 * MIB));
    requests.send_framed(framed.slice(..7 * MIB)).await.expect("an open stream");
    let ended = tokio::time::timeout(Duration::from_secs(60), responses.next::<Envelope>()).await;
    assert_eq!(ended.expect("no patience").expect_err("an error").code, GrpcCode::DeadlineExceeded);
    server.end().await;
}

/// The story: while a stream's handler waited for a client's window of zero, everything that the client sent stayed in
/// HTTP/2's buffers, eight megabytes per connection, and no budget counted them.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_takes_no_answers_can_leave_little_behind() {
    let server = Server::start(false, ConnectionConfig::default(), PortLimits::default()).await;
    let socket = TcpStream::connect(server.address).await.expect("a port that listens");
    let builder = h2::client::Builder::new().initial_window_size(0).clone();
    let (mut sender, connection) = builder.handshake::<_, Bytes>(socket).await.expect("HTTP/2");
    tokio::spawn(connection);
    let mut sent = 0;
    let mut streams = Vec::new();
    for _ in 0..8 {
        let request = http::Request::post(format!("http://{}/echo/Stream", server.address))
            .header("content-type", "application/grpc")
            .body(())
            .expect("a request");
        let (response, mut stream) = sender.send_request(request, false).expect("a stream");
        // A message that the handler echoes but the client does not take, and a long one after it.
        let mut rest = BytesMut::from(&frame(&envelope(100))[..]);
        rest.extend_from_slice(&frame(&envelope(MIB)));
        let mut rest = rest.freeze();
        while !rest.is_empty() {
            stream.reserve_capacity(rest.len());
            let room = std::future::poll_fn(|context| stream.poll_capacity(context));
            let Ok(Some(Ok(room))) = tokio::time::timeout(Duration::from_millis(300), room).await else { break };
            let part = rest.split_to(room.min(rest.len()));
            sent += part.len();
            stream.send_data(part, false).expect("an open stream");
        }
        streams.push((response, stream));
    }
    assert!(sent < 80 << 10, "the server took {sent} bytes");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_widen_once_a_call_has_proved_who_makes_it() {
    const WINDOW_UPDATE: u8 = 8;
    let server = Server::start(false, ConnectionConfig::default(), PortLimits::default()).await;
    let mut raw = Raw::connect(server.address).await;
    let call = |stream, path| {
        [http(HEADERS, END_HEADERS, stream, &headers(path)), http(DATA, 1, stream, &frame(&envelope(3)))].concat()
    };
    raw.send(&call(1, "/echo/Once")).await.expect("an open connection");
    raw.answered(1).await;
    raw.send(&call(3, "/echo/Prove")).await.expect("an open connection");
    loop {
        let frame = raw.next().await.expect("a connection that stays");
        if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
            let more = u32::from_be_bytes(frame.payload.try_into().expect("four bytes"));
            assert!(more > 1 << 20, "{more}");
            break;
        }
    }
    server.end().await;
}

/// The story: an answer that a client's window of zero did not admit was kept for as long as the client liked.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_takes_is_dropped() {
    let settings = ConnectionConfig { send_pause_max: Duration::from_millis(300), ..ConnectionConfig::default() };
    let server = Server::start(false, settings, PortLimits::default()).await;
    let mut raw = Raw::connect_with(server.address, &[(INITIAL_WINDOW_SIZE, 0)]).await;
    for (stream, path) in [(1, "/echo/Once"), (3, "/echo/Stream")] {
        let call = [http(HEADERS, END_HEADERS, stream, &headers(path)), http(DATA, 0, stream, &frame(&envelope(3)))];
        raw.send(&call.concat()).await.expect("an open connection");
        loop {
            let frame = raw.next().await.expect("a connection that stays");
            assert!(frame.kind != DATA && frame.kind != GOAWAY, "{frame:?}");
            if frame.kind == RST_STREAM && frame.stream == stream {
                break;
            }
        }
    }
    server.end().await;
}
