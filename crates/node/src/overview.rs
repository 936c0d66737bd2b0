//! Metrics and health of all processes of a network on one page, for their supervisor.
//!
//! For each request the server fetches the pages of all processes. Every sample gets the label `process`. A process
//! that does not answer in time is left out of the metrics and reported as unhealthy.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::CancellationToken;
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::metrics::{self, MetricsSource};
use crate::network::NodeError;
use crate::ports;

/// Time limit for one process's answer.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Maximum bytes of one process's page.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// A running overview page.
pub struct Overview {
    address: SocketAddr,
    processes: ProcessMetrics,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// The address of each process's page, or why there is none.
#[derive(Clone, Default)]
struct ProcessMetrics(Arc<Mutex<BTreeMap<String, Result<SocketAddr, String>>>>);

impl Overview {
    /// Starts the page at an address.
    ///
    /// # Errors
    /// [`NodeError::Port`].
    pub async fn start(address: SocketAddr) -> Result<Overview, NodeError> {
        let listener = ports::bind(address, "ports.metrics").await?;
        let (address, processes, stop) = (ports::local(&listener), ProcessMetrics::default(), CancellationToken::new());
        let task = tokio::spawn(metrics::serve(listener, processes.clone(), stop.clone()));
        Ok(Overview { address, processes, stop, task })
    }

    /// The page's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the address of a process's page, or the reason why the process does not run.
    pub fn set(&self, name: &str, page: Result<SocketAddr, String>) {
        self.processes.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), page);
    }

    /// Removes a process that no longer exists.
    pub fn remove(&self, name: &str) {
        self.processes.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Stops the page.
    pub async fn stop(self) {
        self.stop.cancel();
        // A task that panicked has logged it.
        let _ = self.task.await;
    }
}

impl ProcessMetrics {
    async fn ask(&self, path: &str) -> Vec<(String, Result<FetchedPage, String>)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let asking = known.into_iter().map(|(name, page)| async move {
            let answer = match page {
                Err(reason) => Err(reason),
                Ok(address) => match tokio::time::timeout(ANSWER_MAX, get(address, path)).await {
                    Ok(Ok(page)) => Ok(page),
                    Ok(Err(error)) => Err(format!("its page at {address}: {error}")),
                    Err(_) => Err(format!("its page at {address} does not answer")),
                },
            };
            (name, answer)
        });
        join_all(asking).await
    }
}

#[async_trait]
impl MetricsSource for ProcessMetrics {
    async fn metrics(&self) -> String {
        let pages = self.ask("/metrics").await;
        merge(pages.iter().filter_map(|(name, page)| Some((name.as_str(), page.as_ref().ok()?.body.as_str()))))
    }

    async fn problem(&self) -> Option<String> {
        let mut problem = String::new();
        for (name, page) in self.ask("/healthz").await {
            match page {
                Ok(page) if page.is_well => {}
                Ok(page) => page.body.lines().for_each(|line| problem += &format!("{name}: {line}\n")),
                Err(reason) => problem += &format!("{name}: {reason}\n"),
            }
        }
        (!problem.is_empty()).then_some(problem)
    }

    async fn notes(&self) -> String {
        let mut notes = String::new();
        for (name, page) in self.ask("/healthz").await {
            let body = page.map(|page| page.body).unwrap_or_default();
            body.lines().skip(1).for_each(|line| notes += &format!("{name}: {line}\n"));
        }
        notes
    }
}

struct FetchedPage {
    is_well: bool,
    body: String,
}

async fn get(address: SocketAddr, path: &str) -> std::io::Result<FetchedPage> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    socket.take(PAGE_BYTES_MAX).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok(FetchedPage { is_well: head.split(' ').nth(1) == Some("200"), body: body.to_owned() })
}

/// Merges pages in Prometheus' text format: groups the samples of each metric, and labels each with its process.
fn merge<'a>(pages: impl Iterator<Item = (&'a str, &'a str)>) -> String {
    // For each metric: its heading, and its samples.
    let mut metrics: BTreeMap<&str, (Vec<&str>, String)> = BTreeMap::new();
    for (process, page) in pages {
        let mut current = "";
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                current = rest.split(' ').nth(1).unwrap_or_default();
                let heading = &mut metrics.entry(current).or_default().0;
                if !heading.contains(&line) {
                    heading.push(line);
                }
                continue;
            }
            let Some((sample, value)) = line.rsplit_once(' ') else { continue };
            let labelled = match sample.split_once('{') {
                Some((name, labels)) => format!("{name}{{process=\"{process}\",{labels} {value}\n"),
                None => format!("{sample}{{process=\"{process}\"}} {value}\n"),
            };
            metrics.entry(current).or_default().1 += &labelled;
        }
    }
    let mut text = String::new();
    for (heading, samples) in metrics.values() {
        heading.iter().for_each(|line| text += &format!("{line}\n"));
        text += samples;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_one_metric_stand_together_with_their_process() {
        let one = "# HELP a Things.\n# TYPE a counter\na 1\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_sum 3\n";
        let two = "# HELP a Things.\n# TYPE a counter\na 7\n";
        let merged = merge([("x-1", one), ("y", two)].into_iter());
        let expected = "# HELP a Things.\n# TYPE a counter\na{process=\"x-1\"} 1\na{process=\"y\"} 7\n\
                        # TYPE h histogram\nh_bucket{process=\"x-1\",le=\"1\"} 2\nh_sum{process=\"x-1\"} 3\n";
        assert_eq!(merged, expected);
    }

    #[tokio::test]
    async fn a_process_that_does_not_run_is_named() {
        let overview = Overview::start("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
        overview.set("compute-org1", Err("ended with signal 9".to_owned()));
        let page = get(overview.address(), "/healthz").await.expect("it answers");
        assert!(!page.is_well);
        assert_eq!(page.body, "compute-org1: ended with signal 9\n");
        // The overview's own page is a page like any other.
        overview.set("compute-org1", Ok(overview.address()));
        overview.set("compute-org1", Err("gone".to_owned()));
        assert_eq!(get(overview.address(), "/metrics").await.expect("it answers").body, "");
        overview.stop().await;
    }
}
