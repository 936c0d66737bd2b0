//! Memory nodes: donors that grant sections of their memory, and are passive otherwise.
//!
//! 1. An owner connects under a name that the provider of the [`rma::Host`] has verified; this name identifies the
//!    owner. Its first message is a hello with version and section size. Its second message is a fence with its epoch
//!    and a random nonce; the nonce identifies the process that holds the memory.
//! 2. The node rejects the fence if the owner's current epoch is newer, or if the epochs are equal and the nonces
//!    differ. Otherwise epoch, nonce and connection of the fence become the owner's current ones, and the previous
//!    connection ends. The node then revokes every section granted under an older epoch, reclaims its memory, and
//!    answers the fence last.
//! 3. On the current connection the owner requests, releases and lists sections. The node rejects these requests on
//!    any other connection. Hence, once the owner has listed its sections on a new connection, no request from an old
//!    connection can change that list.
//! 4. The owner may request read grants of a section for followers, its other compute nodes. Each follower gets a
//!    separate capability, for reading only, which is revoked alone or with the section. A follower's connection sends
//!    only a hello.
//! 5. When a connection ends, the owner keeps its sections: the same process may connect again. The node reclaims the
//!    sections when that process releases them or when a newer epoch fences them. It also reclaims them if the owner
//!    has had no connection for [`ABANDONED_AFTER`] and another owner needs the memory.
//!
//! Invariants:
//! * A request sees and changes only the state of its connection's owner. One request of an owner runs at a time.
//! * A section is in the table, and counts against the budget, from before its memory is registered until its
//!   deregistration is confirmed.
//! * During one run of a node the epoch of an owner only grows. A restarted node knows no epochs. It needs none,
//!   because it has granted no memory in this run, and nobody has a capability for it.
//! * The numbers of owners, connections and sections are bounded.

mod owner;
mod serve;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::ErrorKind;
use base::rt::sync::Semaphore;
use base::rt::{self, CancellationToken, Task};
use rma::Host;

use crate::events::{BudgetBytes, ConnectionsRejected, GrantedBytes};
use crate::{Error, check_section_bytes};
use owner::Owner;

/// Owners that a node remembers; one more is rejected unless an owner without sections and connections can be dropped.
pub const OWNERS_MAX: usize = 4096;
/// Connections at once that have completed their hello; one more is rejected.
pub const CONNECTIONS_MAX: usize = 1024;
/// Connections at once that have not completed it; one more is closed. As many as any host has, which limits the part
/// of each name.
const HANDSHAKES_MAX: usize = 4096;
/// How long an owner must be without a connection before other owners may get its memory.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Connections of one owner at once.
pub const CONNECTIONS_PER_OWNER_MAX: usize = 16;
/// Read grants of one section.
pub const FOLLOWERS_MAX: usize = 64;
/// How long a connection may take until its hello is answered.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The configuration of a memory node.
#[derive(Clone)]
pub struct MemoryNodeConfig {
    /// Where its memory is registered and who may connect. The node closes the host when it ends.
    pub host: Arc<dyn Host>,
    /// Bytes that it may grant.
    pub budget_bytes: u64,
    /// Bytes of each section: a power of two, the same in the whole pool.
    pub section_bytes: u64,
    /// Ends the node.
    pub stop: CancellationToken,
}

/// How much a memory node has granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryNodeUsage {
    /// Bytes that it may grant.
    pub budget_bytes: u64,
    /// Bytes that it has granted; never above the budget.
    pub granted_bytes: u64,
    /// Sections that it has granted.
    pub sections: u64,
    /// Owners that it remembers.
    pub owners: u64,
    /// Connections open now.
    pub connections: u64,
}

/// A donor. Dropping it ends it.
pub struct MemoryNode {
    shared: Arc<MemoryNodeCore>,
    accepting: Mutex<Option<Task<()>>>,
}

/// The state that all connections share.
struct MemoryNodeCore {
    host: Arc<dyn Host>,
    section_bytes: u64,
    budget_bytes: u64,
    /// Identifies this incarnation of the node.
    incarnation: u64,
    stop: CancellationToken,
    granted: Mutex<GrantedTotals>,
    owners: Mutex<BTreeMap<String, Arc<Owner>>>,
    connections: Semaphore,
    handshakes: Semaphore,
    connections_next: AtomicU64,
}

/// The sections that count against the budget.
#[derive(Default)]
struct GrantedTotals {
    bytes: u64,
    sections: u64,
    /// The number of the next section.
    next: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded state is consistent between any two statements, so a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryNode {
    /// Starts to serve.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::Invalid`].
    pub async fn start(options: MemoryNodeConfig) -> Result<Arc<MemoryNode>, Error> {
        let MemoryNodeConfig { host, budget_bytes, section_bytes, stop: outer } = options;
        check_section_bytes(section_bytes)?;
        if budget_bytes < section_bytes {
            return Err(Error::BudgetTooSmall { budget_bytes, section_bytes });
        }
        // The caller's token ends more than this node, so the node gets its own.
        let stop = CancellationToken::new();
        let shared = Arc::new(MemoryNodeCore {
            host,
            section_bytes,
            budget_bytes,
            incarnation: rt::random_u64(),
            stop: stop.clone(),
            granted: Mutex::new(GrantedTotals { next: 1, ..GrantedTotals::default() }),
            owners: Mutex::default(),
            connections: Semaphore::new(CONNECTIONS_MAX),
            handshakes: Semaphore::new(HANDSHAKES_MAX),
            connections_next: AtomicU64::new(1),
        });
        BudgetBytes.add(i64::try_from(budget_bytes).unwrap_or(i64::MAX));
        let accepting = rt::spawn(accept(Arc::clone(&shared), outer));
        Ok(Arc::new(MemoryNode { shared, accepting: Mutex::new(Some(accepting)) }))
    }

    /// How much has been granted.
    pub fn usage(&self) -> MemoryNodeUsage {
        let (granted_bytes, sections) = {
            let given = lock(&self.shared.granted);
            (given.bytes, given.sections)
        };
        MemoryNodeUsage {
            budget_bytes: self.shared.budget_bytes,
            granted_bytes,
            sections,
            owners: lock(&self.shared.owners).len() as u64,
            connections: (CONNECTIONS_MAX - self.shared.connections.available()) as u64,
        }
    }

    /// Bytes of each section.
    pub fn section_bytes(&self) -> u64 {
        self.shared.section_bytes
    }

    /// The address at which owners reach it.
    pub fn address(&self) -> String {
        self.shared.host.address()
    }

    /// Stopped once nobody is served any more: the node was stopped or dropped, or its host has ended.
    pub fn ended(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Ends the node and its host: connections are lost, memory is gone. On return none of its tasks runs. If the
    /// future is dropped, the node still ends.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        let accepting = lock(&self.accepting).take();
        if let Some(accepting) = accepting {
            // The task is aborted only together with the runtime.
            let _ = accepting.await;
        }
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

/// Accepts connections until the node is told to end, then ends it.
async fn accept(shared: Arc<MemoryNodeCore>, outer: CancellationToken) {
    while let Some(Some(accepted)) =
        outer.run_until_cancelled(shared.stop.run_until_cancelled(shared.host.accept())).await
    {
        match accepted {
            Ok(endpoint) => match shared.handshakes.try_acquire() {
                Some(permit) => {
                    rt::spawn(serve::serve(Arc::clone(&shared), endpoint, permit));
                }
                None => {
                    ConnectionsRejected.add(1);
                    endpoint.close();
                }
            },
            Err(error) if error.kind() == ErrorKind::Closed => break,
            Err(error) => {
                tracing::warn!(%error, "a connection to the memory node could not be accepted");
                rt::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    shared.stop.cancel();
    shared.host.close().await;
    // Each connection's task ends by itself now.
    let _all = shared.handshakes.acquire_many(HANDSHAKES_MAX as u32).await;
    let _all = shared.connections.acquire_many(CONNECTIONS_MAX as u32).await;
    let given = std::mem::take(&mut *lock(&shared.granted));
    GrantedBytes.add(-signed(given.bytes));
    BudgetBytes.add(-signed(shared.budget_bytes));
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl MemoryNodeCore {
    /// Reserves memory for one section and assigns its number.
    fn reserve(&self, bytes: u64) -> Option<u64> {
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
    fn unreserve(&self, bytes: u64) {
        let mut given = lock(&self.granted);
        given.bytes = given.bytes.checked_sub(bytes).expect("what comes back was given");
        given.sections = given.sections.checked_sub(1).expect("what comes back was given");
        GrantedBytes.add(-signed(bytes));
    }

    fn free_bytes(&self) -> u64 {
        self.budget_bytes - lock(&self.granted).bytes
    }

    fn next_connection(&self) -> u64 {
        self.connections_next.fetch_add(1, Ordering::Relaxed)
    }
}
