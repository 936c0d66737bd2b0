//! The processes of a network with `--isolate`: finding, signalling and awaiting them.

use std::path::Path;
use std::time::{Duration, Instant};

use node::{Endpoints, Ready};
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
