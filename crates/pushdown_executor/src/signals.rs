//! The signals by which a function is stopped when it needs something, or is ended.

#![allow(unsafe_code)]

use bare::signal::{STOPPED_CALL, set_handler};
use bare::system_call::{Errno, exit_group};
use page_coherence::Access;
use pushdown::{EXIT_CALL, EXITS, Ended, PRIVATE, SYNCHRONISE_CALL, cycles};

use crate::context::{Context, resume};
use crate::executor::FaultOutcome;
use crate::limit::{LIMIT_SIGNAL, is_over};
use crate::system_calls::{SystemCallOutcome, changes_this_side};
use crate::wait::{Held, handle_messages, wait_until};

/// The processor's flags as functions of C expect them: no single steps, no alignment checks.
const PLAIN_FLAGS: libc::greg_t = 0x202;
/// `SI_KERNEL`: no address belongs to the signal.
const OF_KERNEL: i32 = 128;
/// The bit of a page fault's error code that says that it was a write.
const FAULT_WAS_WRITE: i64 = 1 << 1;

/// The bit that says that it was the fetch of an instruction.
const FAULT_WAS_FETCH: i64 = 1 << 4;

/// The signals that instructions cause, and that of the limit.
pub(crate) const SIGNALS: [i32; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, LIMIT_SIGNAL];

/// Installs the handler.
///
/// # Errors
/// Of the operating system.
pub(crate) fn install() -> Result<(), Errno> {
    for signal in SIGNALS {
        // SAFETY: threads that run functions have a stack for signals; the others block these, or cause none.
        unsafe { set_handler(signal, handle, libc::SA_ONSTACK) }?;
    }
    Ok(())
}

/// Runs on the thread's stack for signals, with the caller's thread block: no thread-local variable may be used.
unsafe extern "C" fn handle(signal: i32, info: &libc::siginfo_t, user: &mut libc::ucontext_t) {
    let registers = &mut user.uc_mcontext.gregs;
    let instruction = registers[libc::REG_RIP as usize] as u64;
    if signal == LIMIT_SIGNAL {
        // Within this program the thread may have the lock. The service thread signals again.
        if info.si_code == libc::SI_TKILL && !is_private(instruction) {
            // SAFETY: the signal came on a function thread, while its function ran; other threads block it.
            kill_if_over(unsafe { Context::of_handler() }, registers);
        }
        return;
    }
    // SAFETY: the kernel gives this address for signals of instructions; for others it is some number.
    let address = unsafe { info.si_addr() } as u64;
    let cause = registers[libc::REG_ERR as usize];
    let access = if cause & FAULT_WAS_WRITE != 0 { Access::Write } else { Access::Read };
    let needed = match access {
        Access::Write => libc::PROT_WRITE,
        Access::Read if cause & FAULT_WAS_FETCH != 0 => libc::PROT_EXEC,
        Access::Read => libc::PROT_READ,
    };
    // A fault of this program itself, which has no remedy. A function has the stack of the program.
    if is_private(registers[libc::REG_RSP as usize] as u64) {
        exit_group(1);
    }
    // SAFETY: the signal came on a function thread, while its function ran.
    let context = unsafe { Context::of_handler() };
    let ended = |signal: i32| Ended { signal: signal as u32, code: info.si_code, address, instruction };
    let outcome = match signal {
        libc::SIGSEGV | libc::SIGBUS if info.si_code > 0 && info.si_code != OF_KERNEL && !is_private(address) => {
            let since = cycles();
            let outcome = fault(context, address, access, needed as u32, signal == libc::SIGSEGV);
            context.waited += cycles().saturating_sub(since);
            outcome
        }
        libc::SIGSYS if info.si_code == STOPPED_CALL => {
            let number = registers[libc::REG_RAX as usize] as u64;
            let order = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];
            let arguments = order.map(|register| registers[register as usize] as u64);
            if number == EXIT_CALL {
                end(context, registers, Ended { signal: EXITS, code: arguments[0] as i32, address: 0, instruction });
                return;
            }
            if number == SYNCHRONISE_CALL {
                synchronise();
                registers[libc::REG_RAX as usize] = 0;
                return;
            }
            match make(context, number, arguments) {
                SystemCallOutcome::Returned(value) => {
                    registers[libc::REG_RAX as usize] = value;
                    return;
                }
                SystemCallOutcome::Ends(signal) => {
                    end(context, registers, ended(signal));
                    return;
                }
                SystemCallOutcome::Over => FaultOutcome::Over,
            }
        }
        _ => FaultOutcome::Refused(signal, info.si_code),
    };
    match outcome {
        FaultOutcome::Served => {}
        FaultOutcome::Refused(signal, code) => end(context, registers, Ended { code, ..ended(signal) }),
        FaultOutcome::Over => kill_if_over(context, registers),
    }
}

fn is_private(address: u64) -> bool {
    PRIVATE.contains(&address)
}

/// Gets what an access needs: the right to a page, and one of `PROT_*`. `lacks_mapping` says that the page table had nothing to do with it.
fn fault(context: &Context, address: u64, access: Access, needed: u32, lacks_mapping: bool) -> FaultOutcome {
    let mut asked = false;
    wait_until(|executor| match lacks_mapping {
        // The caller was asked and still answers, which concerns nobody then.
        _ if is_over(context) => Some(FaultOutcome::Over),
        true => executor.mapping_fault(address, needed, &mut asked),
        false => executor.page_fault(context.call, address, access, &mut asked),
    })
}

/// A synchronisation point. What has come before it counts.
fn synchronise() {
    let mut held = Held::new();
    let executor = held.executor();
    handle_messages(executor, false);
    executor.synchronise();
}

fn make(context: &Context, number: u64, arguments: [u64; 6]) -> SystemCallOutcome {
    if let Some(outcome) = Held::new().executor().begin_system_call(context.call, number, arguments) {
        return outcome;
    }
    let is_left = || is_over(context) && !changes_this_side(number);
    let value = wait_until(|executor| match executor.returned(context.call) {
        Some(value) => Some(Some(value)),
        // The caller's thread is still in it, and will find that its call has ended.
        None => is_left().then_some(None),
    });
    let Some(value) = value else { return SystemCallOutcome::Over };
    Held::new().executor().end_system_call(number, arguments, value);
    SystemCallOutcome::Returned(value)
}

/// Ends the function, if its time is over.
fn kill_if_over(context: &mut Context, registers: &mut [libc::greg_t; 23]) {
    if is_over(context) {
        context.is_killed = true;
        let instruction = registers[libc::REG_RIP as usize] as u64;
        end(context, registers, Ended { instruction, ..Ended::default() });
    }
}

/// Has the thread go on behind the call of its function, once the handler returns.
fn end(context: &mut Context, registers: &mut [libc::greg_t; 23], ended: Ended) {
    context.ended = ended;
    registers[libc::REG_RIP as usize] = resume as *const () as libc::greg_t;
    registers[libc::REG_RSP as usize] = context.resume as libc::greg_t;
    registers[libc::REG_EFL as usize] = PLAIN_FLAGS;
}
