//! `Gateway.Endorse`: collects the endorsements that a transaction needs.
//!
//! 1. The contract's policy, or the client by name, says which organisations; without either the call fails.
//! 2. The first endorser, the local one where the policy admits it, runs the proposal alone: a contract's refusal is
//!    then known after one run.
//! 3. If it wrote to other contracts too, their policies add endorsers.
//! 4. The rest run at the same time. Where one of another organisation fails, the next layout that does without it is
//!    tried; answers that are there are kept. What fails at the local endorser ends the call, and what failed last
//!    decides its status where no layout is left.
//! 5. All answers must be the same bytes. They become an envelope without the transient map, for the client to sign.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::MspId;
use bytes::Bytes;
use chain::access::{Rules, is_system_namespace};
use chain::endorse::EndorseError;
use futures_util::future::join_all;
use proto::gateway::ErrorDetail;
use proto::protos::{Endorsement, ProposalResponse};

use super::assemble::endorse_response;
use super::evaluate::{CONTRACT_ERROR_MIN, chaincode_response};
use super::layout::{Plan, Plans};
use super::proposal::{ProposalRequest, field, walk};
use super::{Endorser, PeerState, in_a_task};
use crate::events::{EndorseTime, Endorsed};
use crate::rpc::{Caller, Code, Status};

/// Contracts that one transaction may write to.
const CONTRACTS_MAX: usize = 64;
/// The place of the local endorser.
const LOCAL: usize = 0;

pub(super) async fn endorse(state: &Arc<PeerState>, caller: &Caller, message: Bytes) -> Result<Bytes, Status> {
    let begin = base::rt::now();
    let request = ProposalRequest::read(&message)?;
    let channel = state.live_channel(&request.channel)?;
    let signature_header = request.parts.signature_header.clone();
    let name = Arc::clone(&request.channel);
    let working = Arc::clone(state);
    let answer = in_a_task(async move {
        let turn = working.turn.fetch_add(1, Ordering::Relaxed);
        let endorsers = Endorsers { local: &working.local, others: &working.others, plans: &working.plans };
        let answer = Collection::new(endorsers, turn, channel.rules(), &request).run().await?;
        Endorsed.add(1);
        EndorseTime.record_since(begin);
        Ok(answer)
    })
    .await?;
    state.proven(caller, &name, &signature_header);
    Ok(answer)
}

/// Who can be asked.
#[derive(Clone, Copy)]
struct Endorsers<'a> {
    local: &'a Endorser,
    others: &'a [Endorser],
    plans: &'a Plans,
}

/// Endorsements of one proposal on their way.
struct Collection<'a> {
    from: Endorsers<'a>,
    turn: usize,
    rules: &'a Rules,
    request: &'a ProposalRequest,
    answers: BTreeMap<usize, Answer>,
    failed: BTreeSet<usize>,
    details: Vec<ErrorDetail>,
    /// The last failure, if it has a code of its own.
    last: Option<(Code, String)>,
}

struct Answer {
    payload: Bytes,
    endorsement: Endorsement,
}

impl<'a> Collection<'a> {
    fn new(from: Endorsers<'a>, turn: usize, rules: &'a Rules, request: &'a ProposalRequest) -> Collection<'a> {
        let (answers, failed, details) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        Collection { from, turn, rules, request, answers, failed, details, last: None }
    }

    async fn run(mut self) -> Result<Bytes, Status> {
        let chosen =
            if self.request.organizations.is_empty() { self.by_policy().await? } else { self.by_name().await? };
        let chosen: Vec<&Answer> = chosen.iter().map(|place| &self.answers[place]).collect();
        let payload = &chosen[0].payload;
        if chosen.iter().any(|answer| answer.payload != *payload) {
            return Err(self.differing());
        }
        let endorsements: Vec<&Endorsement> = chosen.iter().map(|answer| &answer.endorsement).collect();
        Ok(endorse_response(&self.request.parts, payload, &endorsements))
    }

    /// Steps 1 to 4 where the client names the organisations: one peer of each, and no others.
    async fn by_name(&mut self) -> Result<Vec<usize>, Status> {
        let mut places = BTreeSet::new();
        for msp_id in &self.request.organizations {
            let place = self.endorsers().position(|endorser| endorser.msp_id.as_str() == msp_id).ok_or_else(|| {
                Status::new(Code::Unavailable, format!("no endorsing peers found for organization {msp_id}"))
            })?;
            places.insert(place);
        }
        self.plan(&self.request.contract)?;
        let places: Vec<usize> = places.into_iter().collect();
        self.ask(&places[..1]).await?;
        if self.failed.is_empty() {
            self.ask(&places).await?;
        }
        if self.failed.is_empty() { Ok(places) } else { Err(self.insufficient()) }
    }

    /// Steps 1 to 4 where the policy decides.
    async fn by_policy(&mut self) -> Result<Vec<usize>, Status> {
        let plan = self.plan(&self.request.contract)?;
        if plan.is_impossible() {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "no combination of peers can be derived which satisfy the endorsement policy of {}",
                    self.request.contract
                ),
            ));
        }
        let mut written = None;
        for layout in plan.in_turn(self.turn) {
            if layout.iter().any(|place| self.failed.contains(place)) {
                continue;
            }
            if self.answers.is_empty() {
                self.ask(&layout[..1]).await?;
                if self.failed.contains(&layout[0]) {
                    continue;
                }
            }
            let mut places: BTreeSet<usize> = layout.iter().copied().collect();
            if written.is_none()
                && let Some(answer) = self.answers.values().next()
            {
                written = Some(written_contracts(&answer.payload, &self.request.contract));
            }
            for contract in written.iter().flatten() {
                let other = self.plan(contract)?;
                let Some(added) = other.least_added(&places, &self.failed) else {
                    return Err(self.insufficient());
                };
                places.extend(added);
            }
            let places: Vec<usize> = places.into_iter().collect();
            self.ask(&places).await?;
            if places.iter().all(|place| self.answers.contains_key(place)) {
                return Ok(places);
            }
        }
        Err(self.insufficient())
    }

    /// Asks those of `places` that were not asked yet, at the same time.
    ///
    /// # Errors
    /// The status that ends the call: nobody else would answer otherwise, or it is the local endorser that failed.
    async fn ask(&mut self, places: &[usize]) -> Result<(), Status> {
        let missing: Vec<usize> = places
            .iter()
            .copied()
            .filter(|place| !self.answers.contains_key(place) && !self.failed.contains(place))
            .collect();
        let results = match missing[..] {
            [] => return Ok(()),
            [only] => vec![self.process(only).await],
            _ => join_all(missing.iter().map(|place| self.process(*place))).await,
        };
        for (place, result) in missing.into_iter().zip(results) {
            let endorser = self.endorsers().nth(place).expect("places are places of endorsers");
            let refused = match result {
                Ok(response) => match read_response(response) {
                    Ok(answer) => {
                        self.answers.insert(place, answer);
                        continue;
                    }
                    // The contract refuses, and would at the next endorser.
                    Err(message) => (None, message, true),
                },
                Err(error) => (final_code(&error), error.to_string(), is_final(&error)),
            };
            let (code, message, ends) = refused;
            let detail = endorser.detail(message.clone());
            if let Some(code) = code
                && (place == LOCAL || ends)
            {
                return Err(Status::new(code, message).with_detail(detail));
            }
            self.details.push(detail);
            self.failed.insert(place);
            self.last = code.map(|code| (code, message));
            if ends {
                return Err(self.insufficient());
            }
        }
        Ok(())
    }

    async fn process(&self, place: usize) -> Result<ProposalResponse, EndorseError> {
        let endorser = self.endorsers().nth(place).expect("places are places of endorsers");
        endorser.endorse.process(self.request.signed_proposal.clone()).await
    }

    fn endorsers(&self) -> impl Iterator<Item = &'a Endorser> + use<'a> {
        std::iter::once(self.from.local).chain(self.from.others)
    }

    fn plan(&self, contract: &str) -> Result<Arc<Plan>, Status> {
        let policy = self.rules.endorsement_policy(contract).ok_or_else(|| {
            Status::new(
                Code::FailedPrecondition,
                format!("no chaincode {contract} is defined on channel {}", self.request.channel),
            )
        })?;
        let endorsers: Vec<&MspId> = self.endorsers().map(|endorser| &endorser.msp_id).collect();
        Ok(self.from.plans.get(self.rules.channel(), contract, policy, &endorsers))
    }

    fn insufficient(&mut self) -> Status {
        let (code, message) = self.last.take().unwrap_or_else(|| {
            let message = "failed to collect enough transaction endorsements, see attached details for more info";
            (Code::Aborted, message.to_owned())
        });
        Status::new(code, message).with_details(std::mem::take(&mut self.details))
    }

    /// The answers are not the same bytes: the contract is not deterministic, or a peer has another state.
    fn differing(&self) -> Status {
        let first = self.answers.values().next().map(|answer| &answer.payload);
        let details = self.answers.iter().map(|(place, answer)| {
            let endorser = self.endorsers().nth(*place).expect("places are places of endorsers");
            endorser.detail(if Some(&answer.payload) == first {
                "endorsed the result that the others are compared with".to_owned()
            } else {
                "endorsed another result: ProposalResponsePayloads do not match".to_owned()
            })
        });
        Status::new(Code::Aborted, "failed to assemble transaction: ProposalResponsePayloads do not match")
            .with_details(details.collect())
    }
}

/// An endorsement, or what the contract said instead.
fn read_response(response: ProposalResponse) -> Result<Answer, String> {
    let status = response.response.as_ref().map_or(0, |response| response.status);
    match response.endorsement {
        Some(endorsement) if status < CONTRACT_ERROR_MIN => Ok(Answer { payload: response.payload, endorsement }),
        _ => {
            let message = response.response.map(|response| response.message).unwrap_or_default();
            Err(chaincode_response(status, &message))
        }
    }
}

/// Other contracts that a result writes to, from an encoded `ProposalResponsePayload`.
fn written_contracts(payload: &Bytes, contract: &str) -> Vec<String> {
    let mut contracts = Vec::new();
    let read = || -> Result<Bytes, ledger::wire::WireError> {
        let action = field(payload, 2)?;
        field(&action, 1)
    };
    let Ok(results) = read() else { return contracts };
    let walked = walk(&results, |number, span| {
        if number != 2 {
            return Ok(());
        }
        let set = span.slice(&results);
        let (name, rwset) = (field(&set, 1)?, field(&set, 2)?);
        let mut writes = false;
        walk(&rwset, |number, _| {
            // Fields 3 and 4 of a KVRWSet are its writes and metadata writes.
            writes |= number == 3 || number == 4;
            Ok(())
        })?;
        let name = String::from_utf8_lossy(&name);
        if writes && name != contract && !is_system_namespace(&name) && contracts.len() < CONTRACTS_MAX {
            contracts.push(name.into_owned());
        }
        Ok(())
    });
    // Our own endorser wrote this; were it unreadable, validation would say so.
    if walked.is_err() {
        contracts.clear();
    }
    contracts
}

/// The code of an error that has one of its own, rather than a missing endorsement.
fn final_code(error: &EndorseError) -> Option<Code> {
    match error {
        EndorseError::Malformed(_) => Some(Code::InvalidArgument),
        EndorseError::UnknownChannel(_) | EndorseError::UnknownChaincode { .. } => Some(Code::FailedPrecondition),
        EndorseError::Overloaded => Some(Code::ResourceExhausted),
        EndorseError::TimedOut(_) => Some(Code::DeadlineExceeded),
        EndorseError::ChannelStopped { .. } | EndorseError::Stopped => Some(Code::Unavailable),
        _ => None,
    }
}

/// Whether every other endorser would refuse as well.
pub(super) fn is_final(error: &EndorseError) -> bool {
    matches!(
        error,
        EndorseError::Malformed(_) | EndorseError::Invalid(_) | EndorseError::Expired(_) | EndorseError::Duplicate(_)
    )
}

#[cfg(test)]
mod tests;
