//! Who may have the values of a private collection, and who may read and write them.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::MspId;
use identity::policy::{SignaturePolicy, parse};
use identity::{Identity, MemberRole, Policy, Principal};
use ledger::ChannelConfig;
use ledger::lifecycle::implicit_collection_msp;
use proto::protos::StaticCollectionConfig;
use proto::protos::collection_policy_config::Payload;

/// The membership of a collection.
#[derive(Clone, Debug)]
pub struct CollectionAccess {
    /// Satisfied by any member.
    members: Policy,
    /// The organisations whose peers keep the values.
    organizations: BTreeSet<MspId>,
    /// Whether only members may have a contract read the values.
    pub member_only_read: bool,
    /// Whether only members may have a contract write values.
    pub member_only_write: bool,
    /// The number of other peers that must hold the values before an endorsement is given.
    pub required_peers: usize,
    /// The number of other peers to which an endorser sends the values.
    pub max_peers: usize,
}

impl CollectionAccess {
    /// The membership that a definition states. A collection without a valid policy has no members.
    pub fn of_definition(collection: &StaticCollectionConfig) -> CollectionAccess {
        let policy = collection.member_orgs_policy.as_ref().and_then(|policy| policy.payload.as_ref());
        let policy = policy.and_then(|Payload::SignaturePolicy(policy)| SignaturePolicy::compile(policy).ok());
        let count = |count: i32| usize::try_from(count).unwrap_or(0);
        CollectionAccess {
            member_only_read: collection.member_only_read,
            member_only_write: collection.member_only_write,
            required_peers: count(collection.required_peer_count),
            max_peers: count(collection.maximum_peer_count),
            ..CollectionAccess::under(policy)
        }
    }

    /// The membership of an implicit collection, which every contract has for each organisation of the channel: that
    /// organisation alone. Its one peer here is the endorser itself, so no other peer gets the values. `None` if the name is
    /// not that of an implicit collection of such an organisation.
    pub fn implicit(collection: &str, config: &ChannelConfig) -> Option<CollectionAccess> {
        let msp = implicit_collection_msp(collection)?;
        config.application().iter().find(|organization| *organization.msp_id == *msp)?;
        let policy = parse(&format!("OR('{msp}.member')")).and_then(|policy| SignaturePolicy::compile(&policy));
        Some(CollectionAccess::under(policy.ok()))
    }

    fn under(policy: Option<SignaturePolicy>) -> CollectionAccess {
        let keeper = |principal: &Principal| match principal {
            Principal::Role(msp, MemberRole::Member | MemberRole::Peer) => Some(msp.clone()),
            _ => None,
        };
        let organizations =
            policy.iter().flat_map(|policy| policy.principals()).filter_map(keeper).collect::<BTreeSet<_>>();
        CollectionAccess {
            members: policy.map_or(Policy::Missing, Policy::from),
            organizations,
            member_only_read: false,
            member_only_write: false,
            required_peers: 0,
            max_peers: 0,
        }
    }

    /// Whether the peers of an organisation keep the values.
    pub fn keeps(&self, organization: &MspId) -> bool {
        self.organizations.contains(organization)
    }

    /// The organisations whose peers keep the values.
    pub fn organizations(&self) -> impl Iterator<Item = &MspId> {
        self.organizations.iter()
    }

    /// Whether a client, whose signature was checked, is a member.
    pub fn is_member(&self, client: &Arc<Identity>) -> bool {
        self.members.evaluate_identities(std::slice::from_ref(client)).is_ok()
    }
}
