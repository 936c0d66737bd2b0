//! Errors of a configuration, each naming the setting and the rule.

use base::ErrorKind;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why it cannot be read.
        source: std::io::Error,
    },
    /// The text is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{origin} cannot be parsed:\n{message}")]
    Syntax {
        /// The origin of the text.
        origin: String,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A value is out of its range.
    #[error("{origin}: {key} {problem}")]
    Value {
        /// The origin of the text.
        origin: String,
        /// The key, such as `batch.messages`.
        key: &'static str,
        /// What is wrong and what to do.
        problem: String,
    },
    /// A value differs from the one that the network was created with.
    #[error(
        "{key} was {was} when the network was created and cannot be changed to {now}; put the old value back, {remedy}"
    )]
    Fixed {
        /// The key.
        key: &'static str,
        /// The network's value.
        was: String,
        /// The file's value.
        now: String,
        /// The alternative to restoring the old value.
        remedy: &'static str,
    },
}

impl ConfigError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ConfigError::File { source, .. } => ErrorKind::of_io(source),
            _ => ErrorKind::Rejected,
        }
    }
}
