//! Private rows of a channel on a storage node, as [`PrivateRows`].

use std::fmt;
use std::sync::Arc;

use base::{BlockNumber, Bytes};
use wire::Malformed;

use super::client::{NodeSession, RemoteStoreConfig};
use super::message::{KeyList, LinkPurpose, Request, response};
use super::private_message::{CopiedWrite, PrivateAsk, PrivateRequest, SCAN_ROWS_LIMIT, read_scanned};
use super::view::ViewId;
use super::{RESPONSE_TIMEOUT, WORK_TIMEOUT};
use crate::Error;
use crate::private::{PrivateRow, PrivateRows, PrivateTable, RowsPage};
use crate::state_store::check_keys;
use crate::tables::{RangePage, RangeQuery, Row, check_key};

/// One table of private rows of a channel on a storage node. Requests are repeated over the next link when one is lost: writing
/// the same rows again changes nothing.
pub struct RemotePrivateRows {
    session: Arc<NodeSession>,
    table: PrivateTable,
}

impl RemotePrivateRows {
    /// The committed and the transient rows of a channel, for a primary. Contacts the node when first asked.
    pub fn of_primary(options: RemoteStoreConfig) -> [RemotePrivateRows; 2] {
        RemotePrivateRows::over(options, LinkPurpose::Materializer)
    }

    /// The same for a follower, which may only read committed rows; the epoch is ignored.
    pub fn of_follower(options: RemoteStoreConfig) -> [RemotePrivateRows; 2] {
        RemotePrivateRows::over(options, LinkPurpose::Reader)
    }

    fn over(options: RemoteStoreConfig, purpose: LinkPurpose) -> [RemotePrivateRows; 2] {
        let session = Arc::new(NodeSession::new(options, purpose, Arc::new(|_| {})));
        [PrivateTable::Committed, PrivateTable::Transient]
            .map(|table| RemotePrivateRows { session: Arc::clone(&session), table })
    }

    async fn ask(&self, ask: PrivateAsk, time_max: std::time::Duration) -> Result<Bytes, Error> {
        let request = Request::Private(PrivateRequest { table: self.table, ask }.encode());
        self.session.ask(request.encode(), time_max).await
    }

    fn malformed(&self, malformed: Malformed) -> Error {
        self.session.options().malformed(malformed)
    }
}

impl RemotePrivateRows {
    /// As [`PrivateRows::write`], for a channel with several copies: the caller writes to all of them, and names the view that it
    /// knows. `number` is the primary's number for the write.
    ///
    /// # Errors
    /// As [`PrivateRows::write`]; `Retry` if transient rows are written in another view than the node's.
    pub async fn write_copied(&self, rows: Vec<PrivateRow>, view: ViewId, number: u64) -> Result<(), Error> {
        rows.iter().try_for_each(|row| check_key(&row.namespace, &row.key))?;
        let epoch = self.session.options().epoch;
        let copied = Some(CopiedWrite { view, number });
        self.ask(PrivateAsk::Write { epoch, copied, rows }, WORK_TIMEOUT).await.map(drop)
    }

    /// The rows of all keys and versions in the order of their keys, from a place on; for a primary that copies them.
    ///
    /// # Errors
    /// As [`PrivateRows::get_many`].
    pub async fn scan(&self, from: Bytes) -> Result<RowsPage, Error> {
        let response = self.ask(PrivateAsk::Scan { from, limit: SCAN_ROWS_LIMIT as u32 }, RESPONSE_TIMEOUT).await?;
        read_scanned(response).map_err(|malformed| self.malformed(malformed))
    }

    /// Adds rows of another copy to one that is being built. Rows that are there stay as they are.
    ///
    /// # Errors
    /// As [`PrivateRows::write`]; `Rejected` unless the copy is being built.
    pub async fn copy(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        let epoch = self.session.options().epoch;
        self.ask(PrivateAsk::Copy { epoch, rows }, WORK_TIMEOUT).await.map(drop)
    }
}

#[async_trait::async_trait]
impl PrivateRows for RemotePrivateRows {
    async fn write(&self, rows: Vec<PrivateRow>) -> Result<(), Error> {
        rows.iter().try_for_each(|row| check_key(&row.namespace, &row.key))?;
        let epoch = self.session.options().epoch;
        self.ask(PrivateAsk::Write { epoch, copied: None, rows }, WORK_TIMEOUT).await.map(drop)
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        check_keys(keys.len())?;
        keys.iter().try_for_each(|(namespace, key)| check_key(namespace, key))?;
        let mut rows = Vec::with_capacity(keys.len());
        // Each answer has at least one row.
        while rows.len() < keys.len() {
            let rest = &keys[rows.len()..];
            let response = self.ask(PrivateAsk::Rows { through, keys: KeyList::new(rest) }, RESPONSE_TIMEOUT).await?;
            response::read_rows(response, rest.len(), &mut rows).map_err(|malformed| self.malformed(malformed))?;
        }
        Ok(rows)
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let RangeQuery { namespace, start, end, through, limit } = query;
        check_key(namespace, start)?;
        check_key(namespace, end)?;
        let (limit, namespace) = (u32::try_from(limit).unwrap_or(u32::MAX), namespace.to_owned());
        let (start, end) = (Bytes::copy_from_slice(start), Bytes::copy_from_slice(end));
        let response = self.ask(PrivateAsk::Range { through, limit, namespace, start, end }, RESPONSE_TIMEOUT).await?;
        response::read_page(response).map_err(|malformed| self.malformed(malformed))
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<bool, Error> {
        let epoch = self.session.options().epoch;
        let response = self.ask(PrivateAsk::Prune { epoch, oldest }, WORK_TIMEOUT).await?;
        let finished = response::read_number(response).map_err(|malformed| self.malformed(malformed))?;
        Ok(finished != 0)
    }
}

impl fmt::Debug for RemotePrivateRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePrivateRows")
            .field("options", self.session.options())
            .field("table", &self.table)
            .finish_non_exhaustive()
    }
}
