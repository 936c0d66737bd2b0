//! A thread's way through a call.

#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Range;

use bare::system_call::pause;
use page_coherence::{CallId, CoherenceMode};
use pushdown::{EXITS, Ended, Registers, cycles};

use crate::outcome::{CallStamps, Outcome, Task};
use crate::rseq::{remove_rseq, thread_block};
use crate::stacks::on_private_stack;
use crate::system_calls;
use crate::terms::Terms;
use crate::times::keep_times;
use crate::wait::{CALLER, is_open, wait_until};

thread_local! {
    /// Whether this thread is in a call. Its function runs with the same thread block, and sees it.
    static IS_IN_CALL: Cell<bool> = const { Cell::new(false) };
    /// This thread's last call that was killed; 0 if there was none.
    static LAST_KILLED: Cell<u64> = const { Cell::new(0) };
}

/// How often a function is pushed down before [`Terms::again`] ends.
const PUSHES_MAX: u32 = 10;
/// How long a thread pauses before it pushes down again, in microseconds: first, and at most.
const BACK_OFF: Range<i64> = 1000..64_000;

/// How long to wait for a fork to be over, in microseconds.
const FORK_PAUSE: i64 = 50;
const PAGE: u64 = bare::PAGE_BYTES as u64;
/// Bytes below the stack pointer of a call that its thread uses itself, before and after it.
const LIVE_BYTES: u64 = 2 * PAGE;

/// Whether this is a pushed-down function. There the library's own variables are out of reach.
pub(crate) fn is_in_call() -> bool {
    IS_IN_CALL.get()
}

/// This thread's last call that was killed.
pub(crate) fn last_killed() -> Option<CallId> {
    Some(CallId(LAST_KILLED.get())).filter(|call| call.0 != 0)
}

/// Runs `function(argument)` in the executor. `None`: it was not run, because this is a pushed-down function, or the library is not
/// open.
pub(crate) fn push_down(function: u64, argument: u64, terms: &Terms) -> Option<Outcome> {
    if is_in_call() || !is_open() {
        return None;
    }
    let entered = cycles();
    IS_IN_CALL.set(true);
    remove_rseq();
    let terms = *terms;
    let (outcome, stamps) = on_private_stack(move |stack, signals| run(function, argument, &terms, stack, signals));
    IS_IN_CALL.set(false);
    keep_times(entered, stamps);
    if let Some(Outcome::Killed { call, .. }) = outcome {
        LAST_KILLED.set(call.0);
    }
    if let Some(Outcome::Ended(Ended { signal: EXITS, code, .. })) = outcome {
        // SAFETY: the function has called it, on this thread.
        unsafe { libc::exit(code) };
    }
    outcome
}

/// Pushes a function down, perhaps several times; how the last call has ended.
pub(crate) fn push_down_with(function: u64, argument: u64, terms: &Terms) -> Option<Outcome> {
    let mut back_off = BACK_OFF.start;
    for _ in 1..PUSHES_MAX {
        let outcome = push_down(function, argument, terms);
        if !terms.again || !outcome.is_some_and(Outcome::has_not_run) {
            return outcome;
        }
        pause(back_off);
        back_off = (back_off * 2).min(BACK_OFF.end);
    }
    push_down(function, argument, terms)
}

/// The call, on a private stack. The executor may take any page of the program meanwhile.
fn run(function: u64, argument: u64, terms: &Terms, stack: u64, signals: &mut u64) -> (Option<Outcome>, CallStamps) {
    let thread_block = thread_block();
    let (vector_control, float_control) = float_controls();
    // The pages of the live frame, and of what this library calls from there, stay on this side.
    let stack = (stack - LIVE_BYTES) / PAGE * PAGE;
    let registers = Registers { function, argument, stack, thread_block, vector_control, float_control };
    let mut stamps = CallStamps::default();
    let outcome = wait_through(registers, terms, signals, &mut stamps);
    if outcome == Some(Outcome::Lost)
        && let Some(caller) = CALLER.acquire().as_mut()
    {
        caller.give_back_stack(stack);
    }
    (outcome, stamps)
}

/// Opens the call, and does what it needs until it has ended.
fn wait_through(registers: Registers, terms: &Terms, signals: &mut u64, stamps: &mut CallStamps) -> Option<Outcome> {
    let call = match CALLER.acquire().as_mut()?.call(registers, terms) {
        Ok(call) => call,
        Err(outcome) => return Some(outcome),
    };
    loop {
        match wait_until(|caller| caller.next_task(call))? {
            Task::End(outcome, ended, asked) => {
                // The end that a lost call's function may have reported was not confirmed.
                if outcome != Outcome::Lost {
                    *stamps = ended;
                }
                if !asked.is_empty() {
                    // Here they come without a fault, and without another thread.
                    wait_until(|caller| asked.iter().all(|page| !caller.is_waiting_for(*page)).then_some(()))?;
                }
                return Some(outcome);
            }
            Task::SystemCall(number, arguments) => {
                while terms.mode != CoherenceMode::Coherent && !CALLER.acquire().as_mut()?.before_service() {
                    pause(FORK_PAUSE);
                }
                let value = system_calls::make(number, arguments, signals);
                CALLER.acquire().as_mut()?.returned(call, value);
            }
        }
    }
}

/// Control words of the vector unit and the floating-point unit.
fn float_controls() -> (u32, u32) {
    let (mut vector, mut float) = (MaybeUninit::<u32>::uninit(), 0_u16);
    // SAFETY: both instructions write one number.
    unsafe {
        asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) vector.as_mut_ptr(), in(reg) &mut float, options(nostack));
        (vector.assume_init(), u32::from(float))
    }
}
