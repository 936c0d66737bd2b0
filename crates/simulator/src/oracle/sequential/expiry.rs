//! The oracle's rule for private data that expire: their hashes leave the state.

use std::collections::BTreeMap;

use base::Bytes;

use super::super::state_row::{StateKey, StateRow};
use super::Oracle;

/// The namespace of the schedule by which hashes expire.
const EXPIRY: &str = "$$expiry";

impl Oracle {
    /// Removes the hashes of private values whose last block to live was the one before, and schedules those that the block
    /// has written.
    pub(super) fn expire(&mut self, number: u64, written: &BTreeMap<StateKey, StateRow>) {
        let mut rows = std::mem::take(&mut self.scheduled);
        for (key, version) in rows.remove(&number).unwrap_or_default() {
            let (namespace, hash) = &key;
            self.state.remove(&(EXPIRY.to_owned(), format!("{number:016x}/{namespace}/{hash}")));
            if written.contains_key(&key) || self.state.get(&key).is_none_or(|row| row.version != version) {
                continue;
            }
            let metadata = (namespace.replacen("$$h", "$$n", 1), hash.clone());
            for key in [key, metadata] {
                if self.state.remove(&key).is_some() {
                    self.history.entry(key).or_default().push((number, None));
                }
            }
        }
        for (key, row) in written.iter().filter(|(_, row)| !row.value.is_empty()) {
            let (namespace, hash) = key;
            let Some((contract, collection)) = namespace.split_once("$$h") else { continue };
            let blocks = self.policies.collections.get(&(contract.to_owned(), collection.to_owned()));
            if let Some(expiry) = blocks.filter(|blocks| **blocks > 0).map(|blocks| number + blocks + 1) {
                let marker = StateRow { value: Bytes::from_static(&[1]), version: row.version };
                self.state.insert((EXPIRY.to_owned(), format!("{expiry:016x}/{namespace}/{hash}")), marker);
                rows.entry(expiry).or_default().push((key.clone(), row.version));
            }
        }
        self.scheduled = rows;
    }
}
