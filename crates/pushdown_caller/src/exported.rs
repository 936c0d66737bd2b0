//! The interface for C: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::{Mutex, PoisonError};

use bare::system_call::set_errno;

use crate::call::{is_in_call, push_down};
use crate::caller::Outcome;
use crate::stacks::on_private_stack;
use crate::wait::{CALLER, is_open};
use crate::{far, open};

const OK: i32 = 0;
const SIGNAL: i32 = 1;
const LOST: i32 = 2;
const BUSY: i32 = 3;
const REFUSED: i32 = 4;

/// `struct heddle_pushdown_options`.
#[repr(C)]
pub struct OpenOptions {
    size: usize,
    executor: *const c_char,
    contexts: u32,
}

/// `struct heddle_pushdown_failure`.
#[repr(C)]
pub struct Failure {
    kind: i32,
    signal: i32,
    code: i32,
    address: *const c_void,
    instruction: *const c_void,
}

/// Why opening failed.
static REASON: Mutex<Option<CString>> = Mutex::new(None);

/// `heddle_pushdown_open`.
///
/// # Safety
/// The options are null, or a structure whose size is in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown_open(options: *const OpenOptions) -> i32 {
    if is_in_call() {
        return REFUSED;
    }
    if is_open() {
        return OK;
    }
    let mut settings = open::Settings::default();
    // SAFETY: as the caller answers for; the path is a string of C.
    unsafe {
        if let Some(options) = options.as_ref() {
            if options.size < size_of::<OpenOptions>() {
                return refuse("the options are of an unknown version");
            }
            if !options.executor.is_null() {
                settings.executor = Some(CStr::from_ptr(options.executor).to_string_lossy().into_owned());
            }
            settings.contexts = options.contexts.max(1);
        }
    }
    match open::open(&settings) {
        Ok(()) => OK,
        Err(reason) => refuse(&reason),
    }
}

fn refuse(reason: &str) -> i32 {
    let reason = CString::new(reason.replace('\0', " ")).ok();
    *REASON.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    REFUSED
}

/// `heddle_pushdown_reason`. The string stays until the next failure.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_pushdown_reason() -> *const c_char {
    if is_in_call() {
        return c"".as_ptr();
    }
    REASON.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(c"".as_ptr(), |reason| reason.as_ptr())
}

/// `heddle_pushdown`.
///
/// # Safety
/// The function takes the argument; the failure is null, or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn heddle_pushdown(
    function: Option<extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
    flags: u32,
    failure: *mut Failure,
) -> i32 {
    let address = function.map_or(0, |function| function as usize as u64);
    let outcome = if flags == 0 { push_down(address, argument as u64) } else { None };
    let mut told = Failure { kind: OK, signal: 0, code: 0, address: std::ptr::null(), instruction: std::ptr::null() };
    told.kind = match outcome {
        Some(Outcome::Ended(ended)) if ended.signal == 0 => OK,
        Some(Outcome::Ended(ended)) => {
            (told.signal, told.code) = (ended.signal as i32, ended.code);
            (told.address, told.instruction) = (ended.address as *const c_void, ended.instruction as *const c_void);
            SIGNAL
        }
        Some(Outcome::Lost) => LOST,
        Some(Outcome::Busy) => BUSY,
        None => REFUSED,
    };
    let kind = told.kind;
    if !failure.is_null() {
        // SAFETY: as the caller answers for.
        unsafe { failure.write(told) };
    }
    kind
}

/// `heddle_syncmem`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_syncmem(start: *const c_void, bytes: usize) -> i32 {
    if is_in_call() {
        // What a function writes is seen by the caller without it.
        return OK;
    }
    if !is_open() {
        return REFUSED;
    }
    let (start, bytes) = (start as u64, bytes as u64);
    on_private_stack(move |_, _| match CALLER.acquire().as_mut() {
        Some(caller) => {
            caller.syncmem(start, bytes);
            if caller.is_lost() { LOST } else { OK }
        }
        None => REFUSED,
    })
}

/// `heddle_far_map`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_far_map(bytes: usize, budget: usize) -> *mut c_void {
    match far::map(bytes, budget) {
        Ok(start) => start as *mut c_void,
        Err(error) => {
            set_errno(error);
            std::ptr::null_mut()
        }
    }
}
