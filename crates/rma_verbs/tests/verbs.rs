//! Tests of the provider over RDMA adapters. They need an adapter; without one, `cargo xtask rdma-guest` runs them over
//! soft-RoCE.
//!
//! The last test runs this program again as the holder that is stopped.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::production::run;
use base::{Bytes, BytesMut, ErrorKind};
use rma::conformance::{CLAIMS, ConformanceReport, Fixture, FixtureFeatures};
use rma::{
    Capability, Completion, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, RegionId,
    Rights, Token,
};
use rma_verbs::{DeviceConfig, VerbsHost, VerbsProvider};

const TOKEN: [u8; 32] = [7; 32];
const NAME: &str = "holder";
const ANOTHER: &str = "another";

fn provider() -> VerbsProvider {
    VerbsProvider::new(&DeviceConfig::default()).expect("there is an RDMA adapter; `cargo xtask rdma-guest` brings one")
}

fn credential() -> Credential {
    Credential { name: NAME.to_owned(), token: Token::new(TOKEN) }
}

fn options() -> HostConfig {
    HostConfig {
        node: NodeId(3),
        tokens: Arc::new(|name: &str| [NAME, ANOTHER].contains(&name).then(|| Token::new(TOKEN))),
    }
}

async fn host(provider: &VerbsProvider) -> Arc<dyn Host> {
    provider.host("127.0.0.1:0", options()).await.expect("the port is any")
}

/// A host with one region, and both ends of a connection to it.
struct Pair {
    provider: VerbsProvider,
    host: Arc<dyn Host>,
    region: RegionId,
    capability: Capability,
    near: Endpoint,
    far: Endpoint,
}

async fn pair(bytes: u64) -> Pair {
    let provider = provider();
    let host = host(&provider).await;
    let region = host.register("test", bytes).await.expect("there is memory");
    let capability = host.grant(region, Rights::ALL, NAME).expect("it is the first grant");
    let near = provider.connect(&host.address(), &credential()).await.expect("the host is there");
    let far = host.accept().await.expect("one has come");
    Pair { provider, host, region, capability, near, far }
}

fn bytes(length: usize, seed: u8) -> Bytes {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

async fn read(endpoint: &Endpoint, capability: &Capability, offset: u64, length: usize) -> Bytes {
    endpoint.read(capability, offset, length, BytesMut::new()).await.expect("it is within the region").freeze()
}

/// The provider under the suite that all providers pass.
struct Adapter {
    provider: VerbsProvider,
    host: Arc<VerbsHost>,
}

#[async_trait]
impl Fixture for Adapter {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host) as Arc<dyn Host>
    }

    fn credential(&self) -> Credential {
        credential()
    }

    fn another_credential(&self) -> Credential {
        Credential { name: ANOTHER.to_owned(), token: Token::new(TOKEN) }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        self.provider.connect(&self.host.address(), credential).await
    }

    async fn sever(&self, _: &Endpoint, accepted: &Endpoint) {
        self.host.lose(accepted);
    }

    /// An amount that an emulated processor handles in about a minute.
    fn features(&self) -> FixtureFeatures {
        FixtureFeatures { sever: true, large_bytes: 4 << 20, rounds: 100, ..FixtureFeatures::default() }
    }
}

#[test]
fn the_provider_conforms() {
    run(async {
        let provider = provider();
        let host = provider.start_host("127.0.0.1:0", options()).await.expect("the port is any");
        let adapter = Adapter { provider, host };
        let mut report = ConformanceReport::default();
        for claim in CLAIMS {
            let start = base::rt::now();
            let verdict = claim.check(&adapter).await;
            println!("{:>8} ms  {}: {verdict:?}", start.elapsed().as_millis(), claim.name);
            report.verdicts.push((claim.name, verdict));
        }
        report.assert_held();
    });
}

#[test]
fn other_protocols_are_refused_and_do_no_harm() {
    run(async {
        let provider = provider();
        let host = host(&provider).await;
        let address = host.address();
        for garbage in [&[b'G'; 4096][..], &[1; 128], &[]] {
            let mut other = std::net::TcpStream::connect(&address).expect("it listens");
            std::io::Write::write_all(&mut other, garbage).expect("it is small");
        }
        let error = provider.host(&address, options()).await.map(drop).expect_err("the port is taken");
        assert_eq!(error.kind(), ErrorKind::Rejected);
        let near = provider.connect(&address, &credential()).await.expect("the others have done no harm");
        let far = host.accept().await.expect("one has come");
        // The client has no regions.
        let region = host.register("test", 4096).await.expect("there is memory");
        let capability = host.grant(region, Rights::ALL, NAME).expect("it is the first grant");
        assert_eq!(far.fetch_add(&capability, 0, 1).await, Err(Error::Unknown));
        assert_eq!(near.fetch_add(&capability, 0, 1).await, Ok(0));
    });
}

#[test]
fn a_revoked_capability_is_refused_and_others_are_not() {
    run(async {
        let pair = pair(1 << 20).await;
        let Pair { ref provider, ref host, ref near, capability, region, .. } = pair;
        let other = host.grant(region, Rights::ALL, NAME).expect("there are grants left");
        let second = provider.connect(&host.address(), &credential()).await.expect("the host is there");
        let unused = host.grant(region, Rights::ALL, NAME).expect("there are grants left");
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
        // The grant's slot is reused, under a higher generation.
        let again = host.grant(region, Rights::ALL, NAME).expect("there are grants left");
        assert!(again.grant == capability.grant || again.grant == unused.grant);
        near.write(&again, 0, &[Bytes::from_static(b"x")]).await.expect("it is good");
        host.deregister(region).await.expect("both let go");
        assert_eq!(near.fetch_add(&again, 0, 1).await, Err(Error::Revoked));
        assert_eq!(host.grant(region, Rights::ALL, NAME).expect_err("it has gone"), Error::Unknown);
    });
}

/// Messages that are not received do not keep arriving, and none is lost.
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
            assert_eq!(far.receive().await, Ok(IncomingEvent::Message(bytes(LENGTH, count))), "message {count}");
        }
        let (near, taken) = sending.await.expect("nothing aborts it");
        assert_eq!(taken + 1, usize::from(COUNT));
        near.send(&[Bytes::from_static(b"last")]).await.expect("the other side is there");
        near.close();
        assert_eq!(far.receive().await, Ok(IncomingEvent::Message(Bytes::from_static(b"last"))));
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

/// Set for the process that is stopped: the host's address and the capability.
const HOLDER: &str = "HEDDLE_VERBS_HOLDER";
const HOLDER_LENGTH: usize = 1 << 20;

/// Not a test by itself: the next test runs it in another process.
#[test]
fn holder_that_writes_until_it_is_killed() {
    let Ok(told) = std::env::var(HOLDER) else { return };
    let (address, capability) = told.split_once(' ').expect("both were told");
    let capability: Vec<u8> = (0..capability.len() / 2)
        .map(|at| u8::from_str_radix(&capability[2 * at..2 * at + 2], 16).expect("it is hexadecimal"))
        .collect();
    let capability = Capability::decode(&capability).expect("it was encoded");
    run(async {
        let endpoint = provider().connect(address, &credential()).await.expect("the host is there");
        for count in 0u8.. {
            if endpoint.write(&capability, 0, &[bytes(HOLDER_LENGTH, count)]).await.is_err() {
                return;
            }
        }
    });
}

struct HolderProcess(Child);

impl HolderProcess {
    fn start(address: &str, capability: &Capability) -> HolderProcess {
        let capability: String = capability.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command
            .args(["--exact", "holder_that_writes_until_it_is_killed"])
            .env(HOLDER, format!("{address} {capability}"));
        HolderProcess(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("this program can be run"))
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.0.id().to_string()]).status();
        assert!(sent.expect("there is a kill").success());
    }
}

impl Drop for HolderProcess {
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
        let own = host.grant(region, Rights::ALL, NAME).expect("there are grants left");
        for round in 0..ROUNDS {
            near.write(&own, 0, &[bytes(HOLDER_LENGTH, 0)]).await.expect("it is within the region");
            let capability = host.grant(region, Rights::ALL, NAME).expect("there are grants left");
            let holder = HolderProcess::start(&host.address(), &capability);
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

/// Set when this program runs for one test alone, so that its fault hits no other test's host.
const ALONE: &str = "RMA_VERBS_ALONE";

#[test]
fn a_host_whose_listening_thread_panics_says_that_it_has_failed() {
    if std::env::var_os(ALONE).is_none() {
        let program = std::env::current_exe().expect("this program has a path");
        let mut again = Command::new(program);
        again.args(["--exact", "a_host_whose_listening_thread_panics_says_that_it_has_failed"]).env(ALONE, "1");
        let status = again.status().expect("this program can be started");
        assert!(status.success(), "{status}");
        return;
    }
    run(async {
        let Pair { provider, host, near, far, .. } = pair(4096).await;
        base::rt::inject_fault("rma.host.panics");
        assert!(provider.connect(&host.address(), &credential()).await.is_err());
        assert!(host.failed().await.contains("panicked"));
        assert_eq!(host.accept().await.map(drop), Err(Error::Closed));
        assert_eq!(host.register("test", 4096).await, Err(Error::Closed));
        assert!(near.receive().await.is_err() && far.receive().await.is_err());
    });
}
