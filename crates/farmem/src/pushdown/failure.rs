//! How the library describes a failure.

use std::ffi::{c_int, c_void};
use std::ptr;

/// How a call failed.
#[repr(C)]
pub(super) struct Failure {
    pub(super) kind: c_int,
    pub(super) signal: c_int,
    pub(super) code: c_int,
    pub(super) address: *const c_void,
    pub(super) instruction: *const c_void,
}

impl Default for Failure {
    fn default() -> Self {
        Failure { kind: 0, signal: 0, code: 0, address: ptr::null(), instruction: ptr::null() }
    }
}

const _: () = assert!(size_of::<Failure>() == 32);
