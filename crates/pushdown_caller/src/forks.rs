//! What a fork needs: the child has no executor, so all pages have to be here.
//!
//! 1. *Arming.* The C library takes locks of its own around a fork, and a function may hold one of them: it must go on until the fork has
//!    them all. So nothing is held back when the C library says that it is about to fork. Instead the kernel stops each system call of
//!    the thread from there on (Syscall User Dispatch). The handler makes them, up to the one that forks.
//! 2. *Gathering.* Then the thread asks for all pages that the program does not own, until there are none. What the program owns by
//!    then it keeps: a function's request for such a page is put off. A page that both sides have asked for goes to the function first,
//!    as always, and then comes home. So each page comes home after two transfers at most.
//! 3. *Holding.* No message is handled, so nothing leaves. The thread must be able to write every page: the kernel protects them all. It makes
//!    the system call that forks itself, and no other is stopped.
//! 4. After the fork the parent handles what has come meanwhile, and the requests that were put off.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use bare::signal::{STOPPED_CALL, handler_of, let_system_calls_pass, set_handler, stop_system_calls};
use bare::system_call::{Errno, SignalsBlocked, exit_group, system_call};
use page_coherence::{Access, PAGE_NUMBERS, PageNumber, Right};

use crate::call::is_in_call;
use crate::caller::{Caller, FETCHES_MAX};
use crate::stacks::on_private_stack;
use crate::wait::{CALLER, abandon, is_open, wait_until};

/// Bytes of the instruction that makes a system call.
const INSTRUCTION_BYTES: libc::greg_t = 2;
const SIGNAL_SYSTEM_CALL: u64 = 1 << (libc::SIGSYS - 1);

/// The library's own code, whose system calls are not stopped: where it begins, and how many bytes.
static CODE: AtomicUsize = AtomicUsize::new(0);
static CODE_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The signals that the thread had blocked before it began to fork.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };
    /// Whether it holds all pages.
    static IS_HOLDING: Cell<bool> = const { Cell::new(false) };
}

impl Caller {
    /// Whether a page stays here until a fork is over. One that the program has asked for does not: the executor may have asked first.
    pub(crate) fn keeps(&self, page: PageNumber) -> bool {
        self.forks.is_gathering() && self.side.right(page) == Right::Write && !self.side.is_waiting(page)
    }

    /// Asks for pages that the program does not own, once those that were asked for last are here. Returns whether there are none any
    /// more: then nothing leaves until [`forked`](Caller::forked).
    fn gather(&mut self, asked: &mut Vec<PageNumber>) -> bool {
        if asked.iter().any(|page| self.is_waiting_for(*page)) {
            return false;
        }
        let away = self.near_to_bring(0..PAGE_NUMBERS).into_iter().flatten().map(PageNumber);
        *asked = if self.is_lost { Vec::new() } else { away.take(FETCHES_MAX).collect() };
        for page in &*asked {
            let mut out = Vec::new();
            self.side.fault(*page, Access::Write, &mut out);
            let done = self.carry_out(out, &[]);
            self.check(done);
        }
        self.watch.begin();
        let is_home = asked.is_empty() || self.is_lost;
        self.forks.holders += u32::from(is_home);
        is_home
    }

    fn forked(&mut self) {
        self.forks.holders -= 1;
        self.forks.gatherers -= 1;
        // Threads that wait for messages could not handle them.
        self.handle_messages(false);
    }
}

/// Has the C library call the functions below around each `fork`. `code` is where the library's own code lies.
pub(crate) fn prepare(code: Range<u64>) {
    // SAFETY: the functions stay, and take and return nothing.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
    if handler_of(libc::SIGSYS) != Ok(libc::SIG_DFL) {
        // The program has its own, which it keeps.
        return;
    }
    // SAFETY: the handler uses no state of its thread but its own.
    if unsafe { set_handler(libc::SIGSYS, handle, 0) }.is_ok() {
        CODE_BYTES.store((code.end - code.start) as usize, Ordering::Relaxed);
        CODE.store(code.start as usize, Ordering::Relaxed);
    }
}

unsafe extern "C" fn before() {
    // The kernel will refuse.
    if is_in_call() || !is_open() {
        return;
    }
    let signals = SignalsBlocked::new();
    SIGNALS.set(signals.before());
    std::mem::forget(signals);
    IS_HOLDING.set(false);
    if handler_of(libc::SIGSYS) != Ok(handle as *const () as usize) {
        // A function that holds a lock of the C library stops this fork for ever.
        return hold();
    }
    set_signals(!SIGNAL_SYSTEM_CALL);
    let code = CODE.load(Ordering::Relaxed);
    if stop_system_calls(code..code + CODE_BYTES.load(Ordering::Relaxed)).is_err() {
        hold();
    }
}

/// Has all pages come home.
fn hold() {
    on_private_stack(|_, _| {
        CALLER.acquire().as_mut()?.forks.gatherers += 1;
        let mut asked = Vec::new();
        wait_until(|caller| caller.gather(&mut asked).then_some(()))
    });
    IS_HOLDING.set(true);
}

fn set_signals(set: u64) {
    // SAFETY: the kernel reads a set of eight bytes.
    let _ =
        unsafe { system_call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, &raw const set as usize, 0, 8]) };
}

/// A system call of a thread that is about to fork.
unsafe extern "C" fn handle(_: i32, info: &libc::siginfo_t, user: &mut libc::ucontext_t) {
    if info.si_code != STOPPED_CALL {
        // The signal's default.
        exit_group(128 + libc::SIGSYS);
    }
    let registers = &mut user.uc_mcontext.gregs;
    let number = registers[libc::REG_RAX as usize];
    let order = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
    let arguments = order.map(|register| registers[register as usize] as usize);
    match number {
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            hold();
            let _ = let_system_calls_pass();
            // The thread makes it again, and this time the kernel forks.
            registers[libc::REG_RIP as usize] -= INSTRUCTION_BYTES;
        }
        libc::SYS_rt_sigprocmask => {
            // SAFETY: the C library passes what the kernel expects.
            let value = unsafe { change_signals(arguments, &mut user.uc_sigmask) };
            registers[libc::REG_RAX as usize] = value;
        }
        _ => {
            // SAFETY: the thread's own code makes it.
            let outcome = unsafe { system_call(number, arguments) };
            registers[libc::REG_RAX as usize] = match outcome {
                Ok(value) => value as libc::greg_t,
                Err(Errno(error)) => -libc::greg_t::from(error),
            };
        }
    }
}

/// What `rt_sigprocmask` does, for a thread that is in a handler. The signal for stopped system calls is not blocked: that would end the process.
///
/// # Safety
/// That of the system call.
unsafe fn change_signals([how, set, before, ..]: [usize; 6], signals: &mut libc::sigset_t) -> libc::greg_t {
    let signals = std::ptr::from_mut(signals).cast::<u64>();
    // SAFETY: the caller answers for the sets; that of the context has at least eight bytes.
    unsafe {
        let (old, set) = (signals.read(), (set as *const u64).as_ref());
        let new = match (set, how as i32) {
            (None, _) => old,
            (Some(set), libc::SIG_BLOCK) => old | set,
            (Some(set), libc::SIG_UNBLOCK) => old & !set,
            (Some(set), _) => *set,
        };
        signals.write(new & !SIGNAL_SYSTEM_CALL);
        if let Some(before) = (before as *mut u64).as_mut() {
            *before = old;
        }
    }
    0
}

unsafe extern "C" fn after_in_parent() {
    if is_in_call() || !is_open() {
        return;
    }
    let _ = let_system_calls_pass();
    if IS_HOLDING.replace(false) {
        on_private_stack(|_, _| {
            if let Some(caller) = CALLER.acquire().as_mut() {
                caller.forked();
            }
        });
    }
    set_signals(SIGNALS.get());
}

/// In the child the memory is ordinary memory again. It cannot push functions down.
unsafe extern "C" fn after_in_child() {
    if is_open() {
        abandon();
        set_signals(SIGNALS.get());
    }
}
