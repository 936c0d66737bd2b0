//! Runs the manager of a measured network as a process, and reads its record.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::rt::CancellationToken;
use manager::{ManagerRecord, NodeOrigin, PoolEvent, read_record};

use crate::command::heddle;
use crate::failure::CommandError;

/// Time limit for the record to satisfy a condition.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

/// A manager. Dropping it kills the process, which changes nothing in the network.
pub struct ManagerProcess {
    child: Child,
    folder: PathBuf,
}

impl ManagerProcess {
    /// Starts `heddle pool manage` with these arguments, for the network in a directory.
    pub fn start(network: &Path, arguments: &[String]) -> Result<ManagerProcess, CommandError> {
        let mut command = Command::new(heddle()?);
        command.args(["pool", "manage", "--bound", "--dir"]).arg(network).args(arguments);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = silent.spawn().map_err(CommandError::new)?;
        Ok(ManagerProcess { child, folder: network.join("manager") })
    }

    /// The manager's record, which is empty before the first action.
    pub fn record(&self) -> Result<ManagerRecord, CommandError> {
        Ok(read_record(&self.folder).map_err(CommandError::new)?.unwrap_or_default())
    }

    /// Waits until the record satisfies `is_so`.
    pub async fn recorded(
        &mut self,
        what: &str,
        stop: &CancellationToken,
        is_so: impl Fn(&ManagerRecord) -> bool,
    ) -> Result<ManagerRecord, CommandError> {
        let since = Instant::now();
        loop {
            let record = self.record()?;
            if is_so(&record) {
                return Ok(record);
            }
            if stop.is_cancelled() {
                return Err(CommandError::interrupted());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(CommandError::new(format!("the manager has ended ({status})")));
            }
            if since.elapsed() > PATIENCE {
                return Err(CommandError::new(format!("{what} within {} s: {record:?}", PATIENCE.as_secs())));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether a peer has only planned nodes, all at this quota, and no open action.
pub fn is_at_least(record: &ManagerRecord, peer: &str, quota_percent: u32) -> bool {
    record.peers.get(peer).is_some_and(|peer| {
        let least = |node: &manager::NodeRecord| {
            node.origin == NodeOrigin::Planned && node.quota_percent == Some(quota_percent)
        };
        peer.open.is_empty() && !peer.nodes.is_empty() && peer.nodes.values().all(least)
    })
}

/// The time of an event, by the clock of this process.
pub fn instant_of(event: &PoolEvent) -> Instant {
    let now_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let age = now_unix_ms.saturating_sub(event.unix_ms.into());
    Instant::now() - Duration::from_millis(u64::try_from(age).unwrap_or_default())
}
