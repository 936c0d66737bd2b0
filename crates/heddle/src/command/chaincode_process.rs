//! The processes of a chaincode: one for each organisation, as in Fabric.
//!
//! If one ends, it is started again after a pause, which doubles while it ends soon. In the end the processes get SIGTERM,
//! and are killed if they do not end.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use super::chaincode_build::{Build, ChaincodePlace};
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

/// One organisation's chaincode.
pub(super) struct Chaincode {
    build: Build,
    folder: PathBuf,
    place: ChaincodePlace,
    process: Option<Child>,
    started: Instant,
    /// The pause before the next restart.
    pause: Duration,
    /// When the process starts again, if it has ended.
    restart: Option<Instant>,
}

impl Chaincode {
    /// A chaincode that has not started yet.
    pub(super) fn new(build: &Build, folder: &Path, place: ChaincodePlace) -> Chaincode {
        let [pause, _] = RESTART_PAUSE;
        let (build, folder) = (build.clone(), folder.to_owned());
        Chaincode { build, folder, place, process: None, started: Instant::now(), pause, restart: None }
    }

    /// Starts the process.
    pub(super) fn start(&mut self) -> Result<(), CommandError> {
        let mut command = self.build.command(&self.folder, &self.place);
        let program = Path::new(command.get_program()).to_owned();
        self.process = Some(command.spawn().map_err(|error| CommandError::about(&program, error))?);
        self.started = Instant::now();
        Ok(())
    }

    /// Waits until the chaincode's port answers.
    pub(super) async fn wait_until_it_answers(&mut self) -> Result<(), CommandError> {
        let (started, address) = (Instant::now(), self.place.address);
        while tokio::net::TcpStream::connect(address).await.is_err() {
            if let Some(status) = self.ended() {
                return Err(CommandError::new(format!(
                    "the chaincode ended before it listened: {status}{}",
                    self.hint()
                )));
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(CommandError::new(format!("the chaincode does not listen at {address}{}", self.hint())));
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    /// What a chaincode in this language must do to listen.
    fn hint(&self) -> &'static str {
        match self.build.language() {
            "Go" => {
                "; in Go, `Start` of the contract API listens from version 2.2 on, and a chaincode that calls shim.Start must \
                 serve at CHAINCODE_SERVER_ADDRESS instead (shim.ChaincodeServer)"
            }
            _ => "",
        }
    }

    /// How the process has ended, if it has.
    fn ended(&mut self) -> Option<String> {
        let status = match self.process.as_mut()?.try_wait() {
            Ok(None) => return None,
            Ok(Some(status)) => status.to_string(),
            Err(error) => error.to_string(),
        };
        self.process = None;
        Some(status)
    }

    /// Starts the process again if it has ended and the pause is over.
    fn tend(&mut self) -> Result<(), CommandError> {
        if let Some(status) = self.ended() {
            let [shortest, longest] = RESTART_PAUSE;
            let pause = if self.started.elapsed() > STEADY_TIME { shortest } else { self.pause };
            let (msp_id, after) = (&self.place.msp_id, pause.as_millis());
            eprintln!("heddle: the chaincode of {msp_id} ended: {status}; it starts again in {after} ms");
            self.pause = (2 * pause).min(longest);
            self.restart = Some(Instant::now() + pause);
        }
        if self.restart.is_some_and(|due| due <= Instant::now()) {
            self.restart = None;
            self.start()?;
        }
        Ok(())
    }
}

impl Drop for Chaincode {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
        }
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
    for process in chaincodes.iter().filter_map(|chaincode| chaincode.process.as_ref()) {
        if let Some(pid) = rustix::process::Pid::from_raw(process.id() as i32) {
            // If this fails, it has ended.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
    }
    let asked = Instant::now();
    for chaincode in chaincodes {
        while chaincode.process.is_some() && asked.elapsed() < STOP_TIMEOUT {
            chaincode.ended();
            tokio::time::sleep(POLL).await;
        }
        if let Some(process) = &mut chaincode.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
