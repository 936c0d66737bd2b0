//! Cutting a torn tail off the engine's journal.
//!
//! The engine tolerates a journal that ends within a batch. After a loss of power the pages of the last, unsynced batches
//! may also be missing in the middle, which it takes for damage, and does not open. Such a tail is safe to cut: rows and
//! savepoint go together, so what is left is an earlier savepoint, and what comes after it is in the blocks. Nothing that
//! was synced is lost, because it comes first.
//!
//! 1. Opening failed over the journal.
//! 2. The newest journal is read batch by batch, as the engine writes it (fjall 3.1): a start with the number of entries,
//!    the entries, an end with their checksum. Older journals were synced before the next one was begun.
//! 3. The file is cut off behind the last whole batch, and opening is tried once more.
//!
//! A test holds this reader against journals that the engine has written.

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

/// What was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutTail {
    pub path: PathBuf,
    /// The journal's length now.
    pub offset: u64,
}

/// Cuts the newest journal in the engine's directory off behind its last whole batch. `None` when there is no journal,
/// or nothing but zeros behind its whole batches, so that it is not what keeps the engine from opening.
///
/// # Errors
/// Errors of the operating system.
pub fn cut_torn_tail(directory: &Path) -> io::Result<Option<CutTail>> {
    let Some(path) = newest_journal(directory)? else { return Ok(None) };
    let bytes = fs::read(&path)?;
    let whole = whole_bytes(&bytes);
    if bytes[whole..].iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    file.set_len(whole as u64)?;
    file.sync_all()?;
    Ok(Some(CutTail { path, offset: whole as u64 }))
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

/// Length of the whole batches that a journal begins with.
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
