//! Memory nodes: donors that give sections of their memory, and are passive otherwise.
//!
//! 1. An owner connects; the provider of the [`rma::Host`] has checked its name, which is the owner. Its first message is
//!    a hello with version and section size, its second a fence with its epoch and a random number, the holder.
//! 2. The fence is refused when the owner has a newer epoch, or another holder with this epoch. Else epoch, holder and
//!    connection become the owner's current ones, which ends whatever connection was current before; then every section
//!    given under an older epoch is revoked and its memory taken back; then the fence is answered.
//! 3. On the current connection the owner asks for sections, releases them and lists them. Anything on another
//!    connection is refused, so that a request which is still under way on a lost connection cannot do anything after the
//!    list by which its owner found out what it has.
//! 4. The owner may have a section shared with readers, other compute nodes of its own: each has a capability of its own,
//!    to read, which is revoked alone or with the section. A reader's connection says hello and asks for nothing.
//! 5. A connection that ends leaves the sections where they are: its holder may connect again. They come back when the
//!    holder releases them, when a newer epoch fences them, or, if nobody has been connected for [`ABANDONED_AFTER`],
//!    when another owner needs the room.
//!
//! Invariants:
//! * What a request sees and changes is its connection's owner alone. One request of an owner runs at a time.
//! * A section is in the table, and counts against the budget, from before its memory is registered until its
//!   deregistration is confirmed.
//! * Epochs only grow in the life of a node. A node that starts anew knows none: it has no memory of the past, and nobody
//!   has a capability for it.
//! * Bounded: owners, connections, sections.

mod owner;
mod serve;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::ErrorKind;
use base::rt::sync::Semaphore;
use base::rt::{self, Stop, Task};
use rma::Host;

use crate::events::{BudgetBytes, ConnectionsRefused, GrantedBytes};
use crate::{Error, check_section_bytes};
use owner::Owner;

/// Owners that a node remembers; one more is refused unless one can be forgotten that has nothing and has gone.
pub const OWNERS_MAX: usize = 4096;
/// Connections at once that have said hello; one more is refused.
pub const CONNECTIONS_MAX: usize = 1024;
/// Connections at once that have not; one more is closed. As many as any host has, which gives each name a share of them.
const INTRODUCTIONS_MAX: usize = 4096;
/// How long an owner may be away before others may have its memory.
pub const ABANDONED_AFTER: Duration = Duration::from_secs(60);
/// Connections of one owner at once.
pub const CONNECTIONS_PER_OWNER_MAX: usize = 16;
/// Readers of one section.
pub const READERS_MAX: usize = 64;
/// How long a connection may take until its hello is answered.
const INTRODUCTION_MAX: Duration = Duration::from_secs(10);
/// A pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What a memory node is made of.
#[derive(Clone)]
pub struct MemoryNodeOptions {
    /// Where its memory is registered and who may connect. The node closes it when it ends.
    pub host: Arc<dyn Host>,
    /// Bytes that it may give.
    pub budget_bytes: u64,
    /// Bytes of each section: a power of two, the same in the whole pool.
    pub section_bytes: u64,
    /// Ends the node.
    pub stop: Stop,
}

/// What a memory node has given.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Bytes that it may give.
    pub budget_bytes: u64,
    /// Bytes that it has given; never above the budget.
    pub granted_bytes: u64,
    /// Sections that it has given.
    pub sections: u64,
    /// Owners that it remembers.
    pub owners: u64,
    /// Connections open now.
    pub connections: u64,
}

/// A donor. Dropping it ends it.
pub struct MemoryNode {
    shared: Arc<Shared>,
    accepting: Mutex<Option<Task<()>>>,
}

/// What all connections share.
struct Shared {
    host: Arc<dyn Host>,
    section_bytes: u64,
    budget_bytes: u64,
    /// Tells this life of the node from others.
    life: u64,
    stop: Stop,
    given: Mutex<Given>,
    owners: Mutex<BTreeMap<String, Arc<Owner>>>,
    connections: Semaphore,
    introductions: Semaphore,
    connections_next: AtomicU64,
}

/// What counts against the budget.
#[derive(Default)]
struct Given {
    bytes: u64,
    sections: u64,
    /// The number of the next section.
    next: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What we guard so is whole between any two statements: a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryNode {
    /// Begins to serve.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`], [`Error::Invalid`].
    pub async fn start(options: MemoryNodeOptions) -> Result<Arc<MemoryNode>, Error> {
        let MemoryNodeOptions { host, budget_bytes, section_bytes, stop: outer } = options;
        check_section_bytes(section_bytes)?;
        if budget_bytes < section_bytes {
            return Err(Error::BudgetTooSmall { budget_bytes, section_bytes });
        }
        // The caller's token ends more than this node, so that the node has one of its own.
        let stop = Stop::new();
        let shared = Arc::new(Shared {
            host,
            section_bytes,
            budget_bytes,
            life: rt::random_u64(),
            stop: stop.clone(),
            given: Mutex::new(Given { next: 1, ..Given::default() }),
            owners: Mutex::default(),
            connections: Semaphore::new(CONNECTIONS_MAX),
            introductions: Semaphore::new(INTRODUCTIONS_MAX),
            connections_next: AtomicU64::new(1),
        });
        BudgetBytes.add(i64::try_from(budget_bytes).unwrap_or(i64::MAX));
        let accepting = rt::spawn(accept(Arc::clone(&shared), outer));
        Ok(Arc::new(MemoryNode { shared, accepting: Mutex::new(Some(accepting)) }))
    }

    /// What has been given.
    pub fn usage(&self) -> Usage {
        let (granted_bytes, sections) = {
            let given = lock(&self.shared.given);
            (given.bytes, given.sections)
        };
        Usage {
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

    /// Where owners reach it.
    pub fn address(&self) -> String {
        self.shared.host.address()
    }

    /// Stopped when nobody is served any more: it was stopped or dropped, or its host has ended by itself.
    pub fn ended(&self) -> &Stop {
        &self.shared.stop
    }

    /// Ends it and its host: connections are lost, memory is gone. On return none of its tasks runs. Dropping the
    /// future leaves the node ending.
    pub async fn stop(&self) {
        self.shared.stop.stop();
        let accepting = lock(&self.accepting).take();
        if let Some(accepting) = accepting {
            // It is aborted only together with the runtime.
            let _ = accepting.await;
        }
    }
}

impl Drop for MemoryNode {
    fn drop(&mut self) {
        self.shared.stop.stop();
    }
}

/// Takes connections until the node is to end, then ends it.
async fn accept(shared: Arc<Shared>, outer: Stop) {
    while let Some(Some(accepted)) = outer.or_stopped(shared.stop.or_stopped(shared.host.accept())).await {
        match accepted {
            Ok(endpoint) => match shared.introductions.try_acquire() {
                Some(permit) => {
                    rt::spawn(serve::serve(Arc::clone(&shared), endpoint, permit));
                }
                None => {
                    ConnectionsRefused.add(1);
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
    shared.stop.stop();
    shared.host.close().await;
    // Each connection's task ends by itself now.
    let _all = shared.introductions.acquire_many(INTRODUCTIONS_MAX as u32).await;
    let _all = shared.connections.acquire_many(CONNECTIONS_MAX as u32).await;
    let given = std::mem::take(&mut *lock(&shared.given));
    GrantedBytes.add(-signed(given.bytes));
    BudgetBytes.add(-signed(shared.budget_bytes));
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl Shared {
    /// Sets room for one section aside and numbers it.
    fn reserve(&self, bytes: u64) -> Option<u64> {
        let mut given = lock(&self.given);
        if bytes > self.budget_bytes - given.bytes {
            return None;
        }
        given.bytes += bytes;
        given.sections += 1;
        let number = given.next;
        given.next += 1;
        assert!(given.bytes <= self.budget_bytes, "no more is given than there is");
        GrantedBytes.add(signed(bytes));
        Some(number)
    }

    /// Ends what [`Shared::reserve`] began.
    fn give_back(&self, bytes: u64) {
        let mut given = lock(&self.given);
        given.bytes = given.bytes.checked_sub(bytes).expect("what comes back was given");
        given.sections = given.sections.checked_sub(1).expect("what comes back was given");
        GrantedBytes.add(-signed(bytes));
    }

    fn free_bytes(&self) -> u64 {
        self.budget_bytes - lock(&self.given).bytes
    }

    fn next_connection(&self) -> u64 {
        self.connections_next.fetch_add(1, Ordering::Relaxed)
    }
}
