//! The queries that one call of a chaincode has open, and their results in batches.
//!
//! 1. A query opens with its first batch. If more follows, the chaincode gets an id that nobody can guess, and asks for the
//!    next batch with it.
//! 2. As Fabric's peers do, a batch looks one row ahead: the read set then covers the same rows at both.
//! 3. A query that is exhausted, closed or at [`QUERY_ROWS_MAX`] is forgotten. [`OpenQueries::close_all`] ends the rest with
//!    the call.

use std::collections::BTreeMap;

use base::{Bytes, rt};
use prost::Message;
use proto::protos::{QueryResponse, QueryResultBytes};
use proto::queryresult::{KeyModification as WireModification, Kv};

use crate::{ContractStub, KeyModification, KeyValue, PAGE_ENTRIES_MAX, QueryId, StubError};

/// Queries that one call may have open: more than a contract needs.
pub const OPEN_QUERIES_MAX: usize = 64;
/// Results that one query may have, as at Fabric's peers; it then ends as if nothing followed.
pub const QUERY_ROWS_MAX: usize = 100_000;
/// A batch ends early at this size, so that its message stays within the stream's bound.
const BATCH_BYTES_SOFT_MAX: usize = 32 << 20;

/// What a query walks over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QuerySource {
    /// Rows of the world state.
    Rows,
    /// The history of a key.
    History,
}

struct OpenQuery {
    source: QuerySource,
    id: QueryId,
    /// The encoded row that was read ahead.
    ahead: Option<Bytes>,
    /// Rows read so far.
    rows: usize,
    has_more: bool,
}

/// The open queries of one call.
#[derive(Default)]
pub(super) struct OpenQueries {
    open: BTreeMap<String, OpenQuery>,
}

impl OpenQueries {
    /// Whether another query may be opened.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub(super) fn check_room(&self) -> Result<(), StubError> {
        match self.open.len() < OPEN_QUERIES_MAX {
            true => Ok(()),
            false => Err(StubError::LimitExceeded { what: "open queries", max: OPEN_QUERIES_MAX as u64 }),
        }
    }

    /// Step 1, for a query that the stub has opened.
    pub(super) async fn start(
        &mut self,
        tx: &mut dyn ContractStub,
        source: QuerySource,
        id: QueryId,
    ) -> Result<QueryResponse, StubError> {
        let name = format!("{:016x}{:016x}", rt::random_u64(), rt::random_u64());
        self.open.insert(name.clone(), OpenQuery { source, id, ahead: None, rows: 0, has_more: true });
        let batch = self.next(tx, &name).await?;
        Ok(batch.expect("it was opened above"))
    }

    /// The next batch; `None` if there is no such query.
    pub(super) async fn next(
        &mut self,
        tx: &mut dyn ContractStub,
        name: &str,
    ) -> Result<Option<QueryResponse>, StubError> {
        let Some(query) = self.open.get_mut(name) else { return Ok(None) };
        let filled = query.fill(tx).await;
        if !matches!(&filled, Ok((_, true))) {
            self.close(tx, name);
        }
        let (results, has_more) = filled?;
        let results = results.into_iter().map(|row| QueryResultBytes { result_bytes: row }).collect();
        Ok(Some(QueryResponse { results, has_more, id: name.to_owned(), metadata: Bytes::new() }))
    }

    /// Closes a query, if there is one of this name.
    pub(super) fn close(&mut self, tx: &mut dyn ContractStub, name: &str) {
        if let Some(query) = self.open.remove(name)
            && query.has_more
        {
            tx.close_query(query.id);
        }
    }

    /// Closes what the chaincode left open.
    pub(super) fn close_all(&mut self, tx: &mut dyn ContractStub) {
        for query in std::mem::take(&mut self.open).into_values().filter(|query| query.has_more) {
            tx.close_query(query.id);
        }
    }
}

impl OpenQuery {
    /// The rows of one batch, and whether another one follows.
    async fn fill(&mut self, tx: &mut dyn ContractStub) -> Result<(Vec<Bytes>, bool), StubError> {
        let mut batch: Vec<Bytes> = self.ahead.take().into_iter().collect();
        let mut bytes = batch.iter().map(Bytes::len).sum::<usize>();
        while self.has_more && batch.len() < PAGE_ENTRIES_MAX && bytes < BATCH_BYTES_SOFT_MAX {
            let wanted = (PAGE_ENTRIES_MAX - batch.len()).min(QUERY_ROWS_MAX - self.rows);
            if wanted == 0 {
                return Ok((batch, false));
            }
            for row in self.read(tx, wanted).await? {
                bytes += row.len();
                batch.push(row);
            }
        }
        // Step 2.
        while self.has_more && self.ahead.is_none() && self.rows < QUERY_ROWS_MAX {
            self.ahead = self.read(tx, 1).await?.pop();
        }
        Ok((batch, self.ahead.is_some()))
    }

    /// At most `wanted` rows, encoded.
    async fn read(&mut self, tx: &mut dyn ContractStub, wanted: usize) -> Result<Vec<Bytes>, StubError> {
        let rows = match self.source {
            QuerySource::Rows => {
                let page = tx.next_page(self.id, wanted).await?;
                self.has_more = page.has_more;
                page.entries.into_iter().map(encode_row).collect::<Vec<_>>()
            }
            QuerySource::History => {
                let page = tx.next_modifications(self.id, wanted).await?;
                self.has_more = page.has_more;
                page.modifications.into_iter().map(encode_modification).collect()
            }
        };
        self.rows += rows.len();
        Ok(rows)
    }
}

/// One row as Fabric encodes it in results; its namespace stays empty, as the chaincode knows its own.
pub(super) fn encode_row(row: KeyValue) -> Bytes {
    Kv { namespace: String::new(), key: row.key, value: row.value }.encode_to_vec().into()
}

fn encode_modification(change: KeyModification) -> Bytes {
    let is_delete = change.value.is_none();
    WireModification {
        tx_id: change.tx_id.to_string(),
        value: change.value.unwrap_or_default(),
        timestamp: Some(prost_types::Timestamp { seconds: change.timestamp.seconds, nanos: change.timestamp.nanos }),
        is_delete,
    }
    .encode_to_vec()
    .into()
}
