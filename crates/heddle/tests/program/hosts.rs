//! Tests roles on several hosts, which are network namespaces joined by a bridge. Memory, storage and links use mutual
//! TLS, and one memory node is lost for good.
//!
//! The test must run as root and needs the program `ip` (Debian's iproute2), which `cargo xtask test` installs.

use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::load::{Load, check, connect};
use crate::support::{run, text};
use node::{ProcessRole, Ready};

/// The number of hosts besides the clients' own.
const HOSTS: usize = 3;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const SOME: usize = 25;

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("ip, of the package iproute2, cannot be run: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {said}; this test must run as root");
}

/// Namespaces joined by a bridge. They are removed on drop.
struct Hosts {
    bridge: String,
    /// The first two numbers of all addresses; each run has its own.
    subnet: String,
    names: Vec<String>,
}

impl Hosts {
    fn new() -> Hosts {
        let number = std::process::id() % 4096;
        let subnet = format!("10.{}.{}", 200 + number / 256, number % 256);
        let hosts = Hosts {
            bridge: format!("hb{number}"),
            subnet,
            names: (1..=HOSTS).map(|host| format!("heddle{number}h{host}")).collect(),
        };
        ip(&format!("link add {} type bridge", hosts.bridge));
        ip(&format!("addr add {}/24 dev {}", hosts.address(0), hosts.bridge));
        ip(&format!("link set {} up", hosts.bridge));
        for (index, name) in hosts.names.iter().enumerate() {
            let (outside, address) = (format!("hv{number}x{index}"), hosts.address(index + 1));
            ip(&format!("netns add {name}"));
            ip(&format!("link add {outside} type veth peer name eth0 netns {name}"));
            ip(&format!("link set {outside} master {} up", hosts.bridge));
            ip(&format!("-n {name} addr add {address}/24 dev eth0"));
            ip(&format!("-n {name} link set eth0 up"));
            ip(&format!("-n {name} link set lo up"));
        }
        hosts
    }

    /// Host 0 is this one, at the bridge.
    fn address(&self, host: usize) -> IpAddr {
        format!("{}.{}", self.subnet, 10 + host).parse().expect("an address")
    }

    /// Starts a role on its host, from a folder that no other role sees.
    fn start(&self, host: usize, role: ProcessRole, folder: &Path) -> Process {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("heddle.log")).expect("a log");
        let config = folder.join("node.toml");
        let child = Command::new("ip")
            .args(["netns", "exec", &self.names[host - 1], env!("CARGO_BIN_EXE_heddle")])
            .args(["node", role.name(), "--bound", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the program can be started");
        Process { child, folder: folder.to_path_buf() }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).status();
    }
}

/// A process on a host, killed when dropped.
struct Process {
    child: Child,
    folder: std::path::PathBuf,
}

impl Process {
    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("heddle.log")).unwrap_or_default()
    }

    fn wait_until_ready(&mut self) {
        let start = Instant::now();
        // `ip netns exec` replaces itself by the program, so the child's ID is the program's.
        while Ready::load(&self.folder).is_none_or(|ready| ready.process != self.child.id()) {
            let ended = self.child.try_wait().expect("it is a child");
            let late = start.elapsed() > READY_TIMEOUT;
            assert!(ended.is_none() && !late, "{}: {ended:?}\n{}", self.folder.display(), self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends SIGTERM, and expects a clean end.
    fn end(mut self) {
        let pid = rustix::process::Pid::from_raw(self.child.id() as i32).expect("not zero");
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it runs");
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "{}: {status}\n{}", self.folder.display(), self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_on_several_hosts_commit_and_go_on_without_a_memory_node() {
    let hosts = Hosts::new();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    // Memory on one host, the storage that both peers share on another, everything else on a third.
    let placed = [("memory-1", 1), ("memory-2", 1), ("storage-1", 2)];
    let shown = dir.display().to_string();
    let default = hosts.address(3).to_string();
    let mut arguments = vec!["plan", "--orgs", "2", "--policy", "all", "--dir", &shown, "--host", &default];
    arguments.extend(["--storage-nodes", "1"]);
    let places = placed.map(|(name, host)| format!("{name}={}", hosts.address(host)));
    places.iter().for_each(|place| arguments.extend(["--place", place]));
    let output = run(&arguments);
    assert!(output.status.success(), "{}", text(&output));

    // Every process sees only its own folder, as if it had been copied to its host.
    let mut running = Vec::new();
    for entry in text(&output).lines().filter_map(|line| line.split_once("heddle node ")) {
        let (role, config) = entry.1.split_once(" --config ").expect("a command");
        let name =
            config.strip_suffix("/node.toml").expect("the file of a process, from where its folder was copied to");
        let (name, from) = (name.to_owned(), dir.join("nodes").join(name));
        let to = folder.path().join("hosts").join(&name);
        std::fs::create_dir_all(folder.path().join("hosts")).expect("it can be made");
        std::fs::rename(from, &to).expect("it can be moved");
        let roles = [
            ProcessRole::Memory,
            ProcessRole::Storage,
            ProcessRole::Orderer,
            ProcessRole::Compute,
            ProcessRole::Gateway,
        ];
        let role = roles.into_iter().find(|known| known.name() == role).expect("a role");
        let host = placed.iter().find(|(other, _)| *other == name).map_or(3, |(_, host)| *host);
        running.push((name, hosts.start(host, role, &to)));
    }
    // A process waits for those that it calls, so the order of starting does not matter.
    running.iter_mut().for_each(|(_, process)| process.wait_until_ready());

    let load = Load::start(&dir, 2, 4);
    load.progress(SOME, "over mutual TLS").await;
    for (name, process) in &running {
        assert!(!process.log().contains("clear text"), "{name}: {}", process.log());
        let file = std::fs::read_to_string(process.folder.join("node.toml")).expect("its file");
        assert!(file.contains("tcp_tls = true"), "{name}: {file}");
    }
    let index = running.iter().position(|(name, _)| name == "memory-1").expect("it was planned");
    drop(running.remove(index));
    load.progress(SOME, "without a memory node").await;
    let told = load.end().await;
    for organization in 1..=2 {
        let (client, channel) = connect(&dir, organization).await.expect("its gateway is ready");
        for write in &told {
            check(&client, &channel, write).await.unwrap_or_else(|error| panic!("org{organization}: {error}"));
        }
    }
    // Gateways first, memory last.
    while let Some((_, process)) = running.pop() {
        process.end();
    }
}
