//! Forks of a program with a far heap.
//!
//! 1. Before the fork, the thread takes the lock of the heap and tells the server. No page moves until there is a child.
//! 2. The parent tells the server that the fork is over, and releases the lock.
//! 3. The child connects to the server, which serves its faults already, starts an agent of its own, and releases its copy of
//!    the lock.
//!
//! Handlers of `pthread_atfork` do this, so forks inside the C library are covered too. They cannot refuse a fork: this
//! library's own `fork` and `_Fork` do where the server cannot serve children. If such a fork comes about all the same, the child has
//! no far heap: it may execute another program, and ends at its first access. It must not find zeros there.
//!
//! A heap whose home is an executor can have no child at all: the executor serves one process.
//!
//! `vfork` and `posix_spawn` need nothing: until it executes another program, the child uses its parent's memory.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use bare::system_call::{Errno, pause, set_errno, unmap};
use farmem_control::{reply, request};

use crate::attach;
use crate::far_heap::{FAR_HEAP, Reservation};
use crate::message::print;
use crate::requests;

/// How long to wait for pages that are in flight.
const BUSY_PAUSE_MICROSECONDS: i64 = 50;

/// The number of a fork that the server refuses.
const REFUSED: u64 = 0;

/// The number of the fork that is going on. Used by the holder of the heap's lock.
static FORK: AtomicU64 = AtomicU64::new(REFUSED);
/// The signals that the forking thread had blocked before. Used by the holder of the heap's lock.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// The `_Fork` of the C library; null if it has none.
static REAL_FORK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

unsafe extern "C" {
    /// The C library's `fork`, by its other name.
    fn __fork() -> libc::pid_t;
}

/// Looks up what [`_Fork`] calls. Later would be too late: it may be called in a signal handler.
pub(crate) fn look_up() {
    // SAFETY: the name is a string of C.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"_Fork".as_ptr()) };
    REAL_FORK.store(found, Ordering::Relaxed);
}

/// Has the C library call the handlers. With a server, as the first ones to be registered they are the last ones before the fork, and the first
/// ones after it.
pub(crate) fn register() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

unsafe extern "C" fn before() {
    let Some(reservation) = FAR_HEAP.reservation() else { return };
    if FAR_HEAP.is_at_executor() {
        return print(&["the far heap's home is an executor: the child will have no heap"]);
    }
    let state = FAR_HEAP.lock();
    let number = if FAR_HEAP.can_fork() { begin(reservation) } else { REFUSED };
    if number == REFUSED {
        print(&["the server cannot serve a child of this process: the child will have no heap"]);
    }
    FORK.store(number, Ordering::Relaxed);
    SIGNALS.store(state.signals(), Ordering::Relaxed);
    state.keep();
}

/// Returns the number of the fork. The caller holds the heap's lock.
fn begin(reservation: Reservation) -> u64 {
    let page = FAR_HEAP.request_page();
    loop {
        match requests::send(page, reservation.doorbell(), request::FORK_BEGIN, 0, 0) {
            reply::DONE => return page.fork.load(Ordering::Relaxed),
            reply::BUSY => pause(BUSY_PAUSE_MICROSECONDS),
            _ => return REFUSED,
        }
    }
}

unsafe extern "C" fn after_in_parent() {
    let Some(reservation) = FAR_HEAP.reservation().filter(|_| !FAR_HEAP.is_at_executor()) else { return };
    // SAFETY: this thread has taken the lock in `before`, and put its guard aside.
    let _state = unsafe { FAR_HEAP.resume_lock(SIGNALS.load(Ordering::Relaxed)) };
    if FORK.load(Ordering::Relaxed) != REFUSED {
        requests::send(FAR_HEAP.request_page(), reservation.doorbell(), request::FORK_END, 0, 0);
    }
}

unsafe extern "C" fn after_in_child() {
    let Some(reservation) = FAR_HEAP.reservation() else { return };
    if FAR_HEAP.is_at_executor() {
        // The kernel has kept it from the child.
        return FAR_HEAP.detach();
    }
    // SAFETY: this thread is the copy of the one that has taken the lock, and the only one.
    let state = unsafe { FAR_HEAP.resume_lock(SIGNALS.load(Ordering::Relaxed)) };
    match FORK.load(Ordering::Relaxed) {
        REFUSED => {
            FAR_HEAP.detach();
            // SAFETY: what uses this memory has to end.
            let _ = unsafe { unmap(reservation.region, reservation.bytes()) };
        }
        number => attach::attach_child(&state.server, reservation, number),
    }
}

/// False, with a message, if the program cannot fork.
fn is_allowed() -> bool {
    let is_allowed = FAR_HEAP.reservation().is_none() || FAR_HEAP.can_fork();
    if !is_allowed {
        print(&[if FAR_HEAP.is_at_executor() {
            "this program's far heap has an executor as its home, so it cannot fork; posix_spawn and vfork work"
        } else {
            "this program has a far heap and cannot fork: for that `heddle` needs the capability CAP_SYS_PTRACE"
        }]);
        set_errno(Errno(libc::EAGAIN));
    }
    is_allowed
}

/// Forks (`fork(2)`).
///
/// # Safety
/// That of `fork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn fork() -> libc::pid_t {
    // SAFETY: the caller promises it.
    if is_allowed() { unsafe { __fork() } } else { -1 }
}

/// Forks without calling handlers (`_Fork(3)`); those of this library are called all the same.
///
/// # Safety
/// That of `_Fork`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Fork() -> libc::pid_t {
    let real = REAL_FORK.load(Ordering::Relaxed);
    if real.is_null() {
        set_errno(Errno(libc::ENOSYS));
        return -1;
    }
    if !is_allowed() {
        return -1;
    }
    // SAFETY: the C library's `_Fork` is such a function; the caller promises the rest.
    unsafe {
        let real = mem::transmute::<*mut c_void, unsafe extern "C" fn() -> libc::pid_t>(real);
        before();
        let child = real();
        if child == 0 {
            after_in_child()
        } else {
            after_in_parent()
        }
        child
    }
}
