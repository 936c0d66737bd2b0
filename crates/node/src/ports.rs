//! Ports: gRPC listeners with the bounds of a configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::rt::Stop;
use gateway::rpc::connection::{Service, Settings};
use gateway::server;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::Limits;
use crate::network::NodeError;

/// How long calls may go on after a stop.
const GRACE: Duration = Duration::from_secs(2);

/// Binds a port. `key` is where its number is set.
pub(crate) async fn bind(address: SocketAddr, key: &'static str) -> Result<TcpListener, NodeError> {
    server::bind(address).await.map_err(|source| NodeError::Port { address, key, source })
}

/// Where a port that was bound listens.
pub(crate) fn local(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound socket has an address")
}

/// Answers calls until `stop`, and lets those in progress end.
pub(crate) fn serve<S: Service>(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    service: S,
    limits: &Limits,
    organizations: usize,
    stop: Stop,
) -> JoinHandle<()> {
    let settings = Settings { message_bytes_max: limits.message_bytes, grace: GRACE, ..Settings::default() };
    let limits = server::Limits {
        connections_max: limits.connections,
        strangers_per_address_max: limits.connections_per_address,
        organizations,
        ..server::Limits::default()
    };
    tokio::spawn(server::serve(listener, tls, service, settings, limits, stop))
}

/// The bounds on calls that a service keeps itself.
pub(crate) fn call_limits(limits: &Limits, organizations: usize) -> gateway::service::Limits {
    gateway::service::Limits {
        calls_max: limits.calls,
        streams_max: limits.streams,
        organizations,
        ..gateway::service::Limits::default()
    }
}
