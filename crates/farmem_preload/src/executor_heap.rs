//! A heap whose home is an executor of pushed functions, which use it there, in place.
//!
//! 1. With the program's first allocation it is decided that there will be such a heap; allocations are [`early`](crate::early) ones.
//! 2. When the program's libraries are set up, this library opens that of pushed functions, which is preloaded behind it, and maps a far range
//!    of it: the executor has the range, and the program a budget of it.
//! 3. From then on allocations and large mappings lie in that range. Memory that is given back is dropped by the library of pushed functions,
//!    which tells the executor.
//! 4. No child has the heap: `fork` fails, and the variables are taken out of the environment, so programs that this one executes have ordinary
//!    heaps.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::mem;
use std::ptr;

use bare::system_call::Errno;
use farmem_control::{EXECUTOR_HEAP_VARIABLE, EXECUTOR_STORAGE_VARIABLE};

use crate::attach::extents;
use crate::environment::ExecutorHeap;
use crate::far_heap::{FAR_HEAP, Reservation};
use crate::local;
use crate::message::{end_program, end_program_after};

/// `struct heddle_pushdown_options`.
#[repr(C)]
struct PushdownOptions {
    size: usize,
    executor: *const c_char,
    contexts: c_uint,
    limit_ms: c_uint,
    silence_ms: c_uint,
    executors: *const c_char,
    storage: *const c_char,
    memory: usize,
}

const _: () = assert!(size_of::<PushdownOptions>() == 56, "as heddle_pushdown.h says");

type Open = unsafe extern "C" fn(*const PushdownOptions) -> c_int;
type Reason = unsafe extern "C" fn() -> *const c_char;
type FarMap = unsafe extern "C" fn(usize, usize) -> *mut c_void;

/// Opens the library of pushed functions, and gives the program its heap. A program that cannot have it ends.
pub(crate) fn attach(heap: ExecutorHeap) {
    let (open, reason, far_map) =
        (find(c"heddle_pushdown_open"), find(c"heddle_pushdown_reason"), find(c"heddle_far_map"));
    // SAFETY: `heddle_pushdown.h` declares these functions with these types.
    let (open, reason, far_map) = unsafe {
        (
            mem::transmute::<*mut c_void, Open>(open),
            mem::transmute::<*mut c_void, Reason>(reason),
            mem::transmute::<*mut c_void, FarMap>(far_map),
        )
    };
    local::pass_on();
    let [heap_variable, storage_variable] =
        [EXECUTOR_HEAP_VARIABLE, EXECUTOR_STORAGE_VARIABLE].map(|name| CString::new(name).unwrap_or_default());
    let options = PushdownOptions {
        size: size_of::<PushdownOptions>(),
        executor: ptr::null(),
        contexts: heap.contexts.try_into().unwrap_or(c_uint::MAX),
        limit_ms: 0,
        silence_ms: 0,
        executors: ptr::null(),
        // SAFETY: the name is a string of C, and nothing changes the environment before `main`.
        storage: unsafe { libc::getenv(storage_variable.as_ptr()) },
        memory: heap.memory_bytes,
    };
    // SAFETY: the options live until the function returns, and so does what they point to.
    if unsafe { open(&raw const options) } != 0 {
        // SAFETY: the function returns a string of C, which stays until it is called again.
        let reason = unsafe { CStr::from_ptr(reason()) };
        end_program(&["the far heap: ", reason.to_str().unwrap_or("there is no executor")]);
    }
    for name in [heap_variable, storage_variable] {
        // SAFETY: the name is a string of C; the process has no other thread of the program yet.
        unsafe { libc::unsetenv(name.as_ptr()) };
    }
    let reservation = Reservation::at_executor(heap.bytes, |bytes| {
        // SAFETY: the call has no memory argument.
        let start = unsafe { far_map(bytes, heap.budget_bytes) };
        // SAFETY: the number is the thread's own.
        if start.is_null() { Err(Errno(unsafe { *libc::__errno_location() })) } else { Ok(start as usize) }
    });
    let reservation =
        reservation.unwrap_or_else(|error| end_program_after("cannot map far memory of the executor", error));
    let extents = extents(reservation).unwrap_or_else(|error| end_program_after("cannot map the heap's bits", error));
    FAR_HEAP.attach_at_executor(reservation, extents);
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() {
        end_program(&["the far heap: libheddle_pushdown.so has to be preloaded too, behind libheddle_farmem.so"]);
    }
    found
}
