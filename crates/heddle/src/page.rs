//! Fetches a network's metrics and health page: one small HTTP request, without a runtime.

use std::io::{Error, Read as _, Result, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const ANSWER_BYTES_MAX: u64 = 16 << 20;
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(2);

/// Returns the body of the page's answer. Blocks for milliseconds, or for a few seconds if the page does not answer.
///
/// # Errors
/// There is no answer in time, or it is not 200.
pub fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut socket = TcpStream::connect_timeout(&address, ANSWER_WAIT_MAX)?;
    socket.set_read_timeout(Some(ANSWER_WAIT_MAX))?;
    socket.set_write_timeout(Some(ANSWER_WAIT_MAX))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes())?;
    let mut answer = String::new();
    socket.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| Error::other("the answer is not HTTP"))?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        code => Err(Error::other(format!("the answer to {path} is {}: {}", code.unwrap_or("empty"), body.trim()))),
    }
}

/// The value of a metric in Prometheus' text format, summed over all processes; it must have no label except `process`.
pub fn metric(text: &str, name: &str) -> Option<f64> {
    samples(text, name).map(|(_, value)| value).reduce(|sum, value| sum + value)
}

/// The values of a metric by process, if it has the label `process` and no other.
pub fn by_process(text: &str, name: &str) -> Vec<(String, f64)> {
    samples(text, name).filter_map(|(process, value)| Some((process?.to_owned(), value))).collect()
}

fn samples<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = (Option<&'a str>, f64)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (process, rest) = match rest.strip_prefix("{process=\"") {
            Some(labelled) => {
                let (process, rest) = labelled.split_once('"')?;
                (Some(process), rest.strip_prefix('}')?)
            }
            None => (None, rest),
        };
        Some((process, rest.strip_prefix(' ')?.trim().parse().ok()?))
    })
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
        let text = "a_total{process=\"x\"} 1\na_total{process=\"y\"} 2\na_total{process=\"y\",le=\"3\"} 4\n";
        assert_eq!(metric(text, "a_total"), Some(3.0));
        assert_eq!(by_process(text, "a_total"), [("x".to_owned(), 1.0), ("y".to_owned(), 2.0)]);
    }
}
