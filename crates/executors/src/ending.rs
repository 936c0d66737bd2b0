//! Why an executor ended. Pure.

use std::time::Duration;

use base::event::Counter;

use crate::events;

/// `SIGSYS`.
const FORBIDDEN_CALL: i32 = 31;
/// `SIGKILL`.
const KILL: i32 = 9;

/// Why the role has killed an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KillCause {
    /// Its program closed the connection.
    Closed,
    /// Its program ended.
    ProgramEnded,
    /// Its program sent something after its hello.
    Broken,
    /// It did not answer for so long.
    Silent(Duration),
    /// It did not begin within this time.
    Late(Duration),
    /// The role stops.
    Stopping,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExitStatus {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Signalled(i32),
    /// Another thread of the role's process has asked before.
    Unknown,
}

/// A reason for people, and what counts it.
pub(crate) struct Ending {
    pub(crate) reason: String,
    pub(crate) counter: &'static Counter,
}

/// Why an executor ended. `was_memory` says that the kernel killed it for its memory, of which it had `memory_bytes`.
pub(crate) fn ending(
    cause: Option<KillCause>,
    status: ExitStatus,
    was_memory: bool,
    memory_bytes: Option<u64>,
) -> Ending {
    let made = |reason: String, counter| Ending { reason, counter };
    if was_memory {
        let mebibytes = memory_bytes.unwrap_or_default() >> 20;
        let reason = format!("the kernel ended it: it needed more than its memory of {mebibytes} MiB");
        return made(reason, &events::EndedForMemory);
    }
    match (cause, status) {
        (Some(KillCause::Closed), _) => made("its program closed the connection".to_owned(), &events::EndedWithProgram),
        (Some(KillCause::ProgramEnded), _) => made("its program ended".to_owned(), &events::EndedWithProgram),
        (Some(KillCause::Broken), _) => {
            made("its program sent more than a hello to the role".to_owned(), &events::EndedOtherwise)
        }
        (Some(KillCause::Silent(silence)), _) => {
            made(format!("it did not answer for {} ms", silence.as_millis()), &events::EndedForSilence)
        }
        (Some(KillCause::Late(time)), _) => {
            made(format!("it did not begin within {} s", time.as_secs()), &events::EndedForSilence)
        }
        (Some(KillCause::Stopping), _) => made("the role executors has stopped".to_owned(), &events::EndedWithRole),
        // It sees the end of its socket.
        (None, ExitStatus::Exited(0)) => made("its program ended".to_owned(), &events::EndedWithProgram),
        (None, ExitStatus::Exited(1)) => made(
            "it gave its program up, which had broken the protocol, or the kernel refused what it needs".to_owned(),
            &events::EndedOtherwise,
        ),
        (None, ExitStatus::Exited(code)) => made(format!("it ended with status {code}"), &events::EndedOtherwise),
        (None, ExitStatus::Signalled(FORBIDDEN_CALL)) => made(
            "the kernel ended it: it made a system call that is forbidden to it".to_owned(),
            &events::EndedOtherwise,
        ),
        (None, ExitStatus::Signalled(KILL)) => {
            made("somebody else killed it, by signal 9".to_owned(), &events::EndedOtherwise)
        }
        (None, ExitStatus::Signalled(signal)) => made(format!("signal {signal} ended it"), &events::EndedOtherwise),
        (None, ExitStatus::Unknown) => made("it has ended".to_owned(), &events::EndedOtherwise),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ending_is_named_by_its_first_cause() {
        let killed = ExitStatus::Signalled(KILL);
        let silence = Duration::from_secs(10);
        for (cause, status, was_memory, expected) in [
            (None, killed, true, "more than its memory of 64 MiB"),
            (None, killed, false, "somebody else killed it"),
            (Some(KillCause::Silent(silence)), killed, false, "did not answer for 10000 ms"),
            (Some(KillCause::Stopping), killed, false, "has stopped"),
            (Some(KillCause::Closed), killed, false, "closed the connection"),
            (None, ExitStatus::Signalled(FORBIDDEN_CALL), false, "forbidden"),
            (None, ExitStatus::Signalled(11), false, "signal 11"),
            (None, ExitStatus::Exited(0), false, "its program ended"),
            (None, ExitStatus::Exited(7), false, "status 7"),
        ] {
            let ending = ending(cause, status, was_memory, Some(64 << 20));
            assert!(ending.reason.contains(expected), "{}", ending.reason);
        }
    }
}
