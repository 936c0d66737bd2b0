//! The delta: which keys the blocks after the savepoint wrote, in key order, every version of them, and where each is.
//!
//! What memory cannot hold, or has lost, is found here and in storage. Values stay in remote memory; the delta keeps them
//! itself only while there is no room for them there, within a bound that apply observes.
//!
//! Invariants: for each key the versions ascend; a version leaves the delta only once the durable savepoint covers it. So a
//! reader that asks the delta first and storage second finds every version.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use base::{Bytes, Version};

use super::pointer::Pointer;
use crate::events;

/// What a version costs besides its key and value: tree node, vector and headers.
const VERSION_BYTES: usize = 144;

/// Where a version is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In remote memory: the pointer, and the bytes of the record.
    Remote(Pointer, u32),
    /// Here.
    Here(Bytes),
    /// In storage, once the savepoint covers it.
    Storage,
    /// Nowhere: the key was deleted.
    Deleted,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub struct Written {
    pub version: Version,
    pub place: Place,
}

/// What the delta knows of a key at a height.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The newest version that is seen, if the delta has one.
    pub newest: Option<Written>,
    /// Whether there is a version too new to be seen.
    pub newer: bool,
}

type Keys = BTreeMap<Arc<str>, Vec<Written>>;

#[derive(Default)]
pub struct Delta {
    namespaces: BTreeMap<Arc<str>, Keys>,
    bytes: usize,
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

    /// Adds a write of a block newer than all before.
    pub fn add(&mut self, namespace: &Arc<str>, key: &Arc<str>, written: Written) {
        if !self.namespaces.contains_key(namespace) {
            self.namespaces.insert(namespace.clone(), Keys::new());
        }
        let keys = self.namespaces.get_mut(namespace).expect("the namespace was just ensured");
        let bytes = cost(key, &written);
        self.bytes += bytes;
        events::DeltaBytes.add(bytes as i64);
        match keys.get_mut(key) {
            Some(versions) => {
                assert!(versions.last().is_none_or(|last| last.version < written.version), "blocks are added in order");
                versions.push(written);
            }
            None => drop(keys.insert(key.clone(), vec![written])),
        }
    }

    /// What a reader at `height` sees of a key.
    pub fn see(&self, namespace: &str, key: &str, height: u64) -> Seen {
        let versions = self.namespaces.get(namespace).and_then(|keys| keys.get(key)).map_or(&[][..], Vec::as_slice);
        let newer = versions.last().is_some_and(|last| last.version.block >= height);
        Seen { newest: below(versions, height).cloned(), newer }
    }

    /// The newest writes below `height` of the keys in `start <= key < end`, deletions included, in key order.
    pub fn range<'a>(
        &'a self,
        namespace: &str,
        start: &'a str,
        end: &'a str,
        height: u64,
    ) -> impl Iterator<Item = (&'a Arc<str>, &'a Written)> {
        let keys = self.namespaces.get(namespace).into_iter();
        keys.flat_map(move |keys| keys.range::<str, _>((Bound::Included(start), Bound::Unbounded)))
            .take_while(move |(key, _)| end.is_empty() || key.as_ref() < end)
            .filter_map(move |(key, versions)| Some((key, below(versions, height)?)))
    }

    /// The record that held this version is gone from remote memory.
    pub fn detach(&mut self, namespace: &str, key: &str, pointer: Pointer) {
        let versions = self.namespaces.get_mut(namespace).and_then(|keys| keys.get_mut(key));
        for written in versions.into_iter().flatten() {
            if matches!(written.place, Place::Remote(other, _) if other == pointer) {
                written.place = Place::Storage;
            }
        }
    }

    /// Forgets every version below `height`, which storage holds durably.
    pub fn forget_below(&mut self, height: u64) {
        let mut bytes = self.bytes;
        self.namespaces.retain(|_, keys| {
            keys.retain(|key, versions| {
                if versions.first().is_none_or(|first| first.version.block >= height) {
                    return true;
                }
                versions.retain(|written| {
                    let keep = written.version.block >= height;
                    bytes -= if keep { 0 } else { cost(key, written) };
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

fn below(versions: &[Written], height: u64) -> Option<&Written> {
    versions.iter().rev().find(|written| written.version.block < height)
}

fn cost(key: &str, written: &Written) -> usize {
    let value = if let Place::Here(value) = &written.place { value.len() } else { 0 };
    VERSION_BYTES + key.len() + value
}
