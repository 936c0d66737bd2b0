//! The library `libheddle_pushdown.so`, as `heddle_pushdown.h` describes it.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::ptr;

use super::error::PushdownError;
use super::failure::Failure;
use super::library_terms::{PushdownWith, Statistics, Torn, TryCancel, torn_ranges};
use super::measurement::{Counts, LinkLatency, Times};
use super::options::PushdownOptions;
use super::terms::milliseconds;

const NAME: &str = "libheddle_pushdown.so";

#[repr(C)]
struct LibraryOptions {
    size: usize,
    executor: *const c_char,
    contexts: c_uint,
    limit_ms: c_uint,
    silence_ms: c_uint,
    executors: *const c_char,
    storage: *const c_char,
    memory: usize,
}

const _: () = assert!(size_of::<LibraryOptions>() == 56);

/// The result of a call that ended with this kind.
pub(super) fn check(kind: c_int, failure: &Failure, library: &Library) -> Result<(), PushdownError> {
    match kind {
        0 => Ok(()),
        1 => Err(PushdownError::Signal {
            signal: failure.signal,
            code: failure.code,
            address: failure.address.addr(),
            instruction: failure.instruction.addr(),
            reason: Some(library.reason()).filter(|reason| !reason.is_empty()),
        }),
        3 => Err(PushdownError::Busy),
        4 => Err(PushdownError::Refused),
        5 => Err(PushdownError::Cancelled),
        6 => Err(PushdownError::Killed { instruction: failure.instruction.addr(), torn: torn_ranges(library.torn) }),
        // 2, or a kind of a later library: it is unknown what the function did.
        _ => Err(PushdownError::Lost),
    }
}

type Open = unsafe extern "C" fn(*const LibraryOptions) -> c_int;
type Reason = unsafe extern "C" fn() -> *const c_char;
type FarMap = unsafe extern "C" fn(usize, usize) -> *mut c_void;
type FarEvict = unsafe extern "C" fn(*mut c_void, usize) -> c_int;
type Syncmem = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The functions of the library, which stays loaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Library {
    open: Open,
    reason: Reason,
    pub(super) pushdown_with: PushdownWith,
    pub(super) syncmem: Syncmem,
    pub(super) try_cancel: TryCancel,
    pub(super) torn: Torn,
    pub(super) statistics: Statistics,
    pub(super) pullmem: Syncmem,
    pub(super) counts: Counts,
    pub(super) times: Times,
    pub(super) link_latency: LinkLatency,
    pub(super) far_map: FarMap,
    pub(super) far_evict: FarEvict,
}

impl Library {
    pub(super) fn load(path: Option<&Path>) -> Result<Library, PushdownError> {
        let (path, handle) = match (path, already_loaded()) {
            (None, Some(handle)) => (PathBuf::from(NAME), handle),
            (path, _) => {
                let path = path.map_or_else(default_path, |path| Ok(path.to_path_buf()))?;
                let handle = load(&path)?;
                (path, handle)
            }
        };
        let find = |symbol: &CStr| {
            // SAFETY: the handle is that of a loaded library, and the name ends with a zero byte.
            let found = unsafe { libc::dlsym(handle, symbol.as_ptr()) };
            if found.is_null() { Err(loader_error(&path)) } else { Ok(found) }
        };
        let (open, reason) = (find(c"heddle_pushdown_open")?, find(c"heddle_pushdown_reason")?);
        let (pushdown_with, syncmem) = (find(c"heddle_pushdown_with")?, find(c"heddle_syncmem")?);
        let (try_cancel, torn) = (find(c"heddle_try_cancel")?, find(c"heddle_pushdown_torn")?);
        let (statistics, pullmem) = (find(c"heddle_pushdown_statistics")?, find(c"heddle_pullmem")?);
        let (counts, times) = (find(c"heddle_pushdown_counts")?, find(c"heddle_pushdown_times")?);
        let link_latency = find(c"heddle_pushdown_link_ns")?;
        let (far_map, far_evict) = (find(c"heddle_far_map")?, find(c"heddle_far_evict")?);
        // SAFETY: `heddle_pushdown.h` declares these functions with these types, and the library is never unloaded.
        unsafe {
            Ok(Library {
                open: std::mem::transmute::<*mut c_void, Open>(open),
                reason: std::mem::transmute::<*mut c_void, Reason>(reason),
                pushdown_with: std::mem::transmute::<*mut c_void, PushdownWith>(pushdown_with),
                syncmem: std::mem::transmute::<*mut c_void, Syncmem>(syncmem),
                try_cancel: std::mem::transmute::<*mut c_void, TryCancel>(try_cancel),
                torn: std::mem::transmute::<*mut c_void, Torn>(torn),
                statistics: std::mem::transmute::<*mut c_void, Statistics>(statistics),
                pullmem: std::mem::transmute::<*mut c_void, Syncmem>(pullmem),
                counts: std::mem::transmute::<*mut c_void, Counts>(counts),
                times: std::mem::transmute::<*mut c_void, Times>(times),
                link_latency: std::mem::transmute::<*mut c_void, LinkLatency>(link_latency),
                far_map: std::mem::transmute::<*mut c_void, FarMap>(far_map),
                far_evict: std::mem::transmute::<*mut c_void, FarEvict>(far_evict),
            })
        }
    }

    /// Starts the executor.
    pub(super) fn open(&self, options: &PushdownOptions) -> Result<(), PushdownError> {
        let executor = options.executor.as_deref().map(to_c_string).transpose()?;
        let executors = options.executors.as_deref().map(to_c_string).transpose()?;
        let storage = options.storage.as_ref().map(|storage| to_c_string(&storage.folder)).transpose()?;
        let memory = options.storage.as_ref().map_or(0, |storage| storage.memory_bytes);
        let options = LibraryOptions {
            size: size_of::<LibraryOptions>(),
            executor: executor.as_ref().map_or(ptr::null(), |path| path.as_ptr()),
            contexts: options.contexts,
            limit_ms: milliseconds(options.limit),
            silence_ms: milliseconds(options.silence),
            executors: executors.as_ref().map_or(ptr::null(), |path| path.as_ptr()),
            storage: storage.as_ref().map_or(ptr::null(), |path| path.as_ptr()),
            memory: usize::try_from(memory).unwrap_or(usize::MAX),
        };
        // SAFETY: the options, and the paths in them, live until the function returns.
        let kind = unsafe { (self.open)(&raw const options) };
        if kind == 0 {
            return Ok(());
        }
        Err(PushdownError::Unavailable { reason: self.reason() })
    }

    /// Why the last failure was, as far as the library says so.
    fn reason(&self) -> String {
        // SAFETY: the function returns a string of C that is valid until the next failure.
        let reason = unsafe { CStr::from_ptr((self.reason)()) };
        reason.to_string_lossy().into_owned()
    }
}

/// The library that the program was started with: `heddle farmem run --executor` preloads it.
fn already_loaded() -> Option<*mut c_void> {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"heddle_pushdown_open".as_ptr()) };
    (!found.is_null()).then_some(libc::RTLD_DEFAULT)
}

fn load(path: &Path) -> Result<*mut c_void, PushdownError> {
    let name = to_c_string(path)?;
    // SAFETY: the name ends with a zero byte. The library's initialisers are ours.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() { Err(loader_error(path)) } else { Ok(handle) }
}

fn default_path() -> Result<PathBuf, PushdownError> {
    if let Some(path) = std::env::var_os("HEDDLE_PUSHDOWN_LIBRARY").filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    let program = std::env::current_exe();
    let program = program.map_err(|error| unavailable(format!("the path of this program is unknown: {error}")))?;
    Ok(program.with_file_name(NAME))
}

fn to_c_string(path: &Path) -> Result<CString, PushdownError> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| unavailable(format!("{path:?} has a zero byte")))
}

/// The error of the last `dlopen` or `dlsym` of this thread.
fn loader_error(path: &Path) -> PushdownError {
    // SAFETY: the function returns a string that is valid until this thread's next call of the loader, or null.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
    };
    unavailable(format!("the library {} cannot be loaded: {text}", path.display()))
}

fn unavailable(reason: String) -> PushdownError {
    PushdownError::Unavailable { reason }
}
