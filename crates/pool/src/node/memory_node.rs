//! The memory node: it accepts the connections of owners.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use base::rt::sync::Semaphore;
use base::rt::{self, CancellationToken, Task};
use rma::accept_connections;

use crate::events::{BudgetBytes, ConnectionsRejected, GrantedBytes};
use crate::lock::lock;
use crate::node::config::{CONNECTIONS_MAX, HANDSHAKES_MAX, MemoryNodeConfig};
use crate::node::node_core::{GrantedTotals, MemoryNodeCore, signed};
use crate::node::serve;
use crate::{Error, check_section_bytes};

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
    let serve = |endpoint, permit| drop(rt::spawn(serve::serve(Arc::clone(&shared), endpoint, permit)));
    let accepting = accept_connections(&*shared.host, &shared.handshakes, serve, || ConnectionsRejected.add(1));
    outer.run_until_cancelled(shared.stop.run_until_cancelled(accepting)).await;
    shared.stop.cancel();
    shared.host.close().await;
    // Each connection's task ends by itself now.
    let _all = shared.handshakes.acquire_many(HANDSHAKES_MAX as u32).await;
    let _all = shared.connections.acquire_many(CONNECTIONS_MAX as u32).await;
    let given = std::mem::take(&mut *lock(&shared.granted));
    GrantedBytes.add(-signed(given.bytes));
    BudgetBytes.add(-signed(shared.budget_bytes));
}
