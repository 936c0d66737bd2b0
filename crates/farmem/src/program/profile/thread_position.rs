//! Where a thread is that waits for a page.

use std::{fs, io, thread};

/// A thread is read again if it runs: the kernel wakes threads without a reason that user space sees.
const ATTEMPTS: u32 = 3;

/// The registers of a thread that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadPosition {
    /// The instruction, or the one behind the system call that waits.
    pub(super) instruction: u64,
    pub(super) stack: u64,
}

/// Where a thread of this or another process waits.
///
/// # Errors
/// Of the operating system; [`io::ErrorKind::WouldBlock`] if it does not wait.
pub(super) fn of_thread(number: u32) -> io::Result<ThreadPosition> {
    for _ in 0..ATTEMPTS {
        let text = fs::read_to_string(format!("/proc/{number}/syscall"))?;
        if let Some(position) = parse(&text) {
            return Ok(position);
        }
        thread::yield_now();
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "the thread did not wait for its page any more"))
}

/// Reads `-1 SP PC`, or the number of a system call, its six arguments, `SP PC`. `running` has no numbers.
fn parse(text: &str) -> Option<ThreadPosition> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [.., stack, instruction] = &fields[..] else { return None };
    let number = |text: &str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    Some(ThreadPosition { instruction: number(instruction)?, stack: number(stack)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_inside_and_outside_of_system_calls_are_read() {
        let position = Some(ThreadPosition { instruction: 0x40_1136, stack: 0x7ffc_0000 });
        assert_eq!(parse("-1 0x7ffc0000 0x401136\n"), position);
        assert_eq!(parse("0 0x3 0x7f7e2960c000 0x20000 0x0 0xffffffff 0x0 0x7ffc0000 0x401136\n"), position);
        for text in ["running\n", "", "-1\n", "-1 7 9", "0x", "-1 0x 0x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_thread_is_in_the_system_call_that_asks() {
        let own = fs::read_link("/proc/thread-self").expect("it exists");
        let own = own.file_name().and_then(|number| number.to_str()?.parse().ok()).expect("a number");
        let position = of_thread(own).expect("a thread may read its own");
        let local = 0_u8;
        let distance = position.stack.abs_diff(std::ptr::from_ref(&local) as u64);
        assert!(position.instruction > 0x1000 && distance < 1 << 20, "{position:x?}");
        assert!(of_thread(0).is_err());
    }
}
