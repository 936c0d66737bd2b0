//! Logs to standard error, as the configuration's `log` directives say.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Starts logging for the process. A second call changes nothing.
///
/// # Errors
/// The directives do not parse; the text says where.
pub fn init(directives: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(directives).map_err(|error| format!("log = {directives:?}: {error}"))?;
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(true)
        .try_init();
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
    Ok(())
}
