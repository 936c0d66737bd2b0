//! Layouts: the endorsers to ask.
//!
//! A layout is a set of endorsers whose endorsements together satisfy a contract's policy. The layouts of a contract
//! are computed at its first proposal, and again at its first proposal after the channel's policies have changed.
//!
//! A transaction that writes to several contracts or collections, or to keys with policies of their own, needs a layout for
//! each policy; one endorsement counts for all.

use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

use base::{ChannelId, Map, MspId};
use identity::policy::EndorsementLayout;
use ledger::Hash;
use rules::access::ChannelPolicies;

/// The layouts of one policy: each a list of indexes into the list of endorsers, where index 0 is the local one.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct EndorsementPlan {
    layouts: Vec<Vec<usize>>,
    /// The number of equally good layouts at the beginning.
    equals_count: usize,
}

/// A plan, and the digest of the policies from which it was computed.
struct CachedPlan {
    policies: Hash,
    plan: Arc<EndorsementPlan>,
}

/// The plans computed so far; at most one per contract and collection of each channel.
#[derive(Default)]
pub(super) struct EndorsementPlanCache {
    plans: RwLock<Map<(ChannelId, String, String), CachedPlan>>,
}

impl EndorsementPlanCache {
    /// The plan for writes to a collection of a contract, or to the contract's public keys if `collection` is empty.
    /// `None` if the policies have no such contract or collection.
    pub(super) fn get(
        &self,
        policies: &ChannelPolicies,
        contract: &str,
        collection: &str,
        endorsers: &[&MspId],
    ) -> Option<Arc<EndorsementPlan>> {
        let key = (policies.channel().clone(), contract.to_owned(), collection.to_owned());
        match self.plans.read().expect("no holder of this lock panics").get(&key) {
            Some(cached) if cached.policies == *policies.digest() => return Some(Arc::clone(&cached.plan)),
            _ => {}
        }
        let rules = policies.contract_rules(contract)?;
        let plan = Arc::new(match collection {
            "" => EndorsementPlan::new(rules.endorsement.layouts(), endorsers),
            _ => EndorsementPlan::new(rules.collection_policy(collection, policies.config())?.layouts(), endorsers),
        });
        let computed = CachedPlan { policies: *policies.digest(), plan: Arc::clone(&plan) };
        self.plans.write().expect("no holder of this lock panics").insert(key, computed);
        Some(plan)
    }
}

impl EndorsementPlan {
    /// Layouts with the local endorser come first, then smaller ones. Layouts that need an organisation without an endorser
    /// here are left out.
    pub(super) fn new(layouts: Vec<EndorsementLayout>, endorsers: &[&MspId]) -> EndorsementPlan {
        let place = |msp_id: &MspId| endorsers.iter().position(|other| *other == msp_id);
        let mut layouts: Vec<Vec<usize>> = layouts
            .into_iter()
            .filter_map(|layout| {
                let needed = layout.into_iter().filter(|(_, count)| *count > 0);
                // There is one endorser per organisation.
                let mut places = needed
                    .map(|(msp_id, count)| if count > 1 { None } else { place(&msp_id) })
                    .collect::<Option<Vec<_>>>()?;
                places.sort_unstable();
                Some(places)
            })
            .collect();
        let rank = |layout: &Vec<usize>| (!layout.contains(&0), layout.len());
        layouts.sort_by_key(rank);
        let equals = layouts.iter().take_while(|layout| rank(layout) == rank(&layouts[0])).count();
        EndorsementPlan { layouts, equals_count: equals }
    }

    /// The layouts, best first; `turn` decides which of the equally good ones comes first.
    pub(super) fn in_turn(&self, turn: usize) -> impl Iterator<Item = &[usize]> {
        let (best, rest) = self.layouts.split_at(self.equals_count);
        let (later, first) = best.split_at(if best.is_empty() { 0 } else { turn % best.len() });
        first.iter().chain(later).chain(rest).map(Vec::as_slice)
    }

    /// The first layout in turn that contains none of `failed`.
    pub(super) fn first(&self, turn: usize, failed: &BTreeSet<usize>) -> Option<Vec<usize>> {
        self.in_turn(turn).find(|layout| !layout.iter().any(|place| failed.contains(place))).map(<[usize]>::to_vec)
    }

    /// The layout that adds the fewest endorsers to `chosen` and none of `failed`; `turn` decides between equally good ones.
    pub(super) fn least_added(
        &self,
        turn: usize,
        chosen: &BTreeSet<usize>,
        failed: &BTreeSet<usize>,
    ) -> Option<&[usize]> {
        self.in_turn(turn)
            .filter(|layout| layout.iter().all(|place| !failed.contains(place)))
            .min_by_key(|layout| layout.iter().filter(|place| !chosen.contains(place)).count())
    }

    /// The number of sets of endorsers that satisfy the policy.
    pub(super) fn layouts_count(&self) -> usize {
        self.layouts.len()
    }

    /// Whether a set of endorsers without any of `excluded` satisfies the policy.
    pub(super) fn is_possible(&self, excluded: &BTreeSet<usize>) -> bool {
        self.layouts.iter().any(|layout| layout.iter().all(|place| !excluded.contains(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::Policy;
    use identity::policy::{SignaturePolicy, parse};

    fn layouts(text: &str) -> Vec<EndorsementLayout> {
        Policy::from(SignaturePolicy::compile(&parse(text).expect("a policy")).expect("a policy")).layouts()
    }

    /// The layouts of a policy at the gateway of A, which also knows B and C.
    fn show(text: &str, turn: usize) -> String {
        let names = ["A", "B", "C"];
        let endorsers = names.map(MspId::from);
        let plan = EndorsementPlan::new(layouts(text), &endorsers.each_ref());
        let show = |layout: &[usize]| layout.iter().map(|place| names[*place]).collect::<Vec<_>>().join("+");
        plan.in_turn(turn).map(show).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn layouts_with_the_local_organisation_come_first_and_take_turns() {
        assert_eq!(show("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", 0), "A+B A+C B+C");
        assert_eq!(show("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", 1), "A+C A+B B+C");
        assert_eq!(show("OutOf(2, 'A.peer', 'B.peer', 'C.peer')", 2), "A+B A+C B+C");
        assert_eq!(show("OR('B.peer', AND('A.peer', 'C.peer'))", 0), "A+C B");
    }

    #[test]
    fn layouts_that_nobody_can_fill_are_left_out() {
        assert_eq!(show("OR('D.peer', 'B.peer')", 7), "B");
        assert_eq!(show("AND('A.peer', 'A.peer')", 0), "");
        assert_eq!(show("AND('D.peer', 'A.peer')", 0), "");
    }

    #[test]
    fn a_second_contract_adds_as_few_endorsers_as_it_can() {
        let endorsers = ["A", "B", "C"].map(MspId::from);
        let layouts = layouts("OutOf(2, 'A.peer', 'B.peer', 'C.peer')");
        let plan = EndorsementPlan::new(layouts, &endorsers.each_ref());
        assert_eq!(plan.least_added(0, &[1, 2].into(), &[].into()), Some(&[1, 2][..]));
        assert_eq!(plan.least_added(0, &[2].into(), &[0].into()), Some(&[1, 2][..]));
        assert_eq!(plan.least_added(0, &[].into(), &[0, 1].into()), None);
    }
}
