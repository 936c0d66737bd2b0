//! Runs the CPU nodes of the stores: one for each store, and backups that all stores share.
//!
//! A store without a coordinator waits for a backup and reports that ([`StoreSet::why_not`]). If its own CPU node
//! returns first, that node serves.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::rt::sync::Notify;
use base::rt::{CancellationToken, Task};
use base::{ErrorKind, rt};
use futures_util::FutureExt as _;
use kv::{Error, KvConfig, KvStore, PersistentTables, StoreGeometry};
use sift::backups::{GroupState, ServeGroup};
use sift::{BackupPool, BackupPoolConfig, BackupPoolStatus, RecoveredCoordinator, SiftGroup, Standby, WatchedGroup};

use super::STORES_MAX;

/// The first number that the pool's coordinators put into heartbeats; the stores' own CPU nodes use smaller ones.
const POOL_NUMBER_BASE: u64 = 1 << 20;

/// The stores of a process.
pub(super) struct StoreSet {
    served: Vec<ServedStore>,
    pool: OnceLock<BackupPool>,
    cpu_nodes: CpuNodes,
    cpu_node_tasks: Mutex<Vec<Task<()>>>,
}

/// One of the stores.
#[derive(Clone)]
struct ServedStore {
    group: SiftGroup,
    persistent: Option<PersistentTables>,
    sizes: StoreGeometry,
    options: KvConfig,
    current: Arc<CurrentStore>,
    /// How many coordinators have served it: the last one is current.
    turns: Arc<Mutex<u64>>,
    failed: Arc<Mutex<Option<Error>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether no other CPU node could do better.
fn is_terminal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) || matches!(error, Error::Disk { .. })
}

impl ServedStore {
    /// Serves the store until its coordinator ends; returns the reason.
    async fn serve(&self, recovered: RecoveredCoordinator) -> Error {
        let taken = match self.persistent.clone() {
            Some(kept) => match recovered.open().await {
                Ok(coordinator) => KvStore::take_over_persistent(coordinator, self.sizes, self.options, kept).await,
                Err(error) => Err(error.into()),
            },
            None => KvStore::take_over_recovered(recovered, self.sizes, self.options).await,
        };
        let ended = match taken {
            Ok(store) => {
                let turn = {
                    let mut turns = lock(&self.turns);
                    *turns += 1;
                    self.current.set(Some(store.clone()));
                    *turns
                };
                let ended = store.ended().await;
                let turns = lock(&self.turns);
                // Clear it, so that its memory is freed, unless another coordinator serves already.
                if *turns == turn {
                    self.current.set(None);
                }
                drop(turns);
                ended
            }
            Err(error) => error,
        };
        tracing::info!(group = self.group.id.0, error = %ended, "a coordinator of a key-value store has ended");
        if is_terminal(&ended) {
            self.fail(ended.clone());
        }
        ended
    }

    fn fail(&self, error: Error) {
        tracing::error!(group = self.group.id.0, %error, "a key-value store cannot go on");
        *lock(&self.failed) = Some(error);
    }

    /// The loop of the store's own CPU node: stand by, serve, stand by again.
    async fn run_cpu_node(self, number: u64) {
        let mut standby = match Standby::new(self.group.clone(), number) {
            Ok(standby) => standby,
            Err(error) => return self.fail(error.into()),
        };
        loop {
            match standby.take_over_without_waiting().await {
                Ok(recovered) => {
                    let ended = self.serve(recovered).boxed().await;
                    if is_terminal(&ended) {
                        return;
                    }
                }
                Err(error) => return self.fail(error.into()),
            }
        }
    }
}

/// The CPU nodes of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuNodes {
    /// Whether the process has each store's own CPU node.
    pub own: bool,
    /// Backups that all stores share.
    pub backups: u32,
    /// Distinguishes this process's CPU nodes from those of other processes.
    pub number: u32,
}

impl StoreSet {
    /// Starts the CPU nodes of all stores; `kept` holds each store's tables if stores are kept in tables. If the
    /// process has the stores' own CPU nodes, its backups watch only after these serve.
    ///
    /// # Errors
    /// More backups than the maximum.
    pub(super) fn start(
        groups: Vec<SiftGroup>,
        kept: Vec<PersistentTables>,
        sizes: StoreGeometry,
        options: KvConfig,
        processors: CpuNodes,
        stop: &CancellationToken,
    ) -> Result<Arc<StoreSet>, Error> {
        let mut kept = kept.into_iter();
        let served = groups.into_iter().map(|group| {
            let (current, turns, failed) = (Arc::default(), Arc::default(), Arc::default());
            ServedStore { group, persistent: kept.next(), sizes, options, current, turns, failed }
        });
        let served: Vec<ServedStore> = served.collect();
        let mut tasks = Vec::new();
        let first = u64::from(processors.number) * u64::from(STORES_MAX);
        for (number, served) in (first..).zip(served.iter().filter(|_| processors.own).cloned()) {
            let stop = stop.clone();
            tasks.push(rt::spawn(async move {
                stop.run_until_cancelled(served.run_cpu_node(number)).await;
            }));
        }
        let (pool, tasks) = (OnceLock::new(), Mutex::new(tasks));
        let stores = Arc::new(StoreSet { served, pool, cpu_nodes: processors, cpu_node_tasks: tasks });
        if !processors.own {
            stores.start_pool()?;
        }
        Ok(stores)
    }

    /// Waits until this process serves all stores, then starts the backups' watch.
    ///
    /// # Errors
    /// Why a store cannot be served.
    pub(super) async fn served(&self, timeout: Duration) -> Result<(), Error> {
        for served in &self.served {
            if served.current.serving(timeout).await.is_none() {
                return Err(self.failed().unwrap_or(Error::Sift(sift::Error::NotElected)));
            }
        }
        self.start_pool()
    }

    fn start_pool(&self) -> Result<(), Error> {
        let watched = self.served.iter().cloned().map(|served| {
            let group = served.group.clone();
            let serve: ServeGroup = Arc::new(move |coordinator| {
                let served = served.clone();
                async move { served.serve(coordinator.into()).await.into() }.boxed()
            });
            WatchedGroup { group, serve }
        });
        let CpuNodes { backups, number, .. } = self.cpu_nodes;
        let options = BackupPoolConfig { number: POOL_NUMBER_BASE + u64::from(number), cpu_nodes: backups as usize };
        let pool = BackupPool::start(watched.collect(), options)?;
        self.pool.set(pool).expect("it is set once");
        Ok(())
    }

    pub(super) fn current(&self, store: usize) -> &CurrentStore {
        &self.served[store].current
    }

    pub(super) fn count(&self) -> usize {
        self.served.len()
    }

    /// The state of the backups.
    pub(super) fn backups(&self) -> Option<BackupPoolStatus> {
        self.pool.get().map(BackupPool::status)
    }

    /// Why no coordinator serves a store, for its clients.
    pub(super) fn why_not(&self, store: usize) -> String {
        let state = self.backups().and_then(|status| Some(status.groups.get(store)?.1.clone()));
        match state {
            Some(GroupState::Waiting { since }) => format!(
                "no coordinator serves: the store has waited for a backup for {} ms, and all backups are busy",
                since.elapsed().as_millis()
            ),
            Some(GroupState::Failed(end)) => format!("no coordinator can serve: {}", end.reason),
            _ => "no coordinator serves for now".to_owned(),
        }
    }

    /// Why a store has failed for good, if one has.
    pub(super) fn failed(&self) -> Option<Error> {
        let failed = |served: &ServedStore| lock(&served.failed).clone();
        self.served.iter().find_map(failed)
    }

    /// Stops the coordinators; the CPU nodes end with the process's stop.
    pub(super) async fn stop(&self) {
        if let Some(pool) = self.pool.get() {
            pool.stop().await;
        }
        self.served.iter().for_each(|served| served.current.set(None));
        let processors = std::mem::take(&mut *lock(&self.cpu_node_tasks));
        for processor in processors {
            let _ = processor.await;
        }
    }
}

/// The store instance that serves now, if any.
#[derive(Default)]
pub(super) struct CurrentStore {
    store: Mutex<Option<KvStore>>,
    changed: Notify,
}

impl CurrentStore {
    fn lock(&self) -> MutexGuard<'_, Option<KvStore>> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, store: Option<KvStore>) {
        *self.lock() = store;
        self.changed.notify_waiters();
    }

    /// The instance that serves at this moment.
    pub(super) fn now(&self) -> Option<KvStore> {
        let store = self.lock().clone();
        store.filter(|store| store.coordinator().is_serving())
    }

    /// Waits for an instance that serves.
    pub(super) async fn serving(&self, timeout: Duration) -> Option<KvStore> {
        let waiting = async {
            loop {
                let changed = self.changed.notified();
                match self.now() {
                    Some(store) => return store,
                    // An instance that has ended is cleared soon, or its notification came before this wait.
                    None => drop(rt::timeout(Duration::from_millis(5), changed).await),
                }
            }
        };
        rt::timeout(timeout, waiting).await.ok()
    }
}
