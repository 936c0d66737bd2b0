//! The private rows of a channel on several copies, as the primary sees them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::rt;
use base::{BlockNumber, ErrorKind};
use storage::tables::{RangePage, RangeQuery, Row};
use storage::{Error, PrivateRow, PrivateRows, PrivateTable};

use crate::copies_core::{CopiesCore, Session};
use crate::limits::{REPEAT_MAX, REPEAT_PAUSE};
use crate::set::error;

/// One table of private rows that every copy has; see [the crate](crate).
pub struct CopiedPrivate {
    session: Arc<Session>,
    table: PrivateTable,
}

impl CopiedPrivate {
    pub(crate) fn new(session: Arc<Session>, table: PrivateTable) -> CopiedPrivate {
        CopiedPrivate { session, table }
    }
}

impl CopiesCore {
    /// Step 3: writes committed private rows to all copies, one write at a time.
    pub async fn write_committed(self: &Arc<Self>, rows: Vec<PrivateRow>) -> Result<(), Error> {
        let core = Arc::clone(self);
        // In a task, because a write that is dropped halfway would leave the copies different.
        let task = rt::spawn(async move {
            let mut last = core.writing.lock().await;
            core.check()?;
            let number = last.saturating_add(1);
            *last = number;
            let view = core.lock().view.id;
            let rows = &rows;
            let outcome = core
                .on_all(core.written_to(), |member| async move {
                    member.private(PrivateTable::Committed).write_copied(rows.clone(), view, number).await
                })
                .await;
            if let Err(error) = &outcome
                && !matches!(error.kind(), ErrorKind::Rejected)
            {
                // Some copies may have the rows. No later write hides that: the next primary compares the copies.
                core.fail(error.clone());
            }
            outcome
        });
        task.await.unwrap_or(Err(Error::Invalid("the node stopped before the writing ended")))
    }

    /// Writes transient rows to all copies of the view in force.
    async fn write_transient(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        let started = rt::now();
        loop {
            let (view, copies) = (self.lock().view.id, self.written_to());
            let has_changed = &AtomicBool::new(false);
            let rows = &rows;
            let outcome = self
                .on_all(copies.clone(), |member| async move {
                    if self.lock().view.id != view {
                        has_changed.store(true, Ordering::Relaxed);
                        return Ok(());
                    }
                    member.private(PrivateTable::Transient).write_copied(rows.clone(), view, 0).await
                })
                .await;
            // A copy of another view has not got the rows; some of those of the earlier one are not enough.
            let now = self.written_to();
            let are_all = now.iter().all(|member| copies.iter().any(|copy| Arc::ptr_eq(copy, member)));
            let is_same = are_all && !has_changed.load(Ordering::Relaxed) && self.lock().view.id == view;
            match outcome {
                Ok(()) if is_same => return Ok(()),
                Err(error) if is_same => return Err(error),
                _ => {}
            }
            self.check()?;
            if started.elapsed() > REPEAT_MAX {
                return Err(error(self.set.first(), ErrorKind::Retry, "the copies change again and again"));
            }
            rt::sleep(REPEAT_PAUSE).await;
        }
    }
}

#[async_trait::async_trait]
impl PrivateRows for CopiedPrivate {
    async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        match self.table {
            PrivateTable::Committed => self.session.core.write_committed(rows).await,
            PrivateTable::Transient => self.session.core.write_transient(rows).await,
        }
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        let table = self.table;
        self.session.core.read(|member| async move { member.private(table).get_many(keys, through).await }).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let table = self.table;
        self.session.core.read(|member| async move { member.private(table).range(query).await }).await
    }

    /// The end of the table is reached once the last copy has reached it.
    async fn prune(&self, oldest: BlockNumber) -> Result<bool, Error> {
        let (table, finished) = (self.table, &AtomicBool::new(true));
        // Not the learner's: a row that is copied late must find what replaced it.
        self.session
            .core
            .on_all(self.session.core.members(), |member| async move {
                let is_finished = member.private(table).prune(oldest).await?;
                finished.fetch_and(is_finished, Ordering::Relaxed);
                Ok(())
            })
            .await?;
        Ok(finished.load(Ordering::Relaxed))
    }
}

impl fmt::Debug for CopiedPrivate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedPrivate").field("table", &self.table).finish_non_exhaustive()
    }
}
