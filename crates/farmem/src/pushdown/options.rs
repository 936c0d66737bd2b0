//! How the executor is opened.

use std::path::PathBuf;
use std::time::Duration;

/// How to open the executor.
#[derive(Clone, Debug, Default)]
pub struct PushdownOptions {
    /// The library. `None`: the value of `HEDDLE_PUSHDOWN_LIBRARY` in the environment; without it, `libheddle_pushdown.so` beside this
    /// program.
    pub library: Option<PathBuf>,
    /// The executor's program. `None`: the value of `HEDDLE_EXECUTOR` in the environment; without it, `heddle-executor` beside the
    /// library.
    pub executor: Option<PathBuf>,
    /// The socket of the role *executors* (`heddle farmem executors`), which then starts the executor, confined and limited; it is looked at before
    /// `executor`. `None`: if `executor` is `None` too, the value of `HEDDLE_EXECUTORS` in the environment.
    pub executors: Option<PathBuf>,
    /// How many functions may run at the same time; others wait for their turn. 0 means 1.
    pub contexts: u32,
    /// How long a closure may run whose terms do not say; `None`: for ever. A longer one is ended in the middle, as by a signal.
    pub limit: Option<Duration>,
    /// For how long the executor may be silent before it is given up, and lost; `None`: 10 s.
    pub silence: Option<Duration>,
    /// Where the executor stores pages that it has no memory for; `None`: it keeps all of them in memory. Refused with the role, which decides
    /// itself whether its executors store pages, and where.
    pub storage: Option<ExecutorStorage>,
}

/// Storage below the executor's memory.
#[derive(Clone, Debug)]
pub struct ExecutorStorage {
    /// The folder of the file. Nothing is left of the file when the executor ends.
    pub folder: PathBuf,
    /// How many bytes of pages the executor keeps in memory; at least 1 MiB.
    pub memory_bytes: u64,
}
