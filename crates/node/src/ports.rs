//! gRPC listeners, with the limits that the configuration sets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base::rt::CancellationToken;
use gateway::grpc::connection::{ConnectionConfig, GrpcService};
use gateway::server;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::ClientLimits;
use crate::network::NodeError;

/// How long calls may continue after a stop.
const GRACE: Duration = Duration::from_secs(2);

/// Binds a port. `key` is the configuration key that sets it.
pub(crate) async fn bind(address: SocketAddr, key: &'static str) -> Result<TcpListener, NodeError> {
    server::bind(address).await.map_err(|source| NodeError::Port { address, key, source })
}

/// The address of a bound port.
pub(crate) fn local(listener: &TcpListener) -> SocketAddr {
    listener.local_addr().expect("a bound socket has an address")
}

/// Serves calls until `stop`, then lets those in progress finish.
pub(crate) fn serve<S: GrpcService>(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    service: S,
    limits: &ClientLimits,
    organizations: usize,
    stop: CancellationToken,
) -> JoinHandle<()> {
    let settings =
        ConnectionConfig { message_bytes_max: limits.message_bytes, grace: GRACE, ..ConnectionConfig::default() };
    let limits = server::PortLimits {
        connections_max: limits.connections,
        unauthenticated_per_address_max: limits.connections_per_address,
        organizations,
        ..server::PortLimits::default()
    };
    tokio::spawn(server::serve(listener, tls, service, settings, limits, stop))
}

/// The limits on calls that a service enforces itself.
pub(crate) fn call_limits(limits: &ClientLimits, organizations: usize) -> gateway::service::CallLimits {
    gateway::service::CallLimits {
        calls_max: limits.calls,
        streams_max: limits.streams,
        organizations,
        ..gateway::service::CallLimits::default()
    }
}
