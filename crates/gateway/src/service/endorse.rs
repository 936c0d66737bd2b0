//! `Gateway.Endorse`: collects the endorsements that a transaction needs.
//!
//! 1. The contract's policy decides which organisations must endorse, unless the client names them. A choice of
//!    endorsers that satisfies the policy is a [layout](super::layout).
//! 2. The first endorser runs the proposal alone, so that a refusal by the contract is known after one run. This is the
//!    local endorser, if a layout contains it, or if the proposal has transient data.
//! 3. It also states which policies the endorsements must satisfy ([`rules::interest`]): of contracts, of collections and
//!    of single keys. One layout of each policy, chosen to overlap, make the set of endorsers. An organisation that is not
//!    a member of a collection that was read is not asked. If the proposal has transient data, neither is one that is not a
//!    member of a collection that was written. The statement is a claim. With a false one, an endorser can do no more than by
//!    a refusal or a bad signature: the call fails, or validation finds the transaction invalid.
//! 4. The remaining endorsers of the set run the proposal concurrently. If an endorser of another organisation fails,
//!    the gateway chooses again among the layouts that do not contain this endorser, and keeps the answers received so
//!    far. If the client has named the organisations, they are all asked at once, and there is no other layout. A failure
//!    of the local endorser ends the call, unless only its organisation has not approved the contract.
//!    If a policy has no layout left, the last failure decides the status.
//! 5. The answers of all endorsers must have the same bytes. The gateway assembles them into an envelope, which
//!    leaves out the transient map; the client signs the envelope.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::MspId;
use bytes::Bytes;
use chain::endorse::EndorseError;
use futures_util::future::join_all;
use identity::policy::LayoutBudget;
use proto::gateway::ErrorDetail;
use proto::protos::{ChaincodeInterest, Endorsement, ProposalResponse};
use rules::access::ChannelPolicies;
use rules::interest::{InterestPolicy, KEY_POLICIES_MAX, policies_of, readers_of};

use super::assemble::endorse_response;
use super::evaluate::{CONTRACT_ERROR_MIN, chaincode_response, is_final};
use super::layout::{EndorsementPlan, EndorsementPlanCache};
use super::proposal::ProposalRequest;
use super::{Endorser, PeerServiceCore, run_in_task};
use crate::events::{EndorseTime, Endorsed};
use crate::grpc::{Caller, GrpcCode, GrpcStatus};

/// Policies that the endorsements of one transaction may have to satisfy.
const POLICIES_MAX: usize = KEY_POLICIES_MAX + 64;
/// The index of the local endorser.
const LOCAL: usize = 0;

pub(super) async fn endorse(
    state: &Arc<PeerServiceCore>,
    caller: &Caller,
    message: Bytes,
) -> Result<Bytes, GrpcStatus> {
    let begin = base::rt::now();
    let request = ProposalRequest::read(&message)?;
    let channel = state.live_channel(&request.channel)?;
    let signature_header = request.parts.signature_header.clone();
    let name = Arc::clone(&request.channel);
    let working = Arc::clone(state);
    let answer = run_in_task(async move {
        let turn = working.turn.fetch_add(1, Ordering::Relaxed);
        let endorsers = EndorserSet { local: &working.local, others: &working.others, plans: &working.plans };
        let answer = EndorsementRound::new(endorsers, turn, &channel.policies(), &request).run().await?;
        Endorsed.add(1);
        EndorseTime.record_since(begin);
        Ok(answer)
    })
    .await?;
    state.authenticate_caller(caller, &name, &signature_header);
    Ok(answer)
}

/// The endorsers that can be asked.
#[derive(Clone, Copy)]
struct EndorserSet<'a> {
    local: &'a Endorser,
    others: &'a [Endorser],
    plans: &'a EndorsementPlanCache,
}

/// The endorsements of one proposal, while they are collected.
struct EndorsementRound<'a> {
    from: EndorserSet<'a>,
    turn: usize,
    policies: &'a ChannelPolicies,
    request: &'a ProposalRequest,
    answers: BTreeMap<usize, EndorserResponse>,
    failed: BTreeSet<usize>,
    details: Vec<ErrorDetail>,
    /// The last failure, if it has a code of its own.
    last: Option<(GrpcCode, String)>,
}

struct EndorserResponse {
    payload: Bytes,
    endorsement: Endorsement,
    interest: Option<ChaincodeInterest>,
}

impl<'a> EndorsementRound<'a> {
    fn new(
        from: EndorserSet<'a>,
        turn: usize,
        rules: &'a ChannelPolicies,
        request: &'a ProposalRequest,
    ) -> EndorsementRound<'a> {
        let (answers, failed, details) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        EndorsementRound { from, turn, policies: rules, request, answers, failed, details, last: None }
    }

    async fn run(mut self) -> Result<Bytes, GrpcStatus> {
        let chosen =
            if self.request.organizations.is_empty() { self.by_policy().await? } else { self.by_name().await? };
        let chosen: Vec<&EndorserResponse> = chosen.iter().map(|place| &self.answers[place]).collect();
        let payload = &chosen[0].payload;
        if chosen.iter().any(|answer| answer.payload != *payload) {
            return Err(self.differing());
        }
        let endorsements: Vec<&Endorsement> = chosen.iter().map(|answer| &answer.endorsement).collect();
        Ok(endorse_response(&self.request.parts, payload, &endorsements))
    }

    /// Steps 1 to 4 if the client names the organisations: one peer of each, and no others.
    async fn by_name(&mut self) -> Result<Vec<usize>, GrpcStatus> {
        let mut places = BTreeSet::new();
        for msp_id in &self.request.organizations {
            let place = self.endorsers().position(|endorser| endorser.msp_id.as_str() == msp_id).ok_or_else(|| {
                GrpcStatus::new(GrpcCode::Unavailable, format!("no endorsing peers found for organization {msp_id}"))
            })?;
            places.insert(place);
        }
        self.plan(&self.request.contract)?;
        let places: Vec<usize> = places.into_iter().collect();
        // All at once, so that the details of a failure name every organisation that failed.
        self.ask(&places).await?;
        if self.failed.is_empty() { Ok(places) } else { Err(self.insufficient()) }
    }

    /// Steps 1 to 4 if the policy decides.
    async fn by_policy(&mut self) -> Result<Vec<usize>, GrpcStatus> {
        let contract = &self.request.contract;
        let plan = self.plan(contract)?;
        if !plan.is_possible(&self.failed) {
            return Err(impossible(contract));
        }
        while self.answers.is_empty() {
            let first = match self.request.has_transient_data {
                // No other endorser may see the data until the collections are known.
                true if self.failed.contains(&LOCAL) => return Err(self.insufficient()),
                true => LOCAL,
                false => match plan.first(self.turn, &self.failed) {
                    Some(layout) => layout[0],
                    None => return Err(self.insufficient()),
                },
            };
            self.ask(&[first]).await?;
        }
        let first = self.answers.values_mut().next().expect("one has answered");
        let interest = first.interest.take().unwrap_or_default();
        let plans = self.plans(&interest)?;
        loop {
            let mut places = BTreeSet::new();
            for plan in &plans {
                let layout = if let [only] = &plans[..] {
                    only.first(self.turn, &self.failed)
                } else {
                    let known = self.answers.keys().chain(&places).copied().collect();
                    plan.least_added(self.turn, &known, &self.failed).map(<[usize]>::to_vec)
                };
                let Some(layout) = layout else { return Err(self.insufficient()) };
                places.extend(layout);
            }
            let places: Vec<usize> = places.into_iter().collect();
            self.ask(&places).await?;
            if places.iter().all(|place| self.answers.contains_key(place)) {
                return Ok(places);
            }
        }
    }

    /// Step 3: the plans for an interest, those with the fewest layouts first. Excludes the endorsers that must not be asked.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if endorsers for one of its policies do not exist.
    fn plans(&mut self, interest: &ChaincodeInterest) -> Result<Vec<Arc<EndorsementPlan>>, GrpcStatus> {
        let contract = &self.request.contract;
        let counts =
            interest.chaincodes.iter().map(|call| call.collection_names.len().max(1) + call.key_policies.len());
        if interest.chaincodes.is_empty() || counts.sum::<usize>() > POLICIES_MAX {
            return Err(GrpcStatus::new(
                GrpcCode::FailedPrecondition,
                "the transaction needs endorsements under too many policies; name the endorsing organizations",
            ));
        }
        let (mut plans, mut budget) = (Vec::new(), LayoutBudget::default());
        for policy in policies_of(interest) {
            plans.push(match policy {
                InterestPolicy::Contract(contract) => self.plan(contract)?,
                InterestPolicy::Collection(contract, collection) => self.plan_of_collection(contract, collection)?,
                InterestPolicy::Key(policy) => {
                    let endorsers: Vec<&MspId> = self.endorsers().map(|endorser| &endorser.msp_id).collect();
                    Arc::new(EndorsementPlan::new(policy.layouts_within(&mut budget), &endorsers))
                }
            });
        }
        plans.sort_by_key(|plan| plan.layouts_count());
        let has_transient_data = self.request.has_transient_data;
        let excluded = |and_written| {
            let readers = readers_of(interest, self.policies, and_written);
            let readers =
                readers.map_err(|unknown| GrpcStatus::new(GrpcCode::FailedPrecondition, unknown.to_string()))?;
            let is_excluded = |endorser: &Endorser| readers.iter().any(|access| !access.keeps(&endorser.msp_id));
            let excluded = self.endorsers().enumerate().filter(|(_, endorser)| is_excluded(endorser));
            Ok::<BTreeSet<usize>, GrpcStatus>(excluded.map(|(place, _)| place).collect())
        };
        let may_read = excluded(has_transient_data)?;
        let is_possible = |excluded: &BTreeSet<usize>| plans.iter().all(|plan| plan.is_possible(excluded));
        if !is_possible(&may_read) {
            return Err(if has_transient_data && is_possible(&excluded(false)?) {
                let collections = interest.chaincodes.iter().filter(|call| call.no_private_reads);
                let collections: Vec<&String> = collections.flat_map(|call| &call.collection_names).collect();
                GrpcStatus::new(
                    GrpcCode::FailedPrecondition,
                    format!(
                        "requires endorsement from organisation(s) that are not in the distribution policy of the private data \
                         collection(s): {collections:?}; retry specifying trusted endorsing organizations to protect transient data"
                    ),
                )
            } else {
                impossible(contract)
            });
        }
        self.failed.extend(may_read);
        Ok(plans)
    }

    /// Asks those of `places` that were not asked yet, concurrently.
    ///
    /// # Errors
    /// The status that ends the call: no other endorser would answer differently, or the local endorser has failed.
    async fn ask(&mut self, places: &[usize]) -> Result<(), GrpcStatus> {
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
        let mut end = None;
        for (place, result) in missing.into_iter().zip(results) {
            let endorser = self.endorsers().nth(place).expect("places are places of endorsers");
            let refused = match result {
                Ok(response) => match read_response(response) {
                    Ok(answer) => {
                        self.answers.insert(place, answer);
                        continue;
                    }
                    // The contract refuses, and would refuse at every other endorser.
                    Err(message) => (None, message, true),
                },
                Err(error) => (final_code(&error), error.to_string(), is_final(&error)),
            };
            let (code, message, ends) = refused;
            self.details.push(endorser.detail(message.clone()));
            self.failed.insert(place);
            let ends_here = ends || (place == LOCAL && code.is_some_and(|(_, is_final)| is_final));
            self.last = code.map(|(code, _)| (code, message));
            if ends_here && end.is_none() {
                end = Some(self.last.clone());
            }
        }
        match end {
            None => Ok(()),
            Some(last) => {
                self.last = last;
                Err(self.insufficient())
            }
        }
    }

    async fn process(&self, place: usize) -> Result<ProposalResponse, EndorseError> {
        let endorser = self.endorsers().nth(place).expect("places are places of endorsers");
        endorser.endorse.process(self.request.signed_proposal.clone()).await
    }

    fn endorsers(&self) -> impl Iterator<Item = &'a Endorser> + use<'a> {
        std::iter::once(self.from.local).chain(self.from.others)
    }

    fn plan(&self, contract: &str) -> Result<Arc<EndorsementPlan>, GrpcStatus> {
        self.plan_of_collection(contract, "")
    }

    /// The plan for writes to a collection, or to the public keys of the contract if `collection` is empty.
    fn plan_of_collection(&self, contract: &str, collection: &str) -> Result<Arc<EndorsementPlan>, GrpcStatus> {
        let endorsers: Vec<&MspId> = self.endorsers().map(|endorser| &endorser.msp_id).collect();
        self.from.plans.get(self.policies, contract, collection, &endorsers).ok_or_else(|| {
            let channel = &self.request.channel;
            let missing = match self.policies.contract_rules(contract) {
                Some(_) => format!("no collection {collection} of chaincode {contract}"),
                None => format!("no chaincode {contract}"),
            };
            GrpcStatus::new(GrpcCode::FailedPrecondition, format!("{missing} is defined on channel {channel}"))
        })
    }

    fn insufficient(&mut self) -> GrpcStatus {
        let (code, message) = self.last.take().unwrap_or_else(|| {
            let what = match self.answers.is_empty() && self.request.organizations.is_empty() {
                true => "failed to endorse transaction",
                false => "failed to collect enough transaction endorsements",
            };
            (GrpcCode::Aborted, format!("{what}, see attached details for more info"))
        });
        GrpcStatus::new(code, message).with_details(std::mem::take(&mut self.details))
    }

    /// The answers are not the same bytes: the contract is not deterministic, or the peers' states differ.
    fn differing(&self) -> GrpcStatus {
        let first = self.answers.values().next().map(|answer| &answer.payload);
        let details = self.answers.iter().map(|(place, answer)| {
            let endorser = self.endorsers().nth(*place).expect("places are places of endorsers");
            endorser.detail(if Some(&answer.payload) == first {
                "endorsed the result that the others are compared with".to_owned()
            } else {
                "endorsed another result: ProposalResponsePayloads do not match".to_owned()
            })
        });
        GrpcStatus::new(GrpcCode::Aborted, "failed to assemble transaction: ProposalResponsePayloads do not match")
            .with_details(details.collect())
    }
}

/// An endorsement, or the message with which the contract refused.
fn read_response(response: ProposalResponse) -> Result<EndorserResponse, String> {
    let status = response.response.as_ref().map_or(0, |response| response.status);
    match response.endorsement {
        Some(endorsement) if status < CONTRACT_ERROR_MIN => {
            Ok(EndorserResponse { payload: response.payload, endorsement, interest: response.interest })
        }
        _ => {
            let message = response.response.map(|response| response.message).unwrap_or_default();
            Err(chaincode_response(status, &message))
        }
    }
}

fn impossible(contract: &str) -> GrpcStatus {
    GrpcStatus::new(
        GrpcCode::FailedPrecondition,
        format!("no combination of peers can be derived which satisfy the endorsement policy of {contract}"),
    )
}

/// The status code of an error that has one, rather than counting as a missing endorsement; and whether the error ends the
/// call if it is the local endorser's.
fn final_code(error: &EndorseError) -> Option<(GrpcCode, bool)> {
    let code = match error {
        EndorseError::Malformed(_) => GrpcCode::InvalidArgument,
        EndorseError::UnknownChannel(_) | EndorseError::UnknownChaincode { .. } => GrpcCode::FailedPrecondition,
        // Other organisations may have approved and installed the contract, and their endorsements may be enough.
        EndorseError::NotApproved { .. } | EndorseError::NotInstalled { .. } => {
            return Some((GrpcCode::FailedPrecondition, false));
        }
        EndorseError::Overloaded => GrpcCode::ResourceExhausted,
        EndorseError::TimedOut(_) => GrpcCode::DeadlineExceeded,
        EndorseError::ChannelStopped { .. } | EndorseError::Stopped => GrpcCode::Unavailable,
        _ => return None,
    };
    Some((code, true))
}

#[cfg(test)]
mod tests;
