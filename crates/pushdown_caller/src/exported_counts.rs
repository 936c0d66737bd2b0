//! The interface for C, as far as it is for measurements: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use crate::call::is_in_call;
use crate::failure::{OK, REFUSED};
use crate::stacks::on_private_stack;
use crate::times::{Times, last_times, nanoseconds};
use crate::wait::{CALLER, is_open};

/// `heddle_pushdown_times`.
///
/// # Safety
/// The structure is null, or can be written, and its size is in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_times(times: *mut Times) -> i32 {
    // SAFETY: as the caller answers for.
    let bytes = if times.is_null() { 0 } else { unsafe { (*times).size } };
    if is_in_call() || !is_open() || bytes < size_of::<Times>() {
        return REFUSED;
    }
    match last_times() {
        Some(mut last) => {
            last.size = bytes;
            // SAFETY: as the caller answers for.
            unsafe { times.write(last) };
            OK
        }
        None => REFUSED,
    }
}

/// `heddle_pushdown_link_ns`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_pushdown_link_ns() -> u64 {
    if is_in_call() || !is_open() {
        return 0;
    }
    let shape = on_private_stack(|_, _| CALLER.acquire().as_ref().map(|caller| caller.link().area().shape()));
    shape.map_or(0, |shape| nanoseconds(shape.latency_cycles))
}
