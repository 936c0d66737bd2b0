//! A deterministic [`StateStore`] in memory, for tests of the layers above.
//!
//! The test adds blocks as lists of rows; materialising makes the rows of blocks below a height visible. Calls return at
//! once, unless a test makes reads slow. All data ends with the object.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::channel::{WatchReceiver, WatchSender, watch};
use base::{BlockNumber, Bytes, Epoch, Version, rt};

use super::{StateStore, check_keys};
use crate::tables::{RangeEntry, RangePage, RangeQuery, Row, Savepoint};
use crate::{Error, lock};

/// A row of a block: namespace, key, version, and the value or `None` for a deletion.
pub type BlockRow = (String, Vec<u8>, Version, Option<Bytes>);

type Versions = BTreeMap<Version, Option<Bytes>>;

/// Rows in memory; see [the module](self). Clones share them.
#[derive(Clone)]
pub struct MemoryStateStore {
    shared: Arc<MemoryStoreCore>,
}

struct MemoryStoreCore {
    state: Mutex<MemoryStoreState>,
    savepoint: WatchSender<u64>,
    delay_ns: AtomicU64,
    reads: AtomicU64,
}

#[derive(Default)]
struct MemoryStoreState {
    /// The blocks that were added, by number.
    blocks: Vec<Vec<BlockRow>>,
    rows: BTreeMap<(String, Vec<u8>), Versions>,
    height: u64,
    oldest: u64,
}

impl MemoryStateStore {
    /// A store without blocks.
    pub fn new() -> MemoryStateStore {
        let shared = MemoryStoreCore {
            state: Mutex::default(),
            savepoint: watch(0).0,
            delay_ns: AtomicU64::new(0),
            reads: AtomicU64::new(0),
        };
        MemoryStateStore { shared: Arc::new(shared) }
    }

    /// Adds the next block as the rows that its valid transactions wrote; returns its number. The block is durable at once,
    /// and is in the tables only once it is materialised.
    pub fn add_block(&self, rows: Vec<BlockRow>) -> BlockNumber {
        let mut state = lock(&self.shared.state);
        state.blocks.push(rows);
        BlockNumber(state.blocks.len() as u64 - 1)
    }

    /// From now on every call waits this long before it reads.
    pub fn set_delay(&self, delay: Duration) {
        self.shared.delay_ns.store(delay.as_nanos() as u64, Ordering::Release);
    }

    /// Calls that have read rows so far.
    pub fn reads(&self) -> u64 {
        self.shared.reads.load(Ordering::Acquire)
    }

    async fn wait(&self) {
        let delay = self.shared.delay_ns.load(Ordering::Acquire);
        if delay > 0 {
            rt::sleep(Duration::from_nanos(delay)).await;
        }
    }

    async fn read<T>(
        &self,
        through: BlockNumber,
        read: impl Fn(&MemoryStoreState, u64) -> T,
    ) -> Result<Option<T>, Error> {
        self.wait().await;
        self.shared.reads.fetch_add(1, Ordering::AcqRel);
        let state = lock(&self.shared.state);
        let savepoint = Savepoint { height: state.height, ..Savepoint::default() };
        let Some(through) = savepoint.clamp(through) else { return Ok(None) };
        if through < state.oldest {
            return Err(Error::TooOld { through: BlockNumber(through), oldest: BlockNumber(state.oldest) });
        }
        Ok(Some(read(&state, through)))
    }
}

impl Default for MemoryStateStore {
    fn default() -> Self {
        MemoryStateStore::new()
    }
}

impl MemoryStoreState {
    fn get(&self, namespace: &str, key: &[u8], through: u64) -> Option<Row> {
        let versions = self.rows.get(&(namespace.to_owned(), key.to_vec()))?;
        newest(versions, through)
    }

    fn savepoint(&self) -> Savepoint {
        // There are no hashes here; the block's number stands for one.
        let mut block_hash = [0; 32];
        block_hash[..8].copy_from_slice(&self.height.to_le_bytes());
        Savepoint { height: self.height, epoch: Epoch(0), block_hash }
    }
}

fn newest(versions: &Versions, through: u64) -> Option<Row> {
    let (version, value) = versions.range(..=Version::new(through, u32::MAX)).next_back()?;
    Some(Row { version: *version, value: value.clone() })
}

#[async_trait::async_trait]
impl StateStore for MemoryStateStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, Error> {
        Ok(self.read(through, |state, through| state.get(namespace, key, through)).await?.flatten())
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, Error> {
        check_keys(keys.len())?;
        let all =
            |state: &MemoryStoreState, through| keys.iter().map(|(name, key)| state.get(name, key, through)).collect();
        let rows: Option<Vec<_>> = self.read(through, all).await?;
        Ok(rows.unwrap_or_else(|| vec![None; keys.len()]))
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, Error> {
        let rows = self.get_many(keys, through).await?;
        Ok(rows.into_iter().map(|row| row.map(|row| (row.version, row.value.is_some()))).collect())
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, Error> {
        let RangeQuery { namespace, start, end, through, limit } = query;
        let scan = |state: &MemoryStoreState, through| {
            let mut page = RangePage::default();
            for ((name, key), versions) in state.rows.range((namespace.to_owned(), start.to_vec())..) {
                if name != namespace || (!end.is_empty() && &key[..] >= end) {
                    break;
                }
                let Some(Row { version, value: Some(value) }) = newest(versions, through) else { continue };
                if page.entries.len() == limit {
                    page.next = Some(key.clone().into());
                    break;
                }
                page.entries.push(RangeEntry { key: key.clone().into(), value, version });
            }
            page
        };
        Ok(self.read(through, scan).await?.unwrap_or_default())
    }

    async fn namespaces(&self) -> Result<Vec<String>, Error> {
        self.wait().await;
        let mut names: Vec<String> = lock(&self.shared.state).rows.keys().map(|(name, _)| name.clone()).collect();
        names.dedup();
        Ok(names)
    }

    fn savepoint(&self) -> Savepoint {
        lock(&self.shared.state).savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.shared.savepoint.subscribe()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, Error> {
        self.wait().await;
        let savepoint = {
            let mut state = lock(&self.shared.state);
            while state.height < height.min(state.blocks.len() as u64) {
                let block = state.height as usize;
                for (namespace, key, version, value) in state.blocks[block].clone() {
                    if version.block != block as u64 {
                        return Err(Error::Invalid("a row's version must name its block"));
                    }
                    state.rows.entry((namespace, key)).or_default().insert(version, value);
                }
                state.height += 1;
            }
            state.savepoint()
        };
        self.shared.savepoint.send_if_modified(|known| std::mem::replace(known, savepoint.height) != savepoint.height);
        Ok(savepoint)
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), Error> {
        self.wait().await;
        let mut state = lock(&self.shared.state);
        let oldest = oldest.get().min(state.height.saturating_sub(1)).max(state.oldest);
        state.oldest = oldest;
        state.rows.retain(|_, versions| {
            let base = versions.range(..=Version::new(oldest, u32::MAX)).next_back();
            let Some((base, live)) = base.map(|(version, value)| (*version, value.is_some())) else { return true };
            versions.retain(|version, _| *version > base || (*version == base && live));
            !versions.is_empty()
        });
        Ok(())
    }
}

impl fmt::Debug for MemoryStateStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStateStore").field("savepoint", &self.savepoint().height).finish_non_exhaustive()
    }
}
