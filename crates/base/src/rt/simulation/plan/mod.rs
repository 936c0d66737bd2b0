//! Fault plans: lists of faults with their times, written as text, built from values, or drawn at random.
//!
//! ```text
//! at 3s crash peer1 for 1s
//! at 5s cut orderer peer2 for 200ms; at 6s fill peer0   # the disk is full
//! at 8s free peer0
//! ```
//!
//! A plan is a list of steps, separated by line ends or semicolons; `#` starts a comment. A step is `at <time> <fault>`, and
//! may end in `for <time>`, after which the fault is undone. Times are numbers with a unit (`ns`, `us`, `ms`, `s`, `m`).
//!
//! | fault | what happens | undone by |
//! |---|---|---|
//! | `crash N` | the node loses its tasks, its links, and what it had not synced | `restart N` |
//! | `pause N` | the node's tasks do not run | `resume N` |
//! | `cut A B` | no message passes between two nodes | `heal A B` |
//! | `mute A B` | no message passes from A to B | `heal A B` |
//! | `break A B` | links between two nodes break at once | |
//! | `fill N` | the node's disk is full | `free N` |
//! | `fail N` | the node's disk fails | `mend N` |
//! | `rot N` | one bit on the node's disk flips | |
//! | `drift N P` | the node's clock runs fast by P millionths, slow if P is negative | `drift N 0` |

mod notation;
mod random;

use std::time::Duration;

pub use notation::ParsePlanError;
pub use random::{FaultKind, FaultPlanLimits};

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
    /// Parses a plan.
    ///
    /// # Errors
    /// Names the step that is wrong, and why.
    pub fn parse(text: &str) -> Result<FaultPlan, ParsePlanError> {
        text.parse()
    }

    /// A random plan, within bounds. Every fault that can be undone is undone in time.
    pub fn random(seed: u64, bounds: &FaultPlanLimits) -> FaultPlan {
        random::random(seed, bounds)
    }

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
