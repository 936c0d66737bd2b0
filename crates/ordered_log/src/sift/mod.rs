//! Ordering on passive memory nodes: each entry is one record of a [`sift::Coordinator`]'s log, and becomes deliverable once a
//! majority of the CPU nodes has it on disk.
//!
//! ```text
//!  CPU nodes    Standby, or Coordinator and leader        acceptor + log store (disk)  ◀── calls: fence, align, append
//!                    │ one record an entry                       ▲
//!  memory nodes      ▼                                           │ committed entries
//!               the group's log, in memory ──────────────────────┘
//! ```
//!
//! 1. Every CPU node runs an acceptor ([`acceptor`]) for its log store and a standby of the group. The node that wins an
//!    election starts to lead ([`leader`]) under the group's term, in steps 2 to 4.
//! 2. Fence: a majority of the acceptors, the leader's own among them, promise to accept nothing from an earlier term. Each
//!    acceptor reports the height of its log store and the term that adopted the log store last.
//! 3. Choose: among the fenced log stores, the leader chooses the one with the latest adoption, and the longest where several
//!    have that adoption. It makes its own log store equal to the chosen one, then appends the entries that the group's log has
//!    beyond it.
//! 4. Adopt: the leader makes each fenced log store equal to its own, on disk, and has the acceptor record that its term
//!    adopted it. Once a majority is adopted, all entries of the leader's log store are deliverable, and the node leads.
//! 5. The leader posts an entry to the group's log. When the entry is committed there, the leader sends it to all adopted log
//!    stores, in order and pipelined; each acceptor makes all entries that it has received durable with one sync. An entry is
//!    deliverable when a majority of CPU nodes has it on disk and the leader's own log store has it. If entries are committed
//!    and none becomes deliverable for long, the leader steps down: another node may reach more disks. Acceptors that appear
//!    while the term runs are fenced, and their log stores are made equal and adopted. Every append tells the acceptor how many
//!    entries are deliverable.
//! 6. The leader trims records from the group's log once they are on a majority of disks, except for the last such record. So
//!    the log shows up to which position a majority of disks once had all entries. If all log stores that a newly elected node
//!    hears of are shorter, since disks were replaced or restored, the node's engine ends: continuing would assign positions of
//!    delivered entries a second time.
//! 7. The group may lose the memory of so many memory nodes that its log cannot be read any more; a power failure takes the
//!    memory of all of them. A CPU node then makes a majority of acceptors promise the first term of the next generation, under
//!    a nonce of its own. This term is greater than any term that was ever used. Under it the CPU node reformats the group,
//!    with an empty log, on a majority of its memory nodes, as [`sift::format`](mod@sift::format) describes. The other memory nodes are
//!    re-admitted as blank ones, whatever they hold. The first formatting works the same way. If the CPU node ends during the
//!    reformatting, acceptors are left with a promise that no election reaches. A node that is elected then is rejected by
//!    them, and starts another generation, with a promise of the same kind.
//!
//! Why deliverable entries stay, and no other entry ever takes their position. The log stores are a replicated log with views.
//! Take an entry that became deliverable in term *t*: a majority of log stores, adopted in *t*, had it on disk before any of
//! them promised a greater term. By induction, every log store that is adopted in *t* or a later term has the entry. For the
//! leader of such a later term has heard from a majority of acceptors, so from one whose log store had the entry when it
//! promised. Among the log stores that the leader heard of, it chooses one with the latest adoption. That adoption is of *t* or
//! later, so the chosen log store has the entry. One case remains: a log store was being made equal to another one, and its
//! leader ended before it adopted a majority. The log store then still has its old adoption, and holds a prefix of the log that
//! this leader chose; every such prefix has all deliverable entries that the log store had before. So safety does not depend on
//! the group's log. That log only lets entries survive the leader that are committed and not yet on disks.
//!
//! Why the records of the group's log continue the chosen log store. A leader posts records only after its term has adopted a
//! majority of the log stores. If the group's memory was not lost since, the next leader finds all records that were not
//! trimmed, and hears of a log store that was adopted in that term or a later one. That log store has every entry before the
//! first remaining record, since only entries on a majority of disks are trimmed. If the memory was lost, the group's log is
//! empty. Where the log store and the group's log have the same position, the two entries are compared.
//!
//! Why a group may be reformatted without some of its memory nodes. The memory of the absent nodes is not needed: the
//! acceptors' promise came first, so no entry of an earlier term becomes deliverable any more, and deliverable entries are on
//! disks. That memory does no harm either. It does not count as a copy, since it has the number of another generation. A CPU
//! node may have been elected with the votes of the absent memory nodes, in a term that no other CPU node knows of. It cannot
//! start to lead with the entries of that log: terms of elections stay within a generation, and a majority of acceptors has
//! promised a term of the next one. Since every generation starts with such a promise, a node that hears from a majority of
//! acceptors knows the latest generation.
//!
//! When all memory is lost at once, the entries that were committed and not yet on a majority of disks are lost. None of these
//! was delivered. A *volatile* log delivers entries once they are committed in memory, so its users accept the loss of
//! delivered entries in this case. A takeover without a loss of memory loses nothing in a volatile log either.
//!
//! Invariants:
//! * Every delivered entry is in this node's log store and, unless the log is volatile, on a majority of disks.
//! * An acceptor accepts entries of one term at a time, into a log store that this term has adopted.
//! * Only failures of this node end its engine: a failure of its log store, or a panic. An invalid answer of another node
//!   counts as no answer. The exception is a leader's request to truncate entries that were delivered here. It shows that two
//!   CPU nodes have different logs, and this node's engine ends. (In a volatile log this can happen after all other nodes have
//!   lost their power. When this node starts again, it follows their log.)
//! * Bounded: entries in flight ([`IN_FLIGHT_MAX`]), messages to an acceptor ([`APPENDS_MAX`]) and the bytes of entries that it
//!   queues, connections.

mod acceptor;
mod client;
#[doc(hidden)]
pub mod fuzz;
mod leader;
mod message;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{Receiver, WatchReceiver, WatchSender, watch};
use base::rt::net::rpc::{self, Rejection, RpcHandler};
use base::rt::net::{self, GatherList, LinkAcceptor, Listener, Parties};
use base::rt::{self, CancellationToken, Task, guarded};
use base::{Bytes, ErrorKind};
use sift::{SiftGroup, Standby};

use super::{CpuNodeId, Leadership, LogStore, OrderedLog};
use crate::fault::crash_point;
use crate::{Error, Term};
use acceptor::{Acceptor, AcceptorQueue, QueuedRequest};
use leader::SiftLeader;
use message::{AcceptorRequest, FenceToken};

/// Entries that were appended and are not deliverable, or not durable in the leader's own log store.
pub const IN_FLIGHT_MAX: usize = 32;
/// Messages with entries in flight to one acceptor.
pub const APPENDS_MAX: usize = 4;
/// Requests in flight on one connection to an acceptor.
const REQUESTS_MAX: usize = 16;
/// Connections to an acceptor.
const CONNECTIONS_MAX: usize = 32;
/// Bytes that a record takes beside the entry.
const RECORD_BYTES: u64 = 64;

/// A CPU node of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuNode {
    /// Its number.
    pub id: CpuNodeId,
    /// The address of its acceptor.
    pub address: String,
}

/// The configuration of one CPU node's engine.
pub struct SiftConfig {
    /// The memory nodes, as this CPU node reaches them.
    pub group: SiftGroup,
    /// The number of this CPU node.
    pub me: CpuNodeId,
    /// All CPU nodes; the same list at each of them.
    pub cpu_nodes: Vec<CpuNode>,
    /// The log store of this CPU node.
    pub log_store: Arc<dyn LogStore>,
    /// Whether entries are delivered once they are committed in memory, before they are on disks.
    pub volatile: bool,
    /// The longest time that an acceptor may take to answer, its disk included.
    pub disk_timeout: Duration,
}

/// One CPU node's engine. See [the module](self).
pub struct SiftLog {
    shared: Arc<SiftLogCore>,
    tasks: Mutex<Vec<Task<()>>>,
}

struct SiftLogCore {
    group: SiftGroup,
    me: CpuNodeId,
    cpu_nodes: Vec<CpuNode>,
    log_store: Arc<dyn LogStore>,
    volatile: bool,
    disk_timeout: Duration,
    queue: AcceptorQueue,
    leadership: Arc<WatchSender<Leadership>>,
    deliverable: Arc<WatchSender<u64>>,
    leader: Mutex<Option<Arc<SiftLeader>>>,
    ended: Mutex<Option<Error>>,
    /// Ends every task of this engine.
    stop: CancellationToken,
}

impl SiftLog {
    /// Starts a CPU node: its acceptor answers on return.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a group or a list of CPU nodes that makes no sense; [`Error::Corrupt`] for the hard state of
    /// another engine; [`Error::NoAnswer`] when the acceptor's address is in use.
    pub async fn open(options: SiftConfig) -> Result<SiftLog, Error> {
        let SiftConfig { group, me, cpu_nodes: processors, log_store: journal, volatile, disk_timeout: disk_max } =
            options;
        let standby = Standby::new(group.clone(), me.0)?;
        let mine: Vec<&CpuNode> = processors.iter().filter(|neighbour| neighbour.id == me).collect();
        let [mine] = mine[..] else {
            return Err(Error::Invalid(format!("CPU node {me} must be named once among the CPU nodes of the log")));
        };
        let (role, safe) = (Arc::new(watch(Leadership::Following { leader: None }).0), Arc::new(watch(1).0));
        let entry_bytes_max = group.layout.entry_bytes_max() as usize;
        let queue_bytes_max = APPENDS_MAX * entry_bytes_max.max(leader::BATCH_BYTES as usize);
        let (queue, commands) = AcceptorQueue::new(REQUESTS_MAX * CONNECTIONS_MAX, queue_bytes_max);
        let keeper = Acceptor::new(Arc::clone(&journal), me, volatile, Arc::clone(&role), Arc::clone(&safe))?;
        let taken =
            |error: std::io::Error| Error::NoAnswer { address: mine.address.clone(), reason: error.to_string() };
        let listener = net::listen(&mine.address).await.map_err(taken)?;
        let shared = Arc::new(SiftLogCore {
            group,
            me,
            cpu_nodes: processors,
            log_store: journal,
            volatile,
            disk_timeout: disk_max,
            queue,
            leadership: role,
            deliverable: safe,
            leader: Mutex::default(),
            ended: Mutex::default(),
            stop: CancellationToken::new(),
        });
        let ends = |what| {
            let shared = Arc::clone(&shared);
            move || shared.end(Error::Panicked(what))
        };
        let tasks = vec![
            rt::spawn(guarded(run_acceptor(Arc::clone(&shared), keeper, commands), ends("the acceptor"))),
            rt::spawn(guarded(accept(Arc::clone(&shared), listener), ends("the port of the acceptor"))),
            rt::spawn(guarded(run_standby(Arc::clone(&shared), standby), ends("the standby"))),
        ];
        Ok(SiftLog { shared, tasks: Mutex::new(tasks) })
    }

    /// The state of the memory nodes, as the coordinator sees it; `None` while this CPU node does not lead.
    pub fn status(&self) -> Option<sift::CoordinatorStatus> {
        self.shared.leader().map(|lead| lead.coordinator().status())
    }
}

impl SiftLogCore {
    /// The number of log stores that make a majority.
    fn majority(&self) -> usize {
        self.cpu_nodes.len() / 2 + 1
    }

    fn leader(&self) -> Option<Arc<SiftLeader>> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_leader(&self, lead: Option<Arc<SiftLeader>>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = lead;
    }

    fn end(&self, error: Error) {
        if !matches!(error, Error::Closed) {
            tracing::error!(cpu_node = %self.me, %error, "the ordering engine of this CPU node has ended");
        }
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.stop.cancel();
    }

    /// Reports a follower without a known leader, unless a follower is reported already.
    fn set_following(&self) {
        self.leadership.send_if_modified(|role| {
            let led = matches!(role, Leadership::Leading { .. });
            if led {
                *role = Leadership::Following { leader: None };
            }
            led
        });
    }
}

/// Runs the acceptor.
async fn run_acceptor(shared: Arc<SiftLogCore>, keeper: Acceptor, commands: Receiver<QueuedRequest>) {
    let error = keeper.run(commands, shared.stop.clone()).await;
    shared.end(error);
}

/// Accepts connections to the acceptor.
async fn accept(shared: Arc<SiftLogCore>, listener: Listener) {
    // The transport admits the other CPU nodes and nobody else.
    let mut door = LinkAcceptor::new(listener, &Parties::anyone(), CONNECTIONS_MAX);
    let stop = shared.stop.clone();
    while let Some(Ok(accepted)) = stop.run_until_cancelled(door.accept()).await {
        let handler = Arc::new(AcceptorHandler { queue: shared.queue.clone() });
        let serving = rpc::serve_admitted(accepted, handler, REQUESTS_MAX, stop.clone());
        drop(rt::spawn(async move {
            let ended = serving.await;
            tracing::debug!(?ended, "a link to an acceptor ended");
        }));
    }
}

/// One connection.
struct AcceptorHandler {
    queue: AcceptorQueue,
}

impl RpcHandler for AcceptorHandler {
    fn request(&self, request: GatherList) -> rpc::ResponseFuture {
        let queued =
            AcceptorRequest::decode(request.concat()).and_then(|(token, command)| self.queue.try_send(token, command));
        Box::pin(async move {
            let answered = match queued {
                Ok(answered) => answered,
                Err(Error::Busy) => return Err(Rejection::new(ErrorKind::Retry, "the acceptor is busy")),
                Err(Error::Closed) => return Err(Rejection::new(ErrorKind::Closed, "the acceptor has ended")),
                Err(error) => return Err(Rejection::new(ErrorKind::Rejected, error.to_string())),
            };
            match answered.await {
                Ok(Ok(answer)) => Ok(answer.encode()),
                Ok(Err(error)) => Err(Rejection::new(error.kind(), error.to_string())),
                Err(_) => Err(Rejection::new(ErrorKind::Closed, "the acceptor has ended")),
            }
        })
    }
}

/// Stands by, leads, stands by again.
async fn run_standby(shared: Arc<SiftLogCore>, mut standby: Standby) {
    let stop = shared.stop.clone();
    if let Some(error) = stop.run_until_cancelled(campaign(&shared, &mut standby)).await {
        shared.end(error);
    }
    if let Some(lead) = shared.leader() {
        lead.end();
    }
    shared.set_leader(None);
    shared.set_following();
}

/// Returns the error that ends the engine.
async fn campaign(shared: &Arc<SiftLogCore>, standby: &mut Standby) -> Error {
    loop {
        let outcome = match standby.take_over().await {
            Ok(coordinator) => match leader::lead(shared, coordinator).await {
                Err(error @ Error::Fenced(_)) => raise_terms(shared).await.and(Err(error)),
                outcome => outcome,
            },
            Err(sift::Error::MemoryLost { lost, nodes }) => {
                tracing::info!(cpu_node = %shared.me, lost, nodes, "the memory nodes of the group have lost their contents");
                reformat(shared).await
            }
            Err(error) => Err(error.into()),
        };
        shared.set_leader(None);
        shared.set_following();
        match outcome {
            Ok(()) => {}
            Err(error @ (Error::Corrupt(_) | Error::LogStore(_) | Error::Closed)) => return error,
            Err(error) => tracing::info!(cpu_node = %shared.me, %error, "not elected"),
        }
        standby.back_off().await;
    }
}

/// Step 7 at the head of this module.
async fn reformat(shared: &Arc<SiftLogCore>) -> Result<(), Error> {
    let nobody = FenceToken::default();
    let looked = leader::query_acceptors(shared, nobody, AcceptorRequest::GetStatus).await?;
    let promised = looked.iter().map(|heard| heard.promised);
    let links = sift::format::connect_majority(&shared.group).await?;
    // Memory nodes hold no greater term, unless the orderers were created again on memory nodes that were in use before.
    let greatest = promised.chain([links.term_max()]).max().unwrap_or_default();
    let term = greatest.next_generation().ok_or(crate::LAST_TERM)?;
    let token = FenceToken { term, nonce: rt::random_u64() };
    leader::query_acceptors(shared, token, AcceptorRequest::Fence { leader: shared.me.0 }).await?;
    crash_point("consensus.reformat.promised").await;
    sift::format::reformat(&shared.group, links, token.term, token.nonce).await?;
    tracing::info!(cpu_node = %shared.me, %term, "the group was reformatted");
    Ok(())
}

/// Acceptors reject the term in which this node was elected. If no memory node has reached the term that they have promised, a
/// node that reformatted the group ended before it was done, and no election would ever reach that term: elections then
/// continue in a new generation.
async fn raise_terms(shared: &Arc<SiftLogCore>) -> Result<(), Error> {
    let looked = leader::query_acceptors(shared, FenceToken::default(), AcceptorRequest::GetStatus).await?;
    let promised = looked.iter().map(|heard| heard.promised).max().unwrap_or_default();
    let links = sift::format::connect_majority(&shared.group).await?;
    if links.term_max() >= promised {
        return Ok(());
    }
    // As when the group is reformatted: a generation starts with a promise of a majority.
    let token = FenceToken { term: promised.next_generation().ok_or(crate::LAST_TERM)?, nonce: rt::random_u64() };
    leader::query_acceptors(shared, token, AcceptorRequest::Fence { leader: shared.me.0 }).await?;
    sift::format::raise_terms(&shared.group, links, token.term).await?;
    tracing::info!(cpu_node = %shared.me, term = %token.term, "elections continue above the terms that acceptors have promised");
    Ok(())
}

#[async_trait]
impl OrderedLog for SiftLog {
    fn leadership(&self) -> WatchReceiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        self.shared.deliverable.subscribe()
    }

    async fn append(&self, term: Term, position: u64, entry: Bytes) -> Result<(), Error> {
        super::check(&entry, self.entry_bytes_max())?;
        match self.shared.leader() {
            Some(lead) => {
                let appended = self.shared.stop.run_until_cancelled(lead.append(term, position, entry)).await;
                appended.unwrap_or(Err(Error::Closed))
            }
            None if self.shared.stop.is_cancelled() => Err(Error::Closed),
            None => Err(Error::Fenced(term)),
        }
    }

    fn entry_bytes_max(&self) -> usize {
        (self.shared.group.layout.entry_bytes_max() - RECORD_BYTES) as usize
    }

    async fn ended(&self) -> Error {
        self.shared.stop.cancelled().await;
        self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Error::Closed)
    }

    async fn stop(&self) {
        self.shared.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            // A task is aborted only together with the runtime.
            let _ = task.await;
        }
    }
}

impl fmt::Debug for SiftLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sift({} of {:?})", self.shared.me, self.shared.group)
    }
}

#[cfg(test)]
mod tests;
