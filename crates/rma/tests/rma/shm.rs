//! Tests of the `shm` provider between processes. A child process runs this test binary again, with its role in the
//! environment.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::production::run;
use base::rt::{self, random_below};
use base::{Bytes, BytesMut, ErrorKind};
use rma::conformance::{self, Fixture};
use rma::shm::{ShmConfig, ShmProvider};
use rma::{Capability, Credential, Endpoint, Error, Host, HostConfig, IncomingEvent, NodeId, Provider, Rights, Token};
use rustix::process::{Pid, Signal, WaitOptions};

const ROLE: &str = "HEDDLE_RMA_TEST_ROLE";
const ADDRESS: &str = "HEDDLE_RMA_TEST_ADDRESS";
const TOKEN: Token = Token::new([7; 32]);
/// Nothing in these tests takes longer unless it is broken.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn credential() -> Credential {
    Credential { name: "child".to_owned(), token: TOKEN }
}

fn host_options() -> HostConfig {
    HostConfig { node: NodeId(1), tokens: Arc::new(|name: &str| ["child", "another"].contains(&name).then_some(TOKEN)) }
}

/// The provider under the suite, within one process.
struct OneProcess {
    provider: ShmProvider,
    host: Arc<dyn Host>,
    _directory: tempfile::TempDir,
}

#[async_trait]
impl Fixture for OneProcess {
    fn host(&self) -> Arc<dyn Host> {
        Arc::clone(&self.host)
    }

    fn credential(&self) -> Credential {
        credential()
    }

    fn another_credential(&self) -> Credential {
        Credential { name: "another".to_owned(), token: TOKEN }
    }

    async fn connect(&self, credential: &Credential) -> Result<Endpoint, Error> {
        self.provider.connect(&self.host.address(), credential).await
    }
}

fn conforms(address: impl FnOnce(&Path) -> String) {
    run(async {
        let directory = tempfile::tempdir().expect("there is a disk");
        let provider = ShmProvider::default();
        let host = provider.host(&address(directory.path()), host_options()).await.expect("the address is free");
        conformance::run(&OneProcess { provider, host, _directory: directory }).await.assert_held();
    });
}

#[test]
fn it_conforms_within_one_process() {
    conforms(|_| "local:conformance".to_owned());
}

#[test]
fn it_conforms_over_a_socket() {
    conforms(|directory| directory.join("host.sock").display().to_string());
}

/// The entry point of a child; the roles are below.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = std::env::var(ADDRESS).expect("the parent passes the address");
    run(async {
        match role.as_str() {
            "writer" => writer(&address).await,
            "host" => host(&address).await,
            other => panic!("no role is called {other}"),
        }
    });
}

/// A child in a role. It is killed when this is dropped.
struct Process(Child);

impl Process {
    fn start(role: &str, address: &str) -> Process {
        let child = Command::new(std::env::current_exe().expect("a process has a binary"))
            .args(["shm::child", "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(ADDRESS, address)
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary runs");
        Process(child)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    fn signal(&self, signal: Signal) {
        // A child that has ended still accepts signals until it is waited for.
        rustix::process::kill_process(self.pid(), signal).expect("the child was not waited for");
    }

    /// Stops it and waits until it has stopped.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let status = rustix::process::waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("it is a child");
        assert!(status.is_some_and(|(_, status)| status.stopped()), "a signal stopped it");
    }

    fn wait(&mut self) -> ExitStatus {
        self.0.wait().expect("it is a child")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

fn was_killed(status: ExitStatus) -> bool {
    std::os::unix::process::ExitStatusExt::signal(&status) == Some(Signal::KILL.as_raw())
}

const SIZE: usize = 1 << 20;
const OLD: u8 = 0xA5;
const NEW: u8 = 0x5B;

/// Receives a capability, then writes under it until it is revoked.
async fn writer(address: &str) {
    let endpoint = ShmProvider::default().connect(address, &credential()).await.expect("the host is there");
    let Ok(IncomingEvent::Message(message)) = endpoint.receive().await else { panic!("no capability came") };
    let capability = Capability::decode(&message).expect("the host sends one");
    let parts = [Bytes::from(vec![OLD; SIZE])];
    loop {
        match endpoint.write(&capability, 0, &parts).await {
            Ok(()) => {}
            Err(Error::Revoked | Error::Closed | Error::Ambiguous(_)) => return,
            Err(other) => panic!("{other}"),
        }
    }
}

/// A host with a region of its own and an endpoint to it.
struct Owner {
    host: Arc<dyn Host>,
    region: rma::RegionId,
    own: Capability,
    endpoint: Endpoint,
    address: String,
    _accepted: Endpoint,
    _directory: tempfile::TempDir,
}

async fn owner(drain: Duration) -> Owner {
    let directory = tempfile::tempdir().expect("there is a disk");
    let address = directory.path().join("host.sock").display().to_string();
    let provider = ShmProvider::new(ShmConfig { drain });
    let host = provider.host(&address, host_options()).await.expect("the path is free");
    let region = host.register("test", SIZE as u64).await.expect("there is memory");
    let own = host.grant(region, Rights::ALL, "child").expect("it has grants left");
    let endpoint = provider.connect(&address, &credential()).await.expect("the host is there");
    let accepted = host.accept().await.expect("it connected");
    Owner { host, region, own, endpoint, address, _accepted: accepted, _directory: directory }
}

impl Owner {
    async fn fill(&self, byte: u8) {
        self.endpoint.write(&self.own, 0, &[Bytes::from(vec![byte; SIZE])]).await.expect("it is granted");
    }

    async fn bytes(&self, length: usize) -> BytesMut {
        self.endpoint.read(&self.own, 0, length, BytesMut::new()).await.expect("it is granted")
    }

    /// Starts a writer and waits until it writes.
    async fn writer(&self) -> (Process, Capability, Endpoint) {
        let child = Process::start("writer", &self.address);
        let endpoint = rt::timeout(TEST_TIMEOUT, self.host.accept()).await.expect("in time").expect("it connects");
        let capability = self.host.grant(self.region, Rights::WRITE, "child").expect("it has grants left");
        endpoint.send(&[Bytes::copy_from_slice(&capability.encode())]).await.expect("there is room");
        let started = rt::now();
        while self.bytes(1).await[0] != OLD {
            assert!(started.elapsed() < TEST_TIMEOUT, "the child writes");
            rt::yield_now().await;
        }
        (child, capability, endpoint)
    }
}

/// Number of revocations of stopped processes.
const ROUNDS: usize = 1000;
/// At least this many must have stopped within a copy, otherwise the test proves nothing.
const WITHIN_COPY_MIN: usize = ROUNDS / 2;

#[test]
fn nothing_of_a_stopped_process_lands_after_the_revocation() {
    run(async {
        let owner = owner(Duration::from_micros(500)).await;
        let mut within_copy = 0;
        for round in 0..ROUNDS {
            owner.fill(0).await;
            let (mut child, capability, _endpoint) = owner.writer().await;
            let until = rt::now() + Duration::from_nanos(random_below(300_000));
            while rt::now() < until {
                std::hint::spin_loop();
            }
            child.stop();
            owner.host.revoke(&capability).await.expect("the fence holds");
            owner.fill(NEW).await;
            child.signal(Signal::CONT);
            let status = child.wait();
            // A child that stopped between two copies was not killed; it found its capability revoked.
            let killed = was_killed(status);
            assert!(killed || status.success(), "round {round}: {status}");
            within_copy += usize::from(killed);
            assert!(owner.bytes(SIZE).await.iter().all(|byte| *byte == NEW), "round {round}: a write landed");
        }
        println!("{within_copy} of {ROUNDS} processes had stopped within a copy");
        assert!(within_copy >= WITHIN_COPY_MIN, "only {within_copy} of {ROUNDS} stopped within a copy");
    });
}

#[test]
fn a_running_process_is_revoked_without_harm() {
    run(async {
        let owner = owner(TEST_TIMEOUT).await;
        for _ in 0..20 {
            owner.fill(0).await;
            let (mut child, capability, _endpoint) = owner.writer().await;
            owner.host.revoke(&capability).await.expect("the fence holds");
            owner.fill(NEW).await;
            assert!(child.wait().success());
            assert!(owner.bytes(SIZE).await.iter().all(|byte| *byte == NEW));
        }
    });
}

#[test]
fn a_process_that_died_within_a_copy_is_not_waited_for() {
    run(async {
        // The revocation would wait this long.
        let owner = owner(100 * TEST_TIMEOUT).await;
        for _ in 0..20 {
            owner.fill(0).await;
            let (mut child, capability, _endpoint) = owner.writer().await;
            child.signal(Signal::KILL);
            child.wait();
            let revoked = rt::timeout(TEST_TIMEOUT, owner.host.revoke(&capability)).await;
            revoked.expect("the dead are not waited for").expect("the fence holds");
            owner.fill(NEW).await;
            assert!(owner.bytes(SIZE).await.iter().all(|byte| *byte == NEW));
        }
    });
}

#[test]
fn a_dropped_endpoint_of_the_host_does_not_end_the_fence() {
    run(async {
        let owner = owner(Duration::from_millis(1)).await;
        let mut within_copy = 0;
        for _ in 0..20 {
            owner.fill(0).await;
            let (mut child, capability, endpoint) = owner.writer().await;
            child.stop();
            drop(endpoint);
            owner.host.revoke(&capability).await.expect("the fence holds");
            owner.fill(NEW).await;
            child.signal(Signal::CONT);
            within_copy += usize::from(was_killed(child.wait()));
            assert!(owner.bytes(SIZE).await.iter().all(|byte| *byte == NEW));
        }
        assert!(within_copy > 0, "no child stopped within a copy");
    });
}

/// Hosts a region, sends a capability to the first client, and returns the messages that it receives.
async fn host(address: &str) {
    let host = ShmProvider::default().host(address, host_options()).await.expect("the path is free");
    let region = host.register("test", SIZE as u64).await.expect("there is memory");
    let endpoint = host.accept().await.expect("the parent connects");
    let capability = host.grant(region, Rights::ALL, "child").expect("it has grants left");
    endpoint.send(&[Bytes::copy_from_slice(&capability.encode())]).await.expect("there is room");
    while let Ok(incoming) = endpoint.receive().await {
        let answer = match incoming {
            IncomingEvent::Message(message) => message,
            IncomingEvent::Immediate { immediate, .. } => Bytes::copy_from_slice(&immediate.to_le_bytes()),
        };
        endpoint.send(&[answer]).await.expect("the parent receives");
    }
}

/// Starts a host in another process and connects to it.
async fn other_host(directory: &Path) -> (Process, Endpoint, Capability) {
    let address = directory.join("host.sock").display().to_string();
    let child = Process::start("host", &address);
    let started = rt::now();
    let endpoint = loop {
        match ShmProvider::default().connect(&address, &credential()).await {
            Ok(endpoint) => break endpoint,
            Err(error) => assert!(started.elapsed() < TEST_TIMEOUT, "{error}"),
        }
        rt::sleep(Duration::from_millis(1)).await;
    };
    let Ok(IncomingEvent::Message(message)) = endpoint.receive().await else { panic!("no capability came") };
    (child, endpoint, Capability::decode(&message).expect("the host sends one"))
}

#[test]
fn verbs_need_no_host_that_runs_and_fail_when_it_has_gone() {
    run(async {
        let directory = tempfile::tempdir().expect("there is a disk");
        let (mut child, endpoint, capability) = other_host(directory.path()).await;
        // The first verb maps the region.
        assert_eq!(endpoint.fetch_add(&capability, 64, 1).await, Ok(0));
        child.stop();
        for round in 1..1000 {
            let added = endpoint.fetch_add(&capability, 64, 1).now().map_err(|_| "it waits");
            assert_eq!(added.expect("nobody is asked"), Ok(round));
            let read = endpoint.read(&capability, 64, 8, BytesMut::new()).now().map_err(|_| "it waits");
            assert_eq!(read.expect("nobody is asked").expect("it is granted")[..], (round + 1).to_le_bytes());
        }
        // A message that does not fit into the ring waits for a host that will never read it.
        let waiting = endpoint.send(&[Bytes::from(vec![0; SIZE])]);
        child.signal(Signal::KILL);
        child.wait();
        assert_eq!(waiting.await.expect_err("nobody received it").kind(), ErrorKind::Ambiguous);
        assert_eq!(endpoint.fetch_add(&capability, 64, 1).await, Err(Error::Closed));
        assert_eq!(endpoint.receive().await, Err(Error::Closed));
    });
}

#[test]
fn messages_and_notices_cross_processes_in_order() {
    run(async {
        let directory = tempfile::tempdir().expect("there is a disk");
        let (_child, endpoint, capability) = other_host(directory.path()).await;
        // Posted before the capability is confirmed: later verbs must not overtake it.
        let written = endpoint.write_with_immediate(&capability, 0, &[Bytes::from_static(b"first")], 0xABCD);
        let sizes = [0usize, 5, 70_000, 3 << 20, 1];
        let sends: Vec<_> = sizes.iter().map(|size| endpoint.send(&[Bytes::from(vec![*size as u8; *size])])).collect();
        let expected = Bytes::copy_from_slice(&0xABCDu32.to_le_bytes());
        assert_eq!(endpoint.receive().await, Ok(IncomingEvent::Message(expected)));
        for size in sizes {
            assert_eq!(endpoint.receive().await, Ok(IncomingEvent::Message(Bytes::from(vec![size as u8; size]))));
        }
        written.await.expect("it was echoed");
        for send in sends {
            send.await.expect("it was echoed");
        }
        // Many round trips, so that either end falls asleep at every point of the other's.
        for round in 0..2000u32 {
            let message = Bytes::copy_from_slice(&round.to_le_bytes());
            endpoint.send(std::slice::from_ref(&message)).await.expect("there is room");
            let echoed = rt::timeout(TEST_TIMEOUT, endpoint.receive()).await.expect("no bell was lost");
            assert_eq!(echoed, Ok(IncomingEvent::Message(message)));
        }
    });
}

#[test]
fn strangers_and_taken_paths_are_refused() {
    run(async {
        let owner = owner(TEST_TIMEOUT).await;
        let provider = ShmProvider::default();
        let mut stranger = credential();
        stranger.token = Token::new([8; 32]);
        let refused = provider.connect(&owner.address, &stranger).await.expect_err("the token is wrong");
        assert!(matches!(refused, Error::Rejected(_)));
        stranger.name = "nobody".to_owned();
        assert!(matches!(provider.connect(&owner.address, &stranger).await, Err(Error::Rejected(_))));
        let taken = provider.host(&owner.address, host_options()).await.err().expect("the path is taken");
        assert!(taken.to_string().contains("in use"), "{taken}");
        let long = format!("/tmp/{}", "x".repeat(200));
        let long = provider.host(&long, host_options()).await.err().expect("the path is too long");
        assert!(long.to_string().contains("shorter"), "{long}");
        let absent = provider.connect("/nowhere/host.sock", &credential()).await.expect_err("nobody is there");
        assert!(matches!(absent, Error::Unreachable { .. }));
        // A new host replaces the file that a dead host left behind.
        let directory = tempfile::tempdir().expect("there is a disk");
        let (child, endpoint, _) = other_host(directory.path()).await;
        drop(child);
        assert_eq!(endpoint.receive().await, Err(Error::Closed));
        let address = directory.path().join("host.sock");
        assert!(address.exists());
        let address = address.display().to_string();
        let again = provider.host(&address, host_options()).await.expect("the old host is dead");
        provider.connect(&address, &credential()).await.expect("the new host is there");
        again.close().await;
        let mode = std::os::unix::fs::PermissionsExt::mode(
            &std::fs::metadata(&owner.address).expect("the host lives").permissions(),
        );
        assert_eq!(mode & 0o777, 0o600);
    });
}
