//! A fault plan: which faults strike which nodes of a simulation, and when.

use std::time::Duration;

/// A fault or its repair. The strings name nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A node crashes.
    Crash(String),
    /// A crashed node runs its boot function.
    Restart(String),
    /// A node's tasks do not run.
    Pause(String),
    /// A node's tasks run again.
    Resume(String),
    /// No message passes between two nodes.
    Cut(String, String),
    /// No message passes from the first node to the second.
    Mute(String, String),
    /// Messages pass between two nodes again, both ways.
    Heal(String, String),
    /// Links between two nodes break at once.
    Break(String, String),
    /// A node's disk is full.
    Fill(String),
    /// A node's disk has space again.
    Free(String),
    /// A node's disk fails every operation.
    Fail(String),
    /// A node's disk works again.
    Mend(String),
    /// One bit on a node's disk flips.
    Rot(String),
    /// A node's clock runs fast or slow by this many millionths.
    Drift(String, i64),
}

/// A fault, its time, and its duration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FaultStep {
    /// Counted from the plan's start.
    pub at: Duration,
    /// The fault.
    pub fault: Fault,
    /// How long until it is undone; only for faults that can be undone.
    pub lasting: Option<Duration>,
}

/// Faults and their times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// In any order.
    pub steps: Vec<FaultStep>,
}

impl Fault {
    /// The fault that undoes this one, if there is one.
    pub fn undone_by(&self) -> Option<Fault> {
        match self {
            Fault::Crash(node) => Some(Fault::Restart(node.clone())),
            Fault::Pause(node) => Some(Fault::Resume(node.clone())),
            Fault::Cut(one, other) | Fault::Mute(one, other) => Some(Fault::Heal(one.clone(), other.clone())),
            Fault::Fill(node) => Some(Fault::Free(node.clone())),
            Fault::Fail(node) => Some(Fault::Mend(node.clone())),
            Fault::Drift(node, ppm) => (*ppm != 0).then(|| Fault::Drift(node.clone(), 0)),
            Fault::Restart(_)
            | Fault::Resume(_)
            | Fault::Heal(..)
            | Fault::Break(..)
            | Fault::Free(_)
            | Fault::Mend(_)
            | Fault::Rot(_) => None,
        }
    }
}

impl FaultPlan {
    /// The faults and those that undo them, by time; at the same time in the order of the steps.
    pub fn timeline(&self) -> Vec<(Duration, Fault)> {
        let mut timeline = Vec::new();
        for FaultStep { at, fault, lasting } in &self.steps {
            timeline.push((*at, fault.clone()));
            if let Some((lasting, undone)) = lasting.zip(fault.undone_by()) {
                timeline.push((*at + lasting, undone));
            }
        }
        timeline.sort_by_key(|(at, _)| *at);
        timeline
    }

    /// The time at which its last fault happens or is undone.
    pub fn end(&self) -> Duration {
        self.timeline().last().map_or(Duration::ZERO, |(at, _)| *at)
    }
}
