//! The state that the parts of a session share: the view in force, its copies, and what is durable at all of them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::Epoch;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::sync::{Mutex as AsyncMutex, Notify};
use base::rt::{self, AbortOnDrop, CancellationToken};
use futures_util::future::join_all;
use storage::blocks::{Blocks, ChainTip};
use storage::node::{COPIES_MAX, View};
use storage::tables::Savepoint;
use storage::{Error, StateStore};

use crate::control::{CopyReport, OpenCopies, refuse};
use crate::limits::{REPEAT_MAX, REPEAT_PAUSE};
use crate::member::Member;
use crate::set::{CopySet, passes};

/// A session. It ends when its last user drops it.
pub(crate) struct Session {
    pub core: Arc<CopiesCore>,
    /// Changes the view. It ends with the session.
    _keeper: AbortOnDrop<()>,
}

impl Session {
    /// A session with the task that changes its views.
    pub fn new(core: Arc<CopiesCore>, keeper: AbortOnDrop<()>) -> Session {
        Session { core, _keeper: keeper }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.core.ended.cancel();
    }
}

pub(crate) struct CopiesCore {
    pub set: CopySet,
    pub channel: String,
    pub epoch: Epoch,
    state: Mutex<CopiesState>,
    /// The height and the header hash that were reported durable.
    durable_tip: Mutex<(u64, [u8; 32])>,
    pub durable: WatchSender<u64>,
    savepoint: Mutex<Savepoint>,
    savepoint_height: WatchSender<u64>,
    failure: OnceLock<Error>,
    pub failed: CancellationToken,
    /// Cancelled when the session is dropped.
    pub ended: CancellationToken,
    /// Held while a block is appended, and while a learner is attached.
    pub appending: AsyncMutex<()>,
    /// The number of the last write of committed private rows. Held during each such write.
    pub writing: AsyncMutex<u64>,
    pub wishes: Mutex<Vec<Wish>>,
    pub work: Notify,
}

/// The view and its copies.
pub(crate) struct CopiesState {
    /// The view in force.
    pub view: View,
    /// The highest number of a view that was attempted.
    pub attempted: u64,
    /// The complete copies, in the order in which they are read.
    pub members: Vec<Arc<Member>>,
    pub learner: Option<Learner>,
    /// Copies that an operator has dropped. Only an operator adds them again.
    pub dropped: BTreeSet<String>,
}

/// The copy that is being built.
#[derive(Clone)]
pub(crate) struct Learner {
    pub member: Arc<Member>,
    /// It gets every block, and no block is durable without it.
    pub is_attached: bool,
    pub private_rows: u64,
}

/// An operator's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Add(String),
    Drop(String),
}

/// The lowest savepoint of these copies.
fn lowest_savepoint(members: &[Arc<Member>]) -> Savepoint {
    members.iter().map(|member| member.rows.savepoint()).min_by_key(|savepoint| savepoint.height).unwrap_or_default()
}

impl CopiesCore {
    /// The core of a session that begins with these copies. `tip` is durable at all of them; `number` is that of their last write
    /// of committed private rows.
    pub fn new(
        set: CopySet,
        channel: &str,
        epoch: Epoch,
        view: View,
        members: Vec<Arc<Member>>,
        tip: ChainTip,
        number: u64,
    ) -> CopiesCore {
        let savepoint = lowest_savepoint(&members);
        let attempted = view.id.number;
        let state = CopiesState { view, attempted, members, learner: None, dropped: BTreeSet::new() };
        CopiesCore {
            set,
            channel: channel.to_owned(),
            epoch,
            state: Mutex::new(state),
            durable_tip: Mutex::new((tip.height, tip.header_hash)),
            durable: watch(tip.height).0,
            savepoint: Mutex::new(savepoint),
            savepoint_height: watch(savepoint.height).0,
            failure: OnceLock::new(),
            failed: CancellationToken::new(),
            ended: CancellationToken::new(),
            appending: AsyncMutex::new(()),
            writing: AsyncMutex::new(number),
            wishes: Mutex::default(),
            work: Notify::new(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, CopiesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn members(&self) -> Vec<Arc<Member>> {
        self.lock().members.clone()
    }

    /// The copies to which blocks are appended.
    pub fn appended_to(&self) -> Vec<Arc<Member>> {
        let state = self.lock();
        let attached = state.learner.iter().filter(|learner| learner.is_attached).map(|learner| &learner.member);
        state.members.iter().chain(attached).cloned().collect()
    }

    /// The copies to which private rows are written.
    pub fn written_to(&self) -> Vec<Arc<Member>> {
        let state = self.lock();
        state.members.iter().chain(state.learner.iter().map(|learner| &learner.member)).cloned().collect()
    }

    pub fn wish(&self, wish: Wish) {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner).push(wish);
        self.work.notify_one();
    }

    /// Reports the blocks and rows that all members and an attached learner have.
    pub fn advance(&self) {
        let state = self.lock();
        let attached: Vec<_> = state.learner.iter().filter(|learner| learner.is_attached).collect();
        let counted: Vec<_> = state.members.iter().chain(attached.iter().map(|learner| &learner.member)).collect();
        let tips = counted.iter().map(|member| member.blocks.durable_tip());
        // The mutant of the simulation: one copy is enough.
        let tip = match rt::fault_point("storage.copies.mutant.count_one") {
            true => tips.max_by_key(|tip| tip.0),
            false => tips.min_by_key(|tip| tip.0),
        };
        let Some(tip) = tip else { return };
        let savepoints = counted.iter().map(|member| member.rows.savepoint());
        let lowest = savepoints.min_by_key(|savepoint| savepoint.height).unwrap_or_default();
        {
            let mut known = self.durable_tip.lock().unwrap_or_else(PoisonError::into_inner);
            if tip.0 > known.0 {
                *known = tip;
            }
        }
        {
            let mut known = self.savepoint.lock().unwrap_or_else(PoisonError::into_inner);
            if lowest.height > known.height {
                *known = lowest;
            }
        }
        raise(&self.durable, tip.0);
        raise(&self.savepoint_height, lowest.height);
    }

    pub fn durable_tip(&self) -> (u64, [u8; 32]) {
        *self.durable_tip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn savepoint(&self) -> Savepoint {
        *self.savepoint.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.savepoint_height.subscribe()
    }

    /// Ends the session: nothing more is written under this epoch.
    pub fn fail(&self, error: Error) {
        tracing::error!(channel = self.channel, %error, "no more blocks can be appended");
        let _ = self.failure.set(error);
        self.failed.cancel();
    }

    pub fn failure(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    pub fn check(&self) -> Result<(), Error> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Watches a copy and advances with its reports, until it is left out or the session ends.
    pub fn follow(self: &Arc<Self>, member: &Arc<Member>) {
        let (core, member) = (Arc::downgrade(self), Arc::clone(member));
        drop(rt::spawn(async move {
            let mut durable = member.blocks.subscribe_durable();
            let mut savepoints = member.rows.subscribe_savepoint();
            let moved = async {
                loop {
                    let Some(core) = core.upgrade() else { return };
                    core.advance();
                    drop(core);
                    let (one, other) = (std::pin::pin!(durable.changed()), std::pin::pin!(savepoints.changed()));
                    futures_util::future::select(one, other).await;
                }
            };
            let watched = async {
                let error = member.watch().await;
                if let Some(core) = core.upgrade() {
                    core.fail(error);
                }
            };
            let both = futures_util::future::join(moved, watched);
            let Some(ended) = core.upgrade().map(|core| core.ended.clone()) else { return };
            let _ = ended.run_until_cancelled(member.left_out.run_until_cancelled(both)).await;
        }));
    }

    /// Asks one member after the other until one answers.
    pub async fn read<T, F>(&self, ask: impl Fn(Arc<Member>) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let started = rt::now();
        loop {
            let members = self.members();
            let mut last = None;
            for member in members {
                let left_out = member.left_out.clone();
                match left_out.run_until_cancelled(ask(member)).await {
                    None => last = None,
                    Some(Err(error)) if passes(&error) => last = Some(error),
                    Some(outcome) => return outcome,
                }
            }
            self.check()?;
            if let Some(error) = last
                && started.elapsed() > REPEAT_MAX
            {
                return Err(error);
            }
            rt::sleep(REPEAT_PAUSE).await;
        }
    }

    /// Asks all of these copies. A copy that does not answer is asked again, until it is left out.
    ///
    /// # Errors
    /// A refusal of a copy; `Retry` if a copy neither answers nor is left out.
    pub async fn on_all<F>(&self, members: Vec<Arc<Member>>, ask: impl Fn(Arc<Member>) -> F) -> Result<(), Error>
    where
        F: Future<Output = Result<(), Error>>,
    {
        let (ask, this) = (&ask, self);
        let asking = members.into_iter().map(|member| async move {
            let left_out = member.left_out.clone();
            let asked = async {
                let started = rt::now();
                loop {
                    match ask(Arc::clone(&member)).await {
                        Err(error) if passes(&error) && started.elapsed() < REPEAT_MAX => {
                            this.check()?;
                            rt::sleep(REPEAT_PAUSE).await;
                        }
                        outcome => return outcome,
                    }
                }
            };
            left_out.run_until_cancelled(asked).await.unwrap_or(Ok(()))
        });
        join_all(asking).await.into_iter().collect()
    }
}

impl OpenCopies for Session {
    fn report(&self) -> (View, Vec<CopyReport>) {
        let state = self.core.lock();
        let members = state.members.iter().map(|member| CopyReport {
            name: member.name().to_owned(),
            is_member: true,
            height: member.blocks.durable_height(),
            private_rows: 0,
        });
        let learner = state.learner.iter().map(|learner| CopyReport {
            name: learner.member.name().to_owned(),
            is_member: false,
            height: learner.member.blocks.durable_height(),
            private_rows: learner.private_rows,
        });
        (state.view.clone(), members.chain(learner).collect())
    }

    fn add(&self, name: &str) -> Result<(), Error> {
        if self.core.set.node(name).is_none() {
            return Err(refuse(name, "it is none of the peer's storage nodes"));
        }
        if self.core.lock().members.len() >= COPIES_MAX {
            return Err(refuse(name, "the channel has as many copies as it may have; drop one first"));
        }
        self.core.wish(Wish::Add(name.to_owned()));
        Ok(())
    }

    fn drop_copy(&self, name: &str) -> Result<(), Error> {
        let has_other = self.core.lock().members.iter().any(|member| member.name() != name);
        if !has_other {
            return Err(refuse(name, "it is the last complete copy; add another one first"));
        }
        self.core.wish(Wish::Drop(name.to_owned()));
        Ok(())
    }
}

fn raise(watched: &WatchSender<u64>, value: u64) {
    watched.send_if_modified(|known| {
        let is_newer = value > *known;
        *known = value.max(*known);
        is_newer
    });
}
