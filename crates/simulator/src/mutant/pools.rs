//! Faulty stores and hosts below a disaggregated peer.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Bytes, TxId};
use chain::{ChannelStores, PeerStores};
use rma::{Capability, Endpoint, Host, NodeId, RegionId, Rights};
use storage::blocks::{Blocks, ChainTip, NewBlock, StoredBlock, TransactionLocation};
use storage::{Error, History, HistoryQuery, Watermark};

use super::Mutant;
use crate::network::Network;

/// Stores that report blocks as durable before the storage node does, or whose history lags behind.
pub struct LyingStores {
    stores: Arc<dyn PeerStores>,
    mutant: Mutant,
}

impl LyingStores {
    /// A peer's stores, which lie if one of these mistakes is planted.
    pub fn over(network: &Network, organization: usize, stores: Arc<dyn PeerStores>) -> Arc<dyn PeerStores> {
        let planted = [Mutant::CommitUnanswered, Mutant::HistoryStale];
        match planted.into_iter().find(|mutant| mutant.is_in(network, organization)) {
            Some(mutant) => Arc::new(LyingStores { stores, mutant }),
            None => stores,
        }
    }
}

#[async_trait]
impl PeerStores for LyingStores {
    async fn channels(&self) -> Result<Vec<String>, chain::Error> {
        self.stores.channels().await
    }

    async fn open(&self, channel: &str) -> Result<ChannelStores, chain::Error> {
        let ChannelStores { blocks, state, history, private } = self.stores.open(channel).await?;
        Ok(match self.mutant {
            Mutant::HistoryStale => {
                let history = Arc::new(StaleHistory { history, height: OnceLock::new() });
                ChannelStores { blocks, state, history, private }
            }
            _ => ChannelStores { blocks: Arc::new(HastyBlocks(blocks)), state, history, private },
        })
    }

    async fn stopped(&self, channel: &str, durable: Watermark) {
        self.stores.stopped(channel, durable).await;
    }
}

struct StaleHistory {
    history: Arc<dyn History>,
    height: OnceLock<BlockNumber>,
}

#[async_trait]
impl History for StaleHistory {
    async fn blocks_of(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        let height = *self.height.get_or_init(|| query.below);
        self.history.blocks_of(HistoryQuery { below: query.below.min(height), ..query }).await
    }
}

struct HastyBlocks(Arc<dyn Blocks>);

#[async_trait]
impl Blocks for HastyBlocks {
    async fn append(&self, block: NewBlock<'_>) -> Result<(), Error> {
        self.0.append(block).await
    }

    async fn sync(&self) -> Result<u64, Error> {
        Ok(self.0.tip().height)
    }

    fn tip(&self) -> ChainTip {
        self.0.tip()
    }

    fn durable_height(&self) -> u64 {
        self.0.durable_height()
    }

    fn subscribe_durable(&self) -> WatchReceiver<u64> {
        self.0.subscribe_durable()
    }

    async fn read(&self, number: BlockNumber) -> Result<Option<Bytes>, Error> {
        self.0.read(number).await
    }

    async fn read_stored(&self, number: BlockNumber) -> Result<Option<StoredBlock>, Error> {
        self.0.read_stored(number).await
    }

    async fn read_page(&self, from: BlockNumber, limit: usize) -> Result<Vec<StoredBlock>, Error> {
        self.0.read_page(from, limit).await
    }

    async fn transactions(&self, number: BlockNumber) -> Result<Option<Vec<(TxId, u8)>>, Error> {
        self.0.transactions(number).await
    }

    async fn number_by_hash(&self, header_hash: &[u8; 32]) -> Result<Option<BlockNumber>, Error> {
        self.0.number_by_hash(header_hash).await
    }

    async fn find_transactions(&self, ids: &[TxId]) -> Result<Vec<Option<TransactionLocation>>, Error> {
        self.0.find_transactions(ids).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.0.close().await
    }
}

/// A memory node's host that reports memory as revoked although it is not.
pub struct LyingHost(Arc<dyn Host>);

impl LyingHost {
    /// A memory node's host, which lies if that mistake is planted.
    pub fn over(network: &Network, place: usize, host: Arc<dyn Host>) -> Arc<dyn Host> {
        match Mutant::MemoryKept.is_in(network, place) {
            true => Arc::new(LyingHost(host)),
            false => host,
        }
    }
}

#[async_trait]
impl Host for LyingHost {
    fn node(&self) -> NodeId {
        self.0.node()
    }

    async fn register(&self, name: &str, bytes: u64) -> Result<RegionId, rma::Error> {
        self.0.register(name, bytes).await
    }

    fn grant(&self, region: RegionId, rights: Rights, holder: &str) -> Result<Capability, rma::Error> {
        self.0.grant(region, rights, holder)
    }

    async fn revoke(&self, capability: &Capability) -> Result<(), rma::Error> {
        self.0.revoke(capability).await
    }

    async fn deregister(&self, _region: RegionId) -> Result<(), rma::Error> {
        Ok(())
    }

    async fn accept(&self) -> Result<Endpoint, rma::Error> {
        self.0.accept().await
    }

    fn address(&self) -> String {
        self.0.address()
    }

    async fn close(&self) {
        self.0.close().await;
    }
}
