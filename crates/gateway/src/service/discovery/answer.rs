//! Answers a request, query by query.
//!
//! Who may ask: about a channel, the members that the channel's policy for writers accepts; about the peer itself,
//! administrators of its organisation. Everyone else gets the same error, whether or not the channel exists.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use chain::view::ChannelView;
use identity::policy::LayoutBudget;
use identity::statement::PeerDescription;
use identity::{Identity, MemberRole};
use proto::discovery::query::Query as Kind;
use proto::discovery::query_result::Result as Found;
use proto::discovery::{ChaincodeQueryResult, Error, Peer, PeerMembershipResult, QueryResult, Response};
use proto::protos::ChaincodeInterest;
use rules::access::ChannelPolicies;

use super::config::config_result;
use super::endorsers::EndorserSearch;
use super::request::{DiscoveryRequest, QueryBytes};
use crate::grpc::message::frame;
use crate::grpc::{Caller, GrpcStatus};
use crate::service::caller_identity::principal;
use crate::service::{PeerServiceCore, run_in_task};

/// The policy of a channel for those who may ask about it.
const CHANNEL_POLICY: &str = "/Channel/Application/Writers";
const DENIED: &str = "access denied";

pub(in crate::service) async fn discover(
    state: &Arc<PeerServiceCore>,
    caller: &Caller,
    message: Bytes,
) -> Result<Bytes, GrpcStatus> {
    let request = DiscoveryRequest::read(&message)?;
    request.check_tls(caller)?;
    let working = Arc::clone(state);
    let (response, client) = run_in_task(async move {
        let budget = LayoutBudget::default();
        let mut answers = RequestAnswers { state: &working, request: &request, client: None, budget };
        let mut results = Vec::new();
        for query in &request.queries {
            let found = answers.answer(query).await;
            let result = Some(found.unwrap_or_else(|content| Found::Error(Error { content })));
            results.push(QueryResult { result });
        }
        Ok((frame(&Response { results }), answers.client))
    })
    .await?;
    if let Some(client) = client {
        caller.authenticate(|| principal(&client));
    }
    Ok(response)
}

struct RequestAnswers<'a> {
    state: &'a PeerServiceCore,
    request: &'a DiscoveryRequest,
    /// The client, once its signature was verified.
    client: Option<Arc<Identity>>,
    /// How far the searches for layouts of all its queries may go.
    budget: LayoutBudget,
}

impl RequestAnswers<'_> {
    async fn answer(&mut self, query: &QueryBytes) -> Result<Found, String> {
        let unknown = || "unknown or missing request type".to_owned();
        if query.channel.is_empty() {
            self.check_administrator()?;
            return match query.decode()? {
                Some(Kind::LocalPeers(_)) => {
                    let policies: Vec<_> =
                        self.state.peer.channels().iter().map(|channel| channel.policies()).collect();
                    Ok(members(self.peers("", &policies).await.iter()))
                }
                _ => Err(unknown()),
            };
        }
        let channel = self.state.channel(&query.channel).ok_or(DENIED)?;
        let (policies, name) = (channel.policies(), query.channel.as_str());
        self.check_writer(&policies)?;
        match query.decode()?.ok_or_else(unknown)? {
            Kind::ConfigQuery(_) => {
                let reached_at = self.state.orderers.iter().filter_map(|orderer| orderer.reached_at.as_deref());
                config_result(policies.config(), reached_at).map(Found::ConfigResult).map_err(|error| {
                    tracing::warn!(channel = name, %error, "the channel's configuration cannot be shown");
                    format!("failed fetching config for channel {name}")
                })
            }
            Kind::PeerQuery(query) => {
                let peers = self.peers(name, std::slice::from_ref(&policies)).await;
                let search = EndorserSearch { policies: &policies, peers: &peers };
                let interest = query.filter.unwrap_or_default();
                let found = search.able_peers(&interest)?;
                Ok(members(found.into_iter()))
            }
            Kind::CcQuery(query) => {
                let peers = self.peers(name, std::slice::from_ref(&policies)).await;
                let search = EndorserSearch { policies: &policies, peers: &peers };
                let descriptors = query.interests.iter().map(|interest| {
                    search.descriptor(interest, &mut self.budget).map_err(|reason| {
                        tracing::debug!(channel = %policies.channel(), reason, "no endorsers were found");
                        format!("failed constructing descriptor for {}", shown(interest))
                    })
                });
                Ok(Found::CcQueryRes(ChaincodeQueryResult { content: descriptors.collect::<Result<_, _>>()? }))
            }
            Kind::LocalPeers(_) => Err(unknown()),
        }
    }

    async fn peers(&self, channel: &str, policies: &[Arc<ChannelPolicies>]) -> Arc<Vec<PeerDescription>> {
        let endorsers = std::iter::once(&self.state.local).chain(&self.state.others);
        let endorsers: Vec<_> = endorsers.map(|endorser| (&endorser.msp_id, &*endorser.endorse)).collect();
        self.state.directory.peers(channel, policies, &endorsers).await
    }

    fn check_writer(&mut self, policies: &ChannelPolicies) -> Result<(), String> {
        let client = policies.identify(&self.request.identity).map_err(|_| DENIED)?;
        self.verify(&client, policies)?;
        let writers = policies.config().policy(CHANNEL_POLICY);
        writers.evaluate_identities(std::slice::from_ref(&client)).map_err(|_| DENIED)?;
        Ok(())
    }

    /// Checks that the client administers the peer's organisation, as any of the peer's channels knows it.
    fn check_administrator(&mut self) -> Result<(), String> {
        let identify = |channel: Arc<dyn ChannelView>| {
            let policies = channel.policies();
            Some((policies.identify(&self.request.identity).ok()?, policies))
        };
        let (client, policies) = self.state.peer.channels().into_iter().find_map(identify).ok_or(DENIED)?;
        if *client.msp_id() != self.state.local.msp_id || !client.has_role(MemberRole::Admin) {
            return Err(DENIED.to_owned());
        }
        self.verify(&client, &policies)
    }

    fn verify(&mut self, client: &Arc<Identity>, policies: &ChannelPolicies) -> Result<(), String> {
        policies.check_denied(client, base::rt::wall_now()).map_err(|_| DENIED)?;
        // One identity has one key, whatever channel it is a member of.
        if self.client.is_none() {
            client.verify(&self.request.payload, &self.request.signature).map_err(|_| DENIED)?;
            self.client = Some(client.clone());
        }
        Ok(())
    }
}

fn members<'a>(peers: impl Iterator<Item = &'a PeerDescription>) -> Found {
    let mut peers_by_org: BTreeMap<String, proto::discovery::Peers> = BTreeMap::new();
    for description in peers {
        let organization = peers_by_org.entry(description.identity.msp_id().to_string()).or_default();
        organization.peers.push(Peer::clone(&description.peer));
    }
    Found::Members(PeerMembershipResult { peers_by_org })
}

/// The chaincodes of an interest, for an error.
fn shown(interest: &ChaincodeInterest) -> String {
    let calls = interest.chaincodes.iter().map(|call| {
        let collections = call.collection_names.iter().map(|name| format!(" collection_names:{name:?}"));
        format!("chaincodes:{{name:{:?}{}}}", call.name, collections.collect::<String>())
    });
    calls.collect::<Vec<_>>().join(" ")
}
