//! One attack on one port, with its newcomer and its verdict.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use super::network::{Form, Network};
use crate::attacks::Attack;
use crate::pace::Done;
use crate::target::Kind;

/// What an attack must not exceed.
pub struct Bounds {
    pub seconds: f64,
    pub patience_ms: u64,
    pub growth_mib: u64,
}

/// What became of an attack.
pub struct Trial {
    form: Form,
    attack: &'static str,
    kind: Kind,
    done: Option<Done>,
    /// The newcomer's longest visit since the attack began, and how many there were.
    newcomer_ms: u64,
    visits: u64,
    /// Memory of the process that grew most: its name, and MiB before, at most, and afterwards.
    memory: (String, [u64; 3]),
    /// Why the attack succeeded, if it did.
    pub failures: Vec<String>,
}

/// From one look at the processes' memory to the next.
const SAMPLE: Duration = Duration::from_millis(50);
/// How much longer than its time an attack may take.
const ATTACK_PATIENCE: Duration = Duration::from_secs(15);
/// Visits after an attack, the first of which may have begun before its end.
const VISITS_AFTER: usize = 2;

impl Trial {
    /// Runs it.
    ///
    /// # Errors
    /// A program cannot be started.
    pub fn run(network: &Network, attack: &Attack, kind: Kind, bounds: &Bounds) -> io::Result<Trial> {
        let processes = network.processes()?;
        let mut memory = Memory::new(&processes);
        let mut failures = Vec::new();
        let mut newcomer = Newcomer::start(network, kind)?;
        let (mut newcomer_ms, mut visits) = (0, 0);
        let mut judge = |visit: Visit, failures: &mut Vec<String>| {
            visits += 1;
            newcomer_ms = newcomer_ms.max(visit.millis);
            let reason = match visit.refusal {
                Some(reason) => format!("a newcomer was refused after {} ms: {reason}", visit.millis),
                None if visit.millis > bounds.patience_ms => format!("a newcomer was served after {} ms", visit.millis),
                None => return,
            };
            // The first of its kind says enough.
            if !failures.iter().any(|failure| failure.starts_with("a newcomer")) {
                failures.push(reason);
            }
        };
        match newcomer.next(Duration::from_secs(10)) {
            Some(Visit { refusal: None, .. }) => {}
            Some(Visit { refusal: Some(reason), .. }) => {
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
        let end = Instant::now() + Duration::from_secs_f64(bounds.seconds) + ATTACK_PATIENCE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(SAMPLE);
            memory.sample();
            while let Some(visit) = newcomer.next(Duration::ZERO) {
                judge(visit, &mut failures);
            }
        }
        let _ = child.kill();
        let output = child.wait_with_output()?;
        let done: Option<Done> = serde_json::from_slice(&output.stdout).ok();
        match &done {
            Some(Done { breach: Some(breach), .. }) => failures.push(breach.clone()),
            Some(_) => {}
            None => {
                let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " ");
                failures.push(format!("the attack could not be made: {said}"));
            }
        }
        for _ in 0..VISITS_AFTER {
            match newcomer.next(Duration::from_secs(12)) {
                Some(visit) => judge(visit, &mut failures),
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
struct Visit {
    millis: u64,
    refusal: Option<String>,
}

struct Newcomer {
    child: Child,
    input: Option<ChildStdin>,
    visits: Receiver<Visit>,
}

impl Newcomer {
    fn start(network: &Network, kind: Kind) -> io::Result<Newcomer> {
        let organization = if matches!(kind, Kind::Gateway | Kind::Orderer) { "1" } else { "2" };
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
                if sender.send(Visit { millis, refusal }).is_err() {
                    return;
                }
            }
        });
        Ok(Newcomer { input: child.stdin.take(), child, visits })
    }

    fn next(&mut self, patience: Duration) -> Option<Visit> {
        self.visits.recv_timeout(patience).ok()
    }

    fn end(mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Resident memory of processes, in MiB: before, at most, and last; `None` for one that is gone.
struct Memory(BTreeMap<String, (u32, [u64; 3], bool)>);

impl Memory {
    fn new(processes: &[(String, u32)]) -> Memory {
        let of = |(name, process): &(String, u32)| {
            let now = resident_mib(*process).unwrap_or(0);
            (name.clone(), (*process, [now; 3], true))
        };
        Memory(processes.iter().map(of).collect())
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

/// Whether the network works, as a program of its own finds out.
fn check(network: &Network) -> io::Result<Vec<String>> {
    let output = Command::new(std::env::current_exe()?)
        .args(["check", "--dir"])
        .arg(network.dir())
        .stdin(Stdio::null())
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let mut failures: Vec<String> = said.lines().map(str::to_owned).collect();
    if !output.status.success() && failures.is_empty() {
        failures.push(format!("the network could not be asked: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(failures)
}
