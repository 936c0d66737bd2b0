//! A listening port: TCP, TLS, and bounds on what unauthenticated clients can start.
//!
//! 1. Each connection is admitted ([`base::admission`]) before anything is read from it. If there are too many
//!    connections, the oldest unauthenticated one is closed.
//! 2. The TLS handshake has a time limit, and so has the HTTP/2 preface after it. If a client does not complete either,
//!    the port counts the failure and closes that connection only.
//! 3. [`connection::serve`] then runs the connection in a separate task.
//!
//! Reads are buffered below TLS and writes above it. So a batch of small frames costs one system call and few TLS
//! records.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::admission::{Admission, AdmissionLimits};
use base::rt::CancellationToken;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, BufWriter};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::events::{ConnectionsAccepted, ConnectionsBroken, ConnectionsOpen, HandshakesFailed};
use crate::grpc::client_certificate::AnyClientCertificate;
use crate::grpc::connection::{self, ConnectionConfig, GrpcService};
use crate::grpc::{Caller, PresentedCertificate};

/// Bytes of one connection's read buffer, and of its write buffer.
const IO_BUFFER_BYTES: usize = 32 << 10;
/// A pause after `accept` failed, which it does when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The limits of a port.
#[derive(Clone, Debug)]
pub struct PortLimits {
    /// Connections open at once.
    pub connections_max: usize,
    /// Unauthenticated connections at once from one address; 0 if a proxy stands before the port, so that all clients have
    /// its address.
    pub unauthenticated_per_address_max: usize,
    /// If a client has not finished its handshake after this long, its connection is closed.
    pub handshake_timeout: Duration,
    /// Bytes of unfinished messages, over all connections.
    pub unfinished_bytes_max: u64,
    /// Organisations that share the port.
    pub organizations: usize,
}

impl Default for PortLimits {
    fn default() -> PortLimits {
        PortLimits {
            connections_max: 1024,
            unauthenticated_per_address_max: 128,
            handshake_timeout: Duration::from_secs(5),
            unfinished_bytes_max: 512 << 20,
            organizations: 1,
        }
    }
}

impl PortLimits {
    /// The limits for a port that takes messages of that size.
    fn admission(&self, message_bytes_max: usize) -> AdmissionLimits {
        let proportions =
            AdmissionLimits::in_proportion(self.connections_max, self.unfinished_bytes_max, self.organizations);
        AdmissionLimits {
            unauthenticated_per_address_max: self.unauthenticated_per_address_max,
            handshake_time_max: self.handshake_timeout,
            // Each organisation can send the longest message.
            bytes_per_organization_max: proportions.bytes_per_organization_max.max(longest(message_bytes_max)),
            ..proportions
        }
    }
}

/// The memory that the longest message takes while it is assembled.
fn longest(message_bytes_max: usize) -> u64 {
    (message_bytes_max + IO_BUFFER_BYTES) as u64
}

/// The server's certificate chain or key is unusable.
#[derive(Debug, thiserror::Error)]
#[error("the server's TLS certificate or key is unusable: {message}")]
pub struct ServerTlsError {
    message: String,
}

impl ServerTlsError {
    /// What the caller can do.
    pub fn kind(&self) -> base::ErrorKind {
        base::ErrorKind::Rejected
    }
}

/// TLS with this certificate chain and PKCS#8 key, both in PEM; HTTP/2 only. A client may present any certificate
/// ([`PresentedCertificate`]).
///
/// # Errors
/// If the PEM cannot be read or the key does not match the certificate.
pub fn tls(certificate_pem: &[u8], key_pem: &[u8]) -> Result<Arc<rustls::ServerConfig>, ServerTlsError> {
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
    let error = |message: String| ServerTlsError { message };
    let chain = CertificateDer::pem_slice_iter(certificate_pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|pem| error(pem.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|pem| error(pem.to_string()))?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|tls| error(tls.to_string()))?
        .with_client_cert_verifier(Arc::new(AnyClientCertificate::new(&provider)))
        .with_single_cert(chain, key)
        .map_err(|tls| error(tls.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Binds a port. Port 0 takes any free one.
///
/// # Errors
/// If the address is taken or does not belong to this machine.
pub async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves a port until `stop`, then lets its connections finish within their grace period. Completes once all have ended.
pub async fn serve<S: GrpcService>(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    service: S,
    settings: ConnectionConfig,
    limits: PortLimits,
    stop: CancellationToken,
) {
    let settings = Arc::new(settings);
    let admission = Admission::new(limits.admission(settings.message_bytes_max));
    let member_bytes_max = (limits.unfinished_bytes_max / 16).max(longest(settings.message_bytes_max));
    let acceptor = tls.map(TlsAcceptor::from);
    let mut tasks = JoinSet::new();
    loop {
        // Collects tasks as they end, so that the set holds open connections only.
        while tasks.try_join_next().is_some() {}
        let Some(accepted) = stop.run_until_cancelled(listener.accept()).await else { break };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                if stop.run_until_cancelled(tokio::time::sleep(ACCEPT_PAUSE)).await.is_none() {
                    break;
                }
                continue;
            }
        };
        ConnectionsAccepted.add(1);
        let caller = Caller::new(peer, admission.admit(peer.ip()), member_bytes_max);
        let connection = ServedConnection {
            service: service.clone(),
            settings: Arc::clone(&settings),
            caller: Arc::clone(&caller),
            stop: stop.clone(),
        };
        let (acceptor, timeout) = (acceptor.clone(), limits.handshake_timeout);
        tasks.spawn(async move {
            ConnectionsOpen.add(1);
            // A connection that gives way is closed without a status: it is unauthenticated, or one of too many.
            let _ = caller.displaced().run_until_cancelled(connection.run(socket, acceptor, timeout)).await;
            ConnectionsOpen.add(-1);
        });
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

struct ServedConnection<S> {
    service: S,
    settings: Arc<ConnectionConfig>,
    caller: Arc<Caller>,
    stop: CancellationToken,
}

impl<S: GrpcService> ServedConnection<S> {
    async fn run(self, socket: TcpStream, acceptor: Option<TlsAcceptor>, timeout: Duration) {
        // Without this option small answers wait for the client's acknowledgement; a socket that refuses it is dead.
        if socket.set_nodelay(true).is_err() {
            return;
        }
        let socket = BufReader::with_capacity(IO_BUFFER_BYTES, socket);
        let Some(acceptor) = acceptor else { return self.serve(socket).await };
        let (stop, peer) = (self.stop.clone(), self.caller.peer());
        match stop.run_until_cancelled(tokio::time::timeout(timeout, acceptor.accept(socket))).await {
            Some(Ok(Ok(stream))) => {
                self.caller.set_certificate(PresentedCertificate::of(stream.get_ref().1.peer_certificates()));
                self.serve(stream).await;
            }
            Some(Ok(Err(error))) => {
                HandshakesFailed.add(1);
                tracing::debug!(%peer, %error, "no TLS handshake");
            }
            Some(Err(_)) => {
                HandshakesFailed.add(1);
                tracing::debug!(%peer, "the TLS handshake took too long");
            }
            None => {}
        }
    }

    async fn serve<I: AsyncRead + AsyncWrite + Unpin>(self, io: I) {
        let io = BufWriter::with_capacity(IO_BUFFER_BYTES, io);
        let peer = self.caller.peer();
        let served = connection::serve(io, self.service, &self.settings, self.caller, self.stop).await;
        if let Err(error) = served {
            ConnectionsBroken.add(1);
            tracing::debug!(%peer, %error, "connection broken");
        }
    }
}
