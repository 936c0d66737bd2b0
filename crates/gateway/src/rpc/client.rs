//! The client's side of a connection: many calls at once over one socket.
//!
//! 1. [`Connection::connect`] makes the TCP and TLS connection and starts the one task that drives its frames.
//! 2. [`Connection::unary`] sends one message and waits for one answer; [`Connection::open`] opens a stream.
//!
//! A connection does not come back: when its connection has gone, calls end as `UNAVAILABLE` and the caller connects anew.
//! Dropping the future of a call cancels the call.

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
use prost::Message;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, BufWriter};
use tokio::net::TcpStream;

use super::message::{Messages, decode, frame, from_h2};
use super::status::{Code, Status};
use super::timeout;

const WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
const FRAME_BYTES_MAX: u32 = 64 << 10;
const IO_BUFFER_BYTES: usize = 64 << 10;
/// A request up to this size is handed to the connection without waiting for the server's window.
const UNGATED_BYTES_MAX: usize = 64 << 10;
/// How long a call waits for the server to say itself that the deadline has passed.
const DEADLINE_SLACK: Duration = Duration::from_millis(250);
/// A connection that is not there after this long is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a server is, and how to know it.
#[derive(Clone, Debug)]
pub struct Target {
    /// Host and port, such as `127.0.0.1:7051`.
    pub address: String,
    /// Absent on a network without TLS.
    pub tls: Option<Tls>,
}

/// What a client needs to trust a server.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Certificates of the authorities, in PEM.
    pub roots_pem: Vec<u8>,
    /// The name that the server's certificate has to bear.
    pub server_name: String,
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no server at the address, or the network failed.
    #[error("no connection to {address}: {source}")]
    Io {
        /// Where to.
        address: String,
        /// Why not.
        source: io::Error,
    },
    /// The PEM or the name in the target are of no use.
    #[error("the TLS settings for {address} are wrong: {message}")]
    Tls {
        /// Where to.
        address: String,
        /// What is wrong.
        message: String,
    },
    /// The other side does not speak HTTP/2.
    #[error("{address} does not speak HTTP/2: {source}")]
    Http2 {
        /// Where to.
        address: String,
        /// Why not.
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
pub struct Connection {
    sender: SendRequest<Bytes>,
    scheme: Scheme,
    authority: Authority,
    authorization: Option<HeaderValue>,
    message_bytes_max: usize,
}

impl Connection {
    /// The same connection, whose calls bear a token from now on. One that no header can bear, which is anything but
    /// printable ASCII, is left out; the server then refuses the calls.
    pub fn with_token(mut self, token: &str) -> Connection {
        self.authorization = HeaderValue::try_from(format!("Bearer {token}")).ok();
        if let Some(authorization) = &mut self.authorization {
            authorization.set_sensitive(true);
        }
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// When there is no connection, or no trust.
    pub async fn connect(target: &Target) -> Result<Connection, ConnectError> {
        let io_error = |source| ConnectError::Io { address: target.address.clone(), source };
        tokio::time::timeout(CONNECT_TIMEOUT, Connection::connect_once(target))
            .await
            .unwrap_or_else(|_| Err(io_error(io::ErrorKind::TimedOut.into())))
    }

    async fn connect_once(target: &Target) -> Result<Connection, ConnectError> {
        let io_error = |source| ConnectError::Io { address: target.address.clone(), source };
        let tls_error = |message: String| ConnectError::Tls { address: target.address.clone(), message };
        let socket = TcpStream::connect(&target.address).await.map_err(io_error)?;
        socket.set_nodelay(true).map_err(io_error)?;
        let socket = BufReader::with_capacity(IO_BUFFER_BYTES, socket);
        let Some(tls) = &target.tls else {
            return Connection::over(socket, Scheme::HTTP, &target.address, target).await;
        };
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&tls.roots_pem) {
            let certificate = certificate.map_err(|error| tls_error(error.to_string()))?;
            roots.add(certificate).map_err(|error| tls_error(error.to_string()))?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| tls_error(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(tls.server_name.clone()).map_err(|error| tls_error(error.to_string()))?;
        let stream =
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(io_error)?;
        let authority = match target.address.rsplit_once(':') {
            Some((_, port)) => format!("{}:{port}", tls.server_name),
            None => tls.server_name.clone(),
        };
        Connection::over(stream, Scheme::HTTPS, &authority, target).await
    }

    async fn over<I>(io: I, scheme: Scheme, authority: &str, target: &Target) -> Result<Connection, ConnectError>
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
        // The driver ends with the last handle. What broke the connection reaches its calls as their status.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Ok(Connection { sender, scheme, authority, authorization: None, message_bytes_max: 100 << 20 })
    }

    /// One message there, one message back.
    ///
    /// # Errors
    /// The status that the server answered, or one made here when there is no answer.
    pub async fn unary<Q, A>(&self, path: &'static str, request: &Q, deadline: Option<Duration>) -> Result<A, Status>
    where
        Q: Message,
        A: Message + Default,
    {
        self.unary_bytes(path, frame(request), deadline).await.and_then(decode)
    }

    /// As [`Connection::unary`], for a message that is encoded already, with its prefix.
    ///
    /// # Errors
    /// As [`Connection::unary`].
    pub async fn unary_bytes(
        &self,
        path: &'static str,
        framed: Bytes,
        deadline: Option<Duration>,
    ) -> Result<Bytes, Status> {
        let call = async {
            let (mut requests, mut responses) = self.start(path, deadline).await?;
            // The server may answer before it has taken everything; its answer is what counts then.
            if framed.len() <= UNGATED_BYTES_MAX {
                let _ = requests.stream.send_data(framed, true);
            } else if requests.send_framed(framed).await.is_ok() {
                requests.close();
            }
            let answer = responses.next_bytes().await?;
            let answer = answer.ok_or_else(|| Status::new(Code::Internal, "success without an answer"))?;
            match responses.next_bytes().await? {
                None => Ok(answer),
                Some(_) => Err(Status::new(Code::Internal, "more than one answer")),
            }
        };
        match deadline {
            None => call.await,
            Some(deadline) => tokio::time::timeout(deadline + DEADLINE_SLACK, call)
                .await
                .unwrap_or_else(|_| Err(Status::deadline_exceeded())),
        }
    }

    /// Opens a stream in both directions.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the connection has gone.
    pub async fn open(&self, path: &'static str, deadline: Option<Duration>) -> Result<(Requests, Responses), Status> {
        self.start(path, deadline).await
    }

    async fn start(&self, path: &'static str, deadline: Option<Duration>) -> Result<(Requests, Responses), Status> {
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
        let responses = Responses { state: State::Headers(response), message_bytes_max: self.message_bytes_max };
        Ok((Requests { stream }, responses))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({}://{})", self.scheme, self.authority)
    }
}

/// The sending side of a stream.
pub struct Requests {
    stream: SendStream<Bytes>,
}

impl Requests {
    /// Sends one message, as fast as the server takes it.
    ///
    /// # Errors
    /// When the stream has ended; the answers say why.
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), Status> {
        self.send_framed(frame(message)).await
    }

    /// As [`Requests::send`], for bytes that already have their prefix (or have none, to test a server).
    ///
    /// # Errors
    /// As [`Requests::send`].
    pub async fn send_framed(&mut self, framed: Bytes) -> Result<(), Status> {
        let mut rest = framed;
        while !rest.is_empty() {
            self.stream.reserve_capacity(rest.len());
            if self.stream.capacity() == 0 {
                match std::future::poll_fn(|context| self.stream.poll_capacity(context)).await {
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return Err(from_h2(&error)),
                    None => return Err(Status::new(Code::Unavailable, "the stream has ended")),
                }
            }
            let part = rest.split_to(self.stream.capacity().min(rest.len()));
            self.stream.send_data(part, false).map_err(|error| from_h2(&error))?;
        }
        Ok(())
    }

    /// Says that no more messages come.
    pub fn close(&mut self) {
        // Failing means that the stream has ended already.
        let _ = self.stream.send_data(Bytes::new(), true);
    }
}

/// The receiving side of a stream.
pub struct Responses {
    state: State,
    message_bytes_max: usize,
}

enum State {
    Headers(h2::client::ResponseFuture),
    Body(Messages),
    Ended,
}

impl Responses {
    /// The next message; `None` after success. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The status that ended the stream.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        self.next_bytes().await?.map(decode).transpose()
    }

    /// Waits until the server has taken the call.
    ///
    /// # Errors
    /// The status with which it did not.
    pub async fn started(&mut self) -> Result<(), Status> {
        if let State::Headers(response) = &mut self.state {
            let response = response.await;
            self.state = State::Ended;
            let response = response.map_err(|error| from_h2(&error))?;
            if response.status() != StatusCode::OK {
                return Err(Status::new(Code::Unknown, format!("HTTP status {}", response.status())));
            }
            if let Some(status) = Status::from_headers(response.headers()) {
                return if status.code == Code::Ok { Ok(()) } else { Err(status) };
            }
            let body: RecvStream = response.into_body();
            self.state = State::Body(Messages::answers(body, self.message_bytes_max));
        }
        Ok(())
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, Status> {
        self.started().await?;
        let State::Body(messages) = &mut self.state else { return Ok(None) };
        if let Some(message) = messages.next().await? {
            return Ok(Some(message));
        }
        let trailers = messages.trailers().await?;
        self.state = State::Ended;
        match trailers.as_ref().and_then(Status::from_headers) {
            Some(status) if status.code == Code::Ok => Ok(None),
            Some(status) => Err(status),
            None => Err(Status::new(Code::Internal, "the answer has no status")),
        }
    }
}
