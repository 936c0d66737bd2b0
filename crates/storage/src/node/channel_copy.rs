//! A channel that is one of several copies: its view, and the epochs that its primaries get in it.

use base::{Epoch, ErrorKind, rt};

use super::channel::{EPOCH_GUARD_PERMITS, StoredChannel};
use super::config::StorageNodeConfig;
use super::epoch::{self, EpochRecord};
use super::private_message::CopiedWrite;
use super::view::{CopyReset, CopyStatus, Installation, RegisteredView, ViewId};
use crate::private::{PrivateRow, PrivateTable};
use crate::state_store::StateStore as _;
use crate::{Error, lock};

impl StoredChannel {
    /// What this node has of the channel.
    pub fn copy_status(&self) -> CopyStatus {
        CopyStatus {
            epoch: self.epoch(),
            registered: lock(&self.registered).clone(),
            tip: self.blocks().tip(),
            savepoint: self.state().savepoint().height,
            private_write: self.private(PrivateTable::Committed).last_write(),
        }
    }

    /// Begins an epoch that the caller chose, for the next primary of a channel with views: newer than any that has begun here,
    /// and only if this node has no newer view than the caller knows.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a later epoch, or this one, has begun; `Retry` if there is a newer view; errors of the operating
    /// system: the epoch may have begun nevertheless.
    pub async fn begin_in(&self, epoch: Epoch, newest: ViewId) -> Result<CopyStatus, Error> {
        self.check_writable()?;
        let _whole_gate = self.epoch_guard.acquire_many(EPOCH_GUARD_PERMITS).await;
        self.complete_advance().await?;
        let view = lock(&self.registered).view.id;
        if view > newest {
            return Err(self.remote(ErrorKind::Retry, "its copies have changed; ask for their view again"));
        }
        if epoch <= self.epoch() {
            return Err(Error::Fenced { given: epoch, newest: self.epoch() });
        }
        self.advance(epoch).await?;
        // A candidate compares the copies by what is durable.
        self.record_failure(self.blocks().sync().await)?;
        Ok(self.copy_status())
    }

    /// Takes over a view in which this node has a complete copy. Durable on return.
    ///
    /// # Errors
    /// [`Error::Fenced`] under another epoch than the newest one, or if a newer view is here; errors of the operating system: the
    /// view may be here nevertheless.
    pub async fn install_member(&self, installation: Installation) -> Result<(), Error> {
        self.check_writable()?;
        let _whole_gate = self.epoch_guard.acquire_many(EPOCH_GUARD_PERMITS).await;
        self.complete_advance().await?;
        let Installation { epoch, registered, .. } = installation;
        self.check_epoch(epoch)?;
        if epoch > self.epoch() {
            return Err(Error::Invalid("a view is installed under an epoch that has begun"));
        }
        if *lock(&self.registered) == registered {
            return Ok(());
        }
        self.check_newer_view(&registered)?;
        self.record(EpochRecord { epoch, registered, reset: CopyReset::Nothing }).await
    }

    /// Takes over a view in which this node's copy is being built, and removes what the installation says. The node of an older view
    /// may have begun epochs that no primary ever got; the epoch of the view replaces them. The channel ends, and must be opened
    /// again. Durable on return.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a newer view is here; errors of the operating system and of the engine: the view may be here
    /// nevertheless.
    pub async fn install_learner(&self, options: &StorageNodeConfig, installation: Installation) -> Result<(), Error> {
        self.check_writable()?;
        let _whole_gate = self.epoch_guard.acquire_many(EPOCH_GUARD_PERMITS).await;
        self.complete_advance().await?;
        let Installation { epoch, registered, reset } = installation;
        if *lock(&self.registered) == registered && self.epoch() == epoch {
            return Ok(());
        }
        self.check_newer_view(&registered)?;
        // Requests that wait for a permit are refused when they get it, and running ones are waited for.
        self.fail(self.remote(ErrorKind::Closed, "the copy is built again"));
        self.end().await;
        self.materialize_to(0).await?;
        // A failed attempt leaves this or the earlier view; the removal is completed when the channel is opened again.
        let record = EpochRecord { epoch, registered, reset };
        epoch::write(&self.epochs, &self.name, &record).await?;
        super::reset::complete(options, &self.epochs, &self.name).await.map(drop)
    }

    fn check_newer_view(&self, given: &RegisteredView) -> Result<(), Error> {
        match given.view.id > lock(&self.registered).view.id {
            true => Ok(()),
            false => Err(Error::Fenced { given: given.view.id.epoch, newest: self.epoch() }),
        }
    }

    /// Confirms that a reader knows the newest view.
    ///
    /// # Errors
    /// `Retry` if this node has another view.
    pub fn check_view(&self, known: ViewId) -> Result<(), Error> {
        self.check_writable()?;
        match lock(&self.registered).view.id == known {
            true => Ok(()),
            false => Err(self.remote(ErrorKind::Retry, "its copies have changed; ask for their view again")),
        }
    }

    /// Refuses an epoch that this node has not begun itself, where it has a view: epochs come from `begin_in`.
    pub(super) fn check_given_elsewhere(&self) -> Result<(), Error> {
        // The mutant of the simulation: an epoch that was begun at another copy counts here, too.
        if rt::fault_point("storage.copies.mutant.admit_foreign_epoch") {
            return Ok(());
        }
        match lock(&self.registered).view.id.number {
            0 => Ok(()),
            _ => Err(Error::Invalid("the channel has several copies, and the epoch has not begun at this one")),
        }
    }

    /// Refuses a primary that knows of no copies where there are some.
    pub(super) fn check_alone(&self) -> Result<(), Error> {
        match lock(&self.registered).view.id.number {
            0 => Ok(()),
            _ => Err(self.remote(
                ErrorKind::Rejected,
                "the channel has several copies: name all storage nodes of the peer in its configuration",
            )),
        }
    }

    /// Checks a write of private rows against the view. The caller holds a permit of the epoch guard.
    pub(super) fn check_copied(&self, table: PrivateTable, copied: Option<CopiedWrite>) -> Result<(), Error> {
        self.check_writable()?;
        let view = lock(&self.registered).view.id;
        match copied {
            None if view.number == 0 => Ok(()),
            None => Err(self.remote(ErrorKind::Retry, "the channel has several copies; ask for their view")),
            // The primary makes the views; other writers must not miss a new copy.
            Some(_) if table == PrivateTable::Committed => Ok(()),
            Some(copied) => self.check_view(copied.view),
        }
    }

    /// Adds private rows that another copy has, for a primary that builds this copy. Rows that are here already stay as they are:
    /// what the primary has written since is newer.
    ///
    /// # Errors
    /// [`Error::Fenced`]; [`Error::Invalid`] unless the copy is being built; errors of the engine.
    pub async fn copy_private(&self, table: PrivateTable, given: Epoch, rows: Vec<PrivateRow>) -> Result<(), Error> {
        self.check_writable()?;
        let _place = self.epoch_guard.acquire().await;
        self.check_writable()?;
        self.check_epoch(given)?;
        if !lock(&self.registered).is_learner() {
            return Err(Error::Invalid("private rows are copied only to a copy that is being built"));
        }
        let epoch = if table == PrivateTable::Committed { given } else { Epoch(0) };
        self.record_failure(self.engine.record(self.private(table).write_missing(epoch, rows).await))
    }
}
