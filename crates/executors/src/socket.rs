//! The role's socket, and messages with descriptors on it.

use std::fs::Permissions;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::ExecutorsError;
use crate::peer::{ClientIdentity, identify};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    recvmsg, send, sendmsg, socket_with,
};

/// Connections that wait to be accepted.
const WAITING_MAX: i32 = 64;
/// Descriptors of one message: more are dropped by the kernel, and counted as one too many.
const FILES_MAX: usize = 4;
/// Only the role's user, and root, may connect.
const MODE_OWN: u32 = 0o600;
/// Everybody may; the role looks who it is.
const MODE_OTHERS: u32 = 0o666;

/// Where programs connect. The file goes when this does.
pub(crate) struct Listener {
    file: OwnedFd,
    path: PathBuf,
}

/// What a client has sent.
pub(crate) struct Received {
    pub(crate) bytes: Vec<u8>,
    pub(crate) files: Vec<OwnedFd>,
    /// How many descriptors were sent, as far as they count.
    pub(crate) files_sent: usize,
}

impl Listener {
    /// Listens at a path. A socket that an ended role has left there is replaced.
    ///
    /// # Errors
    /// Another role is there, or the operating system refuses.
    pub(crate) fn new(path: &Path, is_for_others: bool) -> Result<Listener, ExecutorsError> {
        let about = |source| ExecutorsError::File { path: path.to_path_buf(), source };
        let address = SocketAddrUnix::new(path).map_err(|error| about(error.into()))?;
        if path.exists() {
            let other = socket_of_messages(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
            match connect(&other, &address) {
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(about)?,
                Ok(()) | Err(Errno::AGAIN) => {
                    return Err(ExecutorsError::Setting(format!(
                        "another process listens at {}; stop it first",
                        path.display()
                    )));
                }
                Err(error) => return Err(about(error.into())),
            }
        }
        let file = socket_of_messages(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&file, &address).map_err(|error| about(error.into()))?;
        let listener = Listener { file, path: path.to_path_buf() };
        let mode = if is_for_others { MODE_OTHERS } else { MODE_OWN };
        std::fs::set_permissions(path, Permissions::from_mode(mode)).map_err(about)?;
        listen(&listener.file, WAITING_MAX).map_err(|error| about(error.into()))?;
        Ok(listener)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The next client, if one waits.
    pub(crate) fn accept(&self) -> Option<(OwnedFd, ClientIdentity)> {
        let file = accept_with(&self.file, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let client = identify(&file)?;
        Some((file, client))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that keeps messages apart.
///
/// # Errors
/// Of the operating system.
pub(crate) fn socket_of_messages(flags: SocketFlags) -> Result<OwnedFd, ExecutorsError> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(ExecutorsError::system("a socket"))
}

/// Takes a message. `Ok(None)`: none has come. At the end of the connection the message is empty.
///
/// # Errors
/// Of the connection.
pub(crate) fn receive(file: &OwnedFd, bytes_max: usize) -> Result<Option<Received>, Errno> {
    let mut bytes = vec![0; bytes_max];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = match recvmsg(file, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = part {
            files.extend(sent);
        }
    }
    let were_dropped = received.flags.contains(ReturnFlags::CTRUNC);
    bytes.truncate(received.bytes);
    Ok(Some(Received { bytes, files_sent: files.len() + usize::from(were_dropped), files }))
}

/// Sends a message to a client, which need not read it.
pub(crate) fn tell(file: &OwnedFd, message: &[u8]) {
    // A client that reads nothing gets nothing: the role never waits for one.
    let _ = send(file, message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Sends a message with descriptors.
///
/// # Errors
/// Nobody is there, or has room.
pub(crate) fn send_with(file: &OwnedFd, message: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = vec![MaybeUninit::uninit(); SendAncillaryMessage::ScmRights(files).size()];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::NOBUFS);
    }
    sendmsg(file, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
}
