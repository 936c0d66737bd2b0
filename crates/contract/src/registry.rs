//! The registry of the contracts that a peer can run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base::ErrorKind;

use crate::contracts::{basic::Basic, kmeans::KMeans, smallbank::SmallBank, ycsb::Ycsb};
use crate::{Contract, ContractServices};

/// Why a contract could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Fabric allows letters, digits, `-` and `_`, the first a letter or digit.
    #[error("{0:?} is not a chaincode name")]
    InvalidName(String),
    /// One name, one contract.
    #[error("a contract named {0} is registered already")]
    Duplicate(String),
}

impl RegistryError {
    /// What the caller should do about it.
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Rejected
    }
}

/// Contracts by chaincode name. Cheap to clone; built once, then shared by all channels.
#[derive(Clone, Default)]
pub struct ContractRegistry {
    contracts: Arc<BTreeMap<String, Arc<dyn Contract>>>,
    services: Option<Arc<dyn ContractServices>>,
}

impl ContractRegistry {
    /// A registry with nothing in it.
    pub fn empty() -> Self {
        Self::default()
    }

    /// The contracts that are compiled in: `basic` (also as `events`, the name that Fabric's events sample uses), `ycsb`,
    /// `smallbank` and `kmeans`.
    pub fn native() -> Self {
        let basic: Arc<dyn Contract> = Arc::new(Basic);
        let native: [(&str, Arc<dyn Contract>); 5] = [
            ("basic", Arc::clone(&basic)),
            ("events", basic),
            ("kmeans", Arc::new(KMeans)),
            ("smallbank", Arc::new(SmallBank)),
            ("ycsb", Arc::new(Ycsb)),
        ];
        let mut registry = Self::empty();
        for (name, contract) in native {
            registry.register(name, contract).expect("the native names are valid and distinct");
        }
        registry
    }

    /// Adds `contract` under `name`.
    ///
    /// # Errors
    /// The name is not a chaincode name, or is taken.
    pub fn register(&mut self, name: &str, contract: Arc<dyn Contract>) -> Result<(), RegistryError> {
        if !is_chaincode_name(name) {
            return Err(RegistryError::InvalidName(name.to_owned()));
        }
        if self.contracts.contains_key(name) {
            return Err(RegistryError::Duplicate(name.to_owned()));
        }
        Arc::make_mut(&mut self.contracts).insert(name.to_owned(), contract);
        Ok(())
    }

    /// The contract of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Contract>> {
        self.contracts.get(name)
    }

    /// The same registry with the contracts outside of the process. They have no definition until the ledger or the
    /// configuration gives them one.
    #[must_use]
    pub fn with_services(self, services: Arc<dyn ContractServices>) -> Self {
        Self { services: Some(services), ..self }
    }

    /// The contracts outside of the process.
    pub fn services(&self) -> Option<&Arc<dyn ContractServices>> {
        self.services.as_ref()
    }

    /// The contract that runs under this name: that of the package, or without a package the one that the operator has
    /// configured, or else the one that is compiled in.
    pub fn find(&self, name: &str, package_id: &str) -> Option<Arc<dyn Contract>> {
        let services = self.services.as_ref();
        match package_id {
            "" => services.and_then(|services| services.by_name(name)).or_else(|| self.get(name).cloned()),
            package_id => services?.by_package(package_id),
        }
    }

    /// Every name that is compiled in, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.contracts.keys().map(String::as_str)
    }
}

impl fmt::Debug for ContractRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

fn is_chaincode_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    // Separators stand between alphanumeric runs, as in Fabric.
    bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn native_registry_holds_every_compiled_in_contract() {
        let registry = ContractRegistry::native();
        assert_eq!(registry.names().collect::<Vec<_>>(), ["basic", "events", "kmeans", "smallbank", "ycsb"]);
        assert_eq!(registry.get("events").expect("registered").name(), "basic");
        assert!(registry.get("absent").is_none());
    }

    #[test]
    fn names_are_unique_and_well_formed() {
        let mut registry = ContractRegistry::native();
        let taken = registry.register("basic", Arc::new(Basic));
        assert_eq!(taken, Err(RegistryError::Duplicate("basic".into())));
        for bad in ["", "-x", "x_", "a b", "_lifecycle", "a\u{0}", "ä"] {
            let refused = registry.register(bad, Arc::new(Basic));
            assert_eq!(refused, Err(RegistryError::InvalidName(bad.into())), "{bad:?}");
        }
        registry.register("my-asset_2", Arc::new(Basic)).expect("a Fabric name");
    }
}
