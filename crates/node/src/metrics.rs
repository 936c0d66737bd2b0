//! Metrics and health over plain HTTP: `GET /metrics` for Prometheus, `GET /healthz` for process supervisors.
//!
//! All clients are unauthenticated, so the server protects itself: at the maximum number of connections it closes the
//! oldest to accept a new one ([`base::admission`]), and it limits the bytes of a request's head and the time for a
//! request and its answer. Of HTTP it implements only this: one request per connection.

mod renamed;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::admission::{Admission, AdmissionLimits};
use base::event;
use base::rt::CancellationToken;
use chain::Channel;
use chain::order::orderer_channel::OrdererChannel;
use chain::remote::RemotePeer;
use gateway::service::TransactionIntake;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::services::Services;

/// Maximum of concurrent connections from all addresses: enough for every scraper and for people beside them.
const CONNECTIONS_MAX: usize = 64;
/// Maximum of concurrent connections from one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;
/// Maximum bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// Time limit for reading a request and writing its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Registers the events of every layer, so that counters appear before their first event.
pub(crate) fn register() {
    event::register(base::admission::EVENTS);
    event::register(identity::EVENTS);
    event::register(storage::events::EVENTS);
    event::register(pool::events::EVENTS);
    event::register(replica::events::EVENTS);
    event::register(state::events::EVENTS);
    event::register(block_transport::events::EVENTS);
    event::register(private_data::events::EVENTS);
    event::register(validation::events::EVENTS);
    event::register(chain::events::EVENTS);
    event::register(executors::events::EVENTS);
    event::register(executor_relay::events::EVENTS);
    event::register(contract::events::EVENTS);
    event::register(gateway::events::EVENTS);
    event::register(gateway::disk_space::EVENTS);
    event::register(crate::credentials::EVENTS);
    event::register(crate::services::EVENTS);
    event::register(base::rt::net::EVENTS);
}

/// A part of the network that may fail, or stall until its operator acts.
pub(crate) trait MonitoredPart: Send + Sync {
    /// The error that ended it, if it has ended.
    fn failure(&self) -> Option<Arc<chain::Error>>;
    /// The reason why it stalls, while it does.
    fn stalled(&self) -> Option<String>;
}

impl MonitoredPart for Channel {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        self.failure()
    }

    fn stalled(&self) -> Option<String> {
        self.stalled()
    }
}

impl MonitoredPart for RemotePeer {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        None
    }

    fn stalled(&self) -> Option<String> {
        self.problem().map(|problem| problem.to_string())
    }
}

impl MonitoredPart for OrdererChannel {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        self.failure()
    }

    fn stalled(&self) -> Option<String> {
        self.stalled()
    }
}

/// The content of the pages.
#[async_trait]
pub trait MetricsSource: Send + Sync + 'static {
    /// The metrics in Prometheus' text format.
    async fn metrics(&self) -> String;
    /// The problems, one per line, if there are any.
    async fn problem(&self) -> Option<String>;
    /// Notes on conditions that do no harm, one per line.
    async fn notes(&self) -> String {
        String::new()
    }
}

#[async_trait]
impl MetricsSource for Health {
    async fn metrics(&self) -> String {
        let page = event::render_prometheus();
        let old = renamed::under_old_names(&page);
        page + &old
    }

    async fn problem(&self) -> Option<String> {
        Health::problem(self)
    }

    async fn notes(&self) -> String {
        self.notes.iter().flat_map(|notes| notes()).map(|note| note + "\n").collect()
    }
}

/// Provides notes for health.
type HealthNotes = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// Everything that determines this process's health.
#[derive(Clone)]
pub(crate) struct Health {
    /// With their host names.
    parts: Arc<[(String, Arc<dyn MonitoredPart>)]>,
    intake: TransactionIntake,
    notes: Vec<HealthNotes>,
    services: Option<Services>,
}

impl Health {
    pub(crate) fn new(parts: Vec<(String, Arc<dyn MonitoredPart>)>, intake: TransactionIntake) -> Health {
        Health { parts: parts.into(), intake, notes: Vec::new(), services: None }
    }

    pub(crate) fn with_services(self, services: Services) -> Health {
        Health { services: Some(services), ..self }
    }

    pub(crate) fn with_notes(mut self, notes: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Health {
        self.notes.push(Arc::new(notes));
        self
    }

    /// The problems, one per line, if there are any.
    fn problem(&self) -> Option<String> {
        let mut problem = String::new();
        if let Some(ended) = self.services.as_ref().and_then(Services::problem) {
            problem += &format!("{ended}, and is no longer served\n");
        }
        for (host, part) in self.parts.iter() {
            match (part.failure(), part.stalled()) {
                (Some(error), _) => problem += &format!("{host} has stopped: {error}\n"),
                (None, Some(reason)) => problem += &format!("{host} waits: {reason}\n"),
                (None, None) => {}
            }
        }
        if let Some(closed) = self.intake.problem() {
            problem += &format!("{closed}\n");
        }
        (!problem.is_empty()).then_some(problem)
    }
}

/// No client authenticates here, and only a request's head is buffered.
fn limits() -> AdmissionLimits {
    AdmissionLimits {
        unauthenticated_max: CONNECTIONS_MAX,
        unauthenticated_per_address_max: CONNECTIONS_PER_ADDRESS_MAX,
        handshake_time_max: REQUEST_TIMEOUT,
        ..AdmissionLimits::in_proportion(CONNECTIONS_MAX, (CONNECTIONS_MAX * HEAD_BYTES_MAX) as u64, 1)
    }
}

/// Serves until `stop`.
pub async fn serve(listener: TcpListener, source: impl MetricsSource, stop: CancellationToken) {
    let source = Arc::new(source);
    let admission = Admission::new(limits());
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let admitted = admission.admit(peer.ip());
        let source = source.clone();
        tokio::spawn(async move {
            // A client gets no answer if it is too slow, has gone, or is displaced by another one.
            let answered = tokio::time::timeout(REQUEST_TIMEOUT, answer(socket, source.as_ref()));
            admitted.displaced().run_until_cancelled(answered).await;
        });
    }
}

async fn answer(mut socket: TcpStream, source: &dyn MetricsSource) -> std::io::Result<()> {
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|window| window == b"\r\n\r\n") {
        let mut chunk = [0; 1024];
        let read = socket.read(&mut chunk).await?;
        if read == 0 || head.len() + read > HEAD_BYTES_MAX {
            return Ok(());
        }
        head.extend_from_slice(&chunk[..read]);
    }
    let (status, kind, body) = respond(&head, source).await;
    let is_head_only = head.starts_with(b"HEAD ");
    let length = body.len();
    let start =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    socket.write_all(start.as_bytes()).await?;
    if !is_head_only {
        socket.write_all(body.as_bytes()).await?;
    }
    socket.shutdown().await
}

async fn respond(head: &[u8], source: &dyn MetricsSource) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    if !matches!(method, b"GET" | b"HEAD") {
        return ("405 Method Not Allowed", TEXT, "GET /metrics or /healthz\n".to_owned());
    }
    match path {
        b"/metrics" => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", source.metrics().await),
        b"/healthz" => match source.problem().await {
            None => ("200 OK", TEXT, "ok\n".to_owned() + &source.notes().await),
            Some(problem) => ("503 Service Unavailable", TEXT, problem),
        },
        _ => ("404 Not Found", TEXT, "there are /metrics and /healthz\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Health::new(Vec::new(), TransactionIntake::default()), stop.clone()));
        let mut socket = TcpStream::connect(address).await.expect("a port that listens");
        socket.write_all(request).await.expect("room");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("text");
        stop.cancel();
        server.await.expect("no panic");
        answer
    }

    #[tokio::test]
    async fn metrics_and_health_are_served_and_nothing_else() {
        register();
        let metrics = ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(metrics.starts_with("HTTP/1.1 200") && metrics.contains("heddle_grpc_connections_open"), "{metrics}");
        assert!(ask(b"GET /healthz HTTP/1.1\r\n\r\n").await.ends_with("ok\n"));
        assert!(ask(b"GET /other HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 404"));
        assert!(ask(b"POST /metrics HTTP/1.1\r\n\r\n").await.starts_with("HTTP/1.1 405"));
        assert!(!ask(b"HEAD /healthz HTTP/1.1\r\n\r\n").await.contains("\r\n\r\nok"));
    }

    /// Regression: 32 silent sockets locked every scraper out, which hid all other attacks on the process.
    #[tokio::test]
    async fn silent_connections_keep_no_scraper_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, Health::new(Vec::new(), TransactionIntake::default()), stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..4 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.expect("a port that listens"));
        }
        let mut socket = TcpStream::connect(address).await.expect("a port that listens");
        socket.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("room");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("text");
        assert!(answer.ends_with("ok\n"), "{answer}");
        stop.cancel();
        server.await.expect("no panic");
    }

    #[tokio::test]
    async fn health_says_what_is_not_served_any_more() {
        let services = Services::new(CancellationToken::new());
        let health = Health::new(Vec::new(), TransactionIntake::default()).with_services(services.clone());
        assert_eq!(health.problem(), None);
        services.watch("memory-1", async {}).await.expect("it does not panic");
        let (status, _, body) = respond(b"GET /healthz HTTP/1.1\r\n\r\n", &health).await;
        assert!(status.starts_with("503"), "{status}");
        assert_eq!(body, "memory-1 has ended, and is no longer served\n");
    }

    struct Fake(Option<chain::Error>, Option<&'static str>);

    impl MonitoredPart for Fake {
        fn failure(&self) -> Option<Arc<chain::Error>> {
            self.0.as_ref().map(|error| Arc::new(chain::Error::Panicked(error.to_string())))
        }

        fn stalled(&self) -> Option<String> {
            self.1.map(str::to_owned)
        }
    }

    #[tokio::test]
    async fn health_names_every_part_that_has_stopped_or_waits() {
        let part = |host: &str, fake: Fake| (host.to_owned(), Arc::new(fake) as Arc<dyn MonitoredPart>);
        let intake = TransactionIntake::default();
        let parts = vec![
            part("peer0", Fake(None, None)),
            part("peer1", Fake(None, Some("the disk is full"))),
            part("orderer", Fake(Some(chain::Error::Stopped), Some("the disk is full"))),
        ];
        let health = Health::new(parts, intake.clone());
        let (status, _, body) = respond(b"GET /healthz HTTP/1.1\r\n\r\n", &health).await;
        assert!(status.starts_with("503"), "{status}");
        let lines: Vec<&str> = body.lines().collect();
        assert_eq!(lines[0], "peer1 waits: the disk is full");
        assert!(lines[1].starts_with("orderer has stopped: "), "{body}");
        assert_eq!(lines.len(), 2, "{body}");
        intake.close("there is hardly any room".to_owned());
        assert!(health.problem().is_some_and(|problem| problem.ends_with("there is hardly any room\n")));
        assert_eq!(Health::new(Vec::new(), TransactionIntake::default()).problem(), None);
    }

    /// `HEDDLE_WRITE_DOCS=1` rewrites the page instead of comparing.
    #[test]
    fn the_document_lists_every_metric() {
        register();
        let mut page = String::from(
            "# Metrics\n\nWhat `http://127.0.0.1:9443/metrics` shows, made from the declarations in the code.\n\n\
             | metric | kind | meaning |\n|---|---|---|\n",
        );
        let own = event::catalogue().into_iter().filter(|event| !event.name.starts_with("heddle_example"));
        let own = own.map(|event::EventDescription { name, documentation, kind }| {
            let kind = match kind {
                event::EventKind::Counter => "counter",
                event::EventKind::Gauge => "gauge",
                event::EventKind::Histogram(_) => "histogram",
            };
            (name, kind, documentation)
        });
        let by_owner = executors::OWNER_METRICS.map(|metric| (metric.name, metric.kind, metric.documentation));
        let mut all: Vec<_> = own.chain(by_owner).collect();
        all.sort_unstable();
        for (name, kind, documentation) in all {
            page += &format!("| `{name}` | {kind} | {} |\n", documentation.trim().replace(['\n', '|'], " "));
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("HEDDLE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).expect("the docs folder is writable");
        }
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(kept == page, "docs/metrics.md is out of date; run `HEDDLE_WRITE_DOCS=1 cargo test -p heddle-node`");
    }
}
