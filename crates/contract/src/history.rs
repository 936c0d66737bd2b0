//! The history of a key: its changes by committed transactions, newest first.
//!
//! As in Fabric, a history is not part of the read set, so the conflict check does not cover it. A transaction that
//! derives a value from a history may therefore miss a change that commits before the transaction does. Like every
//! other read, a history contains only changes in blocks below the transaction's block boundary.

use std::collections::VecDeque;

use super::query::KeyModification;
use crate::{ContractStub, PAGE_ENTRIES_MAX, QueryId, StubError};

/// Reads an open history change by change, holding one page at most.
#[derive(Debug)]
pub struct HistoryCursor {
    query: QueryId,
    page: VecDeque<KeyModification>,
    has_more: bool,
}

impl HistoryCursor {
    /// Opens the history of a key.
    ///
    /// # Errors
    /// Those of [`ContractStub::open_history`].
    pub async fn open(tx: &mut dyn ContractStub, key: &str) -> Result<Self, StubError> {
        Ok(Self { query: tx.open_history(key).await?, page: VecDeque::new(), has_more: true })
    }

    /// The change before; `None` at the end, again and again.
    ///
    /// # Errors
    /// Those of [`ContractStub::next_modifications`].
    pub async fn next(&mut self, tx: &mut dyn ContractStub) -> Result<Option<KeyModification>, StubError> {
        while self.page.is_empty() && self.has_more {
            let page = tx.next_modifications(self.query, PAGE_ENTRIES_MAX).await?;
            self.has_more = page.has_more;
            self.page = page.modifications.into();
        }
        Ok(self.page.pop_front())
    }

    /// Gives the query up before its end.
    pub fn close(self, tx: &mut dyn ContractStub) {
        if self.has_more {
            tx.close_query(self.query);
        }
    }
}
