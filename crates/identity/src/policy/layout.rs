//! Which organisations a gateway must ask so that a policy holds.
//!
//! A layout counts signers by organisation. Layouts are built bottom up: a leaf takes one signer of its organisation; a
//! gate adds up the layouts of the rules it combines, since a signer counts once; an implicit meta policy takes for each
//! organisation the largest count of the policies it combines, since each of them sees all signers. Layouts that need no
//! less than another are dropped, and so are, beyond a bound, the largest.
//!
//! Only principals that a peer can satisfy count. Whether there are so many peers is left to the gateway.

use std::collections::BTreeMap;

use base::MspId;

use super::Policy;
use super::SignaturePolicy;
use super::signature::Rule;
use crate::principal::{Principal, Role};

/// How many layouts are kept, at the end and at every step on the way.
pub const LAYOUTS_MAX: usize = 128;
/// How many times two layouts are joined for one policy, before the search settles for what it has found.
const JOINS_MAX: usize = 128 * 1024;

/// How many signers of each organisation.
pub type Layout = BTreeMap<MspId, usize>;

pub(super) fn layouts(policy: &Policy) -> Vec<Layout> {
    Search { joins_left: JOINS_MAX }.of_policy(policy)
}

struct Search {
    joins_left: usize,
}

impl Search {
    fn of_policy(&mut self, policy: &Policy) -> Vec<Layout> {
        match policy {
            Policy::Signature(policy) => self.of_rule(policy, policy.rule()),
            Policy::ImplicitMeta(meta) => {
                let below: Vec<_> = meta.below().iter().map(|policy| self.of_policy(policy)).collect();
                self.combine(&below, meta.threshold(), usize::max)
            }
            Policy::Missing => Vec::new(),
        }
    }

    fn of_rule(&mut self, policy: &SignaturePolicy, rule: &Rule) -> Vec<Layout> {
        match rule {
            Rule::SignedBy(position) => {
                let principal = &policy.principals()[*position];
                let of_peer = principal.msp().filter(|_| may_be_peer(principal));
                of_peer.map(|msp| Layout::from([(msp.clone(), 1)])).into_iter().collect()
            }
            Rule::OutOf(n, rules) => {
                let below: Vec<_> = rules.iter().map(|rule| self.of_rule(policy, rule)).collect();
                self.combine(&below, usize::try_from(*n).unwrap_or(0), |count, other| count + other)
            }
        }
    }

    /// All choices of `n` parts, and of one layout from each of them, with counts of one organisation joined by `join`.
    fn combine(&mut self, parts: &[Vec<Layout>], n: usize, join: impl Fn(usize, usize) -> usize) -> Vec<Layout> {
        if n > parts.len() {
            return Vec::new();
        }
        // chosen[k] holds the layouts of choices of k parts among those seen so far.
        let mut chosen: Vec<Vec<Layout>> = vec![Vec::new(); n + 1];
        chosen[0].push(Layout::new());
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
        Principal::Role(_, role) => matches!(role, Role::Member | Role::Peer),
        Principal::OrganizationalUnit { .. } | Principal::Identity(..) => true,
        Principal::Combined(all) => all.iter().all(|part| matches!(part, Principal::Nominal) || may_be_peer(part)),
        Principal::Nominal | Principal::Nobody => false,
    }
}

fn joined(a: &Layout, b: &Layout, join: &impl Fn(usize, usize) -> usize) -> Layout {
    let mut both = a.clone();
    for (msp, count) in b {
        let sum = both.entry(msp.clone()).or_insert(0);
        *sum = join(*sum, *count);
    }
    both
}

/// The layouts that need less than every other in something, fewest signers first.
fn smallest(layouts: Vec<Layout>) -> Vec<Layout> {
    let signers = |layout: &Layout| layout.values().sum::<usize>();
    let mut sized: Vec<(usize, Layout)> = layouts.into_iter().map(|layout| (signers(&layout), layout)).collect();
    sized.sort_unstable();
    sized.dedup();
    let mut kept: Vec<(usize, Layout)> = Vec::new();
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

fn needs_no_more(smaller: &Layout, larger: &Layout) -> bool {
    smaller.iter().all(|(msp, count)| larger.get(msp).is_some_and(|other| count <= other))
}
