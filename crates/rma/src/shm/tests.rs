//! Tests of the provider within one process, with and without a socket. `tests/rma/shm.rs` tests it with several processes.

use std::sync::Arc;

use base::rt::production::run;
use base::{Bytes, BytesMut, ErrorKind};
use wire::VersionRange;
use wire::hello::{HelloAnswer, VersionMismatch};

use super::connection_end::ConnectionEnd;
use super::host::ShmHost;
use super::message::SocketMessage;
use super::remote::{CloseEndOnDrop, CloseHostOnDrop};
use super::segment::ConnectionSegment;
use super::socket::{MessageSocket, SocketListener};
use super::{ShmConfig, ShmProvider};
use crate::{Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, Rights, Token};

const TOKEN: Token = Token::new([7; 32]);

fn credential() -> Credential {
    Credential { name: "caller".to_owned(), token: TOKEN }
}

/// A host and both ends of a connection to it.
struct Connected {
    host: Arc<dyn Host>,
    caller: Endpoint,
    accepted: Endpoint,
    /// Of the socket.
    _directory: Option<tempfile::TempDir>,
}

async fn connected(socket: bool) -> Connected {
    let provider = ShmProvider::new(ShmConfig::default());
    let tokens = Arc::new(|name: &str| {
        assert_ne!(name, "bomb", "a panic that a test has asked for");
        (name == "caller").then_some(TOKEN)
    });
    let directory = socket.then(|| tempfile::tempdir().expect("there is a disk"));
    let address = directory
        .as_ref()
        .map_or("local:".to_owned(), |directory| directory.path().join("run/host.sock").display().to_string());
    let host = provider.host(&address, HostConfig { node: NodeId(3), tokens }).await.expect("the name is new");
    let caller = provider.connect(&host.address(), &credential()).await.expect("the token is right");
    let accepted = host.accept().await.expect("somebody connected");
    Connected { host, caller, accepted, _directory: directory }
}

/// Runs a test without and with a socket.
fn both<F: Future<Output = ()>>(test: impl Fn(bool) -> F) {
    run(test(false));
    run(test(true));
}

/// Regression: a verb that had waited for the confirmation of its capability completed before it ceased to count as waiting. On
/// a busy machine the next verb of the same caller then waited too, although this provider promises to be synchronous.
#[test]
fn verbs_reach_the_region_until_the_grant_is_revoked() {
    both(|socket| async move {
        let Connected { host, caller, accepted: _accepted, _directory } = connected(socket).await;
        let region = host.register("test", 1 << 20).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "caller").expect("it has grants left");
        let parts = [Bytes::from_static(b"hello, "), Bytes::from_static(b"world")];
        caller.write(&capability, 100, &parts).await.expect("it is granted");
        let read = caller.read(&capability, 100, 12, BytesMut::new()).now().map_err(|_| "pending");
        assert_eq!(
            read.expect("a confirmed capability's verbs are done at once").expect("it is granted")[..],
            b"hello, world"[..]
        );
        assert_eq!(caller.fetch_add(&capability, 4096, 5).await, Ok(0));
        assert_eq!(caller.compare_swap(&capability, 4096, 5, 9).await, Ok(5));
        assert_eq!(caller.compare_swap(&capability, 4096, 5, 9).await, Ok(9));
        host.revoke(&capability).await.expect("no verb is in flight");
        host.revoke(&capability).await.expect("again does no harm");
        assert_eq!(caller.fetch_add(&capability, 4096, 5).await, Err(Error::Revoked));
        let other = host.grant(region, Rights::READ, "caller").expect("the place is free again");
        assert_eq!(other.grant, capability.grant);
        assert_eq!(caller.fetch_add(&capability, 4096, 5).await, Err(Error::Revoked));
        assert_eq!(caller.fetch_add(&other, 4096, 5).await, Err(Error::Forbidden));
        assert_eq!(
            caller.read(&other, 4096, 8, BytesMut::new()).await.expect("it is granted")[..],
            [9, 0, 0, 0, 0, 0, 0, 0]
        );
        host.deregister(region).await.expect("no verb is in flight");
        let gone = caller.read(&other, 4096, 8, BytesMut::new()).await;
        assert_eq!(gone.expect_err("the region is gone"), Error::Revoked);
        assert_eq!(host.deregister(region).await, Err(Error::Unknown));
    });
}

#[test]
fn a_revocation_that_comes_late_leaves_the_next_grant_alone() {
    both(|socket| async move {
        let Connected { host, caller, accepted: _accepted, _directory } = connected(socket).await;
        let region = host.register("test", 4096).await.expect("there is memory");
        for _ in 0..300 {
            let old = host.grant(region, Rights::ALL, "caller").expect("the place is free again");
            let other = Arc::clone(&host);
            let late = base::rt::spawn(async move { other.revoke(&old).await });
            host.revoke(&old).await.expect("no verb is in flight");
            let new = host.grant(region, Rights::ALL, "caller").expect("the place is free again");
            late.await.expect("nothing aborts it").expect("no verb is in flight");
            assert_eq!(new.grant, old.grant);
            assert_eq!(caller.fetch_add(&old, 0, 1).await, Err(Error::Revoked));
            caller.fetch_add(&new, 0, 1).await.expect("it is granted");
            host.revoke(&new).await.expect("no verb is in flight");
        }
    });
}

#[test]
fn a_wrong_secret_is_unknown() {
    both(|socket| async move {
        let Connected { host, caller, accepted: _accepted, _directory } = connected(socket).await;
        let region = host.register("test", 4096).await.expect("there is memory");
        let mut capability = host.grant(region, Rights::ALL, "caller").expect("it has grants left");
        capability.secret.0[15] ^= 1;
        assert_eq!(caller.fetch_add(&capability, 0, 5).await, Err(Error::Unknown));
        assert_eq!(host.revoke(&capability).await, Err(Error::Unknown));
        let token = Credential { name: "caller".to_owned(), token: Token::new([8; 32]) };
        let refused = ShmProvider::default().connect(&host.address(), &token).await;
        assert!(matches!(refused, Err(Error::Rejected(_))));
    });
}

#[test]
fn messages_of_every_size_arrive_in_order() {
    both(|socket| async move {
        let Connected { host: _host, caller, accepted, _directory } = connected(socket).await;
        let sizes = [0usize, 1, 7, 8, 9, 100, 65_535, 65_536, 65_537, 262_144, 1 << 20, (10 << 20) + 3, 5];
        let sending = base::rt::spawn(async move {
            let sends: Vec<_> = sizes
                .iter()
                .map(|size| {
                    let message: Bytes = (0..*size).map(|at| (at % 251) as u8).collect::<Vec<_>>().into();
                    caller.send(&[message.slice(..size / 3), message.slice(size / 3..)])
                })
                .collect();
            for send in sends {
                send.await.expect("the other side receives");
            }
            caller
        });
        for size in sizes {
            let Ok(IncomingEvent::Message(message)) = accepted.receive().await else { panic!("a message was sent") };
            assert_eq!(message.len(), size);
            assert!(message.iter().enumerate().all(|(at, byte)| *byte == (at % 251) as u8));
        }
        let caller = sending.await.expect("nothing aborts it");
        accepted.send(&[Bytes::from_static(b"bye")]).await.expect("there is room");
        drop(accepted);
        assert_eq!(caller.receive().await, Ok(IncomingEvent::Message(Bytes::from_static(b"bye"))));
        assert_eq!(caller.receive().await, Err(Error::Closed));
        assert_eq!(caller.send(&[Bytes::new()]).await, Err(Error::Closed));
    });
}

#[test]
fn immediate_data_follows_its_bytes() {
    both(|socket| async move {
        let Connected { host, caller, accepted, _directory } = connected(socket).await;
        let region = host.register("test", 4096).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "caller").expect("it has grants left");
        let parts = [Bytes::from_static(b"12345")];
        caller.write_with_immediate(&capability, 8, &parts, 77).await.expect("it is granted");
        let incoming = accepted.receive().await.expect("it was sent");
        assert_eq!(incoming, IncomingEvent::Immediate { immediate: 77, region, offset: 8, length: 5 });
    });
}

#[test]
fn an_ended_host_is_closed_and_waiting_messages_are_ambiguous() {
    both(|socket| async move {
        let Connected { host, caller, accepted, _directory } = connected(socket).await;
        let region = host.register("test", 4096).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "caller").expect("it has grants left");
        let waiting = caller.send(&[Bytes::from(vec![0; 1 << 20])]);
        host.close().await;
        assert_eq!(waiting.await.expect_err("nobody received it").kind(), ErrorKind::Ambiguous);
        assert_eq!(caller.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
        assert!(host.accept().await.is_err());
        assert!(ShmProvider::default().connect(&host.address(), &credential()).await.is_err());
        drop(accepted);
    });
}

#[test]
fn other_versions_are_refused_on_both_sides() {
    run(async {
        let (ours, theirs) = (VersionRange::only(2), VersionRange::new(98, 99));
        let mismatch = VersionMismatch { ours, theirs };
        let directory = tempfile::tempdir().expect("there is a disk");
        let path = directory.path().join("host.sock");
        let listener = SocketListener::bind(&path).expect("the path is free");
        let newer = base::rt::spawn(async move {
            let socket = listener.accept().await.expect("somebody connects");
            socket.send(&SocketMessage::Greeting { versions: theirs, nonce: 1 }, &[]).await.expect("it listens");
            socket.receive().await.expect("it is well-formed").expect("the caller answers").0
        });
        let refused = ShmProvider::default().connect(&path.display().to_string(), &credential()).await;
        assert_eq!(refused.err(), Some(Error::Version(mismatch)));
        let told = newer.await.expect("nothing aborts it");
        let SocketMessage::OtherVersions(told) = told else { panic!("no token is sent: {told:?}") };
        assert_eq!(told, HelloAnswer::refuse(ours));

        let path = directory.path().join("new.sock");
        let tokens = Arc::new(|_: &str| Some(TOKEN));
        let options = HostConfig { node: NodeId(3), tokens };
        let _host = ShmProvider::default().host(&path.display().to_string(), options).await.expect("the path is free");
        let connected = async || {
            let socket = MessageSocket::connect(&path).await.expect("the host is there");
            let greeting = socket.receive().await.expect("it is well-formed").expect("the host greets").0;
            let SocketMessage::Greeting { versions, nonce } = greeting else { panic!("{greeting:?}") };
            assert_eq!(versions, ours);
            (socket, nonce)
        };
        let (token, name) = (*TOKEN.bytes(), "caller".to_owned());
        let (socket, _) = connected().await;
        let refusal = SocketMessage::OtherVersions(HelloAnswer::refuse(theirs));
        let (other, nonce) = connected().await;
        let unasked = HelloAnswer::accept(theirs, 99);
        for (socket, answer) in
            [(socket, refusal), (other, SocketMessage::Hello { answer: unasked, nonce, token, name })]
        {
            socket.send(&answer, &[]).await.expect("the host listens");
            let answer = socket.receive().await.expect("it is well-formed").expect("the host answers").0;
            let SocketMessage::Rejected { reason } = answer else { panic!("{answer:?}") };
            assert!(reason.contains("versions 98 to 99") && reason.contains("upgrade this side"), "{reason}");
            assert!(matches!(socket.receive().await, Ok(None)));
        }
    });
}

#[test]
fn a_panic_while_one_connects_harms_nobody_else() {
    run(async {
        let Connected { host, caller, accepted: _accepted, _directory } = connected(true).await;
        let bomb = Credential { name: "bomb".to_owned(), token: TOKEN };
        assert!(ShmProvider::default().connect(&host.address(), &bomb).await.is_err());
        let region = host.register("test", 4096).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, "caller").expect("it has grants left");
        assert_eq!(caller.fetch_add(&capability, 0, 1).await, Ok(0));
        let again = ShmProvider::default().connect(&host.address(), &credential()).await.expect("the host accepts on");
        assert_eq!(again.fetch_add(&capability, 0, 1).await, Ok(1));
    });
}

#[test]
fn a_panic_in_a_task_of_one_connection_ends_it() {
    run(async {
        let (area, _fd) = ConnectionSegment::create().expect("there is memory");
        let (caller, host) = ConnectionEnd::pair(&Arc::new(area));
        let guard = CloseEndOnDrop(Arc::clone(&host));
        drop(base::rt::spawn(async move {
            let _guard = guard;
            panic!("a panic that a test has asked for");
        }));
        caller.ended.cancelled().await;
        assert!(host.is_closed() && caller.is_closed());
    });
}

/// Regression: the thread that served a memory node died while the process kept running, and health checks reported that all
/// was well. A host that a defect has ended reports it.
#[test]
fn a_host_whose_accepting_task_panics_says_that_it_has_failed() {
    run(async {
        let host = ShmHost::new(
            "local:doomed".to_owned(),
            HostConfig { node: NodeId(3), tokens: Arc::new(|_: &str| Some(TOKEN)) },
            ShmConfig::default(),
        );
        let host = host.expect("there is memory");
        let guard = CloseHostOnDrop(Arc::downgrade(&host.inner));
        drop(base::rt::spawn(async move {
            let _guard = guard;
            panic!("a panic that a test has asked for");
        }));
        assert!(host.failed().await.contains("panicked"));
        assert_eq!(host.accept().await.map(drop), Err(Error::Closed));
        assert_eq!(host.register("test", 4096).await, Err(Error::Closed));
    });
}
