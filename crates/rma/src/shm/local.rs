//! The hosts of this process, found by name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::host::ShmHostCore;
use crate::Error;

/// The prefix of their addresses.
pub(super) const PREFIX: &str = "local:";

static HOSTS: Mutex<BTreeMap<String, Weak<ShmHostCore>>> = Mutex::new(BTreeMap::new());

fn hosts() -> MutexGuard<'static, BTreeMap<String, Weak<ShmHostCore>>> {
    // Consistent between any two statements.
    HOSTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Publishes a host under its address.
pub(super) fn insert(host: &Arc<ShmHostCore>) -> Result<(), Error> {
    let mut hosts = hosts();
    if hosts.get(&host.address).is_some_and(|other| other.strong_count() > 0) {
        let taken = std::io::Error::from(std::io::ErrorKind::AddrInUse);
        return Err(Error::system("host regions under a name of this process", &taken));
    }
    hosts.insert(host.address.clone(), Arc::downgrade(host));
    Ok(())
}

/// The host at an address.
pub(super) fn find(address: &str) -> Option<Arc<ShmHostCore>> {
    hosts().get(address).and_then(Weak::upgrade)
}

/// Removes a host, unless another one has its address by now.
pub(super) fn remove(address: &str, host: &ShmHostCore) {
    let mut hosts = hosts();
    if hosts.get(address).is_some_and(|found| std::ptr::eq(found.as_ptr(), host)) {
        hosts.remove(address);
    }
}
