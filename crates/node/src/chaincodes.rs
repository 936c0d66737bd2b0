//! The chaincodes outside of one organisation's peer: those of the configuration, and installed packages.
//!
//! 1. At the start, each section `[[chaincodes]]` becomes a service, and so does each installed package.
//! 2. A service connects to its chaincode when it is called. A package without an address waits for the chaincode to
//!    connect to the peer.
//! 3. All compute nodes of a peer within one process share one object of this module. A separate process of a compute node has
//!    its own: a package must then be installed at each.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use contract::shim::ChaincodeService;
use contract::{Contract, ContractServices, InstalledPackage, PackageError};
use gateway::chaincode::{ChaincodeDialer, DialConfig};
use gateway::grpc::client::ClientIdentity;

use crate::config::{ChaincodeConfig, HeddleConfig};
use crate::network::NodeError;

/// The chaincodes of one peer.
pub(crate) struct PeerChaincodes {
    by_name: BTreeMap<String, Arc<ChaincodeService>>,
}

impl PeerChaincodes {
    /// Step 1. Relative paths in the configuration start at `directory`.
    ///
    /// # Errors
    /// A file that the configuration names cannot be read.
    pub(crate) fn open(
        config: &HeddleConfig,
        organization: &str,
        directory: &Path,
    ) -> Result<Arc<PeerChaincodes>, NodeError> {
        let mut by_name = BTreeMap::new();
        for chaincode in &config.chaincodes {
            let organizations = &chaincode.organizations;
            if organizations.is_empty() || organizations.iter().any(|name| name == organization) {
                by_name.insert(chaincode.name.clone(), Arc::new(service(chaincode, directory)?));
            }
        }
        Ok(Arc::new(PeerChaincodes { by_name }))
    }
}

fn service(chaincode: &ChaincodeConfig, directory: &Path) -> Result<ChaincodeService, NodeError> {
    let read = |path: &Path| {
        let path = directory.join(path);
        std::fs::read(&path).map_err(NodeError::file("read", &path))
    };
    let identity = match (&chaincode.tls_certificate, &chaincode.tls_key) {
        (Some(certificate), Some(key)) => {
            Some(ClientIdentity { certificate_pem: read(certificate)?, key_pem: read(key)? })
        }
        _ => None,
    };
    let dialer = ChaincodeDialer::new(DialConfig {
        address: chaincode.address.clone(),
        dial_timeout: Duration::from_millis(chaincode.dial_timeout_ms.into()),
        roots_pem: chaincode.tls_authority.as_deref().map(read).transpose()?,
        identity,
    });
    Ok(ChaincodeService::dialed(&chaincode.name, chaincode.package_id.as_deref(), Box::new(dialer)))
}

#[async_trait]
impl ContractServices for PeerChaincodes {
    fn by_name(&self, name: &str) -> Option<Arc<dyn Contract>> {
        self.by_name.get(name).map(|service| service.clone() as Arc<dyn Contract>)
    }

    fn by_package(&self, _package_id: &str) -> Option<Arc<dyn Contract>> {
        None
    }

    async fn install(&self, _package: Bytes) -> Result<InstalledPackage, PackageError> {
        Err(PackageError::Rejected("this peer does not install packages".to_owned()))
    }

    fn installed(&self) -> Vec<InstalledPackage> {
        Vec::new()
    }

    async fn package(&self, _package_id: &str) -> Result<Option<Bytes>, PackageError> {
        Ok(None)
    }
}
