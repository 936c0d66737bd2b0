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

mod fault_plan;
mod notation;
mod random;

pub use fault_plan::{Fault, FaultPlan, FaultStep};
pub use notation::ParsePlanError;
pub use random::{FaultKind, FaultPlanLimits};
