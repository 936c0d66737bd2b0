//! The runtime that all code uses for tasks, time, randomness, disks and links. In production it is tokio; in a test it
//! may be a simulation.
//!
//! Callers use `rt::spawn`, `rt::sleep`, `rt::now` and so on without knowing which implementation is behind them. The
//! thread decides:
//!
//! 1. A thread that runs a [`simulation`] has it in its thread-local context. There, every call goes to that
//!    simulation's executor, virtual clock, seeded random generator, disks and links.
//! 2. On any other thread the calls go to tokio's current runtime (started by [`production::Runtime`], or in any other way),
//!    the machine's clocks, the operating system's random generator and its files.
//!
//! The simulation exists only where this crate is compiled with debug assertions, as in the profile `checks`, in which tests run.
//! A release build has only case 2: there [`is_simulation`] is the constant `false`.
//!
//! Invariants: No type of tokio appears in a signature. Every channel is bounded. Spawned futures must be `Send` in
//! both implementations, since tokio moves them between threads.
//!
//! In simulation do not use macros that make random choices themselves (`futures_util::select!`); their `_biased` forms are
//! fine.

mod backoff;
mod cancellation;
pub mod channel;
mod compute;
#[cfg(debug_assertions)]
mod context;
pub mod disk;
pub mod fault;
mod guard;
pub mod net;
#[cfg(not(debug_assertions))]
mod product;
pub mod production;
mod rng;
#[cfg(debug_assertions)]
pub mod simulation;
mod supervise;
pub mod sync;
mod task;
mod time;

// The product has no simulation: see `product`.
#[cfg(not(debug_assertions))]
use product as context;
#[cfg(not(debug_assertions))]
use product as simulation;

pub use backoff::Backoff;
pub use cancellation::CancellationToken;
pub use compute::{compute, set_compute_quota};
pub use context::is_simulation;
pub(crate) use context::simulated_events;
pub use fault::fault_point;
#[cfg(debug_assertions)]
pub use fault::inject_fault;
pub use guard::guarded;
pub use rng::{fill_random, random_below, random_u64};
pub use supervise::{TaskFailure, supervised};
pub use task::{AbortOnDrop, Task, TaskAborted, blocking, is_running, spawn, yield_now};
pub use time::{Elapsed, Instant, Sleep, WallTime, now, sleep, sleep_until, ticked, timeout, wall_now};
