//! `heddle peer memory` and `heddle peer nodes`.
//!
//! 1. The folder of the peer's compute node, from the network's directory or as given. Of several that of the primary, which
//!    they say themselves.
//! 2. The question, or the new budget, through the socket there ([`node::control`]).
//! 3. With a lower budget: the same question again and again until everything above it has been given back. A compute node
//!    that ends meanwhile and is started again has kept the budget and has taken nothing above it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chain::succession::NODES_MAX;
use indicatif::{ProgressBar, ProgressStyle};
use node::control::{ComputeReport, ControlError, MemoryReport, Request, ask, ask_node};

use crate::cli::exit;
use crate::cli::peer::{Memory, Nodes};
use crate::failure::Failure;
use crate::{instance, output};

/// How often a peer is asked how far it is.
const POLL: Duration = Duration::from_millis(100);
/// How long a compute node may be away while it is waited for.
const AWAY_MAX: Duration = Duration::from_secs(30);

pub async fn nodes(arguments: &Nodes) -> Result<(), Failure> {
    let folders = match &arguments.node {
        Some(folder) => vec![folder.clone()],
        None => folders(&arguments.directory.dir, arguments.organization.as_deref().unwrap_or_default())?,
    };
    let mut reports = Vec::new();
    for folder in &folders {
        match ask_node(folder).await {
            Ok(report) => reports.push(report),
            Err(error @ ControlError::Absent { .. }) if folders.len() > 1 => eprintln!("{error}"),
            Err(error) => return Err(failure(error)),
        }
    }
    if arguments.json {
        return output::print_json(&serde_json::to_value(&reports).map_err(Failure::new)?);
    }
    let lines = reports.iter().map(|report| {
        let ComputeReport { name, process, role, epoch, height, borrowed, lent, liars, .. } = report;
        let epoch = epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
        let some = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!(", {count} transactions verified {what}"),
        };
        let (borrowed, lent) = (some(*borrowed, "by others"), some(*lent, "for others"));
        let liars: String =
            liars.iter().map(|liar| format!("  {liar} LIED to it about signatures and is asked no more\n")).collect();
        format!("{name:<16} {role:<8} {height} blocks, process {process}{epoch}{borrowed}{lent}\n{liars}")
    });
    output::print(&lines.collect::<String>())
}

pub async fn memory(arguments: &Memory) -> Result<(), Failure> {
    let folder = folder(arguments).await?;
    let request = match arguments.set {
        None => Request::Memory {},
        Some(bytes) => Request::SetMemory { bytes },
    };
    let mut report = ask(&folder, &request).await.map_err(failure)?;
    if arguments.set.is_some() && !arguments.no_wait && !report.is_settled() {
        report = settled(arguments, folder, report).await?;
    }
    match arguments.json {
        true => output::print_json(&serde_json::to_value(&report).map_err(Failure::new)?),
        false => output::print(&text(&report)),
    }
}

/// Where the compute node is that holds the peer's memory.
async fn folder(arguments: &Memory) -> Result<PathBuf, Failure> {
    if let Some(folder) = &arguments.node {
        return Ok(folder.clone());
    }
    let mut folders = folders(&arguments.directory.dir, arguments.organization.as_deref().unwrap_or_default())?;
    let asked = Instant::now();
    while folders.len() > 1 {
        for folder in &folders {
            if ask_node(folder).await.is_ok_and(|report| report.role == "primary") {
                return Ok(folder.clone());
            }
        }
        if asked.elapsed() > AWAY_MAX {
            return Err(Failure::new("none of the peer's compute nodes is its primary; see `heddle peer nodes`"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(folders.remove(0))
}

/// Where the compute nodes of an organisation are, one at least.
fn folders(dir: &Path, wanted: &str) -> Result<Vec<PathBuf>, Failure> {
    super::expect_network(dir)?;
    let organizations = super::config(dir)?.network.organizations;
    let name = &organizations[super::organization(organizations.iter(), wanted)?];
    instance::expect_running(dir)?;
    let own = format!("compute-{}", name.to_ascii_lowercase());
    let nodes = dir.join("nodes");
    // Those that listen, or did when they were killed: which processes there are changes at any moment.
    let numbered = (1..=NODES_MAX).map(|number| match number {
        1 => own.clone(),
        _ => format!("{own}-{number}"),
    });
    let mut folders: Vec<PathBuf> = numbered.map(|name| nodes.join(name)).collect();
    folders.retain(|folder| folder.join(node::control::SOCKET).exists());
    if folders.is_empty() {
        folders.push(nodes.join(own));
    }
    Ok(folders)
}

fn failure(error: ControlError) -> Failure {
    match error {
        ControlError::Absent { .. } => Failure::with_code(exit::NOT_RUNNING, error),
        error => Failure::new(error),
    }
}

/// Waits until the peer has given back what is above its budget.
async fn settled(arguments: &Memory, mut folder: PathBuf, mut report: MemoryReport) -> Result<MemoryReport, Failure> {
    let sections = |bytes: u64| bytes / report.section_bytes.max(1);
    let first = report.leased_bytes;
    let excess = |report: &MemoryReport| report.leased_bytes.saturating_sub(report.allowed_bytes);
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} sections, {elapsed}").expect("well formed");
    let bar = ProgressBar::new(sections(excess(&report)))
        .with_style(style.progress_chars("=> "))
        .with_message("giving memory back");
    let mut answered = Instant::now();
    while !report.is_settled() {
        tokio::time::sleep(POLL).await;
        match ask(&folder, &Request::Memory {}).await {
            Ok(newer) => (report, answered) = (newer, Instant::now()),
            Err(ControlError::Absent { .. } | ControlError::Refused(_)) if answered.elapsed() < AWAY_MAX => {
                // Another compute node may be the primary by now.
                folder = self::folder(arguments).await?;
                continue;
            }
            Err(error) => return Err(failure(error)),
        }
        bar.set_position(first.saturating_sub(report.leased_bytes) / report.section_bytes.max(1));
    }
    bar.finish_and_clear();
    Ok(report)
}

/// Bytes for people: in the largest unit that says them exactly to a tenth.
fn shown(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 || value.fract() == 0.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

fn text(report: &MemoryReport) -> String {
    let sections = |bytes: u64| bytes / report.section_bytes.max(1);
    let mut lines = vec![format!("{}: remote memory", report.name)];
    let mut line = |what: &str, value: String| lines.push(format!("  {what:<16} {value}"));
    let set = match report.budget_bytes == report.configured_bytes {
        true => String::new(),
        false => format!(", set at run time (the configuration says {})", shown(report.configured_bytes)),
    };
    line(
        "budget",
        format!(
            "{}, {} sections of {}{set}",
            shown(report.budget_bytes),
            sections(report.allowed_bytes),
            shown(report.section_bytes)
        ),
    );
    let waits = match report.is_settled() {
        true => String::new(),
        false => {
            format!("; {} are being given back", sections(report.leased_bytes.saturating_sub(report.allowed_bytes)))
        }
    };
    line("taken", format!("{}, {} sections{waits}", shown(report.leased_bytes), sections(report.leased_bytes)));
    line(
        "of which",
        format!(
            "{} in use, {} free, {} to be free soon",
            shown(report.used_bytes),
            shown(report.free_bytes),
            shown(report.waiting_bytes)
        ),
    );
    for node in &report.nodes {
        let state = match (&node.problem, node.connected) {
            (_, true) => format!("it has {}, {} free", shown(node.budget_bytes), shown(node.free_bytes)),
            (Some(problem), false) => format!("not connected: {problem}"),
            (None, false) => "not connected".to_owned(),
        };
        line("memory node", format!("{}: {} sections; {state}", node.address, node.sections));
    }
    line("evicted", format!("{} records, {}", report.evicted_records, shown(report.evicted_bytes)));
    line("drained", format!("{} sections", report.sections_drained));
    for rate in &report.hits {
        let whose = if report.hits_of_process { ", all peers of the process" } else { "" };
        let value = match rate.percent() {
            Some(percent) => format!("{percent:.1} % of {} look-ups{whose}", rate.hits + rate.misses),
            None => "nothing was looked up yet".to_owned(),
        };
        line(&format!("in {}", rate.place), value);
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_in_a_unit_that_fits() {
        let cases =
            [(0, "0 bytes"), (1023, "1023 bytes"), (16 << 20, "16 MiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1024 TiB")];
        for (bytes, text) in cases {
            assert_eq!(shown(bytes), text);
        }
    }
}
