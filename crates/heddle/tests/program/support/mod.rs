//! Starts networks as processes of the real program, calls them and ends them.

pub mod chaincode;
pub mod load;
pub mod processes;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{GatewayClient, GrpcConnection};
use gateway::grpc::{GrpcCode, GrpcStatus};
use node::Endpoints;
use prost::Message as _;
use proto::common::BlockchainInfo;

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The program with these arguments.
pub fn heddle(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heddle"));
    command.args(arguments);
    command
}

/// Runs the program until it ends.
pub fn run(arguments: &[&str]) -> Output {
    heddle(arguments).stdin(Stdio::null()).output().expect("the program can be started")
}

/// The text of both outputs.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Retries an answer of `UNAVAILABLE`, as clients do: a peer may be between two primaries, or the machine busy.
pub async fn patiently<T>(ask: impl AsyncFn() -> Result<T, GrpcStatus>) -> Result<T, GrpcStatus> {
    let start = Instant::now();
    loop {
        match ask().await {
            Err(status) if status.code == GrpcCode::Unavailable && start.elapsed() < READY_TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            outcome => return outcome,
        }
    }
}

/// A manager in a process of its own, killed when dropped.
pub struct Manager(Child);

impl Manager {
    /// Starts `heddle pool manage` with these arguments, for peers of at most two compute nodes.
    pub fn start(dir: &Path, arguments: &[&str]) -> Manager {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.join("manager.log")).expect("a log");
        let mut command = heddle(&["pool", "manage", "--bound", "--nodes-max", "2", "--dir"]);
        command.arg(dir).args(arguments).stdin(Stdio::null()).stderr(log).stdout(Stdio::null());
        Manager(command.spawn().expect("the program can be started"))
    }

    pub fn process(&self) -> u32 {
        self.0.id()
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it is a child");
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A network in a process of its own, killed when dropped.
pub struct Network {
    child: Child,
    pub endpoints: Endpoints,
    dir: std::path::PathBuf,
}

impl Network {
    /// Starts `heddle up` in a directory, on any free ports, and waits until it is ready.
    pub fn start(dir: &Path, arguments: &[&str]) -> Network {
        Network::start_with(dir, arguments, None)
    }

    /// As [`Network::start`]; processes poll a folder for faults that they are to inject.
    pub fn start_with(dir: &Path, arguments: &[&str], faults: Option<&Path>) -> Network {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(dir.with_extension("log")).expect("a log");
        let mut command = heddle(&["up", "--bound", "--any-ports", "--dir"]);
        command.arg(dir).args(arguments);
        if let Some(faults) = faults {
            command.env("HEDDLE_FAULTS", faults);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut child = child.expect("the program can be started");
        let start = Instant::now();
        loop {
            match Endpoints::load(dir) {
                Ok(endpoints) if endpoints.process == child.id() => {
                    return Network { child, endpoints, dir: dir.to_path_buf() };
                }
                _ => {}
            }
            let ended = child.try_wait().expect("it is a child");
            if ended.is_some() || start.elapsed() > READY_TIMEOUT {
                let log = std::fs::read_to_string(dir.with_extension("log")).unwrap_or_default();
                let _ = child.kill();
                panic!("the network did not start ({ended:?}):\n{log}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// A client of organisation `number`, from 1.
    pub async fn client(&self, number: usize) -> GatewayClient {
        let target = self.endpoints.target(&self.dir, number).expect("the organisation is there");
        let user = self.endpoints.user(&self.dir, number).expect("it has a user");
        GatewayClient::new(GrpcConnection::connect(&target).await.expect("it listens"), user)
    }

    /// The height of each peer's ledger.
    pub async fn heights(&self) -> Vec<u64> {
        let mut heights = Vec::new();
        for number in 1..=self.endpoints.gateways.len() {
            let client = self.client(number).await;
            let channel = &self.endpoints.channel;
            let args = [Bytes::from(channel.clone())];
            let proposal = client.proposal(channel, "qscc", "GetChainInfo", &args).sign();
            let info = patiently(async || client.evaluate(&proposal).await).await.expect("the peer answers");
            heights.push(BlockchainInfo::decode(info).expect("a BlockchainInfo").height);
        }
        heights
    }

    /// Waits until all peers are at one height and stay there, and returns it.
    pub async fn settle(&self) -> u64 {
        let start = Instant::now();
        let mut before = Vec::new();
        loop {
            let heights = self.heights().await;
            if heights == before && heights.iter().all(|height| *height == heights[0]) {
                return heights[0];
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the peers stay at different heights: {heights:?}");
            before = heights;
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it is a child");
    }

    /// Ends the network with `heddle down` and expects a clean end.
    pub fn down(mut self) {
        let dir = self.dir.display().to_string();
        let output = run(&["down", "--dir", &dir]);
        assert!(output.status.success(), "{}", text(&output));
        let status = self.child.wait().expect("it is a child");
        assert!(status.success(), "the network ended with {status}");
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
