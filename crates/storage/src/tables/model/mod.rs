//! A deterministic engine for simulation: rows in memory, and a log of batches on the ambient disk.
//!
//! 1. A write changes the rows in memory and queues its record.
//! 2. Persisting appends the queued records to the log and syncs it. A crash during this step may lose all records, or
//!    leave some of them and a torn one, as in a real engine. Opening stops at the first incomplete record; the
//!    savepoint is that of the last complete record.
//! 3. When the log has grown to several times the size of the rows, the model writes a new log with all rows in one
//!    record. It syncs the new log, and only then removes the old one.
//!
//! The model keeps everything in memory, so it is meant for small states.

mod engine;
#[doc(hidden)]
pub mod fuzz;
mod log;

pub use engine::ModelEngine;
