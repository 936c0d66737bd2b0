//! What a relay between two hosts needs (`heddle-executor-relay`): one of its ends is the role to programs, the other a program to the role.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use base::Bytes;
use pushdown::{NOTICE_BYTES_MAX, REQUEST_BYTES_MAX, RoleNotice, RoleRequest};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags, connect};

use crate::area_file;
use crate::error::ExecutorsError;
use crate::peer::{ClientIdentity, program_name};
use crate::settings::OwnersAllowed;
use crate::socket::{Listener, Received, receive, send_with, socket_of_messages, tell};

pub use crate::strangers::{StrangerId, Strangers};

/// Where programs connect. The file goes when this does.
pub struct ProgramSocket(Listener);

/// A program that has connected.
pub struct ProgramConnection {
    file: OwnedFd,
    client: ClientIdentity,
}

/// What a program has sent.
pub struct ProgramRequest {
    /// A [`RoleRequest`]; empty at the end of the connection.
    pub bytes: Bytes,
    files: Vec<OwnedFd>,
    files_sent: usize,
}

/// A connection to the role. Its end is the executor's.
pub struct RoleConnection(OwnedFd);

impl ProgramSocket {
    /// Listens at a path. A socket that an ended process has left there is replaced.
    ///
    /// # Errors
    /// Somebody listens there, or the operating system refuses.
    pub fn new(path: &Path, owners: &OwnersAllowed) -> Result<ProgramSocket, ExecutorsError> {
        Listener::new(path, *owners != OwnersAllowed::Own).map(ProgramSocket)
    }

    /// The next program, if one waits; its connection does not block.
    pub fn accept(&self) -> Option<ProgramConnection> {
        let (file, client) = self.0.accept()?;
        Some(ProgramConnection { file, client })
    }
}

impl ProgramConnection {
    /// The program's user, as the kernel says.
    pub fn user(&self) -> u32 {
        self.client.user
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.client.process
    }

    /// A descriptor of its process, if the kernel gives one: it becomes readable when the process ends.
    pub fn take_process(&mut self) -> Option<OwnedFd> {
        self.client.descriptor.take()
    }

    /// Its name, as the kernel shows it.
    pub fn name(&self) -> String {
        program_name(self.client.process)
    }

    /// Takes what it has sent; `None` if nothing has come.
    ///
    /// # Errors
    /// Of the connection.
    pub fn receive(&self) -> io::Result<Option<ProgramRequest>> {
        let received = receive(&self.file, REQUEST_BYTES_MAX)?;
        Ok(received.map(|Received { bytes, files, files_sent }| ProgramRequest {
            bytes: bytes.into(),
            files,
            files_sent,
        }))
    }

    /// Tells it something, if it reads.
    pub fn tell(&self, notice: &RoleNotice) {
        tell(&self.file, &notice.encode());
    }
}

impl ProgramRequest {
    /// The area and the executor's socket that came with it.
    ///
    /// # Errors
    /// What is wrong with them, as the role says it.
    pub fn area_and_socket(self) -> Result<(OwnedFd, OwnedFd), String> {
        area_file::area_and_socket(self.files, self.files_sent).map_err(|refusal| refusal.to_string())
    }
}

impl RoleConnection {
    /// Connects to the role at a path, and asks it. The connection does not block from here on.
    ///
    /// # Errors
    /// The role is not there.
    pub fn ask(path: &Path, request: &RoleRequest, area: &OwnedFd, socket: &OwnedFd) -> io::Result<RoleConnection> {
        let no_socket = |error: ExecutorsError| io::Error::other(error.to_string());
        let file = socket_of_messages(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(no_socket)?;
        connect(&file, &SocketAddrUnix::new(path)?)?;
        send_with(&file, &request.encode(), &[area.as_fd(), socket.as_fd()])?;
        Ok(RoleConnection(file))
    }

    /// Takes what the role says; `None` if it has said nothing.
    ///
    /// # Errors
    /// The connection has ended, or the role says what makes no sense.
    pub fn receive(&self) -> io::Result<Option<RoleNotice>> {
        let Some(received) = receive(&self.0, NOTICE_BYTES_MAX)? else { return Ok(None) };
        if received.bytes.is_empty() {
            return Err(Errno::PIPE.into());
        }
        let notice = RoleNotice::decode(received.bytes.into());
        notice.map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))
    }
}

/// Becomes readable when a program connects.
impl AsFd for ProgramSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file()
    }
}

/// Becomes readable when the program has sent something, or has closed the connection.
impl AsFd for ProgramConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Becomes readable when the role says something, or has closed the connection.
impl AsFd for RoleConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
