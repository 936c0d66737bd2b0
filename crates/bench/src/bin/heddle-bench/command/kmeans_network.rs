//! Networks of processes that run K-means as in FlexChain's evaluation: three peers, three orderers on Raft, blocks of 200. The
//! compute nodes of a peer have a quota of processor time each.

use std::sync::Arc;

use base::rt::CancellationToken;
use measurement::figure::Figure;
use measurement::workload::Workload;
use measurement::workload::kmeans::KMeans;

use super::figure::FigureProgress;
use super::measure::{OwnNetwork, measure};
use super::peer_network::{MemoryLimits, NetworkSize, PeerSetup, state_networks};
use crate::cli::flexchain::KMeansNetworkArguments;
use crate::cli::workload::BenchRunArguments;
use crate::failure::CommandError;

/// A further step in clients must bring this much.
const PEAK_STEP: f64 = 1.05;

/// What each peer of a network has.
#[derive(Clone, Copy)]
pub struct PeerSize {
    /// Its compute nodes.
    pub nodes: u32,
    /// The quota of a compute node, in percent of one processor.
    pub percent: u32,
    /// `sequential` or `parallel`.
    pub validation: &'static str,
    /// Whether its blocks and state lie on its own disk.
    pub monolithic: bool,
}

impl PeerSize {
    /// Processors that its compute nodes may use together.
    pub fn processors(self) -> f64 {
        f64::from(self.nodes * self.percent) / 100.0
    }

    /// Such as `2 x 20 %`.
    pub fn name(self) -> String {
        format!("{} x {} %", self.nodes, self.percent)
    }
}

/// The load of all measurements of a figure.
#[derive(Clone, Copy)]
pub struct KMeansLoad {
    /// The most epochs of one clustering.
    pub epochs: u64,
    /// How long each measurement lasts.
    pub seconds: f64,
    /// The latency of the link to remote memory.
    pub link_latency_us: u64,
    pub seed: u64,
    /// Whether little data and short runs are enough.
    pub quick: bool,
}

impl From<&KMeansNetworkArguments> for KMeansLoad {
    fn from(arguments: &KMeansNetworkArguments) -> KMeansLoad {
        let KMeansNetworkArguments { epochs, seconds, link_latency_us, common, .. } = arguments;
        let (seed, quick) = (common.seed, common.quick);
        KMeansLoad { epochs: *epochs, seconds: *seconds, link_latency_us: *link_latency_us, seed, quick }
    }
}

impl KMeansLoad {
    /// States the settings of the networks.
    pub fn state(&self, figure: &mut Figure) {
        state_networks(figure, NetworkSize::new(self.quick), self.link_latency_us);
        figure.setting("epochs", self.epochs);
    }

    /// Valid transactions a second of each size, in each round. Each measurement starts a new network.
    pub async fn rounds(
        &self,
        sizes: &[PeerSize],
        rounds: u64,
        clients: u64,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<Vec<Vec<f64>>, CommandError> {
        let mut tps: Vec<Vec<f64>> = vec![Vec::new(); sizes.len()];
        for round in 0..rounds {
            for (size, tps) in sizes.iter().zip(&mut tps) {
                let form = if size.monolithic { "monolithic, " } else { "" };
                let (name, validation) = (size.name(), size.validation);
                progress.report(&format!("round {} of {rounds}, {form}{name}, {validation}", round + 1));
                let network = self.start(*size, stop).await?;
                let measured = self.throughput(&network, clients, round, stop).await;
                network.end().await;
                tps.push(measured?);
            }
        }
        Ok(tps)
    }

    /// Valid transactions a second.
    async fn throughput(
        &self,
        network: &OwnNetwork,
        clients: u64,
        round: u64,
        stop: &CancellationToken,
    ) -> Result<f64, CommandError> {
        let (profiles, epochs) = if self.quick { (500, 2) } else { (5_000, self.epochs) };
        let workload: Arc<dyn Workload> = Arc::new(KMeans { profiles, epochs, seed: self.seed, ..KMeans::default() });
        let run = BenchRunArguments {
            seed: self.seed ^ (round << 32),
            warm_up: if self.quick { 0.5 } else { 2.0 },
            ..BenchRunArguments::window(clients, if self.quick { 1.0 } else { self.seconds })
        };
        Ok(measure(&run, workload, &network.dir(), network.endpoints(), &[], stop).await?.valid_tps())
    }

    /// The number of clients at which throughput stops growing. It is doubled from `clients` on.
    pub async fn peak_clients(
        &self,
        size: PeerSize,
        mut clients: u64,
        progress: &FigureProgress,
        stop: &CancellationToken,
    ) -> Result<u64, CommandError> {
        if self.quick {
            return Ok(6);
        }
        let (network, mut best) = (self.start(size, stop).await?, 0.0);
        let found = loop {
            progress.report(&format!("{clients} clients at {}", size.name()));
            let tps = match self.throughput(&network, clients, 0, stop).await {
                Ok(tps) => tps,
                Err(error) => break Err(error),
            };
            if tps < best * PEAK_STEP {
                break Ok(clients / 2);
            }
            (best, clients) = (tps, clients * 2);
        };
        network.end().await;
        found
    }

    async fn start(&self, size: PeerSize, stop: &CancellationToken) -> Result<OwnNetwork, CommandError> {
        let PeerSize { nodes, percent, validation, monolithic } = size;
        let setup = PeerSetup {
            name: size.name(),
            monolithic,
            nodes,
            cpu_percent: percent,
            validation,
            link_latency_us: self.link_latency_us,
            memory: None,
            size: NetworkSize::new(self.quick),
        };
        setup.start(&MemoryLimits::not_wanted(), stop).await
    }
}
