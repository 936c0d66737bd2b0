//! The interface through which the endorser reads the channels of its node.

use std::sync::Arc;

use async_trait::async_trait;
use base::{BlockNumber, TxId};
use ledger::Hash;
use state::Snapshot;
use storage::blocks::TransactionLocation;

use crate::Error;
use crate::channel::Channel;
use crate::history::KeyHistory;
use crate::view::ChannelView;
use private_data::PrivateChannel;

/// Finds the channels of a peer.
pub trait EndorsingChannels: Send + Sync + 'static {
    /// One channel.
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>>;
    /// All channels, by name.
    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>>;
}

/// A peer, or one of its compute nodes, as other peers see it that exchange private data with it.
pub trait HostsChannels: Send + Sync + 'static {
    /// A channel that this node can read now.
    fn endorsing_channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>>;
}

/// A channel as an endorser sees it, at a compute node that commits or at one that follows it.
#[async_trait]
pub trait EndorsingChannel: ChannelView {
    /// The newest state that may be shown. It contains every commit of which a client was notified before this call.
    ///
    /// # Errors
    /// `Retry` and `Fenced` if this compute node may not answer; another one of the peer may.
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error>;

    /// The history of the channel's keys.
    fn history(&self) -> &Arc<KeyHistory>;

    /// The private data of the channel that this peer has.
    fn private(&self) -> &Arc<PrivateChannel>;

    /// The position of a transaction that is committed or about to be.
    ///
    /// # Errors
    /// The block store's.
    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionLocation>, Error>;

    /// The number of the block with this header hash, committed or about to be.
    ///
    /// # Errors
    /// The block store's.
    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error>;
}

#[async_trait]
impl EndorsingChannel for Channel {
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        Channel::snapshot(self).await
    }

    fn history(&self) -> &Arc<KeyHistory> {
        Channel::history(self)
    }

    fn private(&self) -> &Arc<PrivateChannel> {
        Channel::private(self)
    }

    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        Ok(self.store().find_transaction(tx_id).await?)
    }

    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error> {
        Ok(self.store().number_by_hash(hash).await?)
    }
}
