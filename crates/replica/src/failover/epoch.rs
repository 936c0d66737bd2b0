//! The election: compute nodes ask the storage node for the next epoch, and the node that gets it becomes the primary.

use base::{BlockNumber, Epoch, ErrorKind};
use storage::blocks::StoredBlocks;
use storage::node::{RemoteReads, RemoteStoreConfig};
use storage::{Error, Watermark, WatermarkFile};

/// Starts an epoch of a channel at a storage node, for the next primary. If `newest` is given, the new epoch must be
/// the one directly after it.
///
/// A storage node that has less than was noted, or another chain, is rejected before the epoch starts. Neither the node
/// nor the note has changed then, so another attempt fails in the same way. The epoch is noted before anything is done
/// under it.
///
/// # Errors
/// [`storage::Error::RolledBack`]; as [`storage::node::begin_epoch`] and [`storage::node::begin_epoch_after`].
pub async fn begin_epoch(
    options: RemoteStoreConfig,
    newest: Option<Epoch>,
    watermark: Option<&WatermarkFile>,
) -> Result<Epoch, Error> {
    if let Some(watermark) = watermark {
        check_node(&options, watermark).await?;
    }
    let RemoteStoreConfig { address, token, channel, .. } = options;
    let epoch = match newest {
        None => storage::node::begin_epoch(&address, &token, &channel).await?,
        Some(newest) => storage::node::begin_epoch_after(&address, &token, &channel, newest).await?,
    };
    if let Some(watermark) = watermark {
        watermark.advance(Watermark { epoch, ..Watermark::default() }).await?;
    }
    Ok(epoch)
}

/// Compares the data of a storage node with the note.
async fn check_node(options: &RemoteStoreConfig, watermark: &WatermarkFile) -> Result<(), Error> {
    let (saved, RemoteStoreConfig { address, token, channel, .. }) = (watermark.current().await, options);
    if saved == Watermark::default() {
        return Ok(());
    }
    let newest = storage::node::newest_epoch(address, token, channel).await?;
    if newest < saved.epoch {
        let epoch = saved.epoch;
        let found = format!("storage node {address} has begun epoch {newest} of channel {channel}, and {epoch} before");
        return Err(watermark.rolled_back(found));
    }
    let Some(last) = saved.height.checked_sub(1) else { return Ok(()) };
    let found = match RemoteReads::new(options.clone()).number_by_hash(&saved.block_hash).await {
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
