//! A running compute node: it follows the primary of its peer or is the primary.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::{Bytes, Epoch, ErrorKind, rt};
use identity::SignatureVerifier;
use ledger::ChannelConfig;
use proto::discovery::Peer as Description;
use proto::protos::{ProposalResponse, Response};
use replica::failover;
use replica::failover::{ActiveRole, ComputeNodeConfig, ComputeRole, FailoverSample, PeerAddresses, ServingRole};
use replica::load::{NodeLoad, ReportedNode};
use replica::offload::OffloadCounts;
use rules::access::ChannelPolicies;
use state::Disaggregated;

use super::roles::ChannelRoles;
use super::setup::ComputeNodeSetup;
use crate::endorse::{Endorse, EndorseError, Endorser, EndorsingChannel, EndorsingChannels, HostsChannels};
use crate::peer::define;
use crate::view::{ChannelView, PeerView};
use crate::{Channel, Error, Peer};

/// How long a follower that drains goes on answering at least: gateways learn of it within this time.
pub const DRAIN_MIN: Duration = Duration::from_millis(300);
/// How long it waits for what it has accepted.
pub const DRAIN_MAX: Duration = Duration::from_secs(10);
/// How often it checks whether it is done.
const DRAIN_PERIOD: Duration = Duration::from_millis(10);

/// A compute node that is the primary.
#[derive(Clone)]
pub struct ActivePrimary {
    /// The epoch under which it is the primary.
    pub epoch: Epoch,
    /// Number of blocks in the channel when the epoch started.
    pub start_height: u64,
    /// The peer, with its one channel.
    pub peer: Arc<Peer>,
    /// The channel.
    pub channel: Arc<Channel>,
    /// The channel's world state in remote memory.
    pub state: Arc<Disaggregated>,
}

/// A running compute node.
pub struct ComputeNode {
    node: failover::ComputeNode<ChannelRoles>,
    endorser: Endorser,
    channels: Arc<ServingChannels>,
}

/// The channel from which the node answers now.
pub(super) struct ServingChannels(Arc<ActiveRole<ChannelRoles>>);

impl EndorsingChannels for ServingChannels {
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        self.all().pop().filter(|channel| channel.policies().channel().as_str() == name)
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        match self.0.get() {
            ServingRole::None => Vec::new(),
            ServingRole::Following(channel) if channel.knows_policies() => vec![channel],
            ServingRole::Following(_) => Vec::new(),
            ServingRole::Primary(session) => vec![session.peer().channel().clone()],
        }
    }
}

impl ComputeNode {
    /// Starts the node, which begins by looking for a primary.
    ///
    /// # Errors
    /// If the channel's policies cannot be read from its genesis block.
    pub fn start(mut options: ComputeNodeSetup) -> Result<ComputeNode, Error> {
        define(&options.registry, &mut options.definitions);
        // The caller may give the same settings to several nodes; each node counts for itself.
        options.settings.commit.offload.counts = Arc::default();
        options.settings.commit.offload.load = options.settings.commit.offload.load.of_another_node();
        let config = Arc::new(ChannelConfig::from_block(&options.genesis)?);
        let policies = ChannelPolicies::new(config, options.definitions.clone())?;
        let policies =
            Arc::new(policies.verified_by(options.settings.verifier.unwrap_or_else(SignatureVerifier::of_process)));
        let active_role = Arc::new(ActiveRole::default());
        let channels = Arc::new(ServingChannels(active_role.clone()));
        let endorser = Endorser::new(
            options.signer.clone(),
            options.registry.clone(),
            options.settings.endorse.clone(),
            channels.clone(),
        );
        let config = ComputeNodeConfig {
            name: options.name.clone(),
            addresses: PeerAddresses {
                storage: options.storage.clone(),
                channel: policies.channel().to_string(),
                address: options.address.clone(),
                others: options.others.clone(),
                parties: options.parties.clone(),
            },
            watermark: options.watermark.clone(),
            failover_timeouts: options.failover_timeouts,
        };
        let node = failover::ComputeNode::start(config, ChannelRoles::new(options, policies), active_role);
        Ok(ComputeNode { node, endorser, channels })
    }

    /// The node's current role.
    pub fn role(&self) -> ComputeRole {
        self.node.role()
    }

    /// The height that the node shows: 0 while it waits.
    pub fn height(&self) -> u64 {
        self.node.height()
    }

    /// As [`failover::ComputeNode::failover_sample`].
    pub fn failover_sample(&self) -> Option<FailoverSample> {
        self.node.failover_sample()
    }

    /// The channel and stores of the primary, while this node is it.
    pub fn primary(&self) -> Option<ActivePrimary> {
        match self.node.serving() {
            ServingRole::Primary(session) => Some(ActivePrimary {
                epoch: session.epoch(),
                start_height: session.start_height(),
                peer: session.peer().peer().clone(),
                channel: session.peer().channel().clone(),
                state: session.peer().world_state()?,
            }),
            ServingRole::None | ServingRole::Following(_) => None,
        }
    }

    /// How many transactions followers have verified for this node, and this node for its primary.
    pub fn offload_counts(&self) -> &Arc<OffloadCounts> {
        &self.node.roles().setup().settings.commit.offload.counts
    }

    /// Why the node has ended by itself, if it has.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.node.failure()
    }

    /// Completes when the node has ended by itself.
    pub async fn failed(&self) {
        self.node.failed().await;
    }

    /// Why the node can neither answer nor commit now; `None` if it can.
    pub fn stalled(&self) -> Option<String> {
        match self.node.serving() {
            ServingRole::Primary(session) => session.peer().channel().stalled(),
            ServingRole::Following(channel) if channel.is_live() => None,
            ServingRole::None | ServingRole::Following(_) => {
                Some("it follows no primary of its peer for now".to_owned())
            }
        }
    }

    /// Has a follower get nothing new, and returns once it has answered everything that it had accepted: after
    /// [`DRAIN_MIN`], so that gateways have learnt of it, and [`DRAIN_MAX`] at the latest. It goes on answering. A
    /// primary returns at once, and so does a node that ceases to follow meanwhile.
    pub async fn drain(&self) {
        let ServingRole::Following(channel) = self.node.serving() else { return };
        channel.follower().drain();
        let since = rt::now();
        let follows = || matches!(self.node.serving(), ServingRole::Following(_));
        while follows() && (since.elapsed() < DRAIN_MIN || (self.load().queued() > 0 && since.elapsed() < DRAIN_MAX)) {
            rt::sleep(DRAIN_PERIOD).await;
        }
    }

    /// How loaded the node is.
    pub fn load(&self) -> &NodeLoad {
        &self.node.roles().setup().settings.commit.offload.load
    }

    /// Stops the node. A primary finishes the blocks that it has validated, and makes them durable. A follower answers
    /// nothing from the moment of the call, and no block has to wait for it.
    ///
    /// # Errors
    /// The primary's errors; the node has stopped nevertheless.
    pub async fn stop(&self) -> Result<(), Error> {
        if let ServingRole::Following(channel) = self.node.serving() {
            channel.follower().leave().await;
        }
        self.node.stop().await;
        Ok(())
    }

    /// A channel that cannot be shown for now is not an unknown channel: the error says `Retry`.
    fn unavailable(&self, error: EndorseError) -> EndorseError {
        match error {
            EndorseError::UnknownChannel(name) if name == self.node.roles().channel() => EndorseError::State {
                kind: ErrorKind::Retry,
                message: "this compute node has no primary to follow for now; retry, here or at another one".to_owned(),
            },
            error => error,
        }
    }
}

impl HostsChannels for ComputeNode {
    fn endorsing_channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        self.channels.channel(name)
    }
}

impl PeerView for ComputeNode {
    /// The channel at the primary, and `None` at a follower: clients that want to see commits ask the primary.
    fn channel(&self, name: &str) -> Option<Arc<dyn ChannelView>> {
        self.channels().pop().filter(|channel| channel.policies().channel().as_str() == name)
    }

    fn channels(&self) -> Vec<Arc<dyn ChannelView>> {
        match self.node.serving() {
            ServingRole::Primary(session) if session.is_seen() => vec![session.peer().channel().clone()],
            _ => Vec::new(),
        }
    }

    fn knows_channels(&self) -> bool {
        !self.channels().is_empty()
    }

    /// The primary's knowledge: its own load first, then its followers'.
    fn nodes(&self) -> Vec<ReportedNode> {
        let ServingRole::Primary(session) = self.node.serving() else { return Vec::new() };
        if !session.is_seen() {
            return Vec::new();
        }
        let setup = self.node.roles().setup();
        let own = ReportedNode {
            name: setup.name.as_str().into(),
            addresses: setup.addresses.clone(),
            load: self.load().report(),
            age: Duration::ZERO,
            is_draining: false,
        };
        std::iter::once(own).chain(session.peer().reported()).collect()
    }
}

#[async_trait]
impl Endorse for ComputeNode {
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        let _queued = self.load().enter();
        self.endorser.process(signed_proposal).await.map_err(|error| self.unavailable(error))
    }

    async fn evaluate(&self, signed_proposal: Bytes) -> Result<Response, EndorseError> {
        let _queued = self.load().enter();
        self.endorser.evaluate(signed_proposal).await.map_err(|error| self.unavailable(error))
    }

    async fn describe(&self, channel: &str) -> Result<Description, EndorseError> {
        self.endorser.describe(channel).await.map_err(|error| self.unavailable(error))
    }
}
