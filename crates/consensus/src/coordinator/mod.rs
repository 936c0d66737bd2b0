//! Coordinators: they serve the replicated memory while they hold a majority (Sift, sections 3.3 and 3.4.2).
//!
//! 1. A logged write locks its blocks, and is appended to the log of every live node with one verb each, in one piece with
//!    its index, the checksum of the entry before and its own. It is committed when a majority has it, and everything
//!    before it. Several writes can be one entry: they are committed together, and nothing that conflicts comes between.
//! 2. Committed entries are applied in the background: their bytes are posted to every live node's memory, and their
//!    blocks unlocked. Whoever needs a locked block, or room in the log, does so at once. When enough is applied, each node
//!    gets a header that says how far; what a majority's headers cover is room again.
//! 3. A read waits until its blocks are not locked and goes to one live node, behind the applied writes that were posted to
//!    it: verbs of one endpoint take effect in order. It is answered if the lease still stands then.
//! 4. Heartbeat: every [`crate::Timing::heartbeat`] each node gets node and timestamp into its administrative words, and a
//!    read under our capability of its replicated region (the probe). The lease stands for [`crate::Timing::lease`] from
//!    the moment at which the probes of a majority were posted. Without it the coordinator ends.
//! 5. A node whose verb fails is lost: it has no part in commits any more. In the background it is connected to again, and
//!    fenced under our own term, which ends what was still under way to it. If it still has
//!    its memory, and the log of a live node still leads on from what its header covers, then only the regions that those entries
//!    write are copied to it, those that were written since, and the direct area; otherwise everything. It goes region by
//!    region, those first that are written least. While a region is copied its blocks are not written; they are read all the
//!    time. From the beginning the node gets every new entry, and from its copying on the applied writes of a region.
//!    When all is copied, and at least [`crate::Timing::attempt_max`] has passed, F+1 *other* nodes are probed and asked for
//!    their terms. Then the node's term is raised to the greatest of those, its header written, its vote given back, and it
//!    counts again.
//!
//! Why at most one coordinator serves. A probe that succeeded had taken effect before that node was fenced by anybody
//! newer. A newer coordinator has F+1 nodes fenced at its moment *t*; one of them is among the F+1 whose probes our lease
//! stands on, so that they were posted before *t*. Our lease ends within its length from then, on a clock that is slow by
//! the bounded drift at most; the newer one serves later than that, on a clock that is fast by it at most.
//!
//! Why a node that was admitted counts. It holds what any live node holds: applied writes by the copy, or by themselves after
//! it; the others as entries. Writes that were appended before it came lock their blocks, so that no region is copied
//! before they are applied. Records have no blocks; those that the log still needs are written to the node first, many at once.
//!
//! Why a node may keep what it has: its memory holds what its header covers, and of later writes only committed ones. The
//! entries behind it, linked by their checksums, are in the log of a live node up to the one that was applied when the node
//! joined; writes that are applied from that moment on are noted until its regions are chosen. Blocks that none of them writes
//! are as they were.
//!
//! Ambiguous completions: a node whose verb is ambiguous is lost, as with any other failure, and its verb is never counted;
//! the fence of step 5, or that of the next coordinator, ends the doubt. A write whose coordinator ends before a majority
//! has it is [`Error::Ambiguous`] to its caller: the next takeover finds it, or not.
//!
//! # Coded groups
//!
//! With [`crate::Layout::data_shares`] above one, each node holds one share of every block of the logged memory, of which any F+1
//! make the block (Sift, section 5.1). Log and direct area are plain, so elections, fences, commits and records are as above.
//! What differs:
//! 1. Append: an entry has whole blocks. Writes of parts are made into whole blocks first ([`images`]).
//! 2. Apply: each live node is posted its own share of the block, in one verb.
//! 3. Read: the data shares that the range lies in, where their nodes are live and quick; otherwise the shares of the F+1
//!    nodes that are least behind, and what is missing is computed.
//! 4. Room: a place of the log is used again when the headers of *all* live nodes cover it, and all of them have answered a
//!    heartbeat that was posted after the last loss of a node.
//! 5. A node that comes back gets its own share of every block, made anew from F+1 others, region by region. It is admitted
//!    when every live node's header covers what was appended before it came.
//!
//! Why F+1 shares are always of one version. *While a coordinator serves*: a block that is not locked has had the same writes
//! posted to every live node, in the same order, and the reads of its shares are posted in one go behind them; verbs of one
//! endpoint take effect in order. A node of which one verb fails is not read any more. *When a coordinator has died*, shares
//! may be of any version since the one that a node's header covers. So shares are not compared at all: the next one brings
//! every node that it adopts up to the end of the log from *that node's* header, and the log has every version in between as
//! a whole block, from which any share can be made (steps 4 and 5 at the head of [`crate::takeover`]). Blocks that no such
//! entry writes are of the version that the header covers. Numbers or checksums beside the shares would tell versions apart, but
//! could not bring one back of which too few shares are left; with the images they are not needed.
//!
//! Why there are F+1 such nodes. Of the nodes that are live, all but F at most are left, so it is enough that each can be brought
//! up: every entry behind its header is in the log of each live node, by rule 4 and the second half of rule 5. A node that
//! was dropped does not count, as if it had lost its memory, until it is admitted again: what it needs may be overwritten. That
//! is the price of coding. A group that is not coded survives the loss of any F memories, whoever was cut off; of a coded one,
//! the nodes that were cut off for so long that they were dropped are among the F. The heartbeats of rule 4 keep the two from
//! falling together: nothing is overwritten on the word of nodes that were gone already when the other was dropped.
//!
//! # Persistent memory nodes
//!
//! 1. Whatever is posted to a persistent node is also sent to it in messages, in the same order, everything that has come together
//!    since the last at a time; it answers when its disk has it ([`crate::disk`]).
//! 2. Such a node has acknowledged a verb when the verb has completed *and* its disk has the write. Commits, headers and room in
//!    the log follow from what is acknowledged, as at any node.
//! 3. When too much waits for a disk ([`UNKEPT_BYTES_MAX`]), nothing more is appended until it has caught up or is lost.
//!
//! So with F+1 persistent nodes nothing that was committed is gone when all nodes lose their power at once: F others are then
//! blank, as many as a group survives, and those that are not blank have all that they have acknowledged. An entry that F
//! volatile nodes and one persistent one have is committed; of the F+1 that come back all are needed, that one among them. With
//! fewer persistent nodes the group is lost, and says so; those that it has speed nothing up and are waited for by nobody.
//!
//! Invariants:
//! * Nothing is applied that is not committed.
//! * Live nodes are posted the same verbs in the same order.
//! * Entries that are not covered by a majority's headers are never overwritten.
//! * Bounded: verbs to one node that have not completed ([`LAG_MAX`], beyond which it is lost), waiting callers
//!   ([`WAITING_MAX`]), and, by the log, entries.

mod images;
mod keeper;
mod state;

use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use base::rt::sync::Notify;
use base::rt::{self, Stop};
use base::{Bytes, BytesMut};
use rma::Completion;

use crate::entry::{self, Entry, Kind, Write};
use crate::guard::guarded;
use crate::layout::{Cursor, Layout};
use crate::link::Held;
use crate::quorum::gather;
use crate::scan::Placed;
use crate::{Error, Group, GroupId, Term};
pub(crate) use state::is_whole;
use state::{Fetch, Holding, Posting, Published, State, Step, Writes};

/// Verbs to one node that have not completed.
pub const LAG_MAX: usize = 2048;
/// Callers that wait for a lock or for room.
pub const WAITING_MAX: usize = 1 << 16;
/// Bytes that wait for the disk of one persistent node.
pub const UNKEPT_BYTES_MAX: u64 = 16 << 20;
/// How many heartbeats a read waits for one node before it asks another.
const READ_PATIENCE: u32 = 4;

/// What a takeover hands over.
pub(crate) struct Inheritance {
    /// The term under which the group was made.
    pub made: Term,
    /// The last entry.
    pub end: Cursor,
    /// The log is needed behind this.
    pub kept: Cursor,
    /// What the log held that was not applied everywhere, with the entries behind `kept`.
    pub entries: Vec<Placed>,
    /// The nodes that are up to date.
    pub inherited: Vec<Inherited>,
}

/// A node that is up to date, and the number of its last header.
pub(crate) struct Inherited {
    pub held: Held,
    pub sequence: u64,
}

/// A group's coordinator. Clones are the same one; it ends when the last is dropped, as if it had crashed.
#[derive(Clone)]
pub struct Coordinator {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

struct Alive(Arc<Shared>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.end(Error::Closed);
    }
}

pub(crate) struct Shared {
    group: Arc<Group>,
    node: u64,
    term: Term,
    holder: u64,
    /// Under which the group was made: no copy of another making is any here.
    made: Term,
    state: Mutex<State>,
    published: Arc<Published>,
    /// One a node: its phase has changed.
    changed: Vec<Notify>,
    stop: Stop,
    recovered: Vec<Entry>,
    /// The direct area is as it is to be: nodes may be copied from any live one.
    is_whole: AtomicBool,
}

/// A direct write that is on its way; later ones are greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Posted(u64);

/// How a coordinator is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status {
    /// Its term.
    pub term: Term,
    /// Memory nodes that hold all, and have their vote.
    pub live: usize,
    /// Memory nodes that are being copied to, or whose vote is being seen to.
    pub joining: usize,
    /// Memory nodes that are lost.
    pub lost: usize,
    /// How many more may be lost before nothing can be committed.
    pub spare: usize,
    /// The last entry that was committed.
    pub committed: u64,
    /// The last entry that was applied.
    pub applied: u64,
    /// Bytes of the log that are in use.
    pub log_used_bytes: u64,
    /// Bytes of memory that this coordinator has copied to memory nodes that came back.
    pub copied_bytes: u64,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    // A panic while it is held fails the process' tests; what is left is not used for anything but its end.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coordinator {
    /// Step 6 of a takeover: gets a lease and begins to serve.
    pub(crate) async fn begin(
        group: Arc<Group>,
        node: u64,
        term: Term,
        holder: u64,
        inheritance: Inheritance,
    ) -> Result<Coordinator, Error> {
        let posted_at = rt::now();
        let probes = inheritance.inherited.iter().map(|inherited| async {
            let probe = inherited.held.read(0, rma::WORD_BYTES);
            inherited.held.link.endpoint.flush();
            probe.await.ok().map(|_| inherited.held.link.slot)
        });
        let timing = &group.timing;
        let probed = gather(probes, group.majority(), timing.grace, timing.lease / 2).await;
        if probed.len() < group.majority() {
            return Err(Error::LeaseLost(term));
        }
        let recovered = inheritance.entries.iter().map(|placed| placed.entry.clone()).collect();
        let (slots, made) = (group.nodes.len(), inheritance.made);
        let is_whole = AtomicBool::new(group.layout.direct_bytes == 0);
        let state = State::new(&group, term, inheritance, &probed, posted_at);
        let shared = Arc::new(Shared {
            group,
            node,
            term,
            holder,
            made,
            published: Arc::clone(&state.published),
            state: Mutex::new(state),
            changed: (0..slots).map(|_| Notify::new()).collect(),
            stop: Stop::new(),
            recovered,
            is_whole,
        });
        let coordinator = Coordinator { _alive: Arc::new(Alive(Arc::clone(&shared))), shared: Arc::clone(&shared) };
        let ends = || {
            let shared = Arc::clone(&shared);
            move || shared.end(Error::Panicked("a task of a coordinator"))
        };
        rt::spawn(guarded(keeper::drive(Arc::clone(&shared)), ends()));
        for slot in 0..slots {
            rt::spawn(guarded(keeper::keep(Arc::clone(&shared), slot), ends()));
            rt::spawn(guarded(keeper::see_to_disk(Arc::clone(&shared), slot), ends()));
        }
        Ok(coordinator)
    }

    /// Its term.
    pub fn term(&self) -> Term {
        self.shared.term
    }

    /// Its group.
    pub fn group(&self) -> GroupId {
        self.shared.group.id
    }

    /// The sizes of its group.
    pub fn layout(&self) -> &Layout {
        &self.shared.group.layout
    }

    /// What the takeover found in the log: the entries that no majority's headers covered, in order. A log of records
    /// begins where it was trimmed.
    pub fn recovered(&self) -> &[Entry] {
        &self.shared.recovered
    }

    /// How it is.
    pub fn status(&self) -> Status {
        lock(&self.shared.state).status()
    }

    /// Whether it serves now: it has not ended, and its lease stands.
    pub fn is_serving(&self) -> bool {
        self.check_serving().is_ok()
    }

    /// Completes when the coordinator has ended, with the reason.
    pub async fn ended(&self) -> Error {
        self.shared.stop.stopped().await;
        lock(&self.shared.state).ended().unwrap_or(Error::Closed)
    }

    /// Ends it. What is under way is ambiguous to its callers.
    pub fn step_down(&self) {
        self.shared.end(Error::Closed);
    }

    /// Reads `length` bytes at an address. Linearizable for logged memory. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that is not there, or longer than [`rma::TRANSFER_BYTES_MAX`]; [`Error::Fenced`],
    /// [`Error::LeaseLost`], [`Error::Closed`] when it does not serve any more.
    pub async fn read(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        match self.shared.group.layout.is_coded() {
            true => self.shared.read_coded(address, length).await,
            false => self.shared.read(address, length).await,
        }
    }

    /// Writes bytes at an address of the logged memory. Committed on return; gives the entry's index. When the future is
    /// dropped the write may still be committed.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Busy`] when too many wait; [`Error::Ambiguous`]; and as [`Coordinator::read`], in which
    /// case nothing was written.
    pub async fn write(&self, address: u64, bytes: Bytes) -> Result<u64, Error> {
        self.append(Writes::One(Write { address, bytes }), Kind::Writes).await
    }

    /// Writes several pieces at once: all are committed or none, and no conflicting write or read comes between them.
    ///
    /// # Errors
    /// As [`Coordinator::write`].
    pub async fn transact(&self, writes: Vec<Write>) -> Result<u64, Error> {
        self.append(Writes::Many(writes), Kind::Writes).await
    }

    /// Appends a record, which stays in the log until it is trimmed. Committed on return; gives its index.
    ///
    /// # Errors
    /// As [`Coordinator::write`]. With the log full of records this waits for [`Coordinator::trim`].
    pub async fn append_record(&self, bytes: Bytes) -> Result<u64, Error> {
        self.append(Writes::One(Write { address: 0, bytes }), Kind::Record).await
    }

    /// As [`Coordinator::append_record`], but returns when the record has its place and is on its way, with its index; records are
    /// committed in the order of their places, and [`Coordinator::confirm`] waits for that. The mark is kept with the record, as
    /// the address of its only write. When the future is dropped before it completes, nothing was posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], in which case nothing was written; [`Error::Invalid`]; [`Error::Busy`].
    pub async fn post_record(&self, mark: u64, bytes: Bytes) -> Result<(Posted, u64), Error> {
        let Posting { ticket, index, .. } =
            self.post(Writes::One(Write { address: mark, bytes }), Kind::Record).await?;
        Ok((Posted(ticket), index))
    }

    /// As [`Coordinator::transact`], but returns when the writes are on their way. What is posted is committed in that order, and
    /// [`Coordinator::confirm`] waits for it; reads wait by themselves. When the future is dropped before it completes, nothing was
    /// posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], in which case nothing was written; [`Error::Invalid`]; [`Error::Busy`].
    pub async fn post_transaction(&self, writes: Vec<Write>) -> Result<Posted, Error> {
        Ok(Posted(self.post(Writes::Many(writes), Kind::Writes).await?.ticket))
    }

    /// Gives up the records up to and with an index.
    pub fn trim(&self, index: u64) {
        lock(&self.shared.state).trim(index);
        self.shared.tell_changed();
    }

    /// From now on no room is made in the group's log, as if memory nodes were slow to be told how far they are: it fills up, whoever
    /// appends waits, and what a store has not applied fills up the store's own log. For measurements of what the next takeover
    /// finds; nothing undoes it.
    pub fn make_no_room(&self) {
        lock(&self.shared.state).makes_room = false;
    }

    /// Says that the direct area is as it is to be. What an earlier coordinator left there may be on some nodes and not on
    /// others: whoever uses the area reads it with [`Coordinator::read_each`], writes back what counts, and then calls this.
    /// Until then no memory node is taken back, since it would be copied from a node that may lack a part. Groups without a
    /// direct area need not.
    pub fn direct_is_whole(&self) {
        self.shared.is_whole.store(true, Ordering::Release);
        self.shared.changed.iter().for_each(Notify::notify_one);
    }

    /// Writes bytes into the direct area, without the log: a majority has them on return. See
    /// [`Coordinator::direct_is_whole`] for what becomes of them when the coordinator ends.
    ///
    /// # Errors
    /// As [`Coordinator::write`].
    pub async fn write_direct(&self, address: u64, bytes: Bytes) -> Result<(), Error> {
        let posted = self.post_direct(address, bytes).await?;
        self.confirm(posted).await
    }

    /// As [`Coordinator::write_direct`], but returns when the write is on its way. Direct writes take effect in the order in
    /// which they were posted: one that is confirmed has those before it at the same majority. When the future is dropped
    /// before it completes, nothing was posted.
    ///
    /// # Errors
    /// As [`Coordinator::read`], in which case nothing was written; [`Error::Busy`].
    pub async fn post_direct(&self, address: u64, bytes: Bytes) -> Result<Posted, Error> {
        let ticket = self.shared.step(|state| state.write_direct(address, &bytes)).await?;
        self.shared.tell_changed();
        Ok(Posted(ticket))
    }

    /// Waits until a majority has what was posted. Dropping the future is safe.
    ///
    /// # Errors
    /// [`Error::Ambiguous`].
    pub async fn confirm(&self, posted: Posted) -> Result<(), Error> {
        self.committed(posted.0).await
    }

    /// Whether it may answer now, as [`Coordinator::is_serving`], or why not.
    ///
    /// # Errors
    /// [`Error::Fenced`], [`Error::LeaseLost`], [`Error::Closed`].
    pub fn check_serving(&self) -> Result<(), Error> {
        if self.shared.published.is_leased() {
            return Ok(());
        }
        lock(&self.shared.state).check_lease()
    }

    /// Reads the same bytes from every live node that answers soon, a majority at least: what direct writes have left.
    ///
    /// # Errors
    /// As [`Coordinator::read`]; [`Error::NoMajority`].
    pub async fn read_each(&self, address: u64, length: usize) -> Result<Vec<BytesMut>, Error> {
        let (group, reads) = (&self.shared.group, self.shared.step(|state| state.read_each(address, length)).await?);
        let reads = reads.into_iter().map(|read| async move { read.await.ok() });
        let timing = &group.timing;
        let copies = gather(reads, group.majority(), timing.grace, timing.answer_max).await;
        lock(&self.shared.state).check_lease()?;
        if copies.len() < group.majority() {
            let (answering, needed, nodes) = (copies.len(), group.majority(), group.nodes.len());
            return Err(Error::NoMajority { answering, needed, nodes });
        }
        Ok(copies)
    }

    async fn append(&self, writes: Writes, kind: Kind) -> Result<u64, Error> {
        let Posting { ticket, index, committed } = self.post(writes, kind).await?;
        if !committed {
            self.committed(ticket).await?;
        }
        Ok(index)
    }

    async fn post(&self, writes: Writes, kind: Kind) -> Result<Posting, Error> {
        let layout = &self.shared.group.layout;
        entry::check(writes.as_slice(), layout.entry_bytes_max())?;
        let mut held = None;
        let mut writes = writes;
        if kind == Kind::Writes && layout.is_coded() {
            held = images::of(&self.shared, writes.as_slice()).await?;
        }
        if let Some(held) = &mut held {
            writes = Writes::Many(std::mem::take(&mut held.images));
        }
        let mut unheld = Holding(false);
        let holds = held.as_mut().map_or(&mut unheld, |held| &mut held.holding);
        let posting = self.shared.step(|state| state.append(&writes, kind, holds)).await?;
        self.shared.tell_changed();
        Ok(posting)
    }

    /// Whether a majority has what was posted.
    pub(crate) fn is_confirmed(&self, posted: Posted) -> bool {
        self.shared.published.is_committed(posted.0)
    }

    /// Waits until a majority has everything up to a ticket.
    async fn committed(&self, ticket: u64) -> Result<(), Error> {
        if self.shared.published.is_committed(ticket) {
            return Ok(());
        }
        poll_fn(|cx: &mut Context<'_>| {
            let mut state = lock(&self.shared.state);
            let woken = state.take_in(ticket, cx);
            let outcome = state.poll_committed(ticket, cx);
            drop(state);
            woken.wake();
            outcome
        })
        .await
    }

    /// Waits until everything that was committed is applied, and said to be in the headers of every live node; for tests.
    ///
    /// # Errors
    /// As [`Coordinator::read`].
    pub async fn settle(&self) -> Result<(), Error> {
        loop {
            let settled = {
                let mut state = lock(&self.shared.state);
                state.apply_all();
                state.check_lease()?;
                state.is_settled()
            };
            self.shared.tell_changed();
            if settled {
                return Ok(());
            }
            rt::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Shared {
    fn end(&self, error: Error) {
        lock(&self.state).end(error);
        self.stop.stop();
    }

    async fn read(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        loop {
            let (held, read) = self.step(|state| state.read(address, length)).await?;
            let outcome = match read.now() {
                Ok(outcome) => outcome,
                Err(read) => match rt::timeout(self.read_patience(), read).await {
                    Ok(outcome) => outcome,
                    Err(rt::Elapsed) => {
                        lock(&self.state).note_slow(&held);
                        continue;
                    }
                },
            };
            let mut state = lock(&self.state);
            match outcome {
                Ok(bytes) => {
                    state.check_lease()?;
                    return Ok(bytes);
                }
                Err(error) => state.lose(&held, &error),
            }
            drop(state);
            self.tell_changed();
        }
    }

    /// Reads the direct area as it is, and blocks from their shares.
    async fn read_coded(&self, address: u64, length: usize) -> Result<BytesMut, Error> {
        let direct = self.group.layout.direct_bytes.saturating_sub(address).min(length as u64) as usize;
        if length == 0 {
            return lock(&self.state).check_lease().map(|()| BytesMut::new());
        }
        let mut bytes = if direct > 0 { self.read(address, direct).await? } else { BytesMut::new() };
        if direct < length {
            bytes.extend_from_slice(&self.fetch(address + direct as u64, length - direct, false).await?);
        }
        Ok(bytes)
    }

    /// Reads bytes of a coded group's memory, whose blocks the caller may hold.
    async fn fetch(&self, address: u64, length: usize, is_held: bool) -> Result<BytesMut, Error> {
        loop {
            let fetch = self.step(|state| state.fetch(address, length, is_held)).await?;
            if let Some(bytes) = self.gathered(fetch, self.read_patience()).await {
                lock(&self.state).check_lease()?;
                return Ok(bytes);
            }
        }
    }

    /// What shares come to; `None` when a node that was read from failed.
    async fn gathered(&self, mut fetch: Fetch, patience: Duration) -> Option<BytesMut> {
        let mut given = Vec::with_capacity(fetch.reads.len());
        for (held, read) in std::mem::take(&mut fetch.reads) {
            given.push((held.link.slot, self.answer(&held, read, patience).await?));
        }
        Some(fetch.decode(&given))
    }

    /// A node's answer; `None` when it failed, and is lost, or took too long.
    async fn answer(&self, held: &Held, read: Completion<BytesMut>, patience: Duration) -> Option<BytesMut> {
        match rt::timeout(patience, read).await {
            Ok(Ok(bytes)) => return Some(bytes),
            Ok(Err(error)) => lock(&self.state).lose(held, &error),
            Err(rt::Elapsed) => lock(&self.state).note_slow(held),
        }
        self.tell_changed();
        None
    }

    fn read_patience(&self) -> Duration {
        self.group.timing.heartbeat * READ_PATIENCE
    }

    /// Does something with the state as soon as it can be done.
    async fn step<T>(&self, mut step: impl FnMut(&mut State) -> Result<Step<T>, Error>) -> Result<T, Error> {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            match step(&mut state)? {
                Step::Done(done) => return Poll::Ready(Ok(done)),
                Step::Blocked => {}
            }
            // What stands in the way may be no more than verbs that have completed, or entries to be applied.
            let woken = state.advance(cx);
            let outcome = step(&mut state).and_then(|outcome| match outcome {
                Step::Done(done) => Ok(Poll::Ready(done)),
                Step::Blocked => state.wait(cx).map(|()| Poll::Pending),
            });
            drop(state);
            // Also when this attempt has failed: nobody else wakes those that it has taken.
            woken.wake();
            outcome.map_or_else(|error| Poll::Ready(Err(error)), |waits| waits.map(Ok))
        })
        .await
    }

    /// Wakes the keepers of nodes whose phase has changed, and everybody when the coordinator has ended.
    fn tell_changed(&self) {
        if !self.published.take_changed() {
            return;
        }
        self.changed.iter().for_each(Notify::notify_one);
        if lock(&self.state).has_ended() {
            self.stop.stop();
        }
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coordinator({:?}, term {})", self.shared.group.id, self.shared.term)
    }
}
