//! Truncates a torn tail of the engine's journal, so that the engine opens after a loss of power.
//!
//! The engine tolerates a journal that ends within a batch. A loss of power may also leave holes: missing pages in the
//! middle of the last, unsynced batches. The engine takes holes for damage, and does not open. Such a tail can be
//! truncated safely. Rows and savepoint are in the same batch, so the remainder ends at an earlier savepoint, and the
//! blocks contain everything after it. No synced batch is lost, because synced batches come first.
//!
//! 1. The engine fails to open because of its journal.
//! 2. The newest journal is read batch by batch, in the format of fjall 3.1: a start with the number of entries, the entries,
//!    an end with their checksum. Older journals were synced before the next one was begun.
//! 3. The file is truncated after the last complete batch, and the engine is opened once more.
//!
//! A test checks this reader against journals that the engine has written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use wire::{Reader, u16_at, u32_at};

use crate::checksum;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
const END_MAGIC: &[u8] = b"FJL\x03";
const ITEM_HEADER_BYTES: usize = 1 + 1 + 1 + 8 + 2 + 4 + 4;

/// What was removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TruncatedTail {
    pub path: PathBuf,
    /// The journal's length now.
    pub offset: u64,
}

/// Truncates the newest journal in the engine's directory after its last whole batch. `None` if there is no journal, or if
/// only zeros follow its whole batches: then the journal is not what prevents the engine from opening.
///
/// # Errors
/// Errors of the operating system.
pub fn truncate_torn_tail(directory: &Path) -> io::Result<Option<TruncatedTail>> {
    let Some(path) = newest_journal(directory)? else { return Ok(None) };
    let bytes = fs::read(&path)?;
    let whole = whole_bytes(&bytes);
    if bytes[whole..].iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    file.set_len(whole as u64)?;
    file.sync_all()?;
    Ok(Some(TruncatedTail { path, offset: whole as u64 }))
}

fn newest_journal(directory: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest = None;
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_suffix(".jnl")).and_then(|number| number.parse::<u64>().ok());
        newest = newest.max(number);
    }
    Ok(newest.map(|number| directory.join(format!("{number}.jnl"))))
}

/// Length of the whole batches at the start of a journal.
pub fn whole_bytes(journal: &[u8]) -> usize {
    let mut whole = 0;
    while let Some(bytes) = batch_bytes(&journal[whole..]) {
        whole += bytes;
    }
    whole
}

/// Length of the whole batch at the start of `bytes`, if there is one.
fn batch_bytes(bytes: &[u8]) -> Option<usize> {
    let mut reader = Reader::new(bytes);
    if reader.u8().ok()? != START {
        return None;
    }
    let entries = reader.u32().ok()?;
    reader.bytes(8).ok()?;
    let entries_at = reader.at();
    for _ in 0..entries {
        let entry = reader.peek();
        let entry_bytes = match *entry.first()? {
            ITEM if entry.len() >= ITEM_HEADER_BYTES => {
                ITEM_HEADER_BYTES + usize::from(u16_at(entry, 11)) + u32_at(entry, 17) as usize
            }
            CLEAR => 9,
            _ => return None,
        };
        reader.bytes(entry_bytes).ok()?;
    }
    let entries = &bytes[entries_at..reader.at()];
    if reader.u8().ok()? != END || reader.u64().ok()? != checksum(entries) {
        return None;
    }
    reader.expect(END_MAGIC, "no end of a batch").ok()?;
    Some(reader.at())
}
