//! Drives a manager: observes, decides, records and acts, once a tick.

use std::time::Duration;

use crate::action::{DueIntent, Outcome};
use crate::fault::{Mutant, mutant};
use crate::machine::Manager;
use crate::record::ManagerRecord;
use crate::settings::ManagerSettings;
use crate::view::PoolView;

/// Why a manager cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ManagerError {
    /// A newer manager has started on the record. This one must end.
    #[error("another manager has started on {0}; this one ends")]
    Fenced(String),
    /// Another process holds the record.
    #[error("{0}: process {1} manages this pool; end it first")]
    Held(String, String),
    /// The record is damaged, or of another release.
    #[error("{0}: {1}; every node keeps running without it: move it away, and the manager starts without a memory")]
    Corrupt(String, String),
    /// The record cannot be read or written; nothing was done that it does not say.
    #[error("{0}: {1}")]
    Storage(String, std::io::Error),
}

/// Where a manager's record is kept.
pub trait RecordStore {
    /// The record; an empty one if there is none.
    ///
    /// # Errors
    /// [`ManagerError`].
    fn load(&mut self) -> Result<ManagerRecord, ManagerError>;

    /// Stores a record, durably, if no manager of a higher incarnation has stored one.
    ///
    /// # Errors
    /// [`ManagerError::Fenced`]: there is a newer manager. Otherwise the old or the new record is there.
    fn store(&mut self, record: &ManagerRecord) -> Result<(), ManagerError>;

    /// Checks that no newer manager has stored a record.
    ///
    /// # Errors
    /// As [`RecordStore::store`].
    fn check(&mut self, incarnation: u64) -> Result<(), ManagerError>;
}

/// The pool that a manager scales: what launches, drains and limits processes.
pub trait Pool {
    /// Everything as it is now.
    fn observe(&mut self) -> PoolView;

    /// Executes an action, in a bounded time. It may be executed again. A launch, a drain or a quota that takes effect
    /// late must not undo a later action on the same node; a late budget is within the limits, and the manager goes on
    /// from there. It rejects to stop a storage process at which a peer has a copy: the decision may be that of an earlier
    /// manager.
    fn execute(&mut self, due: &DueIntent) -> Outcome;
}

/// A manager with its record and its pool.
pub struct ManagerDriver<S, P> {
    manager: Manager,
    store: S,
    pool: P,
}

impl<S: RecordStore, P: Pool> ManagerDriver<S, P> {
    /// Starts a manager on what its predecessor recorded.
    ///
    /// # Errors
    /// [`ManagerError`]: the record cannot be read or written.
    pub fn start(mut store: S, pool: P, settings: ManagerSettings) -> Result<ManagerDriver<S, P>, ManagerError> {
        let manager = Manager::start(store.load()?, settings);
        let mut driver = ManagerDriver { manager, store, pool };
        driver.record()?;
        Ok(driver)
    }

    /// Looks, decides, records and acts. Returns what it saw.
    ///
    /// # Errors
    /// [`ManagerError::Fenced`]: it must end. After others it may go on: no action was executed that is not recorded.
    pub fn tick(&mut self, now: Duration, unix_ms: u64) -> Result<PoolView, ManagerError> {
        let view = self.pool.observe();
        self.manager.observe(&view, now, unix_ms);
        if !mutant(Mutant::ActUnrecorded) {
            self.record()?;
        }
        for due in self.manager.due(now) {
            if !mutant(Mutant::IgnoreFence) {
                self.store.check(self.manager.record().incarnation)?;
            }
            let outcome = self.pool.execute(&due);
            self.manager.complete(&due.peer, due.intent.number, outcome, now, unix_ms);
        }
        self.record()?;
        Ok(view)
    }

    /// The manager.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// The pool.
    pub fn pool(&mut self) -> &mut P {
        &mut self.pool
    }

    fn record(&mut self) -> Result<(), ManagerError> {
        if self.manager.has_changed() {
            self.store.store(self.manager.record())?;
            self.manager.stored();
        }
        Ok(())
    }
}
