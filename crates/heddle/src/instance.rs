//! Whether a network's directory is in use, and by which process.
//!
//! The truth is the lock that the running process holds on `LOCK`, in which that process has written its number;
//! `endpoints.json` says where it listens once it does, but stays behind when the process ends. Of a network that was planned for several hosts nothing runs here.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use node::Endpoints;
use rustix::process::{Pid, Signal, kill_process};

use crate::cli::exit;
use crate::command;
use crate::failure::Failure;

/// As the running process writes it.
const ENDPOINTS: &str = "endpoints.json";
const POLL: Duration = Duration::from_millis(20);

/// The endpoints of the network that runs in a directory; `None` when none runs there.
///
/// # Errors
/// There is no network in the directory, its processes run on hosts of their own, or its files cannot be read.
pub fn running(dir: &Path) -> Result<Option<Endpoints>, Failure> {
    command::expect_network(dir)?;
    if is_planned(dir) {
        let message = format!(
            "the processes of the network in {} run on hosts of their own (`heddle plan`): ask there, where the command \
             has --node with the folder of a process, or read the page of metrics of each",
            dir.display()
        );
        return Err(Failure::with_code(exit::NOT_RUNNING, message));
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

/// That a network may be started here: one that was planned has its ledgers elsewhere, and would be there twice.
///
/// # Errors
/// Its processes run on hosts of their own.
pub fn expect_not_planned(dir: &Path) -> Result<(), Failure> {
    if !is_planned(dir) {
        return Ok(());
    }
    let (dir, file) = (dir.display(), dir.join(ENDPOINTS));
    Err(Failure::new(format!(
        "the processes of the network in {dir} run on hosts of their own (`heddle plan`), and here it would begin a second \
         time, with empty ledgers; choose another --dir, or remove {} if none of them will run again",
        file.display()
    )))
}

/// As [`running`], for commands that need a running network.
///
/// # Errors
/// No network runs in the directory.
pub fn expect_running(dir: &Path) -> Result<Endpoints, Failure> {
    running(dir)?.ok_or_else(|| {
        let dir = dir.display();
        let message = format!("the network in {dir} is not running; start it with `heddle up --dir {dir}`");
        Failure::with_code(exit::NOT_RUNNING, message)
    })
}

/// Whether a process holds the directory's lock.
fn is_locked(dir: &Path) -> Result<bool, Failure> {
    let path = dir.join("LOCK");
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", path.display()));
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            let message = format!("{}: {error}; ask as the user who runs the network", path.display());
            return Err(Failure::new(message));
        }
        Err(error) => return Err(failed(error)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(false),
        Err(std::fs::TryLockError::WouldBlock) => Ok(true),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Writes the number of this process, which holds the lock of a directory, into it. Where that fails, on a full disk say,
/// the network can still be found once it is ready.
#[allow(
    clippy::disallowed_methods,
    reason = "the file is the lock: it stays where it is, and nothing rests on what it says"
)]
pub fn sign_lock(dir: &Path) {
    let _ = std::fs::write(dir.join("LOCK"), format!("{}\n", std::process::id()));
}

/// The process that holds the lock of a directory, also before it has said where it listens. `None` where nobody does, and
/// while an earlier release holds it.
///
/// # Errors
/// The lock cannot be read.
pub fn holder(dir: &Path) -> Result<Option<u32>, Failure> {
    if !is_locked(dir)? {
        return Ok(None);
    }
    let path = dir.join("LOCK");
    let text = std::fs::read_to_string(&path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    Ok(text.trim().parse().ok())
}

/// Asks a process to end.
///
/// # Errors
/// It has gone, or belongs to somebody else.
pub fn terminate(process: u32) -> std::io::Result<()> {
    let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))?;
    Ok(kill_process(pid, Signal::TERM)?)
}

/// Waits until nobody holds the directory's lock. False when that has not come within `patience`.
///
/// # Errors
/// The lock cannot be read.
pub async fn released(dir: &Path, patience: Duration) -> Result<bool, Failure> {
    let start = Instant::now();
    while is_locked(dir)? {
        if start.elapsed() > patience {
            return Ok(false);
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(true)
}

/// Waits until the network that process `process` starts in a directory is ready. `ended` tells that the process has
/// ended instead. `None` when the process has ended or `patience` has run out.
///
/// # Errors
/// `ended` fails.
pub async fn ready(
    dir: &Path,
    process: u32,
    patience: Duration,
    mut ended: impl FnMut() -> Result<bool, Failure>,
) -> Result<Option<Endpoints>, Failure> {
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
