//! The provider over RDMA adapters. Needs one: without, `cargo xtask rdma-guest` runs this over soft-RoCE.
//!
//! The last test runs this program again as the holder that is stopped.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::production::run;
use base::{Bytes, BytesMut, ErrorKind};
use rma::verbs::{DeviceOptions, Verbs};
use rma::{
    Capability, Completion, Credential, Endpoint, Error, Fabric, Host, HostOptions, IN_FLIGHT_MAX, Incoming, NodeId,
    RegionId, Rights, Token,
};

const TOKEN: [u8; 32] = [7; 32];
const NAME: &str = "holder";

fn fabric() -> Verbs {
    Verbs::new(&DeviceOptions::default()).expect("there is an RDMA adapter; `cargo xtask rdma-guest` brings one")
}

fn credential() -> Credential {
    Credential { name: NAME.to_owned(), token: Token::new(TOKEN) }
}

async fn host(fabric: &Verbs) -> Arc<dyn Host> {
    let tokens = Arc::new(|name: &str| (name == NAME).then(|| Token::new(TOKEN)));
    fabric.host("127.0.0.1:0", HostOptions { node: NodeId(3), tokens }).await.expect("the port is any")
}

/// A host with one region, and an endpoint to it with the other side's.
struct Pair {
    fabric: Verbs,
    host: Arc<dyn Host>,
    region: RegionId,
    capability: Capability,
    near: Endpoint,
    far: Endpoint,
}

async fn pair(bytes: u64) -> Pair {
    let fabric = fabric();
    let host = host(&fabric).await;
    let region = host.register("test", bytes).await.expect("there is memory");
    let capability = host.grant(region, Rights::ALL).expect("it is the first grant");
    let near = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
    let far = host.accept().await.expect("one has come");
    Pair { fabric, host, region, capability, near, far }
}

fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

async fn read(endpoint: &Endpoint, capability: &Capability, offset: u64, length: usize) -> Bytes {
    endpoint.read(capability, offset, length, BytesMut::new()).await.expect("it is within the region").freeze()
}

#[test]
fn every_verb_does_what_it_says() {
    run(async {
        let pair = pair(1 << 20).await;
        let Pair { ref near, ref far, capability, region, .. } = pair;
        assert_eq!((near.node(), far.name(), near.profile().provider), (NodeId(3), NAME, "verbs"));
        for (length, offset) in [(0, 0), (1, 3), (8, 8), (512, 100), (513, 4000), (65_536, 1), (300_000, 4096)] {
            let data = bytes(length, length as u8);
            let halves = [data.slice(..length / 2), data.slice(length / 2..)];
            near.write(&capability, offset, &halves).await.expect("it is within the region");
            assert_eq!(read(near, &capability, offset, length).await, data, "{length} bytes");
        }
        let mut kept = BytesMut::from(&b"kept"[..]);
        near.write(&capability, 0, &[Bytes::from_static(b" and appended")]).await.expect("it is within the region");
        kept = near.read(&capability, 0, 13, kept).await.expect("it is within the region");
        assert_eq!(kept, b"kept and appended"[..]);

        near.write(&capability, 64, &[Bytes::copy_from_slice(&5u64.to_le_bytes())]).await.expect("within the region");
        assert_eq!(near.compare_swap(&capability, 64, 4, 9).await, Ok(5));
        assert_eq!(near.compare_swap(&capability, 64, 5, 9).await, Ok(5));
        assert_eq!(near.fetch_add(&capability, 64, u64::MAX).await, Ok(9));
        assert_eq!(read(near, &capability, 64, 8).await, 8u64.to_le_bytes()[..]);

        for length in [0, 1, 16_384, 3 << 20] {
            near.send(&[bytes(length, 1)]).await.expect("the other side is there");
            assert_eq!(far.receive().await, Ok(Incoming::Message(bytes(length, 1))));
            far.send(&[bytes(length, 2)]).await.expect("the other side is there");
            assert_eq!(near.receive().await, Ok(Incoming::Message(bytes(length, 2))));
        }
        let data = bytes(100_000, 9);
        near.write_with_immediate(&capability, 4096, std::slice::from_ref(&data), 77).await.expect("within the region");
        let expected = Incoming::Immediate { immediate: 77, region, offset: 4096, length: 100_000 };
        assert_eq!(far.receive().await, Ok(expected));
        assert_eq!(read(near, &capability, 4096, 100_000).await, data);
    });
}

#[test]
fn what_is_not_allowed_is_refused_without_harm_to_the_connection() {
    run(async {
        let pair = pair(4096).await;
        let Pair { ref host, ref near, ref far, capability, region, .. } = pair;
        let refused = |outcome: Result<BytesMut, Error>| outcome.expect_err("it is not allowed");
        let bounds = Error::OutOfBounds { offset: 4090, length: 7, region_bytes: 4096 };
        assert_eq!(refused(near.read(&capability, 4090, 7, BytesMut::new()).await), bounds);
        let far_away = near.read(&capability, u64::MAX, 7, BytesMut::new()).await;
        assert_eq!(refused(far_away).kind(), ErrorKind::Rejected);
        assert_eq!(near.fetch_add(&capability, 4, 1).await, Err(Error::Misaligned(4)));
        assert_eq!(near.fetch_add(&capability, 4096, 1).await.expect_err("behind the end").kind(), ErrorKind::Rejected);

        let reader = host.grant(region, Rights::READ).expect("there are grants left");
        assert_eq!(near.write(&reader, 0, &[Bytes::from_static(b"x")]).await, Err(Error::Forbidden));
        assert_eq!(near.fetch_add(&capability.narrowed(Rights::READ), 0, 1).await, Err(Error::Forbidden));
        let mut claimed = reader.encode();
        claimed[10] = Rights::ALL.bits();
        let claimed = Capability::decode(&claimed).expect("it is well-formed");
        assert_eq!(near.write(&claimed, 0, &[Bytes::from_static(b"x")]).await, Err(Error::Forbidden));

        for at in [0, 4, 8, 16, 24, 39] {
            let mut forged = capability.encode();
            forged[at] ^= 2;
            let forged = Capability::decode(&forged).expect("it is well-formed");
            assert_eq!(refused(near.read(&forged, 0, 8, BytesMut::new()).await), Error::Unknown, "byte {at}");
        }
        // The side that connected has no regions.
        assert_eq!(refused(far.read(&capability, 0, 8, BytesMut::new()).await), Error::Unknown);
        assert_eq!(read(near, &capability, 0, 8).await, [0; 8][..]);
    });
}

#[test]
fn a_revoked_capability_is_refused_and_others_are_not() {
    run(async {
        let pair = pair(1 << 20).await;
        let Pair { ref fabric, ref host, ref near, capability, region, .. } = pair;
        let other = host.grant(region, Rights::ALL).expect("there are grants left");
        let second = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
        let unused = host.grant(region, Rights::ALL).expect("there are grants left");
        for endpoint in [near, &second] {
            read(endpoint, &capability, 0, 8).await;
            read(endpoint, &other, 0, 8).await;
        }
        host.revoke(&unused).await.expect("nobody has it");
        for _ in 0..2 {
            host.revoke(&capability).await.expect("both let go");
        }
        for endpoint in [near, &second] {
            let outcome = endpoint.write(&capability, 0, &[Bytes::from_static(b"x")]).await;
            assert_eq!(outcome, Err(Error::Revoked));
            assert_eq!(endpoint.fetch_add(&unused, 0, 1).await, Err(Error::Revoked));
            assert_eq!(read(endpoint, &other, 0, 8).await, [0; 8][..]);
        }
        // The place of the grant is used again, under a higher generation.
        let again = host.grant(region, Rights::ALL).expect("there are grants left");
        assert!(again.grant == capability.grant || again.grant == unused.grant);
        near.write(&again, 0, &[Bytes::from_static(b"x")]).await.expect("it is good");
        host.deregister(region).await.expect("both let go");
        assert_eq!(near.fetch_add(&again, 0, 1).await, Err(Error::Revoked));
        assert_eq!(host.grant(region, Rights::ALL).expect_err("it has gone"), Error::Unknown);
    });
}

/// Writers post for as long as they may while the owner revokes: what a write that failed or was still in flight left
/// behind may be there, but once the revocation has returned, nothing changes any more.
#[test]
fn nothing_lands_after_a_revocation_that_races_with_writers() {
    const ROUNDS: u8 = 20;
    const LENGTH: usize = 200_000;
    run(async {
        let pair = pair(1 << 20).await;
        let Pair { ref fabric, ref host, region, .. } = pair;
        let own = host.grant(region, Rights::ALL).expect("there are grants left");
        let owner = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
        for round in 0..ROUNDS {
            let capability = host.grant(region, Rights::ALL).expect("there are grants left");
            let writer = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
            let landed = Arc::new(AtomicBool::new(false));
            let writing = {
                let landed = Arc::clone(&landed);
                base::rt::spawn(async move {
                    for count in 0u8.. {
                        let posted: Vec<Completion<()>> =
                            (0..4).map(|_| writer.write(&capability, 0, &[bytes(LENGTH, count)])).collect();
                        for write in posted {
                            match write.await {
                                Ok(()) => landed.store(true, Ordering::Relaxed),
                                Err(error) => return error,
                            }
                        }
                    }
                    unreachable!("the revocation comes sooner")
                })
            };
            while !landed.load(Ordering::Relaxed) {
                base::rt::sleep(Duration::from_millis(1)).await;
            }
            host.revoke(&capability).await.expect("the holder lets go");
            owner.write(&own, 0, &[bytes(LENGTH, round)]).await.expect("it is within the region");
            let error = writing.await.expect("nothing aborts it");
            assert!(matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Ambiguous), "{error}");
            assert!(read(&owner, &own, 0, LENGTH).await == bytes(LENGTH, round), "round {round}");
        }
    });
}

#[test]
fn contended_atomics_lose_nothing() {
    const HOLDERS: u64 = 4;
    const EACH: u64 = 50;
    run(async {
        let pair = pair(4096).await;
        let Pair { ref fabric, ref host, ref near, capability, .. } = pair;
        let mut tasks = Vec::new();
        for _ in 0..HOLDERS {
            let endpoint = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
            tasks.push(base::rt::spawn(async move {
                for _ in 0..EACH {
                    endpoint.fetch_add(&capability, 0, 1).await.expect("it is within the region");
                    let mut seen = 0;
                    loop {
                        let was = endpoint.compare_swap(&capability, 8, seen, seen + 1).await.expect("within");
                        if was == seen {
                            break;
                        }
                        seen = was;
                    }
                }
            }));
        }
        for task in tasks {
            task.await.expect("nothing aborts it");
        }
        assert_eq!(near.fetch_add(&capability, 0, 0).await, Ok(HOLDERS * EACH));
        assert_eq!(near.fetch_add(&capability, 8, 0).await, Ok(HOLDERS * EACH));
    });
}

/// Posted at once: a read sees every write before it and none behind it, and a message tells of writes that have landed.
#[test]
fn verbs_take_effect_in_the_order_of_posting() {
    run(async {
        let pair = pair(1 << 20).await;
        let Pair { ref near, ref far, capability, .. } = pair;
        let mut expected = Vec::new();
        let mut reads = Vec::new();
        let mut writes = Vec::new();
        for round in 0..100u8 {
            let length = 1 + 1777 * usize::from(round % 40);
            writes.push(near.write(&capability, 0, &[bytes(length, round)]));
            reads.push(near.read(&capability, 0, length, BytesMut::new()));
            expected.push(bytes(length, round));
        }
        let message = near.send(&[Bytes::from_static(b"done")]);
        assert_eq!(far.receive().await, Ok(Incoming::Message(Bytes::from_static(b"done"))));
        message.await.expect("it has arrived");
        for (round, ((write, read), expected)) in writes.into_iter().zip(reads).zip(expected).enumerate() {
            assert_eq!(write.now().map_err(|_| "in flight"), Ok(Ok(())));
            assert!(read.await.expect("it is within the region") == expected, "round {round}");
        }
    });
}

#[test]
fn as_many_verbs_as_may_be_are_in_flight_and_one_more_is_refused() {
    run(async {
        let pair = pair(4096).await;
        let Pair { ref near, capability, .. } = pair;
        // Nothing completes before the host has answered for the key, which the first verb asks for.
        let mut posted = Vec::new();
        let mut busy = 0;
        for _ in 0..2 * IN_FLIGHT_MAX {
            match near.fetch_add(&capability, 0, 1).now() {
                Err(pending) => posted.push(pending),
                Ok(Err(Error::Busy)) => busy += 1,
                Ok(other) => panic!("{other:?}"),
            }
        }
        let count = posted.len() as u64;
        for verb in posted {
            verb.await.expect("it is within the region");
        }
        assert!(busy > 0 && count >= IN_FLIGHT_MAX as u64);
        assert_eq!(near.fetch_add(&capability, 0, 0).await, Ok(count));
    });
}

/// Messages that nobody receives do not keep arriving, and none is lost.
#[test]
fn a_reader_that_is_behind_holds_the_sender_back() {
    const LENGTH: usize = 1 << 20;
    const COUNT: u8 = 40;
    run(async {
        let pair = pair(4096).await;
        let Pair { ref near, ref far, .. } = pair;
        let near = near.clone();
        let sending = base::rt::spawn(async move {
            let sent: Vec<Completion<()>> = (0..COUNT).map(|count| near.send(&[bytes(LENGTH, count)])).collect();
            let mut taken = 0;
            for (count, message) in sent.into_iter().enumerate() {
                message.await.expect("the other side is there");
                taken = count;
            }
            (near, taken)
        });
        base::rt::sleep(Duration::from_millis(500)).await;
        assert!(!sending.is_finished(), "all was taken, and nobody has received anything");
        for count in 0..COUNT {
            assert_eq!(far.receive().await, Ok(Incoming::Message(bytes(LENGTH, count))), "message {count}");
        }
        let (near, taken) = sending.await.expect("nothing aborts it");
        assert_eq!(taken + 1, usize::from(COUNT));
        near.send(&[Bytes::from_static(b"last")]).await.expect("the other side is there");
        near.close();
        assert_eq!(far.receive().await, Ok(Incoming::Message(Bytes::from_static(b"last"))));
        assert_eq!(far.receive().await, Err(Error::Closed));
    });
}

#[test]
fn a_lost_host_leaves_ambiguous_verbs_and_a_closed_endpoint() {
    run(async {
        let pair = pair(8 << 20).await;
        let Pair { ref host, ref near, ref far, capability, .. } = pair;
        read(near, &capability, 0, 8).await;
        let posted: Vec<Completion<()>> = (0..8).map(|_| near.write(&capability, 0, &[bytes(8 << 20, 1)])).collect();
        host.close().await;
        let mut ambiguous = 0;
        for write in posted {
            match write.await {
                Ok(()) => assert_eq!(ambiguous, 0, "a later write completed"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Ambiguous);
                    ambiguous += 1;
                }
            }
        }
        assert!(ambiguous > 0);
        assert_eq!(near.receive().await, Err(Error::Closed));
        assert_eq!(near.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
        assert_eq!(far.receive().await, Err(Error::Closed));
        assert_eq!(host.accept().await.expect_err("it has ended"), Error::Closed);
    });
}

/// Nobody closes anything: the adapter's retries find out, for a side that waits as for one that has posted.
#[test]
fn a_broken_cable_is_noticed_by_both_sides() {
    run(async {
        let fabric = fabric();
        let tokens = Arc::new(|name: &str| (name == NAME).then(|| Token::new(TOKEN)));
        let host = fabric.start_host("127.0.0.1:0", HostOptions { node: NodeId(3), tokens }).await.expect("any port");
        let region = host.register("test", 4096).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL).expect("it is the first grant");
        for posts in [true, false] {
            let near = fabric.connect(&host.address(), &credential()).await.expect("the host is there");
            let far = host.accept().await.expect("one has come");
            read(&near, &capability, 0, 8).await;
            host.lose(&far);
            if posts {
                let error = near.fetch_add(&capability, 0, 1).await.expect_err("nobody answers");
                assert_eq!(error.kind(), ErrorKind::Ambiguous);
            }
            assert_eq!(near.receive().await, Err(Error::Closed));
            assert_eq!(far.receive().await, Err(Error::Closed));
        }
    });
}

#[test]
fn strangers_and_other_protocols_are_refused() {
    run(async {
        let fabric = fabric();
        let host = host(&fabric).await;
        let wrong = Credential { name: NAME.to_owned(), token: Token::new([8; 32]) };
        let unknown = Credential { name: "nobody".to_owned(), token: Token::new(TOKEN) };
        for credential in [wrong, unknown] {
            let error = fabric.connect(&host.address(), &credential).await.expect_err("it is a stranger's");
            assert!(matches!(error, Error::Refused(_)), "{error}");
        }
        let address = host.address();
        let error = fabric.host(&address, HostOptions { node: NodeId(4), tokens: Arc::new(|_| None) }).await;
        assert_eq!(error.map(drop).expect_err("the port is taken").kind(), ErrorKind::Rejected);
        let mut other = std::net::TcpStream::connect(&address).expect("it listens");
        std::io::Write::write_all(&mut other, &[b'G'; 4096]).expect("it is small");
        fabric.connect(&address, &credential()).await.expect("the others have done no harm");
        host.close().await;
        let error = fabric.connect(&address, &credential()).await.expect_err("nobody is there");
        assert!(matches!(error, Error::Unreachable { .. } | Error::Refused(_)), "{error}");
    });
}

/// Set for the process that is stopped: the host's address and the capability.
const HOLDER: &str = "HEDDLE_VERBS_HOLDER";
const HOLDER_LENGTH: usize = 1 << 20;

/// Not a test of its own: what the next test runs in another process.
#[test]
fn holder_that_writes_until_it_is_killed() {
    let Ok(told) = std::env::var(HOLDER) else { return };
    let (address, capability) = told.split_once(' ').expect("both were told");
    let capability: Vec<u8> = (0..capability.len() / 2)
        .map(|at| u8::from_str_radix(&capability[2 * at..2 * at + 2], 16).expect("it is hexadecimal"))
        .collect();
    let capability = Capability::decode(&capability).expect("it was encoded");
    run(async {
        let endpoint = fabric().connect(address, &credential()).await.expect("the host is there");
        for count in 0u8.. {
            if endpoint.write(&capability, 0, &[bytes(HOLDER_LENGTH, count)]).await.is_err() {
                return;
            }
        }
    });
}

struct Holder(Child);

impl Holder {
    fn start(address: &str, capability: &Capability) -> Holder {
        let capability: String = capability.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command
            .args(["--exact", "holder_that_writes_until_it_is_killed"])
            .env(HOLDER, format!("{address} {capability}"));
        Holder(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("this program can be run"))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.expect("there is a kill").success());
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_stopped_holder_loses_its_connection_and_nothing_it_does_lands() {
    const ROUNDS: u8 = 3;
    run(async {
        let pair = pair(HOLDER_LENGTH as u64).await;
        let Pair { ref host, region, ref near, .. } = pair;
        let own = host.grant(region, Rights::ALL).expect("there are grants left");
        for round in 0..ROUNDS {
            near.write(&own, 0, &[bytes(HOLDER_LENGTH, 0)]).await.expect("it is within the region");
            let capability = host.grant(region, Rights::ALL).expect("there are grants left");
            let holder = Holder::start(&host.address(), &capability);
            let before = bytes(HOLDER_LENGTH, 0);
            let start = base::rt::now();
            while read(near, &own, 0, HOLDER_LENGTH).await == before {
                assert!(start.elapsed() < Duration::from_secs(60), "the holder never wrote");
            }
            holder.signal("-STOP");
            host.revoke(&capability).await.expect("the fence holds");
            near.write(&own, 0, &[bytes(HOLDER_LENGTH, 100 + round)]).await.expect("it is within the region");
            holder.signal("-CONT");
            base::rt::sleep(Duration::from_millis(300)).await;
            let left = read(near, &own, 0, HOLDER_LENGTH).await;
            assert!(left == bytes(HOLDER_LENGTH, 100 + round), "round {round}");
        }
    });
}
