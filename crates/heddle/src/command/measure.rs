//! `heddle bench`, as far as it measures networks; the figures that need none are in [`super::figure`].
//!
//! 1. Start a network of its own in a temporary directory: this program again, as a child, so that the servers' processor
//!    time is told from the clients'. Or take the running one that `--connect` names.
//! 2. Price a signature on the quiet machine, run the workload, price it again.
//! 3. End the child and remove its directory, however the run ended.
//! 4. Print the table, write JSON and plot.
//!
//! With `--pairs`, steps 1 to 3 are done for each pair twice, the second time with the monolithic form, or the first time in
//! every other pair: what drifts on the machine meanwhile then falls on both. With `--before` the second one is the same
//! network by an older build of this program; the clients are ours in both. With `--timer` it is the same network with other
//! settings.

use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::Stop;
use bench::driver::{self, Plan, Servers};
use bench::figure::Bound;
use bench::floor::Prices;
use bench::latency_floor::LatencyPrices;
use bench::network::{Gateway, Network, Wait};
use bench::plot;
use bench::process::{self, Usage};
use bench::progress::Terminal;
use bench::report::{Baseline, LibraryBound, Pairs, Report, Settings};
use bench::sift::costs::Part;
use bench::workload::Workload;
use bench::workload::kmeans::KMeans;
use bench::workload::smallbank::SmallBank;
use bench::workload::ycsb::Ycsb;
use node::Endpoints;
use node::config::{Config, Cut, Verify};

use crate::cli::bench::{
    Bench, KMeans as KMeansArguments, Run, SmallBank as SmallBankArguments, WaitFor, Ycsb as YcsbArguments,
};
use crate::cli::exit;
use crate::failure::Failure;
use crate::signals::StopSignals;
use crate::{instance, output, page};

const READY_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// A transaction that takes longer counts as an error.
const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// What the servers' processor time may be, in one process, over that of the monolithic form.
const SERVER_CPU_OVER_MONOLITHIC_MAX: f64 = 1.05;
/// What throughput has to be at least over that of an older build.
const TPS_OVER_BEFORE_MIN: f64 = 0.98;
/// Pairs that are measured beside an older build: their interval has to be narrower than what is looked for.
const PAIRS_BEFORE: u64 = 20;
/// The same beside blocks that limits alone cut.
const PAIRS_TIMER: u64 = 3;
/// The least throughput over that of a network whose blocks are cut at the limits alone.
const TPS_OVER_TIMER_MIN: f64 = 3.0;
const TIMER_CLIENTS: u64 = 50;
/// Pairs that are measured beside the library.
const PAIRS_LIBRARY: u64 = 5;
/// The least throughput over that of a network in which the library verifies every signature, ...
const TPS_OVER_LIBRARY_MIN: f64 = 1.6;
const LIBRARY_CLIENTS: u64 = 400;
/// ... and the highest median latency over that network's, with few clients.
const P50_OVER_LIBRARY_MAX: f64 = 1.0;
const LIBRARY_CLIENTS_FEW: u64 = 8;

pub async fn run(bench: &Bench) -> Result<(), Failure> {
    let stop = Stop::new();
    let interrupted = stop.clone();
    let mut signals = StopSignals::listen()?;
    tokio::spawn(async move {
        signals.received().await;
        interrupted.stop();
    });
    match bench {
        Bench::Smallbank(SmallBankArguments { run, .. })
        | Bench::Ycsb(YcsbArguments { run, .. })
        | Bench::Kmeans(KMeansArguments { run, .. }) => {
            let workload = workload(bench)?.expect("these three have a workload");
            measure_network(run, workload, &stop).await
        }
        Bench::State(arguments) => super::figure::state(arguments, &stop).await,
        Bench::Kv(arguments) => super::kv_bench::run(arguments, &stop).await,
        Bench::KvEtcd(arguments) => super::etcd::run(arguments, &stop).await,
        Bench::SiftFig5(arguments) => super::sift::fig5(arguments, &stop).await,
        Bench::SiftFig6(arguments) => super::sift::fig6(arguments, &stop).await,
        Bench::Ordering(arguments) => super::figure::ordering(arguments, &stop).await,
        Bench::SiftFig7(arguments) => super::sift::fig7(arguments, &stop).await,
        Bench::SiftFig8(arguments) => super::sift::fig8(arguments, &stop),
        Bench::SiftFig9(arguments) => super::sift::costs(Part::Fig9, arguments, &stop).await,
        Bench::SiftFig10(arguments) => super::sift::costs(Part::Fig10, arguments, &stop).await,
        Bench::SiftFig11(arguments) => super::sift::fig11(arguments, &stop).await,
        Bench::SiftFig12(arguments) => super::sift::fig12(arguments, &stop).await,
        Bench::SiftTable2(arguments) => super::sift::costs(Part::Table2, arguments, &stop).await,
        Bench::SiftProcess => Ok(bench::sift::processes::serve().await?),
        Bench::Signatures(arguments) => super::figure::signatures(arguments, &stop),
        Bench::Rma(arguments) => super::figure::rma(arguments, &stop).await,
        Bench::FlexchainFig5b(arguments) => super::flexchain::fig5b(arguments, &stop).await,
        Bench::FlexchainFig7(arguments) => super::flexchain::fig7(arguments, &stop).await,
        Bench::FlexchainFig8a(arguments) => super::flexchain::fig8a(arguments, &stop).await,
        Bench::FlexchainFig8b(arguments) => super::flexchain::fig8b(arguments, &stop).await,
        Bench::Failover(arguments) => super::failover::run(arguments, &stop).await,
        Bench::UnderAttack(arguments) => super::under_attack::run(arguments, &stop).await,
        Bench::MemoryProcess(arguments) => super::flexchain::memory_process(arguments).await,
    }
}

async fn measure_network(run: &Run, workload: Arc<dyn Workload>, stop: &Stop) -> Result<(), Failure> {
    let by_default = [
        run.before.is_some().then_some(PAIRS_BEFORE),
        run.timer.then_some(PAIRS_TIMER),
        run.library.then_some(PAIRS_LIBRARY),
    ];
    let pairs = run.pairs.or_else(|| by_default.into_iter().flatten().next());
    let (report, pairs) = match (&run.connect, pairs) {
        (Some(dir), _) => {
            let endpoints = instance::expect_running(dir)?;
            (measure(run, workload, dir, &endpoints, stop).await?, None)
        }
        (None, None) => (measure_own(Side::asked(run), workload, stop).await?, None),
        (None, Some(pairs)) => {
            let (report, pairs) = measure_pairs(run, pairs, workload, stop).await?;
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
struct Side<'a> {
    run: &'a Run,
    /// Another build of this program.
    program: Option<&'a Path>,
    /// Another setting than the run's.
    change: Option<fn(&mut Config)>,
}

impl<'a> Side<'a> {
    fn asked(run: &'a Run) -> Side<'a> {
        Side { run, program: None, change: None }
    }

    async fn start(&self, stop: &Stop) -> Result<OwnNetwork, Failure> {
        let Some(change) = self.change else { return OwnNetwork::start(self.run, self.program, stop).await };
        let failed = |error: std::io::Error| Failure::new(format!("the settings of the other network: {error}"));
        let mut config = match &self.run.config {
            Some(path) => Config::load(path).map_err(|error| Failure::new(error.to_string()))?,
            None => Config::default(),
        };
        change(&mut config);
        // It is read by the time the network is ready.
        let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
        file.write_all(config.to_text().as_bytes()).map_err(failed)?;
        let run = Run { config: Some(file.path().to_path_buf()), ..self.run.clone() };
        OwnNetwork::start(&run, self.program, stop).await
    }
}

/// Measures a network of its own.
async fn measure_own(side: Side<'_>, workload: Arc<dyn Workload>, stop: &Stop) -> Result<Report, Failure> {
    let run = side.run;
    let own = side.start(stop).await?;
    let result = measure(run, workload, &own.dir(), own.endpoints(), stop).await;
    if result.as_ref().is_err_and(|failure| failure.code() == exit::FAILURE) {
        eprintln!("the network's log ends with:\n{}", own.log());
    }
    if run.keep {
        output::print(&format!("the network stays in {}\n", own.dir().display()))?;
    }
    own.end().await;
    result
}

/// Measures as asked and the baseline in turn; gives the pair whose ratio is the median.
async fn measure_pairs(
    run: &Run,
    count: u64,
    workload: Arc<dyn Workload>,
    stop: &Stop,
) -> Result<(Report, Pairs), Failure> {
    let monolithic = Run { monolithic: true, isolate: false, ..run.clone() };
    let asked = Side::asked(run);
    let (baseline, compared) = if let Some(program) = &run.before {
        (Baseline::Before(Bound::AtLeast(TPS_OVER_BEFORE_MIN)), Side { program: Some(program), ..asked })
    } else if run.timer {
        // The one bound that is asked for is that of so many clients.
        let bound = (run.clients == TIMER_CLIENTS).then_some(Bound::AtLeast(TPS_OVER_TIMER_MIN));
        (Baseline::Timer(bound), Side { change: Some(|config| config.ordering.cut = Cut::Limits), ..asked })
    } else if run.library {
        let bound = match run.clients {
            LIBRARY_CLIENTS => Some(LibraryBound::Tps(Bound::AtLeast(TPS_OVER_LIBRARY_MIN))),
            LIBRARY_CLIENTS_FEW => Some(LibraryBound::P50(Bound::AtMost(P50_OVER_LIBRARY_MAX))),
            _ => None,
        };
        (Baseline::Library(bound), Side { change: Some(|config| config.crypto.verify = Verify::Library), ..asked })
    } else {
        // The one bound that is asked for is that of one process.
        let bound = (!run.isolate).then_some(Bound::AtMost(SERVER_CPU_OVER_MONOLITHIC_MAX));
        (Baseline::Monolithic(bound), Side::asked(&monolithic))
    };
    let sides = [asked, compared];
    let mut pairs = Vec::new();
    for number in 1..=count {
        let is_asked_first = number % 2 == 1;
        let [first, second] = if is_asked_first { sides } else { [sides[1], sides[0]] };
        let first = measure_own(first, workload.clone(), stop).await?;
        let second = measure_own(second, workload.clone(), stop).await?;
        let (asked, compared) = if is_asked_first { (first, second) } else { (second, first) };
        let line = Pairs::line(&asked, &compared, baseline);
        output::print(&format!("pair {number} of {count}: {line}\n"))?;
        pairs.push((asked, compared));
    }
    Ok(Pairs::new(pairs, baseline))
}

/// The workload of a measurement that has one.
fn workload(bench: &Bench) -> Result<Option<Arc<dyn Workload>>, Failure> {
    Ok(Some(match bench {
        Bench::Smallbank(bench) => Arc::new(SmallBank {
            accounts: bench.accounts,
            writes_percent: bench.writes,
            choice: bench.keys.choice(),
            record_bytes: bench.record_bytes,
        }),
        Bench::Ycsb(bench) => Arc::new(Ycsb {
            records: bench.records,
            value_bytes: usize::try_from(bench.value_bytes).expect("at most 1 MiB, says the command line"),
            mix: bench.mix,
            choice: bench.keys.choice(),
            seed: bench.run.seed,
        }),
        Bench::Kmeans(bench) => {
            if bench.points > bench.profiles {
                let message = format!("--points {} asks for more than the {} profiles", bench.points, bench.profiles);
                return Err(Failure::new(message));
            }
            Arc::new(KMeans {
                profiles: bench.profiles,
                points: bench.points,
                clusters: bench.k,
                epochs: bench.epochs,
                dimensions: bench.dimensions,
                threshold: bench.threshold,
                updates_percent: bench.updates,
                seed: bench.run.seed,
            })
        }
        _ => return Ok(None),
    }))
}

pub(super) async fn measure(
    run: &Run,
    workload: Arc<dyn Workload>,
    dir: &Path,
    endpoints: &Endpoints,
    stop: &Stop,
) -> Result<Report, Failure> {
    let organizations = endpoints.gateways.len();
    let gateways = (1..=organizations)
        .map(|number| Ok(Gateway { target: endpoints.target(dir, number)?, user: endpoints.user(dir, number)? }))
        .collect::<Result<Vec<Gateway>, node::NodeError>>()?;
    let wait = match run.wait {
        WaitFor::Status => Wait::Status,
        WaitFor::Events => Wait::Events,
    };
    let connections = run.connections.map_or(organizations, |number| number as usize);
    let network = Network::connect(&endpoints.channel, &gateways, connections, wait, CALL_DEADLINE).await?;
    let network = Arc::new(network);
    let plan = Plan {
        clients: run.clients as usize,
        seed: run.seed,
        load: !run.no_load,
        warm_up: Duration::from_secs_f64(run.warm_up),
        window: Duration::from_secs_f64(run.seconds),
    };
    let mut settings = Settings {
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
    let servers = Processes {
        ids: endpoints.processes.iter().map(|process| process.process).chain([endpoints.process]).collect(),
        metrics: endpoints.metrics,
        dir: dir.to_path_buf(),
    };
    let mut terminal = Terminal::new();
    let latency = || (plan.clients == 1).then(|| LatencyPrices::measure(dir)).transpose();
    let (before, latency_before) = (Prices::measure(), latency()?);
    let measured = driver::run(&plan, workload.clone(), network.clone(), &servers, &mut terminal, stop).await;
    drop(terminal);
    let measurement = measured?;
    let latency = latency_before.zip(latency()?).map(|(before, after)| before.mean(after));
    settings.endorsers = network.endorsements(workload.as_ref()).await?;
    Ok(Report::new(settings, measurement, before.mean(Prices::measure())).with_latency_floor(latency))
}

/// The processes that run all servers: one, or one for each role and the one that supervises them.
struct Processes {
    ids: Vec<u32>,
    metrics: SocketAddr,
    dir: PathBuf,
}

impl Servers for Processes {
    fn usage(&self) -> std::io::Result<Usage> {
        let mut sum = Usage::default();
        for id in &self.ids {
            let usage = process::usage(Some(*id))?;
            sum.cpu_us += usage.cpu_us;
            sum.resident_bytes += usage.resident_bytes;
        }
        Ok(sum)
    }

    fn signatures_verified(&self) -> Option<u64> {
        let page = page::get(self.metrics, "/metrics").ok()?;
        page::metric(&page, "heddle_signatures_verified_total").map(|count| count as u64)
    }

    fn disk_bytes(&self) -> u64 {
        process::disk_bytes(&self.dir)
    }
}

/// A network in a temporary directory, which goes when this is dropped.
pub(super) struct OwnNetwork {
    child: Child,
    folder: tempfile::TempDir,
    endpoints: Option<Endpoints>,
}

impl OwnNetwork {
    /// Starts the network of a run, by this program or another build of it.
    pub(super) async fn start(run: &Run, program: Option<&Path>, stop: &Stop) -> Result<OwnNetwork, Failure> {
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

    /// Starts one with these arguments of `heddle up`.
    pub(super) async fn launch(
        program: Option<&Path>,
        arguments: impl IntoIterator<Item = OsString>,
        keep: bool,
        stop: &Stop,
    ) -> Result<OwnNetwork, Failure> {
        let failed = |what: &str, error: std::io::Error| Failure::new(format!("{what}: {error}"));
        let mut folder = tempfile::Builder::new()
            .prefix("heddle-bench-")
            .tempdir()
            .map_err(|error| failed("no temporary directory", error))?;
        folder.disable_cleanup(keep);
        #[allow(clippy::disallowed_methods, reason = "the log of a measurement")]
        let log = std::fs::File::create(folder.path().join("heddle.log"));
        let log = log.map_err(|error| failed("the network's log", error))?;
        let own = std::env::current_exe().map_err(|error| failed("the program's own path", error))?;
        let program = program.unwrap_or(&own);
        let mut command = Command::new(program);
        command.args(["up", "--bound", "--any-ports", "--dir"]).arg(folder.path().join("network"));
        command.args(arguments);
        // In a group of its own, so that Ctrl-C reaches the clients alone and they end the network in order.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child =
            command.spawn().map_err(|error| failed(&format!("{} cannot be started", program.display()), error))?;
        let mut network = OwnNetwork { child, folder, endpoints: None };
        network.wait_until_ready(stop).await?;
        Ok(network)
    }

    async fn wait_until_ready(&mut self, stop: &Stop) -> Result<(), Failure> {
        let (dir, process) = (self.dir(), self.child.id());
        let ended = || {
            let ended = self.child.try_wait();
            let ended = ended.map_err(|error| Failure::new(format!("the network's process: {error}")))?;
            Ok(ended.is_some() || stop.is_stopped())
        };
        self.endpoints = instance::ready(&dir, process, READY_PATIENCE, ended).await?;
        match &self.endpoints {
            Some(_) => Ok(()),
            None if stop.is_stopped() => Err(Failure::interrupted()),
            None => Err(Failure::new(format!("the network did not start:\n{}", self.log()))),
        }
    }

    pub(super) fn dir(&self) -> PathBuf {
        self.folder.path().join("network")
    }

    pub(super) fn endpoints(&self) -> &Endpoints {
        self.endpoints.as_ref().expect("it was ready when it was started")
    }

    pub(super) fn log(&self) -> String {
        super::tail(&self.folder.path().join("heddle.log"))
    }

    /// Ends the network in order.
    pub(super) async fn end(mut self) {
        let asked = Instant::now();
        let _ = instance::terminate(self.child.id());
        while asked.elapsed() < STOP_PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
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
