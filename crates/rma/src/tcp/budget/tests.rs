use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use base::rt::{self, production};
use base::untrusted::Untrusted;
use base::{Bytes, BytesMut};

use super::*;
use crate::tcp::handshake::{self, CHALLENGE_BYTES, VERDICT_BYTES};
use crate::tcp::host::TcpHost;
use crate::tcp::wire::{FrameHeader, FrameKind, HEADER_BYTES, VerbFrame};
use crate::tcp::{TcpConfig, TcpProvider};
use crate::{
    Capability, Credential, Endpoint, Host as _, HostConfig, IncomingEvent, NodeId, Provider as _, Rights, Token,
};

/// Generous: nothing is measured, only a test that hangs must fail.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const TOKEN: Token = Token::new([7; 32]);
const BUDGET_BYTES: usize = 8 << 20;
const CONNECTIONS: usize = 64;
/// A read that is copied.
const READ_BYTES: usize = 48 << 10;

fn run<F: Future<Output = ()>>(test: F) {
    production::run(async { rt::timeout(TEST_TIMEOUT, test).await.expect("nothing hangs") });
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            rt::sleep(Duration::from_millis(1)).await;
        }
    };
    rt::timeout(TEST_TIMEOUT / 2, waiting).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn credential(name: &str) -> Credential {
    Credential { name: name.to_owned(), token: TOKEN }
}

fn host() -> TcpHost {
    let tcp = TcpConfig { untaken_bytes_max: BUDGET_BYTES, reply_bytes_max: BUDGET_BYTES, ..TcpConfig::default() };
    let options = HostConfig { node: NodeId(9), tokens: Arc::new(|_| Some(TOKEN)) };
    TcpHost::start("127.0.0.1:0", options, tcp).expect("a port is free")
}

/// Both ends of a new connection.
async fn connect(host: &TcpHost, name: &str) -> (Endpoint, Endpoint) {
    let near = TcpProvider::default().connect(&host.address(), &credential(name)).await.expect("the host serves");
    (near, host.accept().await.expect("it was connected to"))
}

async fn region(host: &TcpHost, holder: &str) -> Capability {
    let region = host.register("test", 1 << 20).await.expect("there is memory");
    host.grant(region, Rights::ALL, holder).expect("the region is there")
}

fn budget_of(host: &TcpHost, name: &str) -> Arc<NameBudget> {
    host.shared().budget_of(&Arc::from(name))
}

async fn receive(from: &Endpoint) -> Bytes {
    match from.receive().await.expect("it is open") {
        IncomingEvent::Message(bytes) => bytes,
        other => panic!("nobody sent {other:?}"),
    }
}

/// Regression: each of a name's 512 connections could leave 64 MiB of untaken messages at a host.
#[test]
fn untaken_messages_of_a_name_stay_within_its_budget_and_all_arrive() {
    // Messages that share one buffer, and messages with a buffer each; without a budget 75 MiB of either would wait.
    for (length, count) in [(3 << 10, 400), (300 << 10, 4)] {
        run(async {
            let host = host();
            let capabilities = (region(&host, "greedy").await, region(&host, "other").await);
            let budget = budget_of(&host, "greedy");
            let mut connections = Vec::new();
            let mut sent = Vec::new();
            for _ in 0..CONNECTIONS {
                let (near, far) = connect(&host, "greedy").await;
                sent.extend((0..count).map(|number| near.send(&[Bytes::from(vec![number as u8; length])])));
                connections.push((near, far));
            }
            until("the budget is full, and connections wait", || budget.is_full() && budget.has_waiting()).await;
            // The budget and one more message, or the growth of a buffer of small ones.
            let most = BUDGET_BYTES + (2 << 20);
            let check = || {
                let untaken = budget.untaken.load(Ordering::SeqCst);
                assert!(untaken <= most, "{untaken} bytes of messages of {length} bytes wait to be taken");
            };

            // Another name is not affected, and verbs and short messages of the same name continue.
            let (near, far) = connect(&host, "other").await;
            let (own_near, own_far) = connect(&host, "greedy").await;
            for round in 0..50 {
                check();
                assert_eq!(near.fetch_add(&capabilities.1, 0, 1).await, Ok(round));
                near.send(&[Bytes::from(vec![8; 300 << 10])]).await.expect("another name has its own budget");
                assert_eq!(receive(&far).await.len(), 300 << 10);
                assert_eq!(own_near.fetch_add(&capabilities.0, 0, 1).await, Ok(round));
                own_near.send(&[Bytes::from_static(b"short")]).await.expect("it is within the window");
                assert_eq!(receive(&own_far).await, "short");
            }

            // A receiver that takes all messages of one connection before it turns to the next gets all of them.
            for (_, far) in &connections {
                for number in 0..count {
                    let message = receive(far).await;
                    assert!(message.len() == length && message.iter().all(|byte| *byte == number as u8));
                    check();
                }
            }
            for completion in sent {
                completion.await.expect("it was taken");
            }
            assert_eq!((budget.untaken.load(Ordering::SeqCst), budget.has_waiting()), (0, false));
        });
    }
}

/// Concurrent receivers, each as fast as it can: no connection waits once all messages are taken.
#[test]
fn connections_that_wait_have_their_turns_as_messages_are_taken() {
    run(async {
        let host = host();
        let budget = budget_of(&host, "greedy");
        let length = 100 << 10;
        let mut receivers = Vec::new();
        for _ in 0..16 {
            let (near, far) = connect(&host, "greedy").await;
            let sent: Vec<_> = (0..60).map(|_| near.send(&[Bytes::from(vec![5; length])])).collect();
            receivers.push((near, far, sent));
        }
        until("the budget is full, and connections wait", || budget.is_full() && budget.has_waiting()).await;
        let tasks: Vec<_> = receivers
            .into_iter()
            .map(|(near, far, sent)| {
                rt::spawn(async move {
                    for _ in 0..60 {
                        assert_eq!(receive(&far).await.len(), length);
                    }
                    for completion in sent {
                        completion.await.expect("it was taken");
                    }
                    drop(near);
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("nothing aborts it");
        }
        assert_eq!((budget.untaken.load(Ordering::SeqCst), budget.has_waiting()), (0, false));
    });
}

/// Messages that can no longer be taken stop counting, and a connection that is lost while it waits leaves the queue.
#[test]
fn connections_that_end_give_their_part_of_the_budget_back() {
    run(async {
        let host = host();
        let budget = budget_of(&host, "greedy");
        let (near, far) = connect(&host, "greedy").await;
        let message = Bytes::from(vec![5; 1 << 20]);
        let sent: Vec<_> = (0..12).map(|_| near.send(std::slice::from_ref(&message))).collect();
        until("the budget is full", || budget.is_full() && budget.has_waiting()).await;
        let address = host.address();
        let raw = rt::blocking(move || {
            let mut raw = raw(&address, "greedy");
            // Shorter than what the socket buffers hold.
            let header = FrameHeader::new(FrameKind::Message, 0, 32 << 10).encode();
            raw.write_all(&[&header[..], &vec![6; 32 << 10]].concat()).expect("the host reads");
            raw
        });
        let raw = raw.await;
        let lost = host.accept().await.expect("it was connected to");
        until("both connections wait", || budget.waiting().len() == 2).await;
        // A reset: the host notices it, although it does not read.
        rustix::net::sockopt::set_socket_linger(&raw, Some(Duration::ZERO)).expect("a socket");
        drop(raw);
        until("one connection waits", || budget.waiting().len() == 1).await;
        assert_eq!(lost.receive().await, Err(crate::Error::Closed));
        drop(far);
        until("nothing counts", || budget.untaken.load(Ordering::SeqCst) == 0 && !budget.has_waiting()).await;
        drop((near, sent));
    });
}

/// A connection with a valid handshake and a small receive buffer.
fn raw(address: &str, name: &str) -> TcpStream {
    let mut socket = TcpStream::connect(address).expect("it listens");
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 64 << 10).expect("a socket");
    let hello = handshake::hello(name, &[1; 32]).expect("the name is short");
    socket.write_all(&hello).expect("the host reads");
    let mut challenge = [0; CHALLENGE_BYTES];
    socket.read_exact(&mut challenge).expect("the host answers");
    let (_, proof) = handshake::answer(&hello, &challenge, &[0; 32], &credential(name)).expect("it knows the token");
    socket.write_all(&proof).expect("the host reads");
    let mut verdict = [1; VERDICT_BYTES];
    socket.read_exact(&mut verdict).expect("the host answers");
    handshake::verdict(&verdict).expect("it is welcome");
    socket
}

/// Regression: each of a name's 512 connections could have 4 MiB of waiting replies that it did not read.
#[test]
fn replies_of_a_name_stay_within_its_budget_and_all_arrive() {
    const READS: usize = 60;
    run(async {
        let host = host();
        let capabilities = (region(&host, "deaf").await, region(&host, "other").await);
        let budget = budget_of(&host, "deaf");
        let verb = VerbFrame { capability: capabilities.0, offset: Untrusted::new(0), first: 0, second: 0 }.encode();
        let frame = [&FrameHeader::new(FrameKind::Read, 0, READ_BYTES as u64).encode()[..], &verb[..]].concat();
        let mut deaf = Vec::new();
        for _ in 0..CONNECTIONS {
            let (address, frames) = (host.address(), frame.repeat(READS));
            let connected = rt::blocking(move || {
                let mut socket = raw(&address, "deaf");
                socket.write_all(&frames).expect("the sockets take so much");
                socket
            });
            deaf.push((connected.await, host.accept().await.expect("it was connected to")));
        }
        until("the budget is used", || budget.is_crowded()).await;
        // A queue may double before the budget is used; after that each has one reply, and a buffer of at most this size.
        let most = 2 * BUDGET_BYTES + CONNECTIONS * (128 << 10);
        let held = || budget.replies.load(Ordering::Relaxed);
        let check = || assert!(held() <= most, "{} bytes for replies wait", held());
        let (near, _far) = connect(&host, "other").await;
        for round in 0..500 {
            check();
            assert_eq!(near.fetch_add(&capabilities.1, 0, 1).await, Ok(round));
        }
        let read = near.read(&capabilities.1, 0, 1 << 20, BytesMut::new()).await;
        assert_eq!(read.expect("another name has its own budget").len(), 1 << 20);
        let (_ends, sockets): (Vec<_>, Vec<_>) = deaf.into_iter().map(|(socket, far)| (far, socket)).unzip();
        let all_read = rt::blocking(move || {
            let mut bytes = vec![0; HEADER_BYTES + READ_BYTES];
            for mut socket in &sockets {
                for _ in 0..READS {
                    socket.read_exact(&mut bytes).expect("the host answers");
                    assert!(bytes[..2] == [0x81, 0] && bytes[HEADER_BYTES..].iter().all(|byte| *byte == 0));
                }
            }
            sockets
        });
        let sockets = all_read.await;
        check();
        until("queues keep little", || held() <= BUDGET_BYTES / 2 + CONNECTIONS * (128 << 10)).await;
        drop(sockets);
        until("nothing counts", || held() == 0).await;
    });
}
