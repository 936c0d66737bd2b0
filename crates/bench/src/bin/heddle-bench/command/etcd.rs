//! `heddle bench kv-etcd`: compares our key-value store with etcd, both over gRPC, in the same run.
//!
//! 1. Start three etcd nodes on loopback, each with its own directory. Start our store once per persistence mode in
//!    [`OURS`], each as a child process.
//! 2. Put all keys once. Then measure puts and gets with all clients, then puts and gets with one client, each for the
//!    requested number of rounds. In every round the stores take turns.
//!
//! etcd is called as its clients call it: one call per operation, without TLS, at its leader, with linearizable gets.
//! Our store is called over its stream, with TLS. etcd syncs each write to disk on a majority, and so does our store
//! with persistent memory nodes: these two give the same guarantee. With tables a put is on one disk; without
//! persistence our store keeps nothing. All directories are on one disk.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;
use gateway::client::ConnectTarget;
use gateway::grpc::GrpcStatus;
use gateway::grpc::client::GrpcConnection;
use heddle_cli::store::{self, StoreDirectory};
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;

use super::figure::{FigureProgress, show};
use super::kv_bench::{KvLoad, KvPath, KvServer, measure, quantile};
use crate::cli::kv::KvEtcdArguments;
use crate::failure::CommandError;

const NODES: usize = 3;
const DEADLINE: Duration = Duration::from_secs(20);
const READY_TIMEOUT: Duration = Duration::from_secs(30);
/// Our store's forms: their names in figures, and their `--persistence`.
const OURS: [(&str, &str); 3] =
    [("heddle kv", "none"), ("heddle kv on nodes' disks", "nodes"), ("heddle kv in tables", "coordinator")];
const PUT_OVER_ETCD_MIN: f64 = 10.0;
const DURABLE_PUT_OVER_ETCD_MIN: f64 = 2.0;
const GET_OVER_ETCD_MIN: f64 = 10.0;

/// The messages of etcd that the benchmark needs: etcdserverpb of its version 3.
mod wire {
    use base::Bytes;

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PutRequest {
        #[prost(bytes = "bytes", tag = "1")]
        pub key: Bytes,
        #[prost(bytes = "bytes", tag = "2")]
        pub value: Bytes,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct PutResponse {
        #[prost(message, optional, tag = "1")]
        pub header: Option<Header>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RangeRequest {
        #[prost(bytes = "bytes", tag = "1")]
        pub key: Bytes,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct RangeResponse {
        #[prost(message, repeated, tag = "2")]
        pub found: Vec<KeyValue>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct KeyValue {
        #[prost(bytes = "bytes", tag = "1")]
        pub key: Bytes,
        #[prost(bytes = "bytes", tag = "5")]
        pub value: Bytes,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StatusRequest {}

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct StatusResponse {
        #[prost(message, optional, tag = "1")]
        pub header: Option<Header>,
        #[prost(string, tag = "2")]
        pub version: String,
        #[prost(uint64, tag = "4")]
        pub leader: u64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Header {
        #[prost(uint64, tag = "2")]
        pub member: u64,
    }
}

/// A connection to a node. Clones share it.
#[derive(Clone)]
pub struct EtcdClient(GrpcConnection);

impl EtcdClient {
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, GrpcStatus> {
        let request = wire::PutRequest { key, value };
        let _: wire::PutResponse = self.0.unary("/etcdserverpb.KV/Put", &request, Some(DEADLINE)).await?;
        Ok(0)
    }

    pub async fn get(&self, key: Bytes) -> Result<(), GrpcStatus> {
        let request = wire::RangeRequest { key };
        let _: wire::RangeResponse = self.0.unary("/etcdserverpb.KV/Range", &request, Some(DEADLINE)).await?;
        Ok(())
    }

    /// The version, if this node leads.
    async fn leads(&self) -> Option<String> {
        let path = "/etcdserverpb.Maintenance/Status";
        let status: wire::StatusResponse = self.0.unary(path, &wire::StatusRequest {}, Some(DEADLINE)).await.ok()?;
        (status.leader != 0 && status.header?.member == status.leader).then_some(status.version)
    }
}

async fn connect(port: u16) -> Option<EtcdClient> {
    let target = ConnectTarget { address: format!("127.0.0.1:{port}"), tls: None };
    GrpcConnection::connect(&target).await.ok().map(EtcdClient)
}

/// Three nodes, and their directories, which are removed on drop.
struct EtcdCluster {
    children: Vec<Child>,
    _folder: tempfile::TempDir,
    leader: u16,
    version: String,
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl EtcdCluster {
    async fn start(program: &std::path::Path, stop: &CancellationToken) -> Result<EtcdCluster, CommandError> {
        let failed = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => CommandError::new(format!(
                "{} is not there; on Debian `apt-get install etcd-server` installs it, and --etcd names another",
                program.display()
            )),
            _ => CommandError::new(format!("etcd cannot be started: {error}")),
        };
        let folder = tempfile::tempdir().map_err(failed)?;
        // Ports that are free now; the listeners are held until all ports are known, so that the ports differ.
        let held: Vec<TcpListener> =
            (0..2 * NODES).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>().map_err(failed)?;
        let ports: Vec<u16> = held
            .iter()
            .map(|listener| Ok(listener.local_addr()?.port()))
            .collect::<Result<_, std::io::Error>>()
            .map_err(failed)?;
        drop(held);
        let (clients, peers) = ports.split_at(NODES);
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let cluster: Vec<String> = peers.iter().enumerate().map(|(at, port)| format!("n{at}={}", url(*port))).collect();
        let (mut etcd, cluster) = (
            EtcdCluster { children: Vec::new(), _folder: folder, leader: 0, version: String::new() },
            cluster.join(","),
        );
        for node in 0..NODES {
            let mut command = Command::new(program);
            let (client, peer) = (url(clients[node]), url(peers[node]));
            command.arg("--name").arg(format!("n{node}"));
            command.arg("--data-dir").arg(etcd._folder.path().join(format!("n{node}")));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &cluster, "--initial-cluster-state", "new"]);
            command.args(["--log-level", "error", "--quota-backend-bytes", "8589934592"]);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
            etcd.children.push(child.map_err(failed)?);
        }
        let start = Instant::now();
        while start.elapsed() < READY_TIMEOUT {
            if stop.is_cancelled() {
                return Err(CommandError::interrupted());
            }
            for port in clients {
                let Some(client) = connect(*port).await else { continue };
                if let Some(version) = client.leads().await {
                    (etcd.leader, etcd.version) = (*port, version);
                    return Ok(etcd);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Err(CommandError::new("the three nodes of etcd did not elect a leader"))
    }
}

/// Operations per second and quantiles of each round.
#[derive(Default)]
struct RoundResults {
    rates: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
}

pub async fn run(arguments: &KvEtcdArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let figure = measured(arguments, stop, &progress).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

async fn measured(
    arguments: &KvEtcdArguments,
    stop: &CancellationToken,
    progress: &FigureProgress,
) -> Result<Figure, CommandError> {
    progress.report("starting etcd");
    let etcd = EtcdCluster::start(&arguments.etcd, stop).await?;
    let connections = arguments.connections.min(arguments.clients);
    let (mut systems, mut servers) = (Vec::new(), Vec::new());
    let mut ways = Vec::new();
    for _ in 0..connections {
        let client = connect(etcd.leader).await.ok_or_else(|| CommandError::new("etcd's leader cannot be reached"))?;
        ways.push(KvPath::Etcd(client));
    }
    systems.push(("etcd", ways));
    for (name, persistence) in OURS {
        progress.report(&format!("starting {name}"));
        let server = KvServer::start(arguments.keys, arguments.value_bytes, persistence).await?;
        let mut ways = Vec::new();
        for _ in 0..connections {
            let client =
                store::connect(&StoreDirectory { dir: server.folder.path().to_path_buf(), store: 1, token_file: None })
                    .await?;
            ways.push(KvPath::Exchange(client.exchange().await.map_err(|status| CommandError::new(status.message))?));
        }
        systems.push((name, ways));
        servers.push(server);
    }
    let value_bytes = usize::try_from(arguments.value_bytes).unwrap_or(usize::MAX);
    let load = |clients, limit| KvLoad { clients, keys: arguments.keys, value_bytes, limit };
    for (name, ways) in &systems {
        progress.report(&format!("{name}: first puts"));
        measure(ways, &load(arguments.clients, None), stop).await?;
    }
    let loads = [
        ("put", 100, arguments.clients),
        ("get", 0, arguments.clients),
        ("put, one client", 100, 1),
        ("get, one client", 0, 1),
    ];
    let mut cells: Vec<(usize, usize, RoundResults)> = Vec::new();
    for (at, (what, puts, clients)) in loads.into_iter().enumerate() {
        cells.extend((0..systems.len()).map(|system| (at, system, RoundResults::default())));
        for round in 0..arguments.rounds as usize {
            for turn in 0..systems.len() {
                let system = (round + turn) % systems.len();
                let (name, ways) = &systems[system];
                progress.report(&format!("{name}: {what}, round {} of {}", round + 1, arguments.rounds));
                let limit = Some((puts, Duration::from_secs_f64(arguments.seconds)));
                let (micros, elapsed) = measure(ways, &load(clients, limit), stop).await?;
                let cell = cells.iter_mut().find(|(of, who, _)| (*of, *who) == (at, system));
                let (_, _, cell) = cell.expect("it was just made");
                cell.rates.push(micros.len() as f64 / elapsed.as_secs_f64());
                cell.p50.push(f64::from(quantile(&micros, 500)));
                cell.p99.push(f64::from(quantile(&micros, 990)));
            }
        }
    }
    let mut figure = Figure::new("kv-etcd", "A key-value store on passive memory nodes beside etcd, both over gRPC");
    figure.setting("etcd", etcd.version.as_str());
    figure.setting("keys", arguments.keys);
    figure.setting("value_bytes", arguments.value_bytes);
    figure.setting("clients", arguments.clients);
    figure.setting("connections", connections);
    figure.setting("rounds", arguments.rounds);
    figure.setting("seconds", arguments.seconds);
    for (at, system, cell) in &cells {
        let numbers = [
            ("ops_per_second", median(cell.rates.clone())),
            ("p50_us", median(cell.p50.clone())),
            ("p99_us", median(cell.p99.clone())),
        ];
        figure.row(&[("system", systems[*system].0), ("operation", loads[*at].0)], &numbers);
    }
    let ratio = |load: usize, ours: usize| {
        let rates = |system: usize| {
            let cell = cells.iter().find(|(of, who, _)| (*of, *who) == (load, system));
            cell.map(|(_, _, cell)| cell.rates.clone()).unwrap_or_default()
        };
        median(rates(ours).iter().zip(rates(0)).map(|(ours, theirs)| ours / theirs.max(1.0)))
    };
    figure.ratio("put_over_etcd", ratio(0, 1), Some(RatioBound::AtLeast(PUT_OVER_ETCD_MIN)));
    figure.ratio("get_over_etcd", ratio(1, 1), Some(RatioBound::AtLeast(GET_OVER_ETCD_MIN)));
    figure.ratio("durable_put_over_etcd", ratio(0, 2), Some(RatioBound::AtLeast(DURABLE_PUT_OVER_ETCD_MIN)));
    figure.ratio("tables_put_over_etcd", ratio(0, 3), None);
    figure.note(
        "etcd makes each put durable on a majority, as heddle kv does on its nodes' disks. Without them it keeps nothing, so \
         those puts give a weaker guarantee; in tables the put is on one disk",
    );
    figure.note("etcd is called once per operation without TLS, at its leader; heddle kv over its stream with TLS");
    Ok(figure)
}
