//! Who serves the stores: a processor of each store's own, and backups that all of them share.
//!
//! A store that nobody coordinates waits for a backup, and says so ([`Stores::why_not`]); its own processor may come back first.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::ErrorKind;
use base::rt::{self, Stop, Task};
use consensus::backups::{GroupState, Serve};
use consensus::kv::{Options, Persistent, Sizes, Store};
use consensus::{BackupPool, Error, Group, PoolOptions, PoolStatus, Standby, Unopened, Watched};
use futures_util::FutureExt as _;

use super::STORES_MAX;
use super::service::Current;

/// What the pool's coordinators bear in heartbeats; the stores' own bear smaller numbers.
const POOL: u64 = 1 << 20;

/// The stores of a process.
pub(super) struct Stores {
    served: Vec<Served>,
    pool: OnceLock<BackupPool>,
    wanted: Processors,
    processors: Mutex<Vec<Task<()>>>,
}

/// One of them.
#[derive(Clone)]
struct Served {
    group: Group,
    kept: Option<Persistent>,
    sizes: Sizes,
    options: Options,
    current: Arc<Current>,
    /// How many have served it: the last of them is current.
    turns: Arc<Mutex<u64>>,
    failed: Arc<Mutex<Option<Error>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether nobody else would have more luck.
fn cannot_go_on(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) || matches!(error, Error::Disk { .. })
}

impl Served {
    /// Serves it until its coordinator ends; gives the reason.
    async fn serve(&self, unopened: Unopened) -> Error {
        let taken = match self.kept.clone() {
            Some(kept) => match unopened.open().await {
                Ok(coordinator) => Store::take_over_persistent(coordinator, self.sizes, self.options, kept).await,
                Err(error) => Err(error),
            },
            None => Store::take_over_unopened(unopened, self.sizes, self.options).await,
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
                // What it keeps in memory goes with it, unless another serves already.
                if *turns == turn {
                    self.current.set(None);
                }
                drop(turns);
                ended
            }
            Err(error) => error,
        };
        tracing::info!(group = self.group.id.0, error = %ended, "a coordinator of a key-value store has ended");
        if cannot_go_on(&ended) {
            self.fail(ended.clone());
        }
        ended
    }

    fn fail(&self, error: Error) {
        tracing::error!(group = self.group.id.0, %error, "a key-value store cannot go on");
        *lock(&self.failed) = Some(error);
    }

    /// Its own processor: stands by, serves, stands by again.
    async fn process(self, number: u64) {
        let mut standby = match Standby::new(self.group.clone(), number) {
            Ok(standby) => standby,
            Err(error) => return self.fail(error),
        };
        loop {
            match standby.take_over_unopened().await {
                Ok(unopened) => {
                    let ended = self.serve(unopened).boxed().await;
                    if cannot_go_on(&ended) {
                        return;
                    }
                }
                Err(error) => return self.fail(error),
            }
        }
    }
}

/// Which processors a process has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Processors {
    /// Each store's own.
    pub own: bool,
    /// Backups that all stores share.
    pub backups: u32,
    /// Tells them from those of other processes.
    pub number: u32,
}

impl Stores {
    /// Begins to see to all, where they are kept in tables those of each. Where a process has each store's own processors its
    /// backups do not watch before these serve.
    ///
    /// # Errors
    /// More backups than there can be.
    pub(super) fn start(
        groups: Vec<Group>,
        kept: Vec<Persistent>,
        sizes: Sizes,
        options: Options,
        processors: Processors,
        stop: &Stop,
    ) -> Result<Arc<Stores>, Error> {
        let mut kept = kept.into_iter();
        let served = groups.into_iter().map(|group| {
            let (current, turns, failed) = (Arc::default(), Arc::default(), Arc::default());
            Served { group, kept: kept.next(), sizes, options, current, turns, failed }
        });
        let served: Vec<Served> = served.collect();
        let mut tasks = Vec::new();
        let first = u64::from(processors.number) * u64::from(STORES_MAX);
        for (number, served) in (first..).zip(served.iter().filter(|_| processors.own).cloned()) {
            let stop = stop.clone();
            tasks.push(rt::spawn(async move {
                stop.or_stopped(served.process(number)).await;
            }));
        }
        let (pool, tasks) = (OnceLock::new(), Mutex::new(tasks));
        let stores = Arc::new(Stores { served, pool, wanted: processors, processors: tasks });
        if !processors.own {
            stores.start_pool()?;
        }
        Ok(stores)
    }

    /// Waits until this process serves all, and has its backups watch.
    ///
    /// # Errors
    /// Why one cannot be served.
    pub(super) async fn served(&self, patience: Duration) -> Result<(), Error> {
        for served in &self.served {
            if served.current.serving(patience).await.is_none() {
                return Err(self.failed().unwrap_or(Error::NotElected));
            }
        }
        self.start_pool()
    }

    fn start_pool(&self) -> Result<(), Error> {
        let watched = self.served.iter().cloned().map(|served| {
            let group = served.group.clone();
            let serve: Serve = Arc::new(move |coordinator| {
                let served = served.clone();
                async move { served.serve(coordinator.into()).await }.boxed()
            });
            Watched { group, serve }
        });
        let Processors { backups, number, .. } = self.wanted;
        let options = PoolOptions { number: POOL + u64::from(number), processors: backups as usize };
        let pool = BackupPool::start(watched.collect(), options)?;
        self.pool.set(pool).expect("it is set once");
        Ok(())
    }

    pub(super) fn current(&self, store: usize) -> &Current {
        &self.served[store].current
    }

    pub(super) fn count(&self) -> usize {
        self.served.len()
    }

    /// How the backups are.
    pub(super) fn backups(&self) -> Option<PoolStatus> {
        self.pool.get().map(BackupPool::status)
    }

    /// Why nobody serves a store, for its clients.
    pub(super) fn why_not(&self, store: usize) -> String {
        let state = self.backups().and_then(|status| Some(status.groups.get(store)?.1.clone()));
        match state {
            Some(GroupState::Waiting { since }) => format!(
                "no coordinator serves: for {} ms the store has waited for a backup, all of which are busy; ask again",
                since.elapsed().as_millis()
            ),
            Some(GroupState::Failed(error)) => format!("no coordinator can serve: {error}"),
            _ => "no coordinator serves for now; ask again".to_owned(),
        }
    }

    /// Why one of them cannot go on.
    pub(super) fn failed(&self) -> Option<Error> {
        let failed = |served: &Served| lock(&served.failed).clone();
        self.served.iter().find_map(failed)
    }

    /// Ends what serves them; the processors end with the process' stop.
    pub(super) async fn stop(&self) {
        if let Some(pool) = self.pool.get() {
            pool.stop().await;
        }
        self.served.iter().for_each(|served| served.current.set(None));
        let processors = std::mem::take(&mut *lock(&self.processors));
        for processor in processors {
            let _ = processor.await;
        }
    }
}
