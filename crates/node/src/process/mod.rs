//! Runs one role as a separate process.
//!
//! 1. [`file`](mod@file) reads the process's configuration, which [`crate::plan`] wrote.
//! 2. [`Process::start`] registers the transports for the role's addresses, starts the role, and serves metrics and
//!    health on a separate port.
//! 3. [`Process::ready`] waits until other processes can use this one, and writes `ready.json` beside the
//!    configuration.
//! 4. [`Process::stop`] shuts the role down cleanly. The program calls it on SIGTERM.
//!
//! Processes of one organisation talk over RMA, where tokens authenticate them; processes of different organisations
//! talk over mutual TLS.

mod context;
mod end;
pub mod file;
mod links;
mod ready;
mod running;
mod sections;

pub use end::ProcessEnd;
pub use file::{NodeFile, ProcessRole};
#[cfg(test)]
pub(crate) use links::tcp_tls;
pub use ready::Ready;
pub use running::Process;
