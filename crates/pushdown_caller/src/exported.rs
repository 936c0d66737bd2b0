//! The interface for C: `include/heddle_pushdown.h`.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bare::system_call::{pause, set_errno};

use crate::call::{is_in_call, push_down};
use crate::executor_storage::ExecutorStorage;
use crate::exported_terms::{set_limit, usual_terms};
use crate::failure::{Failure, LOST, OK, REFUSED, tell};
use crate::settings::{ExecutorSource, Settings};
use crate::stacks::on_private_stack;
use crate::synchronise::mode_of;
use crate::terms::Terms;
use crate::wait::{CALLER, is_open};
use crate::{far, open, out_of_reach};

/// `struct heddle_pushdown_options`.
#[repr(C)]
pub struct OpenOptions {
    size: usize,
    executor: *const c_char,
    contexts: u32,
    limit_ms: u32,
    silence_ms: u32,
    executors: *const c_char,
    storage: *const c_char,
    memory: usize,
}

/// Its size before it had limits, and before it had the role's socket and storage.
const OPTIONS_BYTES_MIN: usize = 24;
const OPTIONS_BYTES_WITH_LIMITS: usize = 32;
/// For how long the reason of an executor's end is waited for, in milliseconds.
const REASON_WITHIN_MS: u32 = 1500;

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
    let mut settings = Settings::default();
    let mut limit_ms = 0;
    // SAFETY: as the caller answers for: no member behind the size is read. The path is a string of C.
    unsafe {
        if !options.is_null() {
            let size = (&raw const (*options).size).read();
            if size < OPTIONS_BYTES_MIN {
                return refuse("the options are of an unknown version");
            }
            let path = |text: *const c_char| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(text).to_bytes()));
            let executor = (&raw const (*options).executor).read();
            if !executor.is_null() {
                settings.source = ExecutorSource::Program(path(executor));
            }
            settings.contexts = (&raw const (*options).contexts).read().max(1);
            if size >= size_of::<OpenOptions>() {
                let executors = (&raw const (*options).executors).read();
                if !executors.is_null() {
                    settings.source = ExecutorSource::Role(path(executors));
                }
                let (storage, memory_bytes) =
                    ((&raw const (*options).storage).read(), (&raw const (*options).memory).read());
                settings.memory_bytes = memory_bytes;
                if !storage.is_null() {
                    settings.storage = Some(ExecutorStorage { folder: path(storage), memory_bytes });
                }
            }
            if size >= OPTIONS_BYTES_WITH_LIMITS {
                let silence_ms = (&raw const (*options).silence_ms).read();
                settings.silence = (silence_ms > 0).then(|| Duration::from_millis(silence_ms.into()));
                limit_ms = (&raw const (*options).limit_ms).read();
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

/// `heddle_pushdown_reason`. The string stays until the next failure to open, or until this thread asks again.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_pushdown_reason() -> *const c_char {
    if is_in_call() {
        return c"".as_ptr();
    }
    if is_open()
        && let Some(reason) = end_reason()
    {
        refuse(&reason);
    } else if let Some(reason) = out_of_reach::reason() {
        return reason;
    }
    REASON.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map_or(c"".as_ptr(), |reason| reason.as_ptr())
}

/// Why the executor was lost, if it was. The library's thread may be waiting for the role to say so.
fn end_reason() -> Option<String> {
    for _ in 0..REASON_WITHIN_MS {
        let (reason, is_coming) = on_private_stack(|_, _| {
            let held = CALLER.acquire();
            let caller = held.as_ref()?;
            let reason = caller.watch.end_reason().filter(|_| caller.is_lost()).map(str::to_owned);
            Some((reason, caller.unexplained().is_some()))
        })?;
        if reason.is_some() || !is_coming {
            return reason;
        }
        pause(1000);
    }
    None
}

/// `heddle_pushdown_process`.
#[unsafe(no_mangle)]
pub extern "C" fn heddle_pushdown_process() -> i32 {
    if is_in_call() || !is_open() {
        return 0;
    }
    let number = on_private_stack(|_, _| CALLER.acquire().as_ref().map(|caller| caller.watch.process().number()));
    number.map_or(0, |number| number as i32)
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

const _: () = assert!(size_of::<OpenOptions>() == 56, "as the header says");

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
