//! Watches how much room the disk has.
//!
//! A disk that is full stops stores in the middle of their work; so new transactions are refused while there still is
//! room to finish what was taken. The room is looked at once a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base::rt::{self, Stop};
use gateway::service::Intake;

base::events! {
    /// Bytes that the disk of the data directory still takes.
    gauge DiskFreeBytes("heddle_disk_free_bytes");
}

const INTERVAL: Duration = Duration::from_secs(1);
/// As much more room than the minimum must there be before transactions are taken again, in eighths of it.
const SLACK_EIGHTHS: u64 = 1;

/// Closes `intake` while the disk of `path` has less than `free_bytes_min`; until `stop`.
pub(crate) async fn watch(path: PathBuf, free_bytes_min: u64, intake: Intake, stop: Stop) {
    loop {
        look(&path, free_bytes_min, &intake);
        if stop.or_stopped(rt::sleep(INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// Looks once.
pub(crate) fn look(path: &Path, free_bytes_min: u64, intake: &Intake) {
    // A disk that does not say is not refused for it: its errors will show.
    let Ok(disk) = rustix::fs::statvfs(path) else { return };
    let free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    DiskFreeBytes.set(i64::try_from(free_bytes).unwrap_or(i64::MAX));
    let was_closed = intake.problem().is_some();
    let needed =
        if was_closed { free_bytes_min.saturating_add(free_bytes_min / 8 * SLACK_EIGHTHS) } else { free_bytes_min };
    if free_bytes < needed {
        if !was_closed {
            tracing::error!(path = %path.display(), free_bytes, free_bytes_min, "the disk is nearly full; new transactions are refused");
        }
        intake.close(format!(
            "the disk is nearly full: {} MiB are free, {} MiB are needed; new transactions are refused until there is room",
            free_bytes >> 20,
            needed >> 20
        ));
    } else if was_closed {
        tracing::info!(path = %path.display(), free_bytes, "the disk has room again; new transactions are taken");
        intake.open();
    }
}
