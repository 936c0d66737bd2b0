//! A store that serves clients: its coordinator writes each put, delete and swap to the group's log.

use std::fmt;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

use base::rt::sync::{Notify, Semaphore};
use base::rt::{CancellationToken, guarded};
use base::{Bytes, rt};
use futures_util::FutureExt as _;
use sift::{Coordinator, RecoveredCoordinator};

use crate::error::Error;
use crate::fault::{Mutant, mutant};
use crate::kv_core::{KvCore, lock};
use crate::layout::StoreGeometry;
use crate::persist::PersistentTables;
use crate::request::{IN_FLIGHT_MAX, KvConfig, KvStatus, Precondition, SwapOutcome, VersionedValue};
use crate::watch::KeyWatch;

/// A store that is served by its coordinator. All clones are the same store; it ends with its coordinator, or when the last
/// clone is dropped.
#[derive(Clone)]
pub struct KvStore {
    shared: Arc<KvCore>,
    _alive: Arc<StopOnDrop>,
}

pub(crate) struct StopOnDrop(Arc<KvCore>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

impl KvStore {
    /// Takes over the store that a group holds; creates a new one in a group that was never used. The sizes must be those with
    /// which the store was created. On return the store serves.
    ///
    /// # Errors
    /// [`Error::Invalid`] for other sizes; [`Error::Corrupt`]; as [`Coordinator::read`].
    pub async fn take_over(
        coordinator: Coordinator,
        sizes: StoreGeometry,
        options: KvConfig,
    ) -> Result<KvStore, Error> {
        KvStore::take_over_recovered(coordinator.into(), sizes, options).await
    }

    /// As [`KvStore::take_over`], with a coordinator that may not answer clients yet: the log is read and written back while it
    /// waits.
    ///
    /// # Errors
    /// As [`KvStore::take_over`].
    pub async fn take_over_recovered(
        recovered: RecoveredCoordinator,
        sizes: StoreGeometry,
        options: KvConfig,
    ) -> Result<KvStore, Error> {
        KvStore::start(recovered, sizes, options, None).await
    }

    /// As [`KvStore::take_over`], for a store that is kept in tables ([`persist`](crate::persist)). In a group that was never used, the store
    /// is restored from the tables.
    ///
    /// # Errors
    /// As [`KvStore::take_over`]; [`Error::Disk`]; [`Error::Invalid`] for tables of another store.
    pub async fn take_over_persistent(
        coordinator: Coordinator,
        sizes: StoreGeometry,
        options: KvConfig,
        persistent: PersistentTables,
    ) -> Result<KvStore, Error> {
        KvStore::start(coordinator.into(), sizes, options, Some(persistent)).await
    }

    async fn start(
        standby: RecoveredCoordinator,
        sizes: StoreGeometry,
        options: KvConfig,
        persistent: Option<PersistentTables>,
    ) -> Result<KvStore, Error> {
        // Boxed, so that the compiler sees at once that the future is `Send`.
        let recovered = crate::recover::recover(standby.coordinator(), &sizes, persistent.as_ref()).boxed().await?;
        let (seed, kept) = (recovered.seed, recovered.savepoint);
        let (state, feed, bitmap) = recovered.into_state(&sizes, options);
        let coordinator = match mutant(Mutant::OpenAtOnce) {
            #[cfg(debug_assertions)]
            true => standby.into_coordinator_unchecked(),
            _ => standby.open().await?,
        };
        let shared = Arc::new(KvCore {
            coordinator,
            geometry: sizes,
            seed,
            log: rt::sync::Mutex::default(),
            state: Mutex::new(state),
            feed: Mutex::new(feed),
            work: Notify::new(),
            space_freed: Notify::new(),
            applied: Notify::new(),
            unpersisted: Notify::new(),
            persisted: Notify::new(),
            is_persistent: persistent.is_some(),
            is_synchronous: persistent.as_ref().is_some_and(|persistent| persistent.is_synchronous),
            in_flight: Semaphore::new(IN_FLIGHT_MAX),
            waiting: AtomicUsize::new(0),
            stop: CancellationToken::new(),
        });
        let store = KvStore { _alive: Arc::new(StopOnDrop(Arc::clone(&shared))), shared: Arc::clone(&shared) };
        let ends = || {
            let shared = Arc::clone(&shared);
            move || shared.fail(Error::Panicked("a task of a key-value store"))
        };
        rt::spawn(guarded(crate::apply::apply(Arc::clone(&shared), bitmap), ends()));
        if let (Some(persistent), Some(kept)) = (persistent, kept) {
            rt::spawn(guarded(crate::persist::persist(Arc::clone(&shared), persistent, kept), ends()));
        }
        rt::spawn(guarded(crate::apply::load(Arc::clone(&shared)), ends()));
        Ok(store)
    }

    /// The value of a key. Linearizable. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that is empty or too long; else as [`Coordinator::read`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>, Error> {
        match self.shared.get_confirmed(key) {
            Some(answer) => answer,
            None => {
                self.shared.geometry.check_key(key)?;
                // Boxed, so that not every get has to hold this larger future.
                self.shared.get(key).boxed().await
            }
        }
    }

    /// Sets the value of a key and returns its version. On return a majority has the entry. If the future is dropped, the put
    /// may still take effect.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key or value that is too long; [`Error::StoreFull`]; [`Error::Busy`]; [`Error::Ambiguous`]; and
    /// as [`Coordinator::read`], in which case the put had no effect.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<u64, Error> {
        self.shared.geometry.check(&key, Some(&value))?;
        match self.shared.change(key, None, Some(value)).await? {
            SwapOutcome::Done(version) => Ok(version),
            SwapOutcome::Mismatch(_) => unreachable!("nothing was expected"),
        }
    }

    /// Deletes a key; returns the version of the deletion, or `None` where the key had no value.
    ///
    /// # Errors
    /// As [`KvStore::put`].
    pub async fn delete(&self, key: Bytes) -> Result<Option<u64>, Error> {
        self.shared.geometry.check(&key, None)?;
        match self.shared.change(key, Some(Precondition::Present), None).await? {
            SwapOutcome::Done(version) => Ok(Some(version)),
            SwapOutcome::Mismatch(_) => Ok(None),
        }
    }

    /// Sets or deletes the value of a key, if the condition holds.
    ///
    /// # Errors
    /// As [`KvStore::put`].
    pub async fn compare_and_set(
        &self,
        key: Bytes,
        expected: Precondition,
        new: Option<Bytes>,
    ) -> Result<SwapOutcome, Error> {
        self.shared.geometry.check(&key, new.as_ref())?;
        self.shared.change(key, Some(expected), new).await
    }

    /// Every change of the keys that start with a prefix, from a version on. Without a version the watch starts now, and may
    /// include a change whose caller was acknowledged just before.
    ///
    /// # Errors
    /// [`Error::Compacted`] when the changes from that version on are no longer all remembered; [`Error::Busy`]; as
    /// [`Coordinator::read`].
    pub fn watch(&self, prefix: Bytes, from: Option<u64>) -> Result<KeyWatch, Error> {
        self.shared.coordinator.check_serving()?;
        let mut feed = lock(&self.shared.feed);
        // A store that ends after this check closes the feed, and this watcher with it.
        self.shared.check_open()?;
        feed.watch(prefix, from)
    }

    /// The state of the store.
    pub fn status(&self) -> KvStatus {
        let state = lock(&self.shared.state);
        KvStatus {
            last: state.last.index,
            applied: state.applied,
            log_used_bytes: state.used_bytes,
            blocks_free: state.free,
            cache_bytes: state.cache.bytes(),
            buckets_known: state.known,
            recovered: state.recovered,
            persisted: Some(state.persisted).filter(|persisted| *persisted < u64::MAX),
        }
    }

    /// The coordinator of the store.
    pub fn coordinator(&self) -> &Coordinator {
        &self.shared.coordinator
    }

    /// Completes when the store has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        lock(&self.shared.state).ended.clone().unwrap_or(Error::Closed)
    }
}

impl fmt::Debug for KvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.shared.coordinator)
    }
}
