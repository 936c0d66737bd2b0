//! Chooses ports: one at an offset from a configured first port, or a free one.

use std::io;
use std::net::{IpAddr, TcpListener};
use std::ops::Range;

use base::rt;

use crate::network::NodeError;

/// The range of free ports. A process binds its port some time after the plan tried it, and again after every restart.
/// The range therefore lies below the one from which the system takes ports of outgoing connections, which could have
/// taken the port by then.
pub(super) const FREE_PORTS: Range<u16> = 16_384..32_768;
/// Maximum of ports that are tried.
const TRIES_MAX: usize = 256;

/// The port `offset` after the first one of its kind; 0, any free port, if the first one is 0.
pub(crate) fn port_behind(first: u16, offset: usize, key: &'static str) -> Result<u16, NodeError> {
    let behind = u16::try_from(offset).ok().and_then(|offset| first.checked_add(offset));
    match first {
        0 => Ok(0),
        _ => behind.ok_or(NodeError::NoPort { key, first, more: offset }),
    }
}

/// Binds one of [`FREE_PORTS`].
pub(crate) fn bind_free(host: IpAddr) -> io::Result<TcpListener> {
    let mut tries = 0;
    loop {
        let offset = rt::random_below((FREE_PORTS.end - FREE_PORTS.start).into()) as u16;
        match TcpListener::bind((host, FREE_PORTS.start + offset)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries < TRIES_MAX => tries += 1,
            bound => return bound,
        }
    }
}
