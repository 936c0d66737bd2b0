//! What a fork needs: the child has no executor, so all pages have to be here.

#![allow(unsafe_code)]

use bare::system_call::pause;

use crate::call::is_in_call;
use crate::stacks::on_private_stack;
use crate::wait::{CALLER, abandon, is_open};

/// How long to wait for pages to come home, in microseconds.
const PAUSE: i64 = 50;

/// Has the C library call the functions below around each `fork`.
pub(crate) fn prepare() {
    // SAFETY: the functions stay, and take and return nothing.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

unsafe extern "C" fn before() {
    // The kernel will refuse.
    if is_in_call() || !is_open() {
        return;
    }
    loop {
        if on_private_stack(|_, _| CALLER.acquire().as_mut().is_none_or(|caller| caller.bring_home())) {
            return;
        }
        pause(PAUSE);
    }
}

unsafe extern "C" fn after_in_parent() {
    if is_in_call() || !is_open() {
        return;
    }
    on_private_stack(|_, _| {
        if let Some(caller) = CALLER.acquire().as_mut() {
            caller.forked();
        }
    });
}

/// In the child the memory is ordinary memory again. It cannot push functions down.
unsafe extern "C" fn after_in_child() {
    abandon();
}
