//! The interface for C: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bare::system_call::set_errno;

use crate::call::{is_in_call, push_down};
use crate::exported_terms::{set_limit, usual_terms};
use crate::failure::{Failure, LOST, OK, REFUSED, tell};
use crate::synchronise::mode_of;
use crate::terms::Terms;
use crate::wait::is_open;
use crate::{far, open};

/// `struct heddle_pushdown_options`.
#[repr(C)]
pub struct OpenOptions {
    size: usize,
    executor: *const c_char,
    contexts: u32,
    limit_ms: u32,
    silence_ms: u32,
    storage: *const c_char,
    memory: usize,
}

/// Its size before it had limits, and before it had storage.
const OPTIONS_BYTES_MIN: usize = 24;
const OPTIONS_BYTES_WITHOUT_STORAGE: usize = 32;

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
    let mut limit_ms = 0;
    // SAFETY: as the caller answers for: no member behind the size is read. The path is a string of C.
    unsafe {
        if !options.is_null() {
            let size = (&raw const (*options).size).read();
            if size < OPTIONS_BYTES_MIN {
                return refuse("the options are of an unknown version");
            }
            let executor = (&raw const (*options).executor).read();
            if !executor.is_null() {
                settings.executor = Some(CStr::from_ptr(executor).to_string_lossy().into_owned());
            }
            settings.contexts = (&raw const (*options).contexts).read().max(1);
            if size >= OPTIONS_BYTES_WITHOUT_STORAGE {
                let silence_ms = (&raw const (*options).silence_ms).read();
                settings.silence = (silence_ms > 0).then(|| Duration::from_millis(silence_ms.into()));
                limit_ms = (&raw const (*options).limit_ms).read();
            }
            if size >= size_of::<OpenOptions>() {
                let storage = (&raw const (*options).storage).read();
                if !storage.is_null() {
                    let folder = OsStr::from_bytes(CStr::from_ptr(storage).to_bytes()).into();
                    settings.storage = Some((folder, (&raw const (*options).memory).read()));
                }
            }
        }
    }
    match open::open(&settings) {
        Ok(()) => {
            set_limit(limit_ms);
            OK
        }
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
    let outcome = mode_of(flags).and_then(|mode| push_down(address, argument as u64, &Terms { mode, ..usual_terms() }));
    // SAFETY: as the caller answers for.
    unsafe { tell(outcome, failure) }
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

/// `heddle_far_evict`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_far_evict(start: *mut c_void, bytes: usize) -> i32 {
    match far::evict(start as u64, bytes as u64) {
        Some(true) => OK,
        Some(false) => LOST,
        None => REFUSED,
    }
}

const _: () = assert!(size_of::<OpenOptions>() == 48, "as the header says");
