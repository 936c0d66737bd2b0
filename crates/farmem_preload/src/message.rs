//! Messages on standard error, without allocating.

#![allow(unsafe_code)]

use bare::system_call::{Errno, exit_group, system_call};

/// Exit status of a program that cannot have a far heap, or has lost it.
const STATUS: i32 = 70;

/// Parts of one message.
const PARTS_MAX: usize = 8;

/// Writes one line that starts with `heddle: `.
pub(crate) fn print(parts: &[&str]) {
    let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS_MAX];
    let texts = std::iter::once(&"heddle: ").chain(parts).chain(std::iter::once(&"\n"));
    let mut count = 0;
    for (place, text) in vector.iter_mut().zip(texts) {
        *place = libc::iovec { iov_base: text.as_ptr().cast_mut().cast(), iov_len: text.len() };
        count += 1;
    }
    // SAFETY: the kernel reads `count` texts, which live as long as the call. If it fails, there is nowhere to say so.
    let _ = unsafe { system_call(libc::SYS_writev, [libc::STDERR_FILENO as usize, vector.as_ptr() as usize, count]) };
}

/// Writes a message, and ends the process.
pub(crate) fn end_program(parts: &[&str]) -> ! {
    print(parts);
    exit_group(STATUS)
}

/// Ends the process because of an error of a system call: `what` says what failed.
pub(crate) fn end_program_after(what: &str, error: Errno) -> ! {
    let mut digits = [0; DIGITS];
    end_program(&["the far heap: ", what, ": error ", decimal(error.0.unsigned_abs(), &mut digits)])
}

const DIGITS: usize = 10;

fn decimal(mut number: u32, digits: &mut [u8; DIGITS]) -> &str {
    let mut first = DIGITS;
    for place in digits.iter_mut().rev() {
        *place = b'0' + (number % 10) as u8;
        number /= 10;
        first -= 1;
        if number == 0 {
            break;
        }
    }
    std::str::from_utf8(digits.get(first..).unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{DIGITS, decimal};

    #[test]
    fn numbers_have_no_leading_zeros() {
        for number in [0, 7, 10, 111, u32::MAX] {
            assert_eq!(decimal(number, &mut [0; DIGITS]), number.to_string());
        }
    }
}
