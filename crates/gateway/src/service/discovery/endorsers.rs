//! Which peers can endorse a call, and in which combinations.
//!
//! 1. A peer is *able* if it can run every chaincode of the interest under the definition in force, and its organisation
//!    keeps each collection that the call reads.
//! 2. The policies are those of the named collections, or of the chaincode if none is named, and the policies of single keys.
//! 3. A layout is a choice of organisations whose able peers together satisfy all policies; one signature counts for each of
//!    them. Of each organisation a gateway knows one peer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::MspId;
use identity::policy::{ImplicitMeta, LayoutBudget, MetaRule, SignaturePolicy};
use identity::statement::PeerDescription;
use identity::{Identity, Policy};
use ledger::lifecycle::LIFECYCLE;
use proto::discovery::{EndorsementDescriptor, Layout, Peers};
use proto::protos::{ChaincodeCall, ChaincodeInterest};
use rules::access::ChannelPolicies;

/// The peers of a channel and its policies.
pub(super) struct EndorserSearch<'a> {
    pub policies: &'a ChannelPolicies,
    pub peers: &'a [PeerDescription],
}

impl<'a> EndorserSearch<'a> {
    /// The peers that can run the chaincodes of an interest; all peers if it names none.
    ///
    /// # Errors
    /// If there is no such chaincode or collection.
    pub(super) fn able_peers(&self, interest: &ChaincodeInterest) -> Result<Vec<&'a PeerDescription>, String> {
        let mut able: Vec<&PeerDescription> = self.peers.iter().collect();
        for call in &interest.chaincodes {
            let (sequence, keepers) = (self.sequence(&call.name)?, self.keepers(call)?);
            able.retain(|peer| {
                let keeps = keepers.as_ref().is_none_or(|keepers| keepers.contains(peer.identity.msp_id()));
                keeps && peer.runs(&call.name, sequence)
            });
        }
        Ok(able)
    }

    /// The peers and layouts for an interest. `budget` is that of the whole request.
    ///
    /// # Errors
    /// Why there are none.
    pub(super) fn descriptor(
        &self,
        interest: &ChaincodeInterest,
        budget: &mut LayoutBudget,
    ) -> Result<EndorsementDescriptor, String> {
        let able = self.able_peers(interest)?;
        let policies = self.required(interest)?;
        let peer_of = |msp: &MspId| able.iter().find(|peer| peer.identity.msp_id() == msp).copied();
        // All policies at once: of each organisation as many signers as the most demanding policy takes.
        let joined = Policy::ImplicitMeta(Arc::new(ImplicitMeta::new(MetaRule::All, policies.clone())));
        let mut layouts = Vec::new();
        for layout in joined.layouts_within(budget) {
            let needed = layout.iter().filter(|(_, count)| **count > 0);
            let chosen: Option<Vec<_>> = needed.map(|(msp, count)| peer_of(msp).filter(|_| *count == 1)).collect();
            let Some(chosen) = chosen else { continue };
            // A policy may ask for more than an organisation: a unit, or one certificate.
            let signers: Vec<Arc<Identity>> = chosen.iter().map(|peer| peer.identity.clone()).collect();
            if policies.iter().all(|policy| policy.evaluate_identities(&signers).is_ok()) {
                layouts.push(chosen);
            }
        }
        if layouts.is_empty() {
            return Err("no peer combination can satisfy the endorsement policy".to_owned());
        }
        let organizations: BTreeSet<&MspId> = layouts.iter().flatten().map(|peer| peer.identity.msp_id()).collect();
        let groups: BTreeMap<&MspId, String> =
            organizations.into_iter().enumerate().map(|(index, msp)| (msp, format!("G{index}"))).collect();
        let group = |peer: &PeerDescription| groups[peer.identity.msp_id()].clone();
        let mut descriptor = EndorsementDescriptor {
            chaincode: interest.chaincodes.first().map(|call| call.name.clone()).unwrap_or_default(),
            ..EndorsementDescriptor::default()
        };
        for layout in layouts {
            for peer in &layout {
                let peers = || Peers { peers: vec![peer.peer.clone()] };
                descriptor.endorsers_by_groups.entry(group(peer)).or_insert_with(peers);
            }
            let quantities_by_group = layout.iter().map(|peer| (group(peer), 1)).collect();
            descriptor.layouts.push(Layout { quantities_by_group });
        }
        Ok(descriptor)
    }

    fn sequence(&self, chaincode: &str) -> Result<i64, String> {
        match self.policies.definitions().get(chaincode) {
            Some(definition) => Ok(definition.sequence),
            None if chaincode == LIFECYCLE => Ok(1),
            None => {
                Err(format!("No metadata was found for chaincode {chaincode} in channel {}", self.policies.channel()))
            }
        }
    }

    /// The organisations that keep all collections that a call reads; `None` if it reads none.
    fn keepers(&self, call: &ChaincodeCall) -> Result<Option<BTreeSet<MspId>>, String> {
        if call.collection_names.is_empty() || call.no_private_reads {
            return Ok(None);
        }
        let rules = self.policies.contract_rules(&call.name).ok_or("policy not found")?;
        let mut keepers: Option<BTreeSet<MspId>> = None;
        for collection in &call.collection_names {
            let access = rules.collection_access(collection, self.policies.config()).ok_or_else(|| {
                format!("collection {collection} doesn't exist in collection config for chaincode {}", call.name)
            })?;
            let of_this: BTreeSet<MspId> = access.organizations().cloned().collect();
            keepers = Some(match keepers {
                Some(others) => others.intersection(&of_this).cloned().collect(),
                None => of_this,
            });
        }
        Ok(keepers)
    }

    /// The policies that endorsements must satisfy.
    fn required(&self, interest: &ChaincodeInterest) -> Result<Vec<Policy>, String> {
        let mut required = Vec::new();
        for call in &interest.chaincodes {
            let rules = self.policies.contract_rules(&call.name).ok_or("policy not found")?;
            if call.collection_names.is_empty() && !call.disregard_namespace_policy {
                required.push(rules.endorsement.clone());
            }
            for collection in &call.collection_names {
                let policy = rules.collection_policy(collection, self.policies.config());
                required.push(policy.ok_or_else(|| format!("there is no collection {collection}"))?);
            }
            for policy in &call.key_policies {
                let policy = SignaturePolicy::compile(policy).map_err(|error| error.to_string())?;
                required.push(policy.into());
            }
        }
        match required.is_empty() {
            true => Err("no principal sets remained after filtering".to_owned()),
            false => Ok(required),
        }
    }
}

#[cfg(test)]
mod tests;
