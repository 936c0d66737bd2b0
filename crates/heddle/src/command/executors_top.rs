//! `heddle farmem top`: the executors of a role, live.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Instant;

use executors::{ExecutorCondition, ExecutorView, RoleView};
use serde_json::{Value, json};

use super::live;
use crate::cli::executors::FarMemoryTopArguments;
use crate::failure::CommandError;
use crate::output;

/// Shows them.
pub async fn run(arguments: &FarMemoryTopArguments) -> Result<(), CommandError> {
    // Each answer is one message of a socket of this host.
    let ask = || executors::show(&arguments.socket).map_err(CommandError::new);
    if arguments.json {
        return output::print_json(&as_json(&ask()?));
    }
    let mut rates = Rates::default();
    live::show(live::is_once(arguments.once), async || {
        let view = ask()?;
        rates.look(&view, Instant::now());
        Ok(screen(&view, &rates))
    })
    .await
}

/// What an executor has done a second, between the last two looks.
#[derive(Clone, Copy, Default)]
struct Rate {
    calls: u64,
    processor_percent: Option<u64>,
}

/// The rates of all executors, by their numbers.
#[derive(Default)]
struct Rates {
    before: BTreeMap<u32, (Instant, u64, Option<u64>)>,
    now: BTreeMap<u32, Rate>,
}

impl Rates {
    fn look(&mut self, view: &RoleView, at: Instant) {
        let mut seen = BTreeMap::new();
        self.now.clear();
        for executor in &view.executors {
            if let Some((then, begun, processor)) = self.before.get(&executor.process) {
                let passed_us = at.saturating_duration_since(*then).as_micros().max(1);
                let per_second =
                    |more: u64| u64::try_from(u128::from(more) * 1_000_000 / passed_us).unwrap_or(u64::MAX);
                let used = executor.processor_us.zip(*processor).map(|(now, then)| now.saturating_sub(then));
                let rate = Rate {
                    calls: per_second(executor.begun.saturating_sub(*begun)),
                    // Microseconds a second are a ten-thousandth of a percent.
                    processor_percent: used.map(|used| per_second(used) / 10_000),
                };
                self.now.insert(executor.process, rate);
            }
            seen.insert(executor.process, (at, executor.begun, executor.processor_us));
        }
        self.before = seen;
    }
}

fn screen(view: &RoleView, rates: &Rates) -> String {
    let mut text = String::new();
    let stopping = if view.is_stopping { ", stopping" } else { "" };
    let _ = writeln!(text, "heddle executors: {} of {}{stopping}\n", view.executors.len(), view.executors_max);
    let _ = writeln!(
        text,
        "{:>7} {:>8}  {:<16} {:>8} {:<9} {:>7} {:>5} {:>8} {:>13}  {:<16}       {:>6}",
        "owner", "executor", "program", "process", "state", "running", "queue", "calls/s", "MiB", "processor", "silent"
    );
    for executor in &view.executors {
        let rate = rates.now.get(&executor.process).copied().unwrap_or_default();
        let _ = writeln!(text, "{}", line(executor, rate));
    }
    text
}

fn line(executor: &ExecutorView, rate: Rate) -> String {
    let mebibytes = |bytes: Option<u64>| bytes.map_or("-".to_owned(), |bytes| (bytes >> 20).to_string());
    let memory = format!("{} of {}", mebibytes(executor.memory_bytes), mebibytes(executor.memory_limit_bytes));
    let processor = rate
        .processor_percent
        .map_or_else(|| format!("{:<16}     -", ""), |percent| format!("{} {percent:>3} %", live::bar(percent)));
    let silent = match executor.condition {
        ExecutorCondition::Sick => format!("{} ms!", executor.silence_ms),
        _ => "-".to_owned(),
    };
    let name: String = executor.name.chars().take(16).collect();
    format!(
        "{:>7} {:>8}  {name:<16} {:>8} {:<9} {:>7} {:>5} {:>8} {memory:>13}  {processor}  {silent:>6}",
        executor.owner,
        executor.process,
        executor.program,
        executor.condition.name(),
        format!("{}/{}", executor.running, executor.contexts),
        executor.waiting,
        rate.calls,
    )
}

fn as_json(view: &RoleView) -> Value {
    let executors = view.executors.iter().map(|executor| {
        let [returned, signalled, killed, cancelled, busy] = executor.ends().map(|(_, count)| count);
        json!({
            "owner": executor.owner,
            "process": executor.process,
            "program": { "process": executor.program, "name": executor.name },
            "state": executor.condition.name(),
            "contexts": executor.contexts,
            "running": executor.running,
            "waiting": executor.waiting,
            "calls": {
                "begun": executor.begun,
                "returned": returned,
                "signalled": signalled,
                "killed": killed,
                "cancelled": cancelled,
                "busy": busy,
                "queuedNs": executor.queued_ns,
            },
            "memoryBytes": executor.memory_bytes,
            "memoryLimitBytes": executor.memory_limit_bytes,
            "processorMicroseconds": executor.processor_us,
            "ageMs": executor.age_ms,
            "silenceMs": executor.silence_ms,
        })
    });
    json!({
        "stopping": view.is_stopping,
        "executorsMax": view.executors_max,
        "executors": executors.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn executor() -> ExecutorView {
        ExecutorView {
            owner: 1000,
            program: 70,
            process: 80,
            name: "analyse".to_owned(),
            condition: ExecutorCondition::Sick,
            contexts: 4,
            running: 2,
            waiting: 3,
            age_ms: 60_000,
            silence_ms: 2500,
            begun: 100,
            ended: [90, 1, 2, 3, 4],
            queued_ns: 5,
            memory_bytes: Some(64 << 20),
            memory_limit_bytes: Some(512 << 20),
            processor_us: Some(1_000_000),
        }
    }

    #[test]
    fn an_executor_is_a_line_with_its_rates() {
        let (mut rates, start) = (Rates::default(), Instant::now());
        let mut view = RoleView { is_stopping: false, executors_max: 16, executors: vec![executor()] };
        rates.look(&view, start);
        (view.executors[0].begun, view.executors[0].processor_us) = (600, Some(2_000_000));
        rates.look(&view, start + Duration::from_secs(2));
        let text = screen(&view, &rates);
        for part in
            ["1 of 16", "analyse", "sick", "2/4", " 3 ", " 250 ", "64 of 512", "########........  50 %", "2500 ms!"]
        {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        view.executors[0].processor_us = None;
        rates.look(&view, start + Duration::from_secs(3));
        assert!(!screen(&view, &rates).contains('%'), "it is not known");
    }

    #[test]
    fn scripts_get_every_count() {
        let json = as_json(&RoleView { is_stopping: true, executors_max: 2, executors: vec![executor()] });
        assert_eq!(json["executors"][0]["calls"]["killed"], 2);
        assert_eq!((json["stopping"].as_bool(), json["executors"][0]["state"].as_str()), (Some(true), Some("sick")));
    }
}
