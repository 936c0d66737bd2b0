//! Backups that many groups share (Sift, section 5.2): a few processors watch all of them, and any of these takes over a group
//! whose coordinator is gone.
//!
//! ```text
//!   group 1   coordinator ♥            ┐
//!   group 2   coordinator ✝  ◀─────────┤ BackupPool: watches 1, 2, 3 …, has B processors
//!   group 3   coordinator ♥            ┘
//! ```
//!
//! 1. Watch: each group has a [`Standby`] that reads sparingly, about one read of 32 bytes a heartbeat. Watching needs no processor
//!    of the pool.
//! 2. A group that was silent for the election time-out waits for a processor, in the order in which groups fell silent, and
//!    is said to wait ([`GroupState::Waiting`]). It is listened to meanwhile: when somebody else has taken it over, a backup of
//!    its own or another pool, it waits no more.
//! 3. With a processor the pool stands for election, once. Who is not elected gives the processor back, backs off and watches
//!    again, so that a group that cannot be taken over keeps none from the others.
//! 4. Whoever has taken over serves until its coordinator ends. The processor is that group's until then, and the pool's again
//!    afterwards. What was lost with a machine is replaced by [`BackupPool::provision`].
//! 5. A group whose memory is lost or corrupt is given up, and says so ([`GroupState::Failed`]); the others go on.
//!
//! Several pools may watch the same groups: elections decide, as among any standbys. A pool has no part in what is safe, so that
//! nothing here can lose or change what was committed.
//!
//! Invariants:
//! * Takeovers under way and coordinators together are never more than the pool's processors.
//! * Whoever does not coordinate any more has given its processor back.
//! * A group that is silent and has no processor is waiting, for all to see.
//! * Bounded: groups ([`GROUPS_MAX`]), processors ([`PROCESSORS_MAX`]).
//!
//! Left to others: which machines the processors are, and having more of them started.

use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::rt::sync::{Permit, Semaphore};
use base::rt::{self, Instant, Stop, Task};
use base::{ErrorKind, rt::sync::Notify};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, select};

use crate::fault::{Mutant, mutant};
use crate::{Coordinator, Error, Group, GroupId, Standby, Term};

/// Groups of one pool.
pub const GROUPS_MAX: usize = 4096;
/// Processors of one pool.
pub const PROCESSORS_MAX: usize = 4096;

/// What is done with a group's coordinator, until it has ended; gives the reason.
pub type Serve = Arc<dyn Fn(Coordinator) -> BoxFuture<'static, Error> + Send + Sync>;

/// A group that a pool watches.
#[derive(Clone)]
pub struct Watched {
    /// The group.
    pub group: Group,
    /// What its coordinator is for.
    pub serve: Serve,
}

/// What a pool is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// The number that its coordinators bear in heartbeats, for logs.
    pub number: u64,
    /// Groups that it can coordinate at once.
    pub processors: usize,
}

/// How a pool is with one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupState {
    /// Somebody else coordinates it, as far as is known.
    Watched,
    /// Nobody coordinates it, and no processor is free.
    Waiting {
        /// Since when.
        since: Instant,
    },
    /// It is being taken over.
    TakingOver,
    /// It is coordinated here.
    Coordinated {
        /// Under this term.
        term: Term,
    },
    /// It cannot be taken over by anybody.
    Failed(Error),
}

/// How a pool is.
#[derive(Clone, Debug)]
pub struct PoolStatus {
    /// Processors.
    pub processors: usize,
    /// Those that nothing is done with.
    pub free: usize,
    /// The groups, in the order in which they were given.
    pub groups: Vec<(GroupId, GroupState)>,
}

impl PoolStatus {
    /// Groups that nobody coordinates, for want of a processor.
    pub fn waiting(&self) -> usize {
        self.groups.iter().filter(|(_, state)| matches!(state, GroupState::Waiting { .. })).count()
    }
}

/// Processors that stand by for many groups. Dropping it ends what it does; its coordinators end as if they had crashed.
pub struct BackupPool {
    shared: Arc<Shared>,
    tasks: Mutex<Vec<Task<()>>>,
}

struct Shared {
    number: u64,
    free: Semaphore,
    state: Mutex<State>,
    /// Some group's state is another.
    changed: Notify,
    stop: Stop,
}

struct State {
    processors: usize,
    groups: Vec<(GroupId, GroupState)>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, which: usize, state: GroupState) {
        self.lock().groups[which].1 = state;
        self.changed.notify_waiters();
    }
}

impl BackupPool {
    /// Begins to watch.
    ///
    /// # Errors
    /// [`Error::Invalid`] for groups that make no sense, for one that is named twice, and for too many of anything.
    pub fn start(groups: Vec<Watched>, options: PoolOptions) -> Result<BackupPool, Error> {
        let PoolOptions { number, processors } = options;
        if groups.len() > GROUPS_MAX || processors > PROCESSORS_MAX {
            return Err(Error::Invalid(format!(
                "a pool of {processors} processors for {} groups: at most {PROCESSORS_MAX} and {GROUPS_MAX}",
                groups.len()
            )));
        }
        let mut standbys = Vec::with_capacity(groups.len());
        let mut states: Vec<(GroupId, GroupState)> = Vec::with_capacity(groups.len());
        for Watched { group, serve } in groups {
            if states.iter().any(|(id, _)| *id == group.id) {
                return Err(Error::Invalid(format!("group {} is named twice", group.id.0)));
            }
            states.push((group.id, GroupState::Watched));
            standbys.push((Standby::new(group, number)?, serve));
        }
        let shared = Arc::new(Shared {
            number,
            free: Semaphore::new(processors),
            state: Mutex::new(State { processors, groups: states }),
            changed: Notify::new(),
            stop: Stop::new(),
        });
        let tasks = standbys.into_iter().enumerate().map(|(which, (standby, serve))| {
            let shared = Arc::clone(&shared);
            rt::spawn(async move {
                let keeping = keep(&shared, which, standby, &serve).boxed();
                shared.stop.or_stopped(keeping).await;
            })
        });
        let tasks = Mutex::new(tasks.collect());
        Ok(BackupPool { shared, tasks })
    }

    /// Adds processors; groups that wait get them at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more than [`PROCESSORS_MAX`].
    pub fn provision(&self, count: usize) -> Result<(), Error> {
        let mut state = self.shared.lock();
        let processors = state.processors.saturating_add(count);
        if processors > PROCESSORS_MAX {
            return Err(Error::Invalid(format!("a pool of {processors} processors: at most {PROCESSORS_MAX}")));
        }
        state.processors = processors;
        drop(state);
        self.shared.free.add_permits(count);
        Ok(())
    }

    /// How it is.
    pub fn status(&self) -> PoolStatus {
        let state = self.shared.lock();
        let (processors, groups) = (state.processors, state.groups.clone());
        PoolStatus { processors, free: self.shared.free.available().min(processors), groups }
    }

    /// Completes when what it says of some group is not what it was before. Ask [`BackupPool::status`] again after a while all
    /// the same: what changes between two calls is not told.
    pub async fn changed(&self) {
        self.shared.changed.notified().await;
    }

    /// Ends it. On return none of its tasks runs.
    pub async fn stop(&self) {
        self.shared.stop.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // One that panicked has ended too.
            let _ = task.await;
        }
    }
}

impl Drop for BackupPool {
    fn drop(&mut self) {
        self.shared.stop.stop();
    }
}

impl fmt::Debug for BackupPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackupPool({}, {:?})", self.shared.number, self.status())
    }
}

/// Steps 1 to 5 for one group, until it is given up.
async fn keep(shared: &Shared, which: usize, mut standby: Standby, serve: &Serve) {
    loop {
        shared.set(which, GroupState::Watched);
        standby.watch_sparingly().await;
        let Some(processor) = processor(shared, which, &mut standby).await else { continue };
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
            Err(error) => error,
        };
        match mutant(Mutant::KeepProcessor) {
            true => processor.forget(),
            false => drop(processor),
        }
        if matches!(ended.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) {
            tracing::error!(pool = shared.number, error = %ended, "a group is given up");
            return shared.set(which, GroupState::Failed(ended));
        }
        tracing::debug!(pool = shared.number, error = %ended, "a processor is back in its pool");
        shared.set(which, GroupState::Watched);
        standby.back_off().await;
    }
}

/// Step 2: a processor for a silent group; none when somebody was heard of first.
async fn processor(shared: &Shared, which: usize, standby: &mut Standby) -> Option<Permit> {
    if mutant(Mutant::TakeOverUnprovisioned) {
        return Some(Semaphore::new(1).acquire().await);
    }
    // Whoever waits already comes first: a semaphore is fair, but for those who only try.
    if let Some(processor) = shared.free.try_acquire() {
        return Some(processor);
    }
    shared.set(which, GroupState::Waiting { since: rt::now() });
    match select(pin!(shared.free.acquire()), pin!(standby.hear())).await {
        Either::Left((processor, _)) => Some(processor),
        Either::Right(((), _)) => None,
    }
}
