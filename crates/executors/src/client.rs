//! Asking a role what it shows.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use base::Bytes;
use pushdown::{ROLE_VERSION, RoleNotice, RoleRequest};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, connect, recvmsg, send};

use crate::error::ExecutorsError;
use crate::socket::socket_of_messages;
use crate::view::RoleView;

/// For how long a role may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Bytes of a view, at most.
const VIEW_BYTES_MAX: usize = 512 << 10;

/// What the role at a socket shows to this process's user.
///
/// # Errors
/// No role is there, or it does not answer.
pub fn show(path: &Path) -> Result<RoleView, ExecutorsError> {
    let about = |error: rustix::io::Errno| ExecutorsError::File { path: path.to_path_buf(), source: error.into() };
    let odd = |problem: &str| ExecutorsError::Answer { path: path.to_path_buf(), problem: problem.to_owned() };
    let socket: OwnedFd = socket_of_messages(SocketFlags::CLOEXEC)?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, timeout, Some(ANSWER_MAX)).map_err(about)?;
    }
    connect(&socket, &SocketAddrUnix::new(path).map_err(about)?).map_err(about)?;
    send(&socket, &RoleRequest::Show { version: ROLE_VERSION }.encode(), SendFlags::NOSIGNAL).map_err(about)?;
    let mut bytes = vec![0; VIEW_BYTES_MAX];
    let mut none = RecvAncillaryBuffer::default();
    let received =
        recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut none, RecvFlags::empty()).map_err(about)?;
    bytes.truncate(received.bytes);
    match RoleNotice::decode(Bytes::from(bytes)) {
        Ok(RoleNotice::Shown(view)) => RoleView::decode(view).map_err(|error| odd(&error.to_string())),
        Ok(RoleNotice::Refused(reason)) => Err(ExecutorsError::Refused { path: path.to_path_buf(), reason }),
        Ok(_) => Err(odd("it shows nothing")),
        Err(error) => Err(odd(&error.to_string())),
    }
}
