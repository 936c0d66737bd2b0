//! Removes what a copy has before it is built again.
//!
//! The [epoch file](super::epoch) says that a removal has begun before anything is removed, and says no more of it once
//! everything is removed durably. A removal that a crash interrupted is completed before the channel is opened. Repeating one
//! changes nothing.

use base::rt::disk::Directory;

use super::config::{BLOCKS, StorageNodeConfig};
use super::epoch::{self, EpochRecord};
use super::hold_up;
use super::view::CopyReset;
use crate::private::PrivateTable;
use crate::{Error, history};

/// Completes a removal that has begun, if there is one; returns what the channel's file says then. The channel is not open.
pub(super) async fn complete(
    options: &StorageNodeConfig,
    epochs: &Directory,
    name: &str,
) -> Result<EpochRecord, Error> {
    let record = epoch::read(epochs, name)?;
    if record.reset == CopyReset::Nothing {
        return Ok(record);
    }
    for table in [PrivateTable::Committed, PrivateTable::Transient] {
        options.tables.clear(&format!("{name}{}", table.suffix())).await?;
    }
    hold_up("storage.node.resetting").await;
    if record.reset == CopyReset::Everything {
        options.tables.clear(name).await?;
        options.tables.clear(&format!("{name}{}", history::SUFFIX)).await?;
        remove_blocks(options, name).await?;
    }
    let record = EpochRecord { reset: CopyReset::Nothing, ..record };
    epoch::write(epochs, name, &record).await?;
    Ok(record)
}

/// Removes the newest blocks first: what a crash leaves is a chain from its first block on, or nothing.
async fn remove_blocks(options: &StorageNodeConfig, name: &str) -> Result<(), Error> {
    let blocks = options.data.subdirectory(BLOCKS).await?;
    let path = blocks.path().join(name);
    let io = |error| Error::io("removing the blocks of", &path, error);
    let directory = blocks.subdirectory(name).await.map_err(io)?;
    let mut names = directory.list().map_err(io)?;
    // Indexes first, and of segments the last one first.
    names.sort_by_key(|name| std::cmp::Reverse((name.ends_with(".index"), name.clone())));
    for name in names {
        directory.remove(&name).map_err(io)?;
        directory.sync().await.map_err(io)?;
    }
    Ok(())
}
