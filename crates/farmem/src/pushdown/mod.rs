//! Pushing functions down: a closure runs in an executor, a process beside the memory pool that has this process's memory at the same
//! addresses.
//!
//! ```no_run
//! use farmem::pushdown::{Executor, PushdownOptions};
//!
//! # fn main() -> Result<(), farmem::pushdown::PushdownError> {
//! let executor = Executor::open(&PushdownOptions::default())?; // Early in `main`: before there are other threads.
//! let (names, mut longest) = (vec!["Ada".to_owned(), "Grace".to_owned()], 0);
//! let bytes: usize = executor.call(|| {
//!     longest = names.iter().map(String::len).max().unwrap_or(0);
//!     names.iter().map(String::len).sum()
//! })?;
//! assert_eq!((bytes, longest), (8, 5));
//! # Ok(())
//! # }
//! ```
//!
//! 1. [`Executor::open`] loads the library `libheddle_pushdown.so`, which starts the executor. A process has one.
//! 2. [`Executor::call`] passes the address of the closure to the executor, and waits. The closure runs as the thread that called:
//!    with its stack, its thread-local variables, its locks. The thread makes the closure's system calls for it.
//! 3. Other threads of the process go on. Both sides see one memory, and locks and atomics work between them.
//! 4. A panic of the closure is caught in the executor. Its payload lies on the heap, which both sides share.
//!
//! A closure waits for its turn and runs for as long as it likes, unless [`PushdownTerms`] say otherwise: [`Executor::call_with`] has a
//! time-out, a limit, and what follows if the closure has not run; [`Executor::try_cancel`] cancels the call of another thread.
//!
//! [`Executor::far_memory`] maps memory whose home is the executor, for data that closures use and this process hardly does.
//!
//! `heddle_pushdown.h`, beside the library's sources, says what a function may do. Above all, it cannot start threads or
//! processes, and shared mappings are out of its reach.

mod coherence;
mod error;
mod executor;
mod failure;
mod far_memory;
mod library;
mod library_terms;
mod measurement;
mod options;
mod panics;
mod terms;

pub use coherence::Coherence;
pub use error::PushdownError;
pub use executor::Executor;
pub use far_memory::FarMemory;
pub use measurement::CallTimes;
pub use options::{ExecutorStorage, PushdownOptions};
pub use panics::PanicReport;
pub use terms::{PushdownStatistics, PushdownTerms, PushdownTicket};
