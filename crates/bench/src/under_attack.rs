//! Measures the service that a network gives to a legitimate organisation while attackers act on it:
//! `heddle bench under-attack`.
//!
//! 1. Windows without and with attacks alternate on one network, in pairs of a *calm* and an *attacked* window. Pairs
//!    begin in turn with the calm and with the attacked one.
//! 2. In an attacked window all attacks run at once, each as a separate process at normal priority. Together they get
//!    at most [`QUOTA_PERCENT`] of a core ([`AttackProcess`]). Connection churn is left out, because it is measured
//!    separately.
//! 3. The results are the throughput and latency of each attacked window, divided by those of the calm window of its
//!    pair. A further result is the memory of each process beyond its configured limit and a slack.
//!
//! Invariant: if an attack reached less than half of its rate, the report says that the run does not count
//! ([`AttackRun::too_slow`]).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Deserialize;

use crate::flexchain::limiter::{CpuLimiter, LimiterKind};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;

/// What attackers may use of one core, in percent.
pub const QUOTA_PERCENT: u32 = 25;
/// The least throughput, over that of the calm window.
const TPS_OVER_CALM_MIN: f64 = 0.7;
/// The most that the 99th percentile of latency may be, over that of the calm window.
const P99_OVER_CALM_MAX: f64 = 3.0;
/// Memory that a process may use beyond its configured memory, in MiB.
const MEMORY_SLACK_MIB: f64 = 64.0;
/// An attack that reaches less of its rate than this does not count.
const REACHED_MIN: f64 = 0.5;

/// The report of an attack's program.
#[derive(Clone, Deserialize, Debug)]
pub struct AttackResult {
    /// Its name.
    pub attack: String,
    /// The unit that is counted.
    pub unit: String,
    /// The requested rate.
    pub asked_per_second: f64,
    /// The rate that it reached.
    pub reached_per_second: f64,
    /// Connections that it made.
    pub connections: u64,
    /// Bytes that it sent.
    pub bytes: u64,
    /// Something that it obtained and must not have.
    pub breach: Option<String>,
}

/// All attacks at once.
pub struct AttackProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    limiter: Option<CpuLimiter>,
}

impl AttackProcess {
    /// Starts them against the network in a directory, for this many seconds, each at its rate times `factor`, and waits until
    /// they start to attack. Without a quota they may use the whole machine.
    ///
    /// # Errors
    /// The program does not exist, or no cgroup can be made for the quota.
    pub fn start(
        program: &Path,
        dir: &Path,
        seconds: f64,
        factor: f64,
        has_quota: bool,
    ) -> Result<AttackProcess, Error> {
        let failed = |error: std::io::Error| Error::Part { what: "the attacks", reason: error.to_string() };
        let mut child = Command::new(program)
            .args(["all", "--seconds", &seconds.to_string(), "--factor", &factor.to_string(), "--dir"])
            .arg(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut attackers = AttackProcess { child, output, limiter: None };
        if has_quota {
            let limiter = CpuLimiter::new(LimiterKind::Cgroup, attackers.child.id())?;
            limiter.set(Some(QUOTA_PERCENT))?;
            attackers.limiter = Some(limiter);
        }
        // Its attacks are its children, and so within its group; it starts them on a line of its input.
        let mut input = attackers.child.stdin.take().expect("it is piped");
        input.write_all(b"go\n").map_err(failed)?;
        attackers.output.read_line(&mut String::new()).map_err(failed)?;
        Ok(attackers)
    }

    /// A description of their limit.
    pub fn limit(&self) -> &'static str {
        self.limiter.as_ref().map_or("none", CpuLimiter::name)
    }

    /// Waits for their end and returns their reports. Blocks the thread.
    ///
    /// # Errors
    /// One could not be run.
    pub fn wait(mut self) -> Result<Vec<AttackResult>, Error> {
        let failed = |reason: String| Error::Part { what: "the attacks", reason };
        let (mut said, mut complained) = (String::new(), String::new());
        self.output.read_to_string(&mut said).map_err(|error| failed(error.to_string()))?;
        let mut errors = self.child.stderr.take().expect("it is piped");
        errors.read_to_string(&mut complained).map_err(|error| failed(error.to_string()))?;
        let status = self.child.wait().map_err(|error| failed(error.to_string()))?;
        if !status.success() {
            return Err(failed(format!("{status}: {}", complained.trim())));
        }
        let attacks = said.lines().map(|line| serde_json::from_str(line).map_err(|error| failed(error.to_string())));
        attacks.collect()
    }
}

impl Drop for AttackProcess {
    fn drop(&mut self) {
        // Its attacks end by themselves when their time is over; then the group can be removed.
        if let Some(limiter) = &self.limiter {
            limiter.end();
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Numbers of one window.
#[derive(Clone, Copy, Debug)]
pub struct AttackWindow {
    /// Valid transactions a second.
    pub valid_tps: f64,
    /// The 99th percentile of their latency, in milliseconds.
    pub p99_ms: f64,
}

/// The most memory that a process had in an attacked window, and its configured memory, in MiB.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    /// Its resident memory.
    pub resident_mib: f64,
    /// Its configured memory.
    pub budget_mib: f64,
}

/// All measurements.
#[derive(Default)]
pub struct AttackRun {
    /// A calm and an attacked window, in pairs.
    pub pairs: Vec<(AttackWindow, AttackWindow)>,
    /// The reports of the attacks, of each attacked window.
    pub attacks: Vec<Vec<AttackResult>>,
    /// Processes by name.
    pub memory: BTreeMap<String, ProcessMemory>,
}

impl AttackRun {
    /// Attacks that fell below half of their rate in any window, with the part of it that they reached.
    pub fn too_slow(&self) -> Vec<(String, f64)> {
        let mut least: BTreeMap<&str, f64> = BTreeMap::new();
        for attack in self.attacks.iter().flatten() {
            let reached = attack.reached_per_second / attack.asked_per_second;
            let known = least.entry(&attack.attack).or_insert(reached);
            *known = known.min(reached);
        }
        let slow = least.into_iter().filter(|(_, reached)| *reached < REACHED_MIN);
        slow.map(|(name, reached)| (name.to_owned(), reached)).collect()
    }

    /// The figure.
    ///
    /// # Panics
    /// If nothing was measured.
    pub fn figure(&self) -> Figure {
        let mut figure = Figure::new("under-attack", "SmallBank while all attacks run at once");
        for (number, (calm, attacked)) in (1u32..).zip(&self.pairs) {
            for (name, window) in [("calm", calm), ("attacked", attacked)] {
                let numbers = [("valid_tps", window.valid_tps), ("p99_ms", window.p99_ms), ("pair", f64::from(number))];
                figure.row(&[("window", name)], &numbers);
            }
        }
        for first in self.attacks.first().into_iter().flatten() {
            let all = self.attacks.iter().flatten().filter(|attack| attack.attack == first.attack);
            let least = all.clone().map(|attack| attack.reached_per_second).fold(f64::INFINITY, f64::min);
            let numbers = [
                ("asked_per_second", first.asked_per_second),
                ("reached_per_second", least),
                ("connections", all.clone().map(|attack| attack.connections as f64).sum()),
                ("sent_mib", all.map(|attack| attack.bytes as f64).sum::<f64>() / f64::from(1 << 20)),
            ];
            figure.row(&[("attack", &first.attack), ("unit", &first.unit)], &numbers);
        }
        let mut over_budget = f64::NEG_INFINITY;
        for (name, memory) in &self.memory {
            let over = memory.resident_mib - memory.budget_mib - MEMORY_SLACK_MIB;
            over_budget = over_budget.max(over);
            let numbers =
                [("resident_mib", memory.resident_mib), ("budget_mib", memory.budget_mib), ("over_budget_mib", over)];
            figure.row(&[("process", name)], &numbers);
        }
        let ratio =
            |of: fn(&AttackWindow) -> f64| median(self.pairs.iter().map(|(calm, attacked)| of(attacked) / of(calm)));
        figure.ratio("tps_over_calm", ratio(|window| window.valid_tps), Some(RatioBound::AtLeast(TPS_OVER_CALM_MIN)));
        figure.ratio("p99_over_calm", ratio(|window| window.p99_ms), Some(RatioBound::AtMost(P99_OVER_CALM_MAX)));
        figure.ratio("memory_over_budget_mib", over_budget, Some(RatioBound::AtMost(0.0)));
        figure.note("Ratios are medians over the pairs; memory_over_budget_mib is of the process where it is most.");
        for (name, reached) in self.too_slow() {
            let percent = reached * 100.0;
            figure.note(format!("THIS RUN DOES NOT COUNT: {name} reached {percent:.0} % of its pace in a window."));
        }
        for attack in self.attacks.iter().flatten() {
            if let Some(breach) = &attack.breach {
                figure.note(format!("{} SUCCEEDED: {breach}.", attack.attack));
            }
        }
        figure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(reached: f64) -> AttackRun {
        let attack = AttackResult {
            attack: "silent-sockets".to_owned(),
            unit: "connections".to_owned(),
            asked_per_second: 100.0,
            reached_per_second: reached,
            connections: 600,
            bytes: 0,
            breach: None,
        };
        let window = |valid_tps, p99_ms| AttackWindow { valid_tps, p99_ms };
        AttackRun {
            pairs: vec![
                (window(100.0, 10.0), window(90.0, 20.0)),
                (window(100.0, 10.0), window(80.0, 25.0)),
                (window(100.0, 10.0), window(10.0, 90.0)),
            ],
            attacks: vec![vec![attack]],
            memory: BTreeMap::from([("orderer".to_owned(), ProcessMemory { resident_mib: 100.0, budget_mib: 20.0 })]),
        }
    }

    #[test]
    fn ratios_are_medians_over_pairs_and_memory_is_held_against_its_budget() {
        let json = run(99.0).figure().to_json();
        assert_eq!(json["ratios"]["tps_over_calm"], 0.8);
        assert_eq!(json["ratios"]["p99_over_calm"], 2.5);
        assert_eq!(json["ratios"]["memory_over_budget_mib"], 16.0);
        assert!(run(99.0).figure().to_table().contains("MISSED"), "16 MiB too many");
    }

    #[test]
    fn a_run_whose_attacks_were_too_slow_says_that_it_does_not_count() {
        assert!(run(51.0).too_slow().is_empty());
        let slow = run(49.0);
        assert_eq!(slow.too_slow().len(), 1);
        assert!(slow.figure().to_table().contains("DOES NOT COUNT: silent-sockets reached 49 %"));
    }
}
