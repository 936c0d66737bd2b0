//! Truncates a block store: removes its newest blocks, from a given height on. Only a log may be truncated, and only
//! blocks that no client has seen; a ledger is never truncated.
//!
//! 1. Remove the indexes of the segment in which the new end lies and of all later segments. Make the removal durable
//!    before any other step. Otherwise a crash could bring an old index back after new blocks were appended; if these
//!    have the same lengths as the removed ones, the old index would pass for theirs.
//! 2. Remove the segments that begin after the new end, the last one first.
//! 3. Clear the durable watermarks of the segment in which the new end lies, which is now the last one. These
//!    watermarks cover blocks that step 4 removes, and opening the store would report those blocks as missing.
//! 4. Truncate that segment at the new end.
//!
//! After a crash between two steps the store still has all blocks below the new end, and missing indexes are rebuilt.
//! Repeating the truncation completes it.

use base::BlockNumber;
use base::rt::disk::Directory;

use super::files::{index_name, segment_name};
use super::format::{SEGMENT_HEADER_BYTES, WATERMARK_BYTES, WATERMARK_OFFSETS};
use super::recovery::recover;
use crate::Error;

/// Truncates a store that is not open to its first `height` blocks, at least 1. Durable on return.
///
/// # Errors
/// As [`super::BlockStore::open`].
pub async fn truncate(directory: &Directory, height: u64) -> Result<(), Error> {
    assert!(height > 0, "a chain keeps its first block");
    let index = recover(directory).await?.index;
    let Some(place) = index.locate(BlockNumber(height)) else { return Ok(()) };
    let at = |name: &str| directory.path().join(name);
    let synced = async || directory.sync().await.map_err(|error| Error::io("syncing", directory.path(), error));
    let remove = |name: &str| directory.remove(name).map_err(|error| Error::io("removing", &at(name), error));
    let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
    let later =
        names.iter().filter_map(|name| super::files::parse_segment_name(name)).filter(|first| *first > place.first);
    let mut later: Vec<BlockNumber> = later.collect();
    for name in names.iter().filter(|name| **name >= index_name(place.first) && name.ends_with(".index")) {
        remove(name)?;
    }
    synced().await?;
    while let Some(first) = later.pop() {
        remove(&segment_name(first))?;
        synced().await?;
    }
    let name = segment_name(place.first);
    let io = |error| Error::io("cutting", &at(&name), error);
    let file = directory.open_file(&name, false).map_err(io)?;
    for offset in WATERMARK_OFFSETS {
        file.write_at(offset, &[0; WATERMARK_BYTES]).map_err(io)?;
    }
    file.sync().await.map_err(io)?;
    file.truncate(place.offset.max(SEGMENT_HEADER_BYTES)).map_err(io)?;
    file.sync().await.map_err(io)
}
