//! Runs proposals and signs their results.
//!
//! The steps of [`Endorser::process`], which are those of Fabric's endorser:
//!
//! 1. Read the proposal's headers ([`proposal`]) and find its channel.
//! 2. Check its timestamp, its format, and the membership, certificate expiry and signature of its creator. Up to here the
//!    endorser neither waits nor keeps state, so an outsider costs only computation.
//! 3. Take a permit from the quota of the creator's organisation ([`quota`]); if there is none, reject the proposal
//!    ([`EndorseError::Overloaded`]). Check that its transaction is not on the ledger and that the creator may propose, and
//!    read the invocation.
//! 4. Wait for a [turn](turns), for [`EndorserConfig::wait_max`] at most. Organisations get turns in rotation.
//! 5. Run the contract against one snapshot of the state ([`simulate`]), for [`EndorserConfig::execution_max`] at most.
//!    Fabric's system contracts answer from the ledger instead ([`system`]), without a turn.
//! 6. Encode the read-write set, the response, the event and the proposal's hash as one message, and sign it. A response
//!    with a status of 400 or more is returned unsigned.
//!
//! Invariants: a proposal changes no ledger and no state, here or at any other node. For equal states and equal proposals all
//! endorsers sign equal bytes. The peer verifies the creator's signature itself, once per proposal.

pub mod proposal;
mod quota;
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
use contract::{ContractRegistry, ContractResponse, StubError, Timestamp};
use identity::{Identity, Signer};
use ledger::Hash;
use prost::Message;
use proto::protos::{
    ChaincodeAction, ChaincodeEvent, ChaincodeId, Endorsement, ProposalResponse, ProposalResponsePayload,
    Response as WireResponse,
};
use state::Snapshot;
use storage::blocks::TransactionLocation;

use crate::Error;
use crate::channel::Channel;
use crate::events;
use crate::history::KeyHistory;
use crate::view::ChannelView;
use proposal::{Invocation, Proposal, shown};
use quota::{OrganizationQuotas, QuotaPermit};
use simulate::{CrossChannelReads, Simulation, SimulationContext};
use turns::ExecutionTurns;

/// Runs proposals.
#[async_trait]
pub trait Endorse: Send + Sync {
    /// Runs an encoded `SignedProposal` and signs the result. If the contract rejects the proposal, the result is a
    /// response of status 400 or more, without an endorsement.
    ///
    /// Dropping the future abandons the proposal.
    ///
    /// # Errors
    /// See [`EndorseError`].
    async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError>;

    /// Runs an encoded `SignedProposal` for its answer only: the reads are not recorded, and nothing is signed.
    ///
    /// # Errors
    /// See [`EndorseError`].
    async fn evaluate(&self, signed_proposal: Bytes) -> Result<WireResponse, EndorseError>;
}

/// Why a proposal did not run to an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndorseError {
    /// The bytes are not a proposal.
    #[error("{0}")]
    Malformed(String),
    /// The proposal is not permitted: its format, creator, signature or rights.
    #[error("error validating proposal: {0}")]
    Invalid(String),
    /// The creator's certificate has expired, or the proposal's time is too far from this peer's.
    #[error("{0}")]
    Expired(String),
    /// The channel does not exist at this peer.
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
    /// Too many proposals are running and waiting, or this one has waited too long.
    #[error("too many proposals are running and waiting; back off and retry")]
    Overloaded,
    /// The contract took too long.
    #[error("the contract did not finish within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The state could not serve.
    #[error("error in simulation: {message}")]
    State {
        /// What the caller should do; never `Rejected`.
        kind: ErrorKind,
        /// The cause.
        message: String,
    },
    /// The channel's pipeline has failed: the peer's state of the channel becomes stale, so no proposal runs on it.
    #[error("channel {channel} has stopped at this peer and waits for its operator: {cause}")]
    ChannelStopped {
        /// The channel.
        channel: String,
        /// The error that ended it.
        cause: String,
    },
    /// The peer is stopping.
    #[error("the peer is stopping")]
    Stopped,
}

impl EndorseError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EndorseError::Overloaded | EndorseError::TimedOut(_) => ErrorKind::Retry,
            EndorseError::State { kind, .. } => *kind,
            EndorseError::ChannelStopped { .. } | EndorseError::Stopped => ErrorKind::Closed,
            _ => ErrorKind::Rejected,
        }
    }
}

/// The settings of an endorser.
#[derive(Clone, Debug)]
pub struct EndorserConfig {
    /// The largest number of proposals that run and wait at the same time.
    pub concurrency_max: usize,
    /// The largest number of bytes of proposals that run and wait at the same time, of all organisations.
    pub bytes_max: usize,
    /// The largest number of contracts that run at the same time; other proposals wait, so that commits get their turn.
    pub running_max: usize,
    /// How long a proposal may wait for its turn.
    pub wait_max: Duration,
    /// How long a contract may run.
    pub execution_max: Duration,
    /// How far a proposal's time may be from this peer's, either way.
    pub clock_window: Duration,
}

impl Default for EndorserConfig {
    fn default() -> Self {
        EndorserConfig {
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
pub trait EndorsingChannels: Send + Sync + 'static {
    /// One channel.
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>>;
    /// All channels, by name.
    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>>;
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

    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        Ok(self.store().find_transaction(tx_id).await?)
    }

    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error> {
        Ok(self.store().number_by_hash(hash).await?)
    }
}

/// The endorser of one peer.
pub struct Endorser {
    signer: Signer,
    registry: ContractRegistry,
    settings: EndorserConfig,
    quotas: Arc<OrganizationQuotas>,
    turns: Arc<ExecutionTurns>,
    channels: Arc<dyn EndorsingChannels>,
}

/// A proposal that may run.
struct AdmittedProposal {
    timestamp: Timestamp,
    invocation: Invocation,
    /// `None` for a proposal without a channel.
    channel: Option<Arc<dyn EndorsingChannel>>,
    creator: Arc<Identity>,
    _quota_permit: QuotaPermit,
}

/// The result of a proposal.
struct ExecutedProposal {
    response: ContractResponse,
    event: Option<simulate::ContractEvent>,
    /// The encoded read-write set.
    results: Bytes,
    version: String,
}

impl Endorser {
    /// An endorser over the channels of a peer.
    pub fn new(
        signer: Signer,
        registry: ContractRegistry,
        settings: EndorserConfig,
        channels: Arc<dyn EndorsingChannels>,
    ) -> Endorser {
        let turns = ExecutionTurns::new(settings.running_max);
        let shares = OrganizationQuotas::new(settings.concurrency_max, settings.bytes_max);
        Endorser { signer, registry, settings, quotas: shares, turns, channels }
    }

    /// See [`Endorse::process`].
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        let admitted = self.admit(&signed_proposal).await.inspect_err(count_rejection)?;
        let executed = self.execute(&admitted, true).await.inspect_err(count_failure)?;
        Ok(self.respond(&admitted, executed))
    }

    /// See [`Endorse::evaluate`].
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn evaluate(&self, signed_proposal: Bytes) -> Result<WireResponse, EndorseError> {
        let admitted = self.admit(&signed_proposal).await.inspect_err(count_rejection)?;
        let executed = self.execute(&admitted, false).await.inspect_err(count_failure)?;
        Ok(wire(executed.response))
    }

    /// Steps 1 to 3.
    async fn admit(&self, signed_proposal: &Bytes) -> Result<AdmittedProposal, EndorseError> {
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
        let organizations = channel.as_ref().map_or(1, |channel| channel.policies().members().msps().count());
        let permit = self.quotas.take(creator.msp_id(), signed_proposal.len(), organizations).ok_or_else(overloaded)?;
        if let Some(channel) = &channel {
            let tx_id = proposal.header.to_tx_id();
            let found = channel.find_transaction(&tx_id).await.map_err(|error| unavailable(&error))?;
            if found.is_some() {
                return Err(EndorseError::Duplicate(tx_id));
            }
            if !system::is_system(proposal.chaincode()) && !channel.policies().may_propose(&creator) {
                return Err(EndorseError::Invalid(format!("access denied: channel [{name}] creator may not propose")));
            }
        }
        let timestamp = proposal.timestamp().unwrap_or_default();
        Ok(AdmittedProposal { timestamp, invocation: proposal.invocation()?, channel, creator, _quota_permit: permit })
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
                let creator = channel.policies().identify(&serialized).map_err(|_| unknown())?;
                let served = channel.policies().check_served(&creator, rt::wall_now());
                (creator, served)
            }
            // Without a channel, members of this peer's own organisation may ask, as any of its channels knows them.
            None => {
                let known = self.channels.all().into_iter().find_map(|channel| {
                    let creator = channel.policies().identify(&serialized).ok()?;
                    let served = channel.policies().check_served(&creator, rt::wall_now());
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
    async fn execute(&self, admitted: &AdmittedProposal, record: bool) -> Result<ExecutedProposal, EndorseError> {
        let invocation = &admitted.invocation;
        if system::is_system(&invocation.chaincode) {
            if let Some(channel) = &admitted.channel {
                // The answer from the ledger is as new as this state.
                channel.snapshot().await.map_err(|error| unavailable(&error))?;
            }
            let query = system::SystemQuery {
                contract: &invocation.chaincode,
                args: &invocation.args,
                channel: admitted.channel.as_ref(),
                channels: &*self.channels,
                creator: &admitted.creator,
                own: self.signer.msp_id(),
            };
            let response = system::answer(&query).await;
            return Ok(ExecutedProposal { response, event: None, results: Bytes::new(), version: "syscc".to_owned() });
        }
        let unknown = || EndorseError::UnknownChaincode {
            name: shown(&invocation.chaincode),
            channel: admitted
                .channel
                .as_ref()
                .map(|channel| channel.policies().channel().to_string())
                .unwrap_or_default(),
        };
        let channel = admitted.channel.as_ref().ok_or_else(unknown)?;
        if let Some(error) = channel.failure() {
            return Err(EndorseError::ChannelStopped {
                channel: channel.policies().channel().to_string(),
                cause: error.to_string(),
            });
        }
        let definition = channel.policies().definitions().get(&invocation.chaincode).ok_or_else(unknown)?;
        let turn = rt::timeout(self.settings.wait_max, self.turns.take(admitted.creator.msp_id())).await;
        let _turn = turn.map_err(|_| overloaded())?;
        let started = rt::now();
        let run = async {
            // Taken after the wait for the turn, so that the contract does not read an old state.
            let snapshot = channel.snapshot().await?;
            let context = SimulationContext {
                channel: channel.policies().channel().clone(),
                tx_id: invocation.tx_id.clone(),
                timestamp: admitted.timestamp,
                creator: admitted.creator.serialized().clone(),
                transient: invocation.transient.clone(),
                registry: self.registry.clone(),
                snapshot,
                history: channel.history().clone(),
                cross_channel: Arc::new(OtherChannels(self.channels.clone())),
            };
            let mut simulation = Simulation::new(context);
            let outcome = simulation.run(&invocation.chaincode, &invocation.args).await;
            Ok((simulation, outcome))
        };
        let Ok(ran) = rt::timeout(self.settings.execution_max, run).await else {
            return Err(EndorseError::TimedOut(self.settings.execution_max));
        };
        let (simulation, outcome) = ran.map_err(|error: Error| unavailable(&error))?;
        let outcome = match outcome {
            Err(StubError::UnknownContract(_)) => return Err(unknown()),
            Err(StubError::State { kind, message }) => return Err(EndorseError::State { kind, message }),
            Err(refused) => simulate::CallOutcome::failure(refused.to_string()),
            Ok(outcome) => outcome,
        };
        let results = if record { simulation.finish() } else { Bytes::new() };
        events::SimulationTime.record_since(started);
        Ok(ExecutedProposal {
            response: outcome.response,
            event: outcome.event,
            results,
            version: definition.version.clone(),
        })
    }

    /// Step 6.
    fn respond(&self, admitted: &AdmittedProposal, executed: ExecutedProposal) -> ProposalResponse {
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
        let refused = response.status >= ContractResponse::ERROR_THRESHOLD;
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

/// Counts a rejection, except for lack of capacity, which was counted already.
fn count_rejection(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsRejected.add(1);
    }
}

/// As [`count_rejection`].
fn count_failure(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsFailed.add(1);
    }
}

fn unavailable(error: &Error) -> EndorseError {
    EndorseError::State { kind: error.kind(), message: error.to_string() }
}

fn wire(response: ContractResponse) -> WireResponse {
    WireResponse { status: response.status, message: response.message, payload: response.payload }
}

/// Access of contracts to other channels, for reads.
struct OtherChannels(Arc<dyn EndorsingChannels>);

#[async_trait]
impl CrossChannelReads for OtherChannels {
    async fn view(&self, channel: &str, creator: &Bytes) -> Option<(Arc<dyn Snapshot>, Arc<KeyHistory>)> {
        let channel = self.0.channel(channel).filter(|channel| channel.failure().is_none())?;
        let creator = channel.policies().identify(creator).ok()?;
        if !channel.policies().may_propose(&creator) {
            return None;
        }
        Some((channel.snapshot().await.ok()?, channel.history().clone()))
    }
}
