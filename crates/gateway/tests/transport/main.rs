//! Tests of the gRPC layer alone, with a service that sends each message back.

mod bridge;
mod chaincode;
mod frames;
mod raw;
mod unauthenticated;

use std::net::SocketAddr;
use std::time::Duration;

use base::admission::Principal;
use base::rt::CancellationToken;
use bytes::{BufMut as _, Bytes, BytesMut};
use gateway::grpc::client::{ClientIdentity, ClientTls, ConnectTarget, GrpcConnection};
use gateway::grpc::connection::{ConnectionConfig, GrpcService};
use gateway::grpc::message::{PREFIX_BYTES, frame, put_prefix};
use gateway::grpc::{GrpcCode, GrpcStatus, IncomingCall};
use gateway::server::{self, PortLimits};
use prost::Message as _;
use proto::common::Envelope;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// Echoes a message, in the way that the path names.
#[derive(Clone)]
struct Echo;

#[derive(Clone, Copy)]
enum Method {
    Once,
    Forever,
    Stream,
    /// As `Stream`, after a first message of the server's own.
    Greet,
    Refuse,
    /// As `Once`, and authenticates the caller.
    Prove,
    /// As `Once`, if the payload is the hash of the certificate that the client presented.
    Certified,
}

impl GrpcService for Echo {
    type Method = Method;

    fn method(&self, path: &str) -> Option<Method> {
        Some(match path {
            "/echo/Once" => Method::Once,
            "/echo/Forever" => Method::Forever,
            "/echo/Stream" => Method::Stream,
            "/echo/Greet" => Method::Greet,
            "/echo/Refuse" => Method::Refuse,
            "/echo/Prove" => Method::Prove,
            "/echo/Certified" => Method::Certified,
            _ => return None,
        })
    }

    fn speaks_first(&self, method: Method) -> bool {
        matches!(method, Method::Greet)
    }

    async fn call(&self, method: Method, call: IncomingCall) {
        match method {
            Method::Once => call.unary(|message| async move { Ok(prefixed(&message)) }).await,
            Method::Prove => {
                call.caller().authenticate(|| Principal::new("Org1MSP", "user1"));
                call.unary(|message| async move { Ok(prefixed(&message)) }).await;
            }
            Method::Certified => {
                let caller = call.caller().clone();
                let work = |message: Bytes| async move {
                    let named = Envelope::decode(message.clone()).expect("an envelope").payload;
                    match caller.certificate() {
                        Some(certificate) if certificate.is_named_by(&named) => Ok(prefixed(&message)),
                        Some(certificate) if certificate.der().is_some() => {
                            Err(GrpcStatus::invalid_argument("another one"))
                        }
                        _ => Err(GrpcStatus::invalid_argument("none")),
                    }
                };
                call.unary(work).await;
            }
            Method::Forever => call.unary(|_| std::future::pending()).await,
            Method::Refuse => {
                let refuse = |message: Bytes| async move {
                    Err(GrpcStatus::new(GrpcCode::Aborted, String::from_utf8_lossy(&message).into_owned()))
                };
                call.unary(refuse).await
            }
            Method::Stream | Method::Greet => {
                call.streaming(async |messages, responder| {
                    if matches!(method, Method::Greet) && responder.send(frame(&envelope(1))).await.is_err() {
                        return GrpcStatus::ok();
                    }
                    loop {
                        match messages.next().await {
                            Ok(Some(message)) => {
                                if responder.send(prefixed(&message)).await.is_err() {
                                    return GrpcStatus::ok();
                                }
                            }
                            Ok(None) => return GrpcStatus::ok(),
                            Err(status) => return status,
                        }
                    }
                })
                .await
            }
        }
    }
}

fn prefixed(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    put_prefix(&mut framed, message.len());
    framed.put_slice(message);
    framed.freeze()
}

struct Server {
    address: SocketAddr,
    target: ConnectTarget,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(with_tls: bool, settings: ConnectionConfig, limits: PortLimits) -> Server {
        let listener = server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (config, tls) = if with_tls {
            let certified = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
            let certificate = certified.cert.pem().into_bytes();
            let key = certified.signing_key.serialize_pem().into_bytes();
            let config = server::tls(&certificate, &key).expect("a certificate that fits its key");
            (Some(config), Some(ClientTls { roots_pem: certificate, server_name: "localhost".into() }))
        } else {
            (None, None)
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(server::serve(listener, config, Echo, settings, limits, stop.clone()));
        Server { address, target: ConnectTarget { address: address.to_string(), tls }, stop, task }
    }

    async fn default() -> Server {
        Server::start(true, ConnectionConfig::default(), PortLimits::default()).await
    }

    async fn channel(&self) -> GrpcConnection {
        GrpcConnection::connect(&self.target).await.expect("a server that answers")
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("the server does not panic");
    }
}

fn envelope(bytes: usize) -> Envelope {
    Envelope { payload: Bytes::from(vec![7; bytes]), signature: Bytes::from_static(b"signature") }
}

/// Makes the connection a member's.
async fn prove(channel: &GrpcConnection) {
    let answer: Envelope = channel.unary("/echo/Prove", &envelope(3), None).await.expect("an echo");
    assert_eq!(answer, envelope(3));
}

async fn echo(channel: &GrpcConnection, bytes: usize) {
    let request = envelope(bytes);
    let answer: Envelope = channel.unary("/echo/Once", &request, None).await.expect("an echo");
    assert_eq!(answer, request);
}

/// Fabric's SDKs name the certificate's DER in signed requests, and the command `discover` its PEM.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_names_the_certificate_that_its_client_presents() {
    let server = Server::default().await;
    let own = rcgen::generate_simple_self_signed(vec!["client".to_owned()]).expect("a certificate");
    let (certificate_pem, key_pem) = (own.cert.pem().into_bytes(), own.signing_key.serialize_pem().into_bytes());
    let pem = own.cert.pem().replace('\r', "");
    let identity = ClientIdentity { certificate_pem, key_pem };
    let ask = async |channel: &GrpcConnection, hash: [u8; 32]| {
        let request = Envelope { payload: Bytes::copy_from_slice(&hash), signature: Bytes::new() };
        let answer = channel.unary::<Envelope, Envelope>("/echo/Certified", &request, None).await;
        answer.map(drop).map_err(|status| status.message)
    };
    let (der, pem) = (identity::sha256([&own.cert.der()[..]]), identity::sha256([pem.as_bytes()]));
    let certified = GrpcConnection::connect_as(&server.target, Some(&identity), Duration::from_secs(10))
        .await
        .expect("a connection");
    assert_eq!(ask(&certified, der).await, Ok(()));
    assert_eq!(ask(&certified, pem).await, Ok(()));
    assert_eq!(ask(&certified, [0; 32]).await, Err("another one".to_owned()));
    let bare = server.channel().await;
    assert_eq!(ask(&bare, der).await, Err("none".to_owned()));
    drop((certified, bare));
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_all_sizes_come_back() {
    for with_tls in [true, false] {
        let server = Server::start(with_tls, ConnectionConfig::default(), PortLimits::default()).await;
        let channel = server.channel().await;
        prove(&channel).await;
        for bytes in [0, 1, 1000, 16_384, 65_530, 65_536, 1_000_000, 20_000_000] {
            echo(&channel, bytes).await;
        }
        server.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_carries_code_and_message() {
    let server = Server::default().await;
    let channel = server.channel().await;
    let status = channel.unary::<_, Envelope>("/echo/Refuse", &envelope(3), None).await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::Aborted);
    let status = channel.unary::<_, Envelope>("/echo/Absent", &envelope(3), None).await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::Unimplemented);
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_the_call_at_the_server() {
    let server = Server::default().await;
    let channel = server.channel().await;
    let begin = std::time::Instant::now();
    let deadline = Some(Duration::from_millis(100));
    let status = channel.unary::<_, Envelope>("/echo/Forever", &envelope(3), deadline).await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::DeadlineExceeded);
    assert!(begin.elapsed() < Duration::from_secs(20));
    echo(&channel, 10).await;
    server.end().await;
}

/// The story: a stranger opened calls, sent their headers and nothing more. Each held a permit of the port forever, and two
/// connections of 2048 calls held them all.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_message_is_ended() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(1), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let calls = ["/echo/Once", "/echo/Stream"].into_iter().flat_map(|path| {
        [&b""[..], &b"\0\0\0\0"[..], &b"\0\0\0\0\x09half"[..]].map(|begun| {
            let channel = channel.clone();
            async move {
                let (mut requests, mut responses) = channel.open(path, None).await.expect("a stream");
                requests.send_framed(Bytes::from_static(begun)).await.expect("room in the window");
                let status = responses.next::<Envelope>().await.expect_err("an error");
                assert_eq!(status.code, GrpcCode::DeadlineExceeded, "{path} {begun:?}");
            }
        })
    });
    futures_util::future::join_all(calls).await;
    // A stream that has begun may be silent for any time.
    let (mut requests, mut responses) = channel.open("/echo/Stream", None).await.expect("a stream");
    for _ in 0..2 {
        requests.send(&envelope(10)).await.expect("an open stream");
        assert!(responses.next::<Envelope>().await.expect("an open stream").is_some());
        tokio::time::sleep(Duration::from_millis(1200)).await;
    }
    server.end().await;
}

/// The story: a message that began in the frame that ended the previous one was waited for forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_begins_in_the_frame_of_another_one_is_not_waited_for_without_end() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(1), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let (mut requests, mut responses) = channel.open("/echo/Stream", None).await.expect("a stream");
    let one_and_a_half = [&frame(&envelope(10))[..], &frame(&envelope(10))[..8]].concat();
    requests.send_framed(one_and_a_half.into()).await.expect("room in the window");
    assert_eq!(responses.next().await, Ok(Some(envelope(10))));
    let status = responses.next::<Envelope>().await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::DeadlineExceeded);
    server.end().await;
}

/// The limit on waiting for a first message must not hurt clients with a long message on a slow network.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_message_that_keeps_arriving_is_waited_for() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(3), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let (mut requests, mut responses) = channel.open("/echo/Once", None).await.expect("a stream");
    let mut rest = frame(&envelope(800_000));
    while !rest.is_empty() {
        requests.send_framed(rest.split_to(rest.len().min(100_000))).await.expect("room in the window");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    requests.close();
    assert_eq!(responses.next().await, Ok(Some(envelope(800_000))));
    server.end().await;
}

/// The story: each message had a separate deadline. Of many concurrent calls on a slow network, those whose messages waited
/// behind others of their connection were ended as if their client were silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_wait_behind_others_of_its_connection() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_secs(3), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let (mut waiting, mut answer) = channel.open("/echo/Once", None).await.expect("a stream");
    waiting.send_framed(Bytes::from_static(b"\0")).await.expect("room in the window");
    let (mut requests, mut responses) = channel.open("/echo/Once", None).await.expect("a stream");
    let mut rest = frame(&envelope(800_000));
    while !rest.is_empty() {
        requests.send_framed(rest.split_to(rest.len().min(100_000))).await.expect("room in the window");
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    waiting.send_framed(frame(&envelope(10)).slice(1..)).await.expect("room in the window");
    waiting.close();
    assert_eq!(answer.next().await, Ok(Some(envelope(10))));
    requests.close();
    assert_eq!(responses.next().await, Ok(Some(envelope(800_000))));
    server.end().await;
}

/// The story: calls that asked for the status of transactions that never come, without a deadline or with one of years,
/// held their permits forever.
#[tokio::test(flavor = "multi_thread")]
async fn a_unary_call_ends_without_a_deadline_of_its_client() {
    let settings = ConnectionConfig { unary_time_max: Duration::from_secs(2), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    for deadline in [None, Some(Duration::from_secs(1 << 30))] {
        let status = channel.unary::<_, Envelope>("/echo/Forever", &envelope(3), deadline).await.expect_err("an error");
        assert_eq!(status.code, GrpcCode::DeadlineExceeded);
    }
    echo(&channel, 10).await;
    server.end().await;
}

/// The bounds on calls without a message must not hurt a client that opens all its calls at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_calls_at_once_over_one_connection_are_answered() {
    let server = Server::default().await;
    let channel = server.channel().await;
    let calls = (0..2000).map(|_| {
        let channel = channel.clone();
        tokio::spawn(async move { echo(&channel, 2500).await })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.expect("no panic");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_announced_too_large_is_refused_before_it_is_sent() {
    let server = Server::default().await;
    let channel = server.channel().await;
    let (mut requests, mut responses) = channel.open("/echo/Once", None).await.expect("a stream");
    let announced: u32 = (100 << 20) + 1;
    let mut start = BytesMut::new();
    start.put_u8(0);
    start.put_u32(announced);
    start.put_slice(b"the first bytes");
    requests.send_framed(start.freeze()).await.expect("room in the window");
    let status = responses.next::<Envelope>().await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::ResourceExhausted);
    echo(&channel, 10).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_echoes_until_the_client_closes_it() {
    let server = Server::default().await;
    let channel = server.channel().await;
    let (mut requests, mut responses) = channel.open("/echo/Stream", None).await.expect("a stream");
    for bytes in 0..100 {
        requests.send(&envelope(bytes * 1000)).await.expect("an open stream");
        let answer: Envelope = responses.next().await.expect("an open stream").expect("an answer");
        assert_eq!(answer, envelope(bytes * 1000));
    }
    requests.close();
    assert_eq!(responses.next::<Envelope>().await, Ok(None));
    server.end().await;
}

/// A chaincode that listens registers before the peer that has called it says anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_method_that_speaks_first_is_called_without_a_message_and_waits_for_one_without_end() {
    let settings = ConnectionConfig { message_pause_max: Duration::from_millis(50), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let (mut requests, mut responses) = channel.open("/echo/Greet", None).await.expect("a stream");
    assert_eq!(responses.next().await, Ok(Some(envelope(1))));
    tokio::time::sleep(Duration::from_millis(200)).await;
    requests.send(&envelope(10)).await.expect("an open stream");
    assert_eq!(responses.next().await, Ok(Some(envelope(10))));
    // The rest of a message that has begun is not waited for.
    requests.send_framed(frame(&envelope(10)).slice(..8)).await.expect("room in the window");
    let status = responses.next::<Envelope>().await.expect_err("an error");
    assert_eq!(status.code, GrpcCode::DeadlineExceeded);
    server.end().await;
}

/// A member's connection admits more unread bytes than one of its streams does, so other calls continue. A stranger's does
/// not: there the echo at the end arrived only if the last update of the connection's window happened to come after that of
/// the stream's, and otherwise waited until its deadline.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_stops_the_server_from_reading() {
    let server = Server::default().await;
    let channel = server.channel().await;
    prove(&channel).await;
    let (mut requests, responses) = channel.open("/echo/Stream", None).await.expect("a stream");
    let mut sent = 0;
    while let Ok(taken) = tokio::time::timeout(Duration::from_secs(2), requests.send(&envelope(1 << 20))).await {
        taken.expect("an open stream");
        sent += 1;
        assert!(sent < 64, "the server took {sent} MiB that nobody reads");
    }
    echo(&channel, 10).await;
    drop(responses);
    echo(&channel, 10).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_bytes_disturb_nobody() {
    let limits = PortLimits { handshake_timeout: Duration::from_secs(2), ..PortLimits::default() };
    let server = Server::start(true, ConnectionConfig::default(), limits).await;
    let channel = server.channel().await;
    for seed in 0..50u64 {
        let mut socket = TcpStream::connect(server.address).await.expect("a port that listens");
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let garbage: Vec<u8> = (0..2000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        // The server may close the connection while we write.
        let _ = socket.write_all(&garbage).await;
        let mut rest = Vec::new();
        let closed = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "the server keeps a connection that is not TLS");
        echo(&channel, 100).await;
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_answers_no_pings_is_dropped_and_one_that_does_is_kept() {
    let settings = ConnectionConfig { keep_alive_interval: Duration::from_secs(1), ..ConnectionConfig::default() };
    let server = Server::start(false, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let mut mute = TcpStream::connect(server.address).await.expect("a port that listens");
    // A connection preface and empty settings: a client that then sends nothing more.
    mute.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("room");
    let mut heard = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), mute.read_to_end(&mut heard)).await;
    assert!(closed.is_ok(), "the server keeps a connection whose other side is silent");
    echo(&channel, 10).await;
    server.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_lets_calls_finish_and_then_closes() {
    let settings = ConnectionConfig { grace: Duration::from_secs(2), ..ConnectionConfig::default() };
    let server = Server::start(true, settings, PortLimits::default()).await;
    let channel = server.channel().await;
    let stuck = tokio::spawn({
        let channel = channel.clone();
        async move { channel.unary::<_, Envelope>("/echo/Forever", &envelope(3), None).await }
    });
    let (mut requests, mut responses) = channel.open("/echo/Stream", None).await.expect("a stream");
    requests.send(&envelope(1)).await.expect("an open stream");
    assert!(responses.next::<Envelope>().await.expect("an open stream").is_some());
    server.stop.cancel();
    requests.send(&envelope(2)).await.expect("an open stream");
    assert!(responses.next::<Envelope>().await.expect("calls go on within the grace").is_some());
    server.end().await;
    assert!(stuck.await.expect("no panic").is_err());
}
