//! How calls fail, for C: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use std::ffi::c_void;

use crate::out_of_reach;
use crate::outcome::Outcome;

pub(crate) const OK: i32 = 0;
const SIGNAL: i32 = 1;
pub(crate) const LOST: i32 = 2;
const BUSY: i32 = 3;
pub(crate) const REFUSED: i32 = 4;
const CANCELLED: i32 = 5;
const KILLED: i32 = 6;
pub(crate) const DECLINED: i32 = 7;

/// `struct heddle_pushdown_failure`.
#[repr(C)]
pub struct Failure {
    kind: i32,
    signal: i32,
    code: i32,
    address: *const c_void,
    instruction: *const c_void,
}

/// Describes how a call has ended; `None` is a call that was refused. Returns its kind.
///
/// # Safety
/// The failure is null, or can be written.
pub(crate) unsafe fn tell(outcome: Option<Outcome>, failure: *mut Failure) -> i32 {
    let mut told = Failure { kind: OK, signal: 0, code: 0, address: std::ptr::null(), instruction: std::ptr::null() };
    told.kind = match outcome {
        Some(Outcome::Ended(ended)) if ended.signal == 0 => OK,
        Some(Outcome::Ended(ended)) => {
            (told.signal, told.code) = (ended.signal as i32, ended.code);
            (told.address, told.instruction) = (ended.address as *const c_void, ended.instruction as *const c_void);
            out_of_reach::note_signalled(ended.address);
            SIGNAL
        }
        Some(Outcome::Lost) => LOST,
        Some(Outcome::Busy) => BUSY,
        Some(Outcome::Killed { instruction, .. }) => {
            told.instruction = instruction as *const c_void;
            KILLED
        }
        Some(Outcome::Cancelled) => CANCELLED,
        None => REFUSED,
    };
    let kind = told.kind;
    if !failure.is_null() {
        // SAFETY: as the caller answers for.
        unsafe { failure.write(told) };
    }
    kind
}

const _: () = assert!(size_of::<Failure>() == 32, "as the header says");
