//! `heddle up --elastic`: runs the manager beside an isolated network.
//!
//! 1. If cgroups can be made, each compute node starts with the least quota, and the manager changes it from there. The
//!    network's settings file does not have this quota: a later start without `--elastic` has none.
//! 2. The manager is a separate process. If it ends, it is restarted; the network serves without it meanwhile.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use manager::PeerLimits;
use node::HeddleConfig;

use super::pool::{folder, local};
use crate::cli::pool::PeerLimitArguments;
use crate::failure::CommandError;
use crate::instance;

/// How often the manager's process is polled.
const TICK: Duration = Duration::from_millis(100);
/// The pause before it is started again.
const PAUSE: Duration = Duration::from_secs(1);
/// Time limit for its end: it executes one action at most.
const STOP_TIMEOUT: Duration = Duration::from_secs(12);

/// The settings of an elastic network: those of the configuration, with quotas to start from.
pub fn settings(config: &HeddleConfig, limits: &PeerLimits) -> HeddleConfig {
    let mut config = config.clone();
    if config.pool.compute_cpu_percent == 0 && local::can_have_quotas() {
        config.pool.compute_cpu_percent = limits.quota_min_percent;
    }
    config
}

/// What the banner of an elastic network says in addition.
pub fn advice(dir: &Path) -> String {
    let mut text = format!("  heddle pool top --dir {}\n", dir.display());
    if !local::can_have_quotas() {
        text += "\nNo cgroup can be made here: compute nodes have no quotas, and peers are scaled by nodes alone.\n";
    }
    text
}

/// The manager of a network. Dropping it kills the process, which changes nothing in the network.
pub struct ManagerProcess {
    dir: PathBuf,
    /// Its further arguments.
    limits: Vec<String>,
    child: Option<Child>,
    again: Instant,
}

impl ManagerProcess {
    /// The manager of the network in a directory; it starts when it is watched.
    pub fn new(dir: &Path, limits: &PeerLimitArguments) -> ManagerProcess {
        ManagerProcess { dir: dir.to_owned(), limits: limits.command_line(), child: None, again: Instant::now() }
    }

    /// Starts the manager, and starts it again whenever it ends, for ever.
    pub async fn watch(&mut self) -> std::convert::Infallible {
        loop {
            let now = Instant::now();
            match &mut self.child {
                None if now >= self.again => match self.spawn() {
                    Ok(child) => self.child = Some(child),
                    Err(failure) => {
                        eprintln!("{}", failure.message().unwrap_or_default());
                        self.again = now + PAUSE;
                    }
                },
                None => {}
                Some(child) => {
                    if let Ok(Some(status)) = child.try_wait() {
                        eprintln!(
                            "the manager has ended ({status}) and is started again; the network serves without it"
                        );
                        (self.child, self.again) = (None, now + PAUSE);
                    }
                }
            }
            tokio::time::sleep(TICK).await;
        }
    }

    fn spawn(&self) -> Result<Child, CommandError> {
        let folder = folder(&self.dir);
        let log = folder.join("heddle.log");
        let failed = |error: std::io::Error| CommandError::new(format!("the manager cannot be started: {error}"));
        base::durable::create_folder(&folder).map_err(failed)?;
        let open = || OpenOptions::new().create(true).append(true).open(&log);
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.args(["pool", "manage", "--bound", "--dir"]).arg(&self.dir).args(&self.limits);
        command.process_group(0).stdin(Stdio::null());
        command.stdout(open().map_err(failed)?).stderr(open().map_err(failed)?);
        command.spawn().map_err(failed)
    }

    /// Ends the manager.
    pub async fn stop(mut self) {
        let Some(child) = &mut self.child else { return };
        let _ = instance::terminate(child.id());
        let asked = Instant::now();
        while matches!(child.try_wait(), Ok(None)) && asked.elapsed() < STOP_TIMEOUT {
            tokio::time::sleep(TICK).await;
        }
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
