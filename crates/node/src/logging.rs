//! Log lines on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::ConfigError;

/// Starts logging at `filter`: a level, or a list of targets and levels. A second call does nothing.
///
/// # Errors
/// [`ConfigError::Value`] when the filter cannot be parsed.
pub fn start(filter: &str) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(filter).map_err(|error| ConfigError::Value {
        origin: "the configuration".to_owned(),
        key: "log",
        problem: format!("is {filter:?}, which is neither a level nor a list such as \"info,chain=debug\": {error}"),
    })?;
    // An error means that other code, such as a test, has set up logging already.
    let _ = fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .compact()
        .finish()
        .try_init();
    Ok(())
}
