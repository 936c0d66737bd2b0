//! Connecting: the socket, TLS if configured, and the handshake, on a thread that may block.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use base::BytesMut;
use base::rt::sync::Notify;

use super::attend::{AttendGuard, attend};
use super::endpoint::TcpConnection;
use super::reply_input::ReplyInput;
use super::{PostedVerbs, TcpClient};
use crate::tcp::handshake::{self, CHALLENGE_BYTES, VERDICT_BYTES};
use crate::tcp::peer::ConnectionQueues;
use crate::tcp::pipe::{SocketPipe, read_to_end_of};
use crate::tcp::spin::AdaptiveSpin;
use crate::tcp::tls::Denials;
use crate::tcp::{TcpConfig, tune};
use crate::{Credential, Endpoint, Error, NodeId};

/// Each step of connecting may take this long: a distant or busy host may be slow.
const HANDSHAKE_STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects, on a thread that may block.
pub fn connect(address: &str, credential: &Credential, options: &TcpConfig) -> Result<ConnectedClient, Error> {
    let unreachable =
        |error: &dyn std::fmt::Display| Error::Unreachable { address: address.to_owned(), reason: error.to_string() };
    let mut last = None;
    let mut socket = None;
    for resolved in address.to_socket_addrs().map_err(|error| unreachable(&error))? {
        match TcpStream::connect_timeout(&resolved, HANDSHAKE_STEP_TIMEOUT) {
            Ok(connected) => {
                socket = Some(connected);
                break;
            }
            Err(error) => last = Some(error),
        }
    }
    let socket = match (socket, last) {
        (Some(socket), _) => socket,
        (None, Some(error)) => return Err(unreachable(&error)),
        (None, None) => return Err(unreachable(&"the name has no address")),
    };
    tune(&socket, options).map_err(|error| unreachable(&error))?;
    let lost = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Rejected(error.to_string()),
        io::ErrorKind::UnexpectedEof => Error::Rejected("the host hung up during the handshake".to_owned()),
        _ => Error::Unreachable { address: address.to_owned(), reason: format!("during the handshake: {error}") },
    };
    socket.set_read_timeout(Some(HANDSHAKE_STEP_TIMEOUT)).map_err(lost)?;
    socket.set_write_timeout(Some(HANDSHAKE_STEP_TIMEOUT)).map_err(lost)?;
    let tls = match &options.tls {
        None => None,
        Some(tls) => {
            let mut session = tls.client(address)?;
            while session.is_handshaking() {
                session.complete_io(&mut &socket).map_err(lost)?;
            }
            Some(session)
        }
    };
    let pipe = SocketPipe::new(socket, tls);
    let mut nonce = [0; 32];
    base::rt::fill_random(&mut nonce);
    let hello = handshake::hello(&credential.name, &nonce)?;
    write_all(&pipe, &hello).map_err(lost)?;
    let challenge: [u8; CHALLENGE_BYTES] = read_exact(&pipe).map_err(lost)?;
    let binding = pipe.binding().map_err(lost)?;
    let (node, proof) = handshake::answer(&hello, &challenge, &binding, credential)?;
    write_all(&pipe, &proof).map_err(lost)?;
    let verdict: [u8; VERDICT_BYTES] = read_exact(&pipe).map_err(lost)?;
    handshake::verdict(&verdict)?;
    pipe.socket().set_nonblocking(true).map_err(lost)?;
    Ok(ConnectedClient { pipe, node, host: address.to_owned() })
}

/// A connection whose handshake is complete.
pub struct ConnectedClient {
    pipe: SocketPipe,
    node: NodeId,
    host: String,
}

impl ConnectedClient {
    /// Makes an endpoint of the connection, with a task on the current runtime.
    pub fn endpoint(self, options: &TcpConfig) -> Endpoint {
        let client = Arc::new(TcpClient {
            peer: ConnectionQueues::new(self.pipe),
            node: self.node,
            name: self.host,
            options: options.clone(),
            posted: Mutex::new(PostedVerbs {
                in_flight: VecDeque::new(),
                next: 0,
                asked: 0,
                closed: false,
                lost: false,
            }),
            input: Mutex::new(ReplyInput::new()),
            wanted: Notify::new(),
            spin: AdaptiveSpin::default(),
            closing: AtomicBool::new(false),
            receiver_asked: AtomicBool::new(false),
            partial: AtomicU64::new(0),
        });
        let denials = options.tls.as_ref().map(|tls| Arc::clone(tls.denials()));
        let denied = denials.map(|denials| base::rt::spawn(end_when_denied(Arc::downgrade(&client), denials)));
        let attending = attend(AttendGuard(Arc::clone(&client)));
        base::rt::spawn(async move {
            let _denied = denied.map(base::rt::Task::abort_on_drop);
            attending.await;
        });
        Endpoint::new(Arc::new(TcpConnection(client)))
    }
}

/// Ends a connection once its host's certificate is denied.
async fn end_when_denied(client: Weak<TcpClient>, denials: Arc<dyn Denials>) {
    loop {
        // Obtained before the check, so that a change during the check is not missed.
        let changed = denials.changed();
        let Some(client) = client.upgrade() else { return };
        if client.peer.pipe.is_denied(&*denials) {
            client.end();
            return;
        }
        drop(client);
        changed.await;
    }
}

fn write_all(pipe: &SocketPipe, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = pipe.write(&[io::IoSlice::new(bytes)])?;
        bytes = &bytes[written..];
    }
    while pipe.push()? {}
    Ok(())
}

fn read_exact<const N: usize>(pipe: &SocketPipe) -> io::Result<[u8; N]> {
    let mut bytes = BytesMut::with_capacity(N);
    while bytes.len() < N {
        let missing = N - bytes.len();
        if read_to_end_of(&mut bytes, pipe, missing)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let mut all = [0; N];
    all.copy_from_slice(&bytes);
    Ok(all)
}
