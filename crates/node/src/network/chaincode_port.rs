//! The ports at which the peers of a network accept chaincodes that connect by themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use base::rt::CancellationToken;
use gateway::chaincode::{ChaincodeListener, tls_for_chaincodes};
use tokio::task::JoinHandle;

use super::{Network, NodeError};
use crate::chaincodes::PeerChaincodes;
use crate::ports;

/// Opens the port of one organisation's peer, if the configuration has one. It always has TLS, with the certificate of the
/// peer, because a chaincode proves itself by its certificate.
///
/// # Errors
/// The port is taken, or a certificate cannot be used.
pub(super) async fn open(
    network: &Network,
    organization: usize,
    chaincodes: Arc<PeerChaincodes>,
    stop: CancellationToken,
) -> Result<Option<JoinHandle<()>>, NodeError> {
    let config = &network.config;
    let Some(port) = config.chaincode_port.of(organization) else { return Ok(None) };
    let path = network.path.join(&config.chaincode_port.authorities);
    let authorities = std::fs::read(&path).map_err(NodeError::file("read", &path))?;
    let identity = &network.organizations[organization].tls;
    let tls = tls_for_chaincodes(&identity.certificate_pem, &identity.key_pem, &authorities)
        .map_err(NodeError::file("use", &path))?;
    let listener = ports::bind(SocketAddr::new(config.ports.host, port), "chaincode_port.port").await?;
    // One organisation: that of the port's chaincodes.
    Ok(Some(ports::serve(listener, Some(tls), ChaincodeListener::new(chaincodes), &config.limits, 1, stop)))
}
