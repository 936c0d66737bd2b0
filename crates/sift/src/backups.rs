//! Backups that many groups share (Sift, section 5.2): one pool has a few CPU nodes and watches many groups. When the
//! coordinator of a group fails, any free CPU node of the pool takes the group over.
//!
//! ```text
//!   group 1   coordinator ♥            ┐
//!   group 2   coordinator ✝  ◀─────────┤ BackupPool: watches 1, 2, 3 …, has B CPU nodes
//!   group 3   coordinator ♥            ┘
//! ```
//!
//! 1. Watch: the pool has a [`Standby`] for each group. It reads sparingly, about one read of 32 bytes per heartbeat.
//!    Watching takes no CPU node from the pool.
//! 2. A group that was silent for the election time-out gets a free CPU node. If none is free, the group waits for one
//!    ([`GroupState::Waiting`]); groups are served in the order in which they fell silent. The pool keeps watching the
//!    waiting group: if a backup of the group's own, or another pool, takes the group over, the group stops waiting.
//! 3. With a CPU node the pool stands for election in the group, once. If it loses, it returns the CPU node, so that
//!    other groups can use it, backs off, and watches the group again.
//! 4. After a takeover the CPU node serves the group until its coordinator ends, and then returns to the pool.
//!    [`BackupPool::provision`] adds CPU nodes, for example to replace those of a machine that was lost.
//! 5. If the memory of a group is lost or corrupt, the pool gives the group up ([`GroupState::Failed`]) and goes on
//!    serving the others.
//!
//! Several pools may watch the same groups: an election decides which of them takes a group over, as among any
//! standbys. Safety rests on elections and fences alone, so a mistake in this module cannot lose or change committed
//! data.
//!
//! Invariants:
//! * Takeovers in progress and coordinators together never exceed the pool's CPU nodes.
//! * When a group's coordinator has ended, its CPU node is back in the pool.
//! * A silent group without a CPU node is reported as waiting.
//! * Bounded: groups ([`GROUPS_MAX`]), CPU nodes ([`CPU_NODES_MAX`]).
//!
//! Left to others: choosing the machines on which the CPU nodes run, and starting more CPU nodes.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::sync::{Semaphore, SemaphorePermit};
use base::rt::{self, CancellationToken, Instant, Task};
use base::{ErrorKind, rt::sync::Notify};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, select};

use crate::fault::{Mutant, mutant};
use crate::{Coordinator, Error, GroupId, SiftGroup, Standby, Term};

/// Groups of one pool.
pub const GROUPS_MAX: usize = 4096;
/// CPU nodes of one pool.
pub const CPU_NODES_MAX: usize = 4096;

/// Runs a group's coordinator until it has ended; returns the reason.
pub type ServeGroup = Arc<dyn Fn(Coordinator) -> BoxFuture<'static, ServeEnd> + Send + Sync>;

/// Why a coordinator, or the service on it, has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeEnd {
    /// What the pool should do: a group that ends with [`ErrorKind::Corrupt`] or [`ErrorKind::Rejected`] is given up.
    pub kind: ErrorKind,
    /// The error's text.
    pub reason: String,
}

impl From<Error> for ServeEnd {
    fn from(error: Error) -> ServeEnd {
        ServeEnd { kind: error.kind(), reason: error.to_string() }
    }
}

/// A group that a pool watches.
#[derive(Clone)]
pub struct WatchedGroup {
    /// The group.
    pub group: SiftGroup,
    /// Runs its coordinator.
    pub serve: ServeGroup,
}

/// Options of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackupPoolConfig {
    /// The number that its coordinators write into heartbeats, for logs.
    pub number: u64,
    /// CPU nodes of the pool: the groups that it can coordinate at once.
    pub cpu_nodes: usize,
}

/// The state of one group in a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupState {
    /// Another CPU node coordinates it, as far as the pool knows.
    Watched,
    /// It has no coordinator, and no CPU node of the pool is free.
    Waiting {
        /// Since when.
        since: Instant,
    },
    /// It is being taken over.
    TakingOver,
    /// This pool coordinates it.
    Coordinated {
        /// Under this term.
        term: Term,
    },
    /// No CPU node can take it over.
    Failed(ServeEnd),
}

/// The state of a pool.
#[derive(Clone, Debug)]
pub struct BackupPoolStatus {
    /// CPU nodes of the pool.
    pub processors: usize,
    /// CPU nodes that are idle.
    pub free: usize,
    /// The groups, in the order of [`BackupPool::start`].
    pub groups: Vec<(GroupId, GroupState)>,
}

impl BackupPoolStatus {
    /// Groups without a coordinator that wait for a CPU node.
    pub fn waiting(&self) -> usize {
        self.groups.iter().filter(|(_, state)| matches!(state, GroupState::Waiting { .. })).count()
    }
}

/// A pool of CPU nodes that are backups for many groups. Dropping it ends its work; its coordinators end as if they had
/// crashed.
pub struct BackupPool {
    shared: Arc<BackupPoolCore>,
    tasks: Mutex<Vec<Task<()>>>,
}

struct BackupPoolCore {
    number: u64,
    free: Semaphore,
    state: Mutex<BackupPoolState>,
    /// Some group's state has changed.
    changed: Notify,
    stop: CancellationToken,
}

struct BackupPoolState {
    cpu_nodes: usize,
    groups: Vec<(GroupId, GroupState)>,
}

impl BackupPoolCore {
    fn lock(&self) -> MutexGuard<'_, BackupPoolState> {
        // The state is consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, which: usize, state: GroupState) {
        self.lock().groups[which].1 = state;
        self.changed.notify_waiters();
    }
}

impl BackupPool {
    /// Starts to watch.
    ///
    /// # Errors
    /// [`Error::Invalid`] for invalid groups, for a group that is named twice, and for too many groups or CPU nodes.
    pub fn start(groups: Vec<WatchedGroup>, options: BackupPoolConfig) -> Result<BackupPool, Error> {
        let BackupPoolConfig { number, cpu_nodes: processors } = options;
        if groups.len() > GROUPS_MAX || processors > CPU_NODES_MAX {
            return Err(Error::Invalid(format!(
                "a pool of {processors} processors for {} groups: at most {CPU_NODES_MAX} and {GROUPS_MAX}",
                groups.len()
            )));
        }
        let mut standbys = Vec::with_capacity(groups.len());
        let mut states: Vec<(GroupId, GroupState)> = Vec::with_capacity(groups.len());
        for WatchedGroup { group, serve } in groups {
            if states.iter().any(|(id, _)| *id == group.id) {
                return Err(Error::Invalid(format!("group {} is named twice", group.id.0)));
            }
            states.push((group.id, GroupState::Watched));
            standbys.push((Standby::new(group, number)?, serve));
        }
        let shared = Arc::new(BackupPoolCore {
            number,
            free: Semaphore::new(processors),
            state: Mutex::new(BackupPoolState { cpu_nodes: processors, groups: states }),
            changed: Notify::new(),
            stop: CancellationToken::new(),
        });
        let tasks = standbys.into_iter().enumerate().map(|(which, (standby, serve))| {
            let shared = Arc::clone(&shared);
            rt::spawn(async move {
                let keeping = back_up_group(&shared, which, standby, &serve).boxed();
                shared.stop.run_until_cancelled(keeping).await;
            })
        });
        let tasks = Mutex::new(tasks.collect());
        Ok(BackupPool { shared, tasks })
    }

    /// Adds CPU nodes; waiting groups get them at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`CPU_NODES_MAX`].
    pub fn provision(&self, count: usize) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let processors = state.cpu_nodes.saturating_add(count);
        if processors > CPU_NODES_MAX {
            return Err(Error::Invalid(format!("a pool of {processors} processors: at most {CPU_NODES_MAX}")));
        }
        state.cpu_nodes = processors;
        drop(state);
        self.shared.free.add_permits(count);
        Ok(())
    }

    /// The pool's state.
    pub fn status(&self) -> BackupPoolStatus {
        let state = self.shared.lock();
        let (processors, groups) = (state.cpu_nodes, state.groups.clone());
        BackupPoolStatus { processors, free: self.shared.free.available().min(processors), groups }
    }

    /// Completes when the state of some group has changed. Call [`BackupPool::status`] again after a while all the
    /// same: a change between two calls is not reported.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Ends it. On return none of its tasks runs.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A task that panicked has ended too.
            let _ = task.await;
        }
    }
}

impl Drop for BackupPool {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl fmt::Debug for BackupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackupPool({}, {:?})", self.shared.number, self.status())
    }
}

/// Steps 1 to 5 for one group, until it is given up.
async fn back_up_group(shared: &BackupPoolCore, which: usize, mut standby: Standby, serve: &ServeGroup) {
    loop {
        shared.set(which, GroupState::Watched);
        standby.watch_sparingly().await;
        let Some(processor) = acquire_cpu_node(shared, which, &mut standby).await else { continue };
        shared.set(which, GroupState::TakingOver);
        let outcome = match standby.elect().await {
            Ok(elected) => elected.recover().await,
            Err(error) => Err(error),
        };
        let ended = match outcome {
            Ok(coordinator) => {
                shared.set(which, GroupState::Coordinated { term: coordinator.term() });
                serve(coordinator).await
            }
            Err(error) => error.into(),
        };
        match mutant(Mutant::KeepProcessor) {
            true => processor.forget(),
            false => drop(processor),
        }
        if matches!(ended.kind, ErrorKind::Corrupt | ErrorKind::Rejected) {
            tracing::error!(pool = shared.number, error = %ended.reason, "a group is given up");
            return shared.set(which, GroupState::Failed(ended));
        }
        tracing::debug!(pool = shared.number, error = %ended.reason, "a processor is back in its pool");
        shared.set(which, GroupState::Watched);
        standby.back_off().await;
    }
}

/// Step 2: a CPU node for a silent group; `None` if the group was heard of first.
async fn acquire_cpu_node(shared: &BackupPoolCore, which: usize, standby: &mut Standby) -> Option<SemaphorePermit> {
    if mutant(Mutant::TakeOverUnprovisioned) {
        return Some(Semaphore::new(1).acquire().await);
    }
    // Groups that wait already come first: the semaphore is fair to waiters.
    if let Some(processor) = shared.free.try_acquire() {
        return Some(processor);
    }
    shared.set(which, GroupState::Waiting { since: rt::now() });
    match select(pin!(shared.free.acquire()), pin!(standby.observe())).await {
        Either::Left((processor, _)) => Some(processor),
        Either::Right(((), _)) => None,
    }
}
