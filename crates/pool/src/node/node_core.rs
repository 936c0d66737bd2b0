//! The state that the connections of a memory node share: its owners, and how much memory is granted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use base::rt::CancellationToken;
use base::rt::sync::Semaphore;
use rma::Host;

use crate::events::GrantedBytes;
use crate::lock::lock;
use crate::node::owner::Owner;

/// The state that all connections share.
pub(super) struct MemoryNodeCore {
    pub(super) host: Arc<dyn Host>,
    pub(super) section_bytes: u64,
    pub(super) budget_bytes: u64,
    /// Identifies this incarnation of the node.
    pub(super) incarnation: u64,
    pub(super) stop: CancellationToken,
    pub(super) granted: Mutex<GrantedTotals>,
    pub(super) owners: Mutex<BTreeMap<String, Arc<Owner>>>,
    pub(super) connections: Semaphore,
    pub(super) handshakes: Semaphore,
    pub(super) connections_next: AtomicU64,
}

/// The sections that count against the budget.
#[derive(Default)]
pub(super) struct GrantedTotals {
    pub(super) bytes: u64,
    pub(super) sections: u64,
    /// The number of the next section.
    pub(super) next: u64,
}

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl MemoryNodeCore {
    /// Reserves memory for one section and assigns its number.
    pub(super) fn reserve(&self, bytes: u64) -> Option<u64> {
        let mut given = lock(&self.granted);
        if bytes > self.budget_bytes - given.bytes {
            return None;
        }
        given.bytes += bytes;
        given.sections += 1;
        let number = given.next;
        given.next += 1;
        assert!(given.bytes <= self.budget_bytes, "no more is granted than there is");
        GrantedBytes.add(signed(bytes));
        Some(number)
    }

    /// Returns what [`MemoryNodeCore::reserve`] reserved.
    pub(super) fn unreserve(&self, bytes: u64) {
        let mut given = lock(&self.granted);
        given.bytes = given.bytes.checked_sub(bytes).expect("what comes back was given");
        given.sections = given.sections.checked_sub(1).expect("what comes back was given");
        GrantedBytes.add(-signed(bytes));
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.budget_bytes - lock(&self.granted).bytes
    }

    pub(super) fn next_connection(&self) -> u64 {
        self.connections_next.fetch_add(1, Ordering::Relaxed)
    }
}
