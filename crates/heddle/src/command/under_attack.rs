//! `heddle bench under-attack`: what is left of a network's throughput while it is attacked.
//!
//! 1. A network of processes, whose memory is reached over TCP, is started in a temporary directory. Its last organisation is
//!    the attackers'; SmallBank's clients are those of the others.
//! 2. The data is loaded, then calm and attacked windows alternate. In an attacked one the attacks begin first.
//! 3. Meanwhile the memory of every process but the attackers' organisation's is sampled.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::Stop;
use bench::process;
use bench::under_attack::{Attack, Attackers, Memory, QUOTA_PERCENT, Run, Window};
use bench::workload::Workload;
use bench::workload::smallbank::SmallBank;
use node::Endpoints;

use super::figure::{Progress, show};
use super::measure::{OwnNetwork, measure};
use crate::cli::bench::{Run as Load, UnderAttack, WaitFor};
use crate::cli::network::Policy;
use crate::failure::Failure;

/// The last one is the attackers'.
const ORGANIZATIONS: u8 = 3;
const CONFIG: &str = "[pool]\nprovider = \"tcp\"\ncompute_nodes = 2\nborrow = \"always\"\n";
/// From the beginning of the attacks to that of the measurement's warm-up.
const HEAD_START: Duration = Duration::from_secs(1);
/// What a measurement takes besides its warm-up and its window: connecting, and pricing signatures.
const AROUND_SECONDS: f64 = 2.0;
const SAMPLE: Duration = Duration::from_millis(100);
const MIB: f64 = (1 << 20) as f64;

pub async fn run(arguments: &UnderAttack, stop: &Stop) -> Result<(), Failure> {
    let program = program(arguments.attacks.as_deref())?;
    let quick = arguments.common.quick;
    let (pairs, seconds, warm_up) = if quick { (1, 2.0, 0.2) } else { (arguments.pairs, arguments.seconds, 2.0) };
    let config = tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(CONFIG.as_bytes()).map(|()| file));
    let config = config.map_err(|error| Failure::new(format!("the network's settings: {error}")))?;
    let organizations = ORGANIZATIONS.to_string();
    let up = ["--orgs", &organizations, "--isolate", "--config"].map(Into::into);
    let network = OwnNetwork::launch(None, up.into_iter().chain([config.path().into()]), false, stop).await?;
    let measured = Measured { arguments, network: &network, program: &program, seconds, warm_up, stop };
    let run = measured.pairs(pairs).await;
    if run.is_err() && !stop.is_stopped() {
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
        // A quick look at a busy machine shows that it works, and no more.
        Some((name, reached)) if !quick => Err(Failure::new(format!(
            "this run does not count: {name} reached {:.0} % of its pace; the machine is busy, or --factor is too large for \
             the attackers' quota",
            reached * 100.0
        ))),
        _ => Ok(()),
    }
}

/// The program of attacks: beside this one unless it is named.
fn program(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("attack")).unwrap_or_default();
    let path = named.map_or_else(beside, Path::to_path_buf);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!(
        "there is no program of attacks at {}; build it with `cargo build --package heddle-attack` in the profile of this \
         one, or name it with --attacks",
        path.display()
    )))
}

struct Measured<'a> {
    arguments: &'a UnderAttack,
    network: &'a OwnNetwork,
    program: &'a Path,
    seconds: f64,
    warm_up: f64,
    stop: &'a Stop,
}

impl Measured<'_> {
    async fn pairs(&self, count: u64) -> Result<(Run, &'static str), Failure> {
        let progress = Progress::new();
        let mut run = Run::default();
        let mut limit = "none";
        // The first one loads, and is not counted.
        progress.tell("loading");
        self.window(false, self.warm_up).await?;
        for number in 1..=count {
            progress.tell(&format!("pair {number} of {count}"));
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

    async fn attacked(&self) -> Result<(Window, Vec<Attack>, Vec<(String, Memory)>, &'static str), Failure> {
        let seconds = HEAD_START.as_secs_f64() + self.warm_up + self.seconds + AROUND_SECONDS;
        let (dir, factor) = (self.network.dir(), self.arguments.factor);
        // A quick look has to work where no cgroup can be made, too.
        let (program, may_exceed) = (self.program.to_path_buf(), self.arguments.common.quick);
        let start = move || match Attackers::start(&program, &dir, seconds, factor, true) {
            Err(_) if may_exceed => Attackers::start(&program, &dir, seconds, factor, false),
            started => started,
        };
        let attackers = tokio::task::spawn_blocking(start).await;
        let attackers = attackers.map_err(|error| Failure::new(format!("the attacks: {error}")))??;
        let limit = attackers.limit();
        let is_over = Arc::new(AtomicBool::new(false));
        let sampling = self.sample(Arc::clone(&is_over));
        tokio::time::sleep(HEAD_START).await;
        let window = self.window(true, self.seconds).await;
        let attacks = tokio::task::spawn_blocking(move || attackers.wait()).await;
        is_over.store(true, Ordering::Relaxed);
        let memory = sampling.await.map_err(|error| Failure::new(format!("memory was not sampled: {error}")))?;
        let attacks = attacks.map_err(|error| Failure::new(format!("the attacks: {error}")))??;
        Ok((window?, attacks, memory, limit))
    }

    async fn window(&self, is_loaded: bool, seconds: f64) -> Result<Window, Failure> {
        let run = Load {
            seconds,
            warm_up: self.warm_up,
            clients: self.arguments.clients,
            connections: None,
            wait: WaitFor::Status,
            seed: self.arguments.common.seed,
            orgs: ORGANIZATIONS,
            policy: Policy::Any,
            config: None,
            isolate: true,
            monolithic: false,
            pairs: None,
            before: None,
            timer: false,
            library: false,
            no_tls: false,
            connect: None,
            no_load: is_loaded,
            keep: false,
            json: None,
            plot: None,
        };
        let workload: Arc<dyn Workload> = Arc::new(SmallBank {
            accounts: if self.arguments.common.quick { 200 } else { 10_000 },
            ..SmallBank::default()
        });
        let mut endpoints = self.network.endpoints().clone();
        endpoints.gateways.truncate(usize::from(ORGANIZATIONS) - 1);
        endpoints.processes.retain(|process| is_judged(&process.name));
        let report = measure(&run, workload, &self.network.dir(), &endpoints, self.stop).await?;
        let latency = &report.measurement().tally.latency;
        Ok(Window { valid_tps: report.valid_tps(), p99_ms: latency.quantile_us(0.99) as f64 / 1e3 })
    }

    /// The most memory that each process has until it is over.
    fn sample(&self, is_over: Arc<AtomicBool>) -> tokio::task::JoinHandle<Vec<(String, Memory)>> {
        let mut processes = processes(&self.network.dir(), self.network.endpoints());
        tokio::spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                for (_, number, memory) in &mut processes {
                    // One that is gone shows in the throughput.
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

/// Whether a process belongs to no attacker.
fn is_judged(name: &str) -> bool {
    !name.contains(&format!("org{ORGANIZATIONS}"))
}

/// Names and numbers of processes, and what they are configured to use.
fn processes(dir: &Path, endpoints: &Endpoints) -> Vec<(String, u32, Memory)> {
    let roles = endpoints.processes.iter().filter(|process| is_judged(&process.name)).map(|process| {
        let file = dir.join("nodes").join(&process.name).join("node.toml");
        let budget_mib = budget_bytes(&std::fs::read_to_string(file).unwrap_or_default()) as f64 / MIB;
        (process.name.clone(), process.process, Memory { resident_mib: 0.0, budget_mib })
    });
    let supervisor = ("supervisor".to_owned(), endpoints.process, Memory { resident_mib: 0.0, budget_mib: 0.0 });
    roles.chain([supervisor]).collect()
}

/// Settings of a process that say how much memory something may take, in bytes.
const BUDGETS: [&str; 6] = [
    // Of a memory node.
    "memory_bytes",
    // Of a storage node.
    "memtable_bytes",
    // Of a compute node.
    "metadata_cache_bytes",
    "data_cache_bytes",
    "delta_bytes",
    // Of a process that takes messages of clients: one that is under way.
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
