//! Has our endorser answer the recorded proposals, and compares its answers with those of Fabric's peers.
//!
//! 1. For each peer that gave answers there is an endorser with that peer's identity. It reads the channel of the replayed
//!    peer with that identity, and runs [`RecordedProgram`] for every contract on the ledger.
//! 2. Each proposal goes to the endorser of the peer that answered it. The proposals are old, so these endorsers accept
//!    any time.
//! 3. An answer is equal if its status, message and payload are, if it has a proposal response payload and an endorsement
//!    where the recorded one has them, if the bytes of that payload are equal, and if the endorsement names the recorded
//!    endorser and its signature is valid. Signatures themselves differ, since ECDSA is randomised.
//!
//! The order of the entries of a map is not defined in protobuf, and Fabric's peers choose another one each time. So the
//! maps in answers of the lifecycle are compared by their entries.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use chain::Channel;
use chain::endorse::{Endorser, EndorserConfig, EndorsingChannel, EndorsingChannels};
use contract::{Contract, ContractRegistry, ContractServices, InstalledPackage, PackageError, async_trait};
use identity::{Signer, hex};
use ledger::lifecycle::LIFECYCLE;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use proto::protos::{ChaincodeAction, ProposalResponse, ProposalResponsePayload};

use super::answers::{RecordedAnswer, RecordedAnswers, RecordedContent};
use super::compare::Comparison;
use super::program::RecordedProgram;
use crate::failure::CommandError;

/// By how much the length of an answer may differ from that of a recorded one: signatures differ in length, and Fabric's
/// peers add the names of the contracts for the use of their own gateway.
const LENGTH_TOLERANCE: usize = 64;
/// The number of bytes of a value that are shown.
const SHOWN_BYTES_MAX: usize = 400;

/// Asks the endorser of the peer with this identity for all answers that the peer gave, and adds the results to a comparison.
pub async fn compare_answers(
    recorded: &RecordedAnswers,
    signer: &Signer,
    channel: &Arc<Channel>,
    comparison: &mut Comparison,
) -> Result<(), CommandError> {
    let peer = signer.certificate().common_name();
    let settings = EndorserConfig { clock_window: Duration::MAX, ..EndorserConfig::default() };
    let channels = Arc::new(ReplayedChannel(channel.clone()));
    let endorser = Endorser::new(signer.clone(), programs(channel)?, settings, channels);
    for answer in recorded.answers.iter().filter(|answer| answer.peer == peer) {
        let different = match endorser.process(answer.signed_proposal.clone()).await {
            Ok(response) => differences(answer, &response, channel),
            Err(error) => match error.response() {
                Some(response) => differences(answer, &response, channel),
                None => vec![format!("our endorser rejects the proposal: {error}")],
            },
        };
        comparison.count_answer(&answer.label, peer, &different);
    }
    Ok(())
}

/// The recorded program for every contract that the ledger defines, and for every package that a peer has approved.
fn programs(channel: &Channel) -> Result<ContractRegistry, CommandError> {
    let mut registry = ContractRegistry::empty();
    for (name, _) in channel.policies().on_ledger().iter() {
        let registered = registry.register(name, Arc::new(RecordedProgram));
        registered.map_err(|error| CommandError::new(format!("the contract {name} cannot run: {error}")))?;
    }
    Ok(registry.with_services(Arc::new(RecordedPackages)))
}

/// The packages of the recording: all of them contain the recorded program.
struct RecordedPackages;

#[async_trait]
impl ContractServices for RecordedPackages {
    fn by_name(&self, _: &str) -> Option<Arc<dyn Contract>> {
        None
    }

    fn by_package(&self, _: &str) -> Option<Arc<dyn Contract>> {
        Some(Arc::new(RecordedProgram))
    }

    async fn install(&self, _: Bytes) -> Result<InstalledPackage, PackageError> {
        Err(PackageError::Rejected("a replay installs nothing".to_owned()))
    }

    fn installed(&self) -> Vec<InstalledPackage> {
        Vec::new()
    }

    async fn package(&self, _: &str) -> Result<Option<Bytes>, PackageError> {
        Ok(None)
    }
}

/// The channel of the recording, as the only one of a peer.
struct ReplayedChannel(Arc<Channel>);

impl EndorsingChannels for ReplayedChannel {
    fn channel(&self, name: &str) -> Option<Arc<dyn EndorsingChannel>> {
        (self.0.id().as_str() == name).then(|| self.0.clone() as Arc<dyn EndorsingChannel>)
    }

    fn all(&self) -> Vec<Arc<dyn EndorsingChannel>> {
        vec![self.0.clone()]
    }
}

/// What differs between an answer and the recorded one, a line each.
fn differences(recorded: &RecordedAnswer, ours: &ProposalResponse, channel: &Channel) -> Vec<String> {
    let mut lines = match &recorded.content {
        RecordedContent::Whole(whole) => whole_differences(whole, ours),
        RecordedContent::Parts { status, message, proposal_hash, results, response_bytes } => {
            let our_response = ours.response.clone().unwrap_or_default();
            let (payload, action) = (payload(ours), action(ours));
            let mut lines = Vec::new();
            compare("status", &our_response.status, status, &mut lines);
            compare("message", &our_response.message, message, &mut lines);
            compare_bytes("proposal hash", &payload.proposal_hash, proposal_hash, &mut lines);
            compare_bytes("read-write set", &action.results, results, &mut lines);
            compare("endorsement", &ours.endorsement.is_some(), &true, &mut lines);
            let length = ours.encoded_len();
            if length.abs_diff(*response_bytes) > LENGTH_TOLERANCE {
                lines.push(format!("the length is {length}, not {response_bytes}"));
            }
            lines
        }
    };
    if let Some(endorsement) = &ours.endorsement {
        let endorser = channel.policies().identify(&endorsement.endorser);
        let signed = [&ours.payload[..], &endorsement.endorser].concat();
        match endorser.and_then(|endorser| endorser.verify(&signed, &endorsement.signature)) {
            Ok(()) => {}
            Err(error) => lines.push(format!("the signature is not valid: {error}")),
        }
    }
    lines
}

fn whole_differences(recorded: &ProposalResponse, ours: &ProposalResponse) -> Vec<String> {
    let mut lines = Vec::new();
    let (our_response, response) =
        (ours.response.clone().unwrap_or_default(), recorded.response.clone().unwrap_or_default());
    compare("status", &our_response.status, &response.status, &mut lines);
    compare("message", &our_response.message, &response.message, &mut lines);
    compare("version", &ours.version, &recorded.version, &mut lines);
    compare("presence of a payload", &!ours.payload.is_empty(), &!recorded.payload.is_empty(), &mut lines);
    let endorser =
        |response: &ProposalResponse| response.endorsement.as_ref().map(|endorsement| endorsement.endorser.clone());
    compare("presence of an endorsement", &endorser(ours).is_some(), &endorser(recorded).is_some(), &mut lines);
    compare_bytes("endorser", &endorser(ours).unwrap_or_default(), &endorser(recorded).unwrap_or_default(), &mut lines);
    let (our_payload, recorded_payload) = (payload(ours), payload(recorded));
    let (our_action, recorded_action) = (action(ours), action(recorded));
    let is_lifecycle = recorded_action.chaincode_id.as_ref().is_some_and(|id| id.name == LIFECYCLE);
    let sorted = |payload: &Bytes| if is_lifecycle { with_sorted_maps(payload) } else { payload.clone() };
    compare_bytes("payload of the response", &sorted(&our_response.payload), &sorted(&response.payload), &mut lines);
    compare_bytes("proposal hash", &our_payload.proposal_hash, &recorded_payload.proposal_hash, &mut lines);
    compare_bytes("read-write set", &our_action.results, &recorded_action.results, &mut lines);
    compare_bytes("event", &our_action.events, &recorded_action.events, &mut lines);
    compare("contract", &our_action.chaincode_id, &recorded_action.chaincode_id, &mut lines);
    let sorted_payload = |response: &ProposalResponse| {
        if !is_lifecycle {
            return response.payload.clone();
        }
        let (mut payload, mut action) = (payload(response), action(response));
        if let Some(response) = &mut action.response {
            response.payload = with_sorted_maps(&response.payload);
        }
        payload.extension = action.encode_to_vec().into();
        payload.encode_to_vec().into()
    };
    // Everything that is endorsed, which includes what was compared above.
    if lines.is_empty() {
        compare_bytes("endorsed payload", &sorted_payload(ours), &sorted_payload(recorded), &mut lines);
    }
    lines
}

/// The result of a function of the lifecycle with its fields in the order of their numbers and bytes, since the entries of a
/// map are fields of one number. Bytes that are no message stay as they are.
fn with_sorted_maps(result: &Bytes) -> Bytes {
    let mut parts = Vec::new();
    let mut rest = &result[..];
    while !rest.is_empty() {
        let before = rest;
        let Ok((tag, wire_type)) = decode_key(&mut rest) else { return result.clone() };
        if skip_field(wire_type, tag, &mut rest, DecodeContext::default()).is_err() {
            return result.clone();
        }
        parts.push((tag, &before[..before.len() - rest.len()]));
    }
    parts.sort();
    parts.into_iter().flat_map(|(_, part)| part.iter().copied()).collect::<Vec<u8>>().into()
}

/// The endorsed payload; the empty one if there is none or it cannot be decoded, which the comparison of the bytes finds.
fn payload(response: &ProposalResponse) -> ProposalResponsePayload {
    ProposalResponsePayload::decode(response.payload.clone()).unwrap_or_default()
}

/// As [`payload`].
fn action(response: &ProposalResponse) -> ChaincodeAction {
    ChaincodeAction::decode(payload(response).extension).unwrap_or_default()
}

fn compare<T: PartialEq + std::fmt::Debug>(what: &str, ours: &T, recorded: &T, lines: &mut Vec<String>) {
    if ours != recorded {
        lines.push(format!("the {what} is {ours:?}, not {recorded:?}"));
    }
}

fn compare_bytes(what: &str, ours: &[u8], recorded: &[u8], lines: &mut Vec<String>) {
    let shown = |bytes: &[u8]| match bytes.get(..SHOWN_BYTES_MAX) {
        Some(start) => format!("0x{}… ({} bytes)", hex::encode(start), bytes.len()),
        None => format!("0x{}", hex::encode(bytes)),
    };
    if ours != recorded {
        lines.push(format!("the {what} is {}, not {}", shown(ours), shown(recorded)));
    }
}

#[cfg(test)]
mod tests;
