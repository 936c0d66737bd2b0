//! The `tcp` provider against attackers with sockets of their own: offsets beyond all regions, crowds of unauthenticated
//! connections, a tenant that wants every connection, and panics that a connection triggers.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use base::rt::{self, production};
use base::{Bytes, BytesMut};
use rma::tcp::{TcpConfig, TcpProvider};
use rma::{Capability, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, Rights, Token};

/// Generous: nothing is measured, only a test that hangs must fail.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const TOKEN: Token = Token::new([7; 32]);
const REGION_BYTES: u64 = 1 << 20;

const READ: u8 = 1;
const WRITE: u8 = 2;
const WRITE_WITH_IMMEDIATE: u8 = 3;
const COMPARE_SWAP: u8 = 4;
const MESSAGE: u8 = 6;
const CREDIT: u8 = 7;

fn run<F: Future<Output = ()>>(test: F) {
    production::run(async { rt::timeout(TEST_TIMEOUT, test).await.expect("nothing hangs") });
}

fn credential(name: &str) -> Credential {
    Credential { name: name.to_owned(), token: TOKEN }
}

/// A host that knows every name but `stranger`, and panics when the name is `bomb`.
async fn host() -> Arc<dyn Host> {
    host_with(TcpProvider::default()).await
}

async fn host_with(provider: TcpProvider) -> Arc<dyn Host> {
    let tokens = Arc::new(|name: &str| {
        assert_ne!(name, "bomb", "a panic that a test has asked for");
        (name != "stranger").then_some(TOKEN)
    });
    provider.host("127.0.0.1:0", HostConfig { node: NodeId(9), tokens }).await.expect("a port is free")
}

async fn connect(host: &Arc<dyn Host>, name: &str) -> Endpoint {
    TcpProvider::default().connect(&host.address(), &credential(name)).await.expect("the host serves")
}

/// Accepts every connection, as long as this lives.
fn accept_all(host: &Arc<dyn Host>) -> rt::AbortOnDrop<()> {
    let host = Arc::clone(host);
    let accepting = rt::spawn(async move {
        let mut kept = Vec::new();
        while let Ok(endpoint) = host.accept().await {
            kept.push(endpoint);
        }
    });
    accepting.abort_on_drop()
}

async fn region(host: &Arc<dyn Host>, holder: &str) -> Capability {
    let region = host.register("test", REGION_BYTES).await.expect("there is memory");
    host.grant(region, Rights::ALL, holder).expect("the region is there")
}

fn hello(version: u8, name: &str) -> Vec<u8> {
    let mut hello = b"HDLRMATC\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    (hello[8], hello[12]) = (version, version);
    hello[16] = name.len() as u8;
    hello.extend([1; 32]);
    hello.extend(name.as_bytes());
    hello.resize(116, 0);
    hello
}

/// A connection with a valid handshake, over which a test can send any bytes.
struct Raw(TcpStream);

impl Raw {
    fn connect(address: &str, name: &str) -> io::Result<Raw> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(TEST_TIMEOUT))?;
        let hello = hello(1, name);
        socket.write_all(&hello)?;
        let mut challenge = [0; 88];
        socket.read_exact(&mut challenge)?;
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, TOKEN.bytes());
        let said = [b"heddle rma tcp client\0", &hello[..], &challenge[8..56], &[0; 32]].concat();
        socket.write_all(aws_lc_rs::hmac::sign(&key, &said).as_ref())?;
        let mut verdict = [1; 8];
        socket.read_exact(&mut verdict)?;
        if verdict == [0; 8] { Ok(Raw(socket)) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("the host reads");
    }

    /// The status of the next reply; skips its payload and credit before it.
    fn status(&mut self) -> u8 {
        loop {
            let mut header = [0; 16];
            self.0.read_exact(&mut header).expect("the host answers");
            if header[0] == CREDIT {
                continue;
            }
            assert!(header[0] == 0x81 || header[0] == 0x82, "{header:?}");
            let length = u64::from_le_bytes(header[8..].try_into().expect("eight bytes"));
            let trailer = if header[0] == 0x82 { 8 } else { 0 };
            let mut payload = vec![0; length as usize + trailer];
            self.0.read_exact(&mut payload).expect("the host answers");
            return header[1];
        }
    }
}

fn verb(kind: u8, length: u64, capability: &[u8; 40], offset: u64) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 5, 0, 0, 0];
    bytes.extend(length.to_le_bytes());
    bytes.extend(capability);
    bytes.extend(offset.to_le_bytes());
    bytes.extend([0; 16]);
    bytes
}

/// Regression: the memory node added the offset of a write that it had already rejected to the number of bytes received. With
/// an offset near 2^64 the sum overflowed, and the panic ended the thread that served all connections; no capability was
/// needed.
#[test]
fn offsets_beyond_every_region_are_refused_and_harm_nobody() {
    run(async {
        let host = host().await;
        let good = region(&host, "hostile").await;
        let another = region(&host, "honest").await;
        let honest = connect(&host, "honest").await;
        let address = host.address();
        let attack = rt::blocking(move || {
            let mut raw = Raw::connect(&address, "hostile").expect("it listens");
            let capabilities = [good.encode(), another.encode(), [0; 40]];
            let offsets = [
                u64::MAX,
                u64::MAX - 7,
                u64::MAX - REGION_BYTES,
                1 << 63,
                REGION_BYTES + 1,
                REGION_BYTES,
                REGION_BYTES - 1,
                REGION_BYTES - 7,
            ];
            for (number, capability) in capabilities.iter().enumerate() {
                for offset in offsets {
                    for length in [8_u64, 9, 4096, 1 << 20] {
                        let refused = if number == 0 { 4 } else { 2 };
                        for kind in [WRITE, WRITE_WITH_IMMEDIATE] {
                            raw.send(&verb(kind, length, capability, offset));
                            // In two pieces, the first of which is not a whole number of words.
                            let payload = vec![0xee; length as usize];
                            raw.send(&payload[..length as usize / 2 + 3]);
                            raw.send(&payload[length as usize / 2 + 3..]);
                            assert_eq!(raw.status(), refused, "kind {kind}, {length} bytes at {offset}");
                        }
                        raw.send(&verb(READ, length, capability, offset));
                        assert_eq!(raw.status(), refused, "a read of {length} bytes at {offset}");
                    }
                    raw.send(&verb(COMPARE_SWAP, 8, capability, offset));
                    let misaligned = !offset.is_multiple_of(8);
                    let refused = if misaligned {
                        5
                    } else if number == 0 {
                        4
                    } else {
                        2
                    };
                    assert_eq!(raw.status(), refused, "a swap at {offset}");
                }
            }
            // The connection still works.
            raw.send(&[verb(WRITE, 8, &good.encode(), 64), vec![1; 8]].concat());
            assert_eq!(raw.status(), 0);
        });
        attack.await;
        assert_eq!(honest.fetch_add(&another, 0, 1).await, Ok(0));
        let contents = honest.read(&another, 0, REGION_BYTES as usize, BytesMut::new()).await.expect("it is granted");
        assert!(contents[8..].iter().all(|byte| *byte == 0), "a write that was refused took effect");
        let owned = host.load(good.region, 0, REGION_BYTES as usize).expect("the region is there");
        assert_eq!(owned.iter().filter(|byte| **byte != 0).count(), 8);
    });
}

/// As above, but the capability is revoked while the bytes are in transit.
#[test]
fn a_write_that_is_revoked_midway_is_thrown_away_from_there_on() {
    run(async {
        let host = host().await;
        let region = host.register("test", REGION_BYTES).await.expect("there is memory");
        let honest = connect(&host, "honest").await;
        let watched = host.grant(region, Rights::ALL, "honest").expect("the region is there");
        let mut raw = {
            let address = host.address();
            rt::blocking(move || Raw::connect(&address, "hostile").expect("it listens")).await
        };
        for (offset, length) in [(0, 1 << 19), (REGION_BYTES - (1 << 19), 1 << 19), (3, 70_001)] {
            let stale = host.grant(region, Rights::WRITE, "hostile").expect("there are grants left");
            let half = length as usize / 2;
            raw.send(&[verb(WRITE, length, &stale.encode(), offset), vec![0xee; half]].concat());
            // Wait until a part has landed.
            while honest.read(&watched, offset, 64, BytesMut::new()).await.expect("it is granted")[56] != 0xee {
                rt::yield_now().await;
            }
            host.revoke(&stale).await.expect("the grant is there");
            let after = Bytes::from(vec![0x11; REGION_BYTES as usize]);
            honest.write(&watched, 0, &[after]).await.expect("it is granted");
            raw.send(&vec![0xee; length as usize - half]);
            // Ambiguous: a part of the write had taken effect.
            assert_eq!(raw.status(), 7);
            let contents = honest.read(&watched, 0, REGION_BYTES as usize, BytesMut::new()).await.expect("granted");
            assert!(contents.iter().all(|byte| *byte == 0x11), "bytes landed after the revocation");
            let zeroes = Bytes::from(vec![0; REGION_BYTES as usize]);
            honest.write(&watched, 0, &[zeroes]).await.expect("it is granted");
        }
    });
}

/// Raises the limit of descriptors of this process to the maximum.
fn raise_descriptor_limit() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
    let most = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
    usize::try_from(most).unwrap_or(1 << 20)
}

/// Regression: 700 silent sockets all but closed a memory node's port, which had stopped listening; and 4,100 hellos of another
/// version closed it for ten seconds, since rejected connections were kept.
#[test]
fn an_owner_connects_at_once_among_thousands_of_strangers() {
    run(async {
        let limit = raise_descriptor_limit();
        // Both ends are in this process, which runs other tests at the same time.
        let (silent, versions) = if limit >= 16_000 { (1000, 5000) } else { (limit / 16, limit / 4) };
        let host = host().await;
        let capability = region(&host, "owner").await;
        let address = host.address();
        let crowd = rt::blocking(move || {
            let mut crowd = Vec::new();
            for number in 0..silent + versions {
                let mut socket = TcpStream::connect(&address).expect("the port stays open");
                if number >= silent {
                    // It may have been displaced already.
                    let _ = socket.write_all(&hello(9, "owner"));
                }
                crowd.push(socket);
            }
            crowd
        });
        let crowd = crowd.await;
        // Far more time than needed on a busy machine; behind the crowd it would wait until all of the crowd was overdue.
        let owner = rt::timeout(Duration::from_secs(5), connect(&host, "owner")).await;
        let owner = owner.expect("an owner waits for no stranger");
        assert_eq!(owner.fetch_add(&capability, 0, 1).await, Ok(0));
        // All rejected or displaced connections have ended, and none was kept.
        let ended = rt::blocking(move || {
            let mut last = crowd;
            for socket in &mut last {
                socket.set_read_timeout(Some(TEST_TIMEOUT)).expect("it can be set");
                let mut waste = Vec::new();
                // An end or a reset, either is fine.
                let _ = socket.read_to_end(&mut waste);
                assert!(waste.is_empty() || waste.len() == 88, "{} bytes for a stranger", waste.len());
            }
        });
        ended.await;
    });
}

/// Regression: one name could use up all connections of a host.
#[test]
fn a_name_that_takes_every_place_displaces_itself_alone() {
    run(async {
        if raise_descriptor_limit() < 8_000 {
            return;
        }
        let host = host().await;
        let capability = region(&host, "honest").await;
        let honest = connect(&host, "honest").await;
        let _accepting = accept_all(&host);
        let address = host.address();
        let greedy = rt::blocking(move || {
            let mut kept = Vec::new();
            while kept.len() < 600 {
                // Sometimes the host has not accepted the earlier ones yet.
                kept.extend(Raw::connect(&address, "greedy"));
            }
            kept
        });
        let mut greedy = greedy.await;
        let other = connect(&host, "another").await;
        assert_eq!(honest.fetch_add(&capability, 0, 1).await, Ok(0));
        drop(other);
        // The newest is served, and the oldest has ended.
        let (first, last) = (0, greedy.len() - 1);
        let outcome = rt::blocking(move || {
            greedy[last].send(&verb(READ, 8, &[0; 40], 0));
            let served = greedy[last].status();
            let mut byte = [0];
            (served, matches!(greedy[first].0.read(&mut byte), Ok(0) | Err(_)))
        });
        assert_eq!(outcome.await, (2, true));
    });
}

/// Regression: eight connections of one tenant, each with 64 MiB of a message that never ended, made a memory node half a
/// gigabyte larger.
#[test]
fn unfinished_messages_of_a_name_stay_within_its_budget() {
    const MIB: usize = 1 << 20;
    run(async {
        let host = host().await;
        let begin = |name: &'static str| {
            let address = host.address();
            rt::blocking(move || {
                let mut raw = Raw::connect(&address, name).expect("it listens");
                let mut head = vec![MESSAGE, 0, 0, 0, 1, 0, 0, 0];
                head.extend((100 * MIB as u64).to_le_bytes());
                raw.send(&head);
                let sent = raw.0.write_all(&vec![7; 80 * MIB]);
                (raw, sent)
            })
        };
        let (mut first, sent) = begin("greedy").await;
        sent.expect("the budget covers one such message");
        let at_host = host.accept().await.expect("it proved itself");
        let (_second, sent) = begin("greedy").await;
        sent.expect_err("the budget covers no second one");
        drop(host.accept().await.expect("it proved itself"));
        let other = connect(&host, "another").await;
        let others = host.accept().await.expect("it proved itself");
        let sent = other.send(&[Bytes::from(vec![8; 100 * MIB])]);
        let received = others.receive().await.expect("another name has its own budget");
        assert!(matches!(received, IncomingEvent::Message(bytes) if bytes.len() == 100 * MIB));
        sent.await.expect("it was taken");
        rt::blocking(move || first.send(&vec![7; 20 * MIB])).await;
        let received = at_host.receive().await.expect("the first connection is still there");
        assert!(matches!(received, IncomingEvent::Message(bytes) if bytes.len() == 100 * MIB));
    });
}

/// Regression: a tenant started messages and writes and never finished them. The received parts stayed in memory for as long as
/// the connections did.
#[test]
fn a_frame_that_is_never_finished_ends_its_connection() {
    run(async {
        let options = TcpConfig { pause_max: Duration::from_millis(300), ..TcpConfig::default() };
        let host = host_with(TcpProvider::new(options)).await;
        let capability = region(&host, "honest").await;
        let honest = connect(&host, "honest").await;
        let message = [&[MESSAGE, 0, 0, 0, 1, 0, 0, 0][..], &(1_u64 << 20).to_le_bytes(), &[7; 100]].concat();
        // A long message, a header that is cut off, and the same behind a whole message.
        let small = [&[MESSAGE, 0, 0, 0, 1, 0, 0, 0][..], &2_u64.to_le_bytes(), &[7; 2]].concat();
        let cut = [small, vec![MESSAGE, 0, 0]].concat();
        for begun in [message, vec![MESSAGE, 0, 0], cut] {
            let address = host.address();
            let ended = rt::blocking(move || {
                let mut raw = Raw::connect(&address, "patient").expect("it listens");
                raw.send(&begun);
                raw.0.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
                // There is no answer: the connection ends.
                let mut heard = [0; 64];
                loop {
                    match raw.0.read(&mut heard) {
                        Ok(0) => return true,
                        Ok(_) => {}
                        Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
                    }
                }
            });
            assert!(ended.await, "the connection ends");
        }
        // A connection without an unfinished frame stays, however long it is silent.
        assert_eq!(honest.fetch_add(&capability, 0, 1).await, Ok(0));
    });
}

/// Regression: a defect that one tenant's bytes could trigger ended the memory of every tenant.
#[test]
fn a_panic_while_one_connection_is_served_ends_that_one_alone() {
    run(async {
        let host = host().await;
        let capability = region(&host, "honest").await;
        let honest = connect(&host, "honest").await;
        for _ in 0..3 {
            let address = host.address();
            let bomb = rt::blocking(move || Raw::connect(&address, "bomb").map(drop));
            assert!(bomb.await.is_err(), "it was served");
        }
        assert_eq!(honest.fetch_add(&capability, 0, 1).await, Ok(0));
        let another = connect(&host, "honest").await;
        assert_eq!(another.fetch_add(&capability, 0, 1).await, Ok(1));
    });
}

struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a panic that a test has asked for");
    }
}

/// Regression: when the thread that served a memory node died, the process kept running; its health check reported that all was
/// well, and it was not restarted. Here the waker of a receiver, called at the end of its connection, stands for a defect of
/// that thread.
#[test]
fn a_host_whose_progress_thread_panics_ends_and_says_why() {
    run(async {
        let host = host().await;
        let capability = region(&host, "honest").await;
        let honest = connect(&host, "honest").await;
        let accepted = host.accept().await.expect("it was connected to");
        let doomed = connect(&host, "doomed").await;
        let receiver = host.accept().await.expect("it was connected to");
        let waker = Waker::from(Arc::new(Bomb));
        assert!(receiver.poll_receive(&mut Context::from_waker(&waker)).is_pending());
        drop(doomed);
        let reason = host.failed().await;
        assert!(reason.contains("a panic that a test has asked for"), "{reason}");
        assert_eq!(host.accept().await.map(drop), Err(Error::Closed));
        assert_eq!(host.register("test", 4096).await, Err(Error::Closed));
        assert_eq!(accepted.receive().await, Err(Error::Closed));
        assert_eq!(honest.receive().await, Err(Error::Closed));
        assert_eq!(honest.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
        std::mem::forget(receiver);
    });
}
