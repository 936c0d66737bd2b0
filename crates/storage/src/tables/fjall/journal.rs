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
    let mut rest = bytes;
    let mut take = |count: usize| {
        let (head, tail) = rest.split_at_checked(count)?;
        rest = tail;
        Some((head, tail))
    };
    let u32_at = |bytes: &[u8], at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (start, after_start) = take(13)?;
    if start[0] != START {
        return None;
    }
    let entries = u32_at(start, 1)?;
    for _ in 0..entries {
        let (_, rest) = take(0)?;
        let entry_bytes = match *rest.first()? {
            ITEM => {
                let header = rest.get(..ITEM_HEADER_BYTES)?;
                let key_bytes = u16::from_le_bytes(header[11..13].try_into().ok()?);
                ITEM_HEADER_BYTES + usize::from(key_bytes) + u32_at(header, 17)? as usize
            }
            CLEAR => 9,
            _ => return None,
        };
        take(entry_bytes)?;
    }
    let (_, before_end) = take(0)?;
    let entries = &after_start[..after_start.len() - before_end.len()];
    let (end, rest) = take(9 + END_MAGIC.len())?;
    let sum = u64::from_le_bytes(end[1..9].try_into().ok()?);
    if end[0] != END || &end[9..] != END_MAGIC || sum != checksum(entries) {
        return None;
    }
    Some(bytes.len() - rest.len())
}
