//! gRPC over HTTP/2, by means of the `h2` crate.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Version};
use rustls::ClientConfig;

use super::{dial, tls};

/// The longest time of a call.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);

/// The settings with which an HTTP/2 connection begins.
#[derive(Clone, Copy, Default)]
pub struct FlowControlWindows {
    /// Bytes that the server may send on each stream before we read any.
    pub stream: Option<u32>,
}

/// A connection to a gRPC port.
#[derive(Clone)]
pub struct GrpcChannel {
    sender: SendRequest<Bytes>,
    driver: Arc<tokio::task::JoinHandle<()>>,
}

/// How a call ended: the status, its message, and the answer's bytes.
#[derive(Debug)]
pub struct GrpcResponse {
    pub status: u32,
    pub message: String,
    pub body: Vec<u8>,
}

/// An open stream.
pub struct GrpcStream {
    pub requests: SendStream<Bytes>,
    pub response: h2::client::ResponseFuture,
}

impl GrpcChannel {
    /// Connects; in plain text without `tls`.
    ///
    /// # Errors
    /// The port does not answer.
    pub async fn connect(
        address: &str,
        tls: Option<&Arc<ClientConfig>>,
        windows: FlowControlWindows,
    ) -> io::Result<GrpcChannel> {
        let socket = dial(address).await?;
        let mut builder = h2::client::Builder::new();
        if let Some(bytes) = windows.stream {
            builder.initial_window_size(bytes);
        }
        let (sender, driver) = match tls {
            Some(config) => {
                let stream = tls::connect(config, socket).await?;
                let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
                (sender, tokio::spawn(async move { drop(connection.await) }))
            }
            None => {
                let (sender, connection) = builder.handshake(socket).await.map_err(io::Error::other)?;
                (sender, tokio::spawn(async move { drop(connection.await) }))
            }
        };
        Ok(GrpcChannel { sender, driver: Arc::new(driver) })
    }

    /// Opens a stream.
    ///
    /// # Errors
    /// The server has closed the connection.
    pub async fn open(&self, path: &str, headers: &[(&str, &str)]) -> io::Result<GrpcStream> {
        let mut request = Request::builder()
            .method(Method::POST)
            .version(Version::HTTP_2)
            .uri(format!("https://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).map_err(io::Error::other)?;
        let mut sender = self.sender.clone().ready().await.map_err(io::Error::other)?;
        let (response, requests) = sender.send_request(request, false).map_err(io::Error::other)?;
        Ok(GrpcStream { requests, response })
    }

    /// A call with one answer.
    ///
    /// # Errors
    /// No whole answer comes in time.
    pub async fn call(&self, path: &str, message: &[u8]) -> io::Result<GrpcResponse> {
        tokio::time::timeout(CALL_TIME_MAX, async {
            let mut stream = self.open(path, &[]).await?;
            stream.requests.send_data(framed(message), true).map_err(io::Error::other)?;
            stream.answer().await
        })
        .await?
    }

    /// As [`GrpcChannel::call`], for answers that must be `OK`.
    ///
    /// # Errors
    /// Any other status.
    pub async fn call_ok(&self, path: &str, message: &[u8]) -> io::Result<Vec<u8>> {
        let answer = self.call(path, message).await?;
        if answer.status == 0 {
            return Ok(answer.body);
        }
        Err(io::Error::other(format!("{path}: status {}, {}", answer.status, answer.message)))
    }
}

impl Drop for GrpcChannel {
    fn drop(&mut self) {
        if Arc::strong_count(&self.driver) == 1 {
            self.driver.abort();
        }
    }
}

impl GrpcStream {
    /// Sends bytes as far as the server's window lets them through, in pieces.
    ///
    /// # Errors
    /// The server has ended the stream.
    pub async fn send(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            self.requests.reserve_capacity(data.len());
            let free = std::future::poll_fn(|context| self.requests.poll_capacity(context)).await;
            let free = free.ok_or(io::ErrorKind::ConnectionReset)?.map_err(io::Error::other)?;
            let piece = data.split_to(free.min(data.len()));
            self.requests.send_data(piece, false).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The first message of the answer.
    ///
    /// # Errors
    /// The stream ends before its first message.
    pub async fn first(self) -> io::Result<(Vec<u8>, SendStream<Bytes>, RecvStream)> {
        let response = self.response.await.map_err(io::Error::other)?;
        if let Some((status, message)) = status_of(response.headers()) {
            return Err(io::Error::other(format!("status {status}, {message}")));
        }
        let mut body = response.into_body();
        let mut bytes = Vec::new();
        loop {
            if let Some(message) = unframed(&bytes) {
                return Ok((message.to_vec(), self.requests, body));
            }
            let Some(data) = body.data().await else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            let data = data.map_err(io::Error::other)?;
            body.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
            bytes.extend_from_slice(&data);
        }
    }

    async fn answer(self) -> io::Result<GrpcResponse> {
        let _requests = self.requests;
        let response = self.response.await.map_err(io::Error::other)?;
        if let Some((status, message)) = status_of(response.headers()) {
            return Ok(GrpcResponse { status, message, body: Vec::new() });
        }
        let mut stream = response.into_body();
        let mut bytes = Vec::new();
        while let Some(data) = stream.data().await {
            let data = data.map_err(io::Error::other)?;
            stream.flow_control().release_capacity(data.len()).map_err(io::Error::other)?;
            bytes.extend_from_slice(&data);
        }
        let trailers = stream.trailers().await.map_err(io::Error::other)?.unwrap_or_default();
        let (status, message) = status_of(&trailers).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(GrpcResponse { status, message, body: unframed(&bytes).unwrap_or_default().to_vec() })
    }
}

fn status_of(headers: &HeaderMap) -> Option<(u32, String)> {
    let status = headers.get("grpc-status")?.to_str().ok()?.parse().ok()?;
    let message = headers.get("grpc-message").and_then(|text| text.to_str().ok()).unwrap_or_default();
    Some((status, message.to_owned()))
}

/// A message with its five-byte prefix.
pub fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(message.len() + 5);
    bytes.put_slice(&head(message.len() as u64));
    bytes.put_slice(message);
    bytes.freeze()
}

/// The head of a message whose bytes follow later.
///
/// # Panics
/// If gRPC cannot encode this length.
pub fn head(length: u64) -> [u8; 5] {
    let length = u32::try_from(length).expect("below 4 GiB").to_be_bytes();
    [0, length[0], length[1], length[2], length[3]]
}

fn unframed(bytes: &[u8]) -> Option<&[u8]> {
    let (head, rest) = bytes.split_at_checked(5)?;
    let length = u32::from_be_bytes(head[1..].try_into().expect("four of five bytes"));
    rest.get(..length as usize)
}
