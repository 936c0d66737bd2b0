//! Endorses proposals: admits, checks, executes and signs each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::WallTime;
use base::{Bytes, rt};
use contract::{ContractRegistry, ContractResponse, StubError, Timestamp};
use identity::{Identity, Signer};
use ledger::lifecycle::LIFECYCLE;
use ledger::proposal::{Invocation, Proposal, shown};
use ledger::rwset::{PrivateSet, ReadWriteSet};
use prost::Message as _;
use proto::discovery::Peer;
use proto::msp::SerializedIdentity;
use proto::protos::{
    ChaincodeAction, ChaincodeEvent, ChaincodeId, ChaincodeInterest, Endorsement, ProposalResponse,
    ProposalResponsePayload, Response as WireResponse,
};
use rules::access::PROPOSE;
use rules::interest::{self, InterestError};
use state::Snapshot;

use super::approval::OwnApprovals;
use super::channels::{EndorsingChannel, EndorsingChannels};
use super::error::EndorseError;
use super::lifecycle::{LifecycleCall, LifecycleError, LifecycleState};
use super::packages::PackageCall;
use super::quota::{OrganizationQuotas, QuotaPermit};
use super::simulate::{ChannelRead, CrossChannelReads, Simulation, SimulationContext};
use super::turns::ExecutionTurns;
use crate::{Error, events};

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

    /// What the peer states about itself, signed: who it is, where clients reach it and, in a channel, its height and the
    /// contracts that it can run. An empty name stands for no channel.
    ///
    /// # Errors
    /// See [`EndorseError`].
    async fn describe(&self, channel: &str) -> Result<Peer, EndorseError>;
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
    /// The address for the peer's clients, as it states it: `host:port`.
    pub client_address: String,
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
            client_address: String::new(),
        }
    }
}

/// The endorser of one peer.
pub struct Endorser {
    pub(super) signer: Signer,
    pub(super) registry: ContractRegistry,
    pub(super) settings: EndorserConfig,
    quotas: Arc<OrganizationQuotas>,
    turns: Arc<ExecutionTurns>,
    pub(super) channels: Arc<dyn EndorsingChannels>,
    pub(super) approvals: Arc<OwnApprovals>,
    /// When it started, in nanoseconds since 1970.
    pub(super) started_ns: u64,
    /// The number of its statements about itself.
    pub(super) statements: AtomicU64,
}

/// A proposal that may run.
pub(super) struct AdmittedProposal {
    timestamp: Timestamp,
    invocation: Invocation,
    signed_proposal: Bytes,
    /// `None` for a proposal without a channel.
    channel: Option<Arc<dyn EndorsingChannel>>,
    creator: Arc<Identity>,
    _quota_permit: QuotaPermit,
}

/// The result of a proposal.
pub(super) struct ExecutedProposal {
    response: ContractResponse,
    event: Option<super::simulate::ContractEvent>,
    /// The encoded read-write set.
    results: Bytes,
    /// The private writes.
    private: Vec<PrivateSet>,
    /// The policies that endorsements must satisfy, if they are known.
    interest: Option<ChaincodeInterest>,
    /// The height of the state that the contract saw.
    height: u64,
    version: String,
}

impl ExecutedProposal {
    /// The answer of a system contract that has read and written nothing.
    fn of_system(response: ContractResponse) -> ExecutedProposal {
        ExecutedProposal {
            response,
            event: None,
            results: Bytes::new(),
            private: Vec::new(),
            interest: None,
            height: 0,
            version: "syscc".to_owned(),
        }
    }
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
        let (approvals, started_ns, statements) = (Arc::default(), rt::wall_now().nanos(), AtomicU64::new(1));
        Endorser { signer, registry, settings, quotas: shares, turns, channels, approvals, started_ns, statements }
    }

    /// See [`Endorse::process`].
    ///
    /// # Errors
    /// See [`EndorseError`].
    pub async fn process(&self, signed_proposal: Bytes) -> Result<ProposalResponse, EndorseError> {
        let admitted = self.admit(&signed_proposal).await.inspect_err(count_rejection)?;
        let mut executed = self.execute(&admitted, true).await.inspect_err(count_failure)?;
        self.distribute(&admitted, &mut executed).await.inspect_err(count_failure)?;
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
            let policies = channel.policies();
            if !super::system::is_system(proposal.chaincode()) && !policies.may_propose(&creator) {
                return Err(EndorseError::Denied(policies.check_use(PROPOSE, &creator).err().unwrap_or_default()));
            }
        }
        let (seconds, nanos) = proposal.header.timestamp().unwrap_or_default();
        Ok(AdmittedProposal {
            timestamp: Timestamp { seconds, nanos },
            invocation: proposal.invocation()?,
            signed_proposal: signed_proposal.clone(),
            channel,
            creator,
            _quota_permit: permit,
        })
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
                let creator = channel
                    .policies()
                    .identify(&serialized)
                    .map_err(|error| not_a_member(name, &serialized, &error))?;
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
        if super::system::is_system(&invocation.chaincode) {
            if let Some(channel) = &admitted.channel {
                // The answer from the ledger is as new as this state.
                channel.snapshot().await.map_err(|error| unavailable(&error))?;
            }
            let query = super::system::SystemQuery {
                contract: &invocation.chaincode,
                args: &invocation.args,
                channel: admitted.channel.as_ref(),
                channels: &*self.channels,
                creator: &admitted.creator,
                own: self.signer.msp_id(),
            };
            if invocation.chaincode == LIFECYCLE && admitted.channel.is_some() {
                return self.execute_lifecycle(admitted, &query, record).await;
            }
            if invocation.chaincode == LIFECYCLE {
                let services = self.registry.services().map(|services| &**services);
                let call = PackageCall {
                    services,
                    creator: &admitted.creator,
                    own: self.signer.msp_id(),
                    channels: &*self.channels,
                    approvals: &self.approvals,
                };
                return Ok(ExecutedProposal::of_system(call.answer(&invocation.args).await));
            }
            return Ok(ExecutedProposal::of_system(super::system::answer(&query).await));
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
        let policies = channel.policies();
        let definition = policies.definitions().get(&invocation.chaincode).ok_or_else(unknown)?;
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
                client: admitted.creator.clone(),
                signed_proposal: admitted.signed_proposal.clone(),
                transient: invocation.transient.clone(),
                registry: self.registry.clone(),
                policies: policies.clone(),
                snapshot,
                history: channel.history().clone(),
                private: channel.private().values(),
                own: self.signer.msp_id().clone(),
                approvals: self.approvals.clone(),
                cross_channel: Arc::new(OtherChannels(self.channels.clone())),
            };
            let snapshot = context.snapshot.clone();
            let mut simulation = Simulation::new(context);
            let outcome = simulation.run(&invocation.chaincode, &invocation.args, invocation.is_init).await;
            let reads = simulation.private_reads();
            let (results, private) = if record { simulation.finish() } else { Default::default() };
            let is_endorsed = record && outcome.as_ref().is_ok_and(|outcome| outcome.response.is_endorsable());
            let interest = match is_endorsed {
                true => interest(&invocation.chaincode, &results, &reads, &*snapshot).await,
                false => Ok(None),
            };
            Ok((outcome, results, private, interest, snapshot.height()))
        };
        let Ok(ran) = rt::timeout(self.settings.execution_max, run).await else {
            return Err(EndorseError::TimedOut(self.settings.execution_max));
        };
        let (outcome, results, private, interest, height) = ran.map_err(|error: Error| unavailable(&error))?;
        let outcome = match outcome {
            Err(StubError::UnknownContract(_)) => return Err(unknown()),
            Err(StubError::NotApproved { contract, sequence, channel }) => {
                return Err(EndorseError::NotApproved { contract, sequence, channel });
            }
            Err(StubError::NotInstalled { contract, package }) => {
                return Err(EndorseError::NotInstalled { contract, channel: policies.channel().to_string(), package });
            }
            Err(StubError::State { kind, message }) => return Err(EndorseError::State { kind, message }),
            Err(refused @ StubError::InvalidInvocation(_)) => {
                let reason = format!("failed to execute transaction {}: {refused}", invocation.tx_id);
                return Err(EndorseError::InvalidInvocation(reason));
            }
            Err(refused) => super::simulate::CallOutcome::failure(refused.to_string()),
            Ok(outcome) => outcome,
        };
        events::SimulationTime.record_since(started);
        Ok(ExecutedProposal {
            response: outcome.response,
            event: outcome.event,
            results,
            private,
            interest: interest?,
            height,
            version: definition.endorsement.version.clone(),
        })
    }

    /// Step 5 for the contract that changes definitions.
    async fn execute_lifecycle(
        &self,
        admitted: &AdmittedProposal,
        query: &super::system::SystemQuery<'_>,
        record: bool,
    ) -> Result<ExecutedProposal, EndorseError> {
        let channel = admitted.channel.as_ref().expect("the caller has checked it");
        let snapshot = channel.snapshot().await.map_err(|error| unavailable(&error))?;
        let policies = channel.policies();
        let mut call = LifecycleCall {
            policies: &policies,
            own: self.signer.msp_id(),
            creator: &admitted.creator,
            state: LifecycleState::new(snapshot.clone(), channel.private().values()),
        };
        let refused = |reason: String| ContractResponse::failure(ContractResponse::ERROR, reason);
        let response = match &admitted.invocation.args[..] {
            [function, args] => match std::str::from_utf8(function) {
                Err(_) => refused("the function name is not text".to_owned()),
                Ok(function) => {
                    let may_use = || super::system::may_use(query, channel.as_ref(), function);
                    match call.check_access(function, may_use) {
                        Err(reason) => {
                            refused(format!("Failed to authorize invocation due to failed ACL check: {reason}"))
                        }
                        Ok(()) => match call.run(function, args).await {
                            Ok(payload) => ContractResponse::success(payload),
                            Err(LifecycleError::Refused(status, reason)) => ContractResponse::failure(status, reason),
                            Err(LifecycleError::Unserved(error)) => return Err(error),
                        },
                    }
                }
            },
            [] => refused("lifecycle scc must be invoked with arguments".to_owned()),
            args => {
                refused(format!("lifecycle scc operations require exactly two arguments but received {}", args.len()))
            }
        };
        let height = call.state.height();
        let (results, private) = if record { call.state.finish() } else { Default::default() };
        let interest = match record && response.is_endorsable() {
            true => interest(LIFECYCLE, &results, &BTreeSet::new(), &*snapshot).await?,
            false => None,
        };
        Ok(ExecutedProposal { results, private, interest, height, ..ExecutedProposal::of_system(response) })
    }

    /// Keeps the private writes of a proposal that will be endorsed, and sends them to other members.
    async fn distribute(
        &self,
        admitted: &AdmittedProposal,
        executed: &mut ExecutedProposal,
    ) -> Result<(), EndorseError> {
        let private = std::mem::take(&mut executed.private);
        let Some(channel) = &admitted.channel else { return Ok(()) };
        if private.is_empty() || executed.response.status >= ContractResponse::ERROR_THRESHOLD {
            return Ok(());
        }
        let (tx_id, policies) = (&admitted.invocation.tx_id, channel.policies());
        let distributed = channel.private().distribute(&*policies, tx_id, executed.height, private).await;
        distributed.map_err(|error| unavailable(&error.into()))
    }

    /// Step 6. As in Fabric, an answer of 400 to 499 carries nothing of the simulation, nor does a success without a channel; an
    /// answer of 500 and above carries its read-write set for people who look for the reason.
    fn respond(&self, admitted: &AdmittedProposal, executed: ExecutedProposal) -> ProposalResponse {
        let invocation = &admitted.invocation;
        let response = wire(executed.response);
        let is_refused = response.status >= ContractResponse::ERROR_THRESHOLD;
        let is_error = response.status >= ContractResponse::ERROR;
        events::ProposalsFailed.add(u64::from(is_refused));
        if !is_error && (is_refused || admitted.channel.is_none()) {
            return ProposalResponse { response: Some(response), ..ProposalResponse::default() };
        }
        let event = executed.event.filter(|_| !is_error).map(|event| ChaincodeEvent {
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
        if is_error {
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
            interest: executed.interest,
            ..ProposalResponse::default()
        }
    }
}

/// The policies that the endorsements of a result must satisfy.
async fn interest(
    invoked: &str,
    results: &Bytes,
    private_reads: &BTreeSet<(Arc<str>, String)>,
    snapshot: &dyn Snapshot,
) -> Result<Option<ChaincodeInterest>, EndorseError> {
    // A set above the bounds of validation has none: it will be invalid.
    let Ok(set) = ReadWriteSet::decode(results.clone()) else { return Ok(None) };
    match interest::of_result(invoked, &set, private_reads, snapshot).await {
        Ok(interest) => Ok(Some(interest)),
        Err(InterestError::State(error)) => Err(unavailable(&error.into())),
        Err(broken @ InterestError::BrokenPolicy { .. }) => Err(EndorseError::InvalidInvocation(broken.to_string())),
    }
}

/// Why a creator is no member of a channel. As in Fabric, its organisation is named if the certificate can be read.
fn not_a_member(channel: &str, creator: &Bytes, error: &identity::Error) -> EndorseError {
    use identity::Error::{MalformedCertificate, MalformedIdentity, UnknownMsp, UnsupportedAlgorithm};
    let is_read =
        !matches!(error, MalformedIdentity(_) | UnknownMsp(_) | MalformedCertificate(_) | UnsupportedAlgorithm(_));
    let organization = SerializedIdentity::decode(creator.clone()).ok().filter(|_| is_read);
    let creator = organization.map_or_else(
        || "creator org unknown, creator is malformed".to_owned(),
        |creator| format!("creator org [{}]", shown(&creator.mspid)),
    );
    EndorseError::Invalid(format!("access denied: channel [{channel}] {creator}"))
}

pub(super) fn overloaded() -> EndorseError {
    events::ProposalsOverloaded.add(1);
    EndorseError::Overloaded
}

/// Counts a rejection, except for lack of capacity, which was counted already.
pub(super) fn count_rejection(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsRejected.add(1);
    }
}

/// As [`count_rejection`].
pub(super) fn count_failure(error: &EndorseError) {
    if !matches!(error, EndorseError::Overloaded) {
        events::ProposalsFailed.add(1);
    }
}

pub(super) fn unavailable(error: &Error) -> EndorseError {
    EndorseError::State { kind: error.kind(), message: error.to_string() }
}

pub(super) fn wire(response: ContractResponse) -> WireResponse {
    WireResponse { status: response.status, message: response.message, payload: response.payload }
}

/// Access of contracts to other channels, for reads.
pub(super) struct OtherChannels(Arc<dyn EndorsingChannels>);

#[async_trait]
impl CrossChannelReads for OtherChannels {
    async fn view(&self, channel: &str, client: &Identity) -> Option<ChannelRead> {
        let channel = self.0.channel(channel).filter(|channel| channel.failure().is_none())?;
        let creator = channel.policies().identify(client.serialized()).ok()?;
        if !channel.policies().may_propose(&creator) {
            return None;
        }
        Some(ChannelRead {
            snapshot: channel.snapshot().await.ok()?,
            history: channel.history().clone(),
            private: channel.private().values(),
            policies: channel.policies(),
        })
    }
}

#[cfg(test)]
mod tests;
