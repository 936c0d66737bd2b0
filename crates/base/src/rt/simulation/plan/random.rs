//! Plans by chance.

use std::ops::Range;
use std::time::Duration;

use super::super::chance::Chance;
use super::super::clock::CLOCK_DRIFT_PPM_MAX;
use super::{Fault, Plan, Step};

/// What sorts of faults a plan by chance may have.
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
    /// A clock goes fast or slow, and then right again.
    Drift,
}

/// Within what a plan by chance stays.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Nodes that faults may strike.
    pub nodes: Vec<String>,
    /// Kinds of faults, drawn evenly; a kind may stand here twice.
    pub kinds: Vec<FaultKind>,
    /// Faults.
    pub faults: usize,
    /// When faults happen.
    pub within: Range<Duration>,
    /// How long they last.
    pub lasting: Range<Duration>,
    /// Nodes that may be down or paused at the same time.
    pub down_max: usize,
}

impl Default for Bounds {
    /// No nodes yet; five crashes, pauses, cuts and breaks in the first ten seconds, of up to two seconds, one node down
    /// at a time.
    fn default() -> Self {
        Bounds {
            nodes: Vec::new(),
            kinds: vec![FaultKind::Crash, FaultKind::Pause, FaultKind::Cut, FaultKind::Break],
            faults: 5,
            within: Duration::from_millis(100)..Duration::from_secs(10),
            lasting: Duration::from_millis(10)..Duration::from_secs(2),
            down_max: 1,
        }
    }
}

/// How often a fault that does not fit beside the others is drawn anew, before the plan goes without it.
const DRAWS_MAX: usize = 32;

pub(super) fn random(seed: u64, bounds: &Bounds) -> Plan {
    let mut chance = Chance::new(seed);
    let mut plan = Plan::default();
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
            let kind = *chance.pick(&kinds);
            let step = draw(&mut chance, kind, bounds);
            if fits(&plan, &step, bounds.down_max) {
                plan.steps.push(step);
                break;
            }
        }
    }
    plan.steps.sort_by_key(|step| step.at);
    plan
}

fn draw(chance: &mut Chance, kind: FaultKind, bounds: &Bounds) -> Step {
    let node = chance.pick(&bounds.nodes).clone();
    let mut other = || {
        let others: Vec<&String> = bounds.nodes.iter().filter(|other| **other != node).collect();
        (*chance.pick(&others)).clone()
    };
    let fault = match kind {
        FaultKind::Crash => Fault::Crash(node),
        FaultKind::Pause => Fault::Pause(node),
        FaultKind::Cut => {
            let other = other();
            if chance.one_in(3) { Fault::Mute(node, other) } else { Fault::Cut(node, other) }
        }
        FaultKind::Break => {
            let other = other();
            Fault::Break(node, other)
        }
        FaultKind::Fill => Fault::Fill(node),
        FaultKind::Fail => Fault::Fail(node),
        FaultKind::Rot => Fault::Rot(node),
        FaultKind::Drift => {
            let ppm = 1 + chance.below(CLOCK_DRIFT_PPM_MAX.unsigned_abs()) as i64;
            Fault::Drift(node, if chance.one_in(2) { ppm } else { -ppm })
        }
    };
    // Whole microseconds keep the text short.
    let whole = |time: Duration| Duration::from_micros(time.as_micros() as u64);
    let at = whole(chance.duration(&bounds.within));
    let lasting = fault.undone_by().map(|_| whole(chance.duration(&bounds.lasting)));
    Step { at, fault, lasting }
}

/// The time during which a step has its effect.
fn span(step: &Step) -> Range<Duration> {
    step.at..step.at + step.lasting.unwrap_or_default()
}

fn overlap(one: &Step, other: &Step) -> bool {
    span(one).start <= span(other).end && span(other).start <= span(one).end
}

/// The node that a step takes down, if it does.
fn down(step: &Step) -> Option<&str> {
    match &step.fault {
        Fault::Crash(node) | Fault::Pause(node) => Some(node),
        _ => None,
    }
}

/// Whether a step leaves enough nodes up, and does not meet one whose undoing would undo it too.
fn fits(plan: &Plan, step: &Step, down_max: usize) -> bool {
    let meeting: Vec<&Step> = plan.steps.iter().filter(|other| overlap(step, other)).collect();
    if let Some(node) = down(step) {
        let down_then: Vec<&str> = meeting.iter().filter_map(|other| down(other)).collect();
        // Counts steps that meet this one, even where they do not meet one another: on the safe side.
        if down_then.len() >= down_max || down_then.contains(&node) {
            return false;
        }
    }
    let undone = |step: &Step| {
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
            let bounds = Bounds { nodes, down_max, faults, ..Bounds::default() };
            let plan = Plan::random(seed, &bounds);
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
        let bounds = Bounds { nodes: vec!["a".into(), "b".into()], ..Bounds::default() };
        assert_eq!(Plan::random(3, &bounds), Plan::random(3, &bounds));
        assert_ne!(Plan::random(3, &bounds), Plan::random(4, &bounds));
        assert!(!Plan::random(3, &bounds).steps.is_empty());
    }
}
