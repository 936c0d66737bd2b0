//! A thread that runs functions: how it enters one and leaves it.

#![allow(unsafe_code)]

use std::arch::naked_asm;
use std::mem::offset_of;

use page_coherence::CallId;
use pushdown::{Ended, Registers};

/// Bytes of a stack for signals, and its alignment: the handler finds its [`Context`] at the start.
pub(crate) const SIGNAL_STACK_BYTES: usize = 256 << 10;

/// What a function thread knows. At the start of its stack for signals, which is never used so far down.
#[repr(C)]
pub(crate) struct Context {
    /// The stack pointer with which the thread goes on when its function has ended.
    pub(crate) resume: u64,
    /// Which of the contexts it is.
    pub(crate) number: u32,
    /// The call whose function runs.
    pub(crate) call: CallId,
    /// How the function ended, if a signal or its limit ended it.
    pub(crate) ended: Ended,
    /// Whether it was its limit.
    pub(crate) is_killed: bool,
    /// Cycles that the function has waited for pages and mappings.
    pub(crate) waited: u64,
}

impl Context {
    /// The context of the calling thread, which runs a signal's handler.
    ///
    /// # Safety
    /// The thread is a function thread, on its stack for signals, and has no other reference to its context.
    pub(crate) unsafe fn of_handler() -> &'static mut Context {
        let on_stack = 0_u8;
        let start = &raw const on_stack as usize / SIGNAL_STACK_BYTES * SIGNAL_STACK_BYTES;
        // SAFETY: the caller answers for it.
        unsafe { &mut *(start as *mut Context) }
    }
}

/// Calls a function with a caller's registers. Returns 0 when it returned, and 1 when [`resume`] was entered.
///
/// # Safety
/// The context is that of the calling thread. The function does whatever it does; it cannot reach this program's memory other than
/// by accident.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter(context: &mut Context, registers: &Registers) -> u64 {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 24",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 8]",
        "mov [rdi + {resume}], rsp",
        "mov rbx, rdi",
        "mov r12, [rsi + {function}]",
        "mov rdi, [rsi + {argument}]",
        "mov rax, [rsi + {thread_block}]",
        "wrfsbase rax",
        "ldmxcsr [rsi + {vector_control}]",
        "fldcw [rsi + {float_control}]",
        "mov rsp, [rsi + {stack}]",
        "xor ebp, ebp",
        "call r12",
        "mov rsp, [rbx + {resume}]",
        "xor eax, eax",
        "jmp {leave}",
        resume = const offset_of!(Context, resume),
        function = const offset_of!(Registers, function),
        argument = const offset_of!(Registers, argument),
        thread_block = const offset_of!(Registers, thread_block),
        vector_control = const offset_of!(Registers, vector_control),
        float_control = const offset_of!(Registers, float_control),
        stack = const offset_of!(Registers, stack),
        leave = sym leave,
    )
}

/// Where a function thread goes on after a signal has ended its function: with [`Context::resume`] as its stack pointer.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn resume() {
    naked_asm!("mov eax, 1", "jmp {leave}", leave = sym leave)
}

/// The end of [`enter`], with its result in `rax`.
#[unsafe(naked)]
unsafe extern "C" fn leave() {
    naked_asm!(
        "cld",
        "fninit",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 8]",
        "add rsp, 24",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}
