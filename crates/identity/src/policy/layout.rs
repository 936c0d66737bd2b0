//! Layouts: how many signers of each organisation a gateway must ask so that a policy holds.
//!
//! Layouts are computed from the leaves up:
//! * A leaf takes one signer of its organisation.
//! * A gate adds up the counts of the rules that it combines, because two rules of a gate cannot use the same signer.
//! * An implicit meta policy takes, for each organisation, the largest count in the policies that it combines, because
//!   all of them may use the same signers.
//! * A layout is dropped if a different layout asks every organisation for at most as many signers. Of equal layouts
//!   one is kept. Beyond [`LAYOUTS_MAX`] layouts the largest are dropped.
//!
//! Only principals that a peer can satisfy are considered. The gateway checks whether enough peers exist.

use std::collections::BTreeMap;

use base::MspId;

use super::signature::SignatureRule;
use super::{Policy, SignaturePolicy};
use crate::principal::{MemberRole, Principal};

/// How many layouts are kept, at the end and at every step on the way.
pub const LAYOUTS_MAX: usize = 128;
/// How many times two layouts are joined within one budget, before the search ends with the layouts found so far.
const JOINS_MAX: usize = 128 * 1024;

/// How many signers of each organisation.
pub type EndorsementLayout = BTreeMap<MspId, usize>;

impl Policy {
    /// The smallest choices of organisations whose peers could satisfy the policy, at most [`LAYOUTS_MAX`] of them, each
    /// with how many signers of each organisation it takes. Empty when peers alone cannot satisfy it.
    pub fn layouts(&self) -> Vec<EndorsementLayout> {
        self.layouts_within(&mut LayoutBudget::default())
    }

    /// As [`Policy::layouts`], for several policies whose search must not take longer than that for one. Layouts are missing
    /// once the budget is used up.
    pub fn layouts_within(&self, budget: &mut LayoutBudget) -> Vec<EndorsementLayout> {
        budget.of_policy(self)
    }
}

/// How far searches for layouts may go.
#[derive(Debug)]
pub struct LayoutBudget {
    joins_left: usize,
}

impl Default for LayoutBudget {
    /// Enough for any policy with few organisations.
    fn default() -> LayoutBudget {
        LayoutBudget { joins_left: JOINS_MAX }
    }
}

impl LayoutBudget {
    fn of_policy(&mut self, policy: &Policy) -> Vec<EndorsementLayout> {
        match policy {
            Policy::Signature(policy) => self.of_rule(policy, policy.rule()),
            Policy::ImplicitMeta(meta) => {
                let below: Vec<_> = meta.below().iter().map(|policy| self.of_policy(policy)).collect();
                self.combine(&below, meta.threshold(), usize::max)
            }
            Policy::Missing => Vec::new(),
        }
    }

    fn of_rule(&mut self, policy: &SignaturePolicy, rule: &SignatureRule) -> Vec<EndorsementLayout> {
        match rule {
            SignatureRule::SignedBy(position) => {
                let principal = &policy.principals()[*position];
                let of_peer = principal.msp().filter(|_| may_be_peer(principal));
                of_peer.map(|msp| EndorsementLayout::from([(msp.clone(), 1)])).into_iter().collect()
            }
            SignatureRule::OutOf(n, rules) => {
                let below: Vec<_> = rules.iter().map(|rule| self.of_rule(policy, rule)).collect();
                self.combine(&below, usize::try_from(*n).unwrap_or(0), |count, other| count + other)
            }
        }
    }

    /// All choices of `n` parts, and of one layout from each of them, with counts of one organisation joined by `join`.
    fn combine(
        &mut self,
        parts: &[Vec<EndorsementLayout>],
        n: usize,
        join: impl Fn(usize, usize) -> usize,
    ) -> Vec<EndorsementLayout> {
        if n > parts.len() {
            return Vec::new();
        }
        // chosen[k] holds the layouts of choices of k parts among those seen so far.
        let mut chosen: Vec<Vec<EndorsementLayout>> = vec![Vec::new(); n + 1];
        chosen[0].push(EndorsementLayout::new());
        for part in parts.iter().filter(|part| !part.is_empty()) {
            // Downwards, so that the part is chosen at most once.
            for k in (0..n).rev() {
                let pairs = chosen[k].iter().flat_map(|have| part.iter().map(move |add| (have, add)));
                let joined: Vec<_> = pairs.take(self.joins_left).map(|(have, add)| joined(have, add, &join)).collect();
                if joined.is_empty() {
                    continue;
                }
                self.joins_left -= joined.len();
                let kept = std::mem::take(&mut chosen[k + 1]);
                chosen[k + 1] = smallest(kept.into_iter().chain(joined).collect());
            }
        }
        chosen.swap_remove(n)
    }
}

fn may_be_peer(principal: &Principal) -> bool {
    match principal {
        Principal::Role(_, role) => matches!(role, MemberRole::Member | MemberRole::Peer),
        Principal::OrganizationalUnit { .. } | Principal::Identity(..) => true,
        Principal::Combined(all) => all.iter().all(|part| matches!(part, Principal::Nominal) || may_be_peer(part)),
        Principal::Nominal | Principal::Nobody => false,
    }
}

fn joined(a: &EndorsementLayout, b: &EndorsementLayout, join: &impl Fn(usize, usize) -> usize) -> EndorsementLayout {
    let mut both = a.clone();
    for (msp, count) in b {
        let sum = both.entry(msp.clone()).or_insert(0);
        *sum = join(*sum, *count);
    }
    both
}

/// The layouts that need less than every other in something, fewest signers first.
fn smallest(layouts: Vec<EndorsementLayout>) -> Vec<EndorsementLayout> {
    let signers = |layout: &EndorsementLayout| layout.values().sum::<usize>();
    let mut sized: Vec<(usize, EndorsementLayout)> =
        layouts.into_iter().map(|layout| (signers(&layout), layout)).collect();
    sized.sort_unstable();
    sized.dedup();
    let mut kept: Vec<(usize, EndorsementLayout)> = Vec::new();
    for (size, layout) in sized {
        if kept.len() == LAYOUTS_MAX {
            break;
        }
        // Of two layouts with equally many signers neither is contained in the other.
        let mut smaller = kept.iter().take_while(|(other, _)| *other < size);
        if !smaller.any(|(_, other)| needs_no_more(other, &layout)) {
            kept.push((size, layout));
        }
    }
    kept.into_iter().map(|(_, layout)| layout).collect()
}

fn needs_no_more(smaller: &EndorsementLayout, larger: &EndorsementLayout) -> bool {
    smaller.iter().all(|(msp, count)| larger.get(msp).is_some_and(|other| count <= other))
}
