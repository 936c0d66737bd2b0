//! Puts transactions into blocks, keeps them in a log of its own, and streams them to peers.

use std::sync::Arc;

use async_trait::async_trait;
use base::Bytes;
use base::rt::disk::Directory;
use chain::order::chain::Chain;
use chain::order::{Broadcast, BroadcastError, Orderer, OrdererOptions, Settings};
use gateway::service::Intake;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use proto::common::Status;
use storage::{DataDirectory, GroupSync};

use crate::network::NodeError;

/// What an orderer is made of.
pub(crate) struct Options<'a> {
    /// For logs and errors.
    pub name: &'a str,
    /// Signs blocks.
    pub signer: Signer,
    /// Holds a log for each channel.
    pub directory: Directory,
    /// Where that is; nobody else uses it as long as the orderer runs.
    pub data: DataDirectory,
    pub sync: GroupSync,
    /// Of the channel that it orders.
    pub genesis: &'a Block,
    /// Where it streams blocks.
    pub address: &'a str,
}

/// An orderer that runs.
pub(crate) struct Ordering {
    name: String,
    orderer: Arc<Orderer>,
    chain: Arc<Chain>,
    _data: DataDirectory,
}

impl Ordering {
    pub(crate) async fn start(options: Options<'_>) -> Result<Ordering, NodeError> {
        let name = options.name.to_owned();
        let failed = |source| NodeError::Chain { who: name.clone(), source };
        let orderer = Orderer::open(OrdererOptions {
            signer: options.signer,
            directory: options.directory,
            sync: options.sync,
            settings: Settings::default(),
        })
        .await
        .map_err(failed)?;
        orderer.join(options.genesis).await.map_err(failed)?;
        orderer.serve(options.address).await.map_err(failed)?;
        let channel = ChannelConfig::from_block(options.genesis)?.channel().to_string();
        let chain = orderer.chain(&channel).expect("its genesis block was just joined");
        Ok(Ordering { name, orderer, chain, _data: options.data })
    }

    pub(crate) fn orderer(&self) -> &Arc<Orderer> {
        &self.orderer
    }

    /// The channel's log.
    pub(crate) fn chain(&self) -> &Arc<Chain> {
        &self.chain
    }

    /// Completes when it has stopped by itself, and says why.
    pub(crate) async fn failed(&self) -> String {
        self.chain.stopped().await;
        super::said(&self.name, self.chain.failure())
    }

    /// Makes what waits durable and ends.
    pub(crate) async fn stop(&self) {
        self.orderer.stop().await;
    }
}

/// An orderer that refuses while its intake is closed: for envelopes that do not come through a port.
pub(crate) struct Guarded {
    pub orderer: Arc<Orderer>,
    pub intake: Intake,
}

#[async_trait]
impl Broadcast for Guarded {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if let Some(reason) = self.intake.problem() {
            return Err(BroadcastError::Rejected { status: Status::ServiceUnavailable, reason });
        }
        self.orderer.broadcast(channel, envelope).await
    }
}
