//! The port at which a peer accepts chaincodes that connect by themselves.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base::rt::CancellationToken;
use gateway::chaincode::{ChaincodeListener, tls_for_chaincodes};
use identity::issue::TlsIdentity;
use tokio::task::JoinHandle;

use crate::chaincodes::PeerChaincodes;
use crate::config::ClientLimits;
use crate::network::NodeError;
use crate::ports;

/// The settings of one port.
pub(crate) struct ChaincodePort<'a> {
    pub(crate) listen: SocketAddr,
    /// The peer's certificate. The port always has TLS, because a chaincode proves itself by its own certificate.
    pub(crate) identity: &'a TlsIdentity,
    /// The file with the authorities of chaincodes' certificates.
    pub(crate) authorities: &'a Path,
    pub(crate) limits: &'a ClientLimits,
}

impl ChaincodePort<'_> {
    /// Serves the port until the stop.
    ///
    /// # Errors
    /// The port is taken, or a certificate cannot be used.
    pub(crate) async fn open(
        &self,
        chaincodes: Arc<PeerChaincodes>,
        stop: CancellationToken,
    ) -> Result<JoinHandle<()>, NodeError> {
        let authorities = std::fs::read(self.authorities).map_err(NodeError::file("read", self.authorities))?;
        let tls = tls_for_chaincodes(&self.identity.certificate_pem, &self.identity.key_pem, &authorities)
            .map_err(NodeError::file("use", self.authorities))?;
        let listener = ports::bind(self.listen, "chaincode_port").await?;
        // One organisation: that of the port's chaincodes.
        Ok(ports::serve(listener, Some(tls), ChaincodeListener::new(chaincodes), self.limits, 1, stop))
    }
}
