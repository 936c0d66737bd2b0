//! Unix sockets that carry packets and file descriptors.
//!
//! A socket's file has mode 0600 from the moment it exists and lies in a directory that only its owner can change, so that
//! only processes of the same user connect, and nobody else can take the file's place.

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

use super::message::{Message, PACKET_BYTES_MAX};
use crate::Error;

/// File descriptors of one message.
pub(super) const DESCRIPTORS_MAX: usize = 4;
/// Connections that the system holds until they are accepted.
const BACKLOG: i32 = 64;
/// Time between attempts to connect to a host that is busy.
const RETRY_EVERY: Duration = Duration::from_millis(5);

fn io(errno: Errno) -> std::io::Error {
    errno.into()
}

fn system(doing: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::system(doing, &io(errno))
}

fn rejected(doing: &'static str, reason: String) -> Error {
    Error::System { doing, reason, kind: ErrorKind::Rejected }
}

/// Waits for a descriptor with tokio.
pub(super) fn watch(fd: OwnedFd) -> Result<AsyncFd<OwnedFd>, Error> {
    // SAFETY: an `OwnedFd` refers to the same open description from here until it is dropped, which deregisters it first.
    let watched = unsafe { AsyncFd::register(fd) };
    watched.map_err(|error| Error::system("watch a descriptor", &error.into()))
}

/// A connected socket.
pub(super) struct Socket(AsyncFd<OwnedFd>);

impl Socket {
    fn new(fd: OwnedFd) -> Result<Socket, Error> {
        watch(fd).map(Socket)
    }

    /// Connects; waits while the host is busy.
    pub(super) async fn connect(path: &Path) -> Result<Socket, Error> {
        let unreachable = |reason: String| Error::Unreachable { address: path.display().to_string(), reason };
        let address = SocketAddrUnix::new(path).map_err(|errno| unreachable(io(errno).to_string()))?;
        loop {
            let fd = packets()?;
            match rustix::net::connect(&fd, &address) {
                Ok(()) => {
                    let other = rustix::net::sockopt::socket_peercred(&fd).map_err(system("ask who listens"))?;
                    // The token is not for anybody else's eyes.
                    if other.uid != rustix::process::geteuid() && !other.uid.is_root() {
                        return Err(Error::Refused(format!("{} is another user's", path.display())));
                    }
                    return Socket::new(fd);
                }
                Err(Errno::AGAIN) => rt::sleep(RETRY_EVERY).await,
                Err(errno) => return Err(unreachable(io(errno).to_string())),
            }
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }

    /// Sends a message. Dropping the future sends it wholly or not at all.
    pub(super) async fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), Error> {
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

    /// The next message; `None` when the other side has closed. Dropping the future loses nothing.
    pub(super) async fn receive(&self) -> Result<Option<(Message, Vec<OwnedFd>)>, Error> {
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
        Ok(Some((Message::decode(&bytes[..received.bytes])?, descriptors)))
    }

    /// Says that nothing more will be sent.
    pub(super) fn finish(&self) {
        // When it fails, the other side has closed.
        let _closed = rustix::net::shutdown(self.0.get_ref(), Shutdown::Write);
    }
}

fn packets() -> Result<OwnedFd, Error> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(system("make a socket"))
}

/// A socket at which connections arrive. Dropping it removes its file.
pub(super) struct Listener {
    fd: AsyncFd<OwnedFd>,
    path: PathBuf,
    /// Device and number of the file, so that a later host's file is left alone.
    file: (u64, u64),
}

const LISTEN: &str = "host regions at a socket";

impl Listener {
    /// Listens at a path. Its directory is made when it is missing; a file that a dead host left is replaced.
    pub(super) fn bind(path: &Path) -> Result<Listener, Error> {
        let shown = path.display();
        let address = SocketAddrUnix::new(path)
            .map_err(|errno| rejected(LISTEN, format!("{shown}: {}; use a shorter path", io(errno))))?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.ok_or_else(|| rejected(LISTEN, format!("{shown} is no path within a directory")))?;
        check_directory(directory)?;
        let bind = || {
            let fd = packets()?;
            // The file gets the socket's mode.
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
        Ok(Listener { fd, path: path.to_owned(), file: (file.dev(), file.ino()) })
    }

    /// The next connection.
    pub(super) async fn accept(&self) -> Result<Socket, Error> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepting =
            self.fd.async_io(tokio::io::Interest::READABLE, |fd| rustix::net::accept_with(fd, flags).map_err(io));
        let fd = accepting.await.map_err(|error| Error::system("accept a connection", &error))?;
        Socket::new(fd)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let file = std::fs::symlink_metadata(&self.path).map(|file| (file.dev(), file.ino()));
        if file.is_ok_and(|file| file == self.file) {
            // A file that stays is replaced by the next host.
            let _left = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the directory when it is missing, and refuses one that others can change.
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
