//! A follower's state: it applies the updates of the primary to caches, delta and index.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{WatchReceiver, WatchSender};
use base::{Bytes, rt};
use replica::followers::message::Candidate;
use replica::followers::{JOIN_TIMEOUT, Replica, ReplicaError, ReplicaFactory};
use replica::{FailoverTimeouts, FindPrimary, JoinedState};
use storage::StateStore;

use super::super::cache::{CachedValue, CachedVersion, VersionKind};
use super::super::delta::{DeltaVersion, ValueLocation};
use super::super::index::KeyHash;
use super::super::memory::{MemoryError, ReadOnlyMemory};
use super::super::pointer::Pointer;
use super::super::record::KeyName;
use super::super::{DisaggregatedConfig, StateCore, StateView};
use super::ComputeRole;
use super::changes::{BlockWrite, BlockWrites, FollowerRequest, JoinBasis, StateChange, WriteLocation};
use crate::disaggregated::eviction_candidate::EvictionCandidate;
use crate::{Error, Snapshot, events};

/// How often a follower checks whether storage has the rows that it asked for, and repeats the request.
const ROWS_PERIOD: Duration = Duration::from_millis(20);
/// How long to wait for rows.
const ROWS_TIMEOUT: Duration = Duration::from_secs(5);

/// Provides a follower's link, memory and storage. It is asked again each time the follower joins.
#[async_trait]
pub trait FollowerEnvironment: FindPrimary {
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
}

/// The state of a follower: a compute node of a peer that only reads. It follows as [`replica`] describes. Dropping it
/// ends it.
pub struct Follower {
    session: replica::Follower<FollowedStates>,
}

/// Opens the state of a follower over what its environment provides.
struct FollowedStates {
    environment: Arc<dyn FollowerEnvironment>,
    settings: DisaggregatedConfig,
}

/// The state of a follower between one joining and the next.
struct FollowedState {
    shared: Arc<StateCore>,
    memory: Arc<dyn ReadOnlyMemory>,
}

impl Follower {
    /// Starts to join, and joins again whenever it has to.
    pub fn start(environment: Arc<dyn FollowerEnvironment>, settings: DisaggregatedConfig) -> Follower {
        let finder = Arc::clone(&environment) as Arc<dyn FindPrimary>;
        Follower { session: replica::Follower::start(finder, FollowedStates { environment, settings }) }
    }

    /// A view of the newest height known here. Waits a little for an expired lease to be renewed.
    ///
    /// # Errors
    /// [`Error::NoLease`]: ask again, or ask another compute node.
    pub async fn view(&self) -> Result<Arc<StateView>, Error> {
        let present = self.session.replica().ok_or(Error::NoLease)?;
        if !present.joined().is_live_soon().await {
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
        let present = self.session.replica().ok_or(Error::NoLease)?;
        let view = present.shared.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        // Check the lease after taking the view: every height that was raised before this lease was granted is in it.
        match present.joined().is_live() {
            true => view.ok_or(Error::NoLease),
            false => Err(Error::NoLease),
        }
    }

    /// Whether it could answer now.
    pub fn is_live(&self) -> bool {
        self.session.is_live()
    }

    /// As [`replica::Follower::drain`].
    pub fn drain(&self) {
        self.session.drain();
    }

    /// As [`replica::Follower::leave`].
    pub async fn leave(&self) {
        self.session.leave().await;
    }

    /// As [`replica::Follower::orphaned`].
    pub async fn orphaned(&self, timeouts: FailoverTimeouts) {
        self.session.orphaned(timeouts).await;
    }

    /// As [`replica::Follower::heights`].
    pub fn heights(&self) -> WatchReceiver<u64> {
        self.session.heights()
    }

    /// Bytes that the metadata cache and the data cache are charged with.
    pub fn cache_bytes(&self) -> (usize, usize) {
        self.session.replica().map_or((0, 0), |present| present.shared.caches.bytes())
    }
}

#[async_trait]
impl ReplicaFactory for FollowedStates {
    type Prepared = (Arc<dyn ReadOnlyMemory>, Arc<dyn StateStore>);
    type Replica = FollowedState;

    async fn prepare(&self) -> Result<Self::Prepared, ReplicaError> {
        let memory = rt::timeout(JOIN_TIMEOUT, self.environment.memory()).await??;
        let store = rt::timeout(JOIN_TIMEOUT, self.environment.store()).await??;
        Ok((memory, store))
    }

    fn open(
        &self,
        (memory, store): Self::Prepared,
        basis: Bytes,
        joined: JoinedState,
    ) -> Result<Arc<FollowedState>, ReplicaError> {
        let JoinBasis { seed, base, savepoint, forgotten, budget_bytes } = JoinBasis::decode(basis)?;
        let shared = StateCore::new(
            Arc::clone(&memory) as _,
            store,
            self.settings.clone(),
            ComputeRole::Follower(joined),
            seed,
            base,
            budget_bytes,
        );
        shared.savepoint.store(savepoint, Ordering::Release);
        shared.forgotten.store(forgotten, Ordering::Release);
        let shared = Arc::new(shared);
        StateCore::publish(&shared, base);
        Ok(Arc::new(FollowedState { shared, memory }))
    }
}

impl Replica for FollowedState {
    fn joined(&self) -> &JoinedState {
        self.shared.role.joined().expect("it is a follower")
    }

    fn apply(&self, mut changes: Bytes, heights: &WatchSender<u64>) -> Result<(), ReplicaError> {
        while let Some(change) = StateChange::next(&mut changes)? {
            self.follow(change, heights)?;
        }
        Ok(())
    }

    fn height(&self) -> u64 {
        self.shared.height.load(Ordering::Acquire)
    }

    fn floor(&self) -> u64 {
        self.shared.floor()
    }

    fn reject_below(&self, oldest: u64) {
        self.shared.admitted.fetch_max(oldest, Ordering::AcqRel);
    }

    fn note_uses(&self, notes: bool) {
        self.shared.heat.note_uses(notes);
    }

    fn in_use(&self, candidates: &[Candidate]) -> Vec<bool> {
        let shared = &self.shared;
        let uses = |EvictionCandidate { pointer, hash }| {
            shared.heat.take(pointer.address()) | shared.caches.has(hash, pointer)
        };
        candidates.iter().map(|candidate| uses((*candidate).into())).collect()
    }

    fn close(&self) {
        // The view refers back to the state.
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl FollowedState {
    fn follow(&self, change: StateChange, heights: &WatchSender<u64>) -> Result<(), ReplicaError> {
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
                    return Err(format!("block {number} does not follow the height here").into());
                }
                self.follow_block(number, &writes, heights);
            }
        }
        Ok(())
    }

    fn follow_block(&self, number: u64, writes: &BlockWrites, heights: &WatchSender<u64>) {
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
        shared.empty.note_block(number, writes.iter().map(|write| write.name.namespace));
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
        heights.send(number + 1);
        events::BlocksFollowed.add(1);
    }
}

impl StateCore {
    /// The follower's counterpart of materialising: it asks the primary for it, and waits until the rows are there.
    pub(in crate::disaggregated) async fn await_rows(&self, joined: &JoinedState, height: u64) -> Result<(), Error> {
        let since = rt::now();
        while self.store.savepoint().height < height {
            if since.elapsed() > ROWS_TIMEOUT {
                return Err(Error::Busy);
            }
            if !joined.is_live_soon().await {
                return Err(Error::NoLease);
            }
            joined.ask(FollowerRequest::Persist { height }.encode());
            let mut savepoint = self.store.subscribe_savepoint();
            let _woken = rt::timeout(ROWS_PERIOD, savepoint.wait_for(|reached| *reached >= height)).await;
        }
        Ok(())
    }

    /// The follower's counterpart of a fill: it asks the primary for it.
    pub(in crate::disaggregated) fn request_fill(joined: &JoinedState, name: KeyName<'_>) {
        // A simulation may drop the request.
        if !rt::fault_point("state.followers.fill") {
            joined.ask(FollowerRequest::Fill { namespace: name.namespace.into(), key: name.key.into() }.encode());
        }
    }
}
