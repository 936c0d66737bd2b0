//! Who is at the other end of a connection, as the kernel says.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use crate::view::shown_name;

/// `SO_PEERPIDFD`.
const PEER_PROCESS_DESCRIPTOR: i32 = 77;

/// Who is at the other end.
pub(crate) struct ClientIdentity {
    /// Its user.
    pub(crate) user: u32,
    /// Its group.
    pub(crate) group: u32,
    /// The number of its process; 0 if it is a process of another namespace.
    pub(crate) process: u32,
    /// A descriptor of its process, if the kernel gives one.
    pub(crate) descriptor: Option<OwnedFd>,
}

/// Who has connected. `None`: the kernel does not say.
pub(crate) fn identify(socket: &OwnedFd) -> Option<ClientIdentity> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: the structure has the option's form, and any number is valid in it.
    unsafe { option(socket, libc::SO_PEERCRED, &mut who) }?;
    let mut descriptor = -1_i32;
    // SAFETY: the option is a number. The kernel has just opened the descriptor, for this process alone.
    let descriptor = unsafe {
        option(socket, PEER_PROCESS_DESCRIPTOR, &mut descriptor)
            .filter(|()| descriptor >= 0)
            .map(|()| OwnedFd::from_raw_fd(descriptor))
    };
    // The kernel means nobody by this number.
    let user = Some(who.uid).filter(|user| *user != u32::MAX)?;
    Some(ClientIdentity { user, group: who.gid, process: u32::try_from(who.pid).unwrap_or(0), descriptor })
}

/// The name of a program, as the kernel shows it.
pub(crate) fn program_name(process: u32) -> String {
    let name = std::fs::read(format!("/proc/{process}/comm")).unwrap_or_default();
    shown_name(&String::from_utf8_lossy(&name))
}

/// Reads an option of a socket.
///
/// # Safety
/// The value has the option's form.
unsafe fn option<T>(socket: &OwnedFd, name: i32, value: &mut T) -> Option<()> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most as many bytes as the value has.
    let read = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, std::ptr::from_mut(value).cast(), &raw mut bytes)
    };
    (read == 0 && bytes as usize == size_of::<T>()).then_some(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn the_kernel_says_who_is_at_the_other_end() {
        let (one, _other) = UnixStream::pair().expect("sockets");
        let client = identify(&one.into()).expect("this process");
        assert_eq!((client.user, client.process), (rustix::process::geteuid().as_raw(), std::process::id()));
        let process = client.descriptor.expect("Linux has it from 6.5 on");
        let mut polls = [PollFd::new(&process, PollFlags::IN)];
        assert_eq!(poll(&mut polls, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0), "it has not ended");
    }
}
