//! The load that rises and falls on one network, and who serves meanwhile.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use measurement::network::{CommitWait, GatewayNetwork, GatewayTarget};
use measurement::open_loop::{self, LATE_MAX, LoadStep, OfferedTransaction, StepClients};
use measurement::workload::Workload;
use measurement::workload::kmeans::KMeans;
use node::Ready;
use node::control::request_node;

use super::manager::{ManagerProcess, instant_of, is_at_least};
use super::sample::{LoadTimes, ScalingSample, evaluate};
use crate::cli::flexchain::ElasticArguments;
use crate::cli::workload::BenchRunArguments;
use crate::command::measure::{OwnNetwork, measure as measure_window};
use crate::failure::CommandError;
use crate::page;

/// The name of the peer in the manager's record.
const PEER: &str = "org1";
/// The most compute nodes of the peer.
pub const NODES_MAX: u32 = 4;
/// The low and the high load, over what one compute node with the largest quota carries.
pub const LOW: f64 = 0.2;
pub const HIGH: f64 = 2.0;
/// How long the peer must be cold before the manager takes a step back.
const CALM_SECONDS: u64 = 1;
const CLIENTS: usize = 32;
const CONNECTIONS: usize = 4;
/// A transaction that takes longer has failed.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// Clients and time with which one node's load is found.
const CAPACITY_CLIENTS: u64 = 16;
const CAPACITY_SECONDS: f64 = 5.0;
/// How often nodes are asked whether they serve.
const POLL: Duration = Duration::from_millis(20);
const ENDORSED: &str = "heddle_chain_proposals_endorsed_total";

/// One rise and fall of the load.
pub struct Round {
    pub sample: ScalingSample,
    /// From the rise of the load to the first proposal that a launched node has endorsed, if there was one.
    pub second_node_seconds: Option<f64>,
    /// The most compute nodes that the peer had.
    pub nodes: usize,
    /// What the manager did, with the seconds since the load rose.
    pub changes: Vec<(f64, String)>,
    /// What the last failed transaction was answered.
    pub last_error: Option<String>,
}

/// A network of one peer, its manager, and the load that one compute node carries.
pub struct ElasticPeer {
    network: OwnNetwork,
    manager: ManagerProcess,
    clients: Arc<GatewayNetwork>,
    workload: KMeans,
    /// Transactions a second.
    pub capacity: f64,
    quota_min: u32,
}

impl ElasticPeer {
    /// Starts the network, finds the load that one node with the largest quota carries, and starts the manager.
    pub async fn start(arguments: &ElasticArguments, stop: &CancellationToken) -> Result<ElasticPeer, CommandError> {
        let quota_max = arguments.cpu_percent;
        let quota_min = quota_max / 2;
        let config = format!("[pool]\ncompute_cpu_percent = {quota_max}\n");
        let network = OwnNetwork::configured(&config, &["--isolate", "--orgs", "1"], stop).await?;
        let workload = KMeans {
            profiles: 1_000,
            epochs: arguments.epochs,
            // A clustering ends with its last epoch: all transactions cost the same.
            threshold: 0.0,
            // Updates would make some of the others invalid.
            updates_percent: 0,
            seed: arguments.common.seed,
            ..KMeans::default()
        };
        let seconds = if arguments.common.quick { 1.0 } else { CAPACITY_SECONDS };
        let run = BenchRunArguments { warm_up: 1.0, ..BenchRunArguments::window(CAPACITY_CLIENTS, seconds) };
        let (dir, endpoints) = (network.dir(), network.endpoints());
        let found = measure_window(&run, Arc::new(workload.clone()), &dir, endpoints, &[], stop).await?;
        let gateways = [GatewayTarget { target: endpoints.target(&dir, 1)?, user: endpoints.user(&dir, 1)? }];
        let clients =
            GatewayNetwork::connect(&endpoints.channel, &gateways, CONNECTIONS, CommitWait::Status, CALL_DEADLINE);
        let clients = Arc::new(clients.await?);
        let limits = [
            ("--nodes-max", u64::from(NODES_MAX)),
            ("--quota-min", quota_min.into()),
            ("--quota-max", quota_max.into()),
            ("--calm", CALM_SECONDS),
        ];
        let limits: Vec<String> =
            limits.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]).collect();
        let manager = ManagerProcess::start(&dir, &limits)?;
        Ok(ElasticPeer { network, manager, clients, workload, capacity: found.valid_tps(), quota_min })
    }

    /// Has the load rise and fall once.
    pub async fn round(
        &mut self,
        arguments: &ElasticArguments,
        number: u64,
        stop: &CancellationToken,
    ) -> Result<Round, CommandError> {
        let (peer, least) = (PEER, self.quota_min);
        let is_calm = |record: &_| is_at_least(record, peer, least);
        let seconds = Duration::from_secs_f64;
        let [calm, high] = [arguments.calm, arguments.high].map(seconds);
        // An idle peer has what it has under the low load, too.
        let record = self.manager.recorded("the peer does not get down to its least size", stop, is_calm).await?;
        let first_event = record.next_event;
        let steps = [(LOW, calm), (HIGH, high), (LOW, calm)];
        let steps = steps.map(|(share, length)| LoadStep { rate: share * self.capacity, length });
        let began = Instant::now();
        let times = LoadTimes { began, up: began + calm, down: began + calm + high, ended: began + calm + high + calm };
        let clients =
            StepClients { clients: CLIENTS, seed: arguments.common.seed ^ (number << 32), late_max: LATE_MAX };
        let offering = open_loop::run_steps(&steps, began, clients, &self.workload, self.clients.clone(), stop);
        let dir = self.network.dir();
        let mut offering = std::pin::pin!(offering);
        let mut watch = ServingNodes::new(&dir);
        let transactions: Vec<OfferedTransaction> = loop {
            tokio::select! {
                offered = &mut offering => break offered?,
                () = watch.look() => {}
            }
        };
        let record = self.manager.record()?;
        let events = record.events.iter().filter(|event| event.number >= first_event);
        let events: Vec<(Instant, String)> =
            events.map(|event| (instant_of(event), format!("{}: {}", event.done, event.seen))).collect();
        let since = |at: Instant| (at - began).as_secs_f64() - calm.as_secs_f64();
        // At its limits the manager says so, and changes nothing.
        let changed = events.iter().filter(|(_, done)| !done.starts_with("nothing")).map(|(at, _)| *at);
        let sample = evaluate(&transactions, &changed.collect::<Vec<_>>(), &times).map_err(|error| {
            let changes: Vec<String> = events.iter().map(|(at, done)| format!("{:.2} s {done}", since(*at))).collect();
            CommandError::new(format!("{error}\nSince the load rose: {}", changes.join("; ")))
        })?;
        let failed = transactions.iter().rev().find(|offered| !offered.is_valid());
        let last_error = failed.map(|offered| match &offered.outcome {
            Ok(committed) => format!("{:.3} s: code {}", since(offered.ended), committed.code),
            Err(rejected) => format!("{:.3} s: {} {}", since(offered.ended), rejected.stage.name(), rejected.message),
        });
        Ok(Round {
            sample,
            second_node_seconds: watch.first.map(since),
            nodes: 1 + watch.served.len(),
            changes: events.into_iter().map(|(at, done)| (since(at), done)).collect(),
            last_error,
        })
    }

    /// The end of the network's log.
    pub fn log(&self) -> String {
        self.network.log()
    }

    pub async fn end(self) {
        drop(self.manager);
        self.network.end().await;
    }

    pub fn workload(&self) -> &dyn Workload {
        &self.workload
    }
}

/// The launched nodes that have endorsed something.
struct ServingNodes {
    /// Their folders, by number from 2 on.
    folders: Vec<PathBuf>,
    served: BTreeSet<usize>,
    first: Option<Instant>,
}

impl ServingNodes {
    fn new(network: &Path) -> ServingNodes {
        let folders = (2..=NODES_MAX).map(|number| network.join("nodes").join(format!("compute-{PEER}-{number}")));
        ServingNodes { folders: folders.collect(), served: BTreeSet::new(), first: None }
    }

    /// Looks once, and waits until the next look.
    async fn look(&mut self) {
        for (number, folder) in self.folders.iter().enumerate() {
            if self.served.contains(&number) {
                continue;
            }
            // The node itself says that it follows its primary, and how many proposals it has endorsed.
            let Some(ready) = Ready::load(folder) else { continue };
            let is_follower = request_node(folder).await.is_ok_and(|report| report.role == "follower");
            if is_follower && endorsed(ready.metrics).await > 0.0 {
                self.served.insert(number);
                self.first.get_or_insert_with(Instant::now);
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn endorsed(address: SocketAddr) -> f64 {
    let page = tokio::task::spawn_blocking(move || page::get(address, "/metrics")).await;
    page.ok().and_then(Result::ok).and_then(|page| page::metric(&page, ENDORSED)).unwrap_or_default()
}
