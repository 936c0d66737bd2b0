//! Memory nodes: passive nodes that hold the regions of consensus groups.
//!
//! 1. When a node starts, it registers two regions for each of its groups: the administrative region and the replicated
//!    region. For the administrative region it grants one capability to every name that sends a hello with the right
//!    sizes.
//! 2. Hello: version, group and sizes must agree. The welcome carries the node's incarnation; the memory of a volatile
//!    node lasts as long as its incarnation.
//! 3. Fence: the node records term and nonce, then revokes the capability that it granted last and, once the revocation
//!    has taken effect, grants a new one. It rejects the fence if the region's owner has a newer term, or the same term
//!    with another nonce (which elections never produce). An owner that fences again, over a new connection, gets a new
//!    capability in the same way: this fence also ends the verbs that the owner had posted before.
//! 4. A *persistent* node ([`LogMemoryNode::start_persistent`]) also accepts writes in messages over the connection
//!    that fenced last, and answers when they are on its disk ([`crate::disk`]). The same writes arrive by verbs, in
//!    which the node takes no part. At a fence it records term and nonce on disk before it revokes anything; after the
//!    revocation it sets its memory back to the content of its disk. After a restart it has memory, term and vote from
//!    its disk.
//!
//! Invariants:
//! * At most one capability for a replicated region is valid: the newest. The node runs one fence of a group at a time.
//! * Terms only grow within one incarnation of a node, and across all incarnations of a persistent one. A volatile node
//!   that restarts knows no term and holds no copy; CPU nodes can see that.
//! * A directory belongs to one persistent node at a time, across all processes.
//! * A persistent node whose disk has failed acknowledges nothing more, and grants no capability. It reports the
//!   failure ([`LogMemoryNode::failed`]), and the process that runs it restarts it. The restarted node replays the redo
//!   log over the data file, syncs the data file and starts a new redo log before it relies on anything that it read:
//!   records whose sync had failed are thereby made durable.
//! * Bounded: groups, connections.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use base::rt::disk::Directory;
use base::rt::sync::{Mutex, Semaphore, SemaphorePermit};
use base::rt::{self, CancellationToken, Task};
use base::{Bytes, FenceConflict, FenceToken};
use rma::{Capability, Endpoint, Host, IncomingEvent, RegionId, Rights, accept_connections};
use storage::DataDirectory;
use wire::hello::HelloAnswer;

use crate::directory_lock::lock_directory;
use crate::disk::{DurableOwner, NodeDisk};
use crate::fault::{Mutant, mutant};
use crate::layout::{ADMIN_BYTES, ADMITTED_AT, TERM_AT};
use crate::message::{PROTOCOL_VERSIONS, Rejection, Request, Response};
use crate::{Error, GroupId, GroupLayout};

/// Groups of one node.
pub const GROUPS_MAX: usize = 1024;
/// Connections at once; further ones are closed.
pub const CONNECTIONS_MAX: usize = 4096;
/// Names that may use one group's memory during one incarnation of a node; further ones are rejected.
pub const NAMES_MAX: usize = 128;

/// A group that a node holds memory for.
#[derive(Clone, Copy, Debug)]
pub struct GroupMemory {
    /// Which.
    pub id: GroupId,
    /// Its sizes.
    pub layout: GroupLayout,
}

/// Options of a memory node.
#[derive(Clone)]
pub struct LogMemoryNodeConfig {
    /// The host that registers its memory and decides who may connect. The node closes the host when it ends.
    pub host: Arc<dyn Host>,
    /// The groups.
    pub groups: Vec<GroupMemory>,
    /// Ends the node.
    pub stop: CancellationToken,
}

/// A memory node. Dropping it ends it.
pub struct LogMemoryNode {
    shared: Arc<MemoryNodeCore>,
    accepting: std::sync::Mutex<Option<Task<()>>>,
}

struct MemoryNodeCore {
    host: Arc<dyn Host>,
    incarnation: u64,
    is_persistent: bool,
    stop: CancellationToken,
    /// The first error of a disk or of the host; `failed` is set when there is one.
    failure: std::sync::OnceLock<Error>,
    failed: CancellationToken,
    groups: BTreeMap<GroupId, GroupRegion>,
    connections: Semaphore,
}

/// A group's regions.
struct GroupRegion {
    layout: GroupLayout,
    /// The region of the administrative words.
    words: RegionId,
    /// Each name's capability for them.
    admins: Mutex<BTreeMap<String, Capability>>,
    region: RegionId,
    owner: Mutex<RegionOwner>,
}

/// The owner of the replicated region.
#[derive(Default)]
struct RegionOwner {
    token: FenceToken,
    capability: Option<Capability>,
    /// The connection over which it was fenced: writes that a lost connection still delivers must not be persisted.
    connection: u64,
    disk: Option<NodeDisk>,
}

impl LogMemoryNode {
    /// Registers the groups' regions and starts to serve. The regions' contents end with the node.
    ///
    /// # Errors
    /// [`Error::Invalid`] for invalid sizes; [`Error::Rma`] when there is not enough memory.
    pub async fn start(options: LogMemoryNodeConfig) -> Result<Arc<LogMemoryNode>, Error> {
        LogMemoryNode::open(options, None).await
    }

    /// As [`LogMemoryNode::start`], but restores the groups from a directory, and persists them there.
    ///
    /// # Errors
    /// And [`Error::Locked`] for a directory that another node has; [`Error::Disk`], [`Error::Corrupt`] for one that
    /// cannot be read or was damaged.
    pub async fn start_persistent(
        options: LogMemoryNodeConfig,
        directory: &Directory,
    ) -> Result<Arc<LogMemoryNode>, Error> {
        LogMemoryNode::open(options, Some(directory)).await
    }

    async fn open(options: LogMemoryNodeConfig, directory: Option<&Directory>) -> Result<Arc<LogMemoryNode>, Error> {
        let LogMemoryNodeConfig { host, groups: wanted, stop: outer } = options;
        if wanted.len() > GROUPS_MAX {
            return Err(Error::Invalid(format!("{} groups: a memory node keeps at most {GROUPS_MAX}", wanted.len())));
        }
        let owned = match directory {
            Some(directory) => Some(lock_directory(directory.clone()).await?),
            None => None,
        };
        let mut groups = BTreeMap::new();
        for GroupMemory { id, layout } in wanted {
            layout.check()?;
            let failed = Error::rma("registering a group's memory");
            let words = host.register("consensus.admin", ADMIN_BYTES).await.map_err(&failed)?;
            let region = host.register("consensus", layout.region_bytes()).await.map_err(&failed)?;
            let mut owner = RegionOwner::default();
            if let Some(owned) = &owned {
                let doing = |error: std::io::Error| Error::Disk {
                    doing: "opening a group's directory",
                    reason: error.to_string(),
                };
                let folder = format!("group-{}", id.0);
                let directory = owned.directory().subdirectory(&folder).await.map_err(doing)?;
                let mut disk = NodeDisk::open(directory, layout.region_bytes()).await?;
                disk.load(&*host, region).await?;
                let DurableOwner { term, nonce, admitted } = disk.owner;
                if !disk.is_blank() {
                    tracing::info!(group = id.0, %term, admitted, "a memory node has what its disk has kept");
                }
                host.store(words, TERM_AT, &term.0.to_le_bytes()).map_err(&failed)?;
                if admitted {
                    host.store(words, ADMITTED_AT, &id.0.to_le_bytes()).map_err(&failed)?;
                }
                let token = FenceToken { term, nonce };
                owner = RegionOwner { token, disk: Some(disk), ..RegionOwner::default() };
            }
            let kept = GroupRegion { layout, words, admins: Mutex::default(), region, owner: Mutex::new(owner) };
            if groups.insert(id, kept).is_some() {
                return Err(Error::Invalid(format!("group {} is named twice", id.0)));
            }
        }
        let (stop, connections) = (CancellationToken::new(), Semaphore::new(CONNECTIONS_MAX));
        let (life, is_persistent) = (rt::random_u64(), owned.is_some());
        let (failure, failed) = (std::sync::OnceLock::new(), CancellationToken::new());
        let shared = Arc::new(MemoryNodeCore {
            host,
            incarnation: life,
            is_persistent,
            stop,
            failure,
            failed,
            groups,
            connections,
        });
        let accepting = rt::spawn(accept(Arc::clone(&shared), outer, owned));
        Ok(Arc::new(LogMemoryNode { shared, accepting: std::sync::Mutex::new(Some(accepting)) }))
    }

    /// The address at which CPU nodes reach it.
    pub fn address(&self) -> String {
        self.shared.host.address()
    }

    /// Completes with the error when the node must be restarted to be of use: a disk has failed, and after the restart
    /// the node continues from what the disk has; or its host has ended because of a defect ([`Error::HostFailed`]).
    /// Otherwise never completes.
    pub async fn failed(&self) -> Error {
        self.shared.failed.cancelled().await;
        self.shared.failure.get().cloned().unwrap_or(Error::Closed)
    }

    /// Stopped when the node no longer serves: it was stopped or dropped, or its host has ended by itself.
    pub fn ended(&self) -> &CancellationToken {
        &self.shared.stop
    }

    /// Ends the node and its host: connections and memory are lost. On return none of its tasks runs. If the future is
    /// dropped, the node still ends.
    pub async fn stop(&self) {
        self.shared.stop.cancel();
        let accepting = self.accepting.lock().expect("no holder of this lock panics").take();
        if let Some(accepting) = accepting {
            // It is aborted only together with the runtime.
            let _ = accepting.await;
        }
    }
}

impl Drop for LogMemoryNode {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl fmt::Debug for LogMemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryNode({}, {} groups)", self.address(), self.shared.groups.len())
    }
}

/// Serves until the node ends; after that none of its tasks touches its directory, and another node may lock it.
async fn accept(shared: Arc<MemoryNodeCore>, outer: CancellationToken, owned: Option<DataDirectory>) {
    let serve = |endpoint, permit| drop(rt::spawn(serve(Arc::clone(&shared), endpoint, permit)));
    let accepting = accept_connections(&*shared.host, &shared.connections, serve, || {});
    let has_ended = outer.run_until_cancelled(shared.stop.run_until_cancelled(accepting)).await == Some(Some(()));
    // A host that has failed reports it before it closes.
    if has_ended && let Poll::Ready(reason) = pin!(shared.host.failed()).poll(&mut Context::from_waker(Waker::noop())) {
        tracing::error!(reason, "a memory node has lost its host");
        let _ = shared.failure.set(Error::HostFailed(reason));
        shared.failed.cancel();
    }
    shared.stop.cancel();
    shared.host.close().await;
    // Each connection's task ends by itself now.
    let _all = shared.connections.acquire_many(CONNECTIONS_MAX as u32).await;
    drop(owned);
}

async fn serve(shared: Arc<MemoryNodeCore>, endpoint: Endpoint, permit: SemaphorePermit) {
    shared.stop.run_until_cancelled(serve_requests(&shared, &endpoint)).await;
    endpoint.close();
    drop(permit);
}

/// Answers until the connection ends or sends an invalid message.
async fn serve_requests(shared: &MemoryNodeCore, endpoint: &Endpoint) {
    let mut group = None;
    let connection = rt::random_u64() | 1;
    loop {
        let message = match endpoint.receive().await {
            Ok(IncomingEvent::Message(message)) => message,
            Ok(IncomingEvent::Immediate { .. }) => continue,
            Err(_) => return,
        };
        let (number, reply, goes_on) = match Request::decode(&message) {
            Ok((number, request)) => {
                if rt::fault_point("consensus.node.request_lost") {
                    return;
                }
                let reply = handle(shared, endpoint.name(), connection, &mut group, request).await;
                if rt::fault_point("consensus.node.answer_lost") {
                    return;
                }
                let goes_on = !matches!(reply, Response::Rejected { rejection: Rejection::Malformed, .. });
                (number, reply, goes_on)
            }
            Err(error) => {
                tracing::warn!(%error, name = endpoint.name(), "a connection to a memory node says what it must not");
                (0, rejected(Rejection::Malformed, 0, error.to_string()), false)
            }
        };
        let sent = endpoint.send(&[reply.encode(number)]);
        endpoint.flush();
        if sent.await.is_err() || !goes_on {
            return;
        }
    }
}

fn rejected(rejection: Rejection, detail: u64, text: impl Into<String>) -> Response {
    Response::Rejected { rejection, detail, text: text.into() }
}

async fn handle(
    shared: &MemoryNodeCore,
    name: &str,
    connection: u64,
    group: &mut Option<GroupId>,
    request: Request,
) -> Response {
    match request {
        Request::OtherVersions(versions) => {
            tracing::warn!(name, %versions, ours = %PROTOCOL_VERSIONS, "a CPU node speaks other versions; upgrade the older side");
            Response::OtherVersions(HelloAnswer::refuse(PROTOCOL_VERSIONS))
        }
        Request::Hello { versions, group: id, layout } => {
            let Some(kept) = shared.groups.get(&id) else {
                return rejected(Rejection::Group, 0, format!("this node holds no memory for group {}", id.0));
            };
            if kept.layout != layout {
                let (ours, theirs) = (kept.layout, layout);
                let text = format!("its group {} has other sizes: {ours:?}, not {theirs:?}", id.0);
                return rejected(Rejection::Group, 0, text);
            }
            let admin = match admin(shared, kept, name).await {
                Ok(admin) => admin,
                Err(reason) => return rejected(Rejection::Group, 0, reason),
            };
            *group = Some(id);
            let (life, is_persistent) = (shared.incarnation, shared.is_persistent);
            let hello = HelloAnswer::to(PROTOCOL_VERSIONS, versions);
            Response::Welcome { hello, is_persistent, incarnation: life, admin }
        }
        Request::Persist { term, nonce: holder, admitted, writes } => match group.and_then(|id| shared.groups.get(&id))
        {
            Some(kept) => {
                persist(shared, kept, connection, DurableOwner { term, nonce: holder, admitted }, writes).await
            }
            None => rejected(Rejection::Malformed, 0, "hello first"),
        },
        Request::Fence { term, nonce } => match group.and_then(|id| shared.groups.get(&id)) {
            Some(kept) => fence(shared, kept, name, connection, FenceToken { term, nonce }).await,
            None => rejected(Rejection::Malformed, 0, "hello first"),
        },
    }
}

impl MemoryNodeCore {
    /// Rejects the request, and reports that this node must be restarted.
    fn disk_failed(&self, error: Error) -> Response {
        let reply = rejected(Rejection::NotPersisted, 0, error.to_string());
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!(%error, "a memory node's disk has failed: the node is to be started again");
        }
        if !mutant(Mutant::StayFailed) {
            self.failed.cancel();
        }
        reply
    }
}

/// A name's capability for a group's administrative words: the same one every time.
async fn admin(shared: &MemoryNodeCore, kept: &GroupRegion, name: &str) -> Result<Capability, String> {
    let mut admins = kept.admins.lock().await;
    if let Some(capability) = admins.get(name) {
        return Ok(*capability);
    }
    if admins.len() >= NAMES_MAX {
        return Err(format!("{NAMES_MAX} names have used this group's memory, which is the limit: restart the node"));
    }
    let capability = shared.host.grant(kept.words, Rights::ALL, name).map_err(|error| error.to_string())?;
    admins.insert(name.to_owned(), capability);
    Ok(capability)
}

/// Step 3 at the head of this module.
async fn fence(
    shared: &MemoryNodeCore,
    kept: &GroupRegion,
    name: &str,
    connection: u64,
    token: FenceToken,
) -> Response {
    let mut owner = kept.owner.lock().await;
    match owner.token.admit(&token) {
        Ok(()) => {}
        Err(FenceConflict::Newer) => {
            return rejected(Rejection::Fenced, owner.token.term.0, "a newer coordinator has the group's memory");
        }
        Err(FenceConflict::Disputed) => {
            return rejected(Rejection::Disputed, token.term.0, "another coordinator has fenced under this term");
        }
    }
    if let Some(disk) = &mut owner.disk
        && (disk.owner.term, disk.owner.nonce) != (token.term, token.nonce)
    {
        let durable = DurableOwner { term: token.term, nonce: token.nonce, admitted: disk.owner.admitted };
        if let Err(error) = disk.append(durable, Vec::new()).await {
            return shared.disk_failed(error);
        }
    }
    owner.token = token;
    owner.connection = connection;
    if let Some(before) = &owner.capability {
        let revoked = match rt::fault_point("consensus.node.unconfirmed") {
            true => Err(rma::Error::Ambiguous("a fault was injected")),
            false => shared.host.revoke(before).await,
        };
        match revoked {
            Ok(()) => {}
            Err(error) => return rejected(Rejection::Unconfirmed, 0, error.to_string()),
        }
        // From here on no coordinator can write, until a new capability is granted.
        if let Some(disk) = &mut owner.disk
            && !mutant(Mutant::KeepUnsynced)
        {
            match disk.restore_memory(&*shared.host, kept.region).await {
                Ok(bytes) => tracing::debug!(bytes, "a memory node's memory is what its disk has"),
                Err(error) => return shared.disk_failed(error),
            }
        }
        owner.capability = None;
    }
    match shared.host.grant(kept.region, Rights::ALL, name) {
        Ok(region) => {
            owner.capability = Some(region);
            Response::Fenced { region }
        }
        Err(error) => rejected(Rejection::Unconfirmed, 0, error.to_string()),
    }
}

/// Step 4 at the head of this module.
async fn persist(
    shared: &MemoryNodeCore,
    kept: &GroupRegion,
    connection: u64,
    asked: DurableOwner,
    writes: Vec<(u64, Bytes)>,
) -> Response {
    let mut owner = kept.owner.lock().await;
    if (asked.term, asked.nonce, connection) != (owner.token.term, owner.token.nonce, owner.connection) {
        return rejected(Rejection::Fenced, owner.token.term.0, "a newer coordinator has the group's memory");
    }
    let Some(disk) = &mut owner.disk else {
        return rejected(Rejection::NotPersisted, 0, "this node is not persistent: it stores nothing on disk");
    };
    let admitted = asked.admitted || disk.owner.admitted;
    match disk.append(DurableOwner { admitted, ..asked }, writes).await {
        Ok(()) => Response::Persisted,
        Err(error @ Error::Disk { .. }) => shared.disk_failed(error),
        Err(error) => rejected(Rejection::NotPersisted, 0, error.to_string()),
    }
}
