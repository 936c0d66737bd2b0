//! The processes of one organisation's chaincode.
//!
//! A chaincode that listens is one process.
//!
//! A chaincode that connects to its peer finds a [`ChaincodeBridge`] there, which listens for peers in its place. Each call of
//! a peer gets a process of its own; one process waits while there is no call.
//!
//! If a process ends and is still needed, it is started again after a pause, which doubles while processes end soon. In the
//! end the processes get SIGTERM, and are killed if they do not end.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use gateway::chaincode::ChaincodeBridge;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::chaincode_build::{Build, ChaincodePlace};
use crate::cli::chaincode::ChaincodeRole;
use crate::failure::CommandError;

/// How long a chaincode may take until it can be called.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often processes are looked at.
const POLL: Duration = Duration::from_millis(50);
/// The pause before the first restart, and the longest one.
const RESTART_PAUSE: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(10)];
/// A chaincode that ran for this long is started again after the shortest pause.
const STEADY_TIME: Duration = Duration::from_secs(30);
/// How long a process that has lost its connection may take to end.
const UNCONNECTED_TIME: Duration = Duration::from_secs(5);

/// One organisation's chaincode.
pub(super) struct Chaincode {
    build: Build,
    folder: PathBuf,
    place: ChaincodePlace,
    processes: Vec<Child>,
    /// The last start of a process.
    started: Instant,
    /// The pause before the next restart.
    pause: Duration,
    /// When a process may start again, if one has ended.
    restart: Option<Instant>,
    /// As long as the chaincode may be one that connects.
    bridge: Option<ChaincodeBridge>,
    /// When all processes were last connected to the bridge.
    connected: Instant,
}

impl Chaincode {
    /// A chaincode that has not started yet.
    ///
    /// # Errors
    /// No port is free.
    pub(super) async fn new(
        build: &Build,
        folder: &Path,
        mut place: ChaincodePlace,
    ) -> Result<Chaincode, CommandError> {
        let bridge = match build.role {
            Some(ChaincodeRole::Server) => None,
            Some(ChaincodeRole::Client) | None => {
                let opened = ChaincodeBridge::open().await;
                Some(opened.map_err(|error| CommandError::new(format!("no chaincode can connect: {error}")))?)
            }
        };
        place.peer = bridge.as_ref().map(ChaincodeBridge::address);
        let ([pause, _], now) = (RESTART_PAUSE, Instant::now());
        Ok(Chaincode {
            build: build.clone(),
            folder: folder.to_owned(),
            place,
            processes: Vec::new(),
            started: now,
            pause,
            restart: None,
            bridge,
            connected: now,
        })
    }

    /// Starts a process.
    pub(super) fn start(&mut self) -> Result<(), CommandError> {
        let mut command = self.build.command(&self.folder, &self.place);
        let program = Path::new(command.get_program()).to_owned();
        self.processes.push(command.spawn().map_err(|error| CommandError::about(&program, error))?);
        self.started = Instant::now();
        Ok(())
    }

    /// Waits until the chaincode listens or has connected, and finds out which.
    pub(super) async fn wait_until_it_answers(&mut self) -> Result<(), CommandError> {
        let (started, address) = (Instant::now(), self.place.address);
        loop {
            // If only the bridge may listen there, another process must not be taken for the chaincode.
            let may_listen = self.build.role != Some(ChaincodeRole::Client);
            if may_listen && tokio::net::TcpStream::connect(address).await.is_ok() {
                self.bridge = None;
                return Ok(());
            }
            if let Some(bridge) = self.bridge.as_ref().filter(|bridge| bridge.has_registered()) {
                let opened = bridge.open_to_peers(address).await;
                return opened.map_err(|error| {
                    CommandError::new(format!("no peer can reach the chaincode at {address}: {error}"))
                });
            }
            if let Some(status) = self.ended() {
                let hint = self.hint();
                return Err(CommandError::new(format!(
                    "the chaincode ended before it could be called: {status}{hint}"
                )));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(CommandError::new(format!("the chaincode cannot be called{}", self.hint())));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// What a chaincode must do to be called.
    fn hint(&self) -> String {
        let server = || format!("listen at CHAINCODE_SERVER_ADDRESS ({})", self.place.address);
        let client = |peer| format!("connect to its peer ({peer}), as Fabric's shim does at its start");
        match (self.place.peer, self.build.role) {
            (None, _) => format!("; it must {}", server()),
            (Some(peer), Some(ChaincodeRole::Client)) => format!("; it must {}", client(peer)),
            (Some(peer), _) => format!("; it must {}, or {}", server(), client(peer)),
        }
    }

    /// Forgets processes that have ended. Returns how one of them has.
    fn ended(&mut self) -> Option<String> {
        let mut ended = None;
        self.processes.retain_mut(|process| match process.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended = Some(status.to_string());
                false
            }
            Err(error) => {
                ended = Some(error.to_string());
                false
            }
        });
        ended
    }

    /// How many processes there should be.
    fn wanted(&self) -> usize {
        self.bridge.as_ref().map_or(1, |bridge| bridge.calls().max(1))
    }

    /// Starts the processes that are missing, after the pause if one has ended.
    fn tend(&mut self) -> Result<(), CommandError> {
        self.end_unconnected();
        if let Some(status) = self.ended() {
            let [shortest, longest] = RESTART_PAUSE;
            let pause = if self.started.elapsed() > STEADY_TIME { shortest } else { self.pause };
            if self.processes.len() < self.wanted() {
                let (msp_id, after) = (&self.place.msp_id, pause.as_millis());
                eprintln!("heddle: the chaincode of {msp_id} ended: {status}; it starts again in {after} ms");
            }
            self.pause = (2 * pause).min(longest);
            self.restart = Some(Instant::now() + pause);
        }
        if self.processes.len() < self.wanted() && self.restart.is_none_or(|due| due <= Instant::now()) {
            self.restart = None;
            self.start()?;
        }
        Ok(())
    }

    /// Sends a signal to the processes.
    fn signal(&self, signal: Signal) {
        for pid in self.processes.iter().filter_map(|process| Pid::from_raw(process.id() as i32)) {
            // If this fails, they have ended.
            let _ = match self.build.has_process_group() {
                true => kill_process_group(pid, signal),
                false => kill_process(pid, signal),
            };
        }
    }

    /// Kills the processes if one of them has lost its connection and does not end. Nobody knows which one it is.
    fn end_unconnected(&mut self) {
        let Some(bridge) = &self.bridge else { return };
        if bridge.streams() >= self.processes.len() {
            self.connected = Instant::now();
        }
        let has_connected = self.connected > self.started;
        let time_max = if has_connected { UNCONNECTED_TIME } else { START_TIMEOUT };
        if self.started.max(self.connected).elapsed() > time_max {
            eprintln!("heddle: the chaincode of {} is not connected and does not end; it is killed", self.place.msp_id);
            self.signal(Signal::KILL);
            self.started = Instant::now();
        }
    }
}

impl Drop for Chaincode {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Keeps chaincodes running; returns only if one cannot be started.
pub(super) async fn supervise(chaincodes: &mut [Chaincode]) -> CommandError {
    loop {
        for chaincode in chaincodes.iter_mut() {
            if let Err(error) = chaincode.tend() {
                return error;
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Ends chaincodes.
pub(super) async fn stop(chaincodes: &mut [Chaincode]) {
    chaincodes.iter().for_each(|chaincode| chaincode.signal(Signal::TERM));
    let asked = Instant::now();
    for chaincode in chaincodes {
        while !chaincode.processes.is_empty() && asked.elapsed() < STOP_TIMEOUT {
            chaincode.ended();
            tokio::time::sleep(POLL).await;
        }
        chaincode.signal(Signal::KILL);
        for process in &mut chaincode.processes {
            let _ = process.wait();
        }
    }
}
