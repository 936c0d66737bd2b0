//! Far heaps whose home is an executor of pushed functions.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::path::PathBuf;

use farmem_control::{EXECUTOR_HEAP_VARIABLE, EXECUTOR_STORAGE_VARIABLE, SECRET_VARIABLE, SOCKET_VARIABLE};

/// The variables by which a program learns of its far heap, of any kind. A program that is to have another heap must not inherit them.
pub const FAR_HEAP_VARIABLES: [&str; 4] =
    [SOCKET_VARIABLE, SECRET_VARIABLE, EXECUTOR_HEAP_VARIABLE, EXECUTOR_STORAGE_VARIABLE];

/// A far heap whose home is an executor: functions that the program pushes down use it there, in place. There is no [`ProgramServer`]; the
/// program preloads `libheddle_farmem.so` and behind it `libheddle_pushdown.so`.
///
/// [`ProgramServer`]: crate::ProgramServer
#[derive(Clone, Debug)]
pub struct ExecutorHeap {
    /// How large the heap is. Beyond it allocations fail.
    pub bytes: u64,
    /// How many bytes of it the program keeps.
    pub budget_bytes: u64,
    /// How many pushed functions may run at the same time.
    pub contexts: NonZeroU32,
    /// A folder for pages that the executor has no memory for, and how many bytes of pages it keeps in memory.
    pub storage: Option<(PathBuf, u64)>,
}

impl ExecutorHeap {
    /// The variables of the program's environment that say so.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let ExecutorHeap { bytes, budget_bytes, contexts, storage } = self;
        let memory_bytes = storage.as_ref().map_or(0, |(_, bytes)| *bytes);
        let numbers = format!("{bytes},{budget_bytes},{contexts},{memory_bytes}");
        let folder = storage.as_ref().map(|(folder, _)| (EXECUTOR_STORAGE_VARIABLE, folder.clone().into_os_string()));
        std::iter::once((EXECUTOR_HEAP_VARIABLE, numbers.into())).chain(folder).collect()
    }
}
