//! The `tcp` provider between two hosts: network namespaces joined by a bridge, which can be taken down so that a host falls
//! silent. The silent host sends no reset, as when a machine loses its power.
//!
//! The tests need root and the program `ip` (Debian's iproute2), which `cargo xtask test` installs.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use base::rt::{self, production};
use base::{Bytes, BytesMut, ErrorKind};
use rma::conformance::{self, Fixture, FixtureFeatures};
use rma::tcp::{TcpConfig, TcpProvider};
use rma::{Credential, Endpoint, Error, Host, HostConfig, NodeId, Provider, Rights, Token};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Generous: an event expected within some seconds; the kernel alone would notice within a quarter of an hour.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
const TOKEN: Token = Token::new([7; 32]);

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("ip, of the package iproute2, cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}; this test must run as root");
}

/// Two hosts and the bridge between them, removed when this is dropped.
struct Hosts {
    bridge: String,
    subnet: String,
    names: [String; 2],
    /// The namespace of the bridge.
    outside: File,
}

impl Hosts {
    /// `number` distinguishes the hosts of different tests.
    fn new(number: u32) -> Hosts {
        let run = std::process::id() % 2048 * 2 + number;
        let subnet = format!("10.{}.{}", 216 + run / 256, run % 256);
        let outside = File::open("/proc/thread-self/ns/net").expect("a thread is in a namespace");
        let names = [1, 2].map(|host| format!("rma{run}h{host}"));
        let hosts = Hosts { bridge: format!("rb{run}"), subnet, names, outside };
        ip(&format!("link add {} type bridge", hosts.bridge));
        ip(&format!("link set {} up", hosts.bridge));
        for (index, name) in hosts.names.iter().enumerate() {
            let outside = format!("rv{run}x{index}");
            ip(&format!("netns add {name}"));
            ip(&format!("link add {outside} type veth peer name eth0 netns {name}"));
            ip(&format!("link set {outside} master {} up", hosts.bridge));
            ip(&format!("-n {name} addr add {}/24 dev eth0", hosts.address(index)));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        hosts
    }

    fn address(&self, host: usize) -> String {
        format!("{}.{}", self.subnet, 10 + host)
    }

    /// Runs a future on a host: all threads of its runtime are in that host's namespace.
    fn run<T: Send>(&self, host: usize, future: impl Future<Output = T> + Send) -> T {
        let space = File::open(format!("/run/netns/{}", self.names[host])).expect("it was added");
        within(&space, || production::run(future))
    }

    /// From now on no packet arrives, and neither end is notified.
    fn fall_silent(&self) {
        within(&self.outside, || ip(&format!("link set {} down", self.bridge)));
    }
}

/// Runs a closure in a thread within a namespace.
#[allow(clippy::disallowed_methods, reason = "a thread of its own is what a host is made of here")]
fn within<T: Send>(space: &File, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let entered = move_into_link_name_space(space.as_fd(), Some(LinkNameSpaceType::Network));
            entered.expect("root may enter a namespace");
            run()
        });
        running.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}

fn credential() -> Credential {
    Credential { name: "compute0".to_owned(), token: TOKEN }
}

/// A host on the first of the two, reachable from the other.
fn host_on_the_first(hosts: &Hosts, provider: &TcpProvider) -> Arc<dyn Host> {
    let address = format!("{}:0", hosts.address(0));
    let options = HostConfig {
        node: NodeId(9),
        tokens: Arc::new(|name| ["compute0", "compute1"].contains(&name).then_some(TOKEN)),
    };
    hosts.run(0, provider.host(&address, options)).expect("a port is free")
}

struct Conforming {
    provider: TcpProvider,
    host: Arc<dyn Host>,
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
        self.provider.connect(&self.host.address(), credential).await
    }

    async fn sever(&self, _connected: &Endpoint, _accepted: &Endpoint) {}

    fn features(&self) -> FixtureFeatures {
        FixtureFeatures { sever: false, ..FixtureFeatures::default() }
    }
}

#[test]
fn it_conforms_between_two_hosts() {
    let hosts = Hosts::new(0);
    let provider = TcpProvider::default();
    let host = host_on_the_first(&hosts, &provider);
    let conforming = Conforming { provider, host };
    hosts.run(1, async { conformance::run(&conforming).await.assert_held() });
}

#[test]
fn a_host_that_falls_silent_is_lost_to_its_waiters() {
    let hosts = Hosts::new(1);
    let provider = TcpProvider::new(TcpConfig { dead_after: Duration::from_secs(4), ..TcpConfig::default() });
    let host = host_on_the_first(&hosts, &provider);
    hosts.run(1, async {
        let test = async {
            let region = host.register("test", 1 << 20).await.expect("there is memory");
            let capability = host.grant(region, Rights::ALL, "compute0").expect("the region is there");
            let (address, credential) = (host.address(), credential());
            let busy = provider.connect(&address, &credential).await.expect("the token is right");
            let accepted_busy = host.accept().await.expect("it was connected to");
            let idle = provider.connect(&address, &credential).await.expect("the token is right");
            let accepted_idle = host.accept().await.expect("it was connected to");
            busy.fetch_add(&capability, 0, 1).await.expect("it is allowed");
            hosts.fall_silent();
            // Bytes are in transit on one connection and none on the other; each has two ends.
            let bytes = Bytes::from(vec![1; 1 << 20]);
            let lost = busy.write(&capability, 0, &[bytes]).await.expect_err("nobody answers");
            assert_eq!(lost.kind(), ErrorKind::Ambiguous);
            assert_eq!(busy.read(&capability, 0, 8, BytesMut::new()).await.expect_err("it is lost"), Error::Closed);
            assert_eq!(idle.receive().await, Err(Error::Closed));
            assert_eq!(accepted_busy.receive().await, Err(Error::Closed));
            assert_eq!(accepted_idle.receive().await, Err(Error::Closed));
        };
        rt::timeout(TEST_TIMEOUT, test).await.expect("a lost host is noticed");
    });
}
