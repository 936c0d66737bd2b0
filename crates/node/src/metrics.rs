//! Metrics and health over plain HTTP: `GET /metrics` for Prometheus, `GET /healthz` for whoever restarts processes.
//!
//! A reader of one request a connection, and no more of HTTP than that takes. The page asks nobody who he is, so every
//! connection is a stranger's: when as many are open as may be, the oldest is closed for the newcomer ([`base::admission`]).
//! A request's head is bounded in bytes, and a request with its answer in time.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::admission::{Admission, AdmissionLimits};
use base::event;
use base::rt::Stop;
use chain::Channel;
use chain::order::chain::Chain;
use chain::remote::RemotePeer;
use gateway::service::Intake;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::services::Services;

/// Connections at once, of all addresses: enough for every scraper and for people beside them.
const CONNECTIONS_MAX: usize = 64;
/// Connections at once of one address.
const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;
/// Bytes of a request that are looked at.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// How long a request may take to arrive, and its answer to leave.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// A pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Makes the events of every layer known, so that zeros show.
pub(crate) fn register() {
    event::register(base::admission::EVENTS);
    event::register(identity::EVENTS);
    event::register(storage::events::EVENTS);
    event::register(pool::events::EVENTS);
    event::register(state::events::EVENTS);
    event::register(chain::events::EVENTS);
    event::register(gateway::events::EVENTS);
    event::register(crate::disk::EVENTS);
    event::register(crate::credentials::EVENTS);
    event::register(crate::services::EVENTS);
    event::register(base::rt::net::EVENTS);
}

/// A part of the network that may end by itself, or wait for its operator.
pub(crate) trait Part: Send + Sync {
    /// What ended it, if something did.
    fn failure(&self) -> Option<Arc<chain::Error>>;
    /// What it waits for, while it cannot go on.
    fn stalled(&self) -> Option<String>;
}

impl Part for Channel {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        self.failure()
    }

    fn stalled(&self) -> Option<String> {
        self.stalled()
    }
}

impl Part for RemotePeer {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        None
    }

    fn stalled(&self) -> Option<String> {
        self.problem().map(|problem| problem.to_string())
    }
}

impl Part for Chain {
    fn failure(&self) -> Option<Arc<chain::Error>> {
        self.failure()
    }

    fn stalled(&self) -> Option<String> {
        self.stalled()
    }
}

/// What the page is made from.
#[async_trait]
pub(crate) trait Source: Send + Sync + 'static {
    /// Prometheus' text.
    async fn metrics(&self) -> String;
    /// What is wrong, a line each, if something is.
    async fn problem(&self) -> Option<String>;
    /// What is worth knowing and hinders nothing, a line each.
    async fn notes(&self) -> String {
        String::new()
    }
}

#[async_trait]
impl Source for Health {
    async fn metrics(&self) -> String {
        event::render_prometheus()
    }

    async fn problem(&self) -> Option<String> {
        Health::problem(self)
    }

    async fn notes(&self) -> String {
        self.notes.iter().flat_map(|notes| notes()).map(|note| note + "\n").collect()
    }
}

/// Says what is worth knowing.
type Notes = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// What is looked at to say whether this process is well.
#[derive(Clone)]
pub(crate) struct Health {
    /// With their hosts' names.
    parts: Arc<[(String, Arc<dyn Part>)]>,
    intake: Intake,
    notes: Vec<Notes>,
    services: Option<Services>,
}

impl Health {
    pub(crate) fn new(parts: Vec<(String, Arc<dyn Part>)>, intake: Intake) -> Health {
        Health { parts: parts.into(), intake, notes: Vec::new(), services: None }
    }

    pub(crate) fn with_services(self, services: Services) -> Health {
        Health { services: Some(services), ..self }
    }

    pub(crate) fn with_notes(mut self, notes: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Health {
        self.notes.push(Arc::new(notes));
        self
    }

    /// What is wrong, a line each, if something is.
    fn problem(&self) -> Option<String> {
        let mut problem = String::new();
        if let Some(ended) = self.services.as_ref().and_then(Services::problem) {
            problem += &format!("{ended}, and is not served any more\n");
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

/// Nobody becomes a member here, and nothing but a request's head is buffered.
fn limits() -> AdmissionLimits {
    AdmissionLimits {
        strangers_max: CONNECTIONS_MAX,
        strangers_per_address_max: CONNECTIONS_PER_ADDRESS_MAX,
        handshake_time_max: REQUEST_MAX,
        ..AdmissionLimits::in_proportion(CONNECTIONS_MAX, (CONNECTIONS_MAX * HEAD_BYTES_MAX) as u64, 1)
    }
}

/// Answers until `stop`.
pub(crate) async fn serve(listener: TcpListener, source: impl Source, stop: Stop) {
    let source = Arc::new(source);
    let admission = Admission::new(limits());
    while let Some(accepted) = stop.or_stopped(listener.accept()).await {
        let Ok((socket, peer)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let admitted = admission.admit(peer.ip());
        let source = source.clone();
        tokio::spawn(async move {
            // A client that is too slow, has gone or has to make way for another one gets no answer.
            let answered = tokio::time::timeout(REQUEST_MAX, answer(socket, source.as_ref()));
            admitted.displaced().or_stopped(answered).await;
        });
    }
}

async fn answer(mut socket: TcpStream, source: &dyn Source) -> std::io::Result<()> {
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

async fn respond(head: &[u8], source: &dyn Source) -> (&'static str, &'static str, String) {
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
        let stop = Stop::new();
        let server = tokio::spawn(serve(listener, Health::new(Vec::new(), Intake::default()), stop.clone()));
        let mut socket = TcpStream::connect(address).await.expect("a port that listens");
        socket.write_all(request).await.expect("room");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("text");
        stop.stop();
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

    /// The story: 32 sockets that said nothing kept every scraper out, which hid whatever else was done to the process.
    #[tokio::test]
    async fn silent_connections_keep_no_scraper_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let stop = Stop::new();
        let server = tokio::spawn(serve(listener, Health::new(Vec::new(), Intake::default()), stop.clone()));
        let mut silent = Vec::new();
        for _ in 0..4 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.expect("a port that listens"));
        }
        let mut socket = TcpStream::connect(address).await.expect("a port that listens");
        socket.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.expect("room");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("text");
        assert!(answer.ends_with("ok\n"), "{answer}");
        stop.stop();
        server.await.expect("no panic");
    }

    #[tokio::test]
    async fn health_says_what_is_not_served_any_more() {
        let services = Services::new(Stop::new());
        let health = Health::new(Vec::new(), Intake::default()).with_services(services.clone());
        assert_eq!(health.problem(), None);
        services.watch("memory-1", async {}).await.expect("it does not panic");
        let (status, _, body) = respond(b"GET /healthz HTTP/1.1\r\n\r\n", &health).await;
        assert!(status.starts_with("503"), "{status}");
        assert_eq!(body, "memory-1 has ended, and is not served any more\n");
    }

    struct Fake(Option<chain::Error>, Option<&'static str>);

    impl Part for Fake {
        fn failure(&self) -> Option<Arc<chain::Error>> {
            self.0.as_ref().map(|error| Arc::new(chain::Error::Panicked(error.to_string())))
        }

        fn stalled(&self) -> Option<String> {
            self.1.map(str::to_owned)
        }
    }

    #[tokio::test]
    async fn health_names_every_part_that_has_stopped_or_waits() {
        let part = |host: &str, fake: Fake| (host.to_owned(), Arc::new(fake) as Arc<dyn Part>);
        let intake = Intake::default();
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
        assert_eq!(Health::new(Vec::new(), Intake::default()).problem(), None);
    }

    /// `HEDDLE_WRITE_DOCS=1` writes the page anew instead of comparing.
    #[test]
    fn the_document_lists_every_metric() {
        register();
        let mut page = String::from(
            "# Metrics\n\nWhat `http://127.0.0.1:9443/metrics` shows, made from the declarations in the code.\n\n\
             | metric | kind | meaning |\n|---|---|---|\n",
        );
        let own = event::catalogue().into_iter().filter(|event| !event.name.starts_with("heddle_example"));
        for event::Description { name, documentation, sort } in own {
            let kind = match sort {
                event::Sort::Counter => "counter",
                event::Sort::Gauge => "gauge",
                event::Sort::Histogram(_) => "histogram",
            };
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
