//! Finds out whether a network's directory is in use, and by which process.
//!
//! The running process holds a lock on `LOCK` and has written its process ID into that file. The lock alone decides.
//! `endpoints.json` has the addresses as soon as the process listens, but the file remains when the process has ended.
//! If a network was planned for several hosts, none of its processes counts as running here.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use node::Endpoints;
use rustix::process::{Pid, Signal, kill_process};

use crate::exit;
use crate::failure::CommandError;

/// The file that the running process writes.
const ENDPOINTS: &str = "endpoints.json";
const POLL: Duration = Duration::from_millis(20);

/// Whether a directory holds a network.
pub fn exists(dir: &Path) -> bool {
    dir.join("genesis.block").exists()
}

/// Checks that a directory holds a network.
///
/// # Errors
/// It does not.
pub fn expect_network(dir: &Path) -> Result<(), CommandError> {
    if exists(dir) {
        return Ok(());
    }
    let dir = dir.display();
    Err(CommandError::new(format!("{dir} holds no network; make one with `heddle up --dir {dir}`")))
}

/// The endpoints of the network that runs in a directory; `None` when none runs there.
///
/// # Errors
/// There is no network in the directory, its processes run on hosts of their own, or its files cannot be read.
pub fn running(dir: &Path) -> Result<Option<Endpoints>, CommandError> {
    expect_network(dir)?;
    if is_planned(dir) {
        let message = format!(
            "the processes of the network in {} run on hosts of their own (`heddle plan`): run this command on those hosts, \
             with --node and the folder of a process if it has that option, or read the metrics page of each process",
            dir.display()
        );
        return Err(CommandError::with_code(exit::NOT_RUNNING, message));
    }
    if !dir.join(ENDPOINTS).exists() || !is_locked(dir)? {
        return Ok(None);
    }
    Ok(Some(Endpoints::load(dir)?))
}

/// Whether the processes of the network in a directory run on hosts of their own.
pub fn is_planned(dir: &Path) -> bool {
    Endpoints::load(dir).is_ok_and(|endpoints| endpoints.is_planned)
}

/// Fails if the network was planned for other hosts: its ledgers are there, and a network started here would be a
/// second one.
///
/// # Errors
/// Its processes run on hosts of their own.
pub fn expect_not_planned(dir: &Path) -> Result<(), CommandError> {
    if !is_planned(dir) {
        return Ok(());
    }
    let (dir, file) = (dir.display(), dir.join(ENDPOINTS));
    Err(CommandError::new(format!(
        "the processes of the network in {dir} run on hosts of their own (`heddle plan`), and starting it here would make a \
         second one with empty ledgers; choose another --dir, or remove {} if none of those processes will run again",
        file.display()
    )))
}

/// As [`running`], for commands that need a running network.
///
/// # Errors
/// No network runs in the directory.
pub fn expect_running(dir: &Path) -> Result<Endpoints, CommandError> {
    running(dir)?.ok_or_else(|| {
        let dir = dir.display();
        let message = format!("the network in {dir} is not running; start it with `heddle up --dir {dir}`");
        CommandError::with_code(exit::NOT_RUNNING, message)
    })
}

/// Whether a process holds the directory's lock.
fn is_locked(dir: &Path) -> Result<bool, CommandError> {
    let path = dir.join("LOCK");
    let failed = |error: std::io::Error| CommandError::new(format!("{}: {error}", path.display()));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let message = format!("{}: {error}; run this command as the user who runs the network", path.display());
            return Err(CommandError::new(message));
        }
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(std::fs::TryLockError::WouldBlock) => Ok(true),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Writes the ID of this process, which holds the lock of a directory, into the lock file. If that fails, for example
/// on a full disk, the network can still be found once it is ready.
#[allow(
    clippy::disallowed_methods,
    reason = "the file is the lock: it stays where it is, and nothing rests on what it says"
)]
pub fn sign_lock(dir: &Path) {
    let _ = std::fs::write(dir.join("LOCK"), format!("{}\n", std::process::id()));
}

/// The process that holds the lock of a directory, even before it has published its addresses. `None` if no process
/// holds it, and while an earlier release holds it.
///
/// # Errors
/// The lock cannot be read.
pub fn holder(dir: &Path) -> Result<Option<u32>, CommandError> {
    if !is_locked(dir)? {
        return Ok(None);
    }
    let path = dir.join("LOCK");
    let text =
        std::fs::read_to_string(&path).map_err(|error| CommandError::new(format!("{}: {error}", path.display())))?;
    Ok(text.trim().parse().ok())
}

/// Whether a process runs, and was started with this configuration file. Another process may have the ID of one that
/// has ended.
pub fn runs_with(process: u32, config: &Path) -> bool {
    let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    // It may have been given a path from its own directory.
    let start = std::fs::read_link(format!("/proc/{process}/cwd")).unwrap_or_default();
    let Ok(wanted) = std::fs::canonicalize(config) else { return false };
    let mut words = line.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
    words.any(|word| !word.is_empty() && std::fs::canonicalize(start.join(word)).is_ok_and(|path| path == wanted))
}

/// Asks a process to end.
///
/// # Errors
/// It has gone, or belongs to another user.
pub fn terminate(process: u32) -> std::io::Result<()> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))?;
    Ok(kill_process(pid, Signal::TERM)?)
}

/// Waits until no process holds the directory's lock. Returns false if that takes longer than `patience`.
///
/// # Errors
/// The lock cannot be read.
pub async fn released(dir: &Path, patience: Duration) -> Result<bool, CommandError> {
    let start = Instant::now();
    while is_locked(dir)? {
        if start.elapsed() > patience {
            return Ok(false);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(true)
}

/// Waits until the network that `process` starts in a directory is ready. `ended` returns whether the process has
/// ended. Returns `None` when the process has ended or `patience` has run out.
///
/// # Errors
/// `ended` fails.
pub async fn ready(
    dir: &Path,
    process: u32,
    patience: Duration,
    mut ended: impl FnMut() -> Result<bool, CommandError>,
) -> Result<Option<Endpoints>, CommandError> {
    let start = Instant::now();
    while start.elapsed() < patience {
        // Endpoints are written last, when everything listens; a half-written file is read again.
        if let Ok(endpoints) = Endpoints::load(dir)
            && endpoints.process == process
        {
            return Ok(Some(endpoints));
        }
        if ended()? {
            return Ok(None);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(None)
}
