//! How a command ends when it cannot do what was asked.

use std::fmt::Display;

use crate::cli::exit;

/// A line for people and an exit code for scripts.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: Option<String>,
}

impl Failure {
    /// Something failed. The message says what, why and what to do.
    pub fn new(message: impl Display) -> Failure {
        Failure::with_code(exit::FAILURE, message)
    }

    /// Something failed in a way that scripts want to tell apart.
    pub fn with_code(code: u8, message: impl Display) -> Failure {
        Failure { code, message: Some(message.to_string()) }
    }

    /// Somebody pressed Ctrl-C; nothing needs to be said.
    pub fn interrupted() -> Failure {
        Failure { code: exit::INTERRUPTED, message: None }
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        self.code
    }

    /// What to say.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

impl From<node::NodeError> for Failure {
    fn from(error: node::NodeError) -> Failure {
        Failure::new(error)
    }
}

impl From<bench::Error> for Failure {
    fn from(error: bench::Error) -> Failure {
        match error {
            bench::Error::Interrupted => Failure::interrupted(),
            error => Failure::new(error),
        }
    }
}
