//! One orderer's log on memory nodes: it leads, or stands by and follows the leader.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use base::rt::channel::{Receiver, WatchReceiver, watch};
use base::rt::net::rpc::{Rejection, RpcHandler};
use base::rt::net::{GatherList, LinkAcceptor, Listener, Parties, rpc};
use base::rt::{CancellationToken, Task, guarded, net};
use base::{Bytes, ErrorKind, FenceToken, rt};
use sift::Standby;

use super::acceptor::{Acceptor, AcceptorQueue, QueuedRequest};
use super::config::{CpuNode, SiftConfig};
use super::limits::{APPENDS_MAX, CONNECTIONS_MAX, RECORD_BYTES, REQUESTS_MAX};
use super::log_core::SiftLogCore;
use super::message::AcceptorRequest;
use crate::fault::crash_point;
use crate::{Error, Leadership, OrderedLog, Term};

/// One CPU node's engine. See [the module](self).
pub struct SiftLog {
    pub(super) shared: Arc<SiftLogCore>,
    tasks: Mutex<Vec<Task<()>>>,
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
        let queue_bytes_max = APPENDS_MAX * entry_bytes_max.max(super::limits::BATCH_BYTES as usize);
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

/// Runs the acceptor.
pub(super) async fn run_acceptor(shared: Arc<SiftLogCore>, keeper: Acceptor, commands: Receiver<QueuedRequest>) {
    let error = keeper.run(commands, shared.stop.clone()).await;
    shared.end(error);
}

/// Accepts connections to the acceptor.
pub(super) async fn accept(shared: Arc<SiftLogCore>, listener: Listener) {
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
pub(super) struct AcceptorHandler {
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
pub(super) async fn run_standby(shared: Arc<SiftLogCore>, mut standby: Standby) {
    let stop = shared.stop.clone();
    if let Some(error) = stop.run_until_cancelled(campaign(&shared, &mut standby)).await {
        shared.end(error);
    }
    if let Some(lead) = shared.leader() {
        lead.end();
    }
    shared.set_leader(Weak::new());
    shared.set_following();
}

/// Returns the error that ends the engine.
pub(super) async fn campaign(shared: &Arc<SiftLogCore>, standby: &mut Standby) -> Error {
    loop {
        let outcome = match standby.take_over().await {
            Ok(coordinator) => match super::leader::lead(shared, coordinator).await {
                Err(error @ Error::Fenced(_)) => raise_terms(shared).await.and(Err(error)),
                outcome => outcome,
            },
            Err(sift::Error::MemoryLost { lost, nodes }) => {
                tracing::info!(cpu_node = %shared.me, lost, nodes, "the memory nodes of the group have lost their contents");
                reformat(shared).await
            }
            Err(error) => Err(error.into()),
        };
        shared.set_leader(Weak::new());
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
pub(super) async fn reformat(shared: &Arc<SiftLogCore>) -> Result<(), Error> {
    let nobody = FenceToken::default();
    let looked = super::recovery::query_acceptors(shared, nobody, AcceptorRequest::GetStatus).await?;
    let promised = looked.iter().map(|heard| heard.promised);
    let links = sift::format::connect_majority(&shared.group).await?;
    // Memory nodes hold no greater term, unless the orderers were created again on memory nodes that were in use before.
    let greatest = promised.chain([links.term_max()]).max().unwrap_or_default();
    let term = greatest.next_generation().ok_or(crate::LAST_TERM)?;
    let token = FenceToken { term, nonce: rt::random_u64() };
    super::recovery::query_acceptors(shared, token, AcceptorRequest::Fence { leader: shared.me.0 }).await?;
    crash_point("consensus.reformat.promised").await;
    sift::format::reformat(&shared.group, links, token.term, token.nonce).await?;
    tracing::info!(cpu_node = %shared.me, %term, "the group was reformatted");
    Ok(())
}

/// Acceptors reject the term in which this node was elected. If no memory node has reached the term that they have promised, a
/// node that reformatted the group ended before it was done, and no election would ever reach that term: elections then
/// continue in a new generation.
pub(super) async fn raise_terms(shared: &Arc<SiftLogCore>) -> Result<(), Error> {
    let looked = super::recovery::query_acceptors(shared, FenceToken::default(), AcceptorRequest::GetStatus).await?;
    let promised = looked.iter().map(|heard| heard.promised).max().unwrap_or_default();
    let links = sift::format::connect_majority(&shared.group).await?;
    if links.term_max() >= promised {
        return Ok(());
    }
    // As when the group is reformatted: a generation starts with a promise of a majority.
    let token = FenceToken { term: promised.next_generation().ok_or(crate::LAST_TERM)?, nonce: rt::random_u64() };
    super::recovery::query_acceptors(shared, token, AcceptorRequest::Fence { leader: shared.me.0 }).await?;
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
        super::super::check(&entry, self.entry_bytes_max())?;
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
