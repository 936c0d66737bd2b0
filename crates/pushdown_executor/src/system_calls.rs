//! System calls of functions, which the caller makes.

use bare::signal::SET_SYSTEM_CALL_DISPATCH;
use bare::system_call::exit_group;
use page_coherence::CallId;
use pushdown::ToCaller;

use crate::executor::Executor;

/// What came of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SystemCallOutcome {
    /// It returned this.
    Returned(i64),
    /// It ends the function as this signal would.
    Ends(i32),
    /// The function's time is over.
    Over,
}

/// Whether this side has to follow what a system call does to the caller's memory. Such a call is waited for, even if the function's time is
/// over.
pub(crate) fn changes_this_side(number: u64) -> bool {
    number == libc::SYS_mprotect as u64
}

impl Executor {
    /// Begins a system call of a function; what came of it, if the caller need not be asked.
    pub(crate) fn begin_system_call(
        &mut self,
        call: CallId,
        number: u64,
        arguments: [u64; 6],
    ) -> Option<SystemCallOutcome> {
        let refused = |error: i32| Some(SystemCallOutcome::Returned(-i64::from(error)));
        match number as libc::c_long {
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => return refused(libc::EAGAIN),
            // The program allocates other memory and copies instead.
            libc::SYS_mremap => return refused(libc::ENOMEM),
            libc::SYS_execve | libc::SYS_execveat | libc::SYS_ptrace | libc::SYS_arch_prctl | libc::SYS_seccomp => {
                return refused(libc::EPERM);
            }
            libc::SYS_rseq | libc::SYS_set_robust_list => return refused(libc::ENOSYS),
            libc::SYS_prctl if arguments[0] == SET_SYSTEM_CALL_DISPATCH => {
                return refused(libc::EINVAL);
            }
            // A thread that would end here is the caller's, which waits.
            libc::SYS_exit => return Some(SystemCallOutcome::Ends(libc::SIGSYS)),
            // What `abort` does first. The caller shall live.
            libc::SYS_tgkill if arguments[2] == libc::SIGABRT as u64 => {
                return Some(SystemCallOutcome::Ends(libc::SIGABRT));
            }
            _ => {}
        }
        let mut out = Vec::new();
        self.side.before_service(&mut out);
        self.finish_outputs(out);
        self.ask(&ToCaller::SystemCall(call, number, arguments));
        None
    }

    /// What the system call of a call has returned.
    pub(crate) fn returned(&mut self, call: CallId) -> Option<i64> {
        self.returned.remove(&call)
    }

    /// A system call has returned: this process does what changes its memory too.
    pub(crate) fn end_system_call(&mut self, number: u64, arguments: [u64; 6], value: i64) {
        let mut out = Vec::new();
        self.side.after_service(&mut out);
        self.finish_outputs(out);
        if changes_this_side(number) && value == 0 {
            let [start, bytes, protection, ..] = arguments;
            if self.protect(start, start.saturating_add(bytes), protection as u32).is_err() {
                exit_group(1);
            }
        }
    }
}
