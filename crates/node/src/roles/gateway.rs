//! Serves the clients of one organisation. A gateway holds no state: it calls its organisation's peer, the peers of
//! other organisations, and the orderers.

use std::sync::Arc;

use base::rt::CancellationToken;
use chain::endorse::Endorse;
use chain::remote::RemotePeer;
use chain::view::PeerView;
use gateway::service::{
    BalancedEndorser, Endorser, OrdererEndpoint, PeerService, PeerServiceConfig, REPORT_AGE_MAX, REPORT_PERIOD,
    TransactionIntake,
};
use identity::issue::TlsIdentity;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::config::ClientLimits;
use crate::network::NodeError;
use crate::ports;

/// What a gateway needs.
pub(crate) struct GatewayRoleConfig {
    /// The organisation's own peer.
    pub peer: Arc<dyn PeerView>,
    /// The same peer as an endorser.
    pub local: Endorser,
    /// The peers of other organisations.
    pub others: Vec<Endorser>,
    pub orderers: Vec<OrdererEndpoint>,
    /// Whether the gateway accepts new transactions.
    pub intake: TransactionIntake,
    pub listener: TcpListener,
    /// The certificate that clients see, if the port speaks TLS.
    pub tls: Option<TlsIdentity>,
    pub limits: ClientLimits,
    pub stop: CancellationToken,
}

/// The compute nodes of one peer as a single endorser.
pub(crate) fn balanced_endorser(nodes: impl Iterator<Item = Arc<dyn Endorse>>) -> Arc<dyn Endorse> {
    let mut nodes: Vec<Arc<dyn Endorse>> = nodes.collect();
    match nodes.len() {
        1 => nodes.remove(0),
        _ => Arc::new(BalancedEndorser::new(nodes)),
    }
}

/// Tells the endorser of a peer which compute nodes there are and how loaded they are, until the stop. It asks one of
/// `peers` after the other until one knows. `connect` reaches a node at an address, if the address is of the kind that
/// this gateway connects to.
pub(crate) async fn learn_nodes(
    endorser: Arc<BalancedEndorser>,
    peers: Vec<Arc<RemotePeer>>,
    scheme: NodeScheme,
    connect: impl Fn(&str) -> Arc<dyn Endorse>,
    stop: CancellationToken,
) {
    let mut turn = 0;
    while stop.run_until_cancelled(tokio::time::sleep(REPORT_PERIOD)).await.is_some() {
        match tokio::time::timeout(REPORT_AGE_MAX, peers[turn % peers.len()].nodes()).await {
            Ok(Ok(mut reports)) if !reports.is_empty() => {
                reports.retain(|report| scheme.includes(&report.address));
                endorser.learn(&reports, &connect);
            }
            // It is not the primary, is away, or belongs to an earlier release.
            _ => turn += 1,
        }
    }
}

/// The kind of addresses at which a gateway reaches a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeScheme {
    /// The compute nodes of the gateway's own organisation.
    Own,
    /// Those of another organisation, which proves its name over TLS.
    Others,
}

impl NodeScheme {
    fn includes(self, address: &str) -> bool {
        match self {
            NodeScheme::Own => address.starts_with("shm:") || address.starts_with("tcp:"),
            NodeScheme::Others => address.starts_with("tls:"),
        }
    }
}

/// Serves clients until the stop.
pub(crate) fn start(options: GatewayRoleConfig) -> Result<JoinHandle<()>, NodeError> {
    let tls = tls(options.tls.as_ref())?;
    let organizations = options.others.len() + 1;
    let port = PeerService::new(PeerServiceConfig {
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

/// The TLS configuration of a port.
pub(crate) fn tls(identity: Option<&TlsIdentity>) -> Result<Option<Arc<rustls::ServerConfig>>, NodeError> {
    let tls = identity.map(|identity| gateway::server::tls(&identity.certificate_pem, &identity.key_pem));
    Ok(tls.transpose()?)
}
