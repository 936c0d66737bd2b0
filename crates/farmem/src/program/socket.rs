//! Messages between this process and a program, with descriptors.

#![allow(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use farmem_control::Message;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::Pid;

/// Descriptors of one message.
const FILES_MAX: usize = 2;
/// For how long a message of the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Connections that wait to be accepted.
const WAITING_MAX: i32 = 64;

/// Where programs connect.
pub(super) struct Listener {
    file: OwnedFd,
}

impl Listener {
    /// Listens under an abstract name, which ends with the process.
    ///
    /// # Errors
    /// Of the operating system.
    pub(super) fn new(name: &str) -> io::Result<Listener> {
        let file = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&file, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&file, WAITING_MAX)?;
        Ok(Listener { file })
    }

    /// The next program that connects.
    ///
    /// # Errors
    /// Of the operating system.
    pub(super) fn accept(&self) -> io::Result<ProgramSocket> {
        let file = accept_with(&self.file, SocketFlags::CLOEXEC)?;
        set_socket_timeout(&file, Timeout::Recv, Some(HANDSHAKE))?;
        set_socket_timeout(&file, Timeout::Send, Some(HANDSHAKE))?;
        Ok(ProgramSocket { file })
    }

    /// Has [`Listener::accept`] fail from now on.
    pub(super) fn shut_down(&self) {
        // If it fails, there is nothing to shut down.
        let _ = rustix::net::shutdown(&self.file, Shutdown::Both);
    }
}

/// A connection to a program.
pub(super) struct ProgramSocket {
    file: OwnedFd,
}

impl ProgramSocket {
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The process at the other end.
    ///
    /// # Errors
    /// Of the operating system.
    pub(super) fn peer(&self) -> io::Result<Pid> {
        Ok(socket_peercred(&self.file)?.pid)
    }

    /// From now on receiving takes as long as it takes.
    ///
    /// # Errors
    /// Of the operating system.
    pub(super) fn end_handshake(&self) -> io::Result<()> {
        Ok(set_socket_timeout(&self.file, Timeout::Recv, None)?)
    }

    /// # Errors
    /// Of the operating system.
    pub(super) fn send<T: Message>(&self, message: &T, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        // SAFETY: `Message` promises that it has no padding.
        let bytes = unsafe { std::slice::from_raw_parts(std::ptr::from_ref(message).cast::<u8>(), size_of::<T>()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(files)), "there is room for two");
        }
        sendmsg(&self.file, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives a message, with at most two descriptors.
    ///
    /// # Errors
    /// Of the operating system; [`io::ErrorKind::InvalidData`] for a message of another size.
    pub(super) fn receive<T: Message>(&self) -> io::Result<(T, Vec<OwnedFd>)> {
        let mut message = MaybeUninit::<T>::zeroed();
        // SAFETY: the memory is that of the message, and zeros are bytes like any others.
        let bytes = unsafe { std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(&self.file, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                files.extend(received);
            }
        }
        if received.bytes != size_of::<T>() || received.flags.contains(rustix::net::ReturnFlags::TRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message of another size"));
        }
        // SAFETY: `Message` promises that any bytes are a value.
        Ok((unsafe { message.assume_init() }, files))
    }

    /// Sends the byte of a command and waits for the answer.
    ///
    /// # Errors
    /// Of the operating system; [`io::ErrorKind::BrokenPipe`] when the program has ended.
    pub(super) fn exchange_byte(&self, byte: u8) -> io::Result<()> {
        rustix::net::send(&self.file, &[byte], SendFlags::NOSIGNAL)?;
        let mut answer = [0];
        loop {
            match rustix::net::recv(&self.file, &mut answer, RecvFlags::empty()) {
                Ok((_, 1..)) => return Ok(()),
                Ok(_) => return Err(io::ErrorKind::BrokenPipe.into()),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
