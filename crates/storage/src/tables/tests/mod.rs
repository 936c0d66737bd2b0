//! Tests of the tables: one suite for both engines, and tests specific to each.

mod keys;
mod model;
mod pruning;
mod random;
mod suite;

use std::path::PathBuf;
use std::sync::Arc;

use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, Epoch, Version};

use super::*;

/// An engine under test that can be closed and opened again.
pub enum Engine {
    Model { path: PathBuf, open: Option<Arc<ModelEngine>> },
    Fjall { path: PathBuf, open: Option<Arc<FjallEngine>>, options: FjallConfig },
}

impl Engine {
    pub fn model() -> Engine {
        Engine::Model { path: "/tables".into(), open: None }
    }

    /// Small buffers, so that rows reach files and merges happen.
    pub fn fjall(path: PathBuf) -> Engine {
        let options = FjallConfig {
            cache_bytes: 1 << 20,
            memtable_bytes: 64 << 10,
            hint_bytes: 100 << 10,
            separate_value_bytes: Some(200),
            ..FjallConfig::default()
        };
        Engine::Fjall { path, open: None, options }
    }

    /// The tables of a name; opens the engine if it is not open.
    pub async fn tables(&mut self, name: &str) -> Arc<dyn Tables> {
        let engine: Arc<dyn TablesEngine> = match self {
            Engine::Model { path, open: open @ None } => {
                let directory = Directory::open(&*path).await.expect("the directory opens");
                open.insert(ModelEngine::open(directory).await.expect("the engine opens")).clone()
            }
            Engine::Fjall { path, open: open @ None, options } => {
                open.insert(FjallEngine::open(path, options.clone()).await.expect("the engine opens")).clone()
            }
            Engine::Model { open: Some(open), .. } => open.clone(),
            Engine::Fjall { open: Some(open), .. } => open.clone(),
        };
        engine.tables(name).await.expect("the tables open")
    }

    /// Closes the engine; the test must have dropped its tables.
    pub fn close(&mut self) {
        match self {
            Engine::Model { open, .. } => *open = None,
            Engine::Fjall { open, .. } => *open = None,
        }
    }
}

pub fn savepoint(height: u64) -> Savepoint {
    Savepoint { height, epoch: Epoch(0), block_hash: [height as u8; 32] }
}

/// Writes one block: `key=value` puts, `key!` deletes, in the order of transactions, all in namespace `n`.
pub fn write_block(tables: &dyn Tables, number: u64, rows: &str) {
    let mut batch = RowBatch::new(savepoint(number + 1));
    for (index, row) in rows.split_whitespace().enumerate() {
        let version = Version::new(number, index as u32);
        let (key, value) = match row.split_once('=') {
            Some((key, value)) => (key, Some(Bytes::copy_from_slice(value.as_bytes()))),
            None => (row.strip_suffix('!').expect("a row puts or deletes"), None),
        };
        batch.put("n", key.as_bytes(), version, value).expect("the row is within the limits");
    }
    tables.write(batch).expect("the batch follows");
}

/// The row of a key in namespace `n` as `block:tx=value`, `block:tx!` for a deletion, or `-`.
pub fn show(tables: &dyn Tables, key: &str, through: u64) -> String {
    let row = tables.get("n", key.as_bytes(), BlockNumber(through)).expect("the row is readable");
    let version = tables.version("n", key.as_bytes(), BlockNumber(through)).expect("the row is readable");
    assert_eq!(version, row.as_ref().map(|row| (row.version, row.value.is_some())), "{key} through {through}");
    match row {
        None => "-".into(),
        Some(Row { version, value: None }) => format!("{version}!"),
        Some(Row { version, value: Some(value) }) => format!("{version}={}", String::from_utf8_lossy(&value)),
    }
}

/// A range of namespace `n` as `key=value ...`, fetched in pages of `page` entries.
pub fn show_range(tables: &dyn Tables, start: &str, end: &str, through: u64, page: usize) -> String {
    let mut shown = Vec::new();
    let mut start = Bytes::copy_from_slice(start.as_bytes());
    loop {
        let found = tables
            .range(RangeQuery {
                namespace: "n",
                start: &start,
                end: end.as_bytes(),
                through: BlockNumber(through),
                limit: page,
            })
            .expect("the range is readable");
        assert!(found.entries.len() <= page);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        shown.extend(found.entries.iter().map(|entry| format!("{}={}", text(&entry.key), text(&entry.value))));
        match found.next {
            None => return shown.join(" "),
            Some(next) => start = next,
        }
    }
}
