//! Taking over: from an election won to a coordinator that serves (Sift, section 3.4.1, and the fence that it lacks).
//!
//! 1. Fence: every memory node that answers revokes whatever capability was given for its replicated region, and gives
//!    one to us. With a majority fenced, no earlier coordinator can commit any more. Call that moment *t*. Nodes without a vote
//!    are fenced too, but those with one are waited for until they are a majority: the others may hold nothing.
//!    Heartbeats begin with the election, so that nobody else stands while we are at work; each step has a bound.
//! 2. Read: headers and logs of the fenced nodes, piece by piece, for as long as they come. That they can be read after *t* proves
//!    that all of them were alive and fenced at once. Nodes without a header hold no copy, and nodes with one from before the
//!    group was made anew hold none of it ([`crate::format`]); a node whose header makes no sense counts as one that does not
//!    answer. Until there are copies of a majority, all are waited for. Fewer: we stop, and say so.
//! 3. Reconcile ([`reconcile`]): the logs of those nodes whose header bears the greatest term are one log. It ends where no
//!    entry continues the chain, and is needed behind the entry that any node has applied last.
//! 4. Repair and adopt: each node whose own log has room for all that its copy lacks gets the entries that are not there,
//!    then a header with our term. With a majority done, all of the log is committed, under our term. (Any other node is
//!    copied now if there is no majority without it, else later in the background.)
//! 5. Replay: each adopted node's memory gets every write of the log, in order, then a header that says so.
//! 6. Get a lease of our own, and wait until that of every earlier coordinator has run out ([`Timing::lease_over`], counted from
//!    *t*). Then serve. Meanwhile a layer above may bring what it keeps in the memory into order ([`Unopened`]).
//!
//! Why nothing committed is lost. A committed entry is in the log of F+1 nodes whose header bore its coordinator's term (or
//! a later one) when it was acknowledged; its place is used again only when F+1 headers say that it is applied. Ours are
//! F+1 nodes, fenced after that, so one of them has the entry, or has it applied. No coordinator between the two can have
//! dropped it, by the same argument: each adopts the whole log of the greatest term before anything else counts. An entry of a
//! smaller term at a node that missed a takeover was not committed, or else the takeover has it too; so such logs are not
//! read. Writes reach memory only when they are committed: in step 5 after step 4, and in service after a majority has the
//! entry. So a copy that is behind lacks writes, and never has one too many.
//!
//! Why an adopted node can lead alone. Should we end here, the next takeover may find our term at one node only, and reads no
//! other's log. So that node's log must hold, by itself, every entry between what its header says is applied and the end.
//! It does after a repair whose entries fit into the log all at once. The logs of several nodes can come to more than that:
//! an old round of a node that has fallen behind leads on to the newer round of the others. Written into that node's log
//! the end would take the places of entries that its own header still needs; such a node is copied.
//!
//! Why a node that lost its memory does no harm. It has no header until a coordinator that had a majority without it has
//! copied everything to it (step 5 at the head of [`crate::coordinator`]). Were it counted in a takeover both before the loss
//! and after it, then that coordinator had reached F+1 others after the loss, while at *t* F of the others were fenced from
//! it for good, and the lost node was alive: one of the two came first, and either excludes the other.
//!
//! A coded group ([`crate::coordinator`]) differs in two points. In step 4, nodes whose log does not lead to the end are left out:
//! nobody has what they lack, and F+1 others are needed. To find out, what lies before the leading logs' beginning is also looked
//! for in the other logs; it counts if it leads there. In step 5, each node gets its own share of each block.
//!
//! Why the memory may be used before the wait is over. Behind *t* an earlier coordinator commits nothing, and what it still answers is
//! what was committed before, or what stands at a node that nobody has fenced. The lease keeps *answers* of two coordinators apart: one
//! that acknowledged a write while another still read what was there before. So what nobody is told of needs no wait: to read, and
//! to write what says the same as before.
//!
//! Crashes between any two steps leave old copies with old headers and new ones with new headers, which is where the next
//! takeover begins.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::{self, Instant};
use futures_util::FutureExt as _;
use futures_util::future::Either;

use crate::coordinator::{Coordinator, Inheritance, Inherited, is_whole};
use crate::entry::Kind;
use crate::fault::{Mutant, crash_point, mutant};
use crate::layout::{Cursor, HEADS_BYTES, Header, Layout};
use crate::link::{Held, Link, NotFenced, PIECE_BYTES, Reign, within};
use crate::quorum::{gather, gather_until};
use crate::scan::{self, Log, Placed};
use crate::shares::Shares;
use crate::{Error, Group, Term, Timing};

/// Writes in flight to one node during a takeover.
const WINDOW: usize = 256;
/// Bytes that are copied, or kept by a persistent node, at once.
const COPY_BYTES: u64 = 1 << 18;

/// Whoever has won an election, before it has taken over.
pub struct Elected {
    group: Arc<Group>,
    node: u64,
    term: Term,
    /// Those that have answered, and whether each has a vote.
    nodes: Vec<(Arc<Link>, bool)>,
}

/// What a fenced node holds.
enum Found {
    Copy(Replica),
    /// No copy.
    Blank,
    /// What no release of this version writes.
    Strange(Error),
}

/// A fenced node that holds a copy.
struct Replica {
    held: Held,
    log: Log,
    /// The making of the group that it is a copy of.
    made: Term,
}

impl Elected {
    pub(crate) fn new(group: Arc<Group>, node: u64, term: Term, nodes: Vec<(Arc<Link>, bool)>) -> Elected {
        Elected { group, node, term, nodes }
    }

    /// The term that was won. No other processor wins it.
    pub fn term(&self) -> Term {
        self.term
    }

    /// Takes over; gives a coordinator that serves. Dropping the future is safe at any point, and leaves the group without
    /// a coordinator.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::NotElected`], [`Error::NoMajority`], [`Error::LeaseLost`]: stand for election again.
    /// [`Error::MemoryLost`]: too many copies are gone. [`Error::Corrupt`].
    pub async fn recover(self) -> Result<Coordinator, Error> {
        self.recover_unopened().await?.open().await
    }

    /// Takes over but for the wait: for whoever has something to bring into order before it answers anybody.
    ///
    /// # Errors
    /// As [`Elected::recover`].
    pub async fn recover_unopened(self) -> Result<Unopened, Error> {
        let (node, heartbeat, nodes) = (self.node, self.group.timing.heartbeat, self.nodes.clone());
        // Others are to see that somebody is at work, however long it takes; all of it has a bound.
        let beating = async move {
            loop {
                rt::sleep(heartbeat).await;
                let timestamp = rt::now().nanos();
                nodes.iter().for_each(|(link, _)| drop(link.beat(node, timestamp)));
            }
        };
        let recovering = self.take_over().boxed();
        match futures_util::future::select(recovering, beating.boxed()).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right((never, _)) => never,
        }
    }

    async fn take_over(self) -> Result<Unopened, Error> {
        let Elected { group, node, term, nodes: answering } = self;
        let timing: &Timing = &group.timing;
        let (majority, nodes) = (group.majority(), group.nodes.len());
        let holder = rt::random_u64();

        let outbid = AtomicBool::new(false);
        let fences = answering.into_iter().map(|(link, votes)| {
            let (group, outbid) = (&*group, &outbid);
            async move {
                match link.fence(group, term, holder).await {
                    Ok(region) => Some((Held { link, region, reign: Reign { term, holder } }, votes)),
                    Err(NotFenced::Newer(newer)) => {
                        tracing::debug!(slot = link.slot, %term, %newer, "a newer coordinator was faster");
                        outbid.store(true, Ordering::Relaxed);
                        None
                    }
                    Err(NotFenced::Unknown(error)) => {
                        tracing::debug!(slot = link.slot, %error, "not fenced");
                        None
                    }
                }
            }
        });
        let is_enough = |fenced: &[(Held, bool)]| fenced.iter().filter(|(_, votes)| *votes).count() >= majority;
        let fenced: Vec<(Held, bool)> = gather_until(fences, is_enough, timing.grace, timing.answer_max).await;
        if outbid.load(Ordering::Relaxed) {
            return Err(Error::Fenced(term));
        }
        if fenced.len() < majority {
            return Err(Error::NoMajority { answering: fenced.len(), needed: majority, nodes });
        }
        crash_point("consensus.takeover.fenced").await;
        let fenced_at = rt::now();

        let reads = fenced.into_iter().map(|(held, _)| read(&group, held));
        let is_enough = |found: &[Found]| newest(found).1 >= majority;
        let found = gather_until(reads, is_enough, timing.grace, moving_log_max(&group)).await;
        let made = newest(&found).0;
        let (mut replicas, mut blank, mut strange) = (Vec::new(), 0, Vec::new());
        for found in found {
            match found {
                Found::Copy(replica) => replicas.push(replica),
                Found::Blank => blank += 1,
                Found::Strange(error) => strange.push(error),
            }
        }
        if !mutant(Mutant::CountOldCopies) {
            let copies = replicas.len();
            replicas.retain(|replica| replica.made == made);
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
        // Whatever the order of their answers, a seed takes the same way.
        replicas.sort_by_key(|replica| replica.held.link.slot);

        let logs: Vec<Log> = replicas.iter().map(|replica| replica.log.clone()).collect();
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
        let inheritance =
            Inheritance { made, end: reconciled.end, kept: reconciled.kept, entries: reconciled.tail, inherited };
        let coordinator = Coordinator::begin(group, node, term, holder, inheritance).await?;
        Ok(Unopened { coordinator, fenced_at, wait })
    }
}

/// A coordinator that has the memory while the lease of an earlier one may stand. Nobody is to be answered yet.
pub struct Unopened {
    coordinator: Coordinator,
    fenced_at: Instant,
    wait: Duration,
}

impl Unopened {
    /// Waits until no earlier lease stands; gives a coordinator that serves.
    ///
    /// # Errors
    /// It has ended meanwhile: stand for election again.
    pub async fn open(self) -> Result<Coordinator, Error> {
        rt::sleep(self.wait.saturating_sub(self.fenced_at.elapsed())).await;
        self.coordinator.check_serving()?;
        Ok(self.coordinator)
    }

    /// For what nobody is told of.
    pub(crate) fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    pub(crate) fn into_coordinator_at_once(self) -> Coordinator {
        self.coordinator
    }
}

impl From<Coordinator> for Unopened {
    /// Of one that serves already.
    fn from(coordinator: Coordinator) -> Unopened {
        Unopened { coordinator, fenced_at: rt::now(), wait: Duration::ZERO }
    }
}

impl fmt::Debug for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unopened({:?})", self.coordinator)
    }
}

impl fmt::Debug for Elected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Elected({}, term {})", self.node, self.term)
    }
}

/// The newest making of which there are copies, and how many there are of it.
fn newest(found: &[Found]) -> (Term, usize) {
    let made = found.iter().filter_map(|found| match found {
        Found::Copy(replica) => Some(replica.made),
        Found::Blank | Found::Strange(_) => None,
    });
    let newest = made.clone().max().unwrap_or_default();
    (newest, made.filter(|made| *made == newest).count())
}

/// Reads what a node holds; `None` when it cannot be read.
async fn read(group: &Group, held: Held) -> Option<Found> {
    let (layout, patience) = (&group.layout, group.timing.answer_max);
    let headers = held.read_all(0, HEADS_BYTES, patience).await.ok()?;
    let newest = match Header::newest(&headers, layout) {
        Ok((Some(header), _)) if header.nodes as usize != group.nodes.len() => {
            Err(Error::Corrupt("a copy of a group with another number of memory nodes"))
        }
        newest => newest,
    };
    let (header, made) = match newest {
        Ok((Some(header), made)) => (header, made),
        Ok((None, _)) => return Some(Found::Blank),
        Err(error) => {
            tracing::error!(slot = held.link.slot, %error, "a memory node's copy is passed over");
            return Some(Found::Strange(error));
        }
    };
    let bytes = held.read_all(layout.log_at(0), layout.log_bytes, patience).await.ok()?;
    Some(Found::Copy(Replica { held, log: Log { header, bytes }, made }))
}

/// How long a step may take that moves a log: a piece of it within [`Timing::answer_max`].
fn moving_log_max(group: &Group) -> Duration {
    group.timing.answer_max * group.layout.log_bytes.div_ceil(PIECE_BYTES) as u32
}

/// What the logs come to.
pub(crate) struct Reconciled {
    /// Behind the entry that was applied last, at the node that is furthest, whatever the term of its header.
    pub base: Cursor,
    /// Which node that is.
    pub source: usize,
    /// The last entry.
    pub end: Cursor,
    /// The entries between the two.
    pub tail: Vec<Placed>,
    /// Up to here the log is no more needed once it is replayed: the last entry, or the one before the first record.
    pub kept: Cursor,
    /// What each node has not applied, if that leads to the end and fits into its log all at once.
    pub missing: Vec<Option<Vec<Placed>>>,
}

/// Step 3: makes one log of many.
pub(crate) fn reconcile(logs: &[Log], layout: &Layout) -> Result<Reconciled, Error> {
    let newest = logs.iter().map(|log| log.header.term).max().ok_or(Error::Corrupt("no log to read"))?;
    let leading: Vec<&Log> = logs.iter().filter(|log| log.header.term == newest).collect();
    let applied = |log: &&Log| log.header.applied.index;
    let from = leading.iter().copied().max_by_key(applied).expect("one bears the greatest term").header.applied;
    let entries = scan::all(from, &leading, layout);
    let end = entries.last().map_or(from, |placed| placed.after);
    let (source, furthest) = logs.iter().enumerate().max_by_key(|(_, log)| applied(log)).expect("there is one");
    let base = furthest.header.applied;
    let mut passed = std::iter::once(from).chain(entries.iter().map(|placed| placed.after));
    if passed.nth((base.index - from.index) as usize) != Some(base) {
        // It was committed, and should be in the logs that count.
        return Err(Error::Corrupt("a copy has applied what the newest logs do not hold"));
    }
    let tail: Vec<Placed> = entries.iter().filter(|placed| placed.entry.index > base.index).cloned().collect();
    let fits = |after: Cursor, entries: &[Placed]| scan::bytes(after.position, entries, layout) <= layout.log_bytes;
    if !fits(base, &tail) {
        return Err(Error::Corrupt("entries that no log has room for"));
    }
    let first_record = tail.iter().position(|placed| placed.entry.kind == Kind::Record);
    let kept = match first_record {
        Some(0) => base,
        Some(at) => tail[at - 1].after,
        None => end,
    };
    if !are_sound(&tail, layout) {
        return Err(Error::Corrupt("an entry of the log that writes beyond the memory, or a part of a coded block"));
    }
    let every: Vec<&Log> = logs.iter().collect();
    let missing = logs.iter().map(|log| {
        // Mostly it lacks the end of what was found already, or all of it.
        let applied = log.header.applied;
        let known = match applied == from {
            true => Some(0),
            false => entries.iter().position(|placed| placed.after == applied).map(|at| at + 1),
        };
        let mut missing = match known {
            Some(known) => entries[known..].to_vec(),
            None => scan::all(applied, &leading, layout),
        };
        if layout.is_coded() && log.header.applied.index < from.index {
            // What the leading logs were behind already counts wherever it stands, if it leads to where they begin: each
            // entry names the one before.
            let mut before = scan::all(log.header.applied, &every, layout);
            if let Some(at) = before.iter().position(|placed| placed.after == from) {
                before.truncate(at + 1);
                before.extend(entries.iter().cloned());
                missing = before;
            }
        }
        let reaches = missing.last().map_or(log.header.applied, |placed| placed.after);
        let is_near = reaches == end && fits(log.header.applied, &missing) && are_sound(&missing, layout);
        is_near.then_some(missing)
    });
    let missing = missing.collect();
    Ok(Reconciled { base, source, end, tail, kept, missing })
}

/// Whether the memory has what entries write; a coded one takes whole blocks.
fn are_sound(entries: &[Placed], layout: &Layout) -> bool {
    let writes = entries.iter().filter(|placed| placed.entry.kind == Kind::Writes);
    writes.flat_map(|placed| &placed.entry.writes).all(|write| {
        let until = write.address.checked_add(write.bytes.len() as u64);
        let is_there =
            write.address >= layout.direct_bytes && until.is_some_and(|until| until <= layout.address_bytes());
        is_there && (!layout.is_coded() || is_whole(write, layout.block_bytes))
    })
}

/// A node and the entries that are to be replayed on it.
type Adopted = (Held, Header, Vec<Placed>);

/// Step 4.
async fn adopt(
    group: &Group,
    term: Term,
    replicas: Vec<Replica>,
    blank: usize,
    reconciled: &Reconciled,
) -> Result<Vec<Adopted>, Error> {
    let timing = &group.timing;
    let majority = group.majority();
    let nodes = group.nodes.len();
    let source = replicas[reconciled.source].held.clone();
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for (replica, missing) in replicas.into_iter().zip(&reconciled.missing) {
        match missing {
            Some(missing) => near.push((replica, missing.clone())),
            None => far.push(replica),
        }
    }
    if group.layout.is_coded() {
        // The others are of no use: shares of blocks whose images the log has no more.
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
    let mut adopted = gather(near, majority, timing.grace, moving_log_max(group)).await;
    for replica in far {
        if adopted.len() >= majority {
            break;
        }
        // Without it there is no majority: it is made a copy of the one that is furthest.
        if copy(group, &source, &replica.held).await.is_err() {
            continue;
        }
        crash_point("consensus.takeover.copied").await;
        let log = Log { header: Header { applied: reconciled.base, ..replica.log.header }, ..replica.log };
        let replica = Replica { log, ..replica };
        let repaired = repair(group, term, &replica, reconciled.tail.clone(), reconciled);
        adopted.extend(rt::timeout(moving_log_max(group), repaired).await.ok().and_then(Result::ok));
    }
    if adopted.len() < majority {
        return Err(Error::NoMajority { answering: adopted.len(), needed: majority, nodes });
    }
    Ok(adopted)
}

/// Writes what a node's log lacks, then our term.
async fn repair(
    group: &Group,
    term: Term,
    replica: &Replica,
    missing: Vec<Placed>,
    reconciled: &Reconciled,
) -> Result<Adopted, rma::Error> {
    let lacking = missing.iter().filter(|placed| !replica.log.has(placed.offset, &placed.entry));
    let writes = lacking.map(|placed| (group.layout.log_at(placed.offset), placed.entry.raw.clone())).collect();
    write_all(group, &replica.held, writes).await?;
    crash_point("consensus.takeover.repaired").await;
    let header =
        Header { sequence: replica.log.header.sequence + 1, term, adopted: reconciled.end.index, ..replica.log.header };
    write_all(group, &replica.held, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await?;
    crash_point("consensus.takeover.adopting").await;
    Ok((replica.held.clone(), header, missing))
}

/// Step 5.
async fn replay(
    group: &Group,
    term: Term,
    adopted: Vec<Adopted>,
    reconciled: &Reconciled,
) -> Result<Vec<Inherited>, Error> {
    let (majority, shares) = (group.majority(), Shares::of(&group.layout));
    let replays = adopted.into_iter().map(|(held, header, missing)| async move {
        let writes = missing.iter().filter(|placed| placed.entry.kind == Kind::Writes);
        let writes = writes.flat_map(|placed| &placed.entry.writes);
        let writes = writes.map(|write| match shares {
            Some(shares) => (group.layout.share_at(write.address), shares.encode(held.link.slot, &write.bytes)),
            None => (group.layout.memory_at(write.address), write.bytes.clone()),
        });
        let writes = writes.collect();
        let replayed = async {
            write_all(group, &held, writes).await?;
            crash_point("consensus.takeover.replaying").await;
            let header = Header { sequence: header.sequence + 1, applied: reconciled.kept, ..header };
            write_all(group, &held, vec![(header.at(), Bytes::copy_from_slice(&header.encode()))]).await?;
            Ok::<u64, rma::Error>(header.sequence)
        };
        let sequence = replayed.await.inspect_err(|error| tracing::debug!(%error, "a copy is not replayed")).ok()?;
        Some(Inherited { held, sequence })
    });
    let replayed = gather(replays, majority, group.timing.grace, moving_log_max(group)).await;
    if replayed.len() < majority {
        tracing::debug!(%term, "too few copies were replayed");
        let nodes = group.nodes.len();
        return Err(Error::NoMajority { answering: replayed.len(), needed: majority, nodes });
    }
    Ok(replayed)
}

/// Copies the logged memory from one node to another. What direct writes have left stays on each as it is, so that a majority
/// still has what was acknowledged.
async fn copy(group: &Group, from: &Held, to: &Held) -> Result<(), rma::Error> {
    let layout = &group.layout;
    for address in (layout.direct_bytes..layout.address_bytes()).step_by(COPY_BYTES as usize) {
        let length = COPY_BYTES.min(layout.address_bytes() - address);
        let bytes = from.read_all(layout.memory_at(address), length, group.timing.answer_max).await?;
        write_all(group, to, vec![(layout.memory_at(address), bytes)]).await?;
    }
    Ok(())
}

/// Writes in order, with a bounded number in flight; completes when all are there, and on disk at a persistent node. Fails when
/// nothing arrives for [`Timing::answer_max`].
async fn write_all(group: &Group, held: &Held, writes: Vec<(u64, Bytes)>) -> Result<(), rma::Error> {
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
            within(first, patience).await?;
        }
        posted.push_back(held.write(at, &[bytes]));
    }
    held.link.endpoint.flush();
    for write in posted {
        within(write, patience).await?;
    }
    if !unkept.is_empty() {
        held.keep(group, false, unkept).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
