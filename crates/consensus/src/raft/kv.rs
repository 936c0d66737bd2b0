//! A key-value store on the Raft engine: the machine, and what its callers see. It does what [`crate::kv`] does on replicated
//! memory, watching apart, and is the baseline beside which that is measured.
//!
//! ```text
//! command  kind u8 (1 set, 2 delete) | expected u8 (0 anything, 1 nothing, 2 a version, 3 a value, 4 some value) | key u16 |
//!          expected value u32 | expected version u64 | key | expected value | value
//! machine  entries: version u64 | key u32 | value u32 | key | value
//! ```
//!
//! 1. What changes something is an entry; its index is the version. Whether a compare-and-set succeeds is decided where it is
//!    applied, by what all entries before have left.
//! 2. A get looks into the leader's map and then at its lease; without one it waits for a barrier and looks again.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use base::bytes::BufMut as _;
use base::rt::net::BoxFuture;
use base::{Bytes, BytesMut, Map};

use super::codec::Reader;
use super::{Applied, Machine, Options, Raft};
use crate::Error;
use crate::kv::{Expected, Swap, Versioned};

const KIND_SET: u8 = 1;
const KIND_DELETE: u8 = 2;
/// Bytes of a key.
pub const KEY_BYTES_MAX: usize = 4096;
/// Bytes of a value.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// What keys have.
type Table = Map<Bytes, Versioned>;

/// The machine. Clones are the same one.
#[derive(Clone, Default)]
pub struct Keys {
    table: Arc<RwLock<Table>>,
}

/// A store, as one node of its group sees it. Clones are the same one.
#[derive(Clone)]
pub struct Store {
    raft: Raft<Option<Swap>>,
    table: Arc<RwLock<Table>>,
}

fn command(key: &[u8], expected: Option<&Expected>, value: Option<&Bytes>) -> Bytes {
    let nothing = Bytes::new();
    let (code, version, held) = match expected {
        None => (0, 0, &nothing),
        Some(Expected::Absent) => (1, 0, &nothing),
        Some(Expected::Version(version)) => (2, *version, &nothing),
        Some(Expected::Value(value)) => (3, 0, value),
        Some(Expected::Present) => (4, 0, &nothing),
    };
    let mut bytes = BytesMut::with_capacity(16 + key.len() + held.len() + value.map_or(0, Bytes::len));
    bytes.put_u8(if value.is_some() { KIND_SET } else { KIND_DELETE });
    bytes.put_u8(code);
    bytes.put_u16_le(key.len() as u16);
    bytes.put_u32_le(held.len() as u32);
    bytes.put_u64_le(version);
    bytes.put_slice(key);
    bytes.put_slice(held);
    bytes.put_slice(value.map_or(&[], |value| &value[..]));
    bytes.freeze()
}

/// Does what a command says; gives what it found where it did nothing.
fn execute(table: &mut Table, version: u64, data: Bytes) -> Result<Option<Swap>, Error> {
    let mut reader = Reader(data);
    let (kind, code, key, held) = (reader.u8()?, reader.u8()?, reader.u16()? as usize, reader.u32()? as usize);
    let expected_version = reader.u64()?;
    let (key, held) = (reader.bytes(key)?, reader.bytes(held)?);
    let expected = match code {
        0 => None,
        1 => Some(Expected::Absent),
        2 => Some(Expected::Version(expected_version)),
        3 => Some(Expected::Value(held)),
        4 => Some(Expected::Present),
        _ => return Err(Error::Corrupt("a command of a key-value store expects what cannot be")),
    };
    let found = table.get_mut(&key);
    if let Some(expected) = expected
        && !expected.holds(found.as_deref())
    {
        return Ok(Some(Swap::Found(found.cloned())));
    }
    match (kind, found) {
        // Copied, lest a small value keep a large message.
        (KIND_SET, Some(found)) => *found = Versioned { value: Bytes::copy_from_slice(&reader.0), version },
        (KIND_SET, None) => {
            let value = Versioned { value: Bytes::copy_from_slice(&reader.0), version };
            table.insert(Bytes::copy_from_slice(&key), value);
        }
        (KIND_DELETE, _) => drop(table.remove(&key)),
        _ => return Err(Error::Corrupt("a command of a key-value store is of no kind that is known")),
    }
    Ok(None)
}

impl Machine for Keys {
    type Output = Option<Swap>;

    fn apply(&mut self, entries: Vec<Applied>) -> Vec<Option<Swap>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let execute = |entry: Applied| match execute(&mut table, entry.index, entry.data) {
            Ok(outcome) => outcome,
            Err(error) => {
                // The same at every node: it changes nothing.
                tracing::error!(%error, index = entry.index, "an entry is no command");
                Some(Swap::Found(None))
            }
        };
        entries.into_iter().map(execute).collect()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        // Handles now, bytes later.
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut pairs: Vec<(Bytes, Versioned)> =
            table.iter().map(|(key, found)| (key.clone(), found.clone())).collect();
        drop(table);
        Box::pin(base::rt::blocking(move || {
            pairs.sort_unstable_by(|one, other| one.0.cmp(&other.0));
            let bytes = pairs.iter().map(|(key, found)| 16 + key.len() + found.value.len()).sum();
            let mut snapshot = BytesMut::with_capacity(bytes);
            for (key, found) in &pairs {
                snapshot.put_u64_le(found.version);
                snapshot.put_u32_le(key.len() as u32);
                snapshot.put_u32_le(found.value.len() as u32);
                snapshot.put_slice(key);
                snapshot.put_slice(&found.value);
            }
            Ok(snapshot.freeze())
        }))
    }

    fn restore(&mut self, _index: u64, snapshot: Bytes) -> Result<(), Error> {
        let (mut restored, mut reader) = (Table::default(), Reader(snapshot));
        while !reader.0.is_empty() {
            let version = reader.u64()?;
            let (key, value) = (reader.u32()? as usize, reader.u32()? as usize);
            let key = Bytes::copy_from_slice(&reader.bytes(key)?);
            let value = Bytes::copy_from_slice(&reader.bytes(value)?);
            restored.insert(key, Versioned { value, version });
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = restored;
        Ok(())
    }
}

impl Store {
    /// Starts a node of a store's group.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start(options: Options) -> Result<Store, Error> {
        Store::start_with(options, |keys| keys).await
    }

    /// As [`Store::start`], with a machine that gives every entry and snapshot to the one it is made of, and may look at them.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start_with<M>(options: Options, wrap: impl FnOnce(Keys) -> M) -> Result<Store, Error>
    where
        M: Machine<Output = Option<Swap>>,
    {
        let keys = Keys::default();
        let table = Arc::clone(&keys.table);
        Ok(Store { raft: Raft::start(options, wrap(keys)).await?, table })
    }

    /// The engine below.
    pub fn raft(&self) -> &Raft<Option<Swap>> {
        &self.raft
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key. Linearizable. Dropping the future is safe.
    ///
    /// # Errors
    /// As [`Raft::barrier`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Versioned>, Error> {
        let found = self.table().get(key).cloned();
        if self.raft.may_read() {
            return Ok(found);
        }
        self.raft.barrier().await?;
        Ok(self.table().get(key).cloned())
    }

    /// Gives a key a value; a majority has it on return. Gives its version. When the future is dropped it may still be done.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn put(&self, key: &[u8], value: &Bytes) -> Result<u64, Error> {
        match self.change(key, None, Some(value)).await? {
            Swap::Done(version) => Ok(version),
            Swap::Found(_) => Err(Error::Corrupt("a put expects nothing")),
        }
    }

    /// Takes a key's value away; gives the version under which that was done, or nothing where it had none.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn delete(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        match self.change(key, Some(&Expected::Present), None).await? {
            Swap::Done(version) => Ok(Some(version)),
            Swap::Found(_) => Ok(None),
        }
    }

    /// Gives a key a value, or takes it away, if it has what is expected.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn compare_and_set(&self, key: &[u8], expected: Expected, new: Option<Bytes>) -> Result<Swap, Error> {
        self.change(key, Some(&expected), new.as_ref()).await
    }

    async fn change(&self, key: &[u8], expected: Option<&Expected>, value: Option<&Bytes>) -> Result<Swap, Error> {
        let value_bytes = value.map_or(0, Bytes::len);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            let reason = format!("a key has 1 to {KEY_BYTES_MAX} bytes, a value at most {VALUE_BYTES_MAX}");
            return Err(Error::Invalid(reason));
        }
        let done = self.raft.propose(command(key, expected, value)).await?;
        Ok(done.output.unwrap_or(Swap::Done(done.index)))
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.raft)
    }
}
