//! Giving up the newest blocks of a store: for logs whose end was never shown to anybody. A ledger is never cut.
//!
//! 1. The indexes of the segment that the cut lies in, and of all behind it, go: for good, before anything else does. One that came
//!    back after a crash could pass for that of other blocks, of the same lengths, which came in the place of those that were cut off.
//! 2. Segments that begin behind the cut go, the last one first.
//! 3. In the segment that the cut lies in, which is the last one now, the durable marks go: what follows was durable, and is not
//!    to be missed.
//! 4. It is cut off.
//!
//! A crash between two steps leaves a store that begins as this one did and is no shorter than the cut; indexes that it lacks are made
//! again. The same cut again finishes it.

use base::BlockNumber;
use base::rt::disk::Directory;

use super::files::{index_name, segment_name};
use super::format::{MARK_BYTES, MARK_OFFSETS, SEGMENT_HEADER_BYTES};
use super::recovery::recover;
use crate::Error;

/// Cuts a store that nobody has open to its first `height` blocks, 1 at least. Durable on return.
///
/// # Errors
/// As [`super::BlockStore::open`].
pub async fn cut(directory: &Directory, height: u64) -> Result<(), Error> {
    assert!(height > 0, "a chain keeps its first block");
    let index = recover(directory).await?.index;
    let Some(place) = index.place(BlockNumber(height)) else { return Ok(()) };
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
    for offset in MARK_OFFSETS {
        file.write_at(offset, &[0; MARK_BYTES]).map_err(io)?;
    }
    file.sync().await.map_err(io)?;
    file.truncate(place.offset.max(SEGMENT_HEADER_BYTES)).map_err(io)?;
    file.sync().await.map_err(io)
}
