//! Contracts that a peer finds while it runs, beside those that its [`ContractRegistry`](crate::ContractRegistry) was built with.

use std::sync::Arc;

use async_trait::async_trait;
use base::Bytes;

use crate::Contract;

/// A package that is installed at a peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstalledPackage {
    /// `label:hash`, by which organisations approve it.
    pub id: String,
    /// What its author calls it.
    pub label: String,
}

/// Why a package cannot be installed or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PackageError {
    /// It is no package, or not one that this peer runs.
    #[error("{0}")]
    Rejected(String),
    /// The peer's disk failed.
    #[error("{0}")]
    Storage(String),
}

impl PackageError {
    /// What the caller should do about it.
    pub fn kind(&self) -> base::ErrorKind {
        match self {
            PackageError::Rejected(_) => base::ErrorKind::Rejected,
            PackageError::Storage(_) => base::ErrorKind::Retry,
        }
    }
}

/// The contracts outside of a peer's process: installed packages, and those that its operator has configured.
#[async_trait]
pub trait ContractServices: Send + Sync + 'static {
    /// The contract that the operator has configured for a chaincode without a package.
    fn by_name(&self, name: &str) -> Option<Arc<dyn Contract>>;

    /// The contract of an installed package.
    fn by_package(&self, package_id: &str) -> Option<Arc<dyn Contract>>;

    /// Installs a package. Durable on return; installing it again changes nothing.
    ///
    /// # Errors
    /// [`PackageError`].
    async fn install(&self, package: Bytes) -> Result<InstalledPackage, PackageError>;

    /// All packages, by id.
    fn installed(&self) -> Vec<InstalledPackage>;

    /// The bytes of a package; `None` if it is not installed.
    ///
    /// # Errors
    /// [`PackageError::Storage`].
    async fn package(&self, package_id: &str) -> Result<Option<Bytes>, PackageError>;
}
