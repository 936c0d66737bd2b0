//! One ambient runtime, real or simulated.
//!
//! Code calls `rt::spawn`, `rt::sleep`, `rt::now` and so on without knowing what is behind them:
//!
//! 1. A thread that is running a [`simulation`] has a simulation in its thread-local context; everything here then goes to
//!    that simulation's executor, virtual clock, seeded chance, disks and links.
//! 2. Any other thread gets tokio's current runtime (started by [`production::Runtime`], or by any other means), the
//!    machine's clocks, the operating system's randomness and its files.
//!
//! Invariants: no type of tokio shows in a signature; every channel is bounded; a future may be moved between threads,
//! so spawned futures are `Send` in both worlds.
//!
//! In simulation do not use macros that choose at random by themselves (`futures_util::select!`); their `_biased`
//! forms are fine.

mod chance;
pub mod channel;
mod context;
pub mod disk;
pub mod net;
pub mod production;
pub mod simulation;
mod stop;
pub mod sync;
mod task;
mod time;

pub use chance::{fault_point, fill_random, inject_fault, random_below, random_u64};
pub use context::is_simulation;
pub(crate) use context::simulated_events;
pub use stop::Stop;
pub use task::{AbortOnDrop, Aborted, Task, blocking, is_running, spawn, yield_now};
pub use time::{Elapsed, Instant, Sleep, WallTime, now, sleep, sleep_until, ticked, timeout, wall_now};
