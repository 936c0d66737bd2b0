//! Memory nodes: passive keepers of groups' regions.
//!
//! 1. A node registers two regions for each of its groups when it starts: the administrative one, for which it gives one
//!    capability to everybody who says hello with the right sizes, and the replicated one.
//! 2. Hello: version, group and sizes must agree. The welcome names this life of the node, which has what it has only
//!    until it ends.
//! 3. Fence: refused when a newer term has the region, or another holder under the same term, which no election allows.
//!    Else term and holder are noted, first of all; then the capability that was given last is revoked, and when that
//!    has taken effect, a new one is given. A holder that comes again, on a new connection, gets a new capability the same
//!    way: what it had posted before is fenced off too.
//!
//! Invariants:
//! * At most one capability for a replicated region is in force: the newest. One fence of a group runs at a time.
//! * Terms only grow in the life of a node. A node that starts anew knows none and has no copy; processors see that.
//! * Bounded: groups, connections.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::ErrorKind;
use base::rt::sync::{Mutex, Permit, Semaphore};
use base::rt::{self, Stop, Task};
use rma::{Capability, Endpoint, Host, Incoming, RegionId, Rights};

use crate::layout::ADMIN_BYTES;
use crate::message::{PROTOCOL_VERSION, Refusal, Reply, Request};
use crate::{Error, GroupId, Layout, Term};

/// Groups of one node.
pub const GROUPS_MAX: usize = 1024;
/// Connections at once; one more is closed.
pub const CONNECTIONS_MAX: usize = 4096;
/// A pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A group that a node keeps memory for.
#[derive(Clone, Copy, Debug)]
pub struct GroupMemory {
    /// Which.
    pub id: GroupId,
    /// Its sizes.
    pub layout: Layout,
}

/// What a memory node is made of.
#[derive(Clone)]
pub struct MemoryNodeOptions {
    /// Where its memory is registered and who may connect. The node closes it when it ends.
    pub host: Arc<dyn Host>,
    /// The groups.
    pub groups: Vec<GroupMemory>,
    /// Ends the node.
    pub stop: Stop,
}

/// A memory node. Dropping it ends it.
pub struct MemoryNode {
    shared: Arc<Shared>,
    accepting: std::sync::Mutex<Option<Task<()>>>,
}

struct Shared {
    host: Arc<dyn Host>,
    life: u64,
    stop: Stop,
    groups: BTreeMap<GroupId, Kept>,
    connections: Semaphore,
}

/// A group's regions.
struct Kept {
    layout: Layout,
    admin: Capability,
    region: RegionId,
    reign: Mutex<Reign>,
}

/// Who has the replicated region.
#[derive(Default)]
struct Reign {
    term: Term,
    holder: u64,
    capability: Option<Capability>,
}

impl MemoryNode {
    /// Registers the groups' regions and begins to serve.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that make no sense; [`Error::Rma`] when there is not enough memory.
    pub async fn start(options: MemoryNodeOptions) -> Result<Arc<MemoryNode>, Error> {
        let MemoryNodeOptions { host, groups: wanted, stop: outer } = options;
        if wanted.len() > GROUPS_MAX {
            return Err(Error::Invalid(format!("{} groups: a memory node keeps at most {GROUPS_MAX}", wanted.len())));
        }
        let mut groups = BTreeMap::new();
        for GroupMemory { id, layout } in wanted {
            layout.check()?;
            let failed = Error::rma("registering a group's memory");
            let admin = host.register("consensus.admin", ADMIN_BYTES).await.map_err(&failed)?;
            let admin = host.grant(admin, Rights::ALL).map_err(&failed)?;
            let region = host.register("consensus", layout.region_bytes()).await.map_err(&failed)?;
            let kept = Kept { layout, admin, region, reign: Mutex::default() };
            if groups.insert(id, kept).is_some() {
                return Err(Error::Invalid(format!("group {} is named twice", id.0)));
            }
        }
        let (stop, connections) = (Stop::new(), Semaphore::new(CONNECTIONS_MAX));
        let shared = Arc::new(Shared { host, life: rt::random_u64(), stop, groups, connections });
        let accepting = rt::spawn(accept(Arc::clone(&shared), outer));
        Ok(Arc::new(MemoryNode { shared, accepting: std::sync::Mutex::new(Some(accepting)) }))
    }

    /// Where processors reach it.
    pub fn address(&self) -> String {
        self.shared.host.address()
    }

    /// Ends it and its host: connections are lost, memory is gone. On return none of its tasks runs. Dropping the
    /// future leaves the node ending.
    pub async fn stop(&self) {
        self.shared.stop.stop();
        let accepting = self.accepting.lock().expect("no holder of this lock panics").take();
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

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryNode({}, {} groups)", self.address(), self.shared.groups.len())
    }
}

async fn accept(shared: Arc<Shared>, outer: Stop) {
    while let Some(Some(accepted)) = outer.or_stopped(shared.stop.or_stopped(shared.host.accept())).await {
        match accepted {
            Ok(endpoint) => match shared.connections.try_acquire() {
                Some(permit) => drop(rt::spawn(serve(Arc::clone(&shared), endpoint, permit))),
                None => endpoint.close(),
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
    let _all = shared.connections.acquire_many(CONNECTIONS_MAX as u32).await;
}

async fn serve(shared: Arc<Shared>, endpoint: Endpoint, permit: Permit) {
    shared.stop.or_stopped(converse(&shared, &endpoint)).await;
    endpoint.close();
    drop(permit);
}

/// Answers until the connection ends, or says what it must not.
async fn converse(shared: &Shared, endpoint: &Endpoint) {
    let mut group = None;
    loop {
        let message = match endpoint.receive().await {
            Ok(Incoming::Message(message)) => message,
            Ok(Incoming::Immediate { .. }) => continue,
            Err(_) => return,
        };
        let (number, reply, goes_on) = match Request::decode(&message) {
            Ok((number, request)) => {
                if rt::fault_point("consensus.node.request_lost") {
                    return;
                }
                let reply = perform(shared, &mut group, request).await;
                if rt::fault_point("consensus.node.answer_lost") {
                    return;
                }
                let goes_on = !matches!(reply, Reply::Refused { refusal: Refusal::Malformed, .. });
                (number, reply, goes_on)
            }
            Err(error) => {
                tracing::warn!(%error, name = endpoint.name(), "a connection to a memory node says what it must not");
                (0, refused(Refusal::Malformed, 0, error.to_string()), false)
            }
        };
        let sent = endpoint.send(&[reply.encode(number)]);
        endpoint.flush();
        if sent.await.is_err() || !goes_on {
            return;
        }
    }
}

fn refused(refusal: Refusal, detail: u64, text: impl Into<String>) -> Reply {
    Reply::Refused { refusal, detail, text: text.into() }
}

async fn perform(shared: &Shared, group: &mut Option<GroupId>, request: Request) -> Reply {
    match request {
        Request::Hello { version, .. } if version != PROTOCOL_VERSION => refused(
            Refusal::Version,
            PROTOCOL_VERSION.into(),
            format!("it speaks version {PROTOCOL_VERSION}, not {version}; run the same release on both"),
        ),
        Request::Hello { group: id, layout, .. } => {
            let Some(kept) = shared.groups.get(&id) else {
                return refused(Refusal::Group, 0, format!("it keeps no memory for group {}", id.0));
            };
            if kept.layout != layout {
                let (ours, theirs) = (kept.layout, layout);
                let text = format!("its group {} has other sizes: {ours:?}, not {theirs:?}", id.0);
                return refused(Refusal::Group, 0, text);
            }
            *group = Some(id);
            Reply::Welcome { version: PROTOCOL_VERSION, life: shared.life, admin: kept.admin }
        }
        Request::Fence { term, holder } => match group.and_then(|id| shared.groups.get(&id)) {
            Some(kept) => fence(shared, kept, term, holder).await,
            None => refused(Refusal::Malformed, 0, "hello first"),
        },
    }
}

/// Step 3 at the head of this module.
async fn fence(shared: &Shared, kept: &Kept, term: Term, holder: u64) -> Reply {
    let mut reign = kept.reign.lock().await;
    if term < reign.term {
        return refused(Refusal::Fenced, reign.term.0, "a newer coordinator has the group's memory");
    }
    if term == reign.term && holder != reign.holder {
        return refused(Refusal::Disputed, term.0, "another coordinator has fenced under this term");
    }
    reign.term = term;
    reign.holder = holder;
    if let Some(before) = &reign.capability {
        let revoked = match rt::fault_point("consensus.node.unconfirmed") {
            true => Err(rma::Error::Ambiguous("a fault was injected")),
            false => shared.host.revoke(before).await,
        };
        match revoked {
            Ok(()) => reign.capability = None,
            Err(error) => return refused(Refusal::Unconfirmed, 0, error.to_string()),
        }
    }
    match shared.host.grant(kept.region, Rights::ALL) {
        Ok(region) => {
            reign.capability = Some(region);
            Reply::Fenced { region }
        }
        Err(error) => refused(Refusal::Unconfirmed, 0, error.to_string()),
    }
}
