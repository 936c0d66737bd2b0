//! The interface through which components outside a peer see its channels: committed blocks and the outcome of
//! transactions.
//!
//! A gateway works on this interface, because the peer may run in the gateway's process ([`crate::Peer`]) or in another
//! one. A view shows only what is committed: durable and applied at the peer.

use std::sync::Arc;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::{Bytes, TxId};
use replica::load::ReportedNode;
use rules::access::ChannelPolicies;

use crate::commit::recent::CommittedBlock;
use crate::commit::recent_writes::RecentWrites;
use crate::commit::waiters::TxStatus;
use crate::private_block::{TransactionPrivateData, private_data_of, reader};
use crate::{Channel, Error};

/// The channels of a peer.
pub trait PeerView: Send + Sync + 'static {
    /// A channel that the peer has joined.
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>>;

    /// All channels that the peer has joined, by name.
    fn channels(&self) -> Vec<Arc<dyn ChannelView>>;

    /// Whether a channel that is not shown is one that the peer has not joined. False while a remote peer was not
    /// reached, or does not know yet whether it commits its channels.
    fn knows_channels(&self) -> bool {
        true
    }

    /// The compute nodes of the peer as its primary knows them, each with its load and the age of that report. Empty
    /// where the peer has one node, or this node is not the primary.
    fn nodes(&self) -> Vec<ReportedNode> {
        Vec::new()
    }
}

/// A channel that a peer has joined.
#[async_trait]
pub trait ChannelView: Send + Sync + 'static {
    /// The channel's policies after the newest committed block that this view knows of.
    fn policies(&self) -> Arc<ChannelPolicies>;

    /// Number of committed blocks that this view knows of.
    fn height(&self) -> u64;

    /// Follows [`ChannelView::height`].
    fn committed(&self) -> WatchReceiver<u64>;

    /// A committed block, encoded, with the peer's metadata; `None` from [`ChannelView::height`] on.
    ///
    /// # Errors
    /// The block store's; [`Error::Unreachable`] if a remote peer cannot be asked now.
    async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error>;

    /// A committed block in decoded form.
    ///
    /// # Errors
    /// As [`ChannelView::read_block`].
    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error>;

    /// The outcome of a transaction; `None` while it is not committed. Of several transactions with one id the first
    /// counts.
    ///
    /// # Errors
    /// As [`ChannelView::read_block`].
    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error>;

    /// Waits until a transaction is committed. Dropping the future cancels the wait.
    ///
    /// # Errors
    /// [`Error::TooManyWaiters`]; [`Error::Stopped`] when the channel ends first; as [`ChannelView::read_block`].
    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error>;

    /// The private data of a committed block that a reader may have and the peer has. `request` is an encoded `Envelope` that the
    /// reader has signed, such as a request for a stream of blocks.
    ///
    /// # Errors
    /// `Rejected` if the signer may not read the channel's blocks; as [`ChannelView::read_block`].
    async fn private_data(&self, number: u64, request: &Bytes) -> Result<Vec<TransactionPrivateData>, Error>;

    /// The rows that recent blocks wrote, by which [`crate::early_abort`] judges; `None` if they are not noted.
    fn recent_writes(&self) -> Option<&RecentWrites> {
        None
    }

    /// Why the channel accepts no new blocks, if it does not. Committed blocks can still be read.
    fn failure(&self) -> Option<Arc<Error>>;

    /// Resolves when the channel has stopped following the orderers.
    async fn stopped(&self);
}

#[async_trait]
impl ChannelView for Channel {
    fn policies(&self) -> Arc<ChannelPolicies> {
        Channel::policies(self)
    }

    fn height(&self) -> u64 {
        Channel::height(self)
    }

    fn committed(&self) -> WatchReceiver<u64> {
        Channel::committed(self)
    }

    async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        Channel::read_block(self, number).await
    }

    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        Channel::committed_block(self, number).await
    }

    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        Channel::tx_status(self, tx_id).await
    }

    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        Channel::wait_committed(self, tx_id).await
    }

    async fn private_data(&self, number: u64, request: &Bytes) -> Result<Vec<TransactionPrivateData>, Error> {
        let policies = Channel::policies(self);
        let reader = reader(request, &policies)?;
        let Some(block) = Channel::committed_block(self, number).await? else { return Ok(Vec::new()) };
        private_data_of(&block, &reader, self.private(), &policies, Channel::height(self)).await
    }

    fn recent_writes(&self) -> Option<&RecentWrites> {
        Channel::recent_writes(self)
    }

    fn failure(&self) -> Option<Arc<Error>> {
        Channel::failure(self)
    }

    async fn stopped(&self) {
        Channel::stopped(self).await;
    }
}
