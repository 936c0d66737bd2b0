//! Chooses ports: one at an offset from a configured first port, or a free one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::Path;

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

/// The ports of a process that is added to a network: free ones on this machine, or the given one and those behind it on
/// another host.
pub(crate) struct AddedPorts {
    host: IpAddr,
    first: Option<u16>,
    /// They stay bound until all ports are chosen, so that the ports differ.
    held: Vec<TcpListener>,
}

impl AddedPorts {
    /// On this machine, or from this address on.
    pub(crate) fn new(remote: Option<SocketAddr>) -> AddedPorts {
        let host = remote.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |address| address.ip());
        AddedPorts { host, first: remote.map(|address| address.port()), held: Vec::new() }
    }

    /// The host on which the process runs.
    pub(crate) fn host(&self) -> IpAddr {
        self.host
    }

    /// Chooses a port: on another host the one that is `offset` behind the first.
    pub(crate) fn choose(&mut self, offset: usize) -> Result<u16, NodeError> {
        if let Some(first) = self.first {
            return port_behind(first, offset, "--port");
        }
        let failed = |source| NodeError::Port { address: SocketAddr::new(self.host, 0), key: "ports.links", source };
        let listener = bind_free(self.host).map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        self.held.push(listener);
        Ok(port)
    }

    /// The address for links of the process `name`: a socket beside that of a process on this machine, if that has one.
    pub(crate) fn link_address(&mut self, beside: &str, name: &str, offset: usize) -> Result<String, NodeError> {
        let socket = beside.strip_prefix("shm:").filter(|_| self.first.is_none());
        match socket.and_then(|socket| Path::new(socket).parent()) {
            Some(sockets) => Ok(format!("shm:{}", sockets.join(format!("{name}.socket")).display())),
            None => Ok(format!("tcp:{}", SocketAddr::new(self.host, self.choose(offset)?))),
        }
    }
}
