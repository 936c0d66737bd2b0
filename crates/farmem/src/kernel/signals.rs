//! Keeps the program's signals away from the threads of a region.

#![allow(unsafe_code)]

use std::{mem, ptr};

/// Signals that an instruction of the thread itself causes: to block them ends the process all the same, without its handler.
const SYNCHRONOUS: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// All signals but the synchronous ones.
pub(crate) fn asynchronous() -> libc::sigset_t {
    // SAFETY: the set is plain data, which the calls fill; all signals are valid ones.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigfillset(&mut set);
        for signal in SYNCHRONOUS {
            libc::sigdelset(&mut set, signal);
        }
        set
    }
}

/// Blocks all other signals for the calling thread while this exists. Threads that are started meanwhile keep them blocked.
pub(crate) struct SignalsBlocked {
    before: libc::sigset_t,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        // SAFETY: the second set is plain data, which the call fills.
        unsafe {
            let mut before: libc::sigset_t = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, &asynchronous(), &mut before);
            SignalsBlocked { before }
        }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        // SAFETY: the set is the one that the kernel gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}
