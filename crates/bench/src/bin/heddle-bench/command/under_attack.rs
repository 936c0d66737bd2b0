//! `heddle bench under-attack`: measures the throughput that a network keeps while it is attacked.
//!
//! 1. Start a network of processes in a temporary directory, with memory reached over TCP. The last organisation
//!    belongs to the attackers; SmallBank's clients belong to the other organisations.
//! 2. Load the data, then alternate calm and attacked windows. In an attacked window the attacks start before the
//!    measurement.
//! 3. Meanwhile sample the memory of every process, except those of the attackers' organisation.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::CancellationToken;
use bench::under_attack::{AttackProcess, AttackResult, AttackRun, AttackWindow, ProcessMemory, QUOTA_PERCENT};
use measurement::process;
use measurement::workload::Workload;
use measurement::workload::smallbank::SmallBank;
use node::Endpoints;

use super::figure::{FigureProgress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::faults::UnderAttackArguments;
use crate::cli::workload::BenchRunArguments as Load;
use crate::failure::CommandError;

/// The number of organisations; the last one belongs to the attackers.
const ORGANIZATIONS: u8 = 3;
const CONFIG: &str = "[pool]\nprovider = \"tcp\"\ncompute_nodes = 2\noffload = \"always\"\n";
/// The time from the start of the attacks to the start of the measurement's warm-up.
const HEAD_START: Duration = Duration::from_secs(1);
/// The duration of a measurement besides its warm-up and its window: connecting, and pricing signatures.
const AROUND_SECONDS: f64 = 2.0;
const SAMPLE: Duration = Duration::from_millis(100);
const MIB: f64 = (1 << 20) as f64;

pub async fn run(arguments: &UnderAttackArguments, stop: &CancellationToken) -> Result<(), CommandError> {
    let program = program(arguments.attacks.as_deref())?;
    let quick = arguments.common.quick;
    let (pairs, seconds, warm_up) = if quick { (1, 2.0, 0.2) } else { (arguments.pairs, arguments.seconds, 2.0) };
    let config = tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(CONFIG.as_bytes()).map(|()| file));
    let config = config.map_err(|error| CommandError::new(format!("the network's settings: {error}")))?;
    let organizations = ORGANIZATIONS.to_string();
    let up = ["--orgs", &organizations, "--isolate", "--config"].map(Into::into);
    let network = OwnNetwork::launch(None, up.into_iter().chain([config.path().into()]), false, stop).await?;
    let measured = AttackedRun { arguments, network: &network, program: &program, seconds, warm_up, stop };
    let run = measured.pairs(pairs).await;
    if run.is_err() && !stop.is_cancelled() {
        eprintln!("the network's log ends with:\n{}", network.log());
    }
    network.end().await;
    let (run, limit) = run?;
    let mut figure = run.figure();
    figure.setting("pairs", pairs);
    figure.setting("seconds", seconds);
    figure.setting("clients", arguments.clients);
    figure.setting("factor", arguments.factor);
    figure.setting("attackers_percent_of_a_processor", QUOTA_PERCENT);
    figure.setting("attackers_limit", limit);
    show(&figure, &arguments.common.output)?;
    match run.too_slow().first() {
        // A quick look at a busy machine only shows that the benchmark works.
        Some((name, reached)) if !quick => Err(CommandError::new(format!(
            "this run is invalid: {name} reached {:.0} % of its pace; the machine is busy, or --factor is too large for the \
             attackers' quota",
            reached * 100.0
        ))),
        _ => Ok(()),
    }
}

/// The attacking program: the one beside this program, unless another one is named.
fn program(named: Option<&Path>) -> Result<PathBuf, CommandError> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("attack")).unwrap_or_default();
    let path = named.map_or_else(beside, Path::to_path_buf);
    if path.is_file() {
        return Ok(path);
    }
    Err(CommandError::new(format!(
        "there is no attacking program at {}; build it with `cargo build --package heddle-attack` in the same profile as this \
         program, or name it with --attacks",
        path.display()
    )))
}

struct AttackedRun<'a> {
    arguments: &'a UnderAttackArguments,
    network: &'a OwnNetwork,
    program: &'a Path,
    seconds: f64,
    warm_up: f64,
    stop: &'a CancellationToken,
}

impl AttackedRun<'_> {
    async fn pairs(&self, count: u64) -> Result<(AttackRun, &'static str), CommandError> {
        let progress = FigureProgress::new();
        let mut run = AttackRun::default();
        let mut limit = "none";
        // The first window loads the data, and is not counted.
        progress.report("loading");
        self.window(false, self.warm_up).await?;
        for number in 1..=count {
            progress.report(&format!("pair {number} of {count}"));
            let calm_first = number % 2 == 1;
            let mut calm = if calm_first { Some(self.window(true, self.seconds).await?) } else { None };
            let (attacked, attacks, memory, limited) = self.attacked().await?;
            let calm = match calm.take() {
                Some(calm) => calm,
                None => self.window(true, self.seconds).await?,
            };
            run.pairs.push((calm, attacked));
            run.attacks.push(attacks);
            for (name, memory) in memory {
                let known = run.memory.entry(name).or_insert(memory);
                known.resident_mib = known.resident_mib.max(memory.resident_mib);
            }
            limit = limited;
        }
        Ok((run, limit))
    }

    async fn attacked(
        &self,
    ) -> Result<(AttackWindow, Vec<AttackResult>, Vec<(String, ProcessMemory)>, &'static str), CommandError> {
        let seconds = HEAD_START.as_secs_f64() + self.warm_up + self.seconds + AROUND_SECONDS;
        let (dir, factor) = (self.network.dir(), self.arguments.factor);
        // A quick look must also work where no cgroup can be made.
        let (program, may_exceed) = (self.program.to_path_buf(), self.arguments.common.quick);
        let start = move || match AttackProcess::start(&program, &dir, seconds, factor, true) {
            Err(_) if may_exceed => AttackProcess::start(&program, &dir, seconds, factor, false),
            started => started,
        };
        let attackers = tokio::task::spawn_blocking(start).await;
        let attackers = attackers.map_err(|error| CommandError::new(format!("the attacks: {error}")))??;
        let limit = attackers.limit();
        let is_over = Arc::new(AtomicBool::new(false));
        let sampling = self.sample(Arc::clone(&is_over));
        tokio::time::sleep(HEAD_START).await;
        let window = self.window(true, self.seconds).await;
        let attacks = tokio::task::spawn_blocking(move || attackers.wait()).await;
        is_over.store(true, Ordering::Relaxed);
        let memory = sampling.await.map_err(|error| CommandError::new(format!("memory was not sampled: {error}")))?;
        let attacks = attacks.map_err(|error| CommandError::new(format!("the attacks: {error}")))??;
        Ok((window?, attacks, memory, limit))
    }

    async fn window(&self, is_loaded: bool, seconds: f64) -> Result<AttackWindow, CommandError> {
        let run = Load {
            warm_up: self.warm_up,
            seed: self.arguments.common.seed,
            no_load: is_loaded,
            ..Load::window(self.arguments.clients, seconds)
        };
        let workload: Arc<dyn Workload> = Arc::new(SmallBank {
            accounts: if self.arguments.common.quick { 200 } else { 10_000 },
            ..SmallBank::default()
        });
        let mut endpoints = self.network.endpoints().clone();
        endpoints.gateways.truncate(usize::from(ORGANIZATIONS) - 1);
        endpoints.processes.retain(|process| is_counted(&process.name));
        let report = measure(&run, workload, &self.network.dir(), &endpoints, &[], self.stop).await?;
        let latency = &report.measurement().tally.latency;
        Ok(AttackWindow { valid_tps: report.valid_tps(), p99_ms: latency.quantile_us(0.99) as f64 / 1e3 })
    }

    /// The peak memory of each process until the window is over.
    fn sample(&self, is_over: Arc<AtomicBool>) -> tokio::task::JoinHandle<Vec<(String, ProcessMemory)>> {
        let mut processes = processes(&self.network.dir(), self.network.endpoints());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                for (_, number, memory) in &mut processes {
                    // The loss of a process shows in the throughput.
                    if let Ok(usage) = process::usage(Some(*number)) {
                        memory.resident_mib = memory.resident_mib.max(usage.resident_bytes as f64 / MIB);
                    }
                }
                tokio::time::sleep(SAMPLE).await;
            }
            processes.into_iter().map(|(name, _, memory)| (name, memory)).collect()
        })
    }
}

/// Whether a process belongs to an organisation other than the attackers'.
fn is_counted(name: &str) -> bool {
    !name.contains(&format!("org{ORGANIZATIONS}"))
}

/// Names and IDs of processes, with the memory that their settings allow.
fn processes(dir: &Path, endpoints: &Endpoints) -> Vec<(String, u32, ProcessMemory)> {
    let roles = endpoints.processes.iter().filter(|process| is_counted(&process.name)).map(|process| {
        let file = dir.join("nodes").join(&process.name).join("node.toml");
        let budget_mib = budget_bytes(&std::fs::read_to_string(file).unwrap_or_default()) as f64 / MIB;
        (process.name.clone(), process.process, ProcessMemory { resident_mib: 0.0, budget_mib })
    });
    let supervisor = ("supervisor".to_owned(), endpoints.process, ProcessMemory { resident_mib: 0.0, budget_mib: 0.0 });
    roles.chain([supervisor]).collect()
}

/// Settings that bound the memory of some part of a process, in bytes.
const BUDGETS: [&str; 8] = [
    // Of a memory node.
    "memory_bytes",
    // Of a storage node.
    "memtable_bytes",
    "table_cache_bytes",
    "table_hint_bytes",
    // Of a compute node.
    "metadata_cache_bytes",
    "data_cache_bytes",
    "delta_bytes",
    // Of a process that accepts client messages: one message in flight.
    "message_bytes",
];

fn budget_bytes(settings: &str) -> u64 {
    let values = settings.lines().filter_map(|line| line.split_once('='));
    let budgets = values.filter(|(name, _)| BUDGETS.contains(&name.trim()));
    budgets.filter_map(|(_, value)| value.trim().parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_use_what_its_settings_say() {
        let settings = "metadata_cache_bytes = 10\n# data_cache_bytes = 5\ndata_cache_bytes = 20\npeer_bytes = 1000\n";
        assert_eq!(budget_bytes(settings), 30);
    }
}
