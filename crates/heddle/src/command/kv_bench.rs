//! `heddle bench kv`: what a key-value store does in a second over gRPC with TLS.
//!
//! The store is this program again, as a child, or the one that `--connect` names. Clients are tasks of this process, each with
//! one operation at a time, over a few connections. All keys are put once; then puts alone, gets alone, and both by halves are
//! measured.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::Stop;
use bench::figure::Figure;
use node::kv::{KvClient, KvEndpoint, KvExchange};

use super::figure::{Progress, show};
use super::{etcd, kv};
use crate::cli::bench::Kv as Arguments;
use crate::cli::kv::StoreDirectory;
use crate::failure::Failure;

const READY_PATIENCE: Duration = Duration::from_secs(60);

/// The child, and its directory, which go when this does.
pub(super) struct Server {
    child: Child,
    pub(super) folder: tempfile::TempDir,
}

impl Server {
    /// A store for so many keys, kept as a mode of `--persistence` says.
    pub(super) async fn start(keys: u64, value_bytes: u64, persistence: &str) -> Result<Server, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("the store cannot be started: {error}"));
        let folder = tempfile::tempdir().map_err(failed)?;
        // A record in one block: 48 bytes, the key and the value.
        let block_bytes = (value_bytes + 80).next_multiple_of(64).max(1152);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["kv", "up", "--bound", "--listen", "127.0.0.1:0", "--dir"]).arg(folder.path());
        command.args(["--keys", &keys.to_string(), "--block-bytes", &block_bytes.to_string()]);
        command.args(["--persistence", persistence]);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(failed)?;
        let start = Instant::now();
        loop {
            if KvEndpoint::load(folder.path())?.is_some_and(|endpoint| endpoint.process == child.id()) {
                return Ok(Server { child, folder });
            }
            if child.try_wait().map_err(failed)?.is_some() || start.elapsed() > READY_PATIENCE {
                return Err(Failure::new("the store did not start; what is wrong stands above"));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Failing means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn run(arguments: &Arguments, stop: &Stop) -> Result<(), Failure> {
    let progress = Progress::new();
    let figure = measured(arguments, stop, &progress).await;
    drop(progress);
    show(&figure?, &arguments.output)
}

async fn measured(arguments: &Arguments, stop: &Stop, progress: &Progress) -> Result<Figure, Failure> {
    let server = match &arguments.connect {
        Some(_) => None,
        None => Some(Server::start(arguments.keys, arguments.value_bytes, "none").await?),
    };
    let directory = match (&server, &arguments.connect) {
        (Some(server), _) => server.folder.path(),
        (None, Some(directory)) => directory,
        (None, None) => unreachable!("one of them was just made"),
    };
    let mut connections = Vec::new();
    for _ in 0..arguments.connections.min(arguments.clients) {
        let client = kv::connect(&StoreDirectory { dir: directory.to_path_buf(), store: 1, token_file: None }).await?;
        connections.push(match arguments.unary {
            true => Way::Unary(client),
            false => Way::Exchange(client.exchange().await.map_err(|status| Failure::new(status.message))?),
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
        progress.tell(what);
        let limit = puts_of_100.map(|puts| (puts, Duration::from_secs_f64(arguments.seconds)));
        let value_bytes = usize::try_from(arguments.value_bytes).unwrap_or(usize::MAX);
        let load = Load { clients: arguments.clients, keys, value_bytes, limit };
        let (micros, elapsed) = measure(&connections, &load, stop).await?;
        let [p50, p99, p999] = [500, 990, 999].map(|thousandths| f64::from(quantile(&micros, thousandths)));
        let rate = micros.len() as f64 / elapsed.as_secs_f64();
        let numbers = [("ops_per_second", rate), ("p50_us", p50), ("p99_us", p99), ("p999_us", p999)];
        figure.row(&[("load", what)], &numbers);
    }
    figure.note("clients and the store share this machine's processors, unless the store of --connect has others");
    Ok(figure)
}

/// How a store is loaded.
pub(super) struct Load {
    pub clients: u64,
    pub keys: u64,
    pub value_bytes: usize,
    /// Puts of a hundred operations, and for how long; none puts all keys once.
    pub limit: Option<(u64, Duration)>,
}

/// The time within which so many of a thousand were answered, in microseconds.
pub(super) fn quantile(micros: &[u32], thousandths: usize) -> u32 {
    micros.get(micros.len().saturating_sub(1) * thousandths / 1000).copied().unwrap_or_default()
}

/// What each operation took, in microseconds, ascending; and all of them together.
pub(super) async fn measure(ways: &[Way], load: &Load, stop: &Stop) -> Result<(Vec<u32>, Duration), Failure> {
    let start = Instant::now();
    let clients: Vec<_> = (0..load.clients)
        .map(|number| {
            let client = Client {
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
        micros.append(&mut client.await.map_err(Failure::new)??);
    }
    if stop.is_stopped() {
        return Err(Failure::interrupted());
    }
    let elapsed = start.elapsed();
    micros.sort_unstable();
    Ok((micros, elapsed))
}

/// How operations are asked for.
#[derive(Clone)]
pub(super) enum Way {
    Unary(KvClient),
    Exchange(KvExchange),
    Etcd(etcd::Client),
}

impl Way {
    async fn put(&self, key: Bytes, value: Bytes) -> Result<(), Failure> {
        let version = match self {
            Way::Unary(client) => client.put(key, value).await,
            Way::Exchange(exchange) => exchange.put(key, value).await,
            Way::Etcd(client) => client.put(key, value).await,
        };
        version.map(drop).map_err(|status| Failure::new(status.message))
    }

    async fn get(&self, key: Bytes) -> Result<(), Failure> {
        let found = match self {
            Way::Unary(client) => client.get(key).await,
            Way::Exchange(exchange) => exchange.get(key).await,
            Way::Etcd(client) => return client.get(key).await.map_err(|status| Failure::new(status.message)),
        };
        found.map(drop).map_err(|status| Failure::new(status.message))
    }
}

struct Client {
    way: Way,
    number: u64,
    clients: u64,
    keys: u64,
    value: Bytes,
    stop: Stop,
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:012}"))
}

/// What each operation took, in microseconds.
type Outcome = Result<Vec<u32>, Failure>;

impl Client {
    async fn put(&self, number: u64, micros: &mut Vec<u32>) -> Result<(), Failure> {
        let start = Instant::now();
        self.way.put(key(number), self.value.clone()).await?;
        micros.push(start.elapsed().as_micros() as u32);
        Ok(())
    }

    async fn put_all(self) -> Outcome {
        let mut micros = Vec::new();
        for number in (self.number..self.keys).step_by(self.clients as usize) {
            if self.stop.is_stopped() {
                break;
            }
            self.put(number, &mut micros).await?;
        }
        Ok(micros)
    }

    async fn operate(self, puts_of_100: u64, limit: Duration) -> Outcome {
        let (mut micros, start, mut chance) = (Vec::new(), Instant::now(), self.number);
        let mut next = |bound: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (chance >> 33) % bound
        };
        while start.elapsed() < limit && !self.stop.is_stopped() {
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
