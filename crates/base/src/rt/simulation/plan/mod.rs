//! Fault plans: what breaks when, as text, as values, or by chance.
//!
//! ```text
//! at 3s crash peer1 for 1s
//! at 5s cut orderer peer2 for 200ms; at 6s fill peer0   # the disk is full
//! at 8s free peer0
//! ```
//!
//! A plan is a list of steps, separated by line ends or semicolons; `#` begins a comment. A step is `at <time> <fault>`,
//! and may end in `for <time>`, after which the fault is undone. Times are numbers with a unit (`ns`, `us`, `ms`, `s`, `m`).
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
//! | `drift N P` | the node's clock goes fast by P millionths, slow where P is below 0 | `drift N 0` |

mod notation;
mod random;

use std::time::Duration;

pub use notation::ParsePlanError;
pub use random::{Bounds, FaultKind};

/// Something that breaks, or is repaired. The strings name nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A node crashes.
    Crash(String),
    /// A node that crashed runs its boot function.
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
    /// A node's disk has room again.
    Free(String),
    /// A node's disk fails every operation.
    Fail(String),
    /// A node's disk works again.
    Mend(String),
    /// One bit on a node's disk flips.
    Rot(String),
    /// A node's clock goes fast or slow by so many millionths.
    Drift(String, i64),
}

/// A fault, when it happens, and how long it lasts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Counted from the plan's start.
    pub at: Duration,
    /// What happens.
    pub fault: Fault,
    /// After how long it is undone; only for faults that can be.
    pub lasting: Option<Duration>,
}

/// Faults and their times.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// In any order.
    pub steps: Vec<Step>,
}

impl Fault {
    /// What undoes this fault, if anything does.
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

impl Plan {
    /// Reads a plan from text.
    ///
    /// # Errors
    /// Says which step is wrong, and why.
    pub fn parse(text: &str) -> Result<Plan, ParsePlanError> {
        text.parse()
    }

    /// A plan by chance, within bounds. Every fault that can be undone is undone in time.
    pub fn random(seed: u64, bounds: &Bounds) -> Plan {
        random::random(seed, bounds)
    }

    /// Faults and what undoes them, by time; at one time in the order of the steps.
    pub fn timeline(&self) -> Vec<(Duration, Fault)> {
        let mut timeline = Vec::new();
        for Step { at, fault, lasting } in &self.steps {
            timeline.push((*at, fault.clone()));
            if let Some((lasting, undone)) = lasting.zip(fault.undone_by()) {
                timeline.push((*at + lasting, undone));
            }
        }
        timeline.sort_by_key(|(at, _)| *at);
        timeline
    }

    /// When its last fault happens or is undone.
    pub fn end(&self) -> Duration {
        self.timeline().last().map_or(Duration::ZERO, |(at, _)| *at)
    }
}
