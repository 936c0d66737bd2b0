//! The end of a process's log, which a command shows when the process fails.

use std::path::Path;

/// How many lines of a network's log are shown when it fails.
const LOG_LINES_SHOWN: usize = 12;

/// The last lines of a log.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}
