//! Asking a network's own page (metrics, status, health): one small HTTP request.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: u64 = 16 << 20;
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(5);

/// The body of what the page answers to a path.
///
/// # Errors
/// There is no answer within five seconds, or it is not 200.
pub async fn get(address: SocketAddr, path: &str) -> Result<String> {
    tokio::time::timeout(ANSWER_WAIT_MAX, ask(address, path)).await.map_err(|_| Error::from(ErrorKind::TimedOut))?
}

async fn ask(address: SocketAddr, path: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    socket.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer).map_err(|_| Error::other("the answer is no text"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| Error::other("the answer is no HTTP"))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => Err(Error::other(format!("the answer to {path} is {}", code.unwrap_or("empty")))),
    }
}

/// The value of a metric without labels in Prometheus' text.
pub fn metric(text: &str, name: &str) -> Option<f64> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# HELP a_total Things.\n# TYPE a_total counter\na_total_more 1\na_total 42\nb 0.5\n";
        assert_eq!(metric(text, "a_total"), Some(42.0));
        assert_eq!(metric(text, "b"), Some(0.5));
        assert_eq!(metric(text, "a"), None);
    }
}
