//! Draws random fault plans from a seed, within given limits.

use std::ops::Range;
use std::time::Duration;

use super::super::clock::CLOCK_DRIFT_PPM_MAX;
use super::super::rng::Prng;
use super::{Fault, FaultPlan, FaultStep};

/// Kinds of faults in a random plan.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum FaultKind {
    /// A node crashes, and restarts.
    Crash,
    /// A node pauses, and resumes.
    Pause,
    /// Two nodes are cut off from one another, one way or both ways, and healed.
    Cut,
    /// Links between two nodes break.
    Break,
    /// A disk is full, and freed.
    Fill,
    /// A disk fails, and is mended.
    Fail,
    /// A disk loses a bit.
    Rot,
    /// A clock runs fast or slow, and then right again.
    Drift,
}

/// Bounds of a random plan.
#[derive(Clone, Debug)]
pub struct FaultPlanLimits {
    /// Nodes that may have faults.
    pub nodes: Vec<String>,
    /// Kinds of faults, drawn evenly; a kind may be listed twice.
    pub kinds: Vec<FaultKind>,
    /// Number of faults.
    pub faults: usize,
    /// When faults happen.
    pub within: Range<Duration>,
    /// How long they last.
    pub lasting: Range<Duration>,
    /// Nodes that may be down or paused at the same time.
    pub down_max: usize,
}

impl Default for FaultPlanLimits {
    /// No nodes yet; five crashes, pauses, cuts and breaks in the first ten seconds, of up to two seconds, one node down at a
    /// time.
    fn default() -> Self {
        FaultPlanLimits {
            nodes: Vec::new(),
            kinds: vec![FaultKind::Crash, FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 5,
            within: Duration::from_millis(100)..Duration::from_secs(10),
            lasting: Duration::from_millis(10)..Duration::from_secs(2),
            down_max: 1,
        }
    }
}

/// How often a fault that conflicts with others is drawn again, before the plan omits it.
const DRAWS_MAX: usize = 32;

impl FaultPlan {
    /// A random plan, within bounds. Every fault that can be undone is undone in time.
    pub fn random(seed: u64, bounds: &FaultPlanLimits) -> FaultPlan {
        random(seed, bounds)
    }
}

fn random(seed: u64, bounds: &FaultPlanLimits) -> FaultPlan {
    let mut rng = Prng::new(seed);
    let mut plan = FaultPlan::default();
    let possible = |kind: &&FaultKind| match kind {
        FaultKind::Cut | FaultKind::Break => bounds.nodes.len() >= 2,
        FaultKind::Crash | FaultKind::Pause => bounds.down_max >= 1,
        FaultKind::Fill | FaultKind::Fail | FaultKind::Rot | FaultKind::Drift => true,
    };
    let kinds: Vec<FaultKind> = bounds.kinds.iter().filter(possible).copied().collect();
    if kinds.is_empty() || bounds.nodes.is_empty() {
        return plan;
    }
    for _ in 0..bounds.faults {
        for _ in 0..DRAWS_MAX {
            let kind = *rng.pick(&kinds);
            let step = draw(&mut rng, kind, bounds);
            if fits(&plan, &step, bounds.down_max) {
                plan.steps.push(step);
                break;
            }
        }
    }
    plan.steps.sort_by_key(|step| step.at);
    plan
}

fn draw(rng: &mut Prng, kind: FaultKind, bounds: &FaultPlanLimits) -> FaultStep {
    let node = rng.pick(&bounds.nodes).clone();
    let mut other = || {
        let others: Vec<&String> = bounds.nodes.iter().filter(|other| **other != node).collect();
        (*rng.pick(&others)).clone()
    };
    let fault = match kind {
        FaultKind::Crash => Fault::Crash(node),
        FaultKind::Pause => Fault::Pause(node),
        FaultKind::Cut => {
            let other = other();
            if rng.one_in(3) { Fault::Mute(node, other) } else { Fault::Cut(node, other) }
        }
        FaultKind::Break => {
            let other = other();
            Fault::Break(node, other)
        }
        FaultKind::Fill => Fault::Fill(node),
        FaultKind::Fail => Fault::Fail(node),
        FaultKind::Rot => Fault::Rot(node),
        FaultKind::Drift => {
            let ppm = 1 + rng.below(CLOCK_DRIFT_PPM_MAX.unsigned_abs()) as i64;
            Fault::Drift(node, if rng.one_in(2) { ppm } else { -ppm })
        }
    };
    // Whole microseconds keep the text short.
    let whole = |time: Duration| Duration::from_micros(time.as_micros() as u64);
    let at = whole(rng.duration(&bounds.within));
    let lasting = fault.undone_by().map(|_| whole(rng.duration(&bounds.lasting)));
    FaultStep { at, fault, lasting }
}

/// The time during which a step has an effect.
fn span(step: &FaultStep) -> Range<Duration> {
    step.at..step.at + step.lasting.unwrap_or_default()
}

fn overlap(one: &FaultStep, other: &FaultStep) -> bool {
    span(one).start <= span(other).end && span(other).start <= span(one).end
}

/// The node that a step takes down, if it takes one down.
fn down(step: &FaultStep) -> Option<&str> {
    match &step.fault {
        Fault::Crash(node) | Fault::Pause(node) => Some(node),
        _ => None,
    }
}

/// Whether a step leaves enough nodes up, and does not overlap with one whose undoing would undo it too.
fn fits(plan: &FaultPlan, step: &FaultStep, down_max: usize) -> bool {
    let meeting: Vec<&FaultStep> = plan.steps.iter().filter(|other| overlap(step, other)).collect();
    if let Some(node) = down(step) {
        let down_then: Vec<&str> = meeting.iter().filter_map(|other| down(other)).collect();
        // Also counts steps that overlap this one but not one another, which errs on the safe side.
        if down_then.len() >= down_max || down_then.contains(&node) {
            return false;
        }
    }
    let undone = |step: &FaultStep| {
        step.fault.undone_by().map(|fault| match fault {
            Fault::Heal(one, other) if one > other => Fault::Heal(other, one),
            fault => fault,
        })
    };
    !meeting.iter().any(|other| undone(step).is_some() && undone(other) == undone(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn random_plans_stay_within_their_bounds(seed: u64, down_max in 0usize..3, faults in 0usize..20) {
            let nodes = ["a", "b", "c", "d"].map(String::from).to_vec();
            let bounds = FaultPlanLimits { nodes, down_max, faults, ..FaultPlanLimits::default() };
            let plan = FaultPlan::random(seed, &bounds);
            prop_assert!(plan.steps.len() <= faults);
            let mut down = std::collections::BTreeSet::new();
            for (_, fault) in plan.timeline() {
                match fault {
                    Fault::Crash(node) | Fault::Pause(node) => prop_assert!(down.insert(node)),
                    Fault::Restart(node) | Fault::Resume(node) => prop_assert!(down.remove(&node)),
                    _ => {}
                }
                prop_assert!(down.len() <= down_max);
            }
            prop_assert!(down.is_empty());
            for step in &plan.steps {
                prop_assert!(bounds.within.contains(&step.at) || step.at < bounds.within.end);
                prop_assert_eq!(step.lasting.is_some(), step.fault.undone_by().is_some());
            }
        }
    }

    #[test]
    fn a_seed_gives_one_plan() {
        let bounds = FaultPlanLimits { nodes: vec!["a".into(), "b".into()], ..FaultPlanLimits::default() };
        assert_eq!(FaultPlan::random(3, &bounds), FaultPlan::random(3, &bounds));
        assert_ne!(FaultPlan::random(3, &bounds), FaultPlan::random(4, &bounds));
        assert!(!FaultPlan::random(3, &bounds).steps.is_empty());
    }
}
