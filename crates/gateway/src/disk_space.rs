//! Refuses new transactions while a disk is nearly full.
//!
//! A full disk stops stores in the middle of their work. New transactions are therefore rejected while there is still
//! space to finish the accepted ones. The free space is checked once a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::service::TransactionIntake;
use base::rt::{self, CancellationToken};

base::events! {
    /// Free bytes on the disk of the data directory.
    gauge DiskFreeBytes("heddle_disk_free_bytes");
}

const INTERVAL: Duration = Duration::from_secs(1);
/// Transactions are accepted again when the free space exceeds the minimum by this many eighths of it.
const SLACK_EIGHTHS: u64 = 1;

/// Closes `intake` while the disk of `path` has less than `free_bytes_min` free, until `stop`.
pub async fn watch(path: PathBuf, free_bytes_min: u64, intake: TransactionIntake, stop: CancellationToken) {
    loop {
        look(&path, free_bytes_min, &intake);
        if stop.run_until_cancelled(rt::sleep(INTERVAL)).await.is_none() {
            return;
        }
    }
}

/// Checks once.
pub fn look(path: &Path, free_bytes_min: u64, intake: &TransactionIntake) {
    // If the free space is unknown, do not reject anything: errors of the disk will show.
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
