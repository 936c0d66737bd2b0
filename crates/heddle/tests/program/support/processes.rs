//! The processes of a network: finding, signalling and awaiting them, and starting those that were planned.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use node::{Endpoints, ProcessRole, Ready};
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a process to be restarted and ready, on a busy machine.
pub const RESTART_TIMEOUT: Duration = Duration::from_secs(60);

pub fn send(process: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(process).expect("a process's number")).expect("not zero");
    // It may have ended by itself because another process has.
    let _ = kill_process(pid, signal);
}

pub fn processes(dir: &Path) -> Vec<Ready> {
    Endpoints::load(dir).expect("the network has said where it is").processes
}

/// Waits until a killed process is back.
pub async fn back(dir: &Path, killed: &Ready) {
    let start = Instant::now();
    loop {
        let known = Endpoints::load(dir).map(|endpoints| endpoints.processes).unwrap_or_default();
        if known.iter().any(|process| process.name == killed.name && process.process != killed.process) {
            return;
        }
        assert!(start.elapsed() < RESTART_TIMEOUT, "{} is not started again", killed.name);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The process of one role. It is killed when this is dropped.
pub struct Role {
    child: std::process::Child,
    folder: PathBuf,
}

impl Role {
    /// Starts the role and waits until it is ready.
    pub fn start(role: ProcessRole, folder: &Path) -> Role {
        Role::spawn(role, folder, true)
    }

    /// Starts the role.
    pub fn begin(role: ProcessRole, folder: &Path) -> Role {
        Role::spawn(role, folder, false)
    }

    fn spawn(role: ProcessRole, folder: &Path, is_awaited: bool) -> Role {
        let config = folder.join("node.toml").display().to_string();
        let mut command = super::heddle(&["node", role.name(), "--bound", "--config", &config]);
        let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut started =
            Role { child: silent.spawn().expect("the program can be started"), folder: folder.to_path_buf() };
        if is_awaited {
            started.wait_until_ready();
        }
        started
    }

    pub fn wait_until_ready(&mut self) {
        let start = Instant::now();
        while Ready::load(&self.folder).is_none_or(|ready| ready.process != self.child.id()) {
            let ended = self.child.try_wait().expect("it is a child");
            assert!(ended.is_none() && start.elapsed() < RESTART_TIMEOUT, "{}: {ended:?}", self.folder.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
