//! The executor's process: a child of this one, or one of the role *executors*. What is here works without the C library.

#![allow(unsafe_code)]

use std::time::Duration;

use bare::system_call::{Errno, system_call};
use base::Bytes;
use pushdown::{NOTICE_BYTES_MAX, RoleNotice};

/// For how long the role may take to say why an executor has ended.
const REASON_WITHIN: Duration = Duration::from_secs(1);

/// The executor's process. Copies are the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExecutorProcess {
    /// A child.
    Child {
        /// A descriptor which means this process for ever: the program may wait for all of its children.
        descriptor: i32,
        /// Its number.
        number: u32,
    },
    /// One of the role.
    OfRole {
        /// The connection to the role. Its end is the executor's.
        control: i32,
        /// Its number at its host.
        number: u32,
        /// That host is another one.
        is_elsewhere: bool,
    },
}

impl ExecutorProcess {
    /// Its number at its host.
    pub(crate) fn number(self) -> u32 {
        match self {
            ExecutorProcess::Child { number, .. } | ExecutorProcess::OfRole { number, .. } => number,
        }
    }

    /// Whether it runs on another host.
    pub(crate) fn is_elsewhere(self) -> bool {
        matches!(self, ExecutorProcess::OfRole { is_elsewhere: true, .. })
    }

    /// Whether the role says how it ends.
    pub(crate) fn is_of_role(self) -> bool {
        matches!(self, ExecutorProcess::OfRole { .. })
    }

    /// Ends it. It may have ended already.
    pub(crate) fn kill(self) {
        // SAFETY: neither call has a memory argument that is not null.
        let _ = unsafe {
            match self {
                ExecutorProcess::Child { descriptor, .. } => {
                    let arguments = [descriptor as usize, libc::SIGKILL as usize, 0, 0];
                    system_call(libc::SYS_pidfd_send_signal, arguments)
                }
                // The role sees the end of the connection, and can still say something on it.
                ExecutorProcess::OfRole { control, .. } => {
                    system_call(libc::SYS_shutdown, [control as usize, libc::SHUT_WR as usize])
                }
            }
        };
    }

    /// Why it has ended; waits for the role to say so. Not to be called with the lock.
    pub(crate) fn end_reason(self) -> String {
        match self {
            ExecutorProcess::Child { .. } => "the executor has ended".to_owned(),
            ExecutorProcess::OfRole { control, .. } => match next_notice(control, REASON_WITHIN) {
                Ok(Some(RoleNotice::Ended(reason))) => reason,
                Ok(Some(_)) => "the role executors has sent what it must not send".to_owned(),
                Ok(None) => "the role executors does not say why".to_owned(),
                Err(_) => "the role executors has ended".to_owned(),
            },
        }
    }
}

/// The next notice of the role; `None` if there is none within this time.
///
/// # Errors
/// The role has closed the connection, or broken the protocol.
pub(crate) fn next_notice(control: i32, within: Duration) -> Result<Option<RoleNotice>, Errno> {
    let mut poll = libc::pollfd { fd: control, events: libc::POLLIN, revents: 0 };
    let milliseconds = i32::try_from(within.as_millis()).unwrap_or(i32::MAX);
    let mut bytes = [0_u8; NOTICE_BYTES_MAX];
    // SAFETY: the kernel reads and writes one structure, and writes at most as many bytes as the array has.
    let count = unsafe {
        match system_call(libc::SYS_poll, [(&raw mut poll).addr(), 1, milliseconds as usize]) {
            Ok(0) | Err(Errno(libc::EINTR)) => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        let flags = libc::MSG_DONTWAIT as usize;
        let arguments = [control as usize, bytes.as_mut_ptr().addr(), bytes.len(), flags, 0, 0];
        match system_call(libc::SYS_recvfrom, arguments) {
            Ok(0) => return Err(Errno(libc::EPIPE)),
            Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(None),
            other => other?,
        }
    };
    let notice = RoleNotice::decode(Bytes::copy_from_slice(bytes.get(..count).unwrap_or_default()));
    notice.map(Some).map_err(|_| Errno(libc::EPROTO))
}
