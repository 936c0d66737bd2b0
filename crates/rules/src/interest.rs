//! The policies that the endorsements of one transaction must satisfy, as an endorser states them for its clients: Fabric's
//! `ChaincodeInterest`.
//!
//! 1. [`of_result`] states them for a read-write set, with the policies that its keys have in the endorser's state. They are
//!    those that validation will check: of the invoked contract and of every namespace that is written, and in it of the
//!    contract, of the collections, and of single keys.
//! 2. A gateway or a discovery service chooses endorsers that satisfy all of them ([`policies_of`]). Endorsers that are no
//!    members of a collection cannot read it ([`readers_of`]).
//!
//! In two respects Fabric's endorser states more: it also lists contracts that were read and not written, which validation
//! does not check; and it lists a key's policy once for each key.

use std::collections::BTreeSet;
use std::sync::Arc;

use base::{Bytes, Set};
use identity::Policy;
use identity::policy::SignaturePolicy;
use ledger::namespace;
use ledger::rwset::{NamespaceReadWriteSet, ReadWriteSet};
use private_data::CollectionAccess;
use prost::Message as _;
use proto::common::SignaturePolicyEnvelope;
use proto::kvrwset::KvMetadataWrite;
use proto::protos::{ChaincodeCall, ChaincodeInterest};
use state::Snapshot;

use crate::access::{ChannelPolicies, is_system_namespace};

/// The entry of a key's metadata that holds the key's policy.
const KEY_POLICY: &str = "VALIDATION_PARAMETER";
/// The largest number of different policies of keys that an interest lists.
pub const KEY_POLICIES_MAX: usize = 256;
/// The largest number of bytes of these policies.
pub const KEY_POLICIES_BYTES_MAX: usize = 1 << 20;
/// Keys whose metadata are looked up at once.
const KEYS_AT_ONCE: usize = 256;

/// Why an endorser cannot say which policies a transaction must satisfy.
#[derive(Debug, thiserror::Error)]
pub enum InterestError {
    /// The state could not be read.
    #[error(transparent)]
    State(#[from] state::Error),
    /// A key that is written has a policy that cannot be decoded, so no endorsements would satisfy it.
    #[error("the endorsement policy of a key of chaincode {contract} cannot be decoded: {reason}")]
    BrokenPolicy {
        /// The contract.
        contract: String,
        /// What is wrong with the policy.
        reason: prost::DecodeError,
    },
}

/// A contract or a collection that the channel does not have.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnknownName {
    /// There is no such contract.
    #[error("no chaincode {0} is defined")]
    Contract(String),
    /// The contract has no such collection.
    #[error("no collection {1} of chaincode {0} is defined")]
    Collection(String, String),
}

/// The encoded policy in a key's metadata, if there is one.
pub fn key_policy(metadata: Bytes) -> Option<Bytes> {
    // A peer of this organisation encoded the metadata in the state, so decoding does not fail.
    let entries = KvMetadataWrite::decode(metadata).map(|metadata| metadata.entries).unwrap_or_default();
    entries
        .into_iter()
        .rfind(|entry| entry.name == KEY_POLICY)
        .map(|entry| entry.value)
        .filter(|policy| !policy.is_empty())
}

/// The interest of a transaction that invoked a contract and has this result. `private_reads` are the contracts and
/// collections whose private values it read. The interest is empty if more policies of keys apply than an interest lists:
/// the client has to name the endorsers.
///
/// # Errors
/// See [`InterestError`].
pub async fn of_result(
    invoked: &str,
    set: &ReadWriteSet,
    private_reads: &BTreeSet<(Arc<str>, String)>,
    snapshot: &dyn Snapshot,
) -> Result<ChaincodeInterest, InterestError> {
    let mut interest = ResultInterest { set, chaincodes: Vec::new(), of_keys: Set::default(), of_keys_bytes: 0 };
    let is_checked = |namespace: &&NamespaceReadWriteSet| {
        let name = set.name(namespace);
        name == invoked || namespace.writes_anything() && !is_system_namespace(name)
    };
    let mut checked: Vec<&NamespaceReadWriteSet> = set.namespaces.iter().filter(is_checked).collect();
    checked.sort_by_key(|namespace| set.name(namespace) != invoked);
    if checked.first().is_none_or(|first| set.name(first) != invoked) {
        interest.chaincodes.push(ChaincodeCall { name: invoked.to_owned(), ..ChaincodeCall::default() });
    }
    for namespace in checked {
        if !interest.add(namespace, snapshot).await? {
            return Ok(ChaincodeInterest::default());
        }
    }
    for (contract, collection) in private_reads {
        let is_of = |call: &&mut ChaincodeCall| call.name == **contract && call.collection_names.contains(collection);
        match interest.chaincodes.iter_mut().find(is_of) {
            Some(call) => call.no_private_reads = false,
            None => interest.chaincodes.push(ChaincodeCall {
                name: contract.to_string(),
                collection_names: vec![collection.clone()],
                ..ChaincodeCall::default()
            }),
        }
    }
    Ok(ChaincodeInterest { chaincodes: interest.chaincodes })
}

/// An interest, while it is put together.
struct ResultInterest<'a> {
    set: &'a ReadWriteSet,
    chaincodes: Vec<ChaincodeCall>,
    /// The policies of keys listed so far, by contract.
    of_keys: Set<(&'a str, Bytes)>,
    of_keys_bytes: usize,
}

impl<'a> ResultInterest<'a> {
    /// Lists the policies for one namespace, in a call for each collection. False if there are too many of keys.
    async fn add(&mut self, namespace: &NamespaceReadWriteSet, snapshot: &dyn Snapshot) -> Result<bool, InterestError> {
        let (set, name) = (self.set, self.set.name(namespace));
        let mut writes_any = false;
        for collection in set.written_collections(namespace) {
            writes_any = true;
            let written = policies_of_keys(set, namespace, collection, snapshot).await?;
            let mut key_policies = Vec::new();
            for policy in written.of_keys {
                let bytes = policy.len();
                if !self.of_keys.insert((name, policy.clone())) {
                    continue;
                }
                self.of_keys_bytes += bytes;
                if self.of_keys.len() > KEY_POLICIES_MAX || self.of_keys_bytes > KEY_POLICIES_BYTES_MAX {
                    return Ok(false);
                }
                let broken = |reason| InterestError::BrokenPolicy { contract: name.to_owned(), reason };
                key_policies.push(SignaturePolicyEnvelope::decode(policy).map_err(broken)?);
            }
            let is_public = collection.is_empty();
            self.chaincodes.push(ChaincodeCall {
                name: name.to_owned(),
                collection_names: if is_public { Vec::new() } else { vec![collection.to_owned()] },
                no_private_reads: !is_public,
                key_policies,
                disregard_namespace_policy: !written.has_others,
                ..ChaincodeCall::default()
            });
        }
        if !writes_any {
            self.chaincodes.push(ChaincodeCall { name: name.to_owned(), ..ChaincodeCall::default() });
        }
        Ok(true)
    }
}

/// The policies of the keys that a transaction writes in one collection.
#[derive(Default)]
struct WrittenPolicies {
    of_keys: Vec<Bytes>,
    /// Whether it writes keys without a policy of their own.
    has_others: bool,
}

async fn policies_of_keys(
    set: &ReadWriteSet,
    namespace: &NamespaceReadWriteSet,
    collection: &str,
    snapshot: &dyn Snapshot,
) -> Result<WrittenPolicies, state::Error> {
    let rows = namespace::metadata_of(set.name(namespace), collection);
    if !snapshot.may_have_rows(&rows).await? {
        return Ok(WrittenPolicies { of_keys: Vec::new(), has_others: true });
    }
    let keys = set.written_keys(namespace).filter(|(other, _)| *other == collection);
    let keys: Vec<String> = keys.map(|(_, key)| key.into_owned()).collect();
    let mut written = WrittenPolicies::default();
    for keys in keys.chunks(KEYS_AT_ONCE) {
        let places: Vec<(&str, &str)> = keys.iter().map(|key| (rows.as_str(), key.as_str())).collect();
        for (key, version) in keys.iter().zip(snapshot.versions(&places).await?) {
            let metadata = match version {
                None => None,
                Some(_) => snapshot.get(&rows, key).await?,
            };
            match metadata.and_then(|metadata| key_policy(metadata.value)) {
                Some(policy) => written.of_keys.push(policy),
                None => written.has_others = true,
            }
        }
    }
    Ok(written)
}

/// One policy of an interest.
#[derive(Clone, Debug)]
pub enum InterestPolicy<'a> {
    /// That of a contract.
    Contract(&'a str),
    /// That of a collection.
    Collection(&'a str, &'a str),
    /// That of a single key.
    Key(Policy),
}

/// The policies that an interest lists. A key's policy that makes no sense is one that nobody satisfies.
pub fn policies_of(interest: &ChaincodeInterest) -> impl Iterator<Item = InterestPolicy<'_>> {
    interest.chaincodes.iter().flat_map(|call| {
        let contract = call.name.as_str();
        let (applies, is_public) = (!call.disregard_namespace_policy, call.collection_names.is_empty());
        // Collections without a policy have that of the contract.
        let own = (applies && is_public).then_some(InterestPolicy::Contract(contract));
        let collections = call.collection_names.iter().filter(move |_| applies);
        let collections = collections.map(move |name| InterestPolicy::Collection(contract, name));
        let keys = call
            .key_policies
            .iter()
            .map(|policy| InterestPolicy::Key(SignaturePolicy::compile(policy).map_or(Policy::Missing, Policy::from)));
        own.into_iter().chain(collections).chain(keys)
    })
}

/// The memberships of the collections whose values a transaction reads; only members of all of them can endorse it. With
/// `and_written`, those of the collections that it only writes as well: their members alone may see the transient data of the
/// proposal.
///
/// # Errors
/// See [`UnknownName`].
pub fn readers_of(
    interest: &ChaincodeInterest,
    policies: &ChannelPolicies,
    and_written: bool,
) -> Result<Vec<CollectionAccess>, UnknownName> {
    let read = interest.chaincodes.iter().filter(|call| and_written || !call.no_private_reads);
    let named = read.flat_map(|call| call.collection_names.iter().map(move |collection| (&call.name, collection)));
    named
        .map(|(contract, collection)| {
            let rules = policies.contract_rules(contract).ok_or_else(|| UnknownName::Contract(contract.clone()))?;
            let access = rules.collection_access(collection, policies.config());
            access.ok_or_else(|| UnknownName::Collection(contract.clone(), collection.clone()))
        })
        .collect()
}
