//! Step 10 of validation: checks that the endorsements of a transaction satisfy every policy that applies to it.
//!
//! The rules are those of Fabric's validation plugin, version 2.0:
//! 1. The namespace of the invoked contract is checked, and every other namespace that the transaction writes to. If
//!    the channel does not define one of these contracts, the transaction is invalid with [`Code::INVALID_CHAINCODE`].
//! 2. In each of these namespaces every write is checked: of values and of metadata, public and hashed. If the key has
//!    a policy in its metadata, that policy applies; otherwise the policy of its collection, or of the contract if the
//!    key is public.
//! 3. If rule 2 checked no policy in a namespace, the contract's policy is checked. So a transaction that writes
//!    nothing needs the contract's policy, and one that writes only keys with policies of their own does not.
//! 4. A key's policy is the one in the state before the block. Suppose that a transaction of the block writes the key's
//!    metadata and its endorsements satisfy all policies. Then every later write to that key in the block fails its
//!    policy, even if the earlier transaction turns out to be invalid for another reason.
//!
//! The policies of keys are in the state, so they are looked up in the order of blocks ([`crate::key_policies`]). If no
//! key of a namespace has metadata, its checks need only the transaction.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use identity::Policy;
use ledger::Code;
use ledger::rwset::{NamespaceReadWriteSet, ReadWriteSet};
use rules::access::ChannelPolicies;
use rules::definitions::ContractRules;

/// The policies of the keys that a transaction writes.
pub trait KeyPolicies {
    /// The key's own policy; `None` if it has none. For a public key `collection` is empty; in a collection, `key` is
    /// the key's hash in hexadecimal.
    fn policy(&self, namespace: &str, collection: &str, key: &str) -> Option<&Policy>;
}

/// Checks a transaction that invoked the contract `invoked`. `is_satisfied` decides whether the endorsements satisfy a
/// policy. `keys` is `None` if no key that the transaction writes is known to have a policy of its own.
pub fn check_endorsements(
    invoked: &str,
    set: &ReadWriteSet,
    policies: &ChannelPolicies,
    keys: Option<&dyn KeyPolicies>,
    mut is_satisfied: impl FnMut(&Policy) -> bool,
) -> Result<(), Code> {
    let of_invoked = set.namespaces.iter().find(|namespace| set.name(namespace) == invoked);
    let written =
        set.namespaces.iter().filter(|namespace| namespace.writes_anything() && set.name(namespace) != invoked);
    let checked =
        [(invoked, of_invoked)].into_iter().chain(written.map(|namespace| (set.name(namespace), Some(namespace))));
    for (name, namespace) in checked {
        let rules = policies.contract_rules(name).ok_or(Code::INVALID_CHAINCODE)?;
        let namespace = NamespaceWrites { name, set, namespace, rules, policies };
        if !namespace.are_endorsed(keys, &mut is_satisfied) {
            return Err(Code::ENDORSEMENT_POLICY_FAILURE);
        }
    }
    Ok(())
}

/// What a transaction writes in one namespace.
struct NamespaceWrites<'a> {
    name: &'a str,
    set: &'a ReadWriteSet,
    /// `None` if the set does not name the namespace.
    namespace: Option<&'a NamespaceReadWriteSet>,
    rules: &'a ContractRules,
    policies: &'a ChannelPolicies,
}

impl<'a> NamespaceWrites<'a> {
    /// Rules 2 and 3.
    fn are_endorsed(&self, keys: Option<&dyn KeyPolicies>, is_satisfied: &mut impl FnMut(&Policy) -> bool) -> bool {
        // The collections whose policies are satisfied; the empty name stands for the contract.
        let mut satisfied: Vec<&str> = Vec::new();
        let mut was_any_checked = false;
        if let Some(namespace) = self.namespace {
            let Some(keys) = keys else {
                for collection in self.set.written_collections(namespace) {
                    if !self.is_collection_endorsed(collection, &mut satisfied, is_satisfied) {
                        return false;
                    }
                }
                return !satisfied.is_empty() || is_satisfied(&self.rules.endorsement);
            };
            for (collection, key) in self.set.written_keys(namespace) {
                let is_endorsed = match keys.policy(self.name, collection, &key) {
                    Some(policy) => is_satisfied(policy),
                    None => self.is_collection_endorsed(collection, &mut satisfied, is_satisfied),
                };
                if !is_endorsed {
                    return false;
                }
                was_any_checked = true;
            }
        }
        was_any_checked || is_satisfied(&self.rules.endorsement)
    }

    /// Checks the policy of a collection, or of the contract if `collection` is empty. A policy in `satisfied` is not
    /// evaluated again.
    fn is_collection_endorsed(
        &self,
        collection: &'a str,
        satisfied: &mut Vec<&'a str>,
        is_satisfied: &mut impl FnMut(&Policy) -> bool,
    ) -> bool {
        if satisfied.contains(&collection) {
            return true;
        }
        let is_endorsed = match collection {
            "" => is_satisfied(&self.rules.endorsement),
            _ => {
                let policy = self.rules.collection_policy(collection, self.policies.config());
                policy.is_some_and(|policy| is_satisfied(&policy))
            }
        };
        if is_endorsed {
            satisfied.push(collection);
        }
        is_endorsed
    }
}
