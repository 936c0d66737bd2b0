//! `heddle pool`: scales the peers of a running network by their load, and shows what is done.
//!
//! * `manage` runs the manager, which [`super::elastic`] supervises in a network of `heddle up --elastic`.
//! * `events` prints what the manager did, and why, from its record; it works without a manager.
//! * `top` shows every node with its load, live ([`top`]); it asks the nodes itself.

pub mod local;
pub mod top;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use manager::{
    ManagerDriver, ManagerError, ManagerRecord, ManagerSettings, PeerLimits, PoolEvent, RecordFile, read_record,
};
use tokio::runtime::Handle;

use self::local::LocalPool;
use super::stopped_storage::StoppedStorage;
use crate::cli::pool::{PeerLimitArguments, PoolEventsArguments, PoolManageArguments};
use crate::failure::CommandError;
use crate::signals::StopSignals;
use crate::{instance, output};

/// How often the manager looks.
const TICK: Duration = Duration::from_millis(50);
/// In a large pool a look takes longer: the manager rests at least this many times as long.
const REST_OVER_LOOK: u32 = 4;
/// How long a manager waits for one that is ending.
const HOLD_MAX: Duration = Duration::from_secs(2);
/// How often new events are looked for.
const FOLLOW: Duration = Duration::from_millis(500);

/// The folder of a network's manager.
pub fn folder(dir: &Path) -> PathBuf {
    dir.join("manager")
}

/// The record of a network's manager; an empty one if none has run.
fn record(dir: &Path) -> Result<ManagerRecord, CommandError> {
    Ok(read_record(&folder(dir)).map_err(CommandError::new)?.unwrap_or_default())
}

/// Runs the manager until a signal.
pub async fn manage(arguments: &PoolManageArguments) -> Result<(), CommandError> {
    let dir = arguments.directory.dir.clone();
    instance::expect_network(&dir)?;
    instance::expect_not_planned(&dir)?;
    if arguments.bound {
        super::end_with_parent()?;
    }
    let settings = settings(arguments)?;
    let mut signals = StopSignals::listen()?;
    let store = hold(&dir).await?;
    let pool = LocalPool::new(&dir, Handle::current());
    if !local::can_have_quotas() {
        eprintln!("no cgroup can be made here, so nodes have no quotas: peers are scaled by nodes alone");
    }
    let driver = ManagerDriver::start(store, pool, settings).map_err(CommandError::new)?;
    output::print(&format!(
        "the manager of {} runs, incarnation {}\n",
        dir.display(),
        driver.manager().record().incarnation
    ))?;
    let stop = Arc::new(AtomicBool::new(false));
    // It waits for files and processes, so it has a thread of its own.
    let mut managing = tokio::task::spawn_blocking({
        let stop = Arc::clone(&stop);
        move || run(driver, &stop)
    });
    tokio::select! {
        ended = &mut managing => ended.map_err(CommandError::new)?.map_err(CommandError::new),
        () = signals.received() => {
            stop.store(true, Ordering::Relaxed);
            managing.await.map_err(CommandError::new)?.map_err(CommandError::new)?;
            // Without a manager nobody starts them. One that belongs to `up --elastic` is started again.
            if arguments.bound { Ok(()) } else { StoppedStorage::clear(&dir) }
        }
    }
}

/// Holds the record. A manager that is ending, and a command that looks whether there is one, have it for a moment.
async fn hold(dir: &Path) -> Result<RecordFile, CommandError> {
    let start = Instant::now();
    loop {
        match RecordFile::open(&folder(dir)) {
            Err(ManagerError::Held(..)) if start.elapsed() < HOLD_MAX => tokio::time::sleep(TICK).await,
            opened => return opened.map_err(CommandError::new),
        }
    }
}

fn run(mut driver: ManagerDriver<RecordFile, LocalPool>, stop: &AtomicBool) -> Result<(), ManagerError> {
    let start = Instant::now();
    let mut printed = driver.manager().record().next_event;
    let mut failed = false;
    while !stop.load(Ordering::Relaxed) {
        let look = Instant::now();
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        match driver.tick(start.elapsed(), unix_ms) {
            Ok(_) => failed = false,
            Err(error @ (ManagerError::Fenced(_) | ManagerError::Corrupt(..))) => return Err(error),
            // Said once: a full disk stays full for a while.
            Err(error) if !failed => {
                eprintln!("{error}; nothing is changed meanwhile");
                failed = true;
            }
            Err(_) => {}
        }
        let took = look.elapsed();
        let record = driver.manager().record();
        let new: String = after(record, printed).map(|event| format!("{event}\n")).collect();
        printed = record.next_event;
        // A closed log keeps nobody from being managed.
        let _ = output::print(&new);
        std::thread::sleep(TICK.max(REST_OVER_LOOK * took));
    }
    Ok(())
}

fn after(record: &ManagerRecord, number: u64) -> impl Iterator<Item = &PoolEvent> {
    record.events.iter().filter(move |event| event.number >= number)
}

/// The limits of the command line, or the defaults.
///
/// # Errors
/// They contradict each other.
pub fn limits(arguments: &PeerLimitArguments) -> Result<PeerLimits, CommandError> {
    let defaults = ManagerSettings::default();
    let mut limits = defaults.limits;
    for (said, limit) in
        [(arguments.quota_min, &mut limits.quota_min_percent), (arguments.quota_max, &mut limits.quota_max_percent)]
    {
        *limit = said.unwrap_or(*limit);
    }
    for (said, limit) in
        [(arguments.memory_min, &mut limits.memory_min_bytes), (arguments.memory_max, &mut limits.memory_max_bytes)]
    {
        *limit = said.unwrap_or(*limit);
    }
    limits.nodes_max = arguments.nodes_max.map_or(limits.nodes_max, usize::from);
    ManagerSettings { limits, ..defaults }.check().map_err(CommandError::new)?;
    Ok(limits)
}

/// The settings of the command line.
fn settings(arguments: &PoolManageArguments) -> Result<ManagerSettings, CommandError> {
    let mut settings = ManagerSettings { limits: limits(&arguments.limits)?, ..ManagerSettings::default() };
    for (said, limit) in
        [(arguments.hot, &mut settings.compute.hot_percent), (arguments.cold, &mut settings.compute.cold_percent)]
    {
        *limit = said.unwrap_or(*limit);
    }
    for (said, limit) in [
        (arguments.miss_us, &mut settings.memory.miss_us),
        (arguments.mib_price, &mut settings.memory.mib_us_per_second),
    ] {
        *limit = said.unwrap_or(*limit);
    }
    let compute = &mut settings.compute;
    compute.queueing_percent = compute.queueing_percent.max(compute.cold_percent.saturating_add(1));
    if let Some(seconds) = arguments.storage_idle {
        settings.storage.idle_for = Duration::from_secs(seconds);
    }
    if let Some(seconds) = arguments.calm {
        let calm = Duration::from_secs(seconds);
        (settings.compute.cold_for, settings.compute.down_pause) = (calm, calm);
    }
    settings.check().map_err(CommandError::new)?;
    Ok(settings)
}

/// Prints what the manager did.
pub async fn events(arguments: &PoolEventsArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    instance::expect_network(dir)?;
    let mut from = 0;
    let mut signals = StopSignals::listen()?;
    loop {
        let record = record(dir)?;
        let mut text = String::new();
        for event in after(&record, from) {
            text += &match arguments.json {
                true => format!("{}\n", serde_json::to_string(event).map_err(CommandError::new)?),
                false => shown(event),
            };
        }
        if text.is_empty() && from == 0 && !arguments.follow && !arguments.json {
            text += "nothing has happened yet\n";
        }
        output::print(&text)?;
        from = record.next_event;
        if !arguments.follow {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW) => {}
            () = signals.received() => return Ok(()),
        }
    }
}

fn shown(event: &PoolEvent) -> String {
    let PoolEvent { peer, seen, done, why, .. } = event;
    format!("{} {peer}: {done}\n         seen: {seen}\n         because {why}\n", clock(event.unix_ms))
}

/// The time of the day, in UTC.
fn clock(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_was_seen_what_was_done_and_why() {
        let event = PoolEvent {
            number: 3,
            unix_ms: 86_400_000 * 3 + 3_661_000,
            peer: "org1".to_owned(),
            seen: "1 nodes use 95 of 100 %".to_owned(),
            done: "launch compute-org1-2".to_owned(),
            why: "it is at 95 %".to_owned(),
        };
        let expected = "01:01:01 org1: launch compute-org1-2\n         seen: 1 nodes use 95 of 100 %\n         because it is at 95 %\n";
        assert_eq!(shown(&event), expected);
    }
}
