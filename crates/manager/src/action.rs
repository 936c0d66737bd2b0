//! The actions of the manager. Each may be executed any number of times.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A change of a pool. Each says the state that is to be reached, so that executing it again changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// A compute node has this quota, in percent of one processor.
    SetQuota {
        /// The node.
        node: String,
        /// Its quota.
        percent: u32,
    },
    /// A compute node of this name runs and is ready.
    Launch {
        /// The node.
        node: String,
    },
    /// No compute node of this name runs, and its files, cgroup and process are gone.
    Drain {
        /// The node.
        node: String,
    },
    /// The peer has this budget of remote memory.
    SetMemory {
        /// The budget.
        bytes: u64,
    },
    /// The process of this storage node runs and is ready.
    StartStorage {
        /// The storage node.
        node: String,
    },
    /// The process of this storage node does not run. Its files stay.
    StopStorage {
        /// The storage node.
        node: String,
    },
}

/// What decides on an action. Each has at most one open action of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScalingLoop {
    Compute,
    Memory,
    Storage,
}

impl Action {
    /// What decides on it.
    pub(crate) fn scaling_loop(&self) -> ScalingLoop {
        match self {
            Action::SetQuota { .. } | Action::Launch { .. } | Action::Drain { .. } => ScalingLoop::Compute,
            Action::SetMemory { .. } => ScalingLoop::Memory,
            Action::StartStorage { .. } | Action::StopStorage { .. } => ScalingLoop::Storage,
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::SetQuota { node, percent } => write!(f, "set the quota of {node} to {percent} %"),
            Action::Launch { node } => write!(f, "launch {node}"),
            Action::Drain { node } => write!(f, "drain {node}"),
            Action::SetMemory { bytes } => write!(f, "set the memory budget to {} MiB", bytes >> 20),
            Action::StartStorage { node } => write!(f, "start {node}"),
            Action::StopStorage { node } => write!(f, "stop {node}"),
        }
    }
}

/// An action that a manager has begun, durable before it is executed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Intent {
    /// Its number: later intents have higher ones.
    pub number: u64,
    /// The action.
    pub action: Action,
}

/// An intent that is to be executed now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueIntent {
    /// The peer.
    pub peer: String,
    /// The intent.
    pub intent: Intent,
    /// A draining node is to be killed now: it has had its time, or is silent.
    pub force: bool,
}

/// How the execution of an action ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The state is reached.
    Done,
    /// It is on the way: execute the action again later.
    Pending,
    /// It cannot be reached, and nothing was changed: why.
    Rejected(String),
    /// It may or may not have taken effect: why. The action is executed again.
    Ambiguous(String),
}
