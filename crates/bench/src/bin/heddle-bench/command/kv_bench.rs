//! `heddle bench kv`: measures the operations per second of a key-value store over gRPC with TLS.
//!
//! The store is a child process, or a running store given by `--connect`. Clients are tasks of this process, each with
//! one operation in flight, over a few connections. The benchmark puts all keys once, then measures three loads: only
//! puts, only gets, half puts and half gets.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::CancellationToken;
use heddle_cli::store::{self, StoreDirectory};
use measurement::figure::Figure;
use node::kv::{KvClient, KvEndpoint, KvExchange};

use super::etcd;
use super::figure::{FigureProgress, show};
use crate::cli::kv::KvBenchArguments as Arguments;
use crate::failure::CommandError;

const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// The child, and its directory, which are removed on drop.
pub(super) struct KvServer {
    child: Child,
    pub(super) folder: tempfile::TempDir,
}

impl KvServer {
    /// Starts a store for this many keys, with a mode of `--persistence`.
    pub(super) async fn start(keys: u64, value_bytes: u64, persistence: &str) -> Result<KvServer, CommandError> {
        let failed = |error: std::io::Error| CommandError::new(format!("the store cannot be started: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        // A block must hold one record: 48 bytes, the key and the value.
        let block_bytes = (value_bytes + 80).next_multiple_of(64).max(1152);
        let mut command = Command::new(super::heddle()?);
        command.args(["kv", "up", "--bound", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.path());
        command.args(["--keys", &keys.to_string(), "--block-bytes", &block_bytes.to_string()]);
        command.args(["--persistence", persistence]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(failed)?;
        let start = Instant::now();
        loop {
            if KvEndpoint::load(folder.path())?.is_some_and(|endpoint| endpoint.process == child.id()) {
                return Ok(KvServer { child, folder });
            }
            if child.try_wait().map_err(failed)?.is_some() || start.elapsed() > READY_TIMEOUT {
                return Err(CommandError::new("the store did not start; its message above says why"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for KvServer {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn run(arguments: &Arguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let progress = FigureProgress::new();
    let figure = measured(arguments, stop, &progress).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

async fn measured(
    arguments: &Arguments,
    stop: &CancellationToken,
    progress: &FigureProgress,
) -> Result<Figure, CommandError> {
    let server = match &arguments.connect {
        Some(_) => None,
        None => Some(KvServer::start(arguments.keys, arguments.value_bytes, "none").await?),
    };
    let directory = match (&server, &arguments.connect) {
        (Some(server), _) => server.folder.path(),
        (None, Some(directory)) => directory,
        (None, None) => unreachable!("one of them was just made"),
    };
    let mut connections = Vec::new();
    for _ in 0..arguments.connections.min(arguments.clients) {
        let client =
            store::connect(&StoreDirectory { dir: directory.to_path_buf(), store: 1, token_file: None }).await?;
        connections.push(match arguments.unary {
            true => KvPath::Unary(client),
            false => KvPath::Exchange(client.exchange().await.map_err(|status| CommandError::new(status.message))?),
        });
    }
    let mut figure = Figure::new("kv", "A key-value store on passive memory nodes, over gRPC with TLS");
    figure.setting("clients", arguments.clients);
    figure.setting("connections", connections.len());
    figure.setting("asks", if arguments.unary { "a call an operation" } else { "a stream a connection" });
    figure.setting("keys", arguments.keys);
    figure.setting("value_bytes", arguments.value_bytes);
    figure.setting("seconds", arguments.seconds);
    let keys = arguments.keys;
    for (what, puts_of_100) in
        [("first puts", None), ("puts", Some(100)), ("gets", Some(0)), ("half and half", Some(50))]
    {
        progress.report(what);
        let limit = puts_of_100.map(|puts| (puts, Duration::from_secs_f64(arguments.seconds)));
        let value_bytes = usize::try_from(arguments.value_bytes).unwrap_or(usize::MAX);
        let load = KvLoad { clients: arguments.clients, keys, value_bytes, limit };
        let (micros, elapsed) = measure(&connections, &load, stop).await?;
        let [p50, p99, p999] = [500, 990, 999].map(|thousandths| f64::from(quantile(&micros, thousandths)));
        let rate = micros.len() as f64 / elapsed.as_secs_f64();
        let numbers = [("ops_per_second", rate), ("p50_us", p50), ("p99_us", p99), ("p999_us", p999)];
        figure.row(&[("load", what)], &numbers);
    }
    figure.note("clients and the store share this machine's processors, unless the store of --connect has others");
    Ok(figure)
}

/// The load on a store.
pub(super) struct KvLoad {
    pub clients: u64,
    pub keys: u64,
    pub value_bytes: usize,
    /// Puts per hundred operations, and the duration; `None` puts all keys once.
    pub limit: Option<(u64, Duration)>,
}

/// The time within which this many thousandths of the operations were answered, in microseconds.
pub(super) fn quantile(micros: &[u32], thousandths: usize) -> u32 {
    micros.get(micros.len().saturating_sub(1) * thousandths / 1000).copied().unwrap_or_default()
}

/// The latency of each operation in microseconds, ascending, and the duration of the whole load.
pub(super) async fn measure(
    ways: &[KvPath],
    load: &KvLoad,
    stop: &CancellationToken,
) -> Result<(Vec<u32>, Duration), CommandError> {
    let start = Instant::now();
    let clients: Vec<_> = (0..load.clients)
        .map(|number| {
            let client = LoadClient {
                way: ways[number as usize % ways.len()].clone(),
                number,
                clients: load.clients,
                keys: load.keys,
                value: Bytes::from(vec![b'v'; load.value_bytes]),
                stop: stop.clone(),
            };
            let limit = load.limit;
            tokio::spawn(async move {
                match limit {
                    Some((puts, limit)) => client.operate(puts, limit).await,
                    None => client.put_all().await,
                }
            })
        })
        .collect();
    let mut micros = Vec::new();
    for client in clients {
        micros.append(&mut client.await.map_err(CommandError::new)??);
    }
    if stop.is_cancelled() {
        return Err(CommandError::interrupted());
    }
    let elapsed = start.elapsed();
    micros.sort_unstable();
    Ok((micros, elapsed))
}

/// How operations are sent.
#[derive(Clone)]
pub(super) enum KvPath {
    Unary(KvClient),
    Exchange(KvExchange),
    Etcd(etcd::EtcdClient),
}

impl KvPath {
    async fn put(&self, key: Bytes, value: Bytes) -> Result<(), CommandError> {
        let version = match self {
            KvPath::Unary(client) => client.put(key, value).await,
            KvPath::Exchange(exchange) => exchange.put(key, value).await,
            KvPath::Etcd(client) => client.put(key, value).await,
        };
        version.map(drop).map_err(|status| CommandError::new(status.message))
    }

    async fn get(&self, key: Bytes) -> Result<(), CommandError> {
        let found = match self {
            KvPath::Unary(client) => client.get(key).await,
            KvPath::Exchange(exchange) => exchange.get(key).await,
            KvPath::Etcd(client) => return client.get(key).await.map_err(|status| CommandError::new(status.message)),
        };
        found.map(drop).map_err(|status| CommandError::new(status.message))
    }
}

struct LoadClient {
    way: KvPath,
    number: u64,
    clients: u64,
    keys: u64,
    value: Bytes,
    stop: CancellationToken,
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:012}"))
}

/// The latency of each operation, in microseconds.
type OperationTimes = Result<Vec<u32>, CommandError>;

impl LoadClient {
    async fn put(&self, number: u64, micros: &mut Vec<u32>) -> Result<(), CommandError> {
        let start = Instant::now();
        self.way.put(key(number), self.value.clone()).await?;
        micros.push(start.elapsed().as_micros() as u32);
        Ok(())
    }

    async fn put_all(self) -> OperationTimes {
        let mut micros = Vec::new();
        for number in (self.number..self.keys).step_by(self.clients as usize) {
            if self.stop.is_cancelled() {
                break;
            }
            self.put(number, &mut micros).await?;
        }
        Ok(micros)
    }

    async fn operate(self, puts_of_100: u64, limit: Duration) -> OperationTimes {
        let (mut micros, start, mut rng) = (Vec::new(), Instant::now(), self.number);
        let mut next = |bound: u64| {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (rng >> 33) % bound
        };
        while start.elapsed() < limit && !self.stop.is_cancelled() {
            let number = next(self.keys);
            if next(100) < puts_of_100 {
                self.put(number, &mut micros).await?;
                continue;
            }
            let start = Instant::now();
            self.way.get(key(number)).await?;
            micros.push(start.elapsed().as_micros() as u32);
        }
        Ok(micros)
    }
}
