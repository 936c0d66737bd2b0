//! Why an executor ended. Pure.

use std::time::Duration;

use base::event::Counter;
use pushdown::{STORAGE_FAILED_STATUS, STORAGE_FULL_STATUS};

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

/// Of which limit of memory the kernel has ended an executor, as far as it counts that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MemoryShortage {
    /// The executor's own.
    Executor,
    /// That of all executors of its owner.
    Owner,
    /// Both were met while it ran.
    Either,
    /// Neither: the machine's, or that of a group around the role's.
    Machine,
}

impl MemoryShortage {
    /// By whether the executor's limit was met, and its owner's; `None`: that is not known.
    pub(crate) fn of(own: Option<bool>, owner: Option<bool>) -> MemoryShortage {
        match (own.unwrap_or(true), owner.unwrap_or(true)) {
            (true, false) => MemoryShortage::Executor,
            (false, true) => MemoryShortage::Owner,
            (true, true) => MemoryShortage::Either,
            (false, false) => MemoryShortage::Machine,
        }
    }

    fn reason(self, bounds: ExecutorBounds) -> String {
        let mebibytes = |bytes: Option<u64>| bytes.unwrap_or_default() >> 20;
        let own = format!("it needed more than its memory of {} MiB", mebibytes(bounds.memory_bytes));
        let owner = mebibytes(bounds.owner_memory_bytes);
        let which = match self {
            MemoryShortage::Executor => own,
            MemoryShortage::Owner => {
                format!("the executors of its owner needed more than their memory of {owner} MiB together")
            }
            MemoryShortage::Either => {
                format!("{own}, or the executors of its owner more than theirs of {owner} MiB together")
            }
            MemoryShortage::Machine => "the machine had no memory left, or a group around the role".to_owned(),
        };
        format!("the kernel ended it: {which}")
    }
}

/// What an executor may use, for reasons.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ExecutorBounds {
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) owner_memory_bytes: Option<u64>,
    pub(crate) storage_bytes: Option<u64>,
}

/// A reason for people, and what counts it.
pub(crate) struct Ending {
    pub(crate) reason: String,
    pub(crate) counter: &'static Counter,
}

/// Why an executor ended. `shortage` says that the kernel killed it for its memory.
pub(crate) fn ending(
    cause: Option<KillCause>,
    status: ExitStatus,
    shortage: Option<MemoryShortage>,
    bounds: ExecutorBounds,
) -> Ending {
    let made = |reason: String, counter| Ending { reason, counter };
    if let Some(shortage) = shortage {
        return made(shortage.reason(bounds), &events::EndedForMemory);
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
        (None, ExitStatus::Exited(STORAGE_FULL_STATUS)) if bounds.storage_bytes.is_some() => {
            let mebibytes = bounds.storage_bytes.unwrap_or_default() >> 20;
            let reason = format!("its storage of {mebibytes} MiB is full, and it needed more memory than it has");
            made(reason, &events::EndedForMemory)
        }
        (None, ExitStatus::Exited(STORAGE_FAILED_STATUS)) if bounds.storage_bytes.is_some() => made(
            "its storage has failed: a page could not be written or read again; look for room on the disk of --storage, \
             and for errors of the disk"
                .to_owned(),
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
        let bounds = ExecutorBounds {
            memory_bytes: Some(64 << 20),
            owner_memory_bytes: Some(96 << 20),
            storage_bytes: Some(512 << 20),
        };
        for (cause, status, shortage, expected) in [
            (None, killed, Some(MemoryShortage::Executor), "it needed more than its memory of 64 MiB"),
            (None, killed, Some(MemoryShortage::Owner), "of its owner needed more than their memory of 96 MiB"),
            (
                None,
                killed,
                Some(MemoryShortage::Either),
                "64 MiB, or the executors of its owner more than theirs of 96",
            ),
            (None, killed, Some(MemoryShortage::Machine), "the machine had no memory"),
            (None, killed, None, "somebody else killed it"),
            (Some(KillCause::Silent(silence)), killed, None, "did not answer for 10000 ms"),
            (Some(KillCause::Stopping), killed, None, "has stopped"),
            (Some(KillCause::Closed), killed, None, "closed the connection"),
            (None, ExitStatus::Signalled(FORBIDDEN_CALL), None, "forbidden"),
            (None, ExitStatus::Signalled(11), None, "signal 11"),
            (None, ExitStatus::Exited(0), None, "its program ended"),
            (None, ExitStatus::Exited(7), None, "status 7"),
            (None, ExitStatus::Exited(STORAGE_FULL_STATUS), None, "its storage of 512 MiB is full"),
            (None, ExitStatus::Exited(STORAGE_FAILED_STATUS), None, "its storage has failed"),
        ] {
            let ending = ending(cause, status, shortage, bounds);
            assert!(ending.reason.contains(expected), "{}", ending.reason);
        }
    }

    #[test]
    fn a_limit_that_was_not_met_is_not_named() {
        for (own, owner, expected) in [
            (Some(true), Some(false), MemoryShortage::Executor),
            (None, Some(false), MemoryShortage::Executor),
            (Some(false), Some(true), MemoryShortage::Owner),
            (Some(true), Some(true), MemoryShortage::Either),
            (Some(true), None, MemoryShortage::Either),
            (Some(false), Some(false), MemoryShortage::Machine),
        ] {
            assert_eq!(MemoryShortage::of(own, owner), expected);
        }
    }
}
