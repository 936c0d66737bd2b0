//! The chaincodes outside of one organisation's peer: those of the configuration, and installed packages.
//!
//! 1. At the start, each section `[[chaincodes]]` becomes a service, and so does each installed package, which lies in the
//!    peer's folder under its hash. A file that is no package any more is left out, with a warning.
//! 2. A service connects to its chaincode when it is called. A package without an address waits for the chaincode to
//!    connect to the peer ([`gateway::chaincode::ChaincodeListener`]).
//! 3. An installation writes the package durably, and then adds its service.
//! 4. Where compute nodes run in separate processes, each polls the folder ([`PeerChaincodes::watch`]): another compute node
//!    of the peer may have installed a package there, or an operator may have copied one.
//!
//! The compute nodes of a peer that run in one process share packages and services. In separate processes on one machine,
//! they share the folder, but not the services. On several machines they share nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use base::durable::{self, FileAccess};
use base::rt::CancellationToken;
use base::{Bytes, rt};
use contract::packages::{ChaincodePackage, PACKAGE_BYTES_MAX, TEMPLATE_VARIABLE, TemplateValues, template_values};
use contract::shim::ChaincodeService;
use contract::{Contract, ContractServices, InstalledPackage, PackageError};
use gateway::chaincode::{ChaincodeDialer, ChaincodeRegistrar, DialConfig};
use gateway::grpc::client::ClientIdentity;

use crate::config::ChaincodeConfig;
use crate::network::NodeError;

/// The folder of packages, in that of a compute node.
pub(crate) const PACKAGES_FOLDER: &str = "chaincodes";
/// Packages of one peer.
const PACKAGES_MAX: usize = 1024;
const PACKAGE_FILE_BYTES_MAX: u64 = PACKAGE_BYTES_MAX as u64;
/// What the file of a package ends with.
const ENDING: &str = ".tar.gz";
/// How often the folder is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The chaincodes of one peer.
pub(crate) struct PeerChaincodes {
    by_name: BTreeMap<String, Arc<ChaincodeService>>,
    packages: Arc<RwLock<BTreeMap<String, RunnablePackage>>>,
    folder: PathBuf,
    /// Held by the installation or look that is under way.
    refused: rt::sync::Mutex<RefusedFiles>,
    /// For templates in packages.
    values: Arc<TemplateValues>,
}

#[derive(Clone)]
struct RunnablePackage {
    label: String,
    file: PathBuf,
    service: Arc<ChaincodeService>,
}

impl PeerChaincodes {
    /// Step 1. Relative paths in the configuration start at `directory`; packages lie in `folder`. The value of `peername` in
    /// templates is `peer_name`, unless the environment gives another one.
    ///
    /// # Errors
    /// A file that the configuration names cannot be read, or the folder cannot be listed.
    pub(crate) fn open<'a>(
        chaincodes: impl IntoIterator<Item = &'a ChaincodeConfig>,
        directory: &Path,
        folder: PathBuf,
        peer_name: &str,
    ) -> Result<Arc<PeerChaincodes>, NodeError> {
        let values = Arc::new(values(peer_name)?);
        let mut by_name = BTreeMap::new();
        for chaincode in chaincodes {
            by_name.insert(chaincode.name.clone(), Arc::new(configured(chaincode, directory)?));
        }
        let (packages, refused) =
            PackageFolder { path: folder.clone(), values: values.clone(), ..PackageFolder::default() }.load()?;
        let (packages, refused) = (Arc::new(RwLock::new(packages)), rt::sync::Mutex::new(refused));
        Ok(Arc::new(PeerChaincodes { by_name, packages, folder, refused, values }))
    }

    /// Step 4, until the stop.
    pub(crate) async fn watch(self: Arc<PeerChaincodes>, stop: CancellationToken) {
        while stop.run_until_cancelled(rt::sleep(POLL_INTERVAL)).await.is_some() {
            if let Err(error) = self.look().await {
                tracing::warn!(%error, "installed packages cannot be looked for");
            }
        }
    }

    /// Takes packages that have come to the folder.
    async fn look(&self) -> Result<(), NodeError> {
        let mut refused = self.refused.lock().await;
        let folder = PackageFolder {
            path: self.folder.clone(),
            known: self.files(),
            refused: refused.clone(),
            values: self.values.clone(),
        };
        // Unpacking takes time.
        let (new, now) = rt::blocking(move || folder.load()).await?;
        *refused = now;
        for (id, package) in new {
            tracing::info!(package = id, "found");
            self.packages.write().unwrap_or_else(PoisonError::into_inner).entry(id).or_insert(package);
        }
        Ok(())
    }

    /// The files of the packages that are known.
    fn files(&self) -> BTreeSet<PathBuf> {
        let packages = self.packages.read().unwrap_or_else(PoisonError::into_inner);
        packages.values().map(|package| package.file.clone()).collect()
    }

    fn package_of(&self, package_id: &str) -> Option<RunnablePackage> {
        self.packages.read().unwrap_or_else(PoisonError::into_inner).get(package_id).cloned()
    }
}

/// The values for templates in packages.
fn values(peer_name: &str) -> Result<TemplateValues, NodeError> {
    let mut values = TemplateValues::from([("peername".to_owned(), peer_name.to_owned())]);
    if let Some(text) = std::env::var_os(TEMPLATE_VARIABLE) {
        let text = text.into_string().map_err(|_| format!("{TEMPLATE_VARIABLE} is no text"));
        values.extend(text.and_then(|text| template_values(&text)).map_err(NodeError::ChaincodeValues)?);
    }
    Ok(values)
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

/// Files that are no packages, with their sizes and times, so that each is read and reported once.
type RefusedFiles = BTreeMap<PathBuf, (u64, Option<SystemTime>)>;

/// What is to be read of the peer's folder.
#[derive(Default)]
struct PackageFolder {
    path: PathBuf,
    /// Files whose packages are known.
    known: BTreeSet<PathBuf>,
    refused: RefusedFiles,
    values: Arc<TemplateValues>,
}

impl PackageFolder {
    /// The packages that are not known, and the files that are none.
    fn load(self) -> Result<(BTreeMap<String, RunnablePackage>, RefusedFiles), NodeError> {
        let PackageFolder { path: folder, known, refused: before, values } = self;
        let (mut packages, mut refused) = (BTreeMap::new(), BTreeMap::new());
        let entries = match std::fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok((packages, refused)),
            Err(error) => return Err(NodeError::file("list", &folder)(error)),
        };
        for entry in entries {
            let entry = entry.map_err(NodeError::file("list", &folder))?;
            let file = entry.path();
            let Some(hash) = file.file_name().and_then(|name| name.to_str()?.strip_suffix(ENDING)) else { continue };
            if known.contains(&file) {
                continue;
            }
            let Ok(metadata) = entry.metadata() else { continue };
            let seen = (metadata.len(), metadata.modified().ok());
            if before.get(&file) == Some(&seen) {
                refused.insert(file, seen);
                continue;
            }
            let package = match metadata.len() {
                0..=PACKAGE_FILE_BYTES_MAX => {
                    let bytes = std::fs::read(&file).map_err(NodeError::file("read", &file))?;
                    ChaincodePackage::parse_filling(&bytes, &values)
                }
                bytes => Err(format!("it has {bytes} bytes")),
            };
            match package {
                Ok(package) if package.id.ends_with(hash) && known.len() + packages.len() < PACKAGES_MAX => {
                    let service = Arc::new(packaged(&package));
                    let label = package.label;
                    packages.insert(package.id, RunnablePackage { label, file, service });
                }
                other => {
                    let problem =
                        other.err().unwrap_or_else(|| "its name is not its hash, or there are too many".to_owned());
                    tracing::warn!(file = %file.display(), problem, "is no package of this peer; install it again");
                    if refused.len() < PACKAGES_MAX {
                        refused.insert(file, seen);
                    }
                }
            }
        }
        Ok((packages, refused))
    }
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
        // Another compute node may have installed it.
        self.look().await.map_err(|error| PackageError::Storage(error.to_string()))?;
        let _one_at_a_time = self.refused.lock().await;
        let folder = self.folder.clone();
        let parsing = bytes.clone();
        // Unpacking and syncing take time.
        let values = self.values.clone();
        let package =
            rt::blocking(move || ChaincodePackage::parse_filling(&parsing, &values)).await.map_err(|problem| {
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
        PeerChaincodes::open([], folder, folder.join(PACKAGES_FOLDER), "peer0.org1.example.com")
            .expect("the folder can be listed")
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

    #[tokio::test]
    async fn compute_nodes_with_one_folder_find_what_the_other_has_installed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (open(folder.path()), open(folder.path()));
        let package = Bytes::from(package_of_service("assets", "127.0.0.1:1"));
        let installed = first.install(package.clone()).await.expect("a package");
        let again = second.install(package).await.expect_err("it is installed");
        assert!(again.to_string().contains("already successfully installed"), "{again}");
        assert!(second.by_package(&installed.id).is_some());

        // A copy is found once it is complete.
        let copied = Bytes::from(package_of_service("copied", "127.0.0.1:1"));
        let id = ChaincodePackage::parse(&copied).expect("a package").id;
        let (_, hash) = id.rsplit_once(':').expect("an id");
        let file = folder.path().join(PACKAGES_FOLDER).join(format!("{hash}{ENDING}"));
        std::fs::write(&file, &copied[..copied.len() / 2]).expect("it can be written");
        second.look().await.expect("the folder can be listed");
        assert!(second.by_package(&id).is_none());
        std::fs::write(&file, copied).expect("it can be written");
        second.look().await.expect("the folder can be listed");
        assert!(second.by_package(&id).is_some());
        let service = |peer: &PeerChaincodes| peer.service(&installed.id).expect("it is installed");
        let before = service(&second);
        second.look().await.expect("the folder can be listed");
        assert!(Arc::ptr_eq(&before, &service(&second)), "a look keeps connections");
    }
}
