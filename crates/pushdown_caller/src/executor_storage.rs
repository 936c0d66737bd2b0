//! The file for pages that the executor's memory has no room for. Uses the C library.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use bare::PAGE_BYTES;
use pushdown::STORAGE_FILE;

use crate::descriptors::keep;

/// What the program chose.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorStorage {
    /// Where the file is.
    pub(crate) folder: PathBuf,
    /// How many bytes of pages the executor keeps in memory.
    pub(crate) memory_bytes: usize,
}

/// How many pages so many bytes are.
pub(crate) fn pages_of(bytes: usize) -> u64 {
    (bytes / PAGE_BYTES) as u64
}

impl ExecutorStorage {
    /// How many pages the executor keeps in memory.
    pub(crate) fn memory_pages(&self) -> u64 {
        pages_of(self.memory_bytes)
    }

    /// Gives a program that is to be started a file without a name. What is returned must live until then.
    ///
    /// # Errors
    /// The reason, for people.
    pub(crate) fn pass_to(&self, command: &mut Command) -> Result<OwnedFd, String> {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE);
        let file =
            options.open(&self.folder).map_err(|error| format!("a file in {}: {error}", self.folder.display()))?;
        // SAFETY: the descriptor was just made, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(keep(file.into())?) };
        let descriptor = file.as_raw_fd();
        // SAFETY: the call has no memory argument.
        let pass = move || match unsafe { libc::dup2(descriptor, STORAGE_FILE) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        };
        // SAFETY: the child makes one system call, before it executes the program.
        unsafe { command.pre_exec(pass) };
        Ok(file)
    }
}
