//! The follower's end of its link to the primary.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::channel::{WatchReceiver, WatchSender, bounded, watch};
use base::rt::net::{Link, LinkSender};
use base::rt::{self, AbortOnDrop, Instant};
use storage::StateStore;
use wire::Malformed;
use wire::hello::VersionMismatch;

use super::super::cache::{CachedValue, CachedVersion, VersionKind};
use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::fault::{Mutant, hold_up, mutant};
use super::super::index::KeyHash;
use super::super::memory::{MemoryError, ReadOnlyMemory};
use super::super::pointer::Pointer;
use super::super::record::KeyName;
use super::super::{DisaggregatedConfig, StateCore, StateView};
use super::message::{BlockWrite, BlockWrites, PROTOCOL_VERSIONS, StateChange, ToFollower, ToPrimary, WriteLocation};
use super::work::{NO_WORK, WORK_ITEMS_MAX, WorkHandler};
use super::{ComputeRole, JOIN_TIMEOUT, JoinedState, LEASELESS_TIMEOUT, SILENCE_TIMEOUT};
use crate::{Error, Snapshot, events};

/// Requests that may wait for the link; further ones are dropped.
const REQUESTS_MAX: usize = 64;
/// The pause before a follower joins again; a random time of up to the same length is added.
const REJOIN_PAUSE: Duration = Duration::from_millis(20);
/// How often a follower checks whether storage has the rows that it asked for, and repeats the request.
const ROWS_PERIOD: Duration = Duration::from_millis(20);
/// How often [`Follower::orphaned`] checks whether the follower has a lease.
const LEASE_CHECK_PERIOD: Duration = Duration::from_millis(5);
/// How long to wait for rows.
const ROWS_TIMEOUT: Duration = Duration::from_secs(5);

/// Provides a follower's link, memory and storage. It is asked again each time the follower joins.
#[async_trait]
pub trait FollowerEnvironment: Send + Sync + 'static {
    /// A link to the peer's current primary, whichever node that is.
    ///
    /// # Errors
    /// If the primary cannot be reached: `TimedOut` if it may still be alive, any other kind if there is no primary.
    async fn primary(&self) -> std::io::Result<Link>;

    /// Memory with no section yet.
    ///
    /// # Errors
    /// If the memory cannot be opened.
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError>;

    /// The peer's rows, for reading.
    ///
    /// # Errors
    /// If the rows cannot be opened.
    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error>;

    /// The handler of the primary's work items on this node, if there is one.
    fn work_handler(&self) -> Option<Arc<dyn WorkHandler>> {
        None
    }
}

/// A follower: a compute node of a peer that only reads. See [`super`]. Dropping it ends it.
pub struct Follower {
    inner: Arc<FollowerCore>,
    _following: AbortOnDrop<()>,
}

/// How long a follower does without a lease before a compute node is to replace its primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FailoverTimeouts {
    /// While every address of a primary refuses connections: its process has ended.
    pub gone: Duration,
    /// While the primary is silent: it may be paused, cut off or busy, and still be alive.
    pub silent: Duration,
}

/// How much slower these times run while a primary that is starting lets this follower wait: it has blocks to apply
/// again.
const OPENING_TIMEOUT_FACTOR: u32 = 20;

/// What this follower knows of the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrimaryContact {
    /// Nothing for certain.
    None,
    /// It is not at any of the addresses where it could be.
    Rejected,
    /// It has answered and has not admitted this follower yet.
    Opening,
    /// It lets this follower follow.
    Followed,
}

struct FollowerCore {
    contact: Mutex<PrimaryContact>,
    environment: Arc<dyn FollowerEnvironment>,
    settings: DisaggregatedConfig,
    /// The state that it serves from between one joining and the next.
    joined: Mutex<Option<Arc<StateCore>>>,
    height: WatchSender<u64>,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("no link to the primary: {0}")]
    Link(std::io::Error),
    #[error("no memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("no rows: {0}")]
    Rows(#[from] storage::Error),
    #[error("malformed message of the primary: {0}")]
    Malformed(#[from] Malformed),
    #[error("primary and follower speak different versions: {0}")]
    Version(#[from] VersionMismatch),
    #[error("the link ended")]
    Closed,
    #[error("the primary sent nothing, or granted no lease, for too long")]
    Silence,
}

impl Follower {
    /// Starts to join, and joins again whenever it has to.
    pub fn start(environment: Arc<dyn FollowerEnvironment>, settings: DisaggregatedConfig) -> Follower {
        let inner = Arc::new(FollowerCore {
            contact: Mutex::new(PrimaryContact::None),
            environment,
            settings,
            joined: Mutex::default(),
            height: watch(0).0,
        });
        let following = Arc::clone(&inner);
        let following = rt::spawn(async move { following.keep_following().await }).abort_on_drop();
        Follower { inner, _following: following }
    }

    /// A view of the newest height known here. Waits a little for an expired lease to be renewed.
    ///
    /// # Errors
    /// [`Error::NoLease`]: ask again, or ask another compute node.
    pub async fn view(&self) -> Result<Arc<StateView>, Error> {
        let present = self.joined_state().ok_or(Error::NoLease)?;
        if let Some(life) = present.role.joined()
            && !life.is_live_soon().await
        {
            return Err(Error::NoLease);
        }
        self.snapshot_now()
    }

    /// As [`Follower::view`], as a [`Snapshot`].
    ///
    /// # Errors
    /// As [`Follower::view`].
    pub async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        Ok(self.view().await?)
    }

    /// As [`Follower::view`], without waiting.
    ///
    /// # Errors
    /// As [`Follower::view`].
    pub fn snapshot_now(&self) -> Result<Arc<StateView>, Error> {
        let present = self.joined_state().ok_or(Error::NoLease)?;
        let view = present.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Check the lease after taking the view: every height that was raised before this lease was granted is in it.
        match present.role.joined().is_some_and(JoinedState::is_live) {
            true => view.ok_or(Error::NoLease),
            false => Err(Error::NoLease),
        }
    }

    /// Whether it could answer now.
    pub fn is_live(&self) -> bool {
        self.joined_state().is_some_and(|present| present.role.joined().is_some_and(JoinedState::is_live))
    }

    /// Completes when the follower has held no lease for too long: its primary is gone or cannot be reached, and a
    /// compute node may replace it. The new primary first starts an epoch at storage, after which nothing that the old
    /// one still does takes effect: a mistaken suspicion costs only the content of memory.
    pub async fn orphaned(&self, timeouts: FailoverTimeouts) {
        let (mut refused, mut without) = (Duration::ZERO, Duration::ZERO);
        while refused < timeouts.gone && without < timeouts.silent {
            let looked = rt::now();
            rt::sleep(LEASE_CHECK_PERIOD).await;
            // Time in which this node itself was suspended says nothing about the primary.
            let passed = looked.elapsed().min(2 * LEASE_CHECK_PERIOD);
            if self.is_live() {
                (refused, without) = (Duration::ZERO, Duration::ZERO);
                continue;
            }
            let word = *self.inner.contact.lock().unwrap_or_else(PoisonError::into_inner);
            without += if word == PrimaryContact::Opening { passed / OPENING_TIMEOUT_FACTOR } else { passed };
            refused = if word == PrimaryContact::Rejected { refused + passed } else { Duration::ZERO };
        }
    }

    /// Watches the height that is known here. It falls when the follower joins a primary that has not caught up yet.
    pub fn heights(&self) -> WatchReceiver<u64> {
        self.inner.height.subscribe()
    }

    /// Bytes that the metadata cache and the data cache are charged with.
    pub fn cache_bytes(&self) -> (usize, usize) {
        self.joined_state().map_or((0, 0), |present| present.caches.bytes())
    }

    fn joined_state(&self) -> Option<Arc<StateCore>> {
        self.inner.joined.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl FollowerCore {
    async fn keep_following(&self) {
        loop {
            let Err(ended) = self.run_session().await;
            self.end();
            match &ended {
                SessionEnd::Link(error) if error.kind() != std::io::ErrorKind::TimedOut => {
                    self.set_contact(PrimaryContact::Rejected)
                }
                _ => self.set_contact(PrimaryContact::None),
            }
            tracing::debug!(%ended, "joining the primary again");
            rt::sleep(REJOIN_PAUSE + REJOIN_PAUSE.mul_f64(rt::random_below(1000) as f64 / 1000.0)).await;
        }
    }

    fn set_contact(&self, word: PrimaryContact) {
        *self.contact.lock().unwrap_or_else(PoisonError::into_inner) = word;
    }

    /// Ends the current session: nothing of it counts any more.
    fn end(&self) {
        let present = self.joined.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(present) = present {
            if let Some(life) = present.role.joined() {
                life.end();
            }
            // The view refers back to the state.
            *present.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// One session: from a joining until the follower has to join again.
    async fn run_session(&self) -> Result<Infallible, SessionEnd> {
        let surroundings = &self.environment;
        let late = |_| SessionEnd::Silence;
        let link = rt::timeout(JOIN_TIMEOUT, surroundings.primary()).await.map_err(late)?.map_err(SessionEnd::Link)?;
        self.set_contact(PrimaryContact::Opening);
        let memory = rt::timeout(JOIN_TIMEOUT, surroundings.memory()).await.map_err(late)??;
        let store = rt::timeout(JOIN_TIMEOUT, surroundings.store()).await.map_err(late)??;
        let (sender, mut receiver) = link.split();
        let join = ToPrimary::Join { versions: PROTOCOL_VERSIONS };
        sender.send(join.encode()).await.map_err(|_| SessionEnd::Closed)?;
        let welcome = rt::timeout(JOIN_TIMEOUT, receiver.receive()).await.map_err(late)?;
        let welcome = ToFollower::decode(welcome.map_err(|_| SessionEnd::Closed)?)?;
        let (seed, base, settled, forgotten, budget_bytes) = match welcome {
            ToFollower::Welcome { seed, base, savepoint, forgotten, budget_bytes, .. } => {
                (seed, base, savepoint, forgotten, budget_bytes)
            }
            ToFollower::OtherVersions(hello) => {
                return Err(VersionMismatch { ours: PROTOCOL_VERSIONS, theirs: hello.versions() }.into());
            }
            _ => return Err(SessionEnd::Closed),
        };
        self.set_contact(PrimaryContact::Followed);
        let sender = Arc::new(sender);
        let (requests, mut waiting) = bounded::<Bytes>(REQUESTS_MAX);
        let asking = Arc::clone(&sender);
        let _asking = rt::spawn(async move {
            while let Some(request) = waiting.recv().await {
                if asking.send(request).await.is_err() {
                    return;
                }
            }
        })
        .abort_on_drop();
        let shared = StateCore::new(
            Arc::clone(&memory) as _,
            store,
            self.settings.clone(),
            ComputeRole::Follower(JoinedState::new(requests)),
            seed,
            base,
            budget_bytes,
        );
        shared.savepoint.store(settled, Ordering::Release);
        shared.forgotten.store(forgotten, Ordering::Release);
        let shared = Arc::new(shared);
        StateCore::publish(&shared, base);
        let helper = surroundings.work_handler();
        let (leased, is_present, working) = (rt::now(), false, Vec::new());
        let mut following =
            FollowerSession { inner: self, shared, memory, sender, leased, is_present, work_handler: helper, working };
        loop {
            let message = rt::timeout(SILENCE_TIMEOUT, receiver.receive()).await.map_err(|_| SessionEnd::Silence)?;
            following.handle_message(message.map_err(|_| SessionEnd::Closed)?).await?;
        }
    }
}

/// Steps 3 and 5.
struct FollowerSession<'a> {
    inner: &'a FollowerCore,
    shared: Arc<StateCore>,
    memory: Arc<dyn ReadOnlyMemory>,
    sender: Arc<LinkSender>,
    /// When it last got a lease, or started to wait for its first.
    leased: Instant,
    is_present: bool,
    work_handler: Option<Arc<dyn WorkHandler>>,
    /// Work items in progress.
    working: Vec<AbortOnDrop<()>>,
}

impl Drop for FollowerSession<'_> {
    fn drop(&mut self) {
        if !self.is_present {
            *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

impl FollowerSession<'_> {
    async fn handle_message(&mut self, message: Bytes) -> Result<(), SessionEnd> {
        match ToFollower::decode(message)? {
            ToFollower::Welcome { .. } | ToFollower::OtherVersions(_) => return Err(SessionEnd::Closed),
            ToFollower::CatchUp { changes } => {
                self.apply_changes(changes)?;
                self.leased = rt::now();
            }
            ToFollower::Update { sequence, granted, oldest, notes_uses, changes } => {
                if mutant(Mutant::AckEarly) {
                    self.acknowledge(sequence).await?;
                    rt::sleep(Duration::from_millis(3)).await;
                }
                hold_up("state.followers.follow").await;
                self.apply_changes(changes)?;
                let shared = &self.shared;
                shared.admitted.fetch_max(oldest, Ordering::AcqRel);
                shared.heat.note_uses(notes_uses);
                if granted > 0 && granted <= rt::now().nanos() {
                    let life = shared.role.joined().expect("it is a reader");
                    life.renew(Instant::from_nanos(granted));
                    self.leased = rt::now();
                }
                if !self.is_present {
                    self.is_present = true;
                    *self.inner.joined.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(shared));
                    // There may have been no block since.
                    self.inner.height.send(shared.height.load(Ordering::Acquire));
                }
                if !mutant(Mutant::AckEarly) {
                    hold_up("state.followers.ack").await;
                    self.acknowledge(sequence).await?;
                }
            }
            ToFollower::InUseQuery { number, candidates } => {
                let shared = &self.shared;
                let uses =
                    |pointer: Pointer, hash| shared.heat.take(pointer.address()) | shared.caches.has(hash, pointer);
                let in_use = candidates.iter().map(|one| uses(one.pointer, one.hash)).collect();
                let answer = ToPrimary::InUse { number, in_use };
                self.sender.send(answer.encode()).await.map_err(|_| SessionEnd::Closed)?;
            }
            ToFollower::Work { number, height, item: piece } => self.work(number, height, piece).await?,
        }
        if self.leased.elapsed() > LEASELESS_TIMEOUT { Err(SessionEnd::Silence) } else { Ok(()) }
    }

    async fn acknowledge(&self, sequence: u64) -> Result<(), SessionEnd> {
        let (floor, asked) = (self.shared.floor(), rt::now().nanos());
        let load = self.work_handler.as_ref().map_or(NO_WORK, |helper| helper.load());
        let ack = ToPrimary::Ack { sequence, asked, floor, load };
        self.sender.send(ack.encode()).await.map_err(|_| SessionEnd::Closed)
    }

    /// Step 4 of [`super::work`].
    async fn work(&mut self, number: u64, height: u64, item: Bytes) -> Result<(), SessionEnd> {
        self.working.retain(|one| !one.is_finished());
        let began = self.shared.height.load(Ordering::Acquire);
        let is_live = |shared: &StateCore| shared.role.joined().is_some_and(JoinedState::is_live);
        let is_fit = began >= height && self.working.len() < WORK_ITEMS_MAX && is_live(&self.shared);
        let done = move |answer| ToPrimary::Done { number, height: began, answer }.encode();
        let Some(helper) = self.work_handler.clone().filter(|_| is_fit) else {
            return self.sender.send(done(Bytes::new())).await.map_err(|_| SessionEnd::Closed);
        };
        let (shared, sender) = (Arc::clone(&self.shared), Arc::clone(&self.sender));
        let doing = async move {
            let answer = helper.work(item).await.filter(|_| is_live(&shared));
            hold_up("state.followers.done").await;
            // The loop that receives notices when the link ends.
            let _ = sender.send(done(answer.unwrap_or_default())).await;
        };
        self.working.push(rt::spawn(doing).abort_on_drop());
        Ok(())
    }

    fn apply_changes(&self, mut changes: Bytes) -> Result<(), SessionEnd> {
        while let Some(change) = StateChange::next(&mut changes)? {
            self.follow(change)?;
        }
        Ok(())
    }

    fn follow(&self, change: StateChange) -> Result<(), SessionEnd> {
        let shared = &self.shared;
        match change {
            StateChange::Section { section, read_grant: place } => {
                if let Err(error) = self.memory.enter(&section, &place) {
                    tracing::debug!(%error, section = section.id, "a section cannot be read on this follower");
                }
            }
            StateChange::SectionGone { base } => {
                shared.mark_gone(base);
                shared.directory.forget(|subtable| shared.base(subtable.address) == base);
                self.memory.leave(base);
            }
            StateChange::Subtable(subtable) => shared.directory.set(subtable),
            StateChange::Detached { namespace, key, pointer } => {
                let name = KeyName { namespace: &namespace, key: &key };
                let hash = KeyHash::new(name, shared.seed);
                shared.caches.detach(hash, name, pointer);
                shared.delta_mut().detach(hash, name, pointer);
            }
            StateChange::Evicted { namespace, key, pointer } => {
                let name = KeyName { namespace: &namespace, key: &key };
                shared.caches.evict(KeyHash::new(name, shared.seed), name, pointer);
            }
            StateChange::Forgotten { height } => drop(shared.forgotten.fetch_max(height, Ordering::AcqRel)),
            StateChange::SavepointAdvanced { height } => {
                let height = height.min(shared.height.load(Ordering::Acquire));
                shared.delta_mut().forget_below(height);
                shared.savepoint.fetch_max(height, Ordering::AcqRel);
            }
            StateChange::Block { number, writes } => {
                if number != shared.height.load(Ordering::Acquire) {
                    // The block does not follow the height here.
                    return Err(SessionEnd::Closed);
                }
                self.follow_block(number, &writes);
            }
        }
        Ok(())
    }

    fn follow_block(&self, number: u64, writes: &BlockWrites) {
        let shared = &self.shared;
        // Values that came with the block; the delta and the caches share them.
        let mut values = VecDeque::new();
        let written = writes.iter().map(|BlockWrite { name, version, location: place }| {
            let place = match place {
                WriteLocation::Deleted => ValueLocation::Deleted,
                WriteLocation::Remote(pointer, bytes) => ValueLocation::Remote(pointer, bytes),
                // A copy: the rest of the message need not be kept as long.
                WriteLocation::Inline(value) => {
                    let value = Bytes::copy_from_slice(value);
                    values.push_back(value.clone());
                    ValueLocation::Inline(Box::new(value))
                }
                WriteLocation::Storage => ValueLocation::Storage,
            };
            let text = move || (Arc::from(name.namespace), Arc::from(name.key));
            (KeyHash::new(name, shared.seed), name, text, DeltaVersion { version, location: place })
        });
        shared.delta_mut().add(number, written);
        for BlockWrite { name, version, location: place } in writes.iter() {
            let (kind, pointer, bytes) = match place {
                WriteLocation::Deleted => (VersionKind::Deleted, Pointer::NULL, 0),
                WriteLocation::Remote(pointer, bytes) => (VersionKind::Live, pointer, bytes),
                WriteLocation::Inline(_) | WriteLocation::Storage => (VersionKind::Live, Pointer::NULL, 0),
            };
            let value = matches!(place, WriteLocation::Inline(_)).then(|| values.pop_front()).flatten();
            let known = CachedVersion { pointer, version, kind, bytes };
            let kept =
                value.map(|value| CachedValue { version, bytes: value.len(), value: Some(value), prev: Pointer::NULL });
            shared.caches.replace(KeyHash::new(name, shared.seed), name, known, kept);
        }
        shared.height.store(number + 1, Ordering::Release);
        StateCore::publish(shared, number + 1);
        shared.floor();
        self.inner.height.send(number + 1);
        events::BlocksFollowed.add(1);
    }
}

impl StateCore {
    /// The follower's counterpart of materialising: it asks the primary for it, and waits until the rows are there.
    pub(in super::super) async fn await_rows(&self, joined: &JoinedState, height: u64) -> Result<(), Error> {
        let since = rt::now();
        while self.store.savepoint().height < height {
            if since.elapsed() > ROWS_TIMEOUT {
                return Err(Error::Busy);
            }
            if !joined.is_live_soon().await {
                return Err(Error::NoLease);
            }
            joined.ask(ToPrimary::Persist { height }.encode());
            let mut savepoint = self.store.subscribe_savepoint();
            let _woken = rt::timeout(ROWS_PERIOD, savepoint.wait_for(|reached| *reached >= height)).await;
        }
        Ok(())
    }

    /// The follower's counterpart of a fill: it asks the primary for it.
    pub(in super::super) fn request_fill(joined: &JoinedState, name: KeyName<'_>) {
        // A simulation may drop the request.
        if !rt::fault_point("state.followers.fill") {
            joined.ask(ToPrimary::Fill { namespace: name.namespace.into(), key: name.key.into() }.encode());
        }
    }
}
