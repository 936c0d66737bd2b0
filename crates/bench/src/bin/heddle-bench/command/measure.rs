//! `heddle bench` on networks. Figures that need no network are in [`super::figure`].
//!
//! 1. Start a network in a temporary directory, as a child process, so that the servers' processor time is separate
//!    from the clients'. With `--connect`, use the given running network instead.
//! 2. Measure the price of a signature on the quiet machine, run the workload, and measure the price again.
//! 3. End the child and remove its directory, even after a failed run.
//! 4. Print the table, and write the JSON and the plot.
//!
//! With `--pairs`, every pair takes steps 1 to 3 twice: once for the requested network, once for the baseline. The
//! order alternates from pair to pair, so that a drift of the machine affects both alike. The baseline is the
//! monolithic form. With `--before` the baseline is the same network run by an older build of `heddle`; this program's
//! clients load both. With `--timer` or `--library` the baseline is the same network with other settings. With
//! `--chaincode` the baseline is the requested network itself, and the other network's peers run the contract as a
//! chaincode outside of their process ([`measurement::chaincode`]), a service for each organisation.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use bench::sift::costs::CostTable;
use bench::teleport::contention::ContentionFigure;
use heddle_cli::log_tail::tail;
use measurement::chaincode::{ChaincodeProgram, ChaincodeServices};
use measurement::driver::{self, DriverConfig, Servers};
use measurement::figure::RatioBound;
use measurement::floor::SignaturePrices;
use measurement::latency_floor::LatencyPrices;
use measurement::network::{CommitWait, GatewayNetwork, GatewayTarget};
use measurement::plot;
use measurement::process::{self, Usage};
use measurement::progress::TerminalProgress;
use measurement::report::pairs::{Baseline, LibraryBound, NativeBounds, ReportPairs};
use measurement::report::{BenchmarkConfig, BenchmarkReport};
use measurement::workload::Workload;
use measurement::workload::kmeans::KMeans;
use measurement::workload::smallbank::SmallBank;
use measurement::workload::ycsb::Ycsb;
use node::Endpoints;
use node::config::{CutSetting, HeddleConfig, VerificationMethod};

use crate::cli::bench::BenchCommand;
use crate::cli::workload::{
    BenchRunArguments, ChaincodeLanguage, KMeansArguments, SmallBankArguments, WaitFor, YcsbArguments,
};
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{exit, instance, output, page};

const READY_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(20);
/// A transaction that takes longer counts as an error.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// The upper bound on the servers' processor time, in one process, relative to the monolithic form.
const SERVER_CPU_OVER_MONOLITHIC_MAX: f64 = 1.05;
/// The lower bound on throughput relative to an older build.
const TPS_OVER_BEFORE_MIN: f64 = 0.98;
/// Pairs beside an older build: the confidence interval must be narrower than the difference that matters.
const PAIRS_BEFORE: u64 = 20;
/// Pairs beside blocks that are cut at the limits alone.
const PAIRS_TIMER: u64 = 3;
/// The lower bound on throughput relative to a network whose blocks are cut at the limits alone.
const TPS_OVER_TIMER_MIN: f64 = 3.0;
const TIMER_CLIENTS: u64 = 50;
/// Pairs beside the library.
const PAIRS_LIBRARY: u64 = 5;
/// The lower bound on throughput relative to a network in which the library verifies every signature, ...
const TPS_OVER_LIBRARY_MIN: f64 = 1.6;
const LIBRARY_CLIENTS: u64 = 400;
/// ... and the upper bound on median latency relative to that network, with few clients.
const P50_OVER_LIBRARY_MAX: f64 = 1.0;
const LIBRARY_CLIENTS_FEW: u64 = 8;
/// Pairs beside the native contract.
const PAIRS_CHAINCODE: u64 = 7;
/// The lower bound on throughput relative to the native contract, ...
const CHAINCODE_TPS_OVER_NATIVE_MIN: f64 = 0.6;
/// ... and the upper bound on the servers' processor time that a call of a chaincode adds, without the chaincode's own.
const CHAINCODE_ADDED_CPU_US_MAX: f64 = 120.0;

pub async fn run(bench: &BenchCommand) -> Result<(), CommandError> {
    let stop = CancellationToken::new();
    let interrupted = stop.clone();
    let mut signals = StopSignals::listen()?;
    tokio::spawn(async move {
        signals.received().await;
        interrupted.cancel();
    });
    match bench {
        BenchCommand::Smallbank(SmallBankArguments { run, chaincode, .. }) => {
            let workload = workload(bench)?.expect("it has a workload");
            let chaincode = chaincode.map(|ChaincodeLanguage::Go| ChaincodeProgram::build_go()).transpose()?;
            measure_network(run, chaincode.as_ref(), workload, &stop).await
        }
        BenchCommand::Ycsb(YcsbArguments { run, .. }) | BenchCommand::Kmeans(KMeansArguments { run, .. }) => {
            let workload = workload(bench)?.expect("both have a workload");
            measure_network(run, None, workload, &stop).await
        }
        BenchCommand::State(arguments) => super::figure::state(arguments, &stop).await,
        BenchCommand::Validate(arguments) => super::figure::validate(arguments, &stop).await,
        BenchCommand::Kv(arguments) => super::kv_bench::run(arguments, &stop).await,
        BenchCommand::KvEtcd(arguments) => super::etcd::run(arguments, &stop).await,
        BenchCommand::SiftFig5(arguments) => super::sift::fig5(arguments, &stop).await,
        BenchCommand::SiftFig6(arguments) => super::sift::fig6(arguments, &stop).await,
        BenchCommand::Ordering(arguments) => super::figure::ordering(arguments, &stop).await,
        BenchCommand::SiftFig7(arguments) => super::sift::fig7(arguments, &stop).await,
        BenchCommand::SiftFig8(arguments) => super::sift::fig8(arguments, &stop),
        BenchCommand::SiftFig9(arguments) => super::sift::costs(CostTable::Fig9, arguments, &stop).await,
        BenchCommand::SiftFig10(arguments) => super::sift::costs(CostTable::Fig10, arguments, &stop).await,
        BenchCommand::SiftFig11(arguments) => super::sift::fig11(arguments, &stop).await,
        BenchCommand::SiftFig12(arguments) => super::sift::fig12(arguments, &stop).await,
        BenchCommand::SiftTable2(arguments) => super::sift::costs(CostTable::Table2, arguments, &stop).await,
        BenchCommand::SiftProcess => Ok(bench::sift::child_processes::serve().await?),
        BenchCommand::Signatures(arguments) => super::figure::signatures(arguments, &stop),
        BenchCommand::Rma(arguments) => super::figure::rma(arguments, &stop).await,
        BenchCommand::Farmem(arguments) => super::figure::far_memory(arguments, &stop).await,
        BenchCommand::TeleportFig6(arguments) => super::teleport::fig6(arguments, &stop).await,
        BenchCommand::TeleportFig7(arguments) => super::teleport::fig7(arguments, &stop).await,
        BenchCommand::TeleportFig20(arguments) => super::teleport::fig20(arguments, &stop).await,
        BenchCommand::TeleportFig21(arguments) => {
            super::teleport::contention(ContentionFigure::Time, arguments, &stop).await
        }
        BenchCommand::TeleportFig22(arguments) => {
            super::teleport::contention(ContentionFigure::Messages, arguments, &stop).await
        }
        // Before this runtime has threads, in `main`.
        BenchCommand::TeleportProcess(_) => Ok(()),
        BenchCommand::FlexchainFig1(arguments) => super::fig1::run(arguments, &stop).await,
        BenchCommand::FlexchainFig5a(arguments) => super::fig5a::run(arguments, &stop).await,
        BenchCommand::FlexchainFig5b(arguments) => super::flexchain::fig5b(arguments, &stop).await,
        BenchCommand::FlexchainFig7(arguments) => super::fig7::run(arguments, &stop).await,
        BenchCommand::FlexchainFig7a(arguments) => {
            super::fig7::run_part(super::fig7::NetworkPart::A, arguments, &stop).await
        }
        BenchCommand::FlexchainFig7b(arguments) => {
            super::fig7::run_part(super::fig7::NetworkPart::B, arguments, &stop).await
        }
        BenchCommand::FlexchainFig7c(arguments) => {
            super::fig7::run_part(super::fig7::NetworkPart::C, arguments, &stop).await
        }
        BenchCommand::FlexchainFig7d(arguments) => super::fig7d::run(arguments, &stop).await,
        BenchCommand::FlexchainFig8a(arguments) => super::fig8a::run(arguments, &stop).await,
        BenchCommand::FlexchainFig8b(arguments) => super::flexchain::fig8b(arguments, &stop).await,
        BenchCommand::Failover(arguments) => super::failover::run(arguments, &stop).await,
        BenchCommand::Elastic(arguments) => super::elastic::run(arguments, &stop).await,
        BenchCommand::MemoryLost(arguments) => super::memory_lost::run(arguments, &stop).await,
        BenchCommand::StorageLost(arguments) => super::storage_lost::run(arguments, &stop).await,
        BenchCommand::ComputePool(arguments) => super::compute_pool::run(arguments, &stop).await,
        BenchCommand::Contention(arguments) => super::contention::run(arguments, &stop).await,
        BenchCommand::UnderAttack(arguments) => super::under_attack::run(arguments, &stop).await,
        BenchCommand::MemoryProcess(arguments) => super::flexchain::memory_process(arguments).await,
    }
}

async fn measure_network(
    run: &BenchRunArguments,
    chaincode: Option<&ChaincodeProgram>,
    workload: Arc<dyn Workload>,
    stop: &CancellationToken,
) -> Result<(), CommandError> {
    let by_default = [
        chaincode.map(|_| PAIRS_CHAINCODE),
        run.before.is_some().then_some(PAIRS_BEFORE),
        run.timer.then_some(PAIRS_TIMER),
        run.library.then_some(PAIRS_LIBRARY),
    ];
    let pairs = run.pairs.or_else(|| by_default.into_iter().flatten().next());
    let (report, pairs) = match (&run.connect, pairs) {
        (Some(dir), _) => {
            let endpoints = instance::expect_running(dir)?;
            (measure(run, workload, dir, &endpoints, &[], stop).await?, None)
        }
        (None, None) => (measure_own(MeasuredNetwork::as_requested(run), workload, stop).await?, None),
        (None, Some(pairs)) => {
            let (report, pairs) = measure_pairs(run, chaincode, pairs, workload, stop).await?;
            (report, Some(pairs))
        }
    };
    output::print(&report.to_table())?;
    if let Some(pairs) = &pairs {
        output::print(&pairs.to_table())?;
    }
    if let Some(path) = &run.json {
        report.write_json(pairs.as_ref(), path)?;
    }
    if let Some(path) = &run.plot {
        plot::write_svg(&report, path)?;
    }
    Ok(())
}

/// One of two networks that are measured in turn.
#[derive(Clone, Copy)]
struct MeasuredNetwork<'a> {
    run: &'a BenchRunArguments,
    /// Another build of `heddle`.
    program: Option<&'a Path>,
    /// A setting that differs from the run's.
    change: Option<fn(&mut HeddleConfig)>,
    /// The chaincode that every organisation's peer calls in place of the native contract.
    chaincode: Option<&'a ChaincodeProgram>,
}

impl<'a> MeasuredNetwork<'a> {
    fn as_requested(run: &'a BenchRunArguments) -> MeasuredNetwork<'a> {
        MeasuredNetwork { run, program: None, change: None, chaincode: None }
    }

    /// The network, and the services of its chaincode.
    async fn start(&self, stop: &CancellationToken) -> Result<(OwnNetwork, ChaincodeServices), CommandError> {
        if self.change.is_none() && self.chaincode.is_none() {
            let network = OwnNetwork::start(self.run, self.program, stop).await?;
            return Ok((network, ChaincodeServices::none()));
        }
        let failed = |error: std::io::Error| CommandError::new(format!("the settings of the other network: {error}"));
        let mut config = match &self.run.config {
            Some(path) => HeddleConfig::load(path).map_err(|error| CommandError::new(error.to_string()))?,
            None => HeddleConfig::default(),
        };
        if let Some(change) = self.change {
            change(&mut config);
        }
        let services = match self.chaincode {
            None => ChaincodeServices::none(),
            Some(program) => {
                let services = ChaincodeServices::start(program, self.run.orgs.into(), stop).await?;
                config.chaincodes.extend(services.sections());
                services
            }
        };
        // The file is read by the time the network is ready.
        let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
        file.write_all(config.to_text().as_bytes()).map_err(failed)?;
        let run = BenchRunArguments { config: Some(file.path().to_path_buf()), ..self.run.clone() };
        Ok((OwnNetwork::start(&run, self.program, stop).await?, services))
    }
}

/// Starts a network and measures it.
async fn measure_own(
    side: MeasuredNetwork<'_>,
    workload: Arc<dyn Workload>,
    stop: &CancellationToken,
) -> Result<BenchmarkReport, CommandError> {
    let run = side.run;
    let (own, chaincodes) = side.start(stop).await?;
    let result = measure(run, workload, &own.dir(), own.endpoints(), &chaincodes.process_ids(), stop).await;
    if result.as_ref().is_err_and(|failure| failure.code() == exit::FAILURE) {
        eprintln!("the network's log ends with:\n{}", own.log());
    }
    if run.keep {
        output::print(&format!("the network stays in {}\n", own.dir().display()))?;
    }
    own.end().await;
    result
}

/// Measures the requested network and the baseline in turn; returns the pair whose ratio is the median.
async fn measure_pairs(
    run: &BenchRunArguments,
    chaincode: Option<&ChaincodeProgram>,
    count: u64,
    workload: Arc<dyn Workload>,
    stop: &CancellationToken,
) -> Result<(BenchmarkReport, ReportPairs), CommandError> {
    let monolithic = BenchRunArguments { monolithic: true, isolate: false, ..run.clone() };
    let asked = MeasuredNetwork::as_requested(run);
    let (baseline, compared) = if chaincode.is_some() {
        let bounds = NativeBounds {
            tps: RatioBound::AtLeast(CHAINCODE_TPS_OVER_NATIVE_MIN),
            added_cpu_us: RatioBound::AtMost(CHAINCODE_ADDED_CPU_US_MAX),
        };
        (Baseline::Native(bounds), asked)
    } else if let Some(program) = &run.before {
        (
            Baseline::Before(RatioBound::AtLeast(TPS_OVER_BEFORE_MIN)),
            MeasuredNetwork { program: Some(program), ..asked },
        )
    } else if run.timer {
        // The bound applies only to this number of clients.
        let bound = (run.clients == TIMER_CLIENTS).then_some(RatioBound::AtLeast(TPS_OVER_TIMER_MIN));
        (
            Baseline::Timer(bound),
            MeasuredNetwork { change: Some(|config| config.ordering.cut = CutSetting::Limits), ..asked },
        )
    } else if run.library {
        let bound = match run.clients {
            LIBRARY_CLIENTS => Some(LibraryBound::Tps(RatioBound::AtLeast(TPS_OVER_LIBRARY_MIN))),
            LIBRARY_CLIENTS_FEW => Some(LibraryBound::P50(RatioBound::AtMost(P50_OVER_LIBRARY_MAX))),
            _ => None,
        };
        (
            Baseline::Library(bound),
            MeasuredNetwork { change: Some(|config| config.crypto.verify = VerificationMethod::Library), ..asked },
        )
    } else {
        // The bound applies only to a network in one process.
        let bound = (!run.isolate).then_some(RatioBound::AtMost(SERVER_CPU_OVER_MONOLITHIC_MAX));
        (Baseline::Monolithic(bound), MeasuredNetwork::as_requested(&monolithic))
    };
    let sides = [MeasuredNetwork { chaincode, ..asked }, compared];
    let mut pairs = Vec::new();
    for number in 1..=count {
        let is_asked_first = number % 2 == 1;
        let [first, second] = if is_asked_first { sides } else { [sides[1], sides[0]] };
        let first = measure_own(first, workload.clone(), stop).await?;
        let second = measure_own(second, workload.clone(), stop).await?;
        let (asked, compared) = if is_asked_first { (first, second) } else { (second, first) };
        let line = ReportPairs::line(&asked, &compared, baseline);
        output::print(&format!("pair {number} of {count}: {line}\n"))?;
        pairs.push((asked, compared));
    }
    Ok(ReportPairs::new(pairs, baseline))
}

/// The workload of a measurement that has one.
fn workload(bench: &BenchCommand) -> Result<Option<Arc<dyn Workload>>, CommandError> {
    Ok(Some(match bench {
        BenchCommand::Smallbank(bench) => Arc::new(SmallBank {
            accounts: bench.accounts,
            writes_percent: bench.writes,
            choice: bench.keys.choice(),
            record_bytes: bench.record_bytes,
        }),
        BenchCommand::Ycsb(bench) => Arc::new(Ycsb {
            records: bench.records,
            value_bytes: usize::try_from(bench.value_bytes).expect("at most 1 MiB, says the command line"),
            mix: bench.mix,
            choice: bench.keys.choice(),
            seed: bench.run.seed,
        }),
        BenchCommand::Kmeans(bench) => {
            if bench.points > bench.profiles {
                let message = format!("--points {} exceeds the number of profiles, {}", bench.points, bench.profiles);
                return Err(CommandError::new(message));
            }
            Arc::new(KMeans {
                profiles: bench.profiles,
                points: bench.points,
                clusters: bench.k,
                epochs: bench.epochs,
                dimensions: bench.dimensions,
                threshold: bench.threshold,
                updates_percent: bench.updates,
                choice: bench.keys.choice(),
                seed: bench.run.seed,
            })
        }
        _ => return Ok(None),
    }))
}

pub(super) async fn measure(
    run: &BenchRunArguments,
    workload: Arc<dyn Workload>,
    dir: &Path,
    endpoints: &Endpoints,
    chaincodes: &[u32],
    stop: &CancellationToken,
) -> Result<BenchmarkReport, CommandError> {
    let organizations = endpoints.gateways.len();
    let gateways = (1..=organizations)
        .map(|number| Ok(GatewayTarget { target: endpoints.target(dir, number)?, user: endpoints.user(dir, number)? }))
        .collect::<Result<Vec<GatewayTarget>, node::NodeError>>()?;
    let wait = match run.wait {
        WaitFor::Status => CommitWait::Status,
        WaitFor::Events => CommitWait::Events,
    };
    let connections = run.connections.map_or(organizations, |number| number as usize);
    let network = GatewayNetwork::connect(&endpoints.channel, &gateways, connections, wait, CALL_DEADLINE).await?;
    let network = Arc::new(network);
    let plan = DriverConfig {
        clients: run.clients as usize,
        seed: run.seed,
        load: !run.no_load,
        warm_up: Duration::from_secs_f64(run.warm_up),
        window: Duration::from_secs_f64(run.seconds),
    };
    let mut settings = BenchmarkConfig {
        figure: workload.name().to_owned(),
        organizations,
        policy: endpoints.policy.clone(),
        endorsers: 0,
        clients: plan.clients,
        connections,
        wait: wait.name().to_owned(),
        tls: endpoints.tls,
        seed: run.seed,
        warm_up_seconds: run.warm_up,
        workload: workload.parameters(),
    };
    let servers = ServerProcesses {
        ids: endpoints.processes.iter().map(|process| process.process).chain([endpoints.process]).collect(),
        chaincodes: chaincodes.to_vec(),
        metrics: endpoints.metrics,
        dir: dir.to_path_buf(),
    };
    let mut terminal = TerminalProgress::new();
    let latency = || (plan.clients == 1).then(|| LatencyPrices::measure(dir)).transpose();
    let (before, latency_before) = (SignaturePrices::measure(), latency()?);
    let measured = driver::run(&plan, workload.clone(), network.clone(), &servers, &mut terminal, stop).await;
    drop(terminal);
    let measurement = measured?;
    let latency = latency_before.zip(latency()?).map(|(before, after)| before.mean(after));
    settings.endorsers = network.endorsements(workload.as_ref()).await?;
    Ok(BenchmarkReport::new(settings, measurement, before.mean(SignaturePrices::measure())).with_latency_floor(latency))
}

/// The processes that run all servers: one, or one per role and their supervisor.
struct ServerProcesses {
    ids: Vec<u32>,
    /// Processes of chaincodes, which do not count as servers.
    chaincodes: Vec<u32>,
    metrics: SocketAddr,
    dir: PathBuf,
}

impl Servers for ServerProcesses {
    fn usage(&self) -> std::io::Result<Usage> {
        let mut sum = Usage::default();
        for id in &self.ids {
            let usage = process::usage(Some(*id))?;
            sum.cpu_us += usage.cpu_us;
            sum.resident_bytes += usage.resident_bytes;
        }
        Ok(sum)
    }

    fn chaincode_cpu_us(&self) -> std::io::Result<u64> {
        self.chaincodes.iter().map(|id| Ok(process::usage(Some(*id))?.cpu_us)).sum()
    }

    fn signatures_verified(&self) -> Option<u64> {
        let page = page::get(self.metrics, "/metrics").ok()?;
        page::metric(&page, "heddle_signatures_verified_total").map(|count| count as u64)
    }

    fn disk_bytes(&self) -> u64 {
        process::disk_bytes(&self.dir)
    }
}

/// A network in a temporary directory, which is removed on drop.
pub(super) struct OwnNetwork {
    child: Child,
    folder: tempfile::TempDir,
    endpoints: Option<Endpoints>,
}

impl OwnNetwork {
    /// Starts the network of a run, with this program or another build of it.
    pub(super) async fn start(
        run: &BenchRunArguments,
        program: Option<&Path>,
        stop: &CancellationToken,
    ) -> Result<OwnNetwork, CommandError> {
        let orgs = run.orgs.to_string();
        let mut arguments: Vec<OsString> = ["--orgs", &orgs, "--policy", run.policy.name()].map(Into::into).into();
        if let Some(config) = &run.config {
            arguments.extend(["--config".into(), config.into()]);
        }
        for (flag, is_set) in [("--isolate", run.isolate), ("--monolithic", run.monolithic), ("--no-tls", run.no_tls)] {
            arguments.extend(is_set.then(|| flag.into()));
        }
        OwnNetwork::launch(program, arguments, run.keep, stop).await
    }

    /// Starts a network with these settings and these arguments of `heddle up`.
    pub(super) async fn configured(
        settings: &str,
        arguments: &[&str],
        stop: &CancellationToken,
    ) -> Result<OwnNetwork, CommandError> {
        let file =
            tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(settings.as_bytes()).map(|()| file));
        let file = file.map_err(|error| CommandError::new(format!("the network's settings: {error}")))?;
        let arguments = arguments.iter().map(OsString::from).chain(["--config".into(), file.path().into()]);
        OwnNetwork::launch(None, arguments, false, stop).await
    }

    /// Starts a network with these arguments of `heddle up`.
    pub(super) async fn launch(
        program: Option<&Path>,
        arguments: impl IntoIterator<Item = OsString>,
        keep: bool,
        stop: &CancellationToken,
    ) -> Result<OwnNetwork, CommandError> {
        let failed = |what: &str, error: std::io::Error| CommandError::new(format!("{what}: {error}"));
        let mut folder = tempfile::Builder::new()
            .prefix("heddle-bench-")
            .tempdir()
            .map_err(|error| failed("no temporary directory", error))?;
        folder.disable_cleanup(keep);
        #[allow(clippy::disallowed_methods, reason = "the log of a measurement")]
        let log = std::fs::File::create(folder.path().join("heddle.log"));
        let log = log.map_err(|error| failed("the network's log", error))?;
        let program = program.map_or_else(super::heddle, |program| Ok(program.to_path_buf()))?;
        let mut command = Command::new(&program);
        command.args(["up", "--bound", "--any-ports", "--dir"]).arg(folder.path().join("network"));
        command.args(arguments);
        // In its own process group, so that only the clients receive Ctrl-C and end the network in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child =
            command.spawn().map_err(|error| failed(&format!("{} cannot be started", program.display()), error))?;
        let mut network = OwnNetwork { child, folder, endpoints: None };
        network.wait_until_ready(stop).await?;
        Ok(network)
    }

    async fn wait_until_ready(&mut self, stop: &CancellationToken) -> Result<(), CommandError> {
        let (dir, process) = (self.dir(), self.child.id());
        let ended = || {
            let ended = self.child.try_wait();
            let ended = ended.map_err(|error| CommandError::new(format!("the network's process: {error}")))?;
            Ok(ended.is_some() || stop.is_cancelled())
        };
        self.endpoints = instance::ready(&dir, process, READY_TIMEOUT, ended).await?;
        match &self.endpoints {
            Some(_) => Ok(()),
            None if stop.is_cancelled() => Err(CommandError::interrupted()),
            None => Err(CommandError::new(format!("the network did not start:\n{}", self.log()))),
        }
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.folder.path().join("network")
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        self.endpoints.as_ref().expect("it was ready when it was started")
    }

    pub(super) fn log(&self) -> String {
        tail(&self.folder.path().join("heddle.log"))
    }

    /// Ends the network in order.
    pub(super) async fn end(mut self) {
        let asked = Instant::now();
        let _ = instance::terminate(self.child.id());
        while asked.elapsed() < STOP_TIMEOUT && matches!(self.child.try_wait(), Ok(None)) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for OwnNetwork {
    fn drop(&mut self) {
        // It has ended already, unless something went wrong.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
