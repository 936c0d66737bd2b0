//! Messages on standard error, without the C library.

#![allow(unsafe_code)]

use bare::system_call::{exit_group, system_call};

/// Exit status of a program that has lost memory.
const STATUS: i32 = 70;

/// Writes a line.
pub(crate) fn print(what: &str) {
    let line = ["heddle: ", what, "\n"].concat();
    // SAFETY: the kernel reads the line.
    let _ = unsafe { system_call(libc::SYS_write, [libc::STDERR_FILENO as usize, line.as_ptr() as usize, line.len()]) };
}

/// Writes a line and ends the program.
pub(crate) fn end_program(what: &str) -> ! {
    print(&[what, "; the program ends"].concat());
    exit_group(STATUS)
}
