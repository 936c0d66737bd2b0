//! The interface for C, as far as it is about memory between the sides.

#![allow(unsafe_code)]

use std::ffi::{c_long, c_void};

use bare::system_call::{pause, system_call};
use pushdown::SYNCHRONISE_CALL;

use crate::call::is_in_call;
use crate::failure::{LOST, OK, REFUSED};
use crate::stacks::on_private_stack;
use crate::synchronise::Pulling;
use crate::wait::{CALLER, is_open, wait_until};

/// How long to wait for a fork to be over, in microseconds.
const PAUSE: i64 = 50;

/// `struct heddle_pushdown_counts`.
#[repr(C)]
pub struct Counts {
    size: usize,
    sent: u64,
    received: u64,
}

/// `heddle_syncmem`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_syncmem(start: *const c_void, bytes: usize) -> i32 {
    if is_in_call() {
        return synchronise_function();
    }
    if !is_open() {
        return REFUSED;
    }
    let (start, bytes) = (start as u64, bytes as u64);
    on_private_stack(move |_, _| synchronise(start, bytes))
}

/// In a function, the executor does it.
fn synchronise_function() -> i32 {
    // SAFETY: no kernel has this call, and its arguments are no addresses.
    let _ = unsafe { system_call(SYNCHRONISE_CALL as c_long, []) };
    OK
}

/// On a private stack.
fn synchronise(start: u64, bytes: u64) -> i32 {
    loop {
        match CALLER.acquire().as_mut() {
            None => return REFUSED,
            Some(caller) => {
                if caller.syncmem(start, bytes) {
                    return if caller.is_lost() { LOST } else { OK };
                }
            }
        }
        pause(PAUSE);
    }
}

/// `heddle_pullmem`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_pullmem(start: *const c_void, bytes: usize) -> i32 {
    if is_in_call() {
        return synchronise_function();
    }
    if !is_open() {
        return REFUSED;
    }
    let (start, bytes) = (start as u64, bytes as u64);
    on_private_stack(move |_, _| {
        let has_bytes = match CALLER.acquire().as_mut() {
            Some(caller) => caller.has_bytes_to_pull(),
            None => return REFUSED,
        };
        if has_bytes { pull(start, start.saturating_add(bytes)) } else { synchronise(start, bytes) }
    })
}

/// On a private stack.
fn pull(start: u64, end: u64) -> i32 {
    let mut at = start;
    let is_lost = loop {
        match wait_until(|caller| caller.pull(at, end)) {
            Some(Pulling::From(next)) => at = next,
            Some(Pulling::Until(until)) => {
                break wait_until(|caller| caller.has_pulled(until).then(|| caller.is_lost()));
            }
            None => return REFUSED,
        }
    };
    match is_lost {
        Some(false) => OK,
        Some(true) => LOST,
        None => REFUSED,
    }
}

/// `heddle_pushdown_counts`.
///
/// # Safety
/// The structure can be written, and its size is in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_counts(counts: *mut Counts) -> i32 {
    // SAFETY: as the caller answers for.
    let is_known = !counts.is_null() && unsafe { (*counts).size } >= size_of::<Counts>();
    if is_in_call() || !is_open() || !is_known {
        return REFUSED;
    }
    let Some(now) = on_private_stack(|_, _| CALLER.acquire().as_ref().map(|caller| caller.message_counts)) else {
        return REFUSED;
    };
    // SAFETY: as the caller answers for.
    unsafe {
        (*counts).sent = now.sent;
        (*counts).received = now.received;
    }
    OK
}
