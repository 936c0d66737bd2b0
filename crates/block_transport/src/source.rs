//! The interfaces that a node implements to serve blocks.

use std::error::Error;
use std::sync::Arc;

use base::Bytes;
use base::rt::CancellationToken;
use base::rt::channel::WatchReceiver;

/// A node that serves the blocks of its channels, such as an orderer.
pub trait BlockSource: Send + Sync + 'static {
    /// The blocks of one channel; `None` if the node does not have the channel.
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelBlocks>>;

    /// Cancelled when the node stops. All links end then.
    fn stopping(&self) -> &CancellationToken;
}

/// The blocks of one channel that may be shown to peers. A block that may be shown never changes.
pub trait ChannelBlocks: Send + Sync + 'static {
    /// Whether an organisation is a member of the channel.
    fn is_member(&self, organization: &str) -> bool;

    /// The number of blocks that may be shown.
    fn height(&self) -> u64 {
        *self.deliverable().borrow()
    }

    /// Follows the number of blocks that may be shown.
    fn deliverable(&self) -> WatchReceiver<u64>;

    /// Whether other sources may have blocks that this one is about to get.
    fn may_lag(&self) -> bool;

    /// A block that may be shown, encoded; `None` from the height on.
    ///
    /// # Errors
    /// If the block cannot be read.
    fn block(&self, number: u64) -> Result<Option<Bytes>, Box<dyn Error + Send + Sync>>;

    /// Cancelled when the channel stops. Blocks that become deliverable during the stop are not sent.
    fn stopping(&self) -> &CancellationToken;
}
