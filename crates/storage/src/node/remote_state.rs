//! The world-state rows of a channel on a storage node, as a [`StateStore`].

use std::fmt;
use std::sync::{Arc, Mutex};

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::{BlockNumber, Bytes, Version};
use wire::Malformed;

use super::client::{NodeSession, RemoteStoreConfig};
use super::message::{self, LinkPurpose, Notification, Request, response};
use super::{RESPONSE_TIMEOUT, WORK_TIMEOUT};
use crate::history::{History, HistoryQuery};
use crate::state_store::{StateStore, check_keys};
use crate::tables::{RangePage, RangeQuery, Row, Savepoint, check_key};
use crate::{Error, lock};

/// The rows of one channel on a storage node. After the loss of a link, a read is repeated over the next link. A new
/// link serves reads only once the node has all rows below the savepoint that is known here.
pub struct RemoteStateStore {
    session: NodeSession,
    known: Arc<KnownSavepoint>,
}

struct KnownSavepoint {
    savepoint: Mutex<Savepoint>,
    height: WatchSender<u64>,
}

impl KnownSavepoint {
    fn learn(&self, savepoint: Savepoint) {
        {
            let mut known = lock(&self.savepoint);
            if savepoint.height <= known.height {
                return;
            }
            *known = savepoint;
        }
        self.height.send_if_modified(|height| {
            let newer = savepoint.height > *height;
            *height = savepoint.height.max(*height);
            newer
        });
    }
}

impl RemoteStateStore {
    /// Opens a channel's rows under the primary's epoch.
    ///
    /// # Errors
    /// `Fenced` if a newer primary has opened the channel; `Retry` if the node cannot be reached; its refusal.
    pub async fn open(options: RemoteStoreConfig) -> Result<RemoteStateStore, Error> {
        RemoteStateStore::with_role(options, LinkPurpose::Materializer).await
    }

    /// Opens a channel's rows for reading only; the epoch is ignored.
    ///
    /// # Errors
    /// As [`RemoteStateStore::open`]; `Rejected` if the node does not have the channel.
    pub async fn open_read_only(options: RemoteStoreConfig) -> Result<RemoteStateStore, Error> {
        RemoteStateStore::with_role(options, LinkPurpose::Reader).await
    }

    async fn with_role(options: RemoteStoreConfig, role: LinkPurpose) -> Result<RemoteStateStore, Error> {
        let known = Arc::new(KnownSavepoint { savepoint: Mutex::default(), height: watch(0).0 });
        let learn = Arc::clone(&known);
        let noticed = Arc::new(move |notice| match notice {
            Notification::Savepoint(savepoint) => learn.learn(savepoint),
            Notification::Durable(_) => {}
        });
        let relied_on = Arc::clone(&known);
        let session = NodeSession::new(options, role, noticed).relying_on(move || *lock(&relied_on.savepoint));
        session.open().await?;
        Ok(RemoteStateStore { session, known })
    }

    fn malformed(&self, malformed: Malformed) -> Error {
        self.session.options().malformed(malformed)
    }
}

/// Rejects keys that no row can have; their lengths would not fit the messages.
fn check_all(keys: &[(&str, &[u8])]) -> Result<(), Error> {
    check_keys(keys.len())?;
    keys.iter().try_for_each(|(namespace, key)| check_key(namespace, key))
}

#[async_trait::async_trait]
impl StateStore for RemoteStateStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        Ok(self.get_many(&[(namespace, key)], through).await?.pop().flatten())
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        check_all(keys)?;
        let mut rows = Vec::with_capacity(keys.len());
        // Each answer has at least one row.
        while rows.len() < keys.len() {
            let rest = &keys[rows.len()..];
            let response = self.session.ask(message::rows(through, rest, false), RESPONSE_TIMEOUT).await?;
            response::read_rows(response, rest.len(), &mut rows).map_err(|malformed| self.malformed(malformed))?;
        }
        Ok(rows)
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error> {
        check_all(keys)?;
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let response = self.session.ask(message::rows(through, keys, true), RESPONSE_TIMEOUT).await?;
        let mut versions = Vec::with_capacity(keys.len());
        response::read_versions(response, keys.len(), &mut versions).map_err(|malformed| self.malformed(malformed))?;
        Ok(versions)
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let RangeQuery { namespace, start, end, through, limit } = query;
        check_key(namespace, start)?;
        check_key(namespace, end)?;
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let request = message::range(through, limit, namespace, start, end);
        let response = self.session.ask(request, RESPONSE_TIMEOUT).await?;
        response::read_page(response).map_err(|malformed| self.malformed(malformed))
    }

    async fn namespaces(&self) -> Result<Vec<String>, Error> {
        let response = self.session.ask(Request::Namespaces.encode(), RESPONSE_TIMEOUT).await?;
        response::read_names(response).map_err(|malformed| self.malformed(malformed))
    }

    fn savepoint(&self) -> Savepoint {
        *lock(&self.known.savepoint)
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.known.height.subscribe()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, Error> {
        let request = Request::Materialize { epoch: self.session.options().epoch, height };
        let response: Bytes = self.session.ask(request.encode(), WORK_TIMEOUT).await?;
        let savepoint = response::read_savepoint(response).map_err(|malformed| self.malformed(malformed))?;
        self.known.learn(savepoint);
        Ok(savepoint)
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error> {
        let request = Request::Prune { epoch: self.session.options().epoch, oldest };
        self.session.ask(request.encode(), WORK_TIMEOUT).await.map(drop)
    }

    async fn confirm(&self) -> Result<(), Error> {
        let request = Request::Confirm { epoch: self.session.options().epoch };
        self.session.ask(request.encode(), RESPONSE_TIMEOUT).await.map(drop)
    }
}

#[async_trait::async_trait]
impl History for RemoteStateStore {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        self.session.blocks_of(query).await
    }
}

impl fmt::Debug for RemoteStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStateStore").field("savepoint", &self.savepoint().height).finish_non_exhaustive()
    }
}
