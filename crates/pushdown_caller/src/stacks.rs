//! Stacks of which the executor sees nothing.
//!
//! A thread that holds the lock must not wait for a page, and any page of its own stack may be elsewhere. So everything under the lock
//! is done on one of these.

#![allow(unsafe_code)]

use std::arch::asm;
use std::mem::{self, ManuallyDrop};
use std::sync::atomic::{AtomicU64, Ordering};

use bare::system_call::{Errno, SignalsBlocked, map_anonymous_at, pause};
use bare::thread::STACK_BYTES;

use crate::places::STACKS;
use crate::rseq::RseqRemoved;

/// Threads that can be on such a stack at the same time: as many as can call at the same time, and some.
const WORDS: usize = 8;
const STACKS_MAX: usize = WORDS * 64;
/// Stacks lie so far apart; the first one is the handler's.
const DISTANCE: usize = 2 * STACK_BYTES;
/// How long to wait for a free stack, in microseconds.
const PAUSE: i64 = 100;

/// Which stacks are in use.
static USED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Which stacks were mapped. They stay.
static MAPPED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];

/// Runs a function on a stack of its own, with all signals blocked and without `rseq`. It gets the stack pointer that the thread had before, and the
/// set of signals that were blocked before, which it may change. Neither the function nor what it captures is on the thread's stack
/// while it runs.
pub(crate) fn on_private_stack<R, F: FnOnce(u64, &mut u64) -> R>(function: F) -> R {
    let index = loop {
        match take() {
            Some(index) => break index,
            None => pause(PAUSE),
        }
    };
    let blocked = SignalsBlocked::new();
    let removed = RseqRemoved::new();
    let mut task = Task { function: ManuallyDrop::new(function), result: None, signals: blocked.before() };
    // SAFETY: the stack is this thread's until it is given back; `run` takes a pointer to such a task.
    unsafe { switch(stack(index) + STACK_BYTES, run::<R, F> as *const () as usize, (&raw mut task) as usize) };
    give(index);
    drop(removed);
    mem::forget(blocked);
    drop(SignalsBlocked::resume(task.signals));
    match task.result {
        Some(result) => result,
        // `run` does not unwind.
        None => std::process::abort(),
    }
}

struct Task<R, F> {
    function: ManuallyDrop<F>,
    result: Option<R>,
    signals: u64,
}

/// On the private stack. The task is on the thread's own: it is touched at the beginning and at the end, when no lock is held.
extern "C" fn run<R, F: FnOnce(u64, &mut u64) -> R>(task: &mut Task<R, F>, stack: u64) {
    // Volatile: an ordinary read may be put off to where each value is used, when its page may be gone.
    // SAFETY: the function is taken once, here.
    let function = ManuallyDrop::into_inner(unsafe { (&raw const task.function).read_volatile() });
    let mut signals = task.signals;
    let result = function(stack, &mut signals);
    task.signals = signals;
    task.result = Some(result);
}

/// Calls a function of C with an argument and the present stack pointer, on another stack.
///
/// # Safety
/// `stack` is the upper end of memory that nobody else uses. The function does not unwind.
unsafe fn switch(stack: usize, function: usize, argument: usize) {
    // SAFETY: as the caller answers for; `r12` is saved by what is called.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, rdx",
            "mov rsi, r12",
            "call rax",
            "mov rsp, r12",
            in("rax") function,
            in("rdi") argument,
            in("rdx") stack,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Takes a stack, and maps it if it was never used.
fn take() -> Option<usize> {
    for (word, used) in USED.iter().enumerate() {
        let before = used.load(Ordering::Relaxed);
        let free = (!before).trailing_zeros();
        if free < u64::BITS && used.fetch_or(1 << free, Ordering::Acquire) & 1 << free == 0 {
            let index = word * u64::BITS as usize + free as usize;
            if MAPPED[word].load(Ordering::Relaxed) & 1 << free != 0 {
                return Some(index);
            }
            match map_anonymous_at(stack(index), STACK_BYTES) {
                // The child of a fork has those of its parent.
                Ok(_) | Err(Errno(libc::EEXIST)) => {
                    MAPPED[word].fetch_or(1 << free, Ordering::Relaxed);
                    return Some(index);
                }
                Err(_) => give(index),
            }
        }
    }
    None
}

fn give(index: usize) {
    USED[index / u64::BITS as usize].fetch_and(!(1 << (index % u64::BITS as usize)), Ordering::Release);
}

/// The lower end of a stack.
fn stack(index: usize) -> usize {
    STACKS + (index + 1) * DISTANCE
}

const _: () = assert!(STACKS_MAX * DISTANCE < 1 << 32, "stacks end before what lies behind them");
