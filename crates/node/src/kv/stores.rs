//! Who serves the stores: a processor of each store's own, and backups that all of them share.
//!
//! A store that nobody coordinates waits for a backup, and says so ([`Stores::why_not`]); its own processor may come back first.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use base::ErrorKind;
use base::rt::{self, Stop, Task};
use consensus::backups::{GroupState, Serve};
use consensus::kv::{Options, Persistent, Sizes, Store};
use consensus::{BackupPool, Coordinator, Error, Group, PoolOptions, PoolStatus, Standby, Watched};
use futures_util::FutureExt as _;

use super::START_MAX;
use super::service::Current;

/// What the pool's coordinators bear in heartbeats; the stores' own bear smaller numbers.
const POOL: u64 = 1000;

/// The stores of a process.
pub(super) struct Stores {
    served: Vec<Served>,
    pool: OnceLock<BackupPool>,
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
    failed: Arc<Mutex<Option<Error>>>,
}

/// Whether nobody else would have more luck.
fn cannot_go_on(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Rejected) || matches!(error, Error::Disk { .. })
}

impl Served {
    /// Serves it until its coordinator ends; gives the reason.
    async fn serve(&self, coordinator: Coordinator) -> Error {
        let taken = match self.kept.clone() {
            Some(kept) => Store::take_over_persistent(coordinator, self.sizes, self.options, kept).await,
            None => Store::take_over(coordinator, self.sizes, self.options).await,
        };
        let ended = match taken {
            Ok(store) => {
                self.current.set(Some(store.clone()));
                store.ended().await
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
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }

    /// Its own processor: stands by, serves, stands by again.
    async fn process(self, number: u64) {
        let mut standby = match Standby::new(self.group.clone(), number) {
            Ok(standby) => standby,
            Err(error) => return self.fail(error),
        };
        loop {
            match standby.take_over().await {
                Ok(coordinator) => {
                    let ended = self.serve(coordinator).boxed().await;
                    if cannot_go_on(&ended) {
                        return;
                    }
                }
                Err(error) => return self.fail(error),
            }
        }
    }
}

impl Stores {
    /// Starts all, where they are kept in tables those of each; on return they are served, each by its own processor.
    ///
    /// # Errors
    /// Why one cannot be served.
    pub(super) async fn start(
        groups: Vec<Group>,
        kept: Vec<Persistent>,
        sizes: Sizes,
        options: Options,
        backups: u32,
        stop: &Stop,
    ) -> Result<Arc<Stores>, Error> {
        let mut kept = kept.into_iter();
        let served = groups.into_iter().map(|group| {
            let (current, failed) = (Arc::default(), Arc::default());
            Served { group, kept: kept.next(), sizes, options, current, failed }
        });
        let served: Vec<Served> = served.collect();
        let mut processors = Vec::new();
        for (number, served) in served.iter().cloned().enumerate() {
            let stop = stop.clone();
            processors.push(rt::spawn(async move {
                stop.or_stopped(served.process(number as u64)).await;
            }));
        }
        let (pool, processors) = (OnceLock::new(), Mutex::new(processors));
        let stores = Arc::new(Stores { served, pool, processors });
        for served in &stores.served {
            if served.current.serving(START_MAX).await.is_none() {
                stop.stop();
                return Err(stores.failed().unwrap_or(Error::NotElected));
            }
        }
        let watched = stores.served.iter().cloned().map(|served| {
            let group = served.group.clone();
            let serve: Serve = Arc::new(move |coordinator| {
                let served = served.clone();
                async move { served.serve(coordinator).await }.boxed()
            });
            Watched { group, serve }
        });
        let pool = BackupPool::start(watched.collect(), PoolOptions { number: POOL, processors: backups as usize })?;
        stores.pool.set(pool).expect("it is set once");
        Ok(stores)
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
        let failed = |served: &Served| served.failed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.served.iter().find_map(failed)
    }

    /// Ends what serves them; the processors end with the process' stop.
    pub(super) async fn stop(&self) {
        if let Some(pool) = self.pool.get() {
            pool.stop().await;
        }
        self.served.iter().for_each(|served| served.current.set(None));
        let processors = std::mem::take(&mut *self.processors.lock().unwrap_or_else(PoisonError::into_inner));
        for processor in processors {
            let _ = processor.await;
        }
    }
}
