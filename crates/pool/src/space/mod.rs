//! Address spaces: one owner's flat 64-bit space, made of sections that donors gave.
//!
//! 1. [`AddressSpace::open`] connects to every donor as the owner and fences, under the owner's new epoch, whoever held its
//!    memory before: the donor revokes their capabilities and takes their sections back before it answers. A donor that
//!    cannot be reached is tried again in the background, for as long as the space lives.
//! 2. [`AddressSpace::grow`] asks the donor with most room for a section and enters it into the [section table](table).
//! 3. A verb looks its address up and goes to the section's endpoint with the section's capability. That is all the code
//!    of this crate on the data path.
//! 4. When a donor's connection ends, or a verb shows that the donor does not know its capability any more, the donor's
//!    sections are lost, all at once and for good: verbs fail with [`rma::Error::Closed`], [`AddressSpace::lost`] tells
//!    once. We do not try to resume them: verbs in flight when a connection breaks may still take effect, which only a
//!    revocation ends.
//! 5. On each new connection, the same holder fences again and gives back everything that the donor lists. On a connection
//!    that lasts, it does so with what is unknown to it, whenever an answer did not come in time (a sweep).
//!
//! Invariants:
//! * Address 0 is never given, and no address and no [`SectionId`] is given twice: a space that has used up its addresses is
//!   opened anew.
//! * Sections and those being asked for stay within the space's budget.
//! * A section is live, released or lost; it is live once, and reported lost at most once.
//! * When a section is not in the table, its donor has taken it back or the link is due for a sweep or has ended.
//!
//! Other compute nodes of the owner read the same sections through a [`LentSpace`], with capabilities that this space asks
//! for ([`AddressSpace::share`]) and that end with the section, with its epoch, or by themselves.
//!
//! What the bytes mean, and what to do after a loss, is left to the layers above.

mod keeper;
mod lent;
mod link;
mod table;

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use base::bytes::{Bytes, BytesMut};
use base::rt::channel::oneshot;
use base::rt::sync::Notify;
use base::rt::{self, Stop};
use base::{Epoch, ErrorKind};
use rma::{Completion, Fabric, Token};

use crate::events::{DonorsFoundSilent, GrowTime, SectionsGrown, SectionsLost, SpaceBytes};
use crate::message::{Refusal, Reply, Request};
use crate::{Error, OWNER_BYTES_MAX, check_section_bytes};
pub use lent::{Lent, LentSpace, LentSpaceOptions};
use link::{Link, Turn};
pub use table::SECTIONS_EVER_MAX;
use table::{Entry, State, Table};

/// Donors of one space.
pub const DONORS_MAX: usize = 1024;
/// How long a donor may take to answer a request.
pub const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How long a donor may take to say how much room it has.
const ROOM_ANSWER_MAX: Duration = Duration::from_secs(1);
/// What a donor said about its room is believed for so long.
const ROOM_AGE_MAX: Duration = Duration::from_secs(1);

/// What an address space is made of.
#[derive(Clone)]
pub struct SpaceOptions {
    /// Whose memory: the name that donors know.
    pub owner: String,
    /// Greater than any epoch under which this owner's memory was held before.
    pub epoch: Epoch,
    /// How donors are reached.
    pub fabric: Arc<dyn Fabric>,
    /// Who may give sections.
    pub donors: Vec<Donor>,
    /// Bytes of a section: the same as at the donors.
    pub section_bytes: u64,
    /// Bytes of sections that the space may have.
    pub budget_bytes: u64,
}

/// A memory node, and what proves to it who we are.
#[derive(Clone, Debug)]
pub struct Donor {
    /// Where it is.
    pub address: String,
    /// The secret that it shares with the owner.
    pub token: Token,
}

/// The number of a section, never used twice in a space's life; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SectionId(pub u32);

/// A section of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Which.
    pub id: SectionId,
    /// The first address.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Sections that are gone, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Which; in order. None when a space without sections was fenced.
    pub sections: Vec<SectionId>,
    /// Whose they were.
    pub donor: String,
    /// Why.
    pub reason: LossReason,
}

/// Why sections are gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// The connection to the donor ended.
    Disconnected,
    /// The donor does not know the capabilities any more.
    Revoked,
    /// A newer holder has this owner's memory: this space is at its end.
    Fenced,
}

/// How a donor is, from the space's view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DonorStatus {
    /// Where it is.
    pub address: String,
    /// Whether sections can be asked for.
    pub connected: bool,
    /// What it could give when it was last heard of.
    pub free_bytes: u64,
    /// What it may give, to all its owners together; 0 while it is not connected.
    pub budget_bytes: u64,
    /// Whether it is connected and answered what it was asked last.
    pub answers: bool,
    /// Why it is not connected, or that it does not answer.
    pub problem: Option<String>,
}

/// Verbs that were posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VerbCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_adds: u64,
}

impl VerbCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.reads + self.writes + self.compare_swaps + self.fetch_adds
    }
}

/// One owner's memory. Clones share it. When the last is dropped, its connections end; what it had stays with the donors
/// until the owner's next epoch, or until others need the room. [`AddressSpace::close`] gives it back at once.
#[derive(Clone)]
pub struct AddressSpace {
    shared: Arc<Shared>,
    _alive: Arc<Alive>,
}

/// Ends the space when the last handle goes: the background tasks have the rest.
struct Alive(Stop);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.stop();
    }
}

struct Shared {
    table: Table,
    section_bytes: u64,
    verbs: [AtomicU64; 4],
    /// Connections whose verbs do not complete while they are posted.
    asynchronous: AtomicUsize,
    owner: String,
    epoch: Epoch,
    /// Tells this holder from others that use the same epoch by mistake.
    holder: u64,
    fabric: Arc<dyn Fabric>,
    donors: Vec<Place>,
    room: Mutex<Room>,
    live: Mutex<BTreeSet<SectionId>>,
    losses: Mutex<VecDeque<Loss>>,
    lost: Notify,
    is_fenced: AtomicBool,
    newest: OnceLock<Epoch>,
    stop: Stop,
}

/// A donor's place.
struct Place {
    donor: Donor,
    link: Mutex<Option<Arc<Link>>>,
    problem: Mutex<Option<String>>,
}

/// The budget, and what is taken of it: live sections and those being asked for.
struct Room {
    budget_bytes: u64,
    taken_bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What we guard so is whole between any two statements: a poisoned lock is as good as another.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone, Copy)]
#[repr(usize)]
enum Verb {
    Read,
    Write,
    CompareSwap,
    FetchAdd,
}

/// The data path.
impl AddressSpace {
    /// Reads `length` bytes and appends them to `into`. See [`rma::Endpoint::read`].
    ///
    /// Fails with [`rma::Error::OutOfBounds`] when the range is not within one section, with [`rma::Error::Closed`] when
    /// its section was released or lost.
    #[inline]
    pub fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        self.post(Verb::Read, address, length as u64, |entry, offset| {
            entry.link.endpoint.read(&entry.capability, offset, length, into)
        })
    }

    /// Writes the parts one behind the other. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        self.post(Verb::Write, address, length, |entry, offset| {
            entry.link.endpoint.write(&entry.capability, offset, parts)
        })
    }

    /// Puts `new` where `expected` stands; gives what stood there. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64> {
        self.post(Verb::CompareSwap, address, rma::WORD_BYTES as u64, |entry, offset| {
            entry.link.endpoint.compare_swap(&entry.capability, offset, expected, new)
        })
    }

    /// Adds to a word, wrapping; gives what stood there. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn fetch_add(&self, address: u64, add: u64) -> Completion<u64> {
        self.post(Verb::FetchAdd, address, rma::WORD_BYTES as u64, |entry, offset| {
            entry.link.endpoint.fetch_add(&entry.capability, offset, add)
        })
    }

    #[inline]
    fn post<T>(
        &self,
        verb: Verb,
        address: u64,
        length: u64,
        post: impl FnOnce(&Entry, u64) -> Completion<T>,
    ) -> Completion<T> {
        let shared = &*self.shared;
        let Some((entry, offset)) = shared.table.translate(address) else {
            return Completion::ready(Err(shared.outside(address, length)));
        };
        if length > shared.section_bytes - offset {
            return Completion::ready(Err(shared.outside(offset, length)));
        }
        if !entry.is_live() {
            return Completion::ready(Err(rma::Error::Closed));
        }
        shared.verbs[verb as usize].fetch_add(1, Ordering::Relaxed);
        let completion = post(entry, offset);
        if let Some(error) = completion.failure() {
            shared.note_failure(entry, error);
        }
        completion
    }

    /// Tells the space that a verb failed. Verbs that complete while they are posted are seen anyway; of others, this is
    /// how a donor that revoked a capability without ending the connection is noticed.
    pub fn note_failure(&self, address: u64, error: &rma::Error) {
        if let Some((entry, _)) = self.shared.table.translate(address) {
            self.shared.note_failure(entry, error);
        }
    }

    /// Starts whatever was posted and held back for a batch.
    pub fn flush(&self) {
        if self.synchronous() {
            return;
        }
        for place in &self.shared.donors {
            if let Some(link) = &*lock(&place.link) {
                link.endpoint.flush();
            }
        }
    }

    /// Whether verbs complete while they are posted, at every donor that is connected now.
    #[inline]
    pub fn synchronous(&self) -> bool {
        self.shared.asynchronous.load(Ordering::Relaxed) == 0
    }

    /// Verbs posted so far.
    pub fn verbs(&self) -> VerbCounts {
        let [reads, writes, compare_swaps, fetch_adds] =
            [0, 1, 2, 3].map(|verb| self.shared.verbs[verb].load(Ordering::Relaxed));
        VerbCounts { reads, writes, compare_swaps, fetch_adds }
    }
}

/// Sections and donors.
impl AddressSpace {
    /// Connects to the donors and fences, under the options' epoch, whoever held this owner's memory before, at every donor
    /// that can be reached. The space has no section yet.
    ///
    /// Dropping the future may leave earlier holders fenced.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a donor knows a newer epoch, or another holder of this one; [`Error::Version`],
    /// [`Error::SectionSize`], [`Error::Refused`], [`Error::BudgetTooSmall`] and [`Error::Invalid`] for what an operator
    /// must change.
    pub async fn open(options: SpaceOptions) -> Result<AddressSpace, Error> {
        let SpaceOptions { owner, epoch, fabric, donors, section_bytes, budget_bytes } = options;
        check_section_bytes(section_bytes)?;
        if budget_bytes < section_bytes {
            return Err(Error::BudgetTooSmall { budget_bytes, section_bytes });
        }
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return Err(Error::Invalid(format!("the owner's name {owner:?} has not 1 to {OWNER_BYTES_MAX} bytes")));
        }
        if donors.is_empty() || donors.len() > DONORS_MAX {
            return Err(Error::Invalid(format!("{} donors: name 1 to {DONORS_MAX} memory nodes", donors.len())));
        }
        let addresses: BTreeSet<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
        if addresses.len() < donors.len() {
            return Err(Error::Invalid("a memory node is named twice among the donors".to_owned()));
        }
        let places = donors.into_iter().map(|donor| Place { donor, link: Mutex::default(), problem: Mutex::default() });
        let shared = Arc::new(Shared {
            table: Table::new(section_bytes),
            section_bytes,
            verbs: Default::default(),
            asynchronous: AtomicUsize::new(0),
            owner,
            epoch,
            holder: rt::random_u64(),
            fabric,
            donors: places.collect(),
            room: Mutex::new(Room { budget_bytes, taken_bytes: 0 }),
            live: Mutex::default(),
            losses: Mutex::default(),
            lost: Notify::new(),
            is_fenced: AtomicBool::new(false),
            newest: OnceLock::new(),
            stop: Stop::new(),
        });
        // From here on, dropping the future ends the tasks too.
        let space = AddressSpace { _alive: Arc::new(Alive(shared.stop.clone())), shared: Arc::clone(&shared) };
        let mut firsts = Vec::new();
        for place in 0..shared.donors.len() {
            let (first, outcome) = oneshot();
            rt::spawn(keeper::keep(Arc::clone(&shared), place, first));
            firsts.push(outcome);
        }
        for outcome in firsts {
            match outcome.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Rejected) => return Err(error),
                // Reported by the keeper, which tries again.
                Ok(Err(_)) => {}
                Err(_) => return Err(shared.closed()),
            }
        }
        Ok(space)
    }

    /// Bytes of each section.
    pub fn section_bytes(&self) -> u64 {
        self.shared.section_bytes
    }

    /// The epoch under which the space holds its memory.
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }

    /// One section more, of zeros, from the donor with most room.
    ///
    /// When dropped, a section may have been added that is in [`AddressSpace::sections`] all the same; else what was
    /// asked for is given back in the background.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when the space's budget or every donor is exhausted, [`Error::NoDonor`] when none answers,
    /// [`Error::Fenced`], [`Error::Closed`].
    pub async fn grow(&self) -> Result<Section, Error> {
        let shared = &self.shared;
        let start = rt::now();
        shared.check_open()?;
        let reserved = Reserved::new(shared)?;
        let mut links = shared.links();
        if links.len() > 1 {
            for link in links.iter().filter(|link| link.is_answering() && link.free_age() > ROOM_AGE_MAX) {
                if let Ok(mut turn) = link.turn(ROOM_ANSWER_MAX).await {
                    // Its room is noted when the answer arrives; without one it comes last.
                    let _ = turn.ask(Request::Room, ROOM_ANSWER_MAX).await;
                }
            }
        }
        links.sort_by_key(|link| (!link.is_answering(), Reverse(link.free_bytes())));
        let mut full = Vec::new();
        let mut silent = Vec::new();
        for link in links {
            match shared.grow_from(&link).await {
                Ok(section) => {
                    reserved.keep();
                    SectionsGrown.add(1);
                    GrowTime.record_since(start);
                    return Ok(section);
                }
                Err(error) if error.kind() == ErrorKind::Retry => full.push(error.to_string()),
                Err(error) => silent.push(error.to_string()),
            }
            shared.check_open()?;
        }
        if full.is_empty() {
            let donors = shared.donors.iter().map(|place| place.donor.address.as_str()).collect::<Vec<_>>().join(", ");
            let why = if silent.is_empty() { donors } else { silent.join("; ") };
            return Err(Error::NoDonor(why));
        }
        let full = full.join("; ");
        Err(Error::Exhausted(format!("{full}; release sections, add a memory node, or raise a memory node's budget")))
    }

    /// Gives a section back. Its addresses fail from the call on; on return no verb to them takes effect. When dropped,
    /// the section is given back in the background.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`] and [`Error::Unconfirmed`] when the donor has not confirmed: the
    /// section is no longer the space's, and is given back in the background.
    pub async fn release(&self, id: SectionId) -> Result<(), Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).ok_or(Error::UnknownSection(id.0))?;
        if !entry.end(State::Released) {
            return Err(Error::UnknownSection(id.0));
        }
        let link = &entry.link;
        let unswept = Unswept(Some(link));
        link.remove(entry.section);
        shared.forget(&[id]);
        let mut turn = link.turn(ANSWER_MAX).await?;
        match turn.ask(Request::Release { section: entry.section }, ANSWER_MAX).await? {
            // A sweep may have been there first.
            Reply::Released { .. } | Reply::Refused { refusal: Refusal::UnknownSection, .. } => {
                unswept.keep();
                Ok(())
            }
            Reply::Refused { refusal: Refusal::Unconfirmed, .. } => Err(Error::Unconfirmed(link.address.clone())),
            reply => Err(shared.unexpected(link, &reply)),
        }
    }

    /// Lets a reader read a section: another compute node of this owner, which [enters](LentSpace::enter) what this gives.
    /// Asked again, it gives the same.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`]; the donor's refusal.
    pub async fn share(&self, id: SectionId, reader: u64) -> Result<Lent, Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).filter(|entry| entry.is_live()).ok_or(Error::UnknownSection(id.0))?;
        let mut turn = entry.link.turn(ANSWER_MAX).await?;
        match turn.ask(Request::Share { section: entry.section, reader }, ANSWER_MAX).await? {
            Reply::Shared { section, capability, .. } if section == entry.section => {
                let section = shared.table.section(id).ok_or(Error::UnknownSection(id.0))?;
                Ok(Lent { section, donor: entry.link.address.clone(), capability })
            }
            Reply::Refused { refusal: Refusal::UnknownSection, .. } => Err(Error::UnknownSection(id.0)),
            reply => Err(shared.unexpected(&entry.link, &reply)),
        }
    }

    /// Revokes everything that a reader was given: on return no verb of its takes effect, ever, at the donors that are
    /// connected. What a donor that is lost has given has ended with its sections.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] and [`Error::Unconfirmed`] where a donor has not confirmed: ask again.
    pub async fn unshare(&self, reader: u64) -> Result<(), Error> {
        let mut outcome = Ok(());
        for link in self.shared.links() {
            let revoked = async {
                let mut turn = link.turn(ANSWER_MAX).await?;
                match turn.ask(Request::Unshare { reader }, ANSWER_MAX).await? {
                    Reply::Unshared { .. } => Ok(()),
                    Reply::Refused { refusal: Refusal::Unconfirmed, .. } => {
                        Err(Error::Unconfirmed(link.address.clone()))
                    }
                    reply => Err(self.shared.unexpected(&link, &reply)),
                }
            };
            let revoked = revoked.await;
            outcome = outcome.and(revoked);
        }
        outcome
    }

    /// The sections that are live, in order.
    pub fn sections(&self) -> Vec<Section> {
        lock(&self.shared.live).iter().filter_map(|id| self.shared.table.section(*id)).collect()
    }

    /// Which donor gave a section, live or not; `None` when there never was such a section.
    pub fn donor_of(&self, id: SectionId) -> Option<&str> {
        self.shared.table.get(id).map(|entry| entry.link.address.as_str())
    }

    /// Bytes of sections that the space may have.
    pub fn budget_bytes(&self) -> u64 {
        lock(&self.shared.room).budget_bytes
    }

    /// Changes how many bytes of sections the space may have. What is above stays until it is released; there is no
    /// growth meanwhile.
    pub fn set_budget(&self, bytes: u64) {
        lock(&self.shared.room).budget_bytes = bytes;
    }

    /// The donors, in the options' order.
    pub fn donors(&self) -> Vec<DonorStatus> {
        let status = |place: &Place| {
            let link = lock(&place.link).clone();
            DonorStatus {
                address: place.donor.address.clone(),
                connected: link.is_some(),
                free_bytes: link.as_ref().map_or(0, |link| link.free_bytes()),
                problem: match &link {
                    Some(link) if !link.is_answering() => Some("it answers nothing, though it is connected".to_owned()),
                    _ => lock(&place.problem).clone(),
                },
                answers: link.as_ref().is_some_and(|link| link.is_answering()),
                budget_bytes: link.map_or(0, |link| link.budget_bytes()),
            }
        };
        self.shared.donors.iter().map(status).collect()
    }

    /// Asks every donor of which nothing was heard for a while how much room it has, so that one which has stopped without
    /// closing its connections shows in [`AddressSpace::donors`].
    pub async fn probe(&self) {
        for link in self.shared.links().into_iter().filter(|link| link.free_age() > ROOM_AGE_MAX) {
            let answered = link.is_answering();
            if let Ok(mut turn) = link.turn(ROOM_ANSWER_MAX).await {
                // Its room is noted when the answer arrives, and that none came when its time is up.
                let _ = turn.ask(Request::Room, ROOM_ANSWER_MAX).await;
            }
            match (answered, link.is_answering()) {
                (true, false) => {
                    DonorsFoundSilent.add(1);
                    tracing::warn!(donor = %link.address, owner = %self.shared.owner, "a memory node answers nothing");
                }
                (false, true) => tracing::info!(donor = %link.address, "a memory node answers again"),
                _ => {}
            }
        }
    }

    /// The next loss: each section is reported once. One task at a time; dropping the future loses nothing. Never
    /// completes when nothing can be lost any more.
    pub async fn lost(&self) -> Loss {
        loop {
            let notified = self.shared.lost.notified();
            if let Some(loss) = lock(&self.shared.losses).pop_front() {
                return loss;
            }
            notified.await;
        }
    }

    /// Whether a newer holder has this owner's memory: this space is at its end.
    pub fn is_fenced(&self) -> bool {
        self.shared.is_fenced.load(Ordering::Acquire)
    }

    /// Gives every section back that its donor confirms, and ends the space. Verbs then fail. Dropping the future leaves
    /// the space as it is by then.
    pub async fn close(&self) {
        for section in self.sections() {
            let entry = self.shared.table.get(section.id);
            // What a silent donor has is taken back under the owner's next epoch.
            if entry.is_some_and(|entry| entry.link.is_answering())
                && let Err(error) = self.release(section.id).await
            {
                tracing::debug!(%error, "a section was not given back at the end of its address space");
            }
        }
        self.shared.stop.stop();
        self.shared.end_links(LossReason::Disconnected);
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressSpace({} {})", self.shared.owner, self.shared.epoch)
    }
}

/// Room for one section, given back unless kept.
struct Reserved<'a>(Option<&'a Shared>);

impl<'a> Reserved<'a> {
    fn new(shared: &'a Shared) -> Result<Reserved<'a>, Error> {
        let mut room = lock(&shared.room);
        let taken_bytes = room.taken_bytes + shared.section_bytes;
        if taken_bytes > room.budget_bytes {
            let (taken, budget) = (room.taken_bytes, room.budget_bytes);
            return Err(Error::Exhausted(format!(
                "{taken} of this owner's {budget} bytes are in use; release sections or raise the budget"
            )));
        }
        room.taken_bytes = taken_bytes;
        Ok(Reserved(Some(shared)))
    }

    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            lock(&shared.room).taken_bytes -= shared.section_bytes;
        }
    }
}

/// Leaves a link unswept, unless kept from that.
struct Unswept<'a>(Option<&'a Link>);

impl Unswept<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Unswept<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.leave_unswept();
        }
    }
}

impl Shared {
    #[cold]
    fn outside(&self, offset: u64, length: u64) -> rma::Error {
        rma::Error::OutOfBounds { offset, length, region_bytes: self.section_bytes }
    }

    fn closed(&self) -> Error {
        match self.newest.get() {
            Some(newest) => Error::Fenced { owner: self.owner.clone(), ours: self.epoch, newest: *newest },
            None => Error::Closed,
        }
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.stop.is_stopped() { Err(self.closed()) } else { Ok(()) }
    }

    fn links(&self) -> Vec<Arc<Link>> {
        self.donors.iter().filter_map(|place| lock(&place.link).clone()).collect()
    }

    fn unexpected(&self, link: &Link, reply: &Reply) -> Error {
        match reply {
            Reply::Refused { refusal: Refusal::Fenced, detail, .. } => {
                Error::Fenced { owner: self.owner.clone(), ours: self.epoch, newest: Epoch(*detail) }
            }
            Reply::Refused { refusal: Refusal::Version, detail, .. } => Error::Version {
                address: link.address.clone(),
                ours: crate::PROTOCOL_VERSION,
                theirs: u32::try_from(*detail).unwrap_or(u32::MAX),
            },
            Reply::Refused { refusal: Refusal::SectionSize, detail, .. } => {
                Error::SectionSize { address: link.address.clone(), ours: self.section_bytes, theirs: *detail }
            }
            Reply::Refused { refusal: Refusal::Exhausted | Refusal::TooMany, text, .. } => {
                Error::Exhausted(format!("{}: {text}", link.address))
            }
            Reply::Refused { text, .. } => {
                Error::Refused { address: link.address.clone(), owner: self.owner.clone(), reason: text.clone() }
            }
            _ => Error::Malformed("an answer to another question"),
        }
    }

    /// Asks one donor for a section and enters it.
    async fn grow_from(&self, link: &Arc<Link>) -> Result<Section, Error> {
        let mut turn = link.turn(ANSWER_MAX).await?;
        let reply = turn.ask(Request::Grant { bytes: self.section_bytes }, ANSWER_MAX).await?;
        // No await between the answer and its entry: a sweep, which waits for the turn, finds it known.
        self.enter(link, &turn, reply)
    }

    fn enter(&self, link: &Arc<Link>, _turn: &Turn<'_>, reply: Reply) -> Result<Section, Error> {
        let Reply::Granted { section, bytes, capability, .. } = reply else {
            return Err(self.unexpected(link, &reply));
        };
        if rt::fault_point("pool.grow.link_lost") {
            link.ended.stop();
        }
        if bytes != self.section_bytes || capability.rights != rma::Rights::ALL || link.knows(section) {
            link.ended.stop();
            return Err(Error::Malformed("a grant of something else"));
        }
        let Some(position) = self.table.position() else {
            link.leave_unswept();
            return Err(Error::Invalid("the address space has used up its addresses; open it anew".to_owned()));
        };
        let id = position.0;
        let entered = link.add(section, id, || {
            lock(&self.live).insert(id);
            SpaceBytes.add(self.section_bytes as i64);
            self.table.enter(position, capability, Arc::clone(link), section);
        });
        if !entered {
            return Err(Error::NoAnswer {
                address: link.address.clone(),
                reason: "the connection was lost".to_owned(),
            });
        }
        Ok(self.table.section(id).expect("it was entered"))
    }

    /// Sections that were live are not any more.
    fn forget(&self, ids: &[SectionId]) {
        {
            let mut live = lock(&self.live);
            for id in ids {
                live.remove(id);
            }
        }
        let bytes = self.section_bytes * ids.len() as u64;
        lock(&self.room).taken_bytes -= bytes;
        SpaceBytes.add(-(bytes as i64));
    }

    /// What a failed verb says about its donor.
    #[cold]
    fn note_failure(&self, entry: &Entry, error: &rma::Error) {
        let reason = match error {
            rma::Error::Ambiguous(_) | rma::Error::Closed => LossReason::Disconnected,
            rma::Error::Revoked | rma::Error::Unknown => LossReason::Revoked,
            _ => return,
        };
        // A section that we have just released is no news.
        if entry.is_live() {
            self.lose(&entry.link, reason);
        }
    }

    /// Ends a link and its sections; what it had is reported, once.
    fn lose(&self, link: &Link, reason: LossReason) {
        let reason =
            if link.fenced().is_some() || self.is_fenced.load(Ordering::Acquire) { LossReason::Fenced } else { reason };
        let mut sections = link.end();
        sections.retain(|id| self.table.get(*id).is_some_and(|entry| entry.end(State::Lost)));
        if sections.is_empty() {
            return;
        }
        self.forget(&sections);
        SectionsLost.add(sections.len() as u64);
        sections.sort();
        self.report(Loss { sections, donor: link.address.clone(), reason });
    }

    fn report(&self, loss: Loss) {
        lock(&self.losses).push_back(loss);
        self.lost.notify_one();
    }

    fn end_links(&self, reason: LossReason) {
        for link in self.links() {
            self.lose(&link, reason);
        }
    }

    /// A newer holder has our memory.
    fn become_fenced(&self, newest: Epoch) {
        if self.newest.set(newest).is_err() {
            return;
        }
        self.is_fenced.store(true, Ordering::Release);
        self.stop.stop();
        tracing::warn!(owner = %self.owner, epoch = %self.epoch, %newest, "a newer holder has this owner's memory");
        let before = lock(&self.losses).len();
        self.end_links(LossReason::Fenced);
        if lock(&self.losses).len() == before {
            self.report(Loss { sections: Vec::new(), donor: String::new(), reason: LossReason::Fenced });
        }
    }
}
