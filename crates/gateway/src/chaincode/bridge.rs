//! Joins chaincodes that connect to their peer with peers that connect to their chaincodes.
//!
//! A chaincode in Fabric's first form, `shim.Start` in Go, connects to its peer. With a bridge on the same machine, a peer
//! uses it as a service:
//! 1. The chaincode calls `protos.ChaincodeSupport/Register` of the bridge. Its stream waits there.
//! 2. The peer calls `protos.Chaincode/Connect` of the bridge. It gets the stream that has waited longest, or waits for the
//!    next one. The owner of the bridge starts a process for each of these calls ([`ChaincodeBridge::calls`]).
//! 3. The bridge carries messages both ways, unread, until one of the two calls ends. Then it ends the other one.
//!
//! A chaincode serves one stream, so it belongs to one call of one peer.
//!
//! Anyone who registers could answer in the chaincode's place, so only processes of the bridge's own user may. As with a
//! chaincode that listens without TLS, anyone on the machine may connect as a peer.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::admission::Principal;
use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, CancellationToken};
use bytes::Bytes;
use contract::shim::MESSAGE_BYTES_MAX;
use futures_util::future::{Either, select};
use tokio::sync::Notify;

use super::framing::framed;
use super::socket_owner::belongs_to_this_user;
use crate::grpc::connection::{ConnectionConfig, GrpcService};
use crate::grpc::{GrpcCode, GrpcStatus, IncomingCall, MessageStream, Responder};
use crate::server::{self, PortLimits};

const REGISTER: &str = "/protos.ChaincodeSupport/Register";
const CONNECT: &str = "/protos.Chaincode/Connect";
/// Messages between the two calls, each way.
const STREAM_MESSAGES: usize = 1;
/// Open calls of chaincodes, and of peers.
const CALLS_MAX: usize = 16;
/// How long a call of a peer waits for a chaincode: as long as a peer waits for the registration.
const CHAINCODE_WAIT: Duration = Duration::from_secs(30);

/// A bridge. Dropping it ends its streams.
pub struct ChaincodeBridge {
    state: Arc<BridgeState>,
    stop: CancellationToken,
}

struct BridgeState {
    /// Where chaincodes register.
    address: SocketAddrV4,
    has_registered: AtomicBool,
    /// Open calls of chaincodes.
    streams: AtomicUsize,
    /// Open calls of peers.
    calls: AtomicUsize,
    waiting: Mutex<VecDeque<WaitingStream>>,
    arrived: Notify,
}

/// A chaincode's call that no peer has taken.
struct WaitingStream {
    from_chaincode: Receiver<Bytes>,
    to_chaincode: Sender<Bytes>,
}

impl ChaincodeBridge {
    /// Opens a bridge at a free port for chaincodes, and without a port for peers yet.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn open() -> io::Result<ChaincodeBridge> {
        let listener = server::bind((Ipv4Addr::LOCALHOST, 0).into()).await?;
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, listener.local_addr()?.port());
        let state = BridgeState {
            address,
            has_registered: AtomicBool::new(false),
            streams: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            waiting: Mutex::default(),
            arrived: Notify::new(),
        };
        let (state, stop) = (Arc::new(state), CancellationToken::new());
        rt::spawn(serve(listener, RegisteringSide(state.clone()), stop.clone()));
        Ok(ChaincodeBridge { state, stop })
    }

    /// The address of the peer, for chaincodes.
    pub fn address(&self) -> SocketAddr {
        self.state.address.into()
    }

    /// Whether a chaincode has registered.
    pub fn has_registered(&self) -> bool {
        self.state.has_registered.load(Ordering::Acquire)
    }

    /// Chaincodes that are registered now.
    pub fn streams(&self) -> usize {
        self.state.streams.load(Ordering::Acquire)
    }

    /// The open calls of peers. Each needs a chaincode.
    pub fn calls(&self) -> usize {
        self.state.calls.load(Ordering::Acquire)
    }

    /// Lets peers connect at an address, until the bridge is dropped.
    ///
    /// # Errors
    /// The address is taken.
    pub async fn open_to_peers(&self, address: SocketAddr) -> io::Result<()> {
        let listener = server::bind(address).await?;
        rt::spawn(serve(listener, ConnectingSide(self.state.clone()), self.stop.clone()));
        Ok(())
    }
}

impl Drop for ChaincodeBridge {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve<S: GrpcService>(listener: tokio::net::TcpListener, side: S, stop: CancellationToken) {
    server::serve(listener, None, side, ConnectionConfig::default(), PortLimits::default(), stop).await;
}

impl BridgeState {
    /// Lets a stream wait. Each is an open call, so they are bounded.
    fn put(&self, stream: WaitingStream) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(WaitingStream::is_open);
        waiting.push_back(stream);
        self.arrived.notify_one();
    }

    /// Waits for a stream. Dropping the future loses none.
    async fn take(&self) -> WaitingStream {
        loop {
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match next {
                Some(stream) if stream.is_open() => return stream,
                Some(_) => {}
                None => self.arrived.notified().await,
            }
        }
    }
}

impl WaitingStream {
    fn is_open(&self) -> bool {
        !self.to_chaincode.is_closed()
    }
}

/// One open call. It counts until it is dropped.
struct OpenCall<'a>(&'a AtomicUsize);

impl OpenCall<'_> {
    /// `None` if there are too many.
    fn begin(open: &AtomicUsize) -> Option<OpenCall<'_>> {
        let call = OpenCall(open);
        (open.fetch_add(1, Ordering::AcqRel) < CALLS_MAX).then_some(call)
    }
}

impl Drop for OpenCall<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The service that chaincodes call.
#[derive(Clone)]
struct RegisteringSide(Arc<BridgeState>);

/// The service that peers call.
#[derive(Clone)]
struct ConnectingSide(Arc<BridgeState>);

/// The only method of each service.
#[derive(Clone, Copy)]
struct BridgeMethod;

impl GrpcService for RegisteringSide {
    type Method = BridgeMethod;

    fn method(&self, path: &str) -> Option<BridgeMethod> {
        (path == REGISTER).then_some(BridgeMethod)
    }

    fn message_bytes_max(&self, _method: BridgeMethod) -> usize {
        MESSAGE_BYTES_MAX
    }

    async fn call(&self, _method: BridgeMethod, call: IncomingCall) {
        let RegisteringSide(state) = self;
        if let Err(problem) = belongs_to_this_user(call.caller().peer(), state.address) {
            return call.reject(&GrpcStatus::new(GrpcCode::PermissionDenied, problem));
        }
        let Some(_stream) = OpenCall::begin(&state.streams) else {
            return call.reject(&GrpcStatus::new(GrpcCode::ResourceExhausted, "too many chaincodes have registered"));
        };
        call.caller().authenticate(|| Principal::new("chaincodes", "chaincode"));
        call.streaming(async |messages, responder| {
            let (to_peer, from_chaincode) = bounded(STREAM_MESSAGES);
            let (to_chaincode, from_peer) = bounded(STREAM_MESSAGES);
            state.put(WaitingStream { from_chaincode, to_chaincode });
            state.has_registered.store(true, Ordering::Release);
            carry(messages, responder, to_peer, from_peer).await
        })
        .await;
    }
}

impl GrpcService for ConnectingSide {
    type Method = BridgeMethod;

    fn method(&self, path: &str) -> Option<BridgeMethod> {
        (path == CONNECT).then_some(BridgeMethod)
    }

    fn message_bytes_max(&self, _method: BridgeMethod) -> usize {
        MESSAGE_BYTES_MAX
    }

    fn speaks_first(&self, _method: BridgeMethod) -> bool {
        true
    }

    async fn call(&self, _method: BridgeMethod, call: IncomingCall) {
        let ConnectingSide(state) = self;
        let Some(_call) = OpenCall::begin(&state.calls) else {
            return call.reject(&GrpcStatus::new(GrpcCode::ResourceExhausted, "too many peers use the chaincode"));
        };
        call.caller().authenticate(|| Principal::new("chaincodes", "peer"));
        call.streaming(async |messages, responder| {
            let unavailable = |reason: &str| GrpcStatus::new(GrpcCode::Unavailable, reason);
            let taken = {
                let (taking, gone) = (pin!(rt::timeout(CHAINCODE_WAIT, state.take())), pin!(responder.gone()));
                match select(taking, gone).await {
                    Either::Left((taken, _)) => taken,
                    Either::Right(_) => return unavailable("the peer has gone"),
                }
            };
            match taken {
                Ok(WaitingStream { from_chaincode, to_chaincode }) => {
                    carry(messages, responder, to_chaincode, from_chaincode).await
                }
                Err(_) => unavailable("the chaincode does not start, or does not register; see its output"),
            }
        })
        .await;
    }
}

/// Carries messages between a call and the other one, both ways, until either ends.
async fn carry(
    messages: &mut MessageStream,
    responder: &mut Responder,
    to_other: Sender<Bytes>,
    mut from_other: Receiver<Bytes>,
) -> GrpcStatus {
    let other_ended = || GrpcStatus::new(GrpcCode::Unavailable, "the other side has ended the stream");
    let receiving = pin!(async {
        loop {
            match messages.next().await {
                Ok(Some(message)) => {
                    if to_other.send(message).await.is_err() {
                        return other_ended();
                    }
                }
                Ok(None) => return GrpcStatus::ok(),
                Err(status) => return status,
            }
        }
    });
    let sending = pin!(async {
        while let Some(message) = from_other.recv().await {
            if responder.send(framed(&message)).await.is_err() {
                break;
            }
        }
        other_ended()
    });
    match select(receiving, sending).await {
        Either::Left((status, _)) | Either::Right((status, _)) => status,
    }
}
