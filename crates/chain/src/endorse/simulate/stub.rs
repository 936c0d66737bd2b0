//! The stub of a running contract: Fabric's rules for what it reads and writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, ChannelId, TxId};
use contract::key::KeyRange;
use contract::{
    BookmarkedPage, CALL_DEPTH_MAX, ContractResponse, ContractStub, HistoryPage, KeyValue, Metadata, PAGE_ENTRIES_MAX,
    QueryId, StatePage, StubError, Timestamp,
};
use ledger::rwset::RangeRecorder;
use state::RangePage;

use super::{ContractCall, ContractEvent, RangeQuery, Simulation, check_key, check_length, history_error, state_error};
use crate::history::HistoryWalk;

/// Entries of one page with a bookmark: what Fabric's peers return at most.
const PAGED_ENTRIES_MAX: usize = 100_000;

#[async_trait::async_trait]
impl ContractStub for ContractCall<'_> {
    async fn get_state(&mut self, key: &str) -> Result<Option<Bytes>, StubError> {
        // First, because a contract may continue after every rejection.
        self.simulation.count_read().await;
        check_key(key)?;
        self.simulation.check_limits()?;
        let found = self.simulation.context.snapshot.get(&self.namespace, key).await.map_err(state_error)?;
        let version = found.as_ref().map(|found| found.version);
        self.simulation.recorder.read(&self.namespace, key, version);
        Ok(found.map(|found| found.value))
    }

    fn put_state(&mut self, key: &str, value: Bytes) -> Result<(), StubError> {
        check_key(key)?;
        self.simulation.note_write()?;
        self.simulation.recorder.write(&self.namespace, key, value);
        Ok(())
    }

    fn delete_state(&mut self, key: &str) -> Result<(), StubError> {
        self.put_state(key, Bytes::new())
    }

    async fn open_range(&mut self, range: KeyRange) -> Result<QueryId, StubError> {
        self.simulation.count_read().await;
        check_length(range.start())?;
        check_length(range.end())?;
        self.begin_range(None, range)
    }

    async fn next_page(&mut self, id: QueryId, entries_max: usize) -> Result<StatePage, StubError> {
        self.scan_page(id, entries_max, true).await
    }

    async fn read_page(&mut self, range: KeyRange, entries_max: usize) -> Result<BookmarkedPage, StubError> {
        self.simulation.count_read().await;
        check_length(range.start())?;
        check_length(range.end())?;
        self.simulation.note_paged_query()?;
        let (namespace, snapshot) = (self.namespace.clone(), self.simulation.context.snapshot.clone());
        let entries_max = if entries_max == 0 { PAGED_ENTRIES_MAX } else { entries_max.min(PAGED_ENTRIES_MAX) };
        let id = self.open_range(range.clone()).await?;
        let mut page = BookmarkedPage::default();
        let mut has_more = true;
        while has_more && page.entries.len() < entries_max {
            let found = self.scan_page(id, entries_max - page.entries.len(), false).await?;
            // A full page ends the query, and as in Fabric leaves the end of the range unread.
            has_more = found.has_more;
            page.entries.extend(found.entries);
        }
        self.close_query(id);
        if let (true, Some(last)) = (page.entries.len() == entries_max, page.entries.last()) {
            if let Some(query) = self.simulation.queries.get_mut(&id) {
                query.recorder.stop();
            }
            let start = format!("{}\0", last.key);
            let following = snapshot.range_versions(&namespace, &start, range.end(), 1).await;
            let following = following.map_err(state_error)?.entries;
            page.bookmark = following.into_iter().next().map(|(key, _)| String::from(&*key)).unwrap_or_default();
        }
        Ok(page)
    }

    async fn get_metadata(&mut self, key: &str) -> Result<Metadata, StubError> {
        self.get_state(key).await?;
        self.metadata_of("", key).await
    }

    fn set_metadata(&mut self, key: &str, metadata: Metadata) -> Result<(), StubError> {
        check_key(key)?;
        self.simulation.note_write()?;
        self.simulation.recorder.metadata_write(&self.namespace, key, metadata);
        Ok(())
    }

    async fn get_private(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        self.read_private(collection, key).await
    }

    async fn get_private_hash(&mut self, collection: &str, key: &str) -> Result<Option<Bytes>, StubError> {
        self.read_private_hash(collection, key).await
    }

    async fn put_private(&mut self, collection: &str, key: &str, value: Bytes) -> Result<(), StubError> {
        self.check_private_write(collection, key).await?;
        self.simulation.recorder.private_write(&self.namespace, collection, key, value);
        Ok(())
    }

    async fn purge_private(&mut self, collection: &str, key: &str) -> Result<(), StubError> {
        if !self.simulation.context.policies.config().capabilities().purges_private_data() {
            let reason =
                "purge private data is not enabled, channel application capability of V2_5 or later is required";
            return Err(StubError::Collection(reason.to_owned()));
        }
        self.check_private_write(collection, key).await?;
        self.simulation.recorder.private_purge(&self.namespace, collection, key);
        Ok(())
    }

    async fn open_private_range(&mut self, collection: &str, range: KeyRange) -> Result<QueryId, StubError> {
        self.begin_private_range(collection, range).await
    }

    async fn get_private_metadata(&mut self, collection: &str, key: &str) -> Result<Metadata, StubError> {
        self.read_private_metadata(collection, key).await
    }

    async fn set_private_metadata(&mut self, collection: &str, key: &str, metadata: Metadata) -> Result<(), StubError> {
        self.check_private_write(collection, key).await?;
        self.simulation.recorder.private_metadata_write(&self.namespace, collection, key, metadata);
        Ok(())
    }

    async fn open_history(&mut self, key: &str) -> Result<QueryId, StubError> {
        self.simulation.count_read().await;
        check_key(key)?;
        let id = self.simulation.new_query()?;
        // It leaves no trace in the read set; it counts as an entry, so that it is bounded.
        self.simulation.scanned += 1;
        let height = self.simulation.context.snapshot.height();
        self.simulation.histories.insert(id, HistoryWalk::new(&self.namespace, key, height));
        Ok(id)
    }

    async fn next_modifications(&mut self, id: QueryId, entries_max: usize) -> Result<HistoryPage, StubError> {
        let limit = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        self.simulation.end_turn().await;
        self.simulation.check_limits()?;
        let history = Arc::clone(&self.simulation.context.history);
        let walk = self.simulation.histories.get_mut(&id).filter(|walk| walk.namespace() == &*self.namespace);
        let page = walk.ok_or(StubError::UnknownQuery(id.0))?.page(&history, limit).await.map_err(history_error)?;
        let bytes = page.modifications.iter().filter_map(|change| change.value.as_ref()).map(Bytes::len).sum::<usize>();
        self.simulation.scanned += page.modifications.len();
        self.simulation.scanned_bytes += bytes;
        if !page.has_more {
            self.simulation.histories.remove(&id);
        }
        Ok(page)
    }

    fn close_query(&mut self, id: QueryId) {
        self.simulation.histories.remove(&id);
        if let Some(query) = self.simulation.queries.get_mut(&id) {
            query.over = true;
        }
    }

    async fn invoke_contract(
        &mut self,
        name: &str,
        args: Vec<Bytes>,
        channel: &str,
    ) -> Result<ContractResponse, StubError> {
        self.simulation.count_read().await;
        if self.depth + 1 >= CALL_DEPTH_MAX {
            return Err(StubError::LimitExceeded { what: "the call depth", max: CALL_DEPTH_MAX as u64 });
        }
        let context = &self.simulation.context;
        if channel.is_empty() || context.channel.as_str() == channel {
            if self.simulation.running.iter().any(|running| **running == *name) {
                let (tx_id, channel) = (&context.tx_id, &context.channel);
                let reason = format!("execute failed: error sending: txid: {tx_id}({channel}) exists");
                return Err(StubError::CallRefused(reason));
            }
            let channel = context.channel.clone();
            let outcome = self.simulation.call(name, &args, self.depth + 1, false).await;
            return Ok(outcome.map_err(|error| refused_call(error, &channel))?.response);
        }
        let Some(read) = context.cross_channel.view(channel, &context.client).await else {
            let reason = format!("Failed to get policy manager for channel [{channel}]");
            return Err(StubError::CallRefused(reason));
        };
        // A call on another channel is read only: its reads and writes are dropped.
        let mut context = context.clone();
        context.channel = ChannelId::from(channel);
        (context.snapshot, context.history, context.policies) = (read.snapshot, read.history, read.policies);
        context.private = read.private;
        let mut other = Simulation::new(context);
        (other.calls, other.scanned, other.scanned_bytes) =
            (self.simulation.calls, self.simulation.scanned, self.simulation.scanned_bytes);
        let outcome = other.call(name, &args, self.depth + 1, false).await;
        (self.simulation.calls, self.simulation.scanned, self.simulation.scanned_bytes) =
            (other.calls, other.scanned + other.recorder.entries(), other.scanned_bytes);
        Ok(outcome.map_err(|error| refused_call(error, &ChannelId::from(channel)))?.response)
    }

    fn set_event(&mut self, name: &str, payload: Bytes) -> Result<(), StubError> {
        if name.is_empty() {
            return Err(StubError::InvalidEvent("an event must have a name".to_owned()));
        }
        self.event = Some(ContractEvent { name: name.to_owned(), payload });
        Ok(())
    }

    fn tx_id(&self) -> &TxId {
        &self.simulation.context.tx_id
    }

    fn channel_id(&self) -> &ChannelId {
        &self.simulation.context.channel
    }

    fn timestamp(&self) -> Timestamp {
        self.simulation.context.timestamp
    }

    fn creator(&self) -> &Bytes {
        self.simulation.context.client.serialized()
    }

    fn transient(&self) -> &BTreeMap<String, Bytes> {
        &self.simulation.context.transient
    }

    fn args(&self) -> &[Bytes] {
        self.args
    }

    fn is_init(&self) -> bool {
        self.is_init
    }

    fn signed_proposal(&self) -> Bytes {
        self.simulation.context.signed_proposal.clone()
    }
}

impl ContractCall<'_> {
    /// Opens a query over public keys, or over those of a private collection.
    pub(super) fn begin_range(&mut self, collection: Option<String>, range: KeyRange) -> Result<QueryId, StubError> {
        let id = self.simulation.new_query()?;
        let query = RangeQuery {
            namespace: self.namespace.clone(),
            collection,
            next: range.start().to_owned(),
            is_ahead: false,
            recorder: RangeRecorder::new(range.start(), range.end()),
            over: false,
            range,
        };
        // Closed queries stay for their recorded results, so they count as entries.
        self.simulation.recorder.note_query();
        self.simulation.queries.insert(id, query);
        Ok(id)
    }

    /// The next page of an open query. If it looks ahead, a full page records the entry after it as read, as Fabric's peers do.
    async fn scan_page(&mut self, id: QueryId, entries_max: usize, looks_ahead: bool) -> Result<StatePage, StubError> {
        let limit = entries_max.clamp(1, PAGE_ENTRIES_MAX);
        self.simulation.end_turn().await;
        self.simulation.check_limits()?;
        let snapshot = self.simulation.context.snapshot.clone();
        let query = self.simulation.queries.get_mut(&id).ok_or(StubError::UnknownQuery(id.0))?;
        if *query.namespace != *self.namespace || query.over {
            return Err(StubError::UnknownQuery(id.0));
        }
        if query.collection.is_some() {
            return self.next_private_page(id, limit).await;
        }
        // Before Fabric's peers return a full page, they read the entry after it, which counts as read from then on.
        let limit = if looks_ahead && limit == PAGE_ENTRIES_MAX { limit + 1 } else { limit };
        let mut found = if query.range.is_empty() {
            RangePage::default()
        } else {
            let range = snapshot.range(&query.namespace, &query.next, query.range.end(), limit);
            range.await.map_err(state_error)?
        };
        // Whether anything follows a full page is not known until it is looked for.
        found.more |= looks_ahead && found.entries.len() == limit;
        let is_first_recorded = std::mem::take(&mut query.is_ahead);
        for entry in found.entries.iter().skip(usize::from(is_first_recorded)) {
            query.recorder.add(&entry.key, entry.versioned.version);
        }
        if found.entries.len() > PAGE_ENTRIES_MAX {
            found.entries.truncate(PAGE_ENTRIES_MAX);
            (found.more, query.is_ahead) = (true, true);
        }
        let mut page = StatePage { entries: Vec::with_capacity(found.entries.len()), has_more: found.more };
        let mut bytes = 0;
        for entry in found.entries {
            bytes += entry.key.len() + entry.versioned.value.len();
            page.entries.push(KeyValue { key: String::from(&*entry.key), value: entry.versioned.value });
        }
        self.simulation.scanned += page.entries.len();
        self.simulation.scanned_bytes += bytes;
        if page.has_more {
            let last = page.entries.last().expect("a page that has more has an entry");
            query.next.clear();
            query.next.push_str(&last.key);
            query.next.push('\0');
        } else {
            query.recorder.exhaust();
            query.over = true;
        }
        Ok(page)
    }
}

/// The error of a contract that calls another one which does not run, in Fabric's words.
fn refused_call(error: StubError, channel: &ChannelId) -> StubError {
    let missing = |reason: String| {
        format!(
            "execute failed: invalid invocation: [channel {channel}] failed to get chaincode container info for {reason}"
        )
    };
    match error {
        StubError::UnknownContract(name) => {
            StubError::CallRefused(missing(format!("{name}: chaincode {name} not found")))
        }
        StubError::NotApproved { ref contract, .. } | StubError::NotInstalled { ref contract, .. } => {
            StubError::CallRefused(missing(format!("{contract}: {error}")))
        }
        StubError::InvalidInvocation(_) => StubError::CallRefused(format!("execute failed: {error}")),
        error => error,
    }
}
