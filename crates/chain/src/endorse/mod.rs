//! Running proposals and signing what they came to.
//!
//! The steps of [`Endorser::process`], which are those of Fabric's endorser:
//!
//! 1. Read the proposal's headers ([`proposal`]) and find its channel.
//! 2. Check its form, the clock it claims, its creator's membership, expiry and signature; nothing is awaited or kept until then.
//! 3. Take a place of the [share](share) of the creator's organisation; without one the proposal is turned away
//!    ([`EndorseError::Overloaded`]). Check that its transaction is not on the ledger and that the creator may propose, and read
//!    the invocation.
//! 4. Wait for a [turn](turns), which organisations get one after the other, for [`Settings::wait_max`] at most.
//! 5. Run the contract against one snapshot of the state ([`simulate`]), for [`Settings::execution_max`] at most. Fabric's
//!    system contracts answer from the ledger instead ([`system`]), without a turn.
//! 6. Encode what was read and written, the response and the event, together with the proposal's hash, and sign that.
//!    A response with a status of 400 or more is carried unsigned.
//!
//! Invariants: nothing is changed here or anywhere else by a proposal; of equal states and equal proposals the signed
//! bytes are equal at all endorsers; every signature that is checked is checked by this peer, once a proposal.

pub mod proposal;
mod share;
pub mod simulate;
pub mod system;
mod turns;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::{self, WallTime};
use base::{BlockNumber, Bytes, ErrorKind, TxId};
use contract::{Registry, Response, StubError, Timestamp};
use identity::{Identity, Signer};
use ledger::Hash;
use prost::Message;
use proto::protos::{
    ChaincodeAction, ChaincodeEvent, ChaincodeId, Endorsement, ProposalResponse, ProposalResponsePayload,
    Response as WireResponse,
};
use state::Snapshot;
use storage::blocks::TransactionPlace;

use crate::Error;
use crate::channel::Channel;
use crate::events;
use crate::history::KeyHistory;
use crate::view::ChannelView;
use proposal::{Invocation, Proposal, shown};
use share::{Share, Shares};
use simulate::{Context, Elsewhere, Simulation};
use turns::Turns;

/// Runs proposals.
#[async_trait]
pub trait Endorse: Send + Sync {
    /// Runs an encoded `SignedProposal` and signs what it came to. A contract's refusal comes back as a response of
    /// status 400 or more, without an endorsement.
    ///
    /// Dropping the future abandons the proposal.
    ///
    /// # Errors
    /// See [`EndorseError`].
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError>;

    /// Runs an encoded `SignedProposal` for its answer alone: what it read is not recorded for anybody, and nothing is
    /// signed.
    ///
    /// # Errors
    /// See [`EndorseError`].
    async fn evaluate(&self, signed_proposal: Bytes) -> Result<WireResponse, EndorseError>;
}

/// Why a proposal was not run to an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndorseError {
    /// The bytes are no proposal.
    #[error("{0}")]
    Malformed(String),
    /// The proposal is not permitted: its form, creator, signature or rights.
    #[error("error validating proposal: {0}")]
    Invalid(String),
    /// The creator's certificate has expired, or the proposal's time is too far from this peer's.
    #[error("{0}")]
    Expired(String),
    /// The channel is not held here.
    #[error("channel '{0}' not found")]
    UnknownChannel(String),
    /// The channel has no such contract, or this peer cannot run it.
    #[error("make sure the chaincode {name} has been successfully defined on channel {channel} and try again")]
    UnknownChaincode {
        /// The contract.
        name: String,
        /// The channel.
        channel: String,
    },
    /// The transaction is on the ledger already.
    #[error("duplicate transaction found [{0}]")]
    Duplicate(TxId),
    /// Too many proposals are running and waiting, or it has waited for too long.
    #[error("too many proposals are running and waiting; try again after a pause that grows")]
    Overloaded,
    /// The contract took too long.
    #[error("the contract did not finish within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The state could not serve.
    #[error("error in simulation: {message}")]
    State {
        /// What the caller is to do; never `Rejected`.
        kind: ErrorKind,
        /// The cause.
        message: String,
    },
    /// The channel's pipeline has failed: what the peer knows of the channel grows old, so nothing is run on it.
    #[error("channel {channel} has stopped at this peer and waits for its operator: {cause}")]
    ChannelStopped {
        /// The channel.
        channel: String,
        /// What ended it.
        cause: String,
    },
    /// The peer is stopping.
    #[error("the peer is stopping")]
    Stopped,
}

impl EndorseError {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EndorseError::Overloaded | EndorseError::TimedOut(_) => ErrorKind::Retry,
            EndorseError::State { kind, .. } => *kind,
            EndorseError::ChannelStopped { .. } | EndorseError::Stopped => ErrorKind::Closed,
            _ => ErrorKind::Rejected,
        }
    }
}

/// How an endorser behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Proposals that may run and wait at once.
    pub concurrency_max: usize,
    /// Bytes of proposals that may run and wait at once, of all organisations.
    pub bytes_max: usize,
    /// Contracts that may run at once; other proposals wait, so that commits get their turn.
    pub running_max: usize,
    /// How long a proposal may wait for its turn.
    pub wait_max: Duration,
    /// How long a contract may run.
    pub execution_max: Duration,
    /// How far a proposal's time may be from this peer's, either way.
    pub clock_window: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            concurrency_max: 4096,
            bytes_max: 256 << 20,
            running_max: 64,
            wait_max: Duration::from_secs(10),
            execution_max: Duration::from_secs(30),
            clock_window: Duration::from_secs(15 * 60),
        }
    }
}

/// Finds the channels of a peer.
pub trait Channels: Send + Sync + 'static {
    /// One channel.
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>>;
    /// All channels, by name.
    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>>;
}

/// A channel as an endorser sees it, at a compute node that commits or at one that follows it.
#[async_trait]
pub trait EndorsingChannel: ChannelView {
    /// The newest state that may be shown: whoever was told of a commit before this was called finds it there.
    ///
    /// # Errors
    /// `Retry` and `Fenced` where this compute node may not answer; another one of the peer may.
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error>;

    /// What its keys held.
    fn history(&self) -> &Arc<KeyHistory>;

    /// Where a transaction stands, committed or about to be.
    ///
    /// # Errors
    /// The block store's.
    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionPlace>, Error>;

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

    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionPlace>, Error> {
        Ok(self.store().find_transaction(tx_id).await?)
    }

    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error> {
        Ok(self.store().number_by_hash(hash).await?)
    }
}

/// The endorser of one peer.
pub struct Endorser {
    signer: Signer,
    registry: Registry,
    settings: Settings,
    shares: Arc<Shares>,
    turns: Arc<Turns>,
    channels: Arc<dyn Channels>,
}

/// A proposal that may run.
struct Admitted {
    timestamp: Timestamp,
    invocation: Invocation,
    /// Nothing for a proposal without a channel.
    channel: Option<Arc<dyn EndorsingChannel>>,
    creator: Arc<Identity>,
    _share: Share,
}

/// What a proposal came to.
struct Executed {
    response: Response,
    event: Option<simulate::Event>,
    /// The encoded read-write set.
    results: Bytes,
    version: String,
}

impl Endorser {
    /// An endorser over the channels of a peer.
    pub fn new(signer: Signer, registry: Registry, settings: Settings, channels: Arc<dyn Channels>) -> Endorser {
        let turns = Turns::new(settings.running_max);
        let shares = Shares::new(settings.concurrency_max, settings.bytes_max);
        Endorser { signer, registry, settings, shares, turns, channels }
    }

    /// See [`Endorse::process`].
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        let admitted = self.admit(&signed_proposal).await.inspect_err(count_refusal)?;
        let executed = self.execute(&admitted, true).await.inspect_err(count_failure)?;
        Ok(self.respond(&admitted, executed))
    }

    /// See [`Endorse::evaluate`].
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn evaluate(&self, signed_proposal: Bytes) -> Result<WireResponse, EndorseError> {
        let admitted = self.admit(&signed_proposal).await.inspect_err(count_refusal)?;
        let executed = self.execute(&admitted, false).await.inspect_err(count_failure)?;
        Ok(wire(executed.response))
    }

    /// Steps 1 to 3.
    async fn admit(&self, signed_proposal: &Bytes) -> Result<Admitted, EndorseError> {
        let proposal = Proposal::parse(signed_proposal)?;
        let name = proposal.header.channel();
        let channel = match name {
            "" => None,
            name => {
                let channel = self.channels.channel(name);
                Some(channel.ok_or_else(|| EndorseError::UnknownChannel(shown(name)))?)
            }
        };
        self.check_clock(&proposal, rt::wall_now())?;
        proposal.check_form()?;
        let creator = self.check_creator(&proposal, channel.as_deref())?;
        let organizations = channel.as_ref().map_or(1, |channel| channel.rules().members().msps().count());
        let share = self.shares.take(creator.msp_id(), signed_proposal.len(), organizations).ok_or_else(overloaded)?;
        if let Some(channel) = &channel {
            let tx_id = proposal.header.to_tx_id();
            let found = channel.find_transaction(&tx_id).await.map_err(|error| unserved(&error))?;
            if found.is_some() {
                return Err(EndorseError::Duplicate(tx_id));
            }
            if !system::is_system(proposal.chaincode()) && !channel.rules().may_propose(&creator) {
                return Err(EndorseError::Invalid(format!("access denied: channel [{name}] creator may not propose")));
            }
        }
        let timestamp = proposal.timestamp().unwrap_or_default();
        Ok(Admitted { timestamp, invocation: proposal.invocation()?, channel, creator, _share: share })
    }

    fn check_clock(&self, proposal: &Proposal, now: WallTime) -> Result<(), EndorseError> {
        let (seconds, nanos) = proposal.header.timestamp().unwrap_or_default();
        let claimed = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        let off = (claimed - i128::from(now.nanos())).unsigned_abs();
        if off > self.settings.clock_window.as_nanos() {
            return Err(EndorseError::Expired(format!(
                "client timestamp is {} s from this peer's, {} s are allowed",
                off / 1_000_000_000,
                self.settings.clock_window.as_secs()
            )));
        }
        Ok(())
    }

    fn check_creator(
        &self,
        proposal: &Proposal,
        channel: Option<&dyn EndorsingChannel>,
    ) -> Result<Arc<Identity>, EndorseError> {
        let name = proposal.header.channel();
        let serialized = proposal.header.creator();
        let unknown = || {
            EndorseError::Invalid(format!("access denied: channel [{name}] creator org unknown, creator is malformed"))
        };
        let (creator, served) = match channel {
            Some(channel) => {
                let creator = channel.rules().identify(&serialized).map_err(|_| unknown())?;
                let served = channel.rules().check_served(&creator, rt::wall_now());
                (creator, served)
            }
            // Without a channel, members of this peer's own organisation may ask, as any of its channels knows them.
            None => {
                let known = self.channels.all().into_iter().find_map(|channel| {
                    let creator = channel.rules().identify(&serialized).ok()?;
                    let served = channel.rules().check_served(&creator, rt::wall_now());
                    Some((creator, served))
                });
                known.filter(|(creator, _)| creator.msp_id() == self.signer.msp_id()).ok_or_else(unknown)?
            }
        };
        served.map_err(|error| match error {
            identity::Error::Expired { .. } => EndorseError::Expired("proposal client identity expired".to_owned()),
            error => EndorseError::Invalid(format!("access denied: channel [{name}] {error}")),
        })?;
        creator.verify(&proposal.bytes, &proposal.signature).map_err(|_| {
            EndorseError::Invalid(format!("access denied: channel [{name}] creator org [{}]", creator.msp_id()))
        })?;
        Ok(creator)
    }

    /// Steps 4 and 5.
    async fn execute(&self, admitted: &Admitted, record: bool) -> Result<Executed, EndorseError> {
        let invocation = &admitted.invocation;
        if system::is_system(&invocation.chaincode) {
            if let Some(channel) = &admitted.channel {
                // What it shows of the ledger is as new as its state is.
                channel.snapshot().await.map_err(|error| unserved(&error))?;
            }
            let query = system::Query {
                contract: &invocation.chaincode,
                args: &invocation.args,
                channel: admitted.channel.as_ref(),
                channels: &*self.channels,
                creator: &admitted.creator,
                own: self.signer.msp_id(),
            };
            let response = system::answer(&query).await;
            return Ok(Executed { response, event: None, results: Bytes::new(), version: "syscc".to_owned() });
        }
        let unknown = || EndorseError::UnknownChaincode {
            name: shown(&invocation.chaincode),
            channel: admitted.channel.as_ref().map(|channel| channel.rules().channel().to_string()).unwrap_or_default(),
        };
        let channel = admitted.channel.as_ref().ok_or_else(unknown)?;
        if let Some(error) = channel.failure() {
            return Err(EndorseError::ChannelStopped {
                channel: channel.rules().channel().to_string(),
                cause: error.to_string(),
            });
        }
        let definition = channel.rules().definitions().get(&invocation.chaincode).ok_or_else(unknown)?;
        let turn = rt::timeout(self.settings.wait_max, self.turns.take(admitted.creator.msp_id())).await;
        let _turn = turn.map_err(|_| overloaded())?;
        let started = rt::now();
        let run = async {
            // Taken after the wait for the turn, so that the contract does not read an old state.
            let snapshot = channel.snapshot().await?;
            let context = Context {
                channel: channel.rules().channel().clone(),
                tx_id: invocation.tx_id.clone(),
                timestamp: admitted.timestamp,
                creator: admitted.creator.serialized().clone(),
                transient: invocation.transient.clone(),
                registry: self.registry.clone(),
                snapshot,
                history: channel.history().clone(),
                elsewhere: Arc::new(OtherChannels(self.channels.clone())),
            };
            let mut simulation = Simulation::new(context);
            let outcome = simulation.run(&invocation.chaincode, &invocation.args).await;
            Ok((simulation, outcome))
        };
        let Ok(ran) = rt::timeout(self.settings.execution_max, run).await else {
            return Err(EndorseError::TimedOut(self.settings.execution_max));
        };
        let (simulation, outcome) = ran.map_err(|error: Error| unserved(&error))?;
        let outcome = match outcome {
            Err(StubError::UnknownContract(_)) => return Err(unknown()),
            Err(StubError::State { kind, message }) => return Err(EndorseError::State { kind, message }),
            Err(refused) => simulate::Outcome::failure(refused.to_string()),
            Ok(outcome) => outcome,
        };
        let results = if record { simulation.finish() } else { Bytes::new() };
        events::SimulationTime.record_since(started);
        Ok(Executed { response: outcome.response, event: outcome.event, results, version: definition.version.clone() })
    }

    /// Step 6.
    fn respond(&self, admitted: &Admitted, executed: Executed) -> ProposalResponse {
        let invocation = &admitted.invocation;
        let response = wire(executed.response);
        let event = executed.event.map(|event| ChaincodeEvent {
            chaincode_id: invocation.chaincode.clone(),
            tx_id: invocation.tx_id.to_string(),
            event_name: event.name,
            payload: event.payload,
        });
        let action = ChaincodeAction {
            results: executed.results,
            events: event.map(|event| event.encode_to_vec().into()).unwrap_or_default(),
            response: Some(response.clone()),
            chaincode_id: Some(ChaincodeId {
                name: invocation.chaincode.clone(),
                version: executed.version,
                ..ChaincodeId::default()
            }),
        };
        let payload = ProposalResponsePayload {
            proposal_hash: Bytes::copy_from_slice(&invocation.hash),
            extension: action.encode_to_vec().into(),
        };
        let payload: Bytes = payload.encode_to_vec().into();
        let refused = response.status >= Response::ERROR_THRESHOLD;
        if refused || admitted.channel.is_none() {
            events::ProposalsFailed.add(u64::from(refused));
            return ProposalResponse { response: Some(response), payload, ..ProposalResponse::default() };
        }
        let endorser = self.signer.serialized().clone();
        let signature = self.signer.sign_parts(&[&payload, &endorser]);
        events::ProposalsEndorsed.add(1);
        ProposalResponse {
            version: 1,
            response: Some(response),
            payload,
            endorsement: Some(Endorsement { endorser, signature }),
            ..ProposalResponse::default()
        }
    }
}

fn overloaded() -> EndorseError {
    events::ProposalsOverloaded.add(1);
    EndorseError::Overloaded
}

/// One that was turned away for want of room has been counted as such.
fn count_refusal(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsRefused.add(1);
    }
}

/// As [`count_refusal`].
fn count_failure(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsFailed.add(1);
    }
}

fn unserved(error: &Error) -> EndorseError {
    EndorseError::State { kind: error.kind(), message: error.to_string() }
}

fn wire(response: Response) -> WireResponse {
    WireResponse { status: response.status, message: response.message, payload: response.payload }
}

/// Reads of contracts on other channels.
struct OtherChannels(Arc<dyn Channels>);

#[async_trait]
impl Elsewhere for OtherChannels {
    async fn view(&self, channel: &str, creator: &Bytes) -> Option<(Arc<dyn Snapshot>, Arc<KeyHistory>)> {
        let channel = self.0.channel(channel).filter(|channel| channel.failure().is_none())?;
        let creator = channel.rules().identify(creator).ok()?;
        if !channel.rules().may_propose(&creator) {
            return None;
        }
        Some((channel.snapshot().await.ok()?, channel.history().clone()))
    }
}
