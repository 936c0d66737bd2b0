//! The errors of measurements.

use std::io;

use base::ErrorKind;
use heddle_cli::failure::CommandError;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Data could not be loaded.
    #[error("loading the data of {contract} failed at `{function}`: {reason}")]
    Load {
        /// The contract.
        contract: String,
        /// The function that loads.
        function: &'static str,
        /// The last answer of the network.
        reason: String,
    },
    /// The servers' process is not there any more.
    #[error("the network's process is gone: {0}")]
    ServerGone(#[source] io::Error),
    /// The kernel does not report on this process.
    #[error("/proc cannot be read: {0}")]
    Proc(#[source] io::Error),
    /// Nothing was committed for a long time.
    #[error("no transaction was committed for {seconds} s; the last error: {last}")]
    Stalled {
        /// For how long.
        seconds: u64,
        /// The last answer of the network; empty if there was none.
        last: String,
    },
    /// No connection to a gateway.
    #[error("the gateway {address} cannot be reached: {reason}")]
    Connect {
        /// Its address.
        address: String,
        /// Why.
        reason: String,
    },
    /// No transaction could be endorsed, so the number of endorsements is unknown.
    #[error("no transaction is endorsed: {reason}")]
    NotEndorsed {
        /// The last answer of the gateway.
        reason: String,
    },
    /// A part of a figure could not be set up or went wrong.
    #[error("{what}: {reason}")]
    Part {
        /// Which part.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The run was stopped.
    #[error("interrupted")]
    Interrupted,
    /// A report or plot could not be written.
    #[error("{path} cannot be written: {reason}")]
    Write {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Load { .. } | Error::Write { .. } | Error::Part { .. } => ErrorKind::Rejected,
            Error::ServerGone(_) | Error::Interrupted => ErrorKind::Closed,
            Error::Proc(source) => ErrorKind::of_io(source),
            Error::Stalled { .. } | Error::Connect { .. } | Error::NotEndorsed { .. } => ErrorKind::Retry,
        }
    }
}

impl From<Error> for CommandError {
    fn from(error: Error) -> CommandError {
        match error {
            Error::Interrupted => CommandError::interrupted(),
            error => CommandError::new(error),
        }
    }
}
