//! The election: compute nodes ask the storage node for the next epoch, and the node that gets it becomes the primary.

use base::{BlockNumber, Epoch, ErrorKind};
use storage::blocks::StoredBlocks;
use storage::{Error, Watermark, WatermarkFile};
use storage_copies::{CopiedReads, CopySet};

/// Starts an epoch of a channel at its storage node, or at every complete copy, for the next primary. If `newest` is given, the new epoch must be
/// the one directly after it.
///
/// A storage node that has less than was noted, or another chain, is rejected before the epoch starts. Neither the node
/// nor the note has changed then, so another attempt fails in the same way. The epoch is noted before anything is done
/// under it.
///
/// # Errors
/// [`storage::Error::RolledBack`]; as [`storage_copies::begin_epoch`].
pub async fn begin_epoch(
    storage: &CopySet,
    channel: &str,
    newest: Option<Epoch>,
    watermark: Option<&WatermarkFile>,
) -> Result<Epoch, Error> {
    if let Some(watermark) = watermark {
        check_nodes(storage, channel, watermark).await?;
    }
    let epoch = storage_copies::begin_epoch(storage, channel, newest).await?;
    if let Some(watermark) = watermark {
        watermark.advance(Watermark { epoch, ..Watermark::default() }).await?;
    }
    Ok(epoch)
}

/// Compares the data of the storage nodes with the note.
async fn check_nodes(storage: &CopySet, channel: &str, watermark: &WatermarkFile) -> Result<(), Error> {
    let (saved, address) = (watermark.current().await, &storage.first().address);
    if saved == Watermark::default() {
        return Ok(());
    }
    let newest = storage_copies::newest_epoch(storage, channel).await?;
    if newest < saved.epoch {
        let epoch = saved.epoch;
        let found = format!("storage node {address} has begun epoch {newest} of channel {channel}, and {epoch} before");
        return Err(watermark.rolled_back(found));
    }
    let Some(last) = saved.height.checked_sub(1) else { return Ok(()) };
    let found = match CopiedReads::new(storage.clone(), channel).number_by_hash(&saved.block_hash).await {
        // The node has no such channel.
        Err(error) if error.kind() == ErrorKind::Rejected => None,
        found => found?,
    };
    if found != Some(BlockNumber(last)) {
        let found = format!("storage node {address} lacks block {last} of channel {channel}, which was durable there");
        return Err(watermark.rolled_back(found));
    }
    Ok(())
}
