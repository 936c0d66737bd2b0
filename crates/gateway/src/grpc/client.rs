//! The client's side of a connection: many calls at once over one socket.
//!
//! 1. [`GrpcConnection::connect`] makes the TCP and TLS connection and starts the one task that drives its frames.
//! 2. [`GrpcConnection::unary`] sends one message and waits for one answer; [`GrpcConnection::open`] opens a stream.
//!
//! A connection does not reconnect: once it is lost, calls fail with `UNAVAILABLE`, and the caller must make a new
//! connection. Dropping the future of a call cancels the call.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::header::{AUTHORIZATION, CONTENT_TYPE, TE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, StatusCode, Uri};
use identity::Revocations;
use prost::Message;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, BufWriter};
use tokio::net::TcpStream;

use super::message::{MessageStream, decode, frame, from_h2};
use super::status::{GrpcCode, GrpcStatus};
use super::timeout;

const WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const FRAME_BYTES_MAX: u32 = 64 << 10;
const IO_BUFFER_BYTES: usize = 64 << 10;
/// A request up to this size is passed to the connection without waiting for the server's window.
const UNGATED_BYTES_MAX: usize = 64 << 10;
/// How long a call waits beyond its deadline for the server's own answer that the deadline has passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(250);
/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a server, and how to authenticate it.
#[derive(Clone, Debug)]
pub struct ConnectTarget {
    /// Host and port, such as `127.0.0.1:7051`.
    pub address: String,
    /// `None` on a network without TLS.
    pub tls: Option<ClientTls>,
}

/// What a client needs to authenticate a server.
#[derive(Clone, Debug)]
pub struct ClientTls {
    /// Certificates of the authorities, in PEM, and their revocation lists, if there are any.
    pub roots_pem: Vec<u8>,
    /// The name that the server's certificate must bear.
    pub server_name: String,
}

/// What a client proves its own identity with, in PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    /// Its certificate and those of the authorities in between.
    pub certificate_pem: Vec<u8>,
    /// The key of the certificate.
    pub key_pem: Vec<u8>,
}

/// A connection could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no server at the address, or the network failed.
    #[error("no connection to {address}: {source}")]
    Io {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The PEM or the name in the target is unusable.
    #[error("the TLS settings for {address} are wrong: {message}")]
    Tls {
        /// The address.
        address: String,
        /// What is wrong.
        message: String,
    },
    /// The other side does not speak HTTP/2.
    #[error("{address} does not speak HTTP/2: {source}")]
    Http2 {
        /// The address.
        address: String,
        /// The cause.
        source: h2::Error,
    },
}

impl ConnectError {
    /// What the caller can do.
    pub fn kind(&self) -> base::ErrorKind {
        match self {
            ConnectError::Io { .. } => base::ErrorKind::Retry,
            ConnectError::Tls { .. } | ConnectError::Http2 { .. } => base::ErrorKind::Rejected,
        }
    }
}

/// One connection to a server. Clones share it.
#[derive(Clone)]
pub struct GrpcConnection {
    sender: SendRequest<Bytes>,
    scheme: Scheme,
    authority: Authority,
    authorization: Option<HeaderValue>,
    message_bytes_max: usize,
}

impl GrpcConnection {
    /// The same connection, whose calls carry a token from now on. A token that no header can carry, which is anything but
    /// printable ASCII, is left out; the server then refuses the calls.
    pub fn with_token(mut self, token: &str) -> GrpcConnection {
        self.authorization = HeaderValue::try_from(format!("Bearer {token}")).ok();
        if let Some(authorization) = &mut self.authorization {
            authorization.set_sensitive(true);
        }
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// If there is no connection, or the server cannot be authenticated.
    pub async fn connect(target: &ConnectTarget) -> Result<GrpcConnection, ConnectError> {
        GrpcConnection::connect_as(target, None, CONNECT_TIMEOUT).await
    }

    /// Connects within `time_max`, and proves `identity` if the server asks for one.
    ///
    /// # Errors
    /// As [`GrpcConnection::connect`]; also if the identity is unusable.
    pub async fn connect_as(
        target: &ConnectTarget,
        identity: Option<&ClientIdentity>,
        time_max: Duration,
    ) -> Result<GrpcConnection, ConnectError> {
        let io_error = |source| ConnectError::Io { address: target.address.clone(), source };
        tokio::time::timeout(time_max, GrpcConnection::connect_once(target, identity))
            .await
            .unwrap_or_else(|_| Err(io_error(io::ErrorKind::TimedOut.into())))
    }

    async fn connect_once(
        target: &ConnectTarget,
        identity: Option<&ClientIdentity>,
    ) -> Result<GrpcConnection, ConnectError> {
        let io_error = |source| ConnectError::Io { address: target.address.clone(), source };
        let tls_error = |message: String| ConnectError::Tls { address: target.address.clone(), message };
        let socket = TcpStream::connect(&target.address).await.map_err(io_error)?;
        socket.set_nodelay(true).map_err(io_error)?;
        let socket = BufReader::with_capacity(IO_BUFFER_BYTES, socket);
        let Some(tls) = &target.tls else {
            return GrpcConnection::over(socket, Scheme::HTTP, &target.address, target).await;
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&tls.roots_pem) {
            let certificate = certificate.map_err(|error| tls_error(error.to_string()))?;
            roots.add(certificate).map_err(|error| tls_error(error.to_string()))?;
        }
        let revocations = Revocations::of_pem(&tls.roots_pem).map_err(|error| tls_error(error.to_string()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls_error(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match identity {
            None => config.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(&identity.certificate_pem).collect::<Result<Vec<_>, _>>();
                let chain = chain.map_err(|error| tls_error(error.to_string()))?;
                let key = PrivateKeyDer::from_pem_slice(&identity.key_pem);
                let key = key.map_err(|error| tls_error(error.to_string()))?;
                config.with_client_auth_cert(chain, key).map_err(|error| tls_error(error.to_string()))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(tls.server_name.clone()).map_err(|error| tls_error(error.to_string()))?;
        let stream =
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(io_error)?;
        let chain = stream.get_ref().1.peer_certificates().into_iter().flatten().map(|certificate| &certificate[..]);
        revocations.check(chain).map_err(|error| io_error(io::Error::new(io::ErrorKind::PermissionDenied, error)))?;
        let authority = match target.address.rsplit_once(':') {
            Some((_, port)) => format!("{}:{port}", tls.server_name),
            None => tls.server_name.clone(),
        };
        GrpcConnection::over(stream, Scheme::HTTPS, &authority, target).await
    }

    async fn over<I>(
        io: I,
        scheme: Scheme,
        authority: &str,
        target: &ConnectTarget,
    ) -> Result<GrpcConnection, ConnectError>
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let authority = Authority::try_from(authority)
            .map_err(|error| ConnectError::Tls { address: target.address.clone(), message: error.to_string() })?;
        let (sender, connection) = h2::client::Builder::new()
            .initial_window_size(WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES_MAX)
            .enable_push(false)
            .handshake::<_, Bytes>(BufWriter::with_capacity(IO_BUFFER_BYTES, io))
            .await
            .map_err(|source| ConnectError::Http2 { address: target.address.clone(), source })?;
        // The driver ends with the last handle. Calls report as their status why the connection broke.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(GrpcConnection { sender, scheme, authority, authorization: None, message_bytes_max: 100 << 20 })
    }

    /// Sends one message and returns one answer.
    ///
    /// # Errors
    /// The status that the server answered, or a local one if there is no answer.
    pub async fn unary<Q, A>(
        &self,
        path: &'static str,
        request: &Q,
        deadline: Option<Duration>,
    ) -> Result<A, GrpcStatus>
    where
        Q: Message,
        A: Message + Default,
    {
        self.unary_bytes(path, frame(request), deadline).await.and_then(decode)
    }

    /// As [`GrpcConnection::unary`], for an encoded message with its prefix.
    ///
    /// # Errors
    /// As [`GrpcConnection::unary`].
    pub async fn unary_bytes(
        &self,
        path: &'static str,
        framed: Bytes,
        deadline: Option<Duration>,
    ) -> Result<Bytes, GrpcStatus> {
        let call = async {
            let (mut requests, mut responses) = self.start(path, deadline).await?;
            // The server may answer before it has taken the whole request; then its answer counts.
            if framed.len() <= UNGATED_BYTES_MAX {
                let _ = requests.stream.send_data(framed, true);
            } else if requests.send_framed(framed).await.is_ok() {
                requests.close();
            }
            let answer = responses.next_bytes().await?;
            let answer = answer.ok_or_else(|| GrpcStatus::new(GrpcCode::Internal, "success without an answer"))?;
            match responses.next_bytes().await? {
                None => Ok(answer),
                Some(_) => Err(GrpcStatus::new(GrpcCode::Internal, "more than one answer")),
            }
        };
        match deadline {
            None => call.await,
            Some(deadline) => tokio::time::timeout(deadline + DEADLINE_SLACK, call)
                .await
                .unwrap_or_else(|_| Err(GrpcStatus::deadline_exceeded())),
        }
    }

    /// Opens a stream in both directions.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the connection has gone.
    pub async fn open(
        &self,
        path: &'static str,
        deadline: Option<Duration>,
    ) -> Result<(RequestStream, ResponseStream), GrpcStatus> {
        self.start(path, deadline).await
    }

    async fn start(
        &self,
        path: &'static str,
        deadline: Option<Duration>,
    ) -> Result<(RequestStream, ResponseStream), GrpcStatus> {
        let mut sender = self.sender.clone().ready().await.map_err(|error| from_h2(&error))?;
        let mut uri = http::uri::Parts::default();
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Some(self.authority.clone());
        uri.path_and_query = Some(PathAndQuery::from_static(path));
        let mut request = Request::new(());
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from_parts(uri).expect("scheme, authority and path are all there");
        *request.version_mut() = http::Version::HTTP_2;
        let headers = request.headers_mut();
        headers.reserve(3);
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        if let Some(authorization) = &self.authorization {
            headers.insert(AUTHORIZATION, authorization.clone());
        }
        if let Some(deadline) = deadline {
            headers.insert("grpc-timeout", timeout::format(deadline));
        }
        let (response, stream) = sender.send_request(request, false).map_err(|error| from_h2(&error))?;
        let responses =
            ResponseStream { state: ResponseState::Headers(response), message_bytes_max: self.message_bytes_max };
        Ok((RequestStream { stream }, responses))
    }
}

impl fmt::Debug for GrpcConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}://{})", self.scheme, self.authority)
    }
}

/// The sending side of a stream.
pub struct RequestStream {
    stream: SendStream<Bytes>,
}

impl RequestStream {
    /// Sends one message, as fast as the server takes it.
    ///
    /// # Errors
    /// If the stream has ended; the answers give the reason.
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), GrpcStatus> {
        self.send_framed(frame(message)).await
    }

    /// As [`RequestStream::send`], for bytes that already have their prefix (or lack it, to test a server).
    ///
    /// # Errors
    /// As [`RequestStream::send`].
    pub async fn send_framed(&mut self, framed: Bytes) -> Result<(), GrpcStatus> {
        let mut rest = framed;
        while !rest.is_empty() {
            self.stream.reserve_capacity(rest.len());
            if self.stream.capacity() == 0 {
                match std::future::poll_fn(|context| self.stream.poll_capacity(context)).await {
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return Err(from_h2(&error)),
                    None => return Err(GrpcStatus::new(GrpcCode::Unavailable, "the stream has ended")),
                }
            }
            let part = rest.split_to(self.stream.capacity().min(rest.len()));
            self.stream.send_data(part, false).map_err(|error| from_h2(&error))?;
        }
        Ok(())
    }

    /// Signals that no more messages follow.
    pub fn close(&mut self) {
        // If this fails, the stream has already ended.
        let _ = self.stream.send_data(Bytes::new(), true);
    }
}

/// The receiving side of a stream.
pub struct ResponseStream {
    state: ResponseState,
    message_bytes_max: usize,
}

enum ResponseState {
    Headers(h2::client::ResponseFuture),
    Body(MessageStream),
    Ended,
}

impl ResponseStream {
    /// The next message; `None` after success. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The status that ended the stream.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, GrpcStatus> {
        self.next_bytes().await?.map(decode).transpose()
    }

    /// Waits until the server has accepted the call.
    ///
    /// # Errors
    /// The status with which it refused.
    pub async fn started(&mut self) -> Result<(), GrpcStatus> {
        if let ResponseState::Headers(response) = &mut self.state {
            let response = response.await;
            self.state = ResponseState::Ended;
            let response = response.map_err(|error| from_h2(&error))?;
            if response.status() != StatusCode::OK {
                return Err(GrpcStatus::new(GrpcCode::Unknown, format!("HTTP status {}", response.status())));
            }
            if let Some(status) = GrpcStatus::from_headers(response.headers()) {
                return if status.code == GrpcCode::Ok { Ok(()) } else { Err(status) };
            }
            let body: RecvStream = response.into_body();
            self.state = ResponseState::Body(MessageStream::responses(body, self.message_bytes_max));
        }
        Ok(())
    }

    /// As [`ResponseStream::next`], undecoded.
    ///
    /// # Errors
    /// As [`ResponseStream::next`].
    pub async fn next_bytes(&mut self) -> Result<Option<Bytes>, GrpcStatus> {
        self.started().await?;
        let ResponseState::Body(messages) = &mut self.state else { return Ok(None) };
        if let Some(message) = messages.next().await? {
            return Ok(Some(message));
        }
        let trailers = messages.trailers().await?;
        self.state = ResponseState::Ended;
        match trailers.as_ref().and_then(GrpcStatus::from_headers) {
            Some(status) if status.code == GrpcCode::Ok => Ok(None),
            Some(status) => Err(status),
            None => Err(GrpcStatus::new(GrpcCode::Internal, "the answer has no status")),
        }
    }
}
