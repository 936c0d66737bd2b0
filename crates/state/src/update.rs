//! The changes of one block, in key order.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Bytes, Version};

/// The last write of one block to one key: `None` deletes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// The new value; `None` if the key is deleted.
    pub value: Option<Bytes>,
    /// The transaction that made the write.
    pub version: Version,
}

/// The writes of one block: for each key the last valid one in transaction order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateBatch {
    namespaces: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Update>>,
    count: usize,
    block_hash: [u8; 32],
}

impl UpdateBatch {
    /// Sets the header hash of the block that the batch belongs to, so that a savepoint can name the block.
    pub fn set_block_hash(&mut self, hash: [u8; 32]) {
        self.block_hash = hash;
    }

    /// The header hash of the block; zero if it was not set.
    pub fn block_hash(&self) -> [u8; 32] {
        self.block_hash
    }

    /// Records a write; a later one to the same key replaces it.
    pub fn put(&mut self, namespace: &Arc<str>, key: Arc<str>, value: Option<Bytes>, version: Version) {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.clone(), BTreeMap::new());
        }
        let keys = self.namespaces.get_mut(namespace).expect("the namespace was just ensured");
        if keys.insert(key, Update { value, version }).is_none() {
            self.count += 1;
        }
    }

    /// Records the writes to one namespace, whose keys come in byte order, each once. The batch has none for it yet.
    pub fn put_sorted(&mut self, namespace: &Arc<str>, writes: Vec<(Arc<str>, Update)>) {
        debug_assert!(writes.is_sorted_by(|(one, _), (other, _)| one < other), "in order, each once");
        self.count += writes.len();
        let earlier = self.namespaces.insert(namespace.clone(), writes.into_iter().collect());
        debug_assert!(earlier.is_none(), "the batch has no write to this namespace");
    }

    /// The write of this batch to one key, if there is one.
    pub fn get(&self, namespace: &str, key: &str) -> Option<&Update> {
        self.namespaces.get(namespace)?.get(key)
    }

    /// The writes of one namespace with `start <= key < end`; an empty `end` means no upper bound.
    pub fn range<'a>(
        &'a self,
        namespace: &str,
        start: &'a str,
        end: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Update)> {
        self.namespaces
            .get(namespace)
            .into_iter()
            .flat_map(move |keys| keys.range::<str, _>((std::ops::Bound::Included(start), std::ops::Bound::Unbounded)))
            .take_while(move |(key, _)| end.is_empty() || key.as_ref() < end)
    }

    /// The namespaces that the batch writes to, in byte order.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.namespaces.keys()
    }

    /// Every write, by namespace and then key, both in byte order.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, &Update)> {
        self.namespaces
            .iter()
            .flat_map(|(namespace, keys)| keys.iter().map(move |(key, update)| (namespace, key, update)))
    }

    /// The writes grouped by namespace.
    pub(crate) fn into_namespaces(self) -> BTreeMap<Arc<str>, BTreeMap<Arc<str>, Update>> {
        self.namespaces
    }

    /// Number of keys that the batch writes, over all namespaces.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the block changes no key.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}
