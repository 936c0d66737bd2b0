//! The threads that run functions.

#![allow(unsafe_code)]

use bare::system_call::{Errno, exit_group, map_anonymous_at, system_call, thread_id};
use bare::thread::{STACK_BYTES, start_at};
use page_coherence::CallId;
use pushdown::{Ended, Stamps, cycles};

use crate::context::{Context, SIGNAL_STACK_BYTES, enter};
use crate::places::STACKS;
use crate::sandbox;
use crate::signals::SIGNALS;
use crate::wait::{Held, next_function};

/// Starts a thread for functions.
///
/// # Errors
/// Of the operating system.
pub(crate) fn start_thread(number: u32, has_storage: bool) -> Result<(), Errno> {
    // Behind the service thread's stack, with a gap below each.
    let place = STACKS + (number as usize + 1) * 4 * SIGNAL_STACK_BYTES.max(STACK_BYTES);
    let signal_stack = map_anonymous_at(place, SIGNAL_STACK_BYTES)?;
    start_at(place + 2 * SIGNAL_STACK_BYTES.max(STACK_BYTES), run, (number, signal_stack, has_storage))
}

extern "C" fn run(&mut (number, signal_stack, has_storage): &mut (u32, usize, bool)) -> ! {
    let thread = thread_id();
    if prepare(signal_stack, has_storage).is_err() {
        exit_group(1);
    }
    // SAFETY: the stack for signals is this thread's, and its lowest bytes are for the context.
    let context = unsafe { &mut *(signal_stack as *mut Context) };
    context.number = number;
    loop {
        let (call, registers, handled) = next_function(number, thread);
        context.call = call;
        (context.ended, context.is_killed, context.waited) = (Ended::default(), false, 0);
        let begun = cycles();
        // SAFETY: the context is this thread's.
        let was_ended = unsafe { enter(context, &registers) } != 0;
        let stamps = Stamps { handled, begun, returned: cycles(), waited: context.waited };
        let (ended, is_killed) = if was_ended { (context.ended, context.is_killed) } else { (Ended::default(), false) };
        end_function(number, call, ended, stamps, is_killed);
    }
}

fn end_function(number: u32, call: CallId, ended: Ended, stamps: Stamps, is_killed: bool) {
    Held::new().executor().end_function(number, call, ended, stamps, is_killed);
}

/// Signals are handled on their own stack, and system calls from outside of this program are signals.
fn prepare(signal_stack: usize, has_storage: bool) -> Result<(), Errno> {
    let stack = libc::stack_t { ss_sp: signal_stack as *mut libc::c_void, ss_flags: 0, ss_size: SIGNAL_STACK_BYTES };
    // Others are for the process of the program, which may be of the same group.
    let blocked = SIGNALS.iter().fold(u64::MAX, |set, signal| set & !(1 << (signal - 1)));
    // SAFETY: the kernel reads a structure and a set of signals; the stack is this thread's.
    unsafe {
        system_call(libc::SYS_sigaltstack, [&raw const stack as usize, 0])?;
        let set = &raw const blocked as usize;
        system_call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, set, 0, size_of::<u64>()])?;
    }
    sandbox::stop_system_calls()?;
    sandbox::enter(None, has_storage)
}
