//! The listening ports of a network in this process, and what each of them serves.

use std::net::SocketAddr;

/// What an endpoint is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointRole {
    /// Gateway, deliver and endorser services of an organisation.
    Peer,
    /// Broadcast and deliver services of the orderer.
    Orderer,
    /// Metrics over HTTP.
    Metrics,
}

/// A listening port.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// What it serves.
    pub role: EndpointRole,
    /// The MSP ID of its organisation; empty for metrics.
    pub msp_id: String,
    /// The name in its TLS certificate; empty for metrics.
    pub host: String,
    /// The name that profiles give it: `host`, except for further orderers, whose certificates all bear the same host.
    /// Empty for metrics.
    pub name: String,
    /// The address.
    pub address: SocketAddr,
}
