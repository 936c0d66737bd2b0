//! One organisation's peer: its channels, and the endorser over them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, RwLock};

use async_trait::async_trait;
use base::{BlockNumber, Bytes, TxId};
use block_transport::SourceAddresses;
use contract::ContractRegistry;
use identity::{SignatureVerifier, Signer};
use ledger::{Block, ChannelConfig};
use proto::discovery::Peer as Description;
use proto::protos::{ProposalResponse, Response};
use state::UpdateBatch;

use crate::channel::{Channel, OpenedStores};
use crate::commit::pipeline::append_block;
use crate::endorse::{Endorse, EndorseError, Endorser, EndorsingChannel, EndorsingChannels, HostsChannels};
use crate::history::KeyHistory;
use crate::stores::{ChannelStores, PeerStores};
use crate::view::{ChannelView, PeerView};
use crate::{Error, commit, endorse};
use private_data::{MemberPeers, PrivateChannel};
use rules::access::ChannelPolicies;
use rules::definitions::{ContractDefinitions, by_channel_policy};

/// The settings of a peer.
#[derive(Clone, Debug, Default)]
pub struct PeerConfig {
    /// How proposals are checked and run.
    pub endorse: endorse::EndorserConfig,
    /// How blocks are verified, committed and persisted.
    pub commit: commit::context::PipelineConfig,
    /// How signatures that decide validity are verified; `None` means as in the rest of the process.
    pub verifier: Option<SignatureVerifier>,
}

/// What a peer needs to run.
#[derive(Clone)]
pub struct PeerSetup {
    /// For logs.
    pub name: String,
    /// Signs endorsements.
    pub signer: Signer,
    /// Holds the blocks and the state of each channel.
    pub stores: Arc<dyn PeerStores>,
    /// The contracts that this peer can run.
    pub registry: ContractRegistry,
    /// The definitions of the contracts that no channel's ledger defines, the same at all peers. Contracts of the registry that
    /// are not named here are defined with the channel's endorsement policy.
    pub definitions: ContractDefinitions,
    /// Where orderers serve blocks.
    pub orderers: SourceAddresses,
    /// The peers of other organisations, with which private data are exchanged.
    pub members: Arc<MemberPeers>,
    /// The peer's settings.
    pub settings: PeerConfig,
}

/// One organisation's peer. Dropping it ends its channels in the background, without the further steps of
/// [`Peer::stop`].
pub struct Peer {
    options: PeerSetup,
    channels: Arc<JoinedChannels>,
    endorser: Endorser,
    joining: base::rt::sync::Mutex<()>,
    stopped: OnceLock<()>,
}

#[derive(Default)]
struct JoinedChannels(RwLock<BTreeMap<String, Arc<Channel>>>);

impl JoinedChannels {
    fn channel(&self, name: &str) -> Option<Arc<Channel>> {
        self.0.read().expect("no holder of this lock panics").get(name).cloned()
    }

    fn all(&self) -> Vec<Arc<Channel>> {
        self.0.read().expect("no holder of this lock panics").values().cloned().collect()
    }
}

impl EndorsingChannels for JoinedChannels {
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        JoinedChannels::channel(self, name).map(|channel| channel as Arc<dyn EndorsingChannel>)
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        JoinedChannels::all(self).into_iter().map(|channel| channel as Arc<dyn EndorsingChannel>).collect()
    }
}

/// Defines the contracts of a registry that have no definition yet.
pub(crate) fn define(registry: &ContractRegistry, definitions: &mut ContractDefinitions) {
    for name in registry.names().map(str::to_owned).collect::<Vec<_>>() {
        let version = registry.get(&name).map(|contract| contract.version().to_owned());
        definitions.entry(name).or_insert_with(|| by_channel_policy(version.unwrap_or_default()));
    }
}

impl Peer {
    /// Opens a peer with every channel in its stores; each channel continues where it ended.
    ///
    /// # Errors
    /// If a channel cannot be opened.
    pub async fn open(mut options: PeerSetup) -> Result<Arc<Peer>, Error> {
        define(&options.registry, &mut options.definitions);
        let channels = Arc::new(JoinedChannels::default());
        let endorser = Endorser::new(
            options.signer.clone(),
            options.registry.clone(),
            options.settings.endorse.clone(),
            channels.clone(),
        );
        let peer =
            Peer { options, channels, endorser, joining: base::rt::sync::Mutex::new(()), stopped: OnceLock::new() };
        for name in peer.options.stores.channels().await? {
            let stores = peer.options.stores.open(&name).await?;
            // A channel whose genesis block was not durable when the peer stopped is joined again.
            if stores.blocks.height() > 0 {
                peer.start(stores).await?;
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
    pub fn registry(&self) -> &ContractRegistry {
        &self.options.registry
    }

    /// Joins the channel of this genesis block. Durable on return. Joining again with the same block does nothing.
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
            return match channel.block_by_hash(&genesis.hash()).await? {
                Some(0) => Ok(channel),
                _ => Err(Error::ChannelExists(name)),
            };
        }
        genesis.check_follows(0, None)?;
        genesis.check_data_hash()?;
        ledger::config::check_channel_name(&name)?;
        let stores = self.options.stores.open(&name).await?;
        if stores.blocks.height() == 0 {
            let mut metadata = genesis.metadata().clone();
            metadata.set_filter(vec![0; genesis.len()].into());
            let block = genesis.with_metadata(metadata);
            let transactions = vec![(TxId::from(""), 0); block.len()];
            append_block(stores.blocks.as_ref(), &block, &transactions).await?;
            stores.blocks.sync().await?;
        }
        self.start(stores).await
    }

    async fn start(&self, stores: ChannelStores) -> Result<Arc<Channel>, Error> {
        let ChannelStores { blocks, state, history, private } = stores;
        let genesis = blocks
            .read(BlockNumber(0))
            .await?
            .ok_or_else(|| Error::Stored { block: 0, reason: "the ledger has no genesis block".to_owned() })?;
        let genesis = Block::parse(&genesis)?;
        let config = Arc::new(ChannelConfig::from_block(&genesis)?);
        let policies = ChannelPolicies::new(config, self.options.definitions.clone())?;
        let policies = Arc::new(
            policies.verified_by(self.options.settings.verifier.unwrap_or_else(SignatureVerifier::of_process)),
        );
        let name = policies.channel().to_string();
        if state.height() == 0 {
            // The configuration is read from the block itself; the genesis block writes nothing to the state.
            let mut nothing = UpdateBatch::default();
            nothing.set_block_hash(genesis.hash());
            state.apply(0, nothing).await?;
        }
        let settings = self.options.settings.commit.clone();
        let history = Arc::new(KeyHistory::new(history, Arc::new(Arc::clone(&blocks))));
        let orderers = self.options.orderers.clone();
        let primary = self.options.stores.primary_role();
        let own = self.options.signer.msp_id().clone();
        let private = PrivateChannel::new(policies.channel().clone(), own, private, self.options.members.clone());
        let opened = OpenedStores { blocks, state, history, private: Arc::new(private) };
        let channel = Channel::open(policies, opened, settings, orderers, primary).await?;
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

    /// Finishes the validated blocks, persists the states and closes the stores. Later proposals find no channel.
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
            if let Ok(durable) = &stopped {
                self.options.stores.stopped(channel.id().as_str(), *durable).await;
            }
            outcome = outcome.and(stopped.map(drop));
        }
        outcome
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.channels.all().iter().for_each(|channel| channel.abandon());
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

    async fn describe(&self, channel: &str) -> Result<Description, EndorseError> {
        self.endorser.describe(channel).await
    }
}

impl HostsChannels for Peer {
    fn endorsing_channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        Peer::channel(self, name).map(|channel| channel as Arc<dyn EndorsingChannel>)
    }
}

impl PeerView for Peer {
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        Peer::channel(self, name).map(|channel| channel as Arc<dyn ChannelView>)
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        Peer::channels(self).into_iter().map(|channel| channel as Arc<dyn ChannelView>).collect()
    }
}
