//! The chaincodes outside of one organisation's peer: those of the configuration, and installed packages.
//!
//! 1. At the start, each section `[[chaincodes]]` becomes a service, and so does each installed package, which lies in the
//!    peer's folder under its hash. A file that is no package any more is left out, with a warning.
//! 2. A service connects to its chaincode when it is called. A package without an address waits for the chaincode to
//!    connect to the peer ([`gateway::chaincode::ChaincodeListener`]).
//! 3. An installation writes the package durably, and then adds its service.
//!
//! The compute nodes of a peer that run in one process share one set of packages and services. If they run in separate
//! processes, a package must be installed at each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use base::durable::{self, FileAccess};
use base::{Bytes, rt};
use contract::packages::ChaincodePackage;
use contract::shim::ChaincodeService;
use contract::{Contract, ContractServices, InstalledPackage, PackageError};
use gateway::chaincode::{ChaincodeDialer, ChaincodeRegistrar, DialConfig};
use gateway::grpc::client::ClientIdentity;

use crate::config::{ChaincodeConfig, HeddleConfig};
use crate::network::NodeError;

/// The folder of packages, in that of a compute node.
pub(crate) const PACKAGES_FOLDER: &str = "chaincodes";
/// Packages of one peer.
const PACKAGES_MAX: usize = 1024;
/// What the file of a package ends with.
const ENDING: &str = ".tar.gz";

/// The chaincodes of one peer.
pub(crate) struct PeerChaincodes {
    by_name: BTreeMap<String, Arc<ChaincodeService>>,
    packages: Arc<RwLock<BTreeMap<String, RunnablePackage>>>,
    folder: PathBuf,
    /// One installation at a time.
    installing: rt::sync::Mutex<()>,
}

#[derive(Clone)]
struct RunnablePackage {
    label: String,
    file: PathBuf,
    service: Arc<ChaincodeService>,
}

impl PeerChaincodes {
    /// Step 1. Relative paths in the configuration start at `directory`; packages lie in `folder`.
    ///
    /// # Errors
    /// A file that the configuration names cannot be read, or the folder cannot be listed.
    pub(crate) fn open(
        config: &HeddleConfig,
        organization: &str,
        directory: &Path,
        folder: PathBuf,
    ) -> Result<Arc<PeerChaincodes>, NodeError> {
        let mut by_name = BTreeMap::new();
        for chaincode in &config.chaincodes {
            let organizations = &chaincode.organizations;
            if organizations.is_empty() || organizations.iter().any(|name| name == organization) {
                by_name.insert(chaincode.name.clone(), Arc::new(configured(chaincode, directory)?));
            }
        }
        let packages = Arc::new(RwLock::new(load(&folder)?));
        Ok(Arc::new(PeerChaincodes { by_name, packages, folder, installing: rt::sync::Mutex::new(()) }))
    }

    fn package_of(&self, package_id: &str) -> Option<RunnablePackage> {
        self.packages.read().unwrap_or_else(PoisonError::into_inner).get(package_id).cloned()
    }
}

/// The service of a section of the configuration.
fn configured(chaincode: &ChaincodeConfig, directory: &Path) -> Result<ChaincodeService, NodeError> {
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

/// The service of a package.
fn packaged(package: &ChaincodePackage) -> ChaincodeService {
    let (label, id) = (&package.label, Some(package.id.as_str()));
    let Some(connection) = package.connection.clone() else { return ChaincodeService::awaited(label, id) };
    let dialer = ChaincodeDialer::new(DialConfig {
        address: connection.address,
        dial_timeout: connection.dial_timeout,
        roots_pem: connection.root_cert.map(String::into_bytes),
        identity: connection.client.map(|(certificate, key)| ClientIdentity {
            certificate_pem: certificate.into_bytes(),
            key_pem: key.into_bytes(),
        }),
    });
    ChaincodeService::dialed(label, id, Box::new(dialer))
}

/// The packages in the peer's folder.
fn load(folder: &Path) -> Result<BTreeMap<String, RunnablePackage>, NodeError> {
    let mut packages = BTreeMap::new();
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(packages),
        Err(error) => return Err(NodeError::file("list", folder)(error)),
    };
    for entry in entries {
        let file = entry.map_err(NodeError::file("list", folder))?.path();
        let Some(hash) = file.file_name().and_then(|name| name.to_str()?.strip_suffix(ENDING)) else { continue };
        let bytes = std::fs::read(&file).map_err(NodeError::file("read", &file))?;
        match ChaincodePackage::parse(&bytes) {
            Ok(package) if package.id.ends_with(hash) && packages.len() < PACKAGES_MAX => {
                let service = Arc::new(packaged(&package));
                let label = package.label;
                packages.insert(package.id, RunnablePackage { label, file: file.clone(), service });
            }
            Ok(_) => tracing::warn!(file = %file.display(), "is not the package that its name says; install it again"),
            Err(problem) => tracing::warn!(file = %file.display(), problem, "is no package any more; install it again"),
        }
    }
    Ok(packages)
}

fn lost(what: &str, path: &Path, error: &std::io::Error) -> PackageError {
    PackageError::Storage(format!("{what} {}: {error}{}", path.display(), storage::advice(error)))
}

#[async_trait]
impl ContractServices for PeerChaincodes {
    fn by_name(&self, name: &str) -> Option<Arc<dyn Contract>> {
        self.by_name.get(name).map(|service| service.clone() as Arc<dyn Contract>)
    }

    fn by_package(&self, package_id: &str) -> Option<Arc<dyn Contract>> {
        Some(self.package_of(package_id)?.service)
    }

    async fn install(&self, bytes: Bytes) -> Result<InstalledPackage, PackageError> {
        let _one_at_a_time = self.installing.lock().await;
        let folder = self.folder.clone();
        let parsing = bytes.clone();
        // Unpacking and syncing take time.
        let package = rt::blocking(move || ChaincodePackage::parse(&parsing)).await.map_err(|problem| {
            PackageError::Rejected(format!("could not parse as a chaincode install package: {problem}"))
        })?;
        let ChaincodePackage { id, label, .. } = package.clone();
        if self.package_of(&id).is_some() {
            return Err(PackageError::Rejected(format!(
                "chaincode already successfully installed (package ID '{id}')"
            )));
        }
        if self.packages.read().unwrap_or_else(PoisonError::into_inner).len() >= PACKAGES_MAX {
            return Err(PackageError::Rejected(format!("this peer has {PACKAGES_MAX} packages, and takes no more")));
        }
        let (_, hash) = id.rsplit_once(':').expect("an id ends with a colon and a hash");
        let file = folder.join(format!("{hash}{ENDING}"));
        let path = file.clone();
        rt::blocking(move || {
            durable::create_folder(&folder).map_err(|error| lost("cannot create", &folder, &error))?;
            durable::write(&path, &bytes, FileAccess::Owner).map_err(|error| lost("cannot write", &path, &error))
        })
        .await?;
        let runnable = RunnablePackage { label: label.clone(), file, service: Arc::new(packaged(&package)) };
        self.packages.write().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), runnable);
        tracing::info!(package = id, "installed");
        Ok(InstalledPackage { id, label })
    }

    fn installed(&self) -> Vec<InstalledPackage> {
        let packages = self.packages.read().unwrap_or_else(PoisonError::into_inner);
        let installed = |(id, package): (&String, &RunnablePackage)| InstalledPackage {
            id: id.clone(),
            label: package.label.clone(),
        };
        packages.iter().map(installed).collect()
    }

    async fn package(&self, package_id: &str) -> Result<Option<Bytes>, PackageError> {
        let Some(RunnablePackage { file, .. }) = self.package_of(package_id) else { return Ok(None) };
        let read = rt::blocking(move || std::fs::read(&file).map_err(|error| lost("cannot read", &file, &error)));
        Ok(Some(Bytes::from(read.await?)))
    }
}

impl ChaincodeRegistrar for PeerChaincodes {
    fn service(&self, package_id: &str) -> Option<Arc<ChaincodeService>> {
        Some(self.package_of(package_id)?.service)
    }
}

#[cfg(test)]
mod tests {
    use contract::packages::package_of_service;

    use super::*;

    fn open(folder: &Path) -> Arc<PeerChaincodes> {
        let config = HeddleConfig::default();
        PeerChaincodes::open(&config, "Org1", folder, folder.join(PACKAGES_FOLDER)).expect("the folder can be listed")
    }

    #[tokio::test]
    async fn installed_packages_are_there_after_a_restart_unless_their_files_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let peer = open(folder.path());
        let first = Bytes::from(package_of_service("first", "127.0.0.1:1"));
        let installed = peer.install(first.clone()).await.expect("a package");
        assert_eq!(installed.label, "first");
        let again = peer.install(first.clone()).await.expect_err("it is installed");
        assert!(again.to_string().contains("already successfully installed"), "{again}");
        peer.install(Bytes::from_static(b"no package")).await.expect_err("it is no package");
        let second = peer.install(package_of_service("second", "127.0.0.1:2").into()).await.expect("a package");

        let peer = open(folder.path());
        assert_eq!(peer.installed(), [installed.clone(), second.clone()]);
        assert_eq!(peer.package(&installed.id).await.expect("it can be read"), Some(first));
        assert!(peer.by_package(&installed.id).is_some() && peer.by_package("first:00").is_none());

        let (_, hash) = second.id.rsplit_once(':').expect("an id");
        let file = folder.path().join(PACKAGES_FOLDER).join(format!("{hash}{ENDING}"));
        std::fs::write(file, package_of_service("other", "127.0.0.1:3")).expect("it can be written");
        assert_eq!(open(folder.path()).installed(), [installed]);
    }
}
