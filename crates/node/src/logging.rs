//! Log lines on standard error.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

use crate::config::ConfigError;

/// Starts logging at `filter`: a level, or a list of targets and levels. A second call does nothing.
///
/// # Errors
/// [`ConfigError::Value`] when the filter cannot be parsed.
pub fn start(filter: &str) -> Result<(), ConfigError> {
    let wrong = |problem: String| ConfigError::Value { origin: "the configuration".to_owned(), key: "log", problem };
    if filter.contains('[') {
        let problem =
            "filters by span or field, which this program does not offer; name targets such as \"info,chain=debug\"";
        return Err(wrong(format!("is {filter:?}, which {problem}")));
    }
    let filter = filter.parse::<Targets>().map_err(|error| {
        wrong(format!("is {filter:?}, which is neither a level nor a list such as \"info,chain=debug\": {error}"))
    })?;
    // An error means that other code, such as a test, has set up logging already.
    let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal()).compact();
    let _ = registry().with(filter).with(lines).try_init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeddleConfig;

    #[test]
    fn filters_are_levels_and_targets() {
        for filter in [&HeddleConfig::default().log, "debug", "OFF", "chain::commit=trace,warn", "fjall=off"] {
            assert!(filter.parse::<Targets>().is_ok(), "{filter}");
        }
        for filter in ["chain=loud", "chain[span]=debug", "[{peer=1}]=debug"] {
            assert!(start(filter).is_err(), "{filter}");
        }
    }
}
