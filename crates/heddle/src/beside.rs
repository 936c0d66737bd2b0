//! Finds another program of the same release, in the directory of the running program.

use std::path::PathBuf;

use crate::failure::CommandError;

/// The program of this name in the directory of the running program.
///
/// # Errors
/// There is none. The message says how to build `package`, which has it.
pub fn program(name: &str, package: &str) -> Result<PathBuf, CommandError> {
    let own = std::env::current_exe();
    let own = own.map_err(|error| CommandError::new(format!("the program's own path: {error}")))?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(CommandError::new(format!(
        "there is no program {}; build it with `cargo build --release --package {package}`, or put it there",
        path.display()
    )))
}
