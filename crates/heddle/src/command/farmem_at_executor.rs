//! `heddle farmem run --executor`: a program whose heap's home is an executor of pushed functions.

use std::num::NonZeroU32;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use farmem::ExecutorHeap;
use heddle_cli::beside;

use super::executors::{PACKAGE, PROGRAM};
use super::farmem_preloading::{LIBRARY, find_library, preloading};
use crate::cli::farmem::FarMemoryRunArguments;
use crate::failure::CommandError;

/// The library of pushed functions, and the package that has it.
const PUSHDOWN_LIBRARY: (&str, &str) = ("libheddle_pushdown.so", "heddle-pushdown-caller");
/// Where that library looks for the role's socket, and for the program of a child.
const ROLE_VARIABLE: &str = "HEDDLE_EXECUTORS";
const CHILD_VARIABLE: &str = "HEDDLE_EXECUTOR";

/// Becomes the program. Returns if that fails.
///
/// # Errors
/// Why it failed.
pub fn become_program(arguments: &FarMemoryRunArguments) -> Result<(), CommandError> {
    let FarMemoryRunArguments { heap, executors, contexts, .. } = arguments;
    // In this order: the heap's functions come before those of the other library, and pass on what is not far.
    let libraries = [find_library(LIBRARY)?, find_library(PUSHDOWN_LIBRARY)?];
    let (mut command, program) = preloading(heap, &libraries)?;
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(|error| CommandError::about(path, error));
    let storage = heap.storage.as_ref().map(absolute).transpose()?;
    if let Some(folder) = &storage {
        std::fs::create_dir_all(folder).map_err(|error| CommandError::about(folder, error))?;
    }
    let stored = if heap.storage.is_some() { heap.storage_size } else { 0 };
    let heap = ExecutorHeap {
        bytes: heap.size.unwrap_or(heap.memory.saturating_add(stored)),
        budget_bytes: heap.budget,
        contexts: contexts.unwrap_or(NonZeroU32::MIN),
        storage: storage.map(|folder| (folder, heap.memory)),
    };
    command.envs(heap.variables());
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match executors {
        Some(socket) => _ = command.env(ROLE_VARIABLE, absolute(socket)?),
        // The library may be in another folder.
        None if !is_set(ROLE_VARIABLE) && !is_set(CHILD_VARIABLE) => {
            command.env(CHILD_VARIABLE, beside::program(PROGRAM, PACKAGE)?);
        }
        None => {}
    }
    Err(CommandError::about(Path::new(program), command.exec()))
}
