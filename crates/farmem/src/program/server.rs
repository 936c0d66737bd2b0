//! The server of programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use base::rt;
use farmem_control::{SECRET_VARIABLE, SOCKET_VARIABLE};

use super::attach::attach;
use super::memory::pause;
use super::orphan::Orphans;
use super::profile::AccessProfile;
use super::registry::{ProgramServerConfig, ProgramStats, Registry, start_thread};
use super::socket::Listener;
use crate::error::Error;
use crate::kernel::userfault::UserFaults;
use crate::region::new_table;
use crate::report;
use crate::table::RegionStats;

/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// For how long programs may take to end that are killed.
const END_MAX: Duration = Duration::from_secs(10);
/// Programs that connect at the same time; one more has to try again.
const HANDSHAKES_MAX: usize = 64;

/// Serves programs that run with the library `libheddle_farmem.so`. See [the module](super).
pub struct ProgramServer {
    registry: Arc<Registry>,
    socket: String,
    listener: Arc<Listener>,
    listening: Option<JoinHandle<()>>,
}

impl ProgramServer {
    /// Listens for programs.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`] on a machine that does not allow it, [`Error::Config`], [`Error::System`].
    pub fn start(config: ProgramServerConfig) -> Result<ProgramServer, Error> {
        // Each program gets such a table. What is wrong with the sizes is said now.
        new_table(config.region_bytes, config.budget_bytes)?;
        report::start()?;
        UserFaults::open()?.check_moves()?;
        let socket = format!("heddle-farmem-{}-{:016x}", std::process::id(), rt::random_u64());
        let listener = Listener::new(&socket);
        let listener = Arc::new(listener.map_err(|error| Error::from_io("cannot listen for programs", &error))?);
        let registry = Registry::new(config);
        let (own, from) = (Arc::clone(&registry), Arc::clone(&listener));
        let orphans = Arc::clone(&registry.orphans);
        start_thread("farmem-orphans", move || Orphans::run(&orphans))?;
        let listening = start_thread("farmem-programs", move || listen(&own, &from))?;
        Ok(ProgramServer { registry, socket, listener, listening: Some(listening) })
    }

    /// The variables that a program needs in its environment, beside `LD_PRELOAD` with the library.
    pub fn variables(&self) -> [(&'static str, String); 2] {
        let secret = self.registry.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        [(SOCKET_VARIABLE, self.socket.clone()), (SECRET_VARIABLE, secret)]
    }

    /// The programs that are served now.
    pub fn programs(&self) -> Vec<ProgramStats> {
        self.registry.programs().iter().map(|served| served.stats()).collect()
    }

    /// Whether nobody is left who needs this server.
    pub fn is_idle(&self) -> bool {
        self.registry.programs().is_empty() && self.registry.orphans.count() == 0
    }

    /// How many programs have connected so far; children of forks do not count.
    pub fn connected(&self) -> u64 {
        self.registry.connected.load(Ordering::Relaxed)
    }

    /// Which code has made remote accesses so far, in all programs, children of forks included. `None` without
    /// [`ProgramServerConfig::profile`].
    pub fn profile(&self) -> Option<AccessProfile> {
        self.registry.collector.as_ref().map(|collector| collector.profile())
    }

    /// The counts of all programs so far, those of children that were forked included.
    pub fn totals(&self) -> RegionStats {
        let mut sum = *self.registry.ended();
        self.programs().iter().for_each(|program| sum.add(&program.region));
        sum
    }
}

impl Drop for ProgramServer {
    /// Ends the programs that are left, whose faults nobody would serve.
    fn drop(&mut self) {
        self.registry.is_stopping.store(true, Ordering::Release);
        self.listener.shut_down();
        let start = rt::now();
        // Some may be about to begin; children of forks connect a little later.
        while !self.registry.programs().is_empty() && start.elapsed() < END_MAX {
            self.registry.programs().iter().for_each(|served| served.kill());
            pause(ACCEPT_PAUSE);
        }
        if let Some(listening) = self.listening.take() {
            // A panic of the thread has been printed.
            let _ = listening.join();
        }
    }
}

/// Welcomes programs until the server stops.
fn listen(registry: &Arc<Registry>, listener: &Listener) {
    let handshakes = Arc::new(());
    while !registry.is_stopping.load(Ordering::Acquire) {
        let Ok(socket) = listener.accept() else {
            // Out of descriptors, or stopping.
            pause(ACCEPT_PAUSE);
            continue;
        };
        if Arc::strong_count(&handshakes) > HANDSHAKES_MAX {
            continue;
        }
        let (own, place) = (Arc::clone(registry), Arc::clone(&handshakes));
        let started = start_thread("farmem-program", move || {
            if let Err(error) = attach(&own, socket, place) {
                report::error(format!("far memory: {error}"));
            }
        });
        if let Err(error) = started {
            report::error(format!("far memory: {error}"));
        }
    }
}
