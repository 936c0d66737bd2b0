//! Who is served, and by which threads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use base::rt;

use super::eviction::AgentEviction;
use super::memory::{ForkServer, ProgramMemory, ServedProgram, pause};
use super::orphan::{Orphan, Orphans, refuse_until_end};
use super::profile::{AccessCollector, ProfileConfig};
use crate::error::Error;
use crate::kernel::userfault::UserFaults;
use crate::pager::{PagerCore, PagerThreads};
use crate::pool_store::PoolStore;
use crate::report;
use crate::table::RegionStats;

/// Programs that are served at the same time, children of forks included.
const PROGRAMS_MAX: usize = 256;
/// For how long the child of a fork may be unknown that says it is one.
const CHILD_WAIT: Duration = Duration::from_secs(5);

/// What programs get.
pub struct ProgramServerConfig {
    /// Bytes of each program's far heap.
    pub region_bytes: u64,
    /// Bytes of it that may be resident, in each process; at least 256 KiB.
    pub budget_bytes: u64,
    /// Where the other pages are. Each program gets [a store of its own](PoolStore::another) beside it.
    pub store: PoolStore,
    /// Whether, and how, it is sampled which code makes remote accesses ([`ProgramServer::profile`](super::ProgramServer::profile)).
    pub profile: Option<ProfileConfig>,
}

/// One program that is served, or the child of a fork of one.
#[derive(Clone, Debug)]
pub struct ProgramStats {
    /// Its name, as the kernel knows it.
    pub name: String,
    /// The number of its process; `None` for a child that has not connected yet.
    pub process: Option<u32>,
    /// Counts of its far heap.
    pub region: RegionStats,
}

/// The programs that one server serves.
pub(super) struct Registry {
    own: Weak<Registry>,
    pub(super) config: ProgramServerConfig,
    pub(super) secret: [u8; 16],
    /// If remote accesses are profiled.
    pub(super) collector: Option<Arc<AccessCollector>>,
    programs: Mutex<Vec<Arc<Served>>>,
    /// Children of forks that have not connected yet, by the number of the fork.
    children: Mutex<BTreeMap<u64, Arc<Served>>>,
    pub(super) orphans: Arc<Orphans>,
    pub(super) connected: AtomicU64,
    /// The counts of programs that have ended.
    ended: Mutex<RegionStats>,
    pub(super) is_stopping: AtomicBool,
}

pub(super) struct Served {
    pub(super) memory: Arc<ProgramMemory>,
    pub(super) core: Arc<PagerCore>,
}

impl Served {
    pub(super) fn stats(&self) -> ProgramStats {
        ProgramStats {
            name: self.memory.name.clone(),
            process: self.memory.link.get().map(|link| link.number),
            region: self.core.table().stats(),
        }
    }

    pub(super) fn kill(&self) {
        if let Some(link) = self.memory.link.get() {
            link.signal_end();
        }
    }
}

impl Registry {
    pub(super) fn new(config: ProgramServerConfig) -> Arc<Registry> {
        let mut secret = [0; 16];
        rt::fill_random(&mut secret);
        let collector = config.profile.map(|profile| Arc::new(AccessCollector::new(profile)));
        Arc::new_cyclic(|own| Registry {
            own: Weak::clone(own),
            config,
            secret,
            collector,
            programs: Mutex::default(),
            children: Mutex::default(),
            orphans: Arc::default(),
            connected: AtomicU64::new(0),
            ended: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        })
    }

    pub(super) fn programs(&self) -> MutexGuard<'_, Vec<Arc<Served>>> {
        // Consistent between any two statements.
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn children(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Served>>> {
        // As above.
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn ended(&self) -> MutexGuard<'_, RegionStats> {
        // Sums, each of which is right by itself.
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves a new program until it ends.
    pub(super) fn serve(&self, program: ServedProgram) {
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.run(&program.into_served());
    }

    /// The child of a fork that has just connected.
    pub(super) fn take_child(&self, fork: u64) -> Option<Arc<Served>> {
        let start = rt::now();
        loop {
            // The lock is free during the pause: who inserts the child needs it.
            let found = self.children().remove(&fork);
            match found {
                Some(served) => return Some(served),
                None if start.elapsed() > CHILD_WAIT => return None,
                None => pause(Duration::from_millis(1)),
            }
        }
    }

    /// Serves a program until it ends.
    fn run(&self, served: &Arc<Served>) {
        self.programs().push(Arc::clone(served));
        let mut threads = PagerThreads::new();
        let path = AgentEviction::new(Arc::clone(&served.memory));
        if let Err(error) = threads.start(&served.core, Box::new(path)) {
            report::error(format!("far memory: {} cannot be served, and ends: {error}", served.memory.name));
            served.kill();
            served.core.stop();
        } else {
            threads.join();
        }
        // If it lives still, after a failure, it must not read zeros.
        refuse_until_end(&served.core.faults, served.memory.doorbell, &self.orphans);
        threads.join();
        self.ended().add(&served.core.table().stats());
        self.programs().retain(|other| !Arc::ptr_eq(other, served));
    }

    fn orphan(&self, child: ServedProgram) {
        self.orphans.add(Orphan { faults: child.faults, doorbell: child.memory.doorbell });
    }
}

impl ForkServer for Registry {
    fn next_fork(&self) -> u64 {
        rt::random_u64().max(1)
    }

    fn has_place(&self) -> bool {
        !self.is_stopping.load(Ordering::Acquire) && self.programs().len() < PROGRAMS_MAX
    }

    fn adopt(&self, fork: u64, child: ServedProgram) {
        let Some(own) = self.own.upgrade() else { return self.orphan(child) };
        let (sender, receiver) = std::sync::mpsc::channel::<Arc<Served>>();
        let started = start_thread("farmem-program", move || {
            if let Ok(served) = receiver.recv() {
                own.run(&served);
                own.children().remove(&fork);
            }
        });
        if let Err(error) = started {
            report::error(format!("far memory: the child of a fork of {} is not served: {error}", child.memory.name));
            return self.orphan(child);
        }
        let served = child.into_served();
        self.children().insert(fork, Arc::clone(&served));
        // The thread waits for it.
        let _ = sender.send(served);
    }

    fn refuse(&self, parent: &ProgramMemory, child: UserFaults) {
        report::error(format!(
            "far memory: {} has forked without notice, so the child has no far memory: its accesses are errors",
            parent.name
        ));
        self.orphans.add(Orphan { faults: child, doorbell: parent.doorbell });
    }
}

impl ServedProgram {
    fn into_served(self) -> Arc<Served> {
        let ServedProgram { memory, faults, table } = self;
        let (home, store) = (Arc::clone(&memory), Arc::clone(&memory.store));
        let core = Arc::new(PagerCore::new(memory.name.clone(), table, faults, home, store, None));
        Arc::new(Served { memory, core })
    }
}

#[allow(clippy::disallowed_methods)] // These threads block in the kernel, and there is no simulation of page faults.
pub(super) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map_err(|error| Error::from_io("cannot start a thread of far memory", &error))
}
