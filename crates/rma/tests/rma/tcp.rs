//! The `tcp` provider: the conformance suite, and tests of its own features: TLS, hostile bytes, revocation in the middle of a
//! transfer, lost connections, links over its messages.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::net::{self, Link, Listener};
use base::rt::{self, channel::Closed, production};
use base::{Bytes, BytesMut, ErrorKind};
use proptest::prelude::*;
use rma::conformance::{self, Fixture, FixtureFeatures};
use rma::links::RmaTransport;
use rma::tcp::{TcpConfig, TcpProvider, TcpTls};
use rma::{Capability, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, Rights, Token};

/// Generous: nothing is measured, only a test that hangs must fail.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const REGION_BYTES: u64 = 64 << 20;
const TOKEN: Token = Token::new([7; 32]);

fn credential() -> Credential {
    Credential { name: "compute0".to_owned(), token: TOKEN }
}

fn host_options() -> HostConfig {
    HostConfig { node: NodeId(9), tokens: Arc::new(|name| ["compute0", "compute1"].contains(&name).then_some(TOKEN)) }
}

/// Runs a test on its own runtime, with a time limit.
fn run<F: Future<Output = ()>>(test: F) {
    production::run(async { rt::timeout(TEST_TIMEOUT, test).await.expect("nothing hangs") });
}

struct Bench {
    provider: TcpProvider,
    host: Arc<dyn Host>,
    endpoint: Endpoint,
    accepted: Endpoint,
    capability: Capability,
}

async fn bench(options: TcpConfig) -> Bench {
    let provider = TcpProvider::new(options);
    let host = provider.host("127.0.0.1:0", host_options()).await.expect("a port is free");
    let region = host.register("test", REGION_BYTES).await.expect("there is memory");
    let capability = host.grant(region, Rights::ALL, "compute0").expect("the region is there");
    let endpoint = provider.connect(&host.address(), &credential()).await.expect("the token is right");
    let accepted = host.accept().await.expect("it was connected to");
    Bench { provider, host, endpoint, accepted, capability }
}

/// Every combination of waiting and protection.
fn ways() -> Vec<TcpConfig> {
    let sleeping = TcpConfig { spin: Duration::ZERO, ..TcpConfig::default() };
    vec![TcpConfig::default(), sleeping, TcpConfig { tls: Some(tls_of(&authority())), ..TcpConfig::default() }]
}

type TestAuthority = rcgen::CertifiedIssuer<'static, rcgen::KeyPair>;

fn authority() -> TestAuthority {
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().expect("keys can be made");
    rcgen::CertifiedIssuer::self_signed(params, key).expect("it is a valid authority")
}

fn tls_of(authority: &TestAuthority) -> TcpTls {
    let key = rcgen::KeyPair::generate().expect("keys can be made");
    let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("it is a valid name");
    let certificate = params.signed_by(&key, authority).expect("it can be signed");
    TcpTls::new(certificate.pem().as_bytes(), key.serialize_pem().as_bytes(), authority.pem().as_bytes())
        .expect("the settings are valid")
}

fn pattern(length: usize, seed: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed) as u8).collect()
}

/// Forwards bytes between clients and a host, until it cuts all connections.
struct Cable {
    address: String,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Cable {
    #[allow(clippy::disallowed_methods, reason = "what stands between two hosts has no part in their runtimes")]
    fn to(host: &str) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let sockets = Arc::new(Mutex::new(Vec::new()));
        let (host, opened) = (host.to_owned(), Arc::clone(&sockets));
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let near = near.expect("connections can be accepted");
                // Without a host the client sees its connection end.
                let Ok(far) = TcpStream::connect(&host) else { continue };
                let copy = |socket: &TcpStream| socket.try_clone().expect("descriptors are left");
                opened.lock().expect("nothing panics under it").extend([copy(&near), copy(&far)]);
                for (mut from, mut to) in [(copy(&near), copy(&far)), (far, near)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
            }
        });
        Cable { address, sockets }
    }

    fn cut(&self) {
        for socket in self.sockets.lock().expect("nothing panics under it").drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

struct Conforming {
    provider: TcpProvider,
    host: Arc<dyn Host>,
    cable: Option<Cable>,
}

#[async_trait::async_trait]
impl Fixture for Conforming {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host)
    }

    fn credential(&self) -> Credential {
        credential()
    }

    fn another_credential(&self) -> Credential {
        Credential { name: "compute1".to_owned(), token: TOKEN }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        let address = self.host.address();
        match &self.cable {
            // Not over the cable when the host has gone: the host's own port must refuse the connection.
            Some(cable) if TcpStream::connect(&address).is_ok() => {
                self.provider.connect(&cable.address, credential).await
            }
            _ => self.provider.connect(&address, credential).await,
        }
    }

    async fn sever(&self, _connected: &Endpoint, _accepted: &Endpoint) {
        self.cable.as_ref().expect("only a cable can be cut").cut();
    }

    fn features(&self) -> FixtureFeatures {
        FixtureFeatures { sever: self.cable.is_some(), ..FixtureFeatures::default() }
    }
}

fn conforms(options: TcpConfig, cable: bool) {
    production::run(async {
        let provider = TcpProvider::new(options);
        let host = provider.host("127.0.0.1:0", host_options()).await.expect("a port is free");
        let cable = cable.then(|| Cable::to(&host.address()));
        conformance::run(&Conforming { provider, host, cable }).await.assert_held();
    });
}

#[test]
fn it_conforms() {
    conforms(TcpConfig::default(), false);
}

#[test]
fn it_conforms_over_a_cable_that_can_be_cut() {
    conforms(TcpConfig::default(), true);
}

#[test]
fn it_conforms_when_nobody_spins() {
    conforms(TcpConfig { spin: Duration::ZERO, ..TcpConfig::default() }, false);
}

#[test]
fn it_conforms_over_tls() {
    conforms(TcpConfig { tls: Some(tls_of(&authority())), ..TcpConfig::default() }, false);
}

#[test]
fn what_was_written_is_read_at_every_length_and_offset() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            let (endpoint, capability) = (&bench.endpoint, &bench.capability);
            for (seed, (offset, length)) in [
                (0, 0),
                (0, 8),
                (3, 1),
                (5, 4096),
                (1, 65_543),
                (8, 1 << 20),
                (13, (5 << 20) + 7),
                (REGION_BYTES - 9, 9),
            ]
            .into_iter()
            .enumerate()
            {
                let bytes = pattern(length, seed);
                let parts = [bytes.slice(..length / 3), bytes.slice(length / 3..)];
                endpoint.write(capability, offset, &parts).await.expect("it is allowed");
                let mut into = BytesMut::from(&b"before"[..]);
                into = endpoint.read(capability, offset, length, into).await.expect("it is allowed");
                assert_eq!(&into[..6], b"before");
                assert!(into[6..] == bytes[..], "{length} bytes at {offset}");
            }
        });
    }
}

#[test]
fn many_verbs_in_flight_take_effect_in_order() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            let (endpoint, capability) = (&bench.endpoint, &bench.capability);
            let mut reads = Vec::new();
            for round in 0..500_u64 {
                let bytes = pattern(1 + (round as usize * 977) % 30_000, round as usize);
                drop(endpoint.write(capability, 64, std::slice::from_ref(&bytes)));
                let swapped = endpoint.compare_swap(capability, 0, round, round + 1);
                let added = endpoint.fetch_add(capability, 8, 3);
                reads.push((
                    round,
                    bytes.clone(),
                    swapped,
                    added,
                    endpoint.read(capability, 64, bytes.len(), BytesMut::new()),
                ));
            }
            for (round, bytes, swapped, added, read) in reads {
                assert_eq!(swapped.await.expect("it is allowed"), round);
                assert_eq!(added.await.expect("it is allowed"), 3 * round);
                assert!(read.await.expect("it is allowed")[..] == bytes[..], "round {round}");
            }
        });
    }
}

/// Regression: a host stops executing a connection's requests while more than 4 MiB of replies wait to be written. It then
/// regarded the requests that it had already read as done: when the client read as fast as the host wrote, the replies went out
/// in one turn, no further socket event came, and all requests in the host's buffer hung for ever. Hundreds of reads that
/// arrive in one piece showed it, both copied ones and those written from the region itself.
#[test]
fn many_large_reads_that_arrive_in_one_piece_all_complete() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            let (endpoint, capability) = (&bench.endpoint, &bench.capability);
            let bytes = pattern(1 << 20, 5);
            endpoint.write(capability, 0, std::slice::from_ref(&bytes)).await.expect("it is allowed");
            for round in 0..24 {
                let length = [48 << 10, 200 << 10, 1 << 20][round % 3];
                let count = (96 << 20) / length;
                let reads: Vec<_> = (0..count).map(|_| endpoint.read(capability, 0, length, BytesMut::new())).collect();
                endpoint.flush();
                for read in reads {
                    assert!(read.await.expect("it is allowed")[..] == bytes[..length], "round {round}");
                }
            }
        });
    }
}

/// The same from the other end: the host's endpoint also writes the queue, with a message of its own. It could do so between
/// two polls of the progress thread, which found the connection crowded and then nothing left to write, and watched the socket
/// for neither event.
#[test]
fn reads_complete_while_the_host_sends_messages() {
    for options in ways() {
        run(async {
            let Bench { endpoint, accepted, capability, host: _host, .. } = bench(options).await;
            let sending = rt::spawn({
                let accepted = accepted.clone();
                async move {
                    let mut sent = 0;
                    while accepted.send(&[pattern(100, 1)]).await.is_ok() {
                        sent += 1;
                        rt::yield_now().await;
                    }
                    sent
                }
            });
            for _ in 0..20 {
                let reads: Vec<_> =
                    (0..200).map(|_| endpoint.read(&capability, 0, 100 << 10, BytesMut::new())).collect();
                endpoint.flush();
                for read in reads {
                    read.await.expect("it is allowed");
                    assert_eq!(endpoint.receive().await, Ok(IncomingEvent::Message(pattern(100, 1))));
                }
            }
            drop(endpoint);
            assert!(sending.await.expect("nothing aborts it") >= 4000);
            drop(accepted);
        });
    }
}

/// Regression: the progress thread kept serving the connection that it had served last as long as there was work, and checked
/// neither the others nor whether its host was to stop.
#[test]
fn a_connection_that_is_never_idle_keeps_nobody_from_being_served() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        let greedy = rt::spawn({
            let (endpoint, capability) = (bench.endpoint.clone(), bench.capability);
            async move {
                let mut posted = VecDeque::new();
                loop {
                    while posted.len() < 512 {
                        posted.push_back(endpoint.read(&capability, 0, 16 << 10, BytesMut::new()));
                    }
                    endpoint.flush();
                    let Some(oldest) = posted.pop_front() else { return };
                    if oldest.await.is_err() {
                        return;
                    }
                }
            }
        });
        let other = bench.provider.connect(&bench.host.address(), &credential()).await.expect("the token is right");
        for round in 0..200 {
            assert_eq!(other.fetch_add(&bench.capability, 0, 1).await, Ok(round));
        }
        bench.host.close().await;
        greedy.await.expect("nothing aborts it");
    });
}

#[test]
fn nothing_lands_after_a_revocation_in_the_middle_of_transfers() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            for round in 0..10_usize {
                let region = bench.host.register("round", REGION_BYTES).await.expect("there is memory");
                let capability = bench.host.grant(region, Rights::ALL, "compute0").expect("the region is there");
                let reader = bench.host.grant(region, Rights::READ, "compute0").expect("the region is there");
                let bytes = pattern(6 << 20, round);
                let writes: Vec<_> = (0..3)
                    .map(|n| bench.endpoint.write(&capability, n * (6 << 20), std::slice::from_ref(&bytes)))
                    .collect();
                bench.endpoint.flush();
                let waiting = rt::spawn(async move {
                    let mut outcomes = Vec::new();
                    for write in writes {
                        outcomes.push(write.await);
                    }
                    outcomes
                });
                for _ in 0..round * 40 {
                    rt::yield_now().await;
                }
                bench.host.revoke(&capability).await.expect("it is a grant of the host's");
                // On another connection, so that it does not wait behind the writes.
                let other =
                    bench.provider.connect(&bench.host.address(), &credential()).await.expect("the token is right");
                let kept = bench.host.accept().await.expect("it was connected to");
                let length = 18 << 20;
                let before = other.read(&reader, 0, length, BytesMut::new()).await.expect("it is allowed");
                let outcomes = waiting.await.expect("nothing aborts it");
                let after = other.read(&reader, 0, length, BytesMut::new()).await.expect("it is allowed");
                assert!(before == after, "round {round}: something landed after the fence");
                for (n, outcome) in outcomes.iter().enumerate() {
                    let landed = &after[n * (6 << 20)..][..6 << 20];
                    match outcome {
                        Ok(()) => assert!(landed == &bytes[..], "round {round}: write {n} is done"),
                        Err(Error::Revoked) => {
                            assert!(landed.iter().all(|byte| *byte == 0), "round {round}: {n} is not")
                        }
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Ambiguous, "round {round}: write {n}"),
                    }
                }
                drop((other, kept));
                bench.host.deregister(region).await.expect("it is a region of the host's");
            }
        });
    }
}

#[test]
fn a_read_that_is_revoked_on_its_way_is_not_taken_for_whole() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        let reads: Vec<_> =
            (0..8).map(|_| bench.endpoint.read(&bench.capability, 0, 64 << 20, BytesMut::new())).collect();
        bench.endpoint.flush();
        bench.host.revoke(&bench.capability).await.expect("it is a grant of the host's");
        let mut revoked = 0;
        for read in reads {
            match read.await {
                Ok(bytes) => assert_eq!(bytes.len(), 64 << 20),
                Err(error) => {
                    assert_eq!(error, Error::Revoked);
                    revoked += 1;
                }
            }
        }
        assert!(revoked > 0, "half a gibibyte does not fit into the sockets' buffers");
    });
}

#[test]
fn what_a_capability_does_not_allow_is_refused() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        let (endpoint, host) = (&bench.endpoint, &bench.host);
        let reader = host.grant(bench.capability.region, Rights::READ, "compute0").expect("the region is there");
        let word = [pattern(8, 1)];
        assert_eq!(endpoint.write(&reader, 0, &word).await, Err(Error::Forbidden));
        assert_eq!(endpoint.fetch_add(&reader, 0, 1).await, Err(Error::Forbidden));
        let beyond = Error::OutOfBounds { offset: REGION_BYTES - 7, length: 8, region_bytes: REGION_BYTES };
        assert_eq!(endpoint.write(&bench.capability, REGION_BYTES - 7, &word).await, Err(beyond.clone()));
        assert_eq!(endpoint.read(&reader, REGION_BYTES - 7, 8, BytesMut::new()).await.expect_err("beyond"), beyond);
        let far = endpoint.read(&reader, u64::MAX, 8, BytesMut::new()).await.expect_err("beyond");
        assert!(matches!(far, Error::OutOfBounds { offset: u64::MAX, .. }));
        assert_eq!(endpoint.fetch_add(&bench.capability, 4, 1).await, Err(Error::Misaligned(4)));
        let mut other = bench.capability;
        other.secret = rma::CapabilitySecret::random();
        assert_eq!(endpoint.fetch_add(&other, 0, 1).await, Err(Error::Unknown));
        let mut other = bench.capability;
        other.node = NodeId(8);
        assert_eq!(endpoint.fetch_add(&other, 0, 1).await, Err(Error::Unknown));
        host.revoke(&bench.capability).await.expect("it is a grant of the host's");
        host.revoke(&bench.capability).await.expect("twice does no harm");
        assert_eq!(endpoint.fetch_add(&bench.capability, 0, 1).await, Err(Error::Revoked));
        endpoint.read(&reader, 0, 8, BytesMut::new()).await.expect("the other grant is in force");
        host.deregister(bench.capability.region).await.expect("it is a region of the host's");
        assert_eq!(endpoint.read(&reader, 0, 8, BytesMut::new()).await.expect_err("it is gone"), Error::Revoked);
    });
}

#[test]
fn messages_of_all_sizes_arrive_in_both_directions_beside_verbs() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            let Bench { endpoint, accepted, capability, host: _host, .. } = bench;
            let sizes: Vec<usize> = (0..3000).map(|n| (n * 37) % 5000).chain([3 << 20, 0, 70 << 20, 5]).collect();
            let exchange = |from: Endpoint, to: Endpoint, sizes: Vec<usize>| {
                let lengths = sizes.clone();
                let sending = rt::spawn(async move {
                    for (seed, length) in lengths.into_iter().enumerate() {
                        let bytes = pattern(length, seed);
                        from.send(&[bytes.slice(..length / 2), bytes.slice(length / 2..)]).await.expect("it is open");
                    }
                });
                rt::spawn(async move {
                    for (seed, length) in sizes.into_iter().enumerate() {
                        let IncomingEvent::Message(message) = to.receive().await.expect("it was sent") else {
                            panic!("no message")
                        };
                        assert!(message == pattern(length, seed), "message {seed} of {length} bytes is another");
                    }
                    sending.await.expect("nothing aborts it");
                })
            };
            let there = exchange(endpoint.clone(), accepted.clone(), sizes.clone());
            let back = exchange(accepted.clone(), endpoint.clone(), sizes);
            for round in 0..2000 {
                assert_eq!(endpoint.fetch_add(&capability, 0, 1).await.expect("it is allowed"), round);
            }
            there.await.expect("nothing aborts it");
            back.await.expect("nothing aborts it");
            drop(accepted);
        });
    }
}

#[test]
fn verbs_complete_while_messages_wait_for_a_receiver() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        // More than the window in both directions, and neither end receives.
        let mut waiting = Vec::new();
        for _ in 0..3000 {
            drop(bench.accepted.send(&[pattern(10, 1)]));
            waiting.push(bench.endpoint.send(&[pattern(10, 1)]));
        }
        let other = bench.provider.connect(&bench.host.address(), &credential()).await.expect("the token is right");
        other.fetch_add(&bench.capability, 0, 1).await.expect("the progress thread does not wait");
        // Behind the messages on the same connection, as soon as those are received.
        let behind = bench.endpoint.fetch_add(&bench.capability, 0, 1);
        for _ in 0..3000 {
            assert_eq!(bench.accepted.receive().await, Ok(IncomingEvent::Message(pattern(10, 1))));
        }
        assert_eq!(behind.await, Ok(1));
        for _ in 0..3000 {
            assert_eq!(bench.endpoint.receive().await, Ok(IncomingEvent::Message(pattern(10, 1))));
        }
        for sent in waiting {
            sent.await.expect("it was received");
        }
    });
}

#[test]
fn immediate_data_comes_after_its_bytes() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        for round in 0..2000_u32 {
            let bytes = pattern(100, round as usize);
            let write = bench.endpoint.write_with_immediate(&bench.capability, 40, &[bytes], round);
            write.await.expect("it is allowed");
            let expected =
                IncomingEvent::Immediate { immediate: round, region: bench.capability.region, offset: 40, length: 100 };
            assert_eq!(bench.accepted.receive().await, Ok(expected));
        }
        // A rejected write is not announced, and does not use up the window.
        for _ in 0..3000 {
            let refused = bench.endpoint.write_with_immediate(&bench.capability, REGION_BYTES, &[pattern(1, 1)], 1);
            assert!(matches!(refused.await, Err(Error::OutOfBounds { .. })));
        }
        bench.endpoint.send(&[pattern(3, 3)]).await.expect("it is open");
        assert_eq!(bench.accepted.receive().await, Ok(IncomingEvent::Message(pattern(3, 3))));
    });
}

#[test]
fn a_lost_host_leaves_ambiguous_verbs_and_a_closed_endpoint() {
    for options in ways() {
        run(async {
            let bench = bench(options).await;
            let writes: Vec<_> =
                (0..4).map(|_| bench.endpoint.write(&bench.capability, 0, &[pattern(1 << 20, 1)])).collect();
            // The writes were posted and not started.
            bench.host.close().await;
            for write in writes {
                assert_eq!(write.await.expect_err("the host has gone").kind(), ErrorKind::Ambiguous);
            }
            let later = bench.endpoint.fetch_add(&bench.capability, 0, 1).await;
            assert_eq!(later, Err(Error::Closed));
            assert_eq!(bench.endpoint.receive().await, Err(Error::Closed));
            assert_eq!(bench.accepted.receive().await, Err(Error::Closed));
            assert_eq!(bench.host.accept().await.map(|_| ()), Err(Error::Closed));
        });
    }
}

#[test]
fn a_dropped_host_ends_its_connections() {
    run(async {
        let Bench { provider, host, endpoint, accepted, capability } = bench(TcpConfig::default()).await;
        let address = host.address();
        drop(host);
        assert_eq!(endpoint.receive().await, Err(Error::Closed));
        assert_eq!(endpoint.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
        assert_eq!(accepted.receive().await, Err(Error::Closed));
        let refused = provider.connect(&address, &credential()).await.map(|_| ());
        assert!(matches!(refused, Err(Error::Unreachable { .. } | Error::Rejected(_))), "{refused:?}");
    });
}

#[test]
fn an_endpoint_that_is_closed_says_so_on_both_sides() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        let verb = bench.endpoint.fetch_add(&bench.capability, 0, 1);
        bench.endpoint.close();
        assert_eq!(verb.await.expect_err("it was in flight").kind(), ErrorKind::Ambiguous);
        assert_eq!(bench.endpoint.fetch_add(&bench.capability, 0, 1).await, Err(Error::Closed));
        assert_eq!(bench.accepted.receive().await, Err(Error::Closed));
    });
}

#[test]
fn strangers_are_refused() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        let address = bench.host.address();
        for (name, token) in [("compute0", [8; 32]), ("compute2", [7; 32])] {
            let credential = Credential { name: name.to_owned(), token: Token::new(token) };
            let refused = bench.provider.connect(&address, &credential).await.map(|_| ());
            assert!(matches!(refused, Err(Error::Rejected(_))), "{refused:?}");
        }
        let nobody = bench.provider.connect("127.0.0.1:1", &credential()).await.map(|_| ());
        assert!(matches!(nobody, Err(Error::Unreachable { .. })), "{nobody:?}");
        let taken = bench.provider.host(&address, host_options()).await.map(|_| ());
        assert!(matches!(taken, Err(Error::System { .. })), "{taken:?}");
    });
}

#[test]
fn certificates_of_others_are_refused_on_both_sides() {
    run(async {
        let (ours, theirs) = (authority(), authority());
        let options = |tls| TcpConfig { tls, ..TcpConfig::default() };
        let bench = bench(options(Some(tls_of(&ours)))).await;
        for stranger in [options(Some(tls_of(&theirs))), options(None)] {
            let stranger = TcpProvider::new(stranger);
            assert!(stranger.connect(&bench.host.address(), &credential()).await.is_err());
        }
        // The host keeps serving.
        bench.endpoint.fetch_add(&bench.capability, 0, 1).await.expect("it is allowed");
    });
}

/// A connection with a valid handshake, over which the test sends hostile bytes. The test knows the token, so its handshake is
/// the provider's.
struct Hostile(TcpStream);

impl Hostile {
    fn connect(address: &str) -> Hostile {
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("it can be set");
        let mut hello = b"HDLRMATC\x01\0\0\0\x01\0\0\0\x08\0\0\0".to_vec();
        hello.extend([1; 32]);
        hello.extend(b"compute0");
        hello.resize(116, 0);
        socket.write_all(&hello).expect("it listens");
        let mut challenge = [0; 88];
        socket.read_exact(&mut challenge).expect("the hello is right");
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, TOKEN.bytes());
        let said = [b"heddle rma tcp client\0", &hello[..], &challenge[8..56], &[0; 32]].concat();
        socket.write_all(aws_lc_rs::hmac::sign(&key, &said).as_ref()).expect("it listens");
        let mut verdict = [1; 8];
        socket.read_exact(&mut verdict).expect("the proof is right");
        assert_eq!(verdict, [0; 8]);
        Hostile(socket)
    }

    /// Sends bytes and no more; ignores the host's answers until it hangs up.
    fn send(mut self, bytes: &[u8]) {
        // The host may hang up before all bytes are sent.
        let _ = self.0.write_all(bytes);
        let _ = self.0.shutdown(Shutdown::Write);
        let mut waste = [0; 4096];
        while matches!(self.0.read(&mut waste), Ok(1..)) {}
    }
}

#[test]
fn hostile_bytes_end_their_connection_and_harm_nothing() {
    run(async {
        let bench = bench(TcpConfig::default()).await;
        bench.endpoint.fetch_add(&bench.capability, 0, 41).await.expect("it is allowed");
        let address = bench.host.address();
        let header = |kind: u8, length: u64| {
            let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(length.to_le_bytes());
            bytes
        };
        let mut hostile = vec![
            vec![],
            vec![0xff; 10_000],
            header(1, u64::MAX),
            header(2, (64 << 20) + 1),
            header(6, (128 << 20) + 1),
            header(6, 128 << 20),
            header(7, 1),
            header(0x81, 0),
            [header(2, 64 << 20), vec![0; 64]].concat(),
        ];
        // More messages than the window allows.
        hostile.push(header(6, 0).repeat(1025));
        let keep = rt::spawn({
            let host = Arc::clone(&bench.host);
            async move {
                let mut kept = Vec::new();
                while let Ok(endpoint) = host.accept().await {
                    kept.push(endpoint);
                }
            }
        })
        .abort_on_drop();
        for bytes in hostile {
            let address = address.clone();
            rt::blocking(move || Hostile::connect(&address).send(&bytes)).await;
        }
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 500]] {
            let address = address.clone();
            rt::blocking(move || Hostile(TcpStream::connect(address).expect("it listens")).send(bytes)).await;
        }
        assert_eq!(bench.endpoint.fetch_add(&bench.capability, 0, 1).await, Ok(41));
        drop(keep);
    });
}

/// A frame that a hostile peer may send: nonsense, and frames that are nearly right.
fn hostile_frame() -> impl Strategy<Value = Vec<u8>> {
    let nearly = (0_u8..9, 0_u64..200, any::<[u8; 64]>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(
        |(kind, length, mut verb, payload)| {
            let mut bytes = vec![kind, 0, 0, 0, 0, 0, 0, 0];
            bytes.extend(length.to_le_bytes());
            verb[0..4].copy_from_slice(&9_u32.to_le_bytes());
            verb[10] &= 7;
            verb[11..16].fill(0);
            bytes.extend(verb);
            bytes.extend(payload);
            bytes
        },
    );
    prop_oneof![nearly, prop::collection::vec(any::<u8>(), 0..300)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn whatever_one_connection_sends_the_others_are_served(
        frames in prop::collection::vec(hostile_frame(), 1..20),
    ) {
        run(async {
            let bench = bench(TcpConfig::default()).await;
            let address = bench.host.address();
            rt::blocking(move || Hostile::connect(&address).send(&frames.concat())).await;
            // It knew no capability, so the region is unchanged.
            let bytes = bench.endpoint.read(&bench.capability, 0, 1 << 20, BytesMut::new()).await;
            assert!(bytes.expect("it is allowed").iter().all(|byte| *byte == 0));
        });
    }
}

async fn links(scheme: &str) -> (Listener, Link, Link) {
    let tokens: rma::TokenLookup = Arc::new(|name: &str| (name == "compute0").then_some(TOKEN));
    let provider: Arc<dyn Provider> = Arc::new(TcpProvider::new(TcpConfig::default()));
    net::register(scheme, Arc::new(RmaTransport::new(provider, credential(), tokens)));
    let mut listener = net::listen(&format!("{scheme}:127.0.0.1:0")).await.expect("a port is free");
    let near = net::connect(listener.address()).await.expect("it listens");
    let far = listener.accept().await.expect("it was connected to");
    (listener, near, far)
}

#[test]
fn links_carry_messages_of_all_sizes_in_order() {
    run(async {
        let (_listener, near, mut far) = links("rma-order").await;
        assert_eq!(far.peer(), Some("compute0"));
        let sizes: Vec<usize> = (0..5000).map(|n| n % 371).chain([40 << 20, 0, 1, 3 << 20]).collect();
        let lengths = sizes.clone();
        let sending = rt::spawn(async move {
            for (seed, length) in lengths.into_iter().enumerate() {
                near.send(pattern(length, seed)).await.expect("the other side receives");
            }
        });
        for (seed, length) in sizes.into_iter().enumerate() {
            assert!(far.receive().await.expect("it was sent") == pattern(length, seed), "message {seed}");
        }
        // The sender was dropped with its task.
        sending.await.expect("nothing aborts it");
        assert_eq!(far.receive().await, Err(Closed));
    });
}

#[test]
fn what_was_sent_before_a_link_was_dropped_arrives() {
    run(async {
        let (_listener, near, mut far) = links("rma-drop").await;
        far.send(pattern(1 << 20, 1)).await.expect("there is room");
        for seed in 0..100 {
            near.send(pattern(50_000, seed)).await.expect("the other side receives");
        }
        drop(near);
        for seed in 0..100 {
            assert!(far.receive().await.expect("it was sent") == pattern(50_000, seed));
        }
        assert_eq!(far.receive().await, Err(Closed));
        // The notice that the receiver was dropped comes before that of the end.
        assert_eq!(far.send(pattern(1, 1)).await, Err(Closed));
    });
}

#[test]
fn each_half_of_a_link_closes_by_itself() {
    run(async {
        let (_listener, near, far) = links("rma-half").await;
        let (to_far, mut at_near) = near.split();
        let (to_near, mut at_far) = far.split();
        drop(to_far);
        assert_eq!(at_far.receive().await, Err(Closed));
        to_near.send(pattern(10, 1)).await.expect("this direction is open");
        assert_eq!(at_near.receive().await, Ok(pattern(10, 1)));
        drop(to_near);
        assert_eq!(at_near.receive().await, Err(Closed));
    });
}
