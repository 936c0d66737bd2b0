//! What a program chooses when it opens the library.

use std::path::PathBuf;
use std::time::Duration;

use crate::executor_storage::ExecutorStorage;

/// What the program chose.
#[derive(Clone, Default)]
pub(crate) struct Settings {
    /// Who starts the executor.
    pub(crate) source: ExecutorSource,
    /// Functions that run at the same time.
    pub(crate) contexts: u32,
    /// After which silence the executor is given up, if the program says.
    pub(crate) silence: Option<Duration>,
    /// For pages that the executor has no memory for.
    pub(crate) storage: Option<ExecutorStorage>,
    /// How many bytes of pages an executor of the role keeps in memory, if it has storage of the role; 0: as many as the role lets it.
    pub(crate) memory_bytes: usize,
}

/// Who starts the executor.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum ExecutorSource {
    /// As the environment says; otherwise this process, with the program beside the library.
    #[default]
    Usual,
    /// This process, with a program.
    Program(PathBuf),
    /// The role at a socket.
    Role(PathBuf),
}
