//! The hosts of one process, found by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::Error;

/// The prefix of their addresses.
pub(super) const PREFIX: &str = "local:";

/// Hosts of the type `T` by their addresses.
pub(super) struct LocalHosts<T>(Mutex<BTreeMap<String, Weak<T>>>);

impl<T> LocalHosts<T> {
    pub(super) const fn new() -> LocalHosts<T> {
        LocalHosts(Mutex::new(BTreeMap::new()))
    }

    fn hosts(&self) -> MutexGuard<'_, BTreeMap<String, Weak<T>>> {
        // Consistent between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes a host under its address.
    pub(super) fn insert(&self, address: &str, host: &Arc<T>) -> Result<(), Error> {
        let mut hosts = self.hosts();
        if hosts.get(address).is_some_and(|other| other.strong_count() > 0) {
            let taken = std::io::Error::from(std::io::ErrorKind::AddrInUse);
            return Err(Error::system("host regions under a name of this process", &taken));
        }
        hosts.insert(address.to_owned(), Arc::downgrade(host));
        Ok(())
    }

    /// The host at an address.
    pub(super) fn find(&self, address: &str) -> Option<Arc<T>> {
        self.hosts().get(address).and_then(Weak::upgrade)
    }

    /// Removes a host, unless another one has its address by now.
    pub(super) fn remove(&self, address: &str, host: &T) {
        let mut hosts = self.hosts();
        if hosts.get(address).is_some_and(|found| std::ptr::eq(found.as_ptr(), host)) {
            hosts.remove(address);
        }
    }
}
