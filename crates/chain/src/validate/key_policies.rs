//! The endorsement policies of single keys (Fabric's state-based endorsement), which stand in the metadata of the keys.
//!
//! 1. [`KnownRows`] remembers, for each contract and collection, whether any key of it has metadata. Most have none, and then
//!    the check that [`super::verify`] made ahead of time stands.
//! 2. Otherwise, in the order of the block, the endorsements of a transaction are checked again ([`super::endorsement`]), with the
//!    policies that the keys it writes had before the block ([`BlockKeyPolicies::check`]).
//! 3. Keys whose metadata a transaction writes are noted if its endorsements satisfied all policies
//!    ([`BlockKeyPolicies::note_changes`]): until the block ends nothing satisfies their policies.
//!
//! Metadata that is no policy is satisfied by nothing. A Fabric peer stops there.

use base::{Bytes, Map, Set, rt};
use identity::Policy;
use identity::policy::SignaturePolicy;
use ledger::namespace;
use ledger::rwset::ReadWriteSet;
use prost::Message as _;
use proto::kvrwset::KvMetadataWrite;

use super::code::Code;
use super::endorsement::{KeyPolicies, check_endorsements};
use super::known_rows::KnownRows;
use super::verify::{VerifiedTransaction, genuine_endorsers};
use super::view::BlockStateView;
use crate::access::ChannelPolicies;

/// The entry of a key's metadata that holds its policy.
const VALIDATION_PARAMETER: &str = "VALIDATION_PARAMETER";

type KeyOfCollection = (String, String, String);

/// The policies of the keys that one block writes.
#[derive(Debug, Default)]
pub struct BlockKeyPolicies {
    /// Those that were looked up; `None` for keys without one.
    known: Map<KeyOfCollection, Option<Policy>>,
    /// The keys whose metadata an earlier transaction of the block writes.
    changed: Set<KeyOfCollection>,
    /// Contracts and collections of such keys.
    changed_collections: Set<(String, String)>,
}

impl BlockKeyPolicies {
    /// Step 10 for a transaction that passed the steps before, with the policies of the keys that it writes. `code` is the verdict
    /// without them.
    ///
    /// # Errors
    /// The state's.
    pub async fn check(
        &mut self,
        code: Code,
        transaction: &VerifiedTransaction,
        envelope: impl FnOnce() -> Bytes,
        policies: &ChannelPolicies,
        view: &BlockStateView,
        known: &mut KnownRows,
    ) -> Result<Code, state::Error> {
        let set = &transaction.set;
        let mut has_key_policies = false;
        for namespace in set.namespaces.iter().filter(|namespace| namespace.writes_anything()) {
            let contract = set.name(namespace);
            for collection in set.written_collections(namespace) {
                has_key_policies |= known.may_have_metadata(contract, collection, view).await?;
                has_key_policies |= !self.changed_collections.is_empty()
                    && self.changed_collections.contains(&(contract.to_owned(), collection.to_owned()));
            }
        }
        let depends_on_policies =
            matches!(code, Code::VALID | Code::ENDORSEMENT_POLICY_FAILURE | Code::INVALID_CHAINCODE);
        let invoked = transaction.outcome.as_ref().and_then(|outcome| outcome.chaincode());
        let Some(invoked) = invoked.filter(|_| has_key_policies && depends_on_policies) else { return Ok(code) };
        if rt::fault_point("chain.validate.mutant.ignores_key_policies") {
            return Ok(code);
        }
        self.look_up(set, view).await?;
        let Some(endorsers) = genuine_endorsers(&envelope(), policies) else {
            return Ok(Code::ENDORSEMENT_POLICY_FAILURE);
        };
        let is_satisfied = |policy: &Policy| policy.evaluate_identities(&endorsers).is_ok();
        Ok(check_endorsements(invoked.name, set, policies, Some(&*self), is_satisfied).err().unwrap_or(Code::VALID))
    }

    /// Finds the policies of all keys that a transaction writes.
    async fn look_up(&mut self, set: &ReadWriteSet, view: &BlockStateView) -> Result<(), state::Error> {
        for namespace in &set.namespaces {
            let contract = set.name(namespace);
            for (collection, key) in set.written_keys(namespace) {
                let place = (contract.to_owned(), collection.to_owned(), key.into_owned());
                if self.known.contains_key(&place) {
                    continue;
                }
                let row = view.get(&namespace::metadata_of(contract, collection), &place.2).await?;
                let policy = row.and_then(|row| key_policy(row.value));
                self.known.insert(place, policy);
            }
        }
        Ok(())
    }

    /// Notes the keys whose policies a transaction changes, whose endorsements satisfied all policies.
    pub fn note_changes(&mut self, set: &ReadWriteSet) {
        if !set.may_depend_on_state() {
            return;
        }
        for namespace in &set.namespaces {
            let contract = set.name(namespace);
            for (collection, key) in set.metadata_keys(namespace) {
                self.changed_collections.insert((contract.to_owned(), collection.to_owned()));
                self.changed.insert((contract.to_owned(), collection.to_owned(), key.into_owned()));
            }
        }
    }
}

impl KeyPolicies for BlockKeyPolicies {
    fn policy(&self, namespace: &str, collection: &str, key: &str) -> Option<&Policy> {
        let place = (namespace.to_owned(), collection.to_owned(), key.to_owned());
        if self.changed.contains(&place) {
            return Some(&Policy::Missing);
        }
        self.known.get(&place)?.as_ref()
    }
}

/// The policy in a key's metadata, if there is one.
fn key_policy(metadata: Bytes) -> Option<Policy> {
    // What stands in the state was encoded by peers of this organisation.
    let entries = KvMetadataWrite::decode(metadata).map(|metadata| metadata.entries).unwrap_or_default();
    let parameter = entries.into_iter().rfind(|entry| entry.name == VALIDATION_PARAMETER)?.value;
    if parameter.is_empty() {
        return None;
    }
    Some(SignaturePolicy::decode(&parameter).map_or(Policy::Missing, Policy::from))
}
