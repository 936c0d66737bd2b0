//! One organisation's peer: its channels, and the endorser over them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, RwLock};

use async_trait::async_trait;
use base::rt::disk::Directory;
use base::{BlockNumber, Bytes, TxId};
use contract::Registry;
use identity::Signer;
use ledger::{Block, ChannelConfig};
use proto::protos::{ProposalResponse, Response};
use state::{Monolithic, UpdateBatch, WorldState};
use storage::GroupSync;
use storage::blocks::{BlockOptions, BlockStore};
use storage::tables::TablesEngine;

use crate::access::{Definition, Definitions, Rules};
use crate::channel::Channel;
use crate::commit::pipeline::append_block;
use crate::endorse::{Channels, Endorse, EndorseError, Endorser};
use crate::{Error, commit, endorse};

/// How a peer behaves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub endorse: endorse::Settings,
    pub commit: commit::pipeline::Settings,
    pub state: state::Settings,
    pub blocks: BlockOptions,
}

/// What a peer is made of.
#[derive(Clone)]
pub struct PeerOptions {
    /// For logs.
    pub name: String,
    /// Signs endorsements.
    pub signer: Signer,
    /// Holds a block store for each channel.
    pub directory: Directory,
    /// Shared with whoever else writes to the same disk.
    pub sync: GroupSync,
    /// Holds the world state of each channel.
    pub tables: Arc<dyn TablesEngine>,
    /// The contracts that this peer can run.
    pub registry: Registry,
    /// The contracts of the channels, the same at all peers. Contracts of the registry that are not named here are
    /// defined with the channel's endorsement policy.
    pub definitions: Definitions,
    /// Where orderers serve blocks.
    pub orderers: Vec<String>,
    pub settings: Settings,
}

/// One organisation's peer.
pub struct Peer {
    options: PeerOptions,
    channels: Arc<Joined>,
    endorser: Endorser,
    joining: base::rt::sync::Mutex<()>,
    stopped: OnceLock<()>,
}

#[derive(Default)]
struct Joined(RwLock<BTreeMap<String, Arc<Channel>>>);

impl Channels for Joined {
    fn channel(&self, name: &str) -> Option<Arc<Channel>> {
        self.0.read().expect("no holder of this lock panics").get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<Channel>> {
        self.0.read().expect("no holder of this lock panics").values().cloned().collect()
    }
}

impl Peer {
    /// Opens a peer with every channel that its directory holds; each goes on where it ended.
    ///
    /// # Errors
    /// If a channel cannot be opened.
    pub async fn open(mut options: PeerOptions) -> Result<Arc<Peer>, Error> {
        for name in options.registry.names().map(str::to_owned).collect::<Vec<_>>() {
            let version = options.registry.get(&name).map(|contract| contract.version().to_owned());
            let definition = Definition { version: version.unwrap_or_default(), ..Definition::default() };
            options.definitions.entry(name).or_insert(definition);
        }
        let channels = Arc::new(Joined::default());
        let endorser = Endorser::new(
            options.signer.clone(),
            options.registry.clone(),
            options.settings.endorse.clone(),
            channels.clone(),
        );
        let peer =
            Peer { options, channels, endorser, joining: base::rt::sync::Mutex::new(()), stopped: OnceLock::new() };
        let names = peer.options.directory.list().map_err(|error| Error::io("listing channels", &error))?;
        for name in names {
            if ledger::config::check_channel_name(&name).is_err() {
                tracing::warn!(peer = peer.options.name, name, "passed over: not a channel's ledger");
                continue;
            }
            let store = peer.open_store(&name).await?;
            // A channel whose genesis block was not durable when the peer stopped is joined again.
            if store.height() > 0 {
                peer.start(store).await?;
            }
        }
        Ok(Arc::new(peer))
    }

    /// The peer's name.
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The peer's own identity.
    pub fn signer(&self) -> &Signer {
        &self.options.signer
    }

    /// The contracts that this peer can run.
    pub fn registry(&self) -> &Registry {
        &self.options.registry
    }

    /// Joins the channel whose genesis block this is. Durable on return. Joining again with the same block does nothing.
    ///
    /// # Errors
    /// If the block is no genesis block, or the channel was joined with another one.
    pub async fn join(&self, genesis: &Block) -> Result<Arc<Channel>, Error> {
        let _one_at_a_time = self.joining.lock().await;
        if self.stopped.get().is_some() {
            return Err(Error::Stopped);
        }
        let config = ChannelConfig::from_block(genesis)?;
        let name = config.channel().clone();
        if let Some(channel) = self.channel(&name) {
            return match channel.block_by_hash(&genesis.hash())? {
                Some(0) => Ok(channel),
                _ => Err(Error::ChannelExists(name)),
            };
        }
        genesis.check_follows(0, None)?;
        genesis.check_data_hash()?;
        let store = self.open_store(&name).await?;
        if store.height() == 0 {
            let mut metadata = genesis.metadata().clone();
            metadata.set_filter(vec![0; genesis.len()].into());
            let block = genesis.with_metadata(metadata);
            let transactions = vec![(TxId::from(""), 0); block.len()];
            append_block(&store, &block, &transactions).await?;
            store.sync().await?;
        }
        self.start(store).await
    }

    async fn open_store(&self, channel: &str) -> Result<BlockStore, Error> {
        ledger::config::check_channel_name(channel)?;
        let directory = self.options.directory.subdirectory(channel).await;
        let directory = directory.map_err(|error| Error::io(format!("the ledger of channel {channel}"), &error))?;
        let options = self.options.settings.blocks.clone();
        let (store, report) = BlockStore::open(directory, self.options.sync.clone(), options).await?;
        if let Some(torn) = &report.torn_tail {
            tracing::warn!(peer = self.options.name, channel, ?torn, "cut an incomplete block off the ledger");
        }
        Ok(store)
    }

    async fn start(&self, store: BlockStore) -> Result<Arc<Channel>, Error> {
        let genesis = store
            .read(BlockNumber(0))?
            .ok_or_else(|| Error::Stored { block: 0, reason: "the ledger has no genesis block".to_owned() })?;
        let config = Arc::new(ChannelConfig::from_block(&Block::parse(&genesis)?)?);
        let rules = Arc::new(Rules::new(config, self.options.definitions.clone())?);
        let name = rules.channel().to_string();
        let tables = self.options.tables.tables(&name).await?;
        let state: Arc<dyn WorldState> = Arc::new(Monolithic::open(tables, self.options.settings.state.clone()));
        if state.height() == 0 {
            // The configuration is read from the block itself; the genesis block writes nothing to the state.
            state.apply(0, UpdateBatch::default()).await?;
        }
        let settings = self.options.settings.commit.clone();
        let channel = Channel::open(rules, store, state, settings, self.options.orderers.clone()).await?;
        self.channels.0.write().expect("no holder of this lock panics").insert(name, channel.clone());
        Ok(channel)
    }

    /// A channel that was joined.
    pub fn channel(&self, name: &str) -> Option<Arc<Channel>> {
        self.channels.channel(name)
    }

    /// All channels, by name.
    pub fn channels(&self) -> Vec<Arc<Channel>> {
        self.channels.all()
    }

    /// Finishes what was judged, persists the states and closes the stores. Later proposals find no channel.
    ///
    /// # Errors
    /// The first error of a channel; the others are stopped all the same.
    pub async fn stop(&self) -> Result<(), Error> {
        let _one_at_a_time = self.joining.lock().await;
        self.stopped.get_or_init(|| ());
        let channels = std::mem::take(&mut *self.channels.0.write().expect("no holder of this lock panics"));
        let mut outcome = Ok(());
        for channel in channels.into_values() {
            let stopped = channel.stop().await;
            outcome = outcome.and(stopped);
        }
        outcome
    }
}

#[async_trait]
impl Endorse for Peer {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        self.endorser.process(signed_proposal).await
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        self.endorser.evaluate(signed_proposal).await
    }
}
