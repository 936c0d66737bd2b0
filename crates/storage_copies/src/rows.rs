//! The rows of a channel on several copies, as the primary sees them.

use std::fmt;
use std::sync::Arc;

use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Version};
use storage::tables::{RangePage, RangeQuery, Row, Savepoint};
use storage::{Error, History, HistoryQuery, StateStore};

use crate::copies_core::Session;

/// Rows, which each copy makes from its blocks; see [the crate](crate).
pub struct CopiedRows {
    session: Arc<Session>,
}

impl CopiedRows {
    pub(crate) fn new(session: Arc<Session>) -> CopiedRows {
        CopiedRows { session }
    }
}

#[async_trait::async_trait]
impl StateStore for CopiedRows {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        self.session.core.read(|member| async move { member.rows.get(namespace, key, through).await }).await
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        self.session.core.read(|member| async move { member.rows.get_many(keys, through).await }).await
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error> {
        self.session.core.read(|member| async move { member.rows.versions(keys, through).await }).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        self.session.core.read(|member| async move { member.rows.range(query).await }).await
    }

    async fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.session.core.read(|member| async move { member.rows.namespaces().await }).await
    }

    fn savepoint(&self) -> Savepoint {
        self.session.core.savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.session.core.subscribe_savepoint()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, Error> {
        let materialize =
            |member: Arc<crate::member::Member>| async move { member.rows.materialize(height).await.map(drop) };
        self.session.core.on_all(self.session.core.appended_to(), materialize).await?;
        self.session.core.advance();
        Ok(self.session.core.savepoint())
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error> {
        let prune = |member: Arc<crate::member::Member>| async move { member.rows.prune(oldest).await };
        self.session.core.on_all(self.session.core.members(), prune).await
    }

    async fn confirm(&self) -> Result<(), Error> {
        self.session.core.check()?;
        self.session.core.on_all(self.session.core.members(), |member| async move { member.rows.confirm().await }).await
    }
}

#[async_trait::async_trait]
impl History for CopiedRows {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        self.session.core.read(|member| async move { member.rows.blocks_of(query).await }).await
    }
}

impl fmt::Debug for CopiedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CopiedRows").field("savepoint", &self.savepoint().height).finish_non_exhaustive()
    }
}
