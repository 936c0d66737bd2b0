//! The endorsement policies of single keys (Fabric's state-based endorsement), which the keys' metadata hold.
//!
//! 1. [`KnownRows`] remembers, for each contract and collection, whether any of its keys may have metadata. Most have
//!    none; then the verdict that [`crate::verify`] reached ahead of time is final.
//! 2. Otherwise, in the order of the block, the endorsements of a transaction are checked again
//!    ([`crate::endorsement`]), with the policies that the keys it writes had before the block
//!    ([`BlockKeyPolicies::check`]).
//! 3. If a transaction's endorsements satisfy all policies, the keys whose metadata it writes are noted
//!    ([`BlockKeyPolicies::note_changes`]). Until the end of the block, no endorsements satisfy the policies of these
//!    keys.
//!
//! If the policy of a key cannot be decoded, no endorsements satisfy it. A Fabric peer stops the channel in this case.

use base::{Bytes, Map, Set, rt};
use identity::Policy;
use identity::policy::SignaturePolicy;
use ledger::Code;
use ledger::namespace;
use ledger::rwset::ReadWriteSet;
use rules::access::ChannelPolicies;

use crate::endorsement::{KeyPolicies, check_endorsements};
use crate::known_rows::KnownRows;
use crate::verify::{VerifiedTransaction, genuine_endorsers};
use crate::view::BlockStateView;

type KeyOfCollection = (String, String, String);

/// The policies of the keys that one block writes.
#[derive(Debug, Default)]
pub struct BlockKeyPolicies {
    /// The policies that were looked up; `None` for keys without one.
    known: Map<KeyOfCollection, Option<Policy>>,
    /// The keys whose metadata an earlier transaction of the block writes.
    changed: Set<KeyOfCollection>,
    /// The contracts and collections of the keys in `changed`.
    changed_collections: Set<(String, String)>,
}

impl BlockKeyPolicies {
    /// Repeats step 10 with the policies of the keys that the transaction writes, if that can change the result. `code`
    /// is the result of steps 8 to 10 without them.
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
        let Some(endorsers) = genuine_endorsers(&envelope(), transaction, policies) else {
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

    /// Notes the keys whose policies a transaction changes. Its endorsements must have satisfied all policies.
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
    let policy = rules::interest::key_policy(metadata)?;
    Some(SignaturePolicy::decode(&policy).map_or(Policy::Missing, Policy::from))
}
