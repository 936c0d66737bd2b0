//! What clients of one organisation talk to: it holds nothing, and asks the organisation's own peer, the peers of other
//! organisations and the orderers.

use std::sync::Arc;

use base::rt::Stop;
use chain::endorse::Endorse;
use chain::view::PeerView;
use gateway::service::{Balanced, Endorser, Intake, OrderingNode, PeerPort, PeerPortOptions};
use identity::issue::TlsIdentity;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::Limits;
use crate::network::NodeError;
use crate::ports;

/// What a gateway is made of.
pub(crate) struct Options {
    /// The organisation's own peer.
    pub peer: Arc<dyn PeerView>,
    /// The same as an endorser.
    pub local: Endorser,
    /// The peers of other organisations.
    pub others: Vec<Endorser>,
    pub orderers: Vec<OrderingNode>,
    /// Whether new transactions are taken.
    pub intake: Intake,
    pub listener: TcpListener,
    /// What it shows to clients, if it speaks TLS.
    pub tls: Option<TlsIdentity>,
    pub limits: Limits,
    pub stop: Stop,
}

/// The compute nodes of one peer as an endorser.
pub(crate) fn balanced(nodes: impl Iterator<Item = Arc<dyn Endorse>>) -> Arc<dyn Endorse> {
    let mut nodes: Vec<Arc<dyn Endorse>> = nodes.collect();
    match nodes.len() {
        1 => nodes.remove(0),
        _ => Arc::new(Balanced::new(nodes)),
    }
}

/// Answers clients until the stop.
pub(crate) fn start(options: Options) -> Result<JoinHandle<()>, NodeError> {
    let tls = tls(options.tls.as_ref())?;
    let organizations = options.others.len() + 1;
    let port = PeerPort::new(PeerPortOptions {
        peer: options.peer,
        local: options.local,
        others: options.others,
        orderers: options.orderers,
        limits: ports::call_limits(&options.limits, organizations),
        intake: options.intake,
        stop: options.stop.clone(),
    });
    Ok(ports::serve(options.listener, tls, port, &options.limits, organizations, options.stop))
}

/// The TLS of a port.
pub(crate) fn tls(identity: Option<&TlsIdentity>) -> Result<Option<Arc<rustls::ServerConfig>>, NodeError> {
    let tls = identity.map(|identity| gateway::server::tls(&identity.certificate_pem, &identity.key_pem));
    Ok(tls.transpose()?)
}
