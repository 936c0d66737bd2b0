//! The role *executors* with a page of metrics and health.
//!
//! The role has a thread of its own, which waits in the kernel. Health names executors that do not answer: they are their owner's
//! matter, so that health stays good. It is bad once the role itself has ended.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use base::event;
use base::rt::CancellationToken;
use executors::{ExecutorsRole, ExecutorsSettings};
use node::metrics::{MetricsSource, serve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::failure::CommandError;

/// A running role.
pub(super) struct ExecutorsNode {
    role: Arc<ExecutorsRole>,
    metrics: Option<SocketAddr>,
    stop: CancellationToken,
    serving: Option<JoinHandle<()>>,
}

struct RolePages(Arc<ExecutorsRole>);

#[async_trait]
impl MetricsSource for RolePages {
    async fn metrics(&self) -> String {
        event::render_prometheus() + &self.0.owner_metrics()
    }

    async fn problem(&self) -> Option<String> {
        self.0.has_ended().then(|| "the role has ended\n".to_owned())
    }

    async fn notes(&self) -> String {
        self.0.sick().into_iter().map(|note| note + "\n").collect()
    }
}

impl ExecutorsNode {
    /// Starts the role, and its page of metrics if it has an address.
    ///
    /// # Errors
    /// What is missing, and how to have it.
    pub(super) async fn start(
        settings: ExecutorsSettings,
        metrics: Option<SocketAddr>,
    ) -> Result<ExecutorsNode, CommandError> {
        event::register(base::admission::EVENTS);
        let listener = match metrics {
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                CommandError::new(format!("cannot listen on {address}: {error}; change --metrics"))
            })?),
            None => None,
        };
        let role = Arc::new(ExecutorsRole::start(settings).map_err(CommandError::new)?);
        let stop = CancellationToken::new();
        let metrics = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let serving =
            listener.map(|listener| tokio::spawn(serve(listener, RolePages(Arc::clone(&role)), stop.clone())));
        Ok(ExecutorsNode { role, metrics, stop, serving })
    }

    /// Where its metrics are.
    pub(super) fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Completes when the role has ended without having been asked, with the reason.
    pub(super) async fn ended(&self) -> String {
        match self.wait().await {
            true => "the role executors has ended".to_owned(),
            false => "the role executors has ended by a panic; see its log".to_owned(),
        }
    }

    /// Has the role stop: it admits nobody any more, and ends with the last function, or when the grace of its settings is over.
    pub(super) fn begin_stop(&self) {
        self.role.begin_stop();
    }

    /// Completes when the role has ended after [`begin_stop`](ExecutorsNode::begin_stop).
    pub(super) async fn stopped(&self) {
        self.wait().await;
        self.stop.cancel();
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }

    /// Waits for the role's thread. Dropping the future waits for nothing.
    async fn wait(&self) -> bool {
        let role = Arc::clone(&self.role);
        tokio::task::spawn_blocking(move || role.wait()).await.unwrap_or(false)
    }
}
