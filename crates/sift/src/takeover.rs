//! Takeover: from a won election to a coordinator that serves (Sift, section 3.4.1, plus the fence that Sift lacks).
//!
//! 1. Fence: every memory node that answers revokes the capability that it last granted for its replicated region, and
//!    grants one to the new coordinator. Once a majority is fenced, no earlier coordinator can commit any more; call
//!    that moment *t*. The takeover also fences nodes without a vote. These may hold no copy, so the takeover waits for
//!    more fences, for a bounded time, until nodes with a vote are a majority. Heartbeats start with the election, so
//!    that no other CPU node stands for election during the takeover; each step has a time bound.
//! 2. Read: the coordinator reads the headers and logs of the fenced nodes, chunk by chunk, for as long as chunks
//!    arrive. Reading starts after *t*, once the coordinator waits for no further fences. A successful read proves that
//!    its node has stayed alive and fenced from its fence until the read. So all nodes that were read were alive and
//!    fenced at one moment, the start of the reading. A node without a header holds no copy. A node with a header of an
//!    earlier generation holds no copy of this generation ([`format`](mod@crate::format)). A node whose header is
//!    invalid counts as one that does not answer. The takeover waits for nodes until it has copies from a majority. If
//!    all nodes have answered or timed out and it has fewer copies, it ends and reports the reason.
//! 3. Reconcile ([`reconcile`]): the logs of the nodes whose header carries the greatest term are read as one log. This
//!    log ends where no entry continues the checksum chain. It must reach the newest position that any header reports
//!    as applied; otherwise the takeover fails with [`Error::Corrupt`]. For nodes that are behind, step 4 also uses
//!    entries before that position.
//! 4. Repair and adopt: a node is *near* if the logs have all entries that its memory lacks, and if its own log has
//!    space for all of them at once. The coordinator writes to the log of each near node those of these entries that
//!    the log lacks, and then a header with the coordinator's term: the node is *adopted*. Once a majority is adopted,
//!    the whole log is committed, under the new term. (Any other node gets a full copy: now if there is no majority
//!    without it, otherwise later, in the background.)
//! 5. Replay: the coordinator writes every write of the log to each adopted node's memory, in order, and then a header
//!    that records this.
//! 6. Get a lease, and wait until the lease of every earlier coordinator has run out ([`SiftTimeouts::lease_over`],
//!    counted from *t*). Then serve. During the wait a layer above may repair its data in the memory
//!    ([`RecoveredCoordinator`]).
//!
//! Why no committed entry is lost. A committed entry is in the log of F+1 nodes whose header carried the term of the
//! entry's coordinator (or a later term) when the entry was acknowledged. Its log space is reused only when F+1 headers
//! state that the entry is applied. The new coordinator has fenced F+1 nodes after the acknowledgement, so one of them
//! has the entry or has applied it. By the same argument, no coordinator between the entry's coordinator and the new
//! one can have dropped the entry: each of them adopts the whole log of the greatest term before it commits anything of
//! its own. The logs of nodes with a smaller term, which missed a takeover, are not read: every committed entry in them
//! is also in the log of that takeover. Writes reach memory only after they are committed: step 5 follows step 4, and a
//! serving coordinator applies a write only after a majority has its entry. So the memory of a copy that is behind
//! lacks writes, but contains committed writes only.
//!
//! Why one adopted node is enough for the next takeover. If this coordinator ends during step 4, the next takeover may
//! find its term at only one node, and then reads only that node's log. So that log must contain, by itself, every
//! entry that the node's header does not report as applied. It does if these entries fit into one log all at once. But
//! the logs of several nodes together can hold more entries than fit into one log. The log is a ring: a node that has
//! fallen behind still has entries of an older round, and the chain continues from them into the newer round at other
//! nodes. If the newest entries were written into the log of the node that is behind, they would overwrite entries that
//! this node's own header still needs. Such a node gets a full copy instead.
//!
//! Why a node that lost its memory does no harm. It gets a header again only after a coordinator that has a majority
//! without it has copied everything to it (step 5 at the head of [`crate::coordinator`]; call this coordinator the
//! copier). Suppose that one takeover counted the node both before the loss and after it. Then the copier had reached
//! F+1 other nodes after the loss, and the takeover had fenced F other nodes at *t*, before the loss. There are 2F
//! other nodes, so the two sets share a node. If the copier got its capability on that node before the takeover fenced
//! that node, the fence revoked the capability, and the copier cannot have reached the node after the loss. If the
//! copier got its capability later, the copier also has the newest capability on the lost node, to which it copies, so
//! the takeover cannot have read the lost node after the copy. Both cases contradict the supposition.
//!
//! An erasure-coded group ([`crate::coordinator`]) differs in two points. In step 4, a node is left out if no chain of
//! entries leads from its header's position to the end of the log. No log has the entries that this node lacks, so the
//! takeover needs F+1 other nodes. For this decision the takeover also looks in the logs of smaller terms for entries
//! before the start of the log of step 3; they count if their chain leads up to that start. In step 5, each node gets
//! its own shard of each block.
//!
//! Why the memory may be used before the wait is over. After *t* an earlier coordinator commits nothing. It may still
//! answer reads, with values that were committed before *t* or that it reads from a node that is not fenced. The wait
//! separates the *answers* of the two coordinators: without it, the new coordinator could acknowledge a write while the
//! earlier one still answers with the old value. So work of which no client learns needs no wait: reads, and writes
//! that do not change the content of the memory for clients.
//!
//! A crash between any two steps leaves old copies with old headers and new copies with new headers. The next takeover
//! can start from any such state.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::rt::{self, Instant};
use base::{Bytes, FenceToken};
use futures_util::FutureExt as _;
use futures_util::future::Either;

use crate::coordinator::{Coordinator, RecoveredNode, RecoveredState, covers_whole_blocks};
use crate::entry::EntryKind;
use crate::fault::{Mutant, crash_point, mutant};
use crate::layout::{CopyHeader, GroupLayout, HEADS_BYTES, LogCursor};
use crate::link::{CHUNK_BYTES, FenceError, FencedNode, MemoryNodeLink, with_timeout};
use crate::quorum::{gather, gather_until};
use crate::scan::{self, LocatedEntry, LogCopy};
use crate::shards::Shards;
use crate::{Error, SiftGroup, SiftTimeouts, Term};

/// Writes in flight to one node during a takeover.
const WINDOW: usize = 256;
/// Bytes that are copied, or persisted by a persistent node, at once.
const COPY_BYTES: u64 = 1 << 18;

/// The winner of an election, before its takeover.
pub struct ElectedStandby {
    group: Arc<SiftGroup>,
    node: u64,
    term: Term,
    /// The nodes that have answered, and whether each has a vote.
    nodes: Vec<(Arc<MemoryNodeLink>, bool)>,
}

/// What a fenced node holds.
enum CopyState {
    Copy(NodeCopy),
    /// No copy.
    Blank,
    /// Bytes that no release of this format version writes.
    Unreadable(Error),
}

/// A fenced node that holds a copy.
struct NodeCopy {
    node: FencedNode,
    log: LogCopy,
    /// The generation of the group that it is a copy of.
    format_term: Term,
}

impl ElectedStandby {
    pub(crate) fn new(
        group: Arc<SiftGroup>,
        node: u64,
        term: Term,
        nodes: Vec<(Arc<MemoryNodeLink>, bool)>,
    ) -> ElectedStandby {
        ElectedStandby { group, node, term, nodes }
    }

    /// The term that was won. No other CPU node wins it.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Takes over and returns a coordinator that serves. Dropping the future is safe at any point, and leaves the group
    /// without a coordinator.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::NotElected`], [`Error::NoMajority`], [`Error::LeaseLost`]: stand for election again.
    /// [`Error::MemoryLost`]: too many copies are lost. [`Error::Corrupt`].
    pub async fn recover(self) -> Result<Coordinator, Error> {
        self.recover_without_waiting().await?.open().await
    }

    /// Takes over without the final wait: for a caller that repairs its own data before it answers any client.
    ///
    /// # Errors
    /// As [`ElectedStandby::recover`].
    pub async fn recover_without_waiting(self) -> Result<RecoveredCoordinator, Error> {
        let (node, heartbeat, nodes) = (self.node, self.group.timing.heartbeat, self.nodes.clone());
        // Heartbeats show other CPU nodes that a takeover is running, however long it takes; every step of it has a
        // time bound.
        let beating = async move {
            loop {
                rt::sleep(heartbeat).await;
                let timestamp = rt::now().nanos();
                nodes.iter().for_each(|(link, _)| drop(link.heartbeat(node, timestamp)));
            }
        };
        let recovering = self.take_over().boxed();
        match futures_util::future::select(recovering, beating.boxed()).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((never, _)) => never,
        }
    }

    async fn take_over(self) -> Result<RecoveredCoordinator, Error> {
        let ElectedStandby { group, node, term, nodes: answering } = self;
        let timing: &SiftTimeouts = &group.timing;
        let (majority, nodes) = (group.majority(), group.nodes.len());
        let nonce = rt::random_u64();

        let superseded = AtomicBool::new(false);
        let fences = answering.into_iter().map(|(link, votes)| {
            let (group, outbid) = (&*group, &superseded);
            async move {
                match link.fence(group, term, nonce).await {
                    Ok(region) => Some((FencedNode { link, region, token: FenceToken { term, nonce } }, votes)),
                    Err(FenceError::Newer(newer)) => {
                        tracing::debug!(slot = link.slot, %term, %newer, "a newer coordinator was faster");
                        outbid.store(true, Ordering::Relaxed);
                        None
                    }
                    Err(FenceError::Unknown(error)) => {
                        tracing::debug!(slot = link.slot, %error, "not fenced");
                        None
                    }
                }
            }
        });
        let is_enough = |fenced: &[(FencedNode, bool)]| fenced.iter().filter(|(_, votes)| *votes).count() >= majority;
        let fenced: Vec<(FencedNode, bool)> = gather_until(fences, is_enough, timing.grace, timing.answer_max).await;
        if superseded.load(Ordering::Relaxed) {
            return Err(Error::Fenced(term));
        }
        if fenced.len() < majority {
            return Err(Error::NoMajority { answering: fenced.len(), needed: majority, nodes });
        }
        crash_point("consensus.takeover.fenced").await;
        let fenced_at = rt::now();

        let reads = fenced.into_iter().map(|(held, _)| read(&group, held));
        let is_enough = |found: &[CopyState]| newest(found).1 >= majority;
        let found = gather_until(reads, is_enough, timing.grace, log_read_timeout(&group)).await;
        let made = newest(&found).0;
        let (mut replicas, mut blank, mut strange) = (Vec::new(), 0, Vec::new());
        for found in found {
            match found {
                CopyState::Copy(replica) => replicas.push(replica),
                CopyState::Blank => blank += 1,
                CopyState::Unreadable(error) => strange.push(error),
            }
        }
        if !mutant(Mutant::CountOldCopies) {
            let copies = replicas.len();
            replicas.retain(|replica| replica.format_term == made);
            blank += copies - replicas.len();
        }
        if nodes - blank < majority {
            return Err(Error::MemoryLost { lost: blank, nodes });
        }
        if nodes - blank - strange.len() < majority
            && let Some(error) = strange.pop()
        {
            return Err(error);
        }
        if replicas.len() < majority {
            return Err(Error::NoMajority { answering: replicas.len(), needed: majority, nodes });
        }
        // The order of the answers must not matter, so that a simulation seed repeats the same run.
        replicas.sort_by_key(|replica| replica.node.link.slot);

        let logs: Vec<LogCopy> = replicas.iter().map(|replica| replica.log.clone()).collect();
        let reconciled = reconcile(&logs, &group.layout)?;
        tracing::info!(
            %term,
            copies = replicas.len(),
            from = reconciled.base.index,
            to = reconciled.end.index,
            "a coordinator takes over"
        );
        let replicas = adopt(&group, term, replicas, blank, &reconciled).await?;
        crash_point("consensus.takeover.adopted").await;
        let inherited = replay(&group, term, replicas, &reconciled).await?;
        crash_point("consensus.takeover.replayed").await;

        let wait = timing.lease_over();
        let inheritance = RecoveredState {
            format_term: made,
            end: reconciled.end,
            log_start: reconciled.log_start,
            entries: reconciled.tail,
            nodes: inherited,
        };
        let coordinator = Coordinator::start(group, node, term, nonce, inheritance).await?;
        Ok(RecoveredCoordinator { coordinator, fenced_at, wait })
    }
}

/// A coordinator that has the memory while the lease of an earlier one may still stand. It must not answer any client
/// yet.
pub struct RecoveredCoordinator {
    coordinator: Coordinator,
    fenced_at: Instant,
    wait: Duration,
}

impl RecoveredCoordinator {
    /// Waits until no earlier lease stands; returns a coordinator that serves.
    ///
    /// # Errors
    /// The coordinator has ended meanwhile: stand for election again.
    pub async fn open(self) -> Result<Coordinator, Error> {
        rt::sleep(self.wait.saturating_sub(self.fenced_at.elapsed())).await;
        self.coordinator.check_serving()?;
        Ok(self.coordinator)
    }

    /// The coordinator, for work that no client learns of.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The coordinator at once, while the lease of an earlier one may still stand: a planted mistake.
    #[cfg(debug_assertions)]
    pub fn into_coordinator_unchecked(self) -> Coordinator {
        self.coordinator
    }
}

impl From<Coordinator> for RecoveredCoordinator {
    /// For a coordinator that serves already.
    fn from(coordinator: Coordinator) -> RecoveredCoordinator {
        RecoveredCoordinator { coordinator, fenced_at: rt::now(), wait: Duration::ZERO }
    }
}

impl fmt::Debug for RecoveredCoordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecoveredCoordinator({:?})", self.coordinator)
    }
}

impl fmt::Debug for ElectedStandby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elected({}, term {})", self.node, self.term)
    }
}

/// The newest generation of which there are copies, and the number of its copies.
fn newest(found: &[CopyState]) -> (Term, usize) {
    let made = found.iter().filter_map(|found| match found {
        CopyState::Copy(replica) => Some(replica.format_term),
        CopyState::Blank | CopyState::Unreadable(_) => None,
    });
    let newest = made.clone().max().unwrap_or_default();
    (newest, made.filter(|made| *made == newest).count())
}

/// Reads what a node holds; `None` if the read fails.
async fn read(group: &SiftGroup, held: FencedNode) -> Option<CopyState> {
    let (layout, patience) = (&group.layout, group.timing.answer_max);
    let headers = held.read_all(0, HEADS_BYTES, patience).await.ok()?;
    let newest = match CopyHeader::newest(&headers, layout) {
        Ok((Some(header), _)) if header.nodes as usize != group.nodes.len() => {
            Err(Error::Corrupt("a copy of a group with another number of memory nodes"))
        }
        newest => newest,
    };
    let (header, made) = match newest {
        Ok((Some(header), made)) => (header, made),
        Ok((None, _)) => return Some(CopyState::Blank),
        Err(error) => {
            tracing::error!(slot = held.link.slot, %error, "a memory node's copy is passed over");
            return Some(CopyState::Unreadable(error));
        }
    };
    let bytes = held.read_all(layout.log_at(0), layout.log_bytes, patience).await.ok()?;
    Some(CopyState::Copy(NodeCopy { node: held, log: LogCopy { header, bytes }, format_term: made }))
}

/// How long a step that moves a log may take: [`SiftTimeouts::answer_max`] for each chunk.
fn log_read_timeout(group: &SiftGroup) -> Duration {
    group.timing.answer_max * group.layout.log_bytes.div_ceil(CHUNK_BYTES) as u32
}

/// The result of reconciling the logs.
pub(crate) struct ReconciledLog {
    /// The position after the last entry that is applied on the node that is furthest, whatever the term of its header.
    pub base: LogCursor,
    /// The index of that node.
    pub source: usize,
    /// The last entry.
    pub end: LogCursor,
    /// The entries between the two.
    pub tail: Vec<LocatedEntry>,
    /// After the replay the log is no longer needed up to here: the last entry, or the one before the first record.
    pub log_start: LogCursor,
    /// The entries that each node has not applied, if they lead to the end and fit into its log all at once.
    pub missing: Vec<Option<Vec<LocatedEntry>>>,
}

/// Step 3: merges the logs into one.
pub(crate) fn reconcile(logs: &[LogCopy], layout: &GroupLayout) -> Result<ReconciledLog, Error> {
    let newest = logs.iter().map(|log| log.header.term).max().ok_or(Error::Corrupt("no log to read"))?;
    let leading: Vec<&LogCopy> = logs.iter().filter(|log| log.header.term == newest).collect();
    let applied = |log: &&LogCopy| log.header.applied.index;
    let from = leading.iter().copied().max_by_key(applied).expect("one bears the greatest term").header.applied;
    let entries = scan::all(from, &leading, layout);
    let end = entries.last().map_or(from, |placed| placed.after);
    let (source, furthest) = logs.iter().enumerate().max_by_key(|(_, log)| applied(log)).expect("there is one");
    let base = furthest.header.applied;
    let mut passed = std::iter::once(from).chain(entries.iter().map(|placed| placed.after));
    if passed.nth((base.index - from.index) as usize) != Some(base) {
        // It was committed, and should be in the logs of the greatest term.
        return Err(Error::Corrupt("a copy has applied what the newest logs do not hold"));
    }
    let tail: Vec<LocatedEntry> = entries.iter().filter(|placed| placed.entry.index > base.index).cloned().collect();
    let fits =
        |after: LogCursor, entries: &[LocatedEntry]| scan::bytes(after.position, entries, layout) <= layout.log_bytes;
    if !fits(base, &tail) {
        return Err(Error::Corrupt("entries that no log has room for"));
    }
    let first_record = tail.iter().position(|placed| placed.entry.kind == EntryKind::Record);
    let kept = match first_record {
        Some(0) => base,
        Some(at) => tail[at - 1].after,
        None => end,
    };
    if !are_valid(&tail, layout) {
        return Err(Error::Corrupt("an entry of the log that writes beyond the memory, or a part of a coded block"));
    }
    let every: Vec<&LogCopy> = logs.iter().collect();
    let missing = logs.iter().map(|log| {
        // Usually it lacks the end of the entries that were found already, or all of them.
        let applied = log.header.applied;
        let known = match applied == from {
            true => Some(0),
            false => entries.iter().position(|placed| placed.after == applied).map(|at| at + 1),
        };
        let mut missing = match known {
            Some(known) => entries[known..].to_vec(),
            None => scan::all(applied, &leading, layout),
        };
        if layout.is_erasure_coded() && log.header.applied.index < from.index {
            // An entry from before the start of the logs of the greatest term counts in any log, if it leads up to that
            // start: each entry names the one before.
            let mut before = scan::all(log.header.applied, &every, layout);
            if let Some(at) = before.iter().position(|placed| placed.after == from) {
                before.truncate(at + 1);
                before.extend(entries.iter().cloned());
                missing = before;
            }
        }
        let reaches = missing.last().map_or(log.header.applied, |placed| placed.after);
        let is_near = reaches == end && fits(log.header.applied, &missing) && are_valid(&missing, layout);
        is_near.then_some(missing)
    });
    let missing = missing.collect();
    Ok(ReconciledLog { base, source, end, tail, log_start: kept, missing })
}

/// Whether all writes of the entries lie within the memory; an erasure-coded memory takes whole blocks only.
fn are_valid(entries: &[LocatedEntry], layout: &GroupLayout) -> bool {
    let writes = entries.iter().filter(|placed| placed.entry.kind == EntryKind::Writes);
    writes.flat_map(|placed| &placed.entry.writes).all(|write| {
        let until = write.address.checked_add(write.bytes.len() as u64);
        let is_there =
            write.address >= layout.unlogged_bytes && until.is_some_and(|until| until <= layout.address_bytes());
        is_there && (!layout.is_erasure_coded() || covers_whole_blocks(write, layout.block_bytes))
    })
}

/// A node, its header, and the entries to be replayed on it.
type AdoptedCopy = (FencedNode, CopyHeader, Vec<LocatedEntry>);

/// Step 4.
async fn adopt(
    group: &SiftGroup,
    term: Term,
    replicas: Vec<NodeCopy>,
    blank: usize,
    reconciled: &ReconciledLog,
) -> Result<Vec<AdoptedCopy>, Error> {
    let timing = &group.timing;
    let majority = group.majority();
    let nodes = group.nodes.len();
    let source = replicas[reconciled.source].node.clone();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for (replica, missing) in replicas.into_iter().zip(&reconciled.missing) {
        match missing {
            Some(missing) => near.push((replica, missing.clone())),
            None => far.push(replica),
        }
    }
    if group.layout.is_erasure_coded() {
        // The other nodes are of no use: they hold shards of blocks whose full images the log no longer has.
        let lost = blank + far.len();
        far.clear();
        if nodes - lost < majority {
            return Err(Error::MemoryLost { lost, nodes });
        }
    }
    let near = near.into_iter().map(|(replica, missing)| async move {
        let outcome = repair(group, term, &replica, missing, reconciled).await;
        outcome.inspect_err(|error| tracing::debug!(%error, "a copy is not adopted")).ok()
    });
    let mut adopted = gather(near, majority, timing.grace, log_read_timeout(group)).await;
    for replica in far {
        if adopted.len() >= majority {
            break;
        }
        // Without it there is no majority, so it becomes a copy of the node that is furthest.
        if copy(group, &source, &replica.node).await.is_err() {
            continue;
        }
        crash_point("consensus.takeover.copied").await;
        let log = LogCopy { header: CopyHeader { applied: reconciled.base, ..replica.log.header }, ..replica.log };
        let replica = NodeCopy { log, ..replica };
        let repaired = repair(group, term, &replica, reconciled.tail.clone(), reconciled);
        adopted.extend(rt::timeout(log_read_timeout(group), repaired).await.ok().and_then(Result::ok));
    }
    if adopted.len() < majority {
        return Err(Error::NoMajority { answering: adopted.len(), needed: majority, nodes });
    }
    Ok(adopted)
}

/// Writes the entries that a node's log lacks, then our term.
async fn repair(
    group: &SiftGroup,
    term: Term,
    replica: &NodeCopy,
    missing: Vec<LocatedEntry>,
    reconciled: &ReconciledLog,
) -> Result<AdoptedCopy, rma::Error> {
    let lacking = missing.iter().filter(|placed| !replica.log.has(placed.offset, &placed.entry));
    let writes = lacking.map(|placed| (group.layout.log_at(placed.offset), placed.entry.raw.clone())).collect();
    write_all(group, &replica.node, writes).await?;
    crash_point("consensus.takeover.repaired").await;
    let header = CopyHeader {
        sequence: replica.log.header.sequence + 1,
        term,
        adopted: reconciled.end.index,
        ..replica.log.header
    };
    write_all(group, &replica.node, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await?;
    crash_point("consensus.takeover.adopting").await;
    Ok((replica.node.clone(), header, missing))
}

/// Step 5.
async fn replay(
    group: &SiftGroup,
    term: Term,
    adopted: Vec<AdoptedCopy>,
    reconciled: &ReconciledLog,
) -> Result<Vec<RecoveredNode>, Error> {
    let (majority, shares) = (group.majority(), Shards::new(&group.layout));
    let replays = adopted.into_iter().map(|(held, header, missing)| async move {
        let writes = missing.iter().filter(|placed| placed.entry.kind == EntryKind::Writes);
        let writes = writes.flat_map(|placed| &placed.entry.writes);
        let writes = writes.map(|write| match shares {
            Some(shares) => (group.layout.shard_at(write.address), shares.encode(held.link.slot, &write.bytes)),
            None => (group.layout.memory_at(write.address), write.bytes.clone()),
        });
        let writes = writes.collect();
        let replayed = async {
            write_all(group, &held, writes).await?;
            crash_point("consensus.takeover.replaying").await;
            let header = CopyHeader { sequence: header.sequence + 1, applied: reconciled.log_start, ..header };
            write_all(group, &held, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await?;
            Ok::<u64, rma::Error>(header.sequence)
        };
        let sequence = replayed.await.inspect_err(|error| tracing::debug!(%error, "a copy is not replayed")).ok()?;
        Some(RecoveredNode { node: held, sequence })
    });
    let replayed = gather(replays, majority, group.timing.grace, log_read_timeout(group)).await;
    if replayed.len() < majority {
        tracing::debug!(%term, "too few copies were replayed");
        let nodes = group.nodes.len();
        return Err(Error::NoMajority { answering: replayed.len(), needed: majority, nodes });
    }
    Ok(replayed)
}

/// Copies the logged memory from one node to another. Each node keeps its own unlogged region, so that a majority still
/// has the unlogged writes that were acknowledged.
async fn copy(group: &SiftGroup, from: &FencedNode, to: &FencedNode) -> Result<(), rma::Error> {
    let layout = &group.layout;
    for address in (layout.unlogged_bytes..layout.address_bytes()).step_by(COPY_BYTES as usize) {
        let length = COPY_BYTES.min(layout.address_bytes() - address);
        let bytes = from.read_all(layout.memory_at(address), length, group.timing.answer_max).await?;
        write_all(group, to, vec![(layout.memory_at(address), bytes)]).await?;
    }
    Ok(())
}

/// Writes in order, with a bounded number in flight. Completes when all writes have arrived, and are on disk at a
/// persistent node. Fails when nothing arrives for [`SiftTimeouts::answer_max`].
async fn write_all(group: &SiftGroup, held: &FencedNode, writes: Vec<(u64, Bytes)>) -> Result<(), rma::Error> {
    let patience = group.timing.answer_max;
    let (mut posted, mut unkept, mut unkept_bytes) = (VecDeque::new(), Vec::new(), 0);
    for (at, bytes) in writes {
        if held.link.is_persistent {
            unkept_bytes += bytes.len() as u64;
            unkept.push((at, bytes.clone()));
            if unkept_bytes >= COPY_BYTES {
                held.keep(group, false, std::mem::take(&mut unkept)).await?;
                unkept_bytes = 0;
            }
        }
        if posted.len() >= WINDOW
            && let Some(first) = posted.pop_front()
        {
            held.link.endpoint.flush();
            with_timeout(first, patience).await?;
        }
        posted.push_back(held.write(at, &[bytes]));
    }
    held.link.endpoint.flush();
    for write in posted {
        with_timeout(write, patience).await?;
    }
    if !unkept.is_empty() {
        held.keep(group, false, unkept).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
