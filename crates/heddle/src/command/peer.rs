//! `heddle peer`: shows or changes a peer's remote memory, and shows, adds and removes its compute nodes.
//!
//! 1. Find the folder of the peer's compute node, in the network's directory or as given. If there are several compute
//!    nodes, take the folder of the primary: the nodes report their roles.
//! 2. Send the request or the new budget through the socket in that folder ([`node::control`]).
//! 3. After lowering the budget, poll until all memory above it has been returned. The compute node stores the budget
//!    durably, so it takes no memory above the budget even if it is restarted meanwhile.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use node::Ready;
use node::added_nodes::AddedNodes;
use node::control::{ComputeReport, ControlError, ControlRequest, MemoryReport, request_memory, request_node};
use node::joining_memory;
use replica::NODES_MAX;

use crate::cli::exit;
use crate::cli::peer::{
    PeerAddMemoryArguments, PeerAddNodeArguments, PeerMemoryArguments, PeerNodesArguments, PeerRemoveNodeArguments,
    PeerTarget,
};
use crate::failure::CommandError;
use crate::{instance, output};

/// How often a peer is polled.
pub(super) const POLL: Duration = Duration::from_millis(100);
/// How long a node that was added may take to start.
const START_MAX: Duration = Duration::from_secs(60);
/// How long a node that was removed may take to end.
const LEAVE_MAX: Duration = Duration::from_secs(30);
/// How long a compute node may be unreachable while the command waits for it.
pub(super) const AWAY_MAX: Duration = Duration::from_secs(30);

pub async fn nodes(arguments: &PeerNodesArguments) -> Result<(), CommandError> {
    let folders = folders(&arguments.asked)?;
    let mut reports = Vec::new();
    for folder in &folders {
        match request_node(folder).await {
            Ok(report) => reports.push(report),
            Err(error @ ControlError::Unreachable { .. }) if folders.len() > 1 => eprintln!("{error}"),
            Err(error) => return Err(failure(error)),
        }
    }
    if arguments.json {
        return output::print_json(&with_former_keys(serde_json::to_value(&reports).map_err(CommandError::new)?));
    }
    let lines = reports.iter().map(|report| {
        let ComputeReport { name, process, role, epoch, height, offloaded, verified_for_primary, distrusted, .. } =
            report;
        let epoch = epoch.map(|epoch| format!(", epoch {epoch}")).unwrap_or_default();
        let some = |count: u64, what: &str| match count {
            0 => String::new(),
            count => format!(", {count} transactions verified {what}"),
        };
        let (by, of) = (some(*offloaded, "by others"), some(*verified_for_primary, "for others"));
        let distrusted: String = distrusted
            .iter()
            .map(|liar| format!("  {liar} RETURNED FALSE VERDICTS to it and gets no more work\n"))
            .collect();
        format!("{name:<16} {role:<8} {height} blocks, process {process}{epoch}{by}{of}\n{distrusted}")
    });
    output::print(&lines.collect::<String>())
}

pub async fn add_node(arguments: &PeerAddNodeArguments) -> Result<(), CommandError> {
    let dir = arguments.directory.dir.as_path();
    instance::expect_network(dir)?;
    let organizations = super::config(dir)?.network.organizations;
    let name = &organizations[super::organization(organizations.iter(), &arguments.organization)?];
    let remote = arguments.host.zip(arguments.port).map(|(host, port)| SocketAddr::new(host, port));
    let is_supervised = remote.is_none() && is_supervised(dir)?;
    let node = AddedNodes::add(dir, name, remote).map_err(CommandError::new)?;
    let (name, folder) = (&node.name, node.folder.display());
    let start = match remote {
        None if is_supervised => {
            let ready = started(&node.folder, name).await?;
            format!("it runs as process {}\n", ready.process)
        }
        None => format!("start it with: heddle node compute --config {}\n", node.config().display()),
        Some(address) => format!(
            "copy it to {}, and start it there with: heddle node compute --config {name}/node.toml\n",
            address.ip()
        ),
    };
    output::print(&format!("{name}: its files are in {folder}\n{start}"))
}

pub async fn remove_node(arguments: &PeerRemoveNodeArguments) -> Result<(), CommandError> {
    let dir = arguments.directory.dir.as_path();
    instance::expect_network(dir)?;
    let is_supervised = is_supervised(dir)?;
    let node = AddedNodes::remove(dir, &arguments.node).map_err(CommandError::new)?;
    let (name, folder) = (node.name(), node.folder(dir));
    if let Some(address) = node.address {
        remove_folder(&folder)?;
        return output::print(&format!(
            "{name} is removed; end its process on {} with SIGTERM, and remove its folder there\n",
            address.ip()
        ));
    }
    if let Some(ready) = Ready::load(&folder) {
        let config = node.config(dir);
        if !is_supervised && instance::runs_with(ready.process, &config) {
            let _ = instance::terminate(ready.process);
        }
        let asked = Instant::now();
        while instance::runs_with(ready.process, &config) {
            if asked.elapsed() > LEAVE_MAX {
                let seconds = LEAVE_MAX.as_secs();
                return Err(CommandError::new(format!(
                    "{name} is removed, but process {} has not ended within {seconds} s; kill it, and remove {}",
                    ready.process,
                    folder.display()
                )));
            }
            tokio::time::sleep(POLL).await;
        }
    }
    remove_folder(&folder)?;
    output::print(&format!("{name} has left and is removed\n"))
}

/// Whether the network of a directory runs as processes with a supervisor, here.
fn is_supervised(dir: &Path) -> Result<bool, CommandError> {
    if instance::is_planned(dir) {
        return Ok(false);
    }
    match instance::running(dir)? {
        Some(endpoints) if endpoints.processes.is_empty() => Err(CommandError::new(
            "this network runs as one process; start it with `heddle up --isolate` for compute nodes to come and go",
        )),
        running => Ok(running.is_some()),
    }
}

/// Waits until the supervisor has started a node and the node answers proposals.
async fn started(folder: &Path, name: &str) -> Result<Ready, CommandError> {
    let since = Instant::now();
    while since.elapsed() < START_MAX {
        if let Some(ready) = Ready::load(folder) {
            return Ok(ready);
        }
        tokio::time::sleep(POLL).await;
    }
    let (seconds, log) = (START_MAX.as_secs(), folder.join("heddle.log"));
    Err(CommandError::new(format!("{name} was added, but is not ready after {seconds} s; see {}", log.display())))
}

fn remove_folder(folder: &Path) -> Result<(), CommandError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CommandError::new(format!("{}: {error}", folder.display())))
        }
        _ => Ok(()),
    }
}

pub fn add_memory(arguments: &PeerAddMemoryArguments) -> Result<(), CommandError> {
    let dir = arguments.directory.dir.as_path();
    instance::expect_network(dir)?;
    let remote = arguments.host.zip(arguments.port).map(|(host, port)| SocketAddr::new(host, port));
    let config = joining_memory::add_memory_node(dir, remote).map_err(CommandError::new)?;
    let folder = config.parent().unwrap_or(dir);
    let name = folder.file_name().unwrap_or_default().display();
    let start = match remote {
        None => format!("start it with: heddle node memory --config {}", config.display()),
        Some(address) => format!(
            "copy it to {}, and start it there with: heddle node memory --config {name}/node.toml",
            address.ip()
        ),
    };
    let add = format!("have a peer use it with: heddle peer memory ORG --add {}", config.display());
    output::print(&format!("{name}: its files are in {}\n{start}\n{add}\n", folder.display()))
}

/// Repeats values under the keys that they had in release 0.1, for one release.
fn with_former_keys(mut reports: serde_json::Value) -> serde_json::Value {
    const FORMER: [(&str, &str); 3] =
        [("offloaded", "borrowed"), ("verified_for_primary", "lent"), ("distrusted", "liars")];
    for report in reports.as_array_mut().into_iter().flatten().filter_map(serde_json::Value::as_object_mut) {
        for (key, former) in FORMER {
            if let Some(value) = report.get(key).cloned() {
                report.insert(former.to_owned(), value);
            }
        }
    }
    reports
}

pub async fn memory(arguments: &PeerMemoryArguments) -> Result<(), CommandError> {
    let folder = folder(arguments).await?;
    let set_node = |address: &String, vacated| ControlRequest::SetMemoryNode { address: address.clone(), vacated };
    let PeerMemoryArguments { set, vacate, use_node, add, remove, .. } = arguments;
    let request = match (set, vacate, use_node, add, remove) {
        (Some(bytes), ..) => ControlRequest::SetMemory { bytes: *bytes },
        (_, Some(address), ..) => set_node(address, true),
        (_, _, Some(address), ..) => set_node(address, false),
        (.., Some(file), _) => {
            // The compute node reads it, from its own working directory.
            let failed = |error| CommandError::new(format!("{}: {error}", file.display()));
            ControlRequest::AddMemoryNode { file: file.canonicalize().map_err(failed)? }
        }
        (.., Some(address)) => ControlRequest::RemoveMemoryNode { address: address.clone() },
        _ => ControlRequest::Memory {},
    };
    let mut report = request_memory(&folder, &request).await.map_err(failure)?;
    if !arguments.no_wait && (arguments.set.is_some() || arguments.vacate.is_some()) && left(&report) > 0 {
        report = settled(arguments, folder, report).await?;
    }
    match arguments.json {
        true => output::print_json(&serde_json::to_value(&report).map_err(CommandError::new)?),
        false => output::print(&text(&report)),
    }
}

/// The folder of the compute node that owns the peer's memory.
async fn folder(arguments: &PeerMemoryArguments) -> Result<PathBuf, CommandError> {
    primary_folder(&arguments.asked).await
}

/// The folder of the peer's only compute node, or of its primary.
pub(super) async fn primary_folder(target: &PeerTarget) -> Result<PathBuf, CommandError> {
    let mut folders = folders(target)?;
    let asked = Instant::now();
    while folders.len() > 1 {
        for folder in &folders {
            if request_node(folder).await.is_ok_and(|report| report.role == "primary") {
                return Ok(folder.clone());
            }
        }
        if asked.elapsed() > AWAY_MAX {
            return Err(CommandError::new("none of the peer's compute nodes is its primary; see `heddle peer nodes`"));
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(folders.remove(0))
}

/// The folder that was given, or those of an organisation's compute nodes; at least one.
pub(super) fn folders(asked: &PeerTarget) -> Result<Vec<PathBuf>, CommandError> {
    if let Some(folder) = &asked.node {
        return Ok(vec![folder.clone()]);
    }
    let dir = asked.directory.dir.as_path();
    let wanted = asked.organization.as_deref().unwrap_or_default();
    instance::expect_network(dir)?;
    let organizations = super::config(dir)?.network.organizations;
    let name = &organizations[super::organization(organizations.iter(), wanted)?];
    instance::expect_running(dir)?;
    let own = format!("compute-{}", name.to_ascii_lowercase());
    let nodes = dir.join("nodes");
    // The nodes that listen, or did when they were killed: the set of running processes may change at any moment.
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

pub(super) fn failure(error: ControlError) -> CommandError {
    match error {
        ControlError::Unreachable { .. } => CommandError::with_code(exit::NOT_RUNNING, error),
        error => CommandError::new(error),
    }
}

/// Sections above the budget, and those on memory nodes that are being vacated.
fn left(report: &MemoryReport) -> u64 {
    let excess = report.leased_bytes.saturating_sub(report.allowed_bytes).div_ceil(report.section_bytes.max(1));
    excess.max(report.sections_to_vacate())
}

/// Waits until the peer has returned everything above its budget, and vacated what it is to vacate.
async fn settled(
    arguments: &PeerMemoryArguments,
    mut folder: PathBuf,
    mut report: MemoryReport,
) -> Result<MemoryReport, CommandError> {
    let first = left(&report);
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} sections, {elapsed}").expect("well formed");
    let bar = ProgressBar::new(first)
        .with_style(style.progress_chars("=> "))
        .with_message(if arguments.vacate.is_some() { "moving memory" } else { "returning memory" });
    let mut answered = Instant::now();
    while left(&report) > 0 {
        tokio::time::sleep(POLL).await;
        match request_memory(&folder, &ControlRequest::Memory {}).await {
            Ok(newer) => (report, answered) = (newer, Instant::now()),
            Err(ControlError::Unreachable { .. } | ControlError::Rejected(_)) if answered.elapsed() < AWAY_MAX => {
                // Another compute node may be the primary by now.
                folder = self::folder(arguments).await?;
                continue;
            }
            Err(error) => return Err(failure(error)),
        }
        bar.set_position(first.saturating_sub(left(&report)));
    }
    bar.finish_and_clear();
    Ok(report)
}

/// A size for people: in the largest unit that gives at least 1, to a tenth.
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
    let waits = match report.is_within_budget() {
        true => String::new(),
        false => {
            format!("; {} are being returned", sections(report.leased_bytes.saturating_sub(report.allowed_bytes)))
        }
    };
    line("taken", format!("{}, {} sections{waits}", shown(report.leased_bytes), sections(report.leased_bytes)));
    line(
        "of which",
        format!(
            "{} in use, {} free, {} in quarantine",
            shown(report.used_bytes),
            shown(report.free_bytes),
            shown(report.waiting_bytes)
        ),
    );
    for node in &report.nodes {
        let state = match (&node.problem, node.connected) {
            (_, true) => format!("offers {}, {} free", shown(node.budget_bytes), shown(node.free_bytes)),
            (Some(problem), false) => format!("not connected: {problem}"),
            (None, false) => "not connected".to_owned(),
        };
        let vacated = match (node.vacated, node.sections) {
            (false, _) => "",
            (true, 0) => "; vacated",
            (true, _) => "; being vacated",
        };
        line("memory node", format!("{}: {} sections; {state}{vacated}", node.address, node.sections));
    }
    line("evicted", format!("{} records, {}", report.evicted_records, shown(report.evicted_bytes)));
    line("drained", format!("{} sections", report.sections_drained));
    line("moved", format!("{} sections", report.sections_migrated));
    for rate in &report.hits {
        let whose = if report.hits_of_process { ", all peers of the process" } else { "" };
        let value = match rate.percent() {
            Some(percent) => format!("{percent:.1} % of {} look-ups{whose}", rate.hits + rate.misses),
            None => "no look-ups yet".to_owned(),
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

    #[test]
    fn reports_repeat_values_under_their_former_keys() {
        let reports = serde_json::json!([
            { "name": "compute-org1", "offloaded": 7, "verified_for_primary": 0, "distrusted": ["compute-org1-2"] },
            { "name": "compute-org1-2", "offloaded": 0, "verified_for_primary": 7 },
        ]);
        let both = with_former_keys(reports);
        assert_eq!((&both[0]["borrowed"], &both[0]["lent"]), (&both[0]["offloaded"], &both[0]["verified_for_primary"]));
        assert_eq!((both[0]["offloaded"].as_u64(), both[1]["lent"].as_u64()), (Some(7), Some(7)));
        assert_eq!(both[0]["liars"][0], "compute-org1-2");
        assert!(both[1].get("liars").is_none(), "a key that is left out stays out");
        let former = serde_json::json!({
            "name": "compute-org1", "process": 1, "role": "primary", "height": 9, "borrowed": 7, "lent": 2, "liars": ["x"],
        });
        let report: ComputeReport = serde_json::from_value(former).expect("a node of release 0.1 answers so");
        assert_eq!(
            (report.offloaded, report.verified_for_primary, &report.distrusted[..]),
            (7, 2, &["x".to_owned()][..])
        );
    }
}
