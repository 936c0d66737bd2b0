//! Why an end of the relay cannot start.

use std::io;

use executors::ExecutorsError;

/// Why an end of the relay cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The socket for programs, or a setting.
    #[error(transparent)]
    Executors(#[from] ExecutorsError),
    /// A setting.
    #[error("{0}")]
    Setting(String),
    /// The address for other hosts.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// What the operating system says.
        source: io::Error,
    },
}
