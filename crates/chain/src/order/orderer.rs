//! An orderer: it starts a pipeline for each channel, and hands every envelope to the pipeline of its channel.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, RwLock};

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::rt::net::{LinkAcceptor, Parties};
use base::rt::{CancellationToken, Task};
use base::{Bytes, rt};
use block_transport::{BlockSource, ChannelBlocks};
use ledger::{Block, ChannelConfig};
use ordered_log::LogStore as _;
use proto::common::Status;
use rules::access::ChannelPolicies;
use rules::definitions::ContractDefinitions;
use storage::{GroupSync, WatermarkFile};

use super::broadcast::{Broadcast, BroadcastConfig, BroadcastError};
use super::log_store::{ChannelLogStore, OrderingEngines};
use super::orderer_channel::OrdererChannel;
use crate::{Error, events};

/// What an orderer needs to run.
#[derive(Clone)]
pub struct OrdererSetup {
    /// Signs blocks.
    pub signer: identity::Signer,
    /// Holds one log for each channel.
    pub directory: Directory,
    /// Shared with everything else that writes to the same disk.
    pub sync: GroupSync,
    /// Order the channels: this orderer alone ([`SoloEngines`](crate::order::log_store::SoloEngines)), or a group.
    pub engines: Arc<dyn OrderingEngines>,
    /// Bounds of the queue, and when the orderer acknowledges and cuts.
    pub settings: BroadcastConfig,
    /// Holds the notes of how far each channel's log has come. `None` if a log may lose blocks, as a volatile one does.
    pub watermarks: Option<Directory>,
}

/// One ordering node.
pub struct Orderer {
    options: OrdererSetup,
    channels: RwLock<BTreeMap<String, Arc<OrdererChannel>>>,
    tasks: Mutex<Vec<Task<()>>>,
    unserved: CancellationToken,
    stop: CancellationToken,
}

impl Orderer {
    /// Opens every channel in the directory, and continues at the end of its log.
    ///
    /// # Errors
    /// If a log or a configuration cannot be read.
    pub async fn open(options: OrdererSetup) -> Result<Arc<Orderer>, Error> {
        let orderer = Orderer {
            options,
            channels: RwLock::default(),
            tasks: Mutex::default(),
            unserved: CancellationToken::new(),
            stop: CancellationToken::new(),
        };
        let names = orderer.options.directory.list().map_err(|error| Error::io("listing channels", &error))?;
        for name in names {
            if ledger::config::check_channel_name(&name).is_err() {
                tracing::warn!(name, "passed over: not a channel's log");
                continue;
            }
            let log_store = orderer.open_log_store(&name).await?;
            if log_store.height() == 0 {
                // The orderer stopped before the genesis block was durable: the channel is joined again.
                continue;
            }
            orderer.start_channel(log_store).await?;
        }
        Ok(Arc::new(orderer))
    }

    /// Joins the channel of this genesis block. Durable on return. Joining again with the same block does nothing.
    ///
    /// # Errors
    /// If the block is no genesis block, or if the channel exists here with another one.
    pub async fn join(&self, genesis: &Block) -> Result<(), Error> {
        let config = ChannelConfig::from_block(genesis)?;
        let name = config.channel().clone();
        if let Some(chain) = self.channel(&name) {
            let same = chain.store().number_by_hash(&genesis.hash())?.is_some_and(|number| number.get() == 0);
            return if same { Ok(()) } else { Err(Error::ChannelExists(name)) };
        }
        genesis.check_follows(0, None)?;
        genesis.check_data_hash()?;
        let log_store = self.open_log_store(&name).await?;
        if log_store.height() == 0 {
            let store = log_store.store();
            crate::commit::pipeline::append_block(&store, genesis, &[]).await?;
            store.sync().await?;
        }
        self.start_channel(log_store).await
    }

    async fn open_log_store(&self, channel: &str) -> Result<Arc<ChannelLogStore>, Error> {
        ledger::config::check_channel_name(channel)?;
        Ok(Arc::new(ChannelLogStore::open(&self.options.directory, channel, self.options.sync.clone()).await?))
    }

    async fn start_channel(&self, log_store: Arc<ChannelLogStore>) -> Result<(), Error> {
        let genesis = log_store
            .store()
            .read(base::BlockNumber(0))?
            .ok_or_else(|| Error::Stored { block: 0, reason: "the log has no genesis block".to_owned() })?;
        let config = Arc::new(ChannelConfig::from_block(&Block::parse(&genesis)?)?);
        let genesis = Arc::new(ChannelPolicies::new(config, ContractDefinitions::new())?);
        let name = genesis.channel().to_string();
        let OrdererSetup { engines, signer, settings, watermarks, .. } = &self.options;
        let watermark = watermarks.clone().map(|directory| WatermarkFile::open(directory, &name)).transpose()?;
        if let Some(watermark) = &watermark {
            log_store.check_watermark(watermark).await?;
        }
        let chain =
            OrdererChannel::start(genesis, log_store, engines.as_ref(), signer.clone(), settings.clone(), watermark)
                .await?;
        self.channels.write().expect("no holder of this lock panics").insert(name, chain);
        Ok(())
    }

    /// One channel's log.
    pub fn channel(&self, channel: &str) -> Option<Arc<OrdererChannel>> {
        self.channels.read().expect("no holder of this lock panics").get(channel).cloned()
    }

    /// Serves peers at `address` until the orderer stops. Peers of the organisations that are now members of its
    /// channels may connect, and each may ask about its own channels only.
    ///
    /// # Errors
    /// If the address is in use.
    pub async fn serve(self: &Arc<Self>, address: &str) -> Result<(), Error> {
        let members = Parties::of(self.all_channels().iter().flat_map(|chain| chain.members()));
        let connections_max = self.options.settings.connections_max;
        let door =
            LinkAcceptor::open(address, &members, connections_max).await.map_err(|error| Error::io(address, &error))?;
        let task = rt::spawn({
            let orderer = self.clone();
            async move {
                block_transport::serve(orderer.clone(), door).await;
                orderer.unserved.cancel();
            }
        });
        self.tasks.lock().expect("no holder of this lock panics").push(task);
        Ok(())
    }

    /// Stopped when an address at which the orderer served peers is no longer served.
    pub fn unserved(&self) -> &CancellationToken {
        &self.unserved
    }

    fn all_channels(&self) -> Vec<Arc<OrdererChannel>> {
        self.channels.read().expect("no holder of this lock panics").values().cloned().collect()
    }

    /// Accepts no more envelopes, makes the waiting ones durable, and ends all connections.
    pub async fn stop(&self) {
        self.stop.cancel();
        let chains = std::mem::take(&mut *self.channels.write().expect("no holder of this lock panics"));
        for chain in chains.into_values() {
            chain.stop().await;
        }
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        for task in tasks {
            // A task that was aborted has nothing left to do.
            let _ = task.await;
        }
    }
}

impl BlockSource for Orderer {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelBlocks>> {
        Some(Orderer::channel(self, name)?)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stop
    }
}

#[async_trait]
impl Broadcast for Orderer {
    async fn broadcast(&self, channel: &str, envelope: Bytes) -> Result<(), BroadcastError> {
        if self.stop.is_cancelled() {
            return Err(BroadcastError::Stopped);
        }
        let Some(chain) = self.channel(channel) else {
            events::MessagesRejected.add(1);
            return Err(BroadcastError::Rejected {
                status: Status::NotFound,
                reason: format!("channel {channel} is not known here"),
            });
        };
        chain.broadcast(envelope).await
    }
}

#[cfg(test)]
mod tests;
