//! Stores whose memory nodes, coordinators and Raft nodes are separate processes, so that each can be killed or limited as a
//! machine would be.
//!
//! 1. Each process runs this same program. Its first line on standard input is its role in JSON ([`messages::ProcessConfig`]). It ends
//!    when its parent ends.
//! 2. The process that coordinates or leads also runs the clients, as tasks. Their work arrives on its standard input, one
//!    [`ProcessTask`] per line. A standby begins this work once it serves.
//! 3. A process reports events on standard output, one [`ProcessMessage`] per line, with timestamps from the monotonic
//!    clock that all processes of the machine share. While clients work, a thread reports the number of their
//!    operations every [`child::COUNT_EVERY`]. So a killed process loses only its last few counts.

mod child;
mod messages;
mod parent;

pub use child::serve;
pub use messages::{
    GroupTimeouts, OperationCount, ProcessMessage, ProcessRole, ProcessTask, ReceivedMessages, TakeoverTimes, now_ns,
};
pub use parent::{ChildProcess, ProcessGroup, Program};
