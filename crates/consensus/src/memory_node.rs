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
//! 4. A *persistent* node ([`MemoryNode::start_persistent`]) also takes writes in messages over the connection that fenced last, and
//!    answers when its disk has them ([`crate::disk`]). The same writes come by verbs, on which it has no part. At a fence it
//!    notes term and holder on disk before anything else, and behind the revocation sets its memory back to what its disk has.
//!    One that begins anew has memory, term and vote as its disk has them.
//!
//! Invariants:
//! * At most one capability for a replicated region is in force: the newest. One fence of a group runs at a time.
//! * Terms only grow in the life of a node, and in all lives of a persistent one. Another that starts anew knows none and has no
//!   copy; processors see that.
//! * A directory has one persistent node at a time, of all processes.
//! * A persistent node whose disk has failed acknowledges nothing more, and gives no capability. It says so
//!   ([`MemoryNode::failed`]), and its owner starts it anew: what the disk then has is written again before it counts.
//! * Bounded: groups, connections.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use base::Bytes;
use base::ErrorKind;
use base::rt::disk::Directory;
use base::rt::sync::{Mutex, Permit, Semaphore};
use base::rt::{self, Stop, Task};
use rma::{Capability, Endpoint, Host, Incoming, RegionId, Rights};
use storage::DataDirectory;

use crate::disk::{Disk, Holder};
use crate::fault::{Mutant, mutant};
use crate::layout::{ADMIN_BYTES, ADMITTED_AT, TERM_AT};
use crate::message::{PROTOCOL_VERSION, Refusal, Reply, Request};
use crate::owned::own;
use crate::{Error, GroupId, Layout, Term};

/// Groups of one node.
pub const GROUPS_MAX: usize = 1024;
/// Connections at once; one more is closed.
pub const CONNECTIONS_MAX: usize = 4096;
/// Names that have used one group's memory in the life of a node; one more is refused.
pub const NAMES_MAX: usize = 128;
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
    is_persistent: bool,
    stop: Stop,
    /// The first error of a disk, and that there is one.
    failure: std::sync::OnceLock<Error>,
    failed: Stop,
    groups: BTreeMap<GroupId, Kept>,
    connections: Semaphore,
}

/// A group's regions.
struct Kept {
    layout: Layout,
    /// The region of the administrative words.
    words: RegionId,
    /// What each name reaches them with.
    admins: Mutex<BTreeMap<String, Capability>>,
    region: RegionId,
    reign: Mutex<Reign>,
}

/// Who has the replicated region.
#[derive(Default)]
struct Reign {
    term: Term,
    holder: u64,
    capability: Option<Capability>,
    /// The connection over which it was fenced: writes that a lost one still brings are not to be kept.
    connection: u64,
    disk: Option<Disk>,
}

impl MemoryNode {
    /// Registers the groups' regions and begins to serve. What they hold ends with the node.
    ///
    /// # Errors
    /// [`Error::Invalid`] for sizes that make no sense; [`Error::Rma`] when there is not enough memory.
    pub async fn start(options: MemoryNodeOptions) -> Result<Arc<MemoryNode>, Error> {
        MemoryNode::begin(options, None).await
    }

    /// As [`MemoryNode::start`], with what a directory has kept of its groups, and will keep.
    ///
    /// # Errors
    /// And [`Error::Locked`] for a directory that another node has; [`Error::Disk`], [`Error::Corrupt`] for one that cannot be read or
    /// was damaged.
    pub async fn start_persistent(options: MemoryNodeOptions, directory: &Directory) -> Result<Arc<MemoryNode>, Error> {
        MemoryNode::begin(options, Some(directory)).await
    }

    async fn begin(options: MemoryNodeOptions, directory: Option<&Directory>) -> Result<Arc<MemoryNode>, Error> {
        let MemoryNodeOptions { host, groups: wanted, stop: outer } = options;
        if wanted.len() > GROUPS_MAX {
            return Err(Error::Invalid(format!("{} groups: a memory node keeps at most {GROUPS_MAX}", wanted.len())));
        }
        let owned = match directory {
            Some(directory) => Some(own(directory.clone()).await?),
            None => None,
        };
        let mut groups = BTreeMap::new();
        for GroupMemory { id, layout } in wanted {
            layout.check()?;
            let failed = Error::rma("registering a group's memory");
            let words = host.register("consensus.admin", ADMIN_BYTES).await.map_err(&failed)?;
            let region = host.register("consensus", layout.region_bytes()).await.map_err(&failed)?;
            let mut reign = Reign::default();
            if let Some(owned) = &owned {
                let doing = |error: std::io::Error| Error::Disk {
                    doing: "opening a group's directory",
                    reason: error.to_string(),
                };
                let folder = format!("group-{}", id.0);
                let directory = owned.directory().subdirectory(&folder).await.map_err(doing)?;
                let mut disk = Disk::open(directory, layout.region_bytes()).await?;
                disk.load(&*host, region).await?;
                let Holder { term, holder, admitted } = disk.holder;
                if !disk.is_blank() {
                    tracing::info!(group = id.0, %term, admitted, "a memory node has what its disk has kept");
                }
                host.store(words, TERM_AT, &term.0.to_le_bytes()).map_err(&failed)?;
                if admitted {
                    host.store(words, ADMITTED_AT, &id.0.to_le_bytes()).map_err(&failed)?;
                }
                reign = Reign { term, holder, disk: Some(disk), ..Reign::default() };
            }
            let kept = Kept { layout, words, admins: Mutex::default(), region, reign: Mutex::new(reign) };
            if groups.insert(id, kept).is_some() {
                return Err(Error::Invalid(format!("group {} is named twice", id.0)));
            }
        }
        let (stop, connections) = (Stop::new(), Semaphore::new(CONNECTIONS_MAX));
        let (life, is_persistent) = (rt::random_u64(), owned.is_some());
        let (failure, failed) = (std::sync::OnceLock::new(), Stop::new());
        let shared = Arc::new(Shared { host, life, is_persistent, stop, failure, failed, groups, connections });
        let accepting = rt::spawn(accept(Arc::clone(&shared), outer, owned));
        Ok(Arc::new(MemoryNode { shared, accepting: std::sync::Mutex::new(Some(accepting)) }))
    }

    /// Where processors reach it.
    pub fn address(&self) -> String {
        self.shared.host.address()
    }

    /// Completes when the node is of no more use until it is started anew, with the error: a disk has failed, and it goes on
    /// from what the disk has; or its host has ended by a defect ([`Error::HostFailed`]). Never completes otherwise.
    pub async fn failed(&self) -> Error {
        self.shared.failed.stopped().await;
        self.shared.failure.get().cloned().unwrap_or(Error::Closed)
    }

    /// Stopped when nobody is served any more: it was stopped or dropped, or its host has ended by itself.
    pub fn ended(&self) -> &Stop {
        &self.shared.stop
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

/// Serves until the node ends; then nothing of it touches its directory, and another may have it.
async fn accept(shared: Arc<Shared>, outer: Stop, owned: Option<DataDirectory>) {
    while let Some(Some(accepted)) = outer.or_stopped(shared.stop.or_stopped(shared.host.accept())).await {
        match accepted {
            Ok(endpoint) => match shared.connections.try_acquire() {
                Some(permit) => drop(rt::spawn(serve(Arc::clone(&shared), endpoint, permit))),
                None => endpoint.close(),
            },
            Err(error) if error.kind() == ErrorKind::Closed => {
                // A host that has failed has said so before it closes.
                if let Poll::Ready(reason) = pin!(shared.host.failed()).poll(&mut Context::from_waker(Waker::noop())) {
                    tracing::error!(reason, "a memory node has lost its host");
                    let _ = shared.failure.set(Error::HostFailed(reason));
                    shared.failed.stop();
                }
                break;
            }
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
    drop(owned);
}

async fn serve(shared: Arc<Shared>, endpoint: Endpoint, permit: Permit) {
    shared.stop.or_stopped(converse(&shared, &endpoint)).await;
    endpoint.close();
    drop(permit);
}

/// Answers until the connection ends, or says what it must not.
async fn converse(shared: &Shared, endpoint: &Endpoint) {
    let mut group = None;
    let connection = rt::random_u64() | 1;
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
                let reply = perform(shared, endpoint.name(), connection, &mut group, request).await;
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

async fn perform(shared: &Shared, name: &str, connection: u64, group: &mut Option<GroupId>, request: Request) -> Reply {
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
            let admin = match admin(shared, kept, name).await {
                Ok(admin) => admin,
                Err(reason) => return refused(Refusal::Group, 0, reason),
            };
            *group = Some(id);
            let (life, is_persistent) = (shared.life, shared.is_persistent);
            Reply::Welcome { version: PROTOCOL_VERSION, is_persistent, life, admin }
        }
        Request::Keep { term, holder, admitted, writes } => match group.and_then(|id| shared.groups.get(&id)) {
            Some(kept) => keep(shared, kept, connection, Holder { term, holder, admitted }, writes).await,
            None => refused(Refusal::Malformed, 0, "hello first"),
        },
        Request::Fence { term, holder } => match group.and_then(|id| shared.groups.get(&id)) {
            Some(kept) => fence(shared, kept, name, connection, term, holder).await,
            None => refused(Refusal::Malformed, 0, "hello first"),
        },
    }
}

impl Shared {
    /// Refuses, and tells the owner of this node that it is to be started anew.
    fn disk_failed(&self, error: Error) -> Reply {
        let reply = refused(Refusal::NotKept, 0, error.to_string());
        if self.failure.set(error.clone()).is_ok() {
            tracing::error!(%error, "a memory node's disk has failed: the node is to be started again");
        }
        if !mutant(Mutant::StayFailed) {
            self.failed.stop();
        }
        reply
    }
}

/// A name's capability for a group's administrative words, the same each time.
async fn admin(shared: &Shared, kept: &Kept, name: &str) -> Result<Capability, String> {
    let mut admins = kept.admins.lock().await;
    if let Some(capability) = admins.get(name) {
        return Ok(*capability);
    }
    if admins.len() >= NAMES_MAX {
        return Err(format!("{NAMES_MAX} names have used this group's memory, as many as may"));
    }
    let capability = shared.host.grant(kept.words, Rights::ALL, name).map_err(|error| error.to_string())?;
    admins.insert(name.to_owned(), capability);
    Ok(capability)
}

/// Step 3 at the head of this module.
async fn fence(shared: &Shared, kept: &Kept, name: &str, connection: u64, term: Term, holder: u64) -> Reply {
    let mut reign = kept.reign.lock().await;
    if term < reign.term {
        return refused(Refusal::Fenced, reign.term.0, "a newer coordinator has the group's memory");
    }
    if term == reign.term && holder != reign.holder {
        return refused(Refusal::Disputed, term.0, "another coordinator has fenced under this term");
    }
    if let Some(disk) = &mut reign.disk
        && (disk.holder.term, disk.holder.holder) != (term, holder)
    {
        let admitted = disk.holder.admitted;
        if let Err(error) = disk.append(Holder { term, holder, admitted }, Vec::new()).await {
            return shared.disk_failed(error);
        }
    }
    reign.term = term;
    reign.holder = holder;
    reign.connection = connection;
    if let Some(before) = &reign.capability {
        let revoked = match rt::fault_point("consensus.node.unconfirmed") {
            true => Err(rma::Error::Ambiguous("a fault was injected")),
            false => shared.host.revoke(before).await,
        };
        match revoked {
            Ok(()) => {}
            Err(error) => return refused(Refusal::Unconfirmed, 0, error.to_string()),
        }
        // From here on nobody writes, until a capability is given.
        if let Some(disk) = &mut reign.disk
            && !mutant(Mutant::KeepUnsynced)
        {
            match disk.set_back(&*shared.host, kept.region).await {
                Ok(bytes) => tracing::debug!(bytes, "a memory node's memory is what its disk has"),
                Err(error) => return shared.disk_failed(error),
            }
        }
        reign.capability = None;
    }
    match shared.host.grant(kept.region, Rights::ALL, name) {
        Ok(region) => {
            reign.capability = Some(region);
            Reply::Fenced { region }
        }
        Err(error) => refused(Refusal::Unconfirmed, 0, error.to_string()),
    }
}

/// Step 4 at the head of this module.
async fn keep(shared: &Shared, kept: &Kept, connection: u64, asked: Holder, writes: Vec<(u64, Bytes)>) -> Reply {
    let mut reign = kept.reign.lock().await;
    if (asked.term, asked.holder, connection) != (reign.term, reign.holder, reign.connection) {
        return refused(Refusal::Fenced, reign.term.0, "a newer coordinator has the group's memory");
    }
    let Some(disk) = &mut reign.disk else {
        return refused(Refusal::NotKept, 0, "it keeps nothing on disk");
    };
    let admitted = asked.admitted || disk.holder.admitted;
    match disk.append(Holder { admitted, ..asked }, writes).await {
        Ok(()) => Reply::Kept,
        Err(error @ Error::Disk { .. }) => shared.disk_failed(error),
        Err(error) => refused(Refusal::NotKept, 0, error.to_string()),
    }
}
