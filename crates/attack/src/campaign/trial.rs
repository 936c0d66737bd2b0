//! A trial: one attack on one port, with its newcomer and its verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::network::{AttackedNetwork, NetworkMode};
use crate::attacks::Attack;
use crate::pace::AttackReport;
use crate::target::TargetKind;

/// The bounds that an attack must not exceed.
pub struct TrialLimits {
    pub seconds: f64,
    pub visit_ms_max: u64,
    pub growth_mib: u64,
}

/// The outcome of an attack.
pub struct Trial {
    form: NetworkMode,
    attack: &'static str,
    kind: TargetKind,
    done: Option<AttackReport>,
    /// The newcomer's longest visit since the attack began, and the number of visits.
    newcomer_ms: u64,
    visits: u64,
    /// Memory of the process that grew most: its name, and MiB before, at the peak, and afterwards.
    memory: (String, [u64; 3]),
    /// Why the attack succeeded, if it did.
    pub failures: Vec<String>,
}

/// Interval between samples of the processes' memory.
const SAMPLE: Duration = Duration::from_millis(50);
/// How much longer than its time an attack may take.
const ATTACK_TIMEOUT: Duration = Duration::from_secs(15);
/// Visits after an attack, the first of which may have begun before its end.
const VISITS_AFTER: usize = 2;

impl Trial {
    /// Runs the trial.
    ///
    /// # Errors
    /// A program cannot be started.
    pub fn run(
        network: &AttackedNetwork,
        attack: &Attack,
        kind: TargetKind,
        bounds: &TrialLimits,
    ) -> io::Result<Trial> {
        let processes = network.processes()?;
        let mut memory = ResidentMemory::new(&processes);
        let mut failures = Vec::new();
        let mut newcomer = NewcomerProcess::start(network, kind)?;
        let (mut newcomer_ms, mut visits) = (0, 0);
        let mut count_visit = |visit: NewcomerVisit, failures: &mut Vec<String>| {
            visits += 1;
            newcomer_ms = newcomer_ms.max(visit.millis);
            let reason = match visit.rejection {
                Some(reason) => format!("a newcomer was refused after {} ms: {reason}", visit.millis),
                None if visit.millis > bounds.visit_ms_max => {
                    format!("a newcomer was served after {} ms", visit.millis)
                }
                None => return,
            };
            // The first failure of its kind is enough.
            if !failures.iter().any(|failure| failure.starts_with("a newcomer")) {
                failures.push(reason);
            }
        };
        match newcomer.next(Duration::from_secs(10)) {
            Some(NewcomerVisit { rejection: None, .. }) => {}
            Some(NewcomerVisit { rejection: Some(reason), .. }) => {
                failures.push(format!("no newcomer was served before: {reason}"))
            }
            None => failures.push("no newcomer was served before".to_owned()),
        }

        let mut child = Command::new(std::env::current_exe()?)
            .args(["run", attack.name, "--port", kind.name(), "--seconds", &bounds.seconds.to_string(), "--dir"])
            .arg(network.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let end = Instant::now() + Duration::from_secs_f64(bounds.seconds) + ATTACK_TIMEOUT;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(SAMPLE);
            memory.sample();
            while let Some(visit) = newcomer.next(Duration::ZERO) {
                count_visit(visit, &mut failures);
            }
        }
        let _ = child.kill();
        let output = child.wait_with_output()?;
        let done: Option<AttackReport> = serde_json::from_slice(&output.stdout).ok();
        match &done {
            Some(AttackReport { breach: Some(breach), .. }) => failures.push(breach.clone()),
            Some(_) => {}
            None => {
                let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
                failures.push(format!("the attack could not be made: {said}"));
            }
        }
        for _ in 0..VISITS_AFTER {
            match newcomer.next(Duration::from_secs(12)) {
                Some(visit) => count_visit(visit, &mut failures),
                None => failures.push("no newcomer came afterwards".to_owned()),
            }
            memory.sample();
        }
        newcomer.end();
        failures.extend(check(network)?);
        memory.sample();
        failures.extend(memory.failures(bounds.growth_mib));
        let memory = memory.worst();
        Ok(Trial { form: network.form, attack: attack.name, kind, done, newcomer_ms, visits, memory, failures })
    }

    /// The head of the table.
    pub fn head() -> String {
        format!(
            "{:<8} {:<24} {:<8} {:>9} {:>9} {:>17} {:>15} {:<32} {}",
            "form", "attack", "port", "connects", "MiB", "paces", "newcomer", "memory, MiB", "verdict"
        )
    }
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (connections, mib, paces) = match &self.done {
            None => (0, 0.0, String::new()),
            Some(done) => {
                let paces = format!("{:.0} of {:.0}/s", done.reached_per_second, done.asked_per_second);
                (done.connections, done.bytes as f64 / f64::from(1 << 20), paces)
            }
        };
        let (process, [before, peak, after]) = &self.memory;
        let memory = format!("{process} {before} {peak} {after}");
        let newcomer = format!("{} ms, {}", self.newcomer_ms, self.visits);
        let verdict = match self.failures.join("; ") {
            none if none.is_empty() => "failed".to_owned(),
            failures => format!("SUCCEEDED: {failures}"),
        };
        write!(
            f,
            "{:<8} {:<24} {:<8} {connections:>9} {mib:>9.1} {paces:>17} {newcomer:>15} {memory:<32} {verdict}",
            self.form, self.attack, self.kind
        )
    }
}

/// A visit of the newcomer.
struct NewcomerVisit {
    millis: u64,
    rejection: Option<String>,
}

struct NewcomerProcess {
    child: Child,
    input: Option<ChildStdin>,
    visits: Receiver<NewcomerVisit>,
}

impl NewcomerProcess {
    fn start(network: &AttackedNetwork, kind: TargetKind) -> io::Result<NewcomerProcess> {
        let organization = if matches!(kind, TargetKind::Gateway | TargetKind::Orderer) { "1" } else { "2" };
        let mut child = Command::new(std::env::current_exe()?)
            .args(["newcomer", "--port", kind.name(), "--organization", organization, "--dir"])
            .arg(network.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, visits) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let mut words = line.splitn(3, ' ');
                let is_served = words.next() == Some("served");
                let millis = words.next().and_then(|word| word.parse().ok()).unwrap_or(u64::MAX);
                let refusal = (!is_served).then(|| words.next().unwrap_or_default().to_owned());
                if sender.send(NewcomerVisit { millis, rejection: refusal }).is_err() {
                    return;
                }
            }
        });
        Ok(NewcomerProcess { input: child.stdin.take(), child, visits })
    }

    fn next(&mut self, timeout: Duration) -> Option<NewcomerVisit> {
        self.visits.recv_timeout(timeout).ok()
    }

    fn end(mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Resident memory of processes, in MiB: before, at the peak, and last; `None` for a process that has ended.
struct ResidentMemory(BTreeMap<String, (u32, [u64; 3], bool)>);

impl ResidentMemory {
    fn new(processes: &[(String, u32)]) -> ResidentMemory {
        let of = |(name, process): &(String, u32)| {
            let now = resident_mib(*process).unwrap_or(0);
            (name.clone(), (*process, [now; 3], true))
        };
        ResidentMemory(processes.iter().map(of).collect())
    }

    fn sample(&mut self) {
        for (process, [_, peak, last], lives) in self.0.values_mut() {
            match resident_mib(*process) {
                Some(now) => (*peak, *last) = ((*peak).max(now), now),
                None => *lives = false,
            }
        }
    }

    fn failures(&self, growth_mib: u64) -> Vec<String> {
        let mut failures = Vec::new();
        for (name, (_, [before, peak, _], lives)) in &self.0 {
            if !lives {
                failures.push(format!("{name} has ended"));
            }
            if peak - before > growth_mib {
                failures.push(format!("{name} grew by {} MiB", peak - before));
            }
        }
        failures
    }

    fn worst(self) -> (String, [u64; 3]) {
        let worst = self.0.into_iter().max_by_key(|(_, (_, [before, peak, _], _))| peak - before);
        worst.map(|(name, (_, sizes, _))| (name, sizes)).unwrap_or_default()
    }
}

/// `None` for a process that has ended.
fn resident_mib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 10)
}

/// Whether the network works, as a separate program finds out.
fn check(network: &AttackedNetwork) -> io::Result<Vec<String>> {
    let output = Command::new(std::env::current_exe()?)
        .args(["check", "--dir"])
        .arg(network.dir())
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut failures: Vec<String> = said.lines().map(str::to_owned).collect();
    if !output.status.success() && failures.is_empty() {
        failures.push(format!("the network could not be checked: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(failures)
}
