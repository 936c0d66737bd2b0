//! The copies of a channel under one primary.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::rt::sync::{Mutex as AsyncMutex, Notify};
use base::rt::{self, AbortOnDrop, CancellationToken};
use base::{Epoch, ErrorKind};
use futures_util::future::join_all;
use storage::blocks::Blocks;
use storage::node::View;
use storage::tables::Savepoint;
use storage::{Error, PrivateTable, StateStore};

use crate::blocks::CopiedBlocks;
use crate::control::CopyReport;
use crate::election::{copy_states, newest_view};
use crate::keeper::{Wish, keep};
use crate::limits::{LOST_AFTER, REPEAT_MAX, REPEAT_PAUSE};
use crate::member::Member;
use crate::private::CopiedPrivate;
use crate::rows::CopiedRows;
use crate::set::{CopySet, error, passes};

/// The copies of a channel, opened by a primary.
pub struct ChannelCopies {
    session: Arc<Session>,
    blocks: Arc<CopiedBlocks>,
    rows: Arc<CopiedRows>,
    private: [Arc<CopiedPrivate>; 2],
}

/// Ends the session when the last user of it has gone.
pub(crate) struct Session {
    pub core: Arc<CopiesCore>,
    _keeper: AbortOnDrop<()>,
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
    pub state: Mutex<CopiesState>,
    /// The height and the hash of what was reported durable.
    durable_tip: Mutex<(u64, [u8; 32])>,
    pub durable: WatchSender<u64>,
    savepoint: Mutex<Savepoint>,
    savepoint_height: WatchSender<u64>,
    failure: OnceLock<Error>,
    pub failed: CancellationToken,
    /// Nobody uses the session any more.
    pub ended: CancellationToken,
    /// Held while a block is appended, or a learner begins to get blocks.
    pub appending: AsyncMutex<()>,
    /// Held while committed private rows are written; the number of the last such write.
    pub writing: AsyncMutex<u64>,
    pub wishes: Mutex<Vec<Wish>>,
    pub work: Notify,
}

/// Which copies there are.
pub(crate) struct CopiesState {
    /// The view in force.
    pub view: View,
    /// The highest number of a view that was attempted.
    pub attempted: u64,
    /// The complete copies, in the order in which they are read.
    pub members: Vec<Arc<Member>>,
    pub learner: Option<Learner>,
    /// Copies that an operator has dropped: they are not added again by themselves.
    pub dropped: BTreeSet<String>,
}

/// The copy that is being built.
#[derive(Clone)]
pub(crate) struct Learner {
    pub member: Arc<Member>,
    /// It gets every block, and a block needs it to be durable.
    pub is_attached: bool,
    pub private_rows: u64,
}

impl ChannelCopies {
    /// Opens the copies under an epoch that [`begin_epoch`](crate::begin_epoch) has begun. A copy that does not answer is left out of
    /// the view, if another one answers.
    ///
    /// # Errors
    /// `Fenced` if a later epoch has begun; `Retry` if no complete copy answers; refusals.
    pub async fn open(set: CopySet, channel: &str, epoch: Epoch) -> Result<ChannelCopies, Error> {
        let states = copy_states(&set, channel).await;
        let view = newest_view(&states);
        if view.id.epoch != epoch {
            return Err(match view.id.epoch > epoch {
                true => Error::Fenced { given: epoch, newest: view.id.epoch },
                false => error(set.first(), ErrorKind::Retry, "the copies do not answer with the view of this epoch"),
            });
        }
        let numbers = states.iter().filter_map(|(_, status)| Some(status.as_ref().ok()?.private_write.1));
        let number = numbers.max().unwrap_or_default();
        let opened = join_all(view.members().filter_map(|name| set.node(name)).map(|node| {
            let (set, channel) = (&set, &channel);
            async move { (node.name.clone(), Member::open(set, node, channel, epoch, false, LOST_AFTER).await) }
        }))
        .await;
        let (mut members, mut failed) = (Vec::new(), None);
        for (name, outcome) in opened {
            match outcome {
                Ok(member) => members.push(Arc::new(member)),
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
                Err(error) => {
                    tracing::warn!(channel, copy = name, %error, "a copy does not open");
                    failed.get_or_insert(error);
                }
            }
        }
        let Some(first) = members.first() else {
            return Err(failed.unwrap_or(error(set.first(), ErrorKind::Retry, "no copy of the channel answers")));
        };
        let tip = first.blocks.tip();
        let savepoint = lowest_savepoint(&members);
        let attempted = view.id.number;
        let is_complete = members.len() == view.members().count();
        let state = CopiesState { view, attempted, members, learner: None, dropped: BTreeSet::new() };
        let core = Arc::new(CopiesCore {
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
        });
        if !is_complete {
            let names = core.lock().members.iter().map(|member| member.name().to_owned()).collect();
            core.change_view(names, None).await.map_err(|(_, error)| error)?;
        }
        for member in core.members() {
            core.follow(&member);
        }
        let keeper = rt::spawn(keep(Arc::clone(&core))).abort_on_drop();
        let control = Arc::clone(&core.set.control);
        let session = Arc::new(Session { core, _keeper: keeper });
        control.note(Arc::downgrade(&session));
        let private = [PrivateTable::Committed, PrivateTable::Transient]
            .map(|table| Arc::new(CopiedPrivate::new(Arc::clone(&session), table)));
        Ok(ChannelCopies {
            blocks: Arc::new(CopiedBlocks::new(Arc::clone(&session))),
            rows: Arc::new(CopiedRows::new(Arc::clone(&session))),
            private,
            session,
        })
    }

    /// The blocks.
    pub fn blocks(&self) -> Arc<CopiedBlocks> {
        Arc::clone(&self.blocks)
    }

    /// The rows.
    pub fn rows(&self) -> Arc<CopiedRows> {
        Arc::clone(&self.rows)
    }

    /// The private rows of committed and of transient data.
    pub fn private(&self) -> [Arc<CopiedPrivate>; 2] {
        self.private.clone()
    }

    /// The view in force.
    pub fn view(&self) -> View {
        self.session.core.lock().view.clone()
    }

    /// The copies, those that are being built last.
    pub fn report(&self) -> Vec<CopyReport> {
        self.session.core.report().1
    }

    /// Has a copy be built at this node, beyond those that the configuration wants. Returns at once; [`ChannelCopies::report`] shows
    /// how far it has come.
    ///
    /// # Errors
    /// `Rejected` if the node is not configured, or there are too many copies.
    pub fn add(&self, name: &str) -> Result<(), Error> {
        self.session.core.add(name)
    }

    /// Leaves a copy out, if another one is complete. Returns at once. The primary does not add it again by itself; a later primary
    /// does, while it is configured and a copy is missing.
    ///
    /// # Errors
    /// `Rejected` if it is the last complete copy.
    pub fn drop_copy(&self, name: &str) -> Result<(), Error> {
        self.session.core.drop_copy(name)
    }
}

/// The lowest savepoint of copies.
pub(crate) fn lowest_savepoint(members: &[Arc<Member>]) -> Savepoint {
    members.iter().map(|member| member.rows.savepoint()).min_by_key(|savepoint| savepoint.height).unwrap_or_default()
}

impl CopiesCore {
    pub fn lock(&self) -> MutexGuard<'_, CopiesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn members(&self) -> Vec<Arc<Member>> {
        self.lock().members.clone()
    }

    /// The copies that get blocks.
    pub fn appended_to(&self) -> Vec<Arc<Member>> {
        let state = self.lock();
        let attached = state.learner.iter().filter(|learner| learner.is_attached).map(|learner| &learner.member);
        state.members.iter().chain(attached).cloned().collect()
    }

    /// The copies that get private rows.
    pub fn written_to(&self) -> Vec<Arc<Member>> {
        let state = self.lock();
        state.members.iter().chain(state.learner.iter().map(|learner| &learner.member)).cloned().collect()
    }

    pub fn wish(&self, wish: Wish) {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner).push(wish);
        self.work.notify_one();
    }

    /// Reports what every copy that counts has.
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

    /// Has what a copy reports count, and watches it, until it is left out or the session ends.
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

    /// Asks the first copy that answers.
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

    /// Has all of these copies do something, unless they are left out meanwhile. A copy that gives no answer is asked again.
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

fn raise(watched: &WatchSender<u64>, value: u64) {
    watched.send_if_modified(|known| {
        let is_newer = value > *known;
        *known = value.max(*known);
        is_newer
    });
}

impl fmt::Debug for ChannelCopies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelCopies").field("view", &self.view()).finish_non_exhaustive()
    }
}
