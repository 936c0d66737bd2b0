//! `heddle pool top`: every process of a network with its load, live, and the newest events of the manager.
//!
//! It asks the nodes itself, so it shows them without a manager too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use heddle_cli::process_usage;
use manager::{ManagerRecord, NodeOrigin, NodeView, PeerView, PoolView};
use node::{Endpoints, ProcessRole, Ready};
use tokio::runtime::Handle;

use super::local::LocalPool;
use super::{clock, folder, record};
use crate::cli::pool::PoolTopArguments;
use crate::command::live::{self, bar};
use crate::failure::CommandError;
use crate::instance;

/// The events at the bottom.
const EVENTS: usize = 8;
/// A node that was heard longer ago is silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);

pub async fn run(arguments: &PoolTopArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    instance::expect_running(dir)?;
    let mut pool = LocalPool::new(dir, Handle::current());
    let mut usage = ProcessorUse::default();
    live::show(live::is_once(arguments.once), async || {
        let endpoints = instance::expect_running(dir)?;
        let view = pool.look().await;
        usage.look(&endpoints);
        Ok(screen(&view, &endpoints, &usage, &record(dir)?, manager::is_held(&folder(dir))))
    })
    .await
}

/// The share of a processor that each process uses.
#[derive(Default)]
struct ProcessorUse {
    before: BTreeMap<u32, (Instant, u64)>,
    percent: BTreeMap<u32, u64>,
}

impl ProcessorUse {
    fn look(&mut self, endpoints: &Endpoints) {
        let mut now = BTreeMap::new();
        for process in endpoints.processes.iter().map(|process| process.process) {
            let Ok(used) = process_usage::usage(Some(process)) else { continue };
            if let Some((at, before)) = self.before.get(&process) {
                let passed = at.elapsed().as_micros().max(1) as u64;
                self.percent.insert(process, used.cpu_us.saturating_sub(*before) * 100 / passed);
            }
            now.insert(process, (Instant::now(), used.cpu_us));
        }
        self.before = now;
    }
}

fn screen(
    view: &PoolView,
    endpoints: &Endpoints,
    usage: &ProcessorUse,
    record: &ManagerRecord,
    is_managed: bool,
) -> String {
    let mut text = String::new();
    let manager = if is_managed { "a manager runs" } else { "no manager runs; everything serves as it is" };
    let _ = writeln!(text, "heddle pool, channel {}: {manager}", endpoints.channel);
    let of = |name: &str| endpoints.processes.iter().find(|process| process.name == name);
    for (name, peer) in view {
        let _ = writeln!(text, "\n{}", peer_line(name, peer));
        let _ = writeln!(
            text,
            "  {:<18} {:<9} {:<8} {:>5} {:>5} {:>6}  {:<22} MiB",
            "", "", "", "quota", "queue", "age", "busy"
        );
        for node in &peer.nodes {
            let _ = writeln!(text, "{} {}", node_line(node), of(&node.name).map_or(String::new(), mib));
        }
    }
    let _ = writeln!(text, "\nother processes");
    for process in endpoints.processes.iter().filter(|process| process.role != ProcessRole::Compute) {
        let percent = usage.percent.get(&process.process).copied().unwrap_or(0);
        let (bar, mib) = (bar(percent.min(100)), mib(process));
        let _ =
            writeln!(text, "  {:<18} {:<9} {:<29}{bar} {percent:>3} % {mib:>5}", process.name, process.role.name(), "");
    }
    let _ = writeln!(text, "\nevents");
    for event in record.events.iter().skip(record.events.len().saturating_sub(EVENTS)) {
        let _ = writeln!(text, "  {} {}: {}, because {}", clock(event.unix_ms), event.peer, event.done, event.why);
    }
    text
}

fn mib(process: &Ready) -> String {
    format!("{:>4}", process_usage::usage(Some(process.process)).unwrap_or_default().resident_bytes >> 20)
}

fn peer_line(name: &str, peer: &PeerView) -> String {
    let quotas = if peer.has_quotas { "" } else { ", no quotas (no cgroup can be made)" };
    let memory = peer.memory.map_or("memory unknown".to_owned(), |memory| {
        let (used, budget) = (memory.used_bytes >> 20, memory.budget_bytes >> 20);
        format!("memory {used} of {budget} MiB, {} misses so far", memory.misses)
    });
    format!("{name}: {} compute nodes, {memory}{quotas}", peer.nodes.len())
}

fn node_line(node: &NodeView) -> String {
    let origin = match node.origin {
        NodeOrigin::Planned => "planned",
        NodeOrigin::Managed => "launched",
        NodeOrigin::Added => "added",
    };
    let quota = node.quota_percent.map_or("-".to_owned(), |percent| format!("{percent} %"));
    let age = match node.heard {
        None => "-".to_owned(),
        Some(age) if age > SILENT_AFTER => format!("{} s!", age.as_secs()),
        Some(age) => format!("{} ms", age.as_millis()),
    };
    let (percent, queued) = (node.busy_percent, node.queued);
    format!(
        "  {:<18} {:<9} {origin:<8} {quota:>5} {queued:>5} {age:>6}  {} {percent:>3} %",
        node.name,
        node.role,
        bar(u64::from(percent.min(100)))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_with_its_load_and_whether_it_is_silent() {
        let mut node = NodeView {
            name: "compute-org1-2".to_owned(),
            origin: NodeOrigin::Managed,
            heard: Some(Duration::from_millis(40)),
            role: "follower".to_owned(),
            busy_percent: 50,
            queued: 3,
            quota_percent: Some(75),
        };
        let line = node_line(&node);
        assert!(
            line.contains("launched") && line.contains("75 %") && line.contains("########........  50 %"),
            "{line}"
        );
        node.heard = Some(Duration::from_secs(7));
        assert!(node_line(&node).contains("7 s!"));
        assert!(peer_line("org1", &PeerView::default()).contains("no quotas"));
    }
}
