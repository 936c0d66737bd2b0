//! The library's own thread: it serves the faults of the program, and the executor when nobody else looks.

#![allow(unsafe_code)]

use std::time::Duration;

use bare::alarm::Alarm;
use bare::signal::handler_of;
use bare::system_call::{Errno, system_call};
use bare::thread::start_at;

use crate::caller::Caller;
use crate::executor_process::ExecutorProcess;
use crate::places::STACKS;
use crate::variables::threads;
use crate::wait::CALLER;

/// The name that tools show.
const NAME: &std::ffi::CStr = c"pushdown";

/// How often it looks for a page before it looks for faults again: some 10 µs.
const LOOK_TURNS: u32 = 400;
/// How often it does so before it sleeps.
const LOOKS_MAX: u32 = 10;

/// Signals by which people and supervisors end a program.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Starts it.
///
/// # Errors
/// Of the operating system.
pub(crate) fn start() -> Result<(), Errno> {
    start_at(STACKS, run, ())
}

extern "C" fn run((): &mut ()) -> ! {
    // SAFETY: the kernel reads a static name.
    let _ = unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, NAME.as_ptr() as usize]) };
    let mut looks = 0;
    loop {
        let unexplained = CALLER.acquire().as_ref().and_then(Caller::unexplained);
        if let Some(process) = unexplained {
            let reason = process.end_reason();
            if let Some(caller) = CALLER.acquire().as_mut() {
                caller.note_end(reason);
            }
        }
        let (link, faults, alarm, pause, is_lost, calls, is_awaiting) = {
            let mut held = CALLER.acquire();
            // It was there before this thread was.
            let Some(caller) = held.as_mut() else { continue };
            caller.handle_messages(false);
            caller.handle_events();
            caller.tick();
            let (pause, calls, is_awaiting) = (caller.pause(), caller.open_calls(), caller.is_awaiting_pages());
            (caller.link(), caller.faults(), caller.watch.alarm(), pause, caller.is_lost(), calls, is_awaiting)
        };
        // The executor usually answers sooner than this thread could sleep and be woken.
        if is_awaiting && !is_lost && looks < LOOKS_MAX {
            link.attend().look(LOOK_TURNS);
            looks = if link.has_message() { 0 } else { looks + 1 };
            continue;
        }
        looks = 0;
        // All other threads are in calls.
        if calls > 0 && calls + 1 >= threads() {
            end_on_signals();
        }
        // A lost executor's socket would wake this thread for ever.
        let socket = if is_lost { -1 } else { link.socket() };
        if is_lost || link.may_sleep() {
            sleep(faults, socket, alarm, pause);
        }
        if !is_lost && !link.drain_socket() {
            let process = CALLER.acquire().as_ref().map(|caller| caller.watch.process());
            let reason = process.map(ExecutorProcess::end_reason);
            if let Some(caller) = CALLER.acquire().as_mut() {
                // What it has sent before its end counts.
                caller.handle_messages(false);
                reason.into_iter().for_each(|reason| caller.note_end(reason));
                caller.lose();
            }
        }
    }
}

/// Ends the program on a signal that would end it anyway. Threads in calls block signals.
fn end_on_signals() {
    let (mut pending, mut before) = (0_u64, 0_u64);
    let pointer = |number: &mut u64| std::ptr::from_mut(number) as usize;
    // SAFETY: the kernel writes a set of eight bytes.
    let known = unsafe { system_call(libc::SYS_rt_sigpending, [pointer(&mut pending), 8]) };
    for signal in ENDING.into_iter().filter(|signal| known.is_ok() && pending & signal_bit(*signal) != 0) {
        if handler_of(signal) == Ok(libc::SIG_DFL) {
            let mut set = signal_bit(signal);
            let arguments = [libc::SIG_UNBLOCK as usize, pointer(&mut set), pointer(&mut before), 8];
            // SAFETY: the kernel reads one set and writes the other. The signal has no handler, so it ends the program.
            let _ = unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
        }
    }
}

/// The place of a signal in a set.
fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Sleeps until the kernel reports something, the executor has sent something, the alarm rings, or the time is over.
fn sleep(faults: i32, socket: i32, alarm: Alarm, pause: Option<Duration>) {
    let mut polls = [faults, socket, alarm.0].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let time =
        pause.map(|pause| libc::timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
    let time = time.as_ref().map_or(0, |time| std::ptr::from_ref(time) as usize);
    // SAFETY: the kernel reads and writes three structures, and reads or changes the time.
    let _ = unsafe { system_call(libc::SYS_ppoll, [polls.as_mut_ptr() as usize, polls.len(), time, 0]) };
}
