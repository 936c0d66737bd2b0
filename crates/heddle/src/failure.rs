//! The failure of a command: its message and its exit code.

use std::fmt::Display;
use std::path::Path;

use crate::exit;

/// A line for people and an exit code for scripts.
#[derive(Debug)]
pub struct CommandError {
    code: u8,
    message: Option<String>,
}

impl CommandError {
    /// Something failed. The message says what, why and what to do.
    pub fn new(message: impl Display) -> CommandError {
        CommandError::with_code(exit::FAILURE, message)
    }

    /// A failure that scripts can recognise by its exit code.
    pub fn with_code(code: u8, message: impl Display) -> CommandError {
        CommandError { code, message: Some(message.to_string()) }
    }

    /// A failure of this file or folder.
    pub fn about(path: &Path, reason: impl Display) -> CommandError {
        CommandError::new(format!("{}: {reason}", path.display()))
    }

    /// A program that the command has run has failed, and has said why.
    pub fn silent(code: u8) -> CommandError {
        CommandError { code, message: None }
    }

    /// The user pressed Ctrl-C; no message is needed.
    pub fn interrupted() -> CommandError {
        CommandError { code: exit::INTERRUPTED, message: None }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// The message, if there is one.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl From<node::NodeError> for CommandError {
    fn from(error: node::NodeError) -> CommandError {
        CommandError::new(error)
    }
}
