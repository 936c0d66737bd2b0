//! The writes of the blocks after the savepoint, in key order, with every version of each key.
//!
//! Invariant: for each key the versions ascend. For a reader at height `h`, the newest version of a key whose block is
//! below `h` is the answer. If the delta has no such version, it gives no answer for the key.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use base::{Bytes, Version};

use crate::{Update, UpdateBatch, events};

/// What a version costs besides its key and value: tree node, vector and headers.
const VERSION_OVERHEAD_BYTES: usize = 144;

type Keys = BTreeMap<Arc<str>, Vec<Update>>;

#[derive(Default)]
pub struct Delta {
    namespaces: BTreeMap<Arc<str>, Keys>,
    bytes: usize,
}

/// The newest write of one key below a height.
pub struct NewestWrite {
    pub namespace: Arc<str>,
    pub key: Arc<str>,
    pub value: Option<Bytes>,
    pub version: Version,
}

impl Delta {
    /// Bytes held, for back-pressure.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The namespaces that hold writes.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    /// Adds the writes of a block newer than all before. Values are copied, because they may be slices of a buffer that
    /// is longer than what is charged.
    pub fn add(&mut self, batch: UpdateBatch) {
        let before = self.bytes;
        for (namespace, keys) in batch.into_namespaces() {
            let mine = self.namespaces.entry(namespace).or_default();
            for (key, Update { value, version }) in keys {
                let update = Update { value: value.map(|value| Bytes::copy_from_slice(&value)), version };
                self.bytes += cost(&key, &update);
                let versions = mine.entry(key).or_insert_with(|| Vec::with_capacity(1));
                assert!(versions.last().is_none_or(|last| last.version < update.version), "blocks are added in order");
                versions.push(update);
            }
        }
        events::DeltaBytes.add((self.bytes - before) as i64);
    }

    /// The newest write to a key below `height`.
    pub fn get(&self, namespace: &str, key: &str, height: u64) -> Option<&Update> {
        below(self.namespaces.get(namespace)?.get(key)?, height)
    }

    /// The newest writes below `height` of the keys in `start <= key < end`, deletes included, in key order.
    pub fn range<'a>(
        &'a self,
        namespace: &str,
        start: &'a str,
        end: &'a str,
        height: u64,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Update)> {
        let keys = self.namespaces.get(namespace).into_iter();
        keys.flat_map(move |keys| keys.range::<str, _>((Bound::Included(start), Bound::Unbounded)))
            .take_while(move |(key, _)| end.is_empty() || key.as_ref() < end)
            .filter_map(move |(key, versions)| Some((key, below(versions, height)?)))
    }

    /// The newest write of every key below `height`: the content of a savepoint at that height.
    pub fn newest_below(&self, height: u64) -> Vec<NewestWrite> {
        let mut newest = Vec::new();
        for (namespace, keys) in &self.namespaces {
            for (key, versions) in keys {
                if let Some(update) = below(versions, height) {
                    newest.push(NewestWrite {
                        namespace: namespace.clone(),
                        key: key.clone(),
                        value: update.value.clone(),
                        version: update.version,
                    });
                }
            }
        }
        newest
    }

    /// Drops every version below `height`.
    pub fn forget_below(&mut self, height: u64) {
        let mut bytes = self.bytes;
        self.namespaces.retain(|_, keys| {
            keys.retain(|key, versions| {
                versions.retain(|update| {
                    let keep = update.version.block >= height;
                    bytes -= if keep { 0 } else { cost(key, update) };
                    keep
                });
                !versions.is_empty()
            });
            !keys.is_empty()
        });
        events::DeltaBytes.add(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
        assert!(!self.namespaces.is_empty() || self.bytes == 0, "an empty delta holds no bytes");
    }
}

impl Drop for Delta {
    fn drop(&mut self) {
        events::DeltaBytes.add(-(self.bytes as i64));
    }
}

fn below(versions: &[Update], height: u64) -> Option<&Update> {
    versions.iter().rev().find(|update| update.version.block < height)
}

fn cost(key: &str, update: &Update) -> usize {
    VERSION_OVERHEAD_BYTES + key.len() + update.value.as_ref().map_or(0, Bytes::len)
}
