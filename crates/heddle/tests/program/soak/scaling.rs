//! Planned scaling during the soak: while nothing is disturbed, a surge of computing clients has the manager launch a compute
//! node, and calm has it drain one. No request of any client may fail meanwhile. Afterwards, in the calm, every process
//! that has lived since the calm before is compared with itself: it must not have more descriptors or much more memory.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base::Bytes;
use manager::{PoolEvent, read_record};
use node::{Endpoints, Ready};

use super::Load;
use crate::support::load::connect;

/// Computing clients of the first organisation's peer, ...
const SURGE_CLIENTS: usize = 12;
/// ... and what each call computes: a tenth of a second, or a few.
const SURGE_CALL: [&str; 8] = ["1", "20", "400", "20", "0", "50", "200", "7"];
/// How long it may take to get quiet after a disturbance, and a manager to scale a peer.
const QUIET_TIMEOUT: Duration = Duration::from_secs(90);
const SCALING_TIMEOUT: Duration = Duration::from_secs(90);
/// Without a failed request for this long, the disturbances before are over.
const QUIET: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(100);
/// Failures that are shown.
const NEWEST: usize = 30;
/// By how much a process may grow from calm to calm. Caches and write buffers fill up.
const DESCRIPTORS_MORE_MAX: usize = 48;
const RESIDENT_MORE_MAX: u64 = 160 << 20;

/// How often the manager scaled while nothing was disturbed.
#[derive(Default, Debug)]
pub struct Scaled {
    pub launched: usize,
    pub drained: usize,
    /// Times at which one of them was waited for in vain: the machine had nothing to give.
    pub in_vain: usize,
}

/// The manager's process, if one runs.
pub fn manager_process(dir: &Path) -> Option<u32> {
    let folder = dir.join("manager");
    let lock = std::fs::read_to_string(folder.join(manager::LOCK_FILE)).ok()?;
    manager::is_held(&folder).then(|| lock.trim().parse().ok())?
}

/// The events of the manager from a number on, and the next number.
fn events(dir: &Path, from: u64) -> (Vec<PoolEvent>, u64) {
    let record = read_record(&dir.join("manager")).expect("it is whole").unwrap_or_default();
    (record.events.into_iter().filter(|event| event.number >= from).collect(), record.next_event)
}

/// Loads what the surge reads.
pub async fn prepare(dir: &Path) {
    let (client, channel) = connect(dir, 1).await.expect("its gateway is ready");
    let profiles = ["0", "200", "20", "1"].map(Bytes::from);
    let loaded = client.transact(&channel, "kmeans", "load", &profiles).await;
    assert!(loaded.expect("it is committed").commit.is_valid());
}

/// Waits until a manager runs and no request has failed for a while.
async fn wait_until_quiet(dir: &Path, load: &Load, seed: u64) {
    let (start, mut failed, mut quiet) = (Instant::now(), load.failures(), Instant::now());
    while quiet.elapsed() < QUIET {
        let now = load.failures();
        if manager_process(dir).is_none() || now.len() != failed.len() {
            (failed, quiet) = (now, Instant::now());
        }
        let newest = &failed[failed.len().saturating_sub(NEWEST)..];
        assert!(start.elapsed() < QUIET_TIMEOUT, "seed {seed}: requests go on failing undisturbed:\n{}", shown(newest));
        tokio::time::sleep(POLL).await;
    }
}

/// Failures, a line each, with how long ago they happened.
fn shown(failures: &[(Instant, String)]) -> String {
    let line = |(at, failed): &(Instant, String)| format!("{:.1} s ago: {failed}", at.elapsed().as_secs_f64());
    failures.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn processes(dir: &Path) -> Vec<Ready> {
    Endpoints::load(dir).expect("the network has said where it is").processes
}

/// Clients that compute.
struct Surge {
    stop: Arc<AtomicBool>,
    clients: tokio::task::JoinSet<Option<String>>,
}

impl Surge {
    async fn start(dir: &Path) -> Surge {
        let mut surge = Surge { stop: Arc::default(), clients: tokio::task::JoinSet::new() };
        for _ in 0..SURGE_CLIENTS {
            let (client, channel) = connect(dir, 1).await.expect("its gateway is ready");
            let stop = surge.stop.clone();
            surge.clients.spawn(async move {
                let client = client.with_deadline(Some(SCALING_TIMEOUT));
                while !stop.load(Ordering::Relaxed) {
                    let call = SURGE_CALL.map(Bytes::from);
                    let proposal = client.proposal(&channel, "kmeans", "getFood", &call).sign();
                    if let Err(status) = client.evaluate(&proposal).await {
                        return Some(status.to_string());
                    }
                }
                None
            });
        }
        surge
    }

    /// The first error, if one of them had one.
    async fn end(mut self) -> Option<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut failed = None;
        while let Some(ended) = self.clients.join_next().await {
            failed = failed.or(ended.expect("a client does not panic"));
        }
        failed
    }
}

/// Waits for an event of the manager; false if none came.
async fn scaled(dir: &Path, from: u64, is_it: impl Fn(&PoolEvent) -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < SCALING_TIMEOUT {
        if events(dir, from).0.iter().any(&is_it) {
            return true;
        }
        tokio::time::sleep(POLL).await;
    }
    false
}

/// Has the manager launch a node and drain one, while nothing is disturbed.
pub async fn scale(dir: &Path, load: &Load, done: &mut Scaled, seed: u64) {
    wait_until_quiet(dir, load, seed).await;
    let before = load.failures().len();
    let (_, from) = events(dir, u64::MAX);
    let surge = Surge::start(dir).await;
    let launched = |event: &PoolEvent| event.done.starts_with("done: launch");
    let ended = |event: &PoolEvent| launched(event) || event.done.starts_with("nothing");
    let is_launched = scaled(dir, from, ended).await && events(dir, from).0.iter().any(launched);
    let failed = surge.end().await;
    assert_eq!(failed, None, "seed {seed}: a call failed while the peer was scaled");
    load.calm(true);
    let is_drained = scaled(dir, from, |event| event.done.starts_with("done: drain")).await;
    let failures = load.failures();
    let scaling = events(dir, from).0.iter().map(PoolEvent::to_string).collect::<Vec<_>>().join("\n");
    println!("soak: planned scaling:\n{scaling}");
    let failed = shown(&failures[before..]);
    assert!(failed.is_empty(), "seed {seed}: requests failed by planned scaling:\n{failed}\n{scaling}");
    done.launched += usize::from(is_launched);
    done.drained += usize::from(is_drained);
    done.in_vain += usize::from(!is_launched) + usize::from(!is_drained);
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
struct Held {
    descriptors: usize,
    resident_bytes: u64,
}

/// What the processes held when it was calm, and the cgroups that compute nodes made for themselves.
#[derive(Default)]
pub struct Leaks {
    held: BTreeMap<(String, u32), Held>,
    groups: BTreeSet<String>,
    compared: usize,
}

impl Leaks {
    /// Notes the groups of the nodes that there are.
    pub fn note_groups(&mut self, dir: &Path) {
        for folder in std::fs::read_dir(dir.join("nodes")).expect("it is there").flatten() {
            if let (Ok(found), Some(name)) = (folder.metadata(), folder.file_name().to_str()) {
                self.groups.insert(format!("heddle-{name}-{:x}", found.ino()));
            }
        }
    }

    /// Compares every process with itself at the calm before.
    pub fn compare(&mut self, dir: &Path, supervisor: u32, seed: u64) {
        let known = processes(dir).into_iter().map(|process| (process.name, process.process));
        let others = [("supervisor", Some(supervisor)), ("manager", manager_process(dir))];
        let others = others.into_iter().filter_map(|(name, process)| Some((name.to_owned(), process?)));
        let before = std::mem::take(&mut self.held);
        for (name, process) in known.chain(others) {
            let Some(now) = held(process) else { continue };
            if let Some(before) = before.get(&(name.clone(), process)) {
                self.compared += 1;
                let is_leak = now.descriptors > before.descriptors + DESCRIPTORS_MORE_MAX
                    || now.resident_bytes > before.resident_bytes + RESIDENT_MORE_MAX;
                assert!(!is_leak, "seed {seed}: {name}, process {process}, had {before:?} and has {now:?}");
                println!("soak: {name} had {before:?} and has {now:?}");
            }
            self.held.insert((name, process), now);
        }
    }

    /// A network that has ended leaves no process, and no group.
    pub fn nothing_left(&self, dir: &Path, seed: u64) {
        let shown = dir.display().to_string();
        let all = std::fs::read_dir("/proc").expect("Linux has it").flatten();
        let left: Vec<PathBuf> = all
            .map(|process| process.path())
            .filter(|process| {
                let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                line.contains(&format!("{shown}/")) && line.contains(" node ")
            })
            .collect();
        assert!(left.is_empty(), "seed {seed}: processes are left: {left:?}");
        let mut groups = Vec::new();
        find_groups(Path::new("/sys/fs/cgroup"), 6, &self.groups, &mut groups);
        assert!(groups.is_empty(), "seed {seed}: cgroups are left: {groups:?}");
        println!("soak: {} times a process was compared with itself, and nothing is left", self.compared);
    }
}

fn find_groups(folder: &Path, depth: usize, names: &BTreeSet<String>, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if entry.file_name().to_str().is_some_and(|name| names.contains(name)) {
            found.push(entry.path());
        } else if depth > 0 {
            find_groups(&entry.path(), depth - 1, names, found);
        }
    }
}

fn held(process: u32) -> Option<Held> {
    let folder = PathBuf::from(format!("/proc/{process}"));
    let descriptors = std::fs::read_dir(folder.join("fd")).ok()?.count();
    let status = std::fs::read_to_string(folder.join("status")).ok()?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = resident.split_whitespace().next()?.parse().ok()?;
    Some(Held { descriptors, resident_bytes: kib << 10 })
}
