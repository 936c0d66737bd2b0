//! A key-value store on the Raft engine: its state machine and its interface for callers. The store has the operations of
//! [`crate::KvStore`] except for watching, and is the baseline against which that store is measured.
//!
//! ```text
//! command  kind u8 (1 set, 2 delete) | expected u8 (0 anything, 1 nothing, 2 a version, 3 a value, 4 some value) | key u16 |
//!          expected value u32 | expected version u64 | key | expected value | value
//! machine  entries: version u64 | key u32 | value u32 | key | value
//! ```
//!
//! 1. Every change is an entry; the entry's index is the version. A compare-and-set is decided when its entry is applied,
//!    against the state that all earlier entries have produced.
//! 2. A get reads the leader's map and then checks the leader's lease. Without a lease it waits for a barrier and reads the map
//!    again.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use base::bytes::BufMut as _;
use base::rt::net::BoxFuture;
use base::{Bytes, BytesMut, Map};
use raft::{AppliedEntry, Error, Raft, RaftConfig, StateMachine};
use wire::Reader;

use crate::{Precondition, SwapOutcome, VersionedValue};

const KIND_SET: u8 = 1;
const KIND_DELETE: u8 = 2;
/// The most bytes of a key.
pub const KEY_BYTES_MAX: usize = 4096;
/// The most bytes of a value.
pub const VALUE_BYTES_MAX: usize = 16 << 20;

/// The values of keys.
type Table = Map<Bytes, VersionedValue>;

/// The state machine. Clones are the same one.
#[derive(Clone, Default)]
pub struct KvStateMachine {
    table: Arc<RwLock<Table>>,
}

/// A store, as one node of its group sees it. Clones are the same store.
#[derive(Clone)]
pub struct RaftKvStore {
    raft: Raft<Option<SwapOutcome>>,
    table: Arc<RwLock<Table>>,
}

fn command(key: &[u8], expected: Option<&Precondition>, value: Option<&Bytes>) -> Bytes {
    let nothing = Bytes::new();
    let (code, version, held) = match expected {
        None => (0, 0, &nothing),
        Some(Precondition::Absent) => (1, 0, &nothing),
        Some(Precondition::Version(version)) => (2, *version, &nothing),
        Some(Precondition::Value(value)) => (3, 0, value),
        Some(Precondition::Present) => (4, 0, &nothing),
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

/// Executes a command; returns the value that it found if its condition did not hold.
fn execute(table: &mut Table, version: u64, data: Bytes) -> Result<Option<SwapOutcome>, Error> {
    let mut reader = Reader::new(data);
    let (kind, code, key, held) = (reader.u8()?, reader.u8()?, reader.u16()? as usize, reader.u32()? as usize);
    let expected_version = reader.u64()?;
    let (key, held) = (reader.bytes(key)?, reader.bytes(held)?);
    let expected = match code {
        0 => None,
        1 => Some(Precondition::Absent),
        2 => Some(Precondition::Version(expected_version)),
        3 => Some(Precondition::Value(held)),
        4 => Some(Precondition::Present),
        _ => return Err(Error::Corrupt("a command of a key-value store has an unknown condition")),
    };
    let found = table.get_mut(&key);
    if let Some(expected) = expected
        && !expected.holds(found.as_deref())
    {
        return Ok(Some(SwapOutcome::Mismatch(found.cloned())));
    }
    match (kind, found) {
        // Copied, so that a small value does not keep a large message.
        (KIND_SET, Some(found)) => *found = VersionedValue { value: Bytes::copy_from_slice(reader.peek()), version },
        (KIND_SET, None) => {
            let value = VersionedValue { value: Bytes::copy_from_slice(reader.peek()), version };
            table.insert(Bytes::copy_from_slice(&key), value);
        }
        (KIND_DELETE, _) => drop(table.remove(&key)),
        _ => return Err(Error::Corrupt("a command of a key-value store is of an unknown kind")),
    }
    Ok(None)
}

impl StateMachine for KvStateMachine {
    type Output = Option<SwapOutcome>;

    fn apply(&mut self, entries: Vec<AppliedEntry>) -> Vec<Option<SwapOutcome>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let execute = |entry: AppliedEntry| match execute(&mut table, entry.index, entry.data) {
            Ok(outcome) => outcome,
            Err(error) => {
                // It is the same at every node, and changes nothing.
                tracing::error!(%error, index = entry.index, "an entry does not decode as a command");
                Some(SwapOutcome::Mismatch(None))
            }
        };
        entries.into_iter().map(execute).collect()
    }

    fn snapshot(&mut self) -> BoxFuture<'static, Result<Bytes, Error>> {
        // Only handles are copied now; the bytes follow later.
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut pairs: Vec<(Bytes, VersionedValue)> =
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
        let (mut restored, mut reader) = (Table::default(), Reader::new(snapshot));
        while !reader.is_empty() {
            let version = reader.u64()?;
            let (key, value) = (reader.u32()? as usize, reader.u32()? as usize);
            let key = Bytes::copy_from_slice(&reader.bytes(key)?);
            let value = Bytes::copy_from_slice(&reader.bytes(value)?);
            restored.insert(key, VersionedValue { value, version });
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = restored;
        Ok(())
    }
}

impl RaftKvStore {
    /// Starts a node of a store's group.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start(options: RaftConfig) -> Result<RaftKvStore, Error> {
        RaftKvStore::start_with(options, |keys| keys).await
    }

    /// As [`RaftKvStore::start`], with a wrapper around the machine that passes on every entry and snapshot, and may look at
    /// them.
    ///
    /// # Errors
    /// As [`Raft::start`].
    pub async fn start_with<M>(
        options: RaftConfig,
        wrap: impl FnOnce(KvStateMachine) -> M,
    ) -> Result<RaftKvStore, Error>
    where
        M: StateMachine<Output = Option<SwapOutcome>>,
    {
        let keys = KvStateMachine::default();
        let table = Arc::clone(&keys.table);
        Ok(RaftKvStore { raft: Raft::start(options, wrap(keys)).await?, table })
    }

    /// The engine below.
    pub fn raft(&self) -> &Raft<Option<SwapOutcome>> {
        &self.raft
    }

    fn table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a key. Linearizable. Dropping the future is safe.
    ///
    /// # Errors
    /// As [`Raft::barrier`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<VersionedValue>, Error> {
        let found = self.table().get(key).cloned();
        if self.raft.may_read() {
            return Ok(found);
        }
        self.raft.barrier().await?;
        Ok(self.table().get(key).cloned())
    }

    /// Sets the value of a key and returns its version; a majority has it on return. If the future is dropped, the put may
    /// still take effect.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn put(&self, key: &[u8], value: &Bytes) -> Result<u64, Error> {
        match self.change(key, None, Some(value)).await? {
            SwapOutcome::Done(version) => Ok(version),
            SwapOutcome::Mismatch(_) => {
                Err(Error::Corrupt("a put without a condition was answered as one whose condition failed"))
            }
        }
    }

    /// Deletes a key; returns the version of the deletion, or `None` where the key had no value.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn delete(&self, key: &[u8]) -> Result<Option<u64>, Error> {
        match self.change(key, Some(&Precondition::Present), None).await? {
            SwapOutcome::Done(version) => Ok(Some(version)),
            SwapOutcome::Mismatch(_) => Ok(None),
        }
    }

    /// Sets or deletes the value of a key, if the condition holds.
    ///
    /// # Errors
    /// As [`Raft::propose`].
    pub async fn compare_and_set(
        &self,
        key: &[u8],
        expected: Precondition,
        new: Option<Bytes>,
    ) -> Result<SwapOutcome, Error> {
        self.change(key, Some(&expected), new.as_ref()).await
    }

    async fn change(
        &self,
        key: &[u8],
        expected: Option<&Precondition>,
        value: Option<&Bytes>,
    ) -> Result<SwapOutcome, Error> {
        let value_bytes = value.map_or(0, Bytes::len);
        if key.is_empty() || key.len() > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
            let reason = format!("a key has 1 to {KEY_BYTES_MAX} bytes, a value at most {VALUE_BYTES_MAX}");
            return Err(Error::Invalid(reason));
        }
        let done = self.raft.propose(command(key, expected, value)).await?;
        Ok(done.output.unwrap_or(SwapOutcome::Done(done.index)))
    }
}

impl fmt::Debug for RaftKvStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({:?})", self.raft)
    }
}
