//! Unix sockets that carry packets and file descriptors.
//!
//! A socket's file has mode 0600 from the moment it exists and lies in a directory that only its owner can change, so only
//! processes of the same user connect, and no other user can replace the file.

#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::ErrorKind;
use base::rt;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};
use tokio::io::unix::AsyncFd;

use super::message::{PACKET_BYTES_MAX, SocketMessage};
use crate::Error;

/// File descriptors of one message.
pub(super) const DESCRIPTORS_MAX: usize = 4;
/// Connections that the system queues until they are accepted.
const BACKLOG: i32 = 64;
/// Time between attempts to connect to a busy host.
const RETRY_PERIOD: Duration = Duration::from_millis(5);

fn io(errno: Errno) -> std::io::Error {
    errno.into()
}

fn system(doing: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::system(doing, &io(errno))
}

fn rejected(doing: &'static str, reason: String) -> Error {
    Error::System { doing, reason, kind: ErrorKind::Rejected }
}

/// Registers a descriptor with tokio's reactor.
pub(super) fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, Error> {
    // SAFETY: an `OwnedFd` refers to the same open description from here until it is dropped, which deregisters it first.
    let watched = unsafe { AsyncFd::register(fd) };
    watched.map_err(|error| Error::system("watch a descriptor", &error.into()))
}

/// A connected socket.
pub(super) struct MessageSocket(AsyncFd<OwnedFd>);

impl MessageSocket {
    fn new(fd: OwnedFd) -> Result<MessageSocket, Error> {
        watch(fd).map(MessageSocket)
    }

    /// Connects; waits while the host is busy.
    pub(super) async fn connect(path: &Path) -> Result<MessageSocket, Error> {
        let unreachable = |reason: String| Error::Unreachable { address: path.display().to_string(), reason };
        let address = SocketAddrUnix::new(path).map_err(|errno| unreachable(io(errno).to_string()))?;
        loop {
            let fd = packets()?;
            match rustix::net::connect(&fd, &address) {
                Ok(()) => {
                    let other = rustix::net::sockopt::socket_peercred(&fd).map_err(system("ask who listens"))?;
                    // The token must not reach another user.
                    if other.uid != rustix::process::geteuid() && !other.uid.is_root() {
                        return Err(Error::Rejected(format!("{} is another user's", path.display())));
                    }
                    return MessageSocket::new(fd);
                }
                Err(Errno::AGAIN) => rt::sleep(RETRY_PERIOD).await,
                Err(errno) => return Err(unreachable(io(errno).to_string())),
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Sends a message. If the future is dropped, the message is sent completely or not at all.
    pub(super) async fn send(&self, message: &SocketMessage, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
        let bytes = message.encode();
        let sending = self.0.async_io(tokio::io::Interest::WRITABLE, |fd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                let pushed = control.push(SendAncillaryMessage::ScmRights(descriptors));
                assert!(pushed, "there is space for all descriptors");
            }
            rustix::net::sendmsg(fd, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL).map_err(io)
        });
        sending.await.map_err(|_| Error::Closed)?;
        Ok(())
    }

    /// The next message; `None` when the other end has closed. Dropping the future loses nothing.
    pub(super) async fn receive(&self) -> Result<Option<(SocketMessage, Vec<OwnedFd>)>, Error> {
        let mut bytes = [0u8; PACKET_BYTES_MAX];
        let receiving = self.0.async_io(tokio::io::Interest::READABLE, |fd| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut slices = [IoSliceMut::new(&mut bytes)];
            let received = rustix::net::recvmsg(fd, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).map_err(io)?;
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(passed) = message {
                    descriptors.extend(passed);
                }
            }
            Ok((received, descriptors))
        });
        let Ok((received, descriptors)) = receiving.await else { return Ok(None) };
        if received.bytes == 0 {
            return Ok(None);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(Error::Malformed("a message on a shared memory's socket that is too long"));
        }
        Ok(Some((SocketMessage::decode(&bytes[..received.bytes])?, descriptors)))
    }

    /// Announces that nothing more will be sent.
    pub(super) fn finish(&self) {
        // A failure means that the other end has closed.
        let _closed = rustix::net::shutdown(self.0.get_ref(), Shutdown::Write);
    }
}

fn packets() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system("make a socket"))
}

/// A listening socket. Dropping it removes its file.
pub(super) struct SocketListener {
    fd: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// Device and inode of the file, so that a later host's file is not removed.
    file: (u64, u64),
}

const LISTEN: &str = "host regions at a socket";

impl SocketListener {
    /// Listens at a path. Creates a missing directory, and replaces a file that a dead host left.
    pub(super) fn bind(path: &Path) -> Result<SocketListener, Error> {
        let shown = path.display();
        let address = SocketAddrUnix::new(path)
            .map_err(|errno| rejected(LISTEN, format!("{shown}: {}; use a shorter path", io(errno))))?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory =
            directory.ok_or_else(|| rejected(LISTEN, format!("{shown} is not a path within a directory")))?;
        check_directory(directory)?;
        let bind = || {
            let fd = packets()?;
            // The file inherits the socket's mode.
            rustix::fs::fchmod(&fd, Mode::RUSR | Mode::WUSR).map_err(system(LISTEN))?;
            Ok::<_, Error>(rustix::net::bind(&fd, &address).map(|()| fd))
        };
        let fd = match bind()? {
            Err(Errno::ADDRINUSE) => {
                let probe = packets()?;
                match rustix::net::connect(&probe, &address) {
                    Err(Errno::CONNREFUSED) => {
                        rustix::fs::unlink(path).map_err(system("remove the socket that a dead host left"))?;
                        bind()?.map_err(system(LISTEN))?
                    }
                    _ => return Err(rejected(LISTEN, format!("{shown} is in use by another host"))),
                }
            }
            other => other.map_err(system(LISTEN))?,
        };
        rustix::net::listen(&fd, BACKLOG).map_err(system(LISTEN))?;
        let file = std::fs::symlink_metadata(path).map_err(|error| Error::system(LISTEN, &error))?;
        let fd = watch(fd)?;
        Ok(SocketListener { fd, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> Result<MessageSocket, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepting =
            self.fd.async_io(tokio::io::Interest::READABLE, |fd| rustix::net::accept_with(fd, flags).map_err(io));
        let fd = accepting.await.map_err(|error| Error::system("accept a connection", &error))?;
        MessageSocket::new(fd)
    }
}

impl Drop for SocketListener {
    fn drop(&mut self) {
        let file = std::fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if file.is_ok_and(|file| file == self.file) {
            // The next host replaces a file that stays.
            let _left = std::fs::remove_file(&self.path);
        }
    }
}

/// Creates the directory if it is missing, and rejects one that others can change.
fn check_directory(directory: &Path) -> Result<(), Error> {
    if let Err(error) = std::fs::DirBuilder::new().mode(0o700).create(directory)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(rejected(LISTEN, format!("cannot make {}: {error}", directory.display())));
    }
    let found = std::fs::metadata(directory).map_err(|error| Error::system(LISTEN, &error))?;
    let owner = rustix::process::geteuid().as_raw();
    if found.uid() != owner || found.mode() & 0o022 != 0 {
        let reason = format!("others can change {}; use a directory of mode 0700", directory.display());
        return Err(rejected(LISTEN, reason));
    }
    Ok(())
}
