//! The metrics and health page: Prometheus text at `/metrics`, `ok` at `/healthz`, over plain HTTP.
//!
//! 1. Read a request's head, at most [`HEAD_BYTES_MAX`] within [`HEAD_WAIT_MAX`]; 2. answer its path; 3. close.
//!
//! It answers one small request a connection, so it stands on a socket rather than on a web framework. It shows counters
//! only: no keys, no names of clients, no contents.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const HEAD_BYTES_MAX: usize = 8 << 10;
const HEAD_WAIT_MAX: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: usize = 32;

/// Answers requests until the future is dropped. `status` is the JSON that `/status` shows.
pub async fn serve(listener: TcpListener, status: impl Fn() -> serde_json::Value + Send + Sync + 'static) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let status = Arc::new(status);
    let mut answers = tokio::task::JoinSet::new();
    loop {
        while answers.try_join_next().is_some() {}
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((socket, _)) => {
                let status = status.clone();
                answers.spawn(async move {
                    let _slot = slot;
                    let answered = tokio::time::timeout(HEAD_WAIT_MAX, answer(socket, status.as_ref())).await;
                    if let Ok(Err(error)) = answered {
                        tracing::debug!(%error, "a metrics request failed");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the metrics page cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut socket: TcpStream, status: &(dyn Fn() -> serde_json::Value + Send + Sync)) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        if head.len() > HEAD_BYTES_MAX || socket.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let (code, kind, body) = match path(&head) {
        Some("/metrics") => ("200 OK", "text/plain; version=0.0.4", base::event::render_prometheus()),
        Some("/healthz") => ("200 OK", "text/plain", "ok\n".to_owned()),
        Some("/status") => ("200 OK", "application/json", format!("{:#}\n", status())),
        Some(_) => ("404 Not Found", "text/plain", "try /metrics, /status or /healthz\n".to_owned()),
        None => ("400 Bad Request", "text/plain", "only GET is answered here\n".to_owned()),
    };
    let mut response = String::with_capacity(body.len() + 128);
    let length = body.len();
    write!(response, "HTTP/1.1 {code}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .expect("writing to a string works");
    socket.write_all(response.as_bytes()).await?;
    socket.shutdown().await
}

/// The path of a GET request without its query.
fn path(head: &[u8]) -> Option<&str> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let target = std::str::from_utf8(line).ok()?.strip_prefix("GET ")?.split(' ').next()?;
    target.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn known_paths_answer_and_anything_else_is_refused_without_harm() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let server = tokio::spawn(serve(listener, || serde_json::json!({ "height": 7 })));
        for (request, wanted) in [
            (&b"GET /healthz HTTP/1.1\r\n\r\n"[..], "200 OK"),
            (b"GET /status?x=1 HTTP/1.1\r\n\r\n", "\"height\": 7"),
            (b"GET /metrics HTTP/1.1\r\n\r\n", "text/plain; version"),
            (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
            (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", "400"),
            (&[b'a'; 20_000], ""),
        ] {
            let mut socket = TcpStream::connect(address).await.expect("the page listens");
            let _ = socket.write_all(request).await;
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer).await;
            assert!(String::from_utf8_lossy(&answer).contains(wanted), "{:?}", String::from_utf8_lossy(request));
        }
        server.abort();
    }
}
