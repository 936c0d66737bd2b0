//! Address spaces: the flat 64-bit space of one owner, made of sections that donors granted.
//!
//! 1. [`AddressSpace::open`] connects to every donor as the owner and fences, under the owner's new epoch, every
//!    process that held the owner's memory before. The donor revokes the capabilities of these processes and reclaims
//!    their sections before it answers. If a donor cannot be reached, a background task retries it for as long as the
//!    space exists.
//! 2. [`AddressSpace::grow`] requests a section from the donor with the most free memory and enters it into the
//!    [section table](table).
//! 3. A verb looks up its address in the table, and goes to the section's endpoint with the section's capability.
//!    This look-up is all that the crate does on the data path.
//! 4. A donor is lost when its connection ends, or when a verb shows that the donor no longer knows its capability.
//!    Then all its sections are lost, at once and for good. Verbs to them fail with [`rma::Error::Closed`], and
//!    [`AddressSpace::lost`] reports the loss once. The space does not try to resume the sections, because verbs that
//!    were in flight when the connection broke may still take effect until a revocation.
//! 5. On each new connection to a donor, the space fences again and returns every section that the donor lists. When
//!    an answer does not come in time but the connection lasts, the space makes a *sweep*: it asks for the list, and
//!    returns the listed sections that it does not know.
//!
//! Invariants:
//! * Address 0 is never granted, and no address and no [`SectionId`] is granted twice: a space that has used up its
//!   addresses must be opened again.
//! * Live and requested sections together stay within the space's budget.
//! * A section is live, released or lost. It is live only once, and is reported lost at most once.
//! * No section is leaked: if a donor holds a section that is not in the table, the link is due for a sweep or has
//!   ended.
//!
//! Other compute nodes of the owner read the same sections through a [`ReadOnlySpace`], with capabilities that this
//! space requests ([`AddressSpace::grant_read`]). Such a capability ends with the section, with the epoch of the
//! space, or by revocation.
//!
//! The layers above decide what the bytes mean, and what to do after a loss.

mod donor_session;
mod link;
mod read_grant;
mod read_only;
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
use base::rt::{self, CancellationToken};
use base::{Epoch, ErrorKind};
use rma::{Completion, Provider, Token};

use crate::events::{DonorsFoundSilent, GrowTime, SectionsGrown, SectionsLost, SpaceBytes};
use crate::message::{Rejection, Request, Response};
use crate::{Error, OWNER_BYTES_MAX, check_section_bytes};
use link::{DonorLink, RequestTurn};
pub use read_grant::ReadGrant;
pub use read_only::{ReadOnlySpace, ReadOnlySpaceConfig};
pub use table::SECTIONS_EVER_MAX;
use table::{SectionEntry, SectionState, SectionTable};

/// Donors of one space.
pub const DONORS_MAX: usize = 1024;
/// How long a donor may take to answer a request.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a donor may take to report its free memory.
const CAPACITY_TIMEOUT: Duration = Duration::from_secs(1);
/// For how long a donor's report of its free memory counts as current.
const CAPACITY_AGE_MAX: Duration = Duration::from_secs(1);

/// The configuration of an address space.
#[derive(Clone)]
pub struct AddressSpaceConfig {
    /// The owner of the memory: the name that donors know.
    pub owner: String,
    /// Greater than any epoch under which this owner's memory was held before.
    pub epoch: Epoch,
    /// The RMA provider by which donors are reached.
    pub provider: Arc<dyn Provider>,
    /// The memory nodes that may grant sections.
    pub donors: Vec<Donor>,
    /// Bytes of a section: the same as at the donors.
    pub section_bytes: u64,
    /// Bytes of sections that the space may have.
    pub budget_bytes: u64,
}

/// A memory node, and the secret that proves the owner's identity to it.
#[derive(Clone, Debug)]
pub struct Donor {
    /// The donor's network address.
    pub address: String,
    /// The secret that it shares with the owner.
    pub token: Token,
}

/// The number of a section, never reused during a space's existence; never 0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SectionId(pub u32);

/// A section of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// The section's number.
    pub id: SectionId,
    /// The first address.
    pub address: u64,
    /// Its length in bytes.
    pub bytes: u64,
}

/// Lost sections, and why they were lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SectionLoss {
    /// The sections, in order. Empty when a space without sections was fenced.
    pub sections: Vec<SectionId>,
    /// The donor that granted them.
    pub donor: String,
    /// The reason of the loss.
    pub reason: LossReason,
}

/// Why sections were lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossReason {
    /// The connection to the donor ended.
    Disconnected,
    /// The donor no longer knows the capabilities.
    Revoked,
    /// Another process has taken over this owner's memory: this space has ended.
    Fenced,
}

/// The state of a donor, as the space sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DonorStatus {
    /// The donor's network address.
    pub address: String,
    /// Whether sections can be requested.
    pub connected: bool,
    /// Bytes that it could grant, by its last report.
    pub free_bytes: u64,
    /// Bytes that it may grant, to all its owners together; 0 while it is not connected.
    pub budget_bytes: u64,
    /// Whether it is connected and answered the last request.
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

/// One owner's memory. Clones share it. When the last clone is dropped, its connections end; its sections stay with the
/// donors until the owner's next epoch, or until other owners need the memory. [`AddressSpace::close`] returns them at
/// once.
#[derive(Clone)]
pub struct AddressSpace {
    shared: Arc<SpaceCore>,
    _alive: Arc<CancelOnDrop>,
}

/// Ends the space when the last handle is dropped: the background tasks hold the remaining references.
struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

struct SpaceCore {
    table: SectionTable,
    section_bytes: u64,
    verbs: [AtomicU64; 4],
    /// Number of connections whose verbs do not complete while they are posted.
    asynchronous: AtomicUsize,
    owner: String,
    epoch: Epoch,
    /// A nonce that distinguishes this process from others that use the same epoch by mistake.
    nonce: u64,
    provider: Arc<dyn Provider>,
    donors: Vec<DonorConnection>,
    budget: Mutex<BudgetUse>,
    live: Mutex<BTreeSet<SectionId>>,
    losses: Mutex<VecDeque<SectionLoss>>,
    lost: Notify,
    is_fenced: AtomicBool,
    newest: OnceLock<Epoch>,
    stop: CancellationToken,
}

/// A donor and the link to it, if there is one.
struct DonorConnection {
    donor: Donor,
    link: Mutex<Option<Arc<DonorLink>>>,
    problem: Mutex<Option<String>>,
}

/// The budget, and the part of it in use: live sections and requested ones.
struct BudgetUse {
    budget_bytes: u64,
    taken_bytes: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The guarded state is consistent between any two statements, so a poisoned lock is as good as another.
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

    /// Writes the parts one after the other. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        self.post(Verb::Write, address, length, |entry, offset| {
            entry.link.endpoint.write(&entry.capability, offset, parts)
        })
    }

    /// Replaces `expected` by `new`; returns the value before. Fails as [`AddressSpace::read`] does.
    #[inline]
    pub fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64> {
        self.post(Verb::CompareSwap, address, rma::WORD_BYTES as u64, |entry, offset| {
            entry.link.endpoint.compare_swap(&entry.capability, offset, expected, new)
        })
    }

    /// Adds to a word, wrapping; returns the value before. Fails as [`AddressSpace::read`] does.
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
        post: impl FnOnce(&SectionEntry, u64) -> Completion<T>,
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

    /// Reports a failed verb to the space. The space itself sees the failures of verbs that complete while they are
    /// posted. For other verbs, this call is how it learns that a donor revoked a capability without ending the
    /// connection.
    pub fn note_failure(&self, address: u64, error: &rma::Error) {
        if let Some((entry, _)) = self.shared.table.translate(address) {
            self.shared.note_failure(entry, error);
        }
    }

    /// Starts all verbs that were posted and held back for a batch.
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
    /// Connects to the donors and fences, under the options' epoch, every process that held this owner's memory before,
    /// at every donor that can be reached. The space has no section yet.
    ///
    /// Dropping the future may leave earlier processes fenced.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a donor knows a newer epoch, or another process under this one; [`Error::Version`],
    /// [`Error::SectionSize`], [`Error::Rejected`], [`Error::BudgetTooSmall`] and [`Error::Invalid`] for mistakes that
    /// an operator must correct.
    pub async fn open(options: AddressSpaceConfig) -> Result<AddressSpace, Error> {
        let AddressSpaceConfig { owner, epoch, provider, donors, section_bytes, budget_bytes } = options;
        check_section_bytes(section_bytes)?;
        if budget_bytes < section_bytes {
            return Err(Error::BudgetTooSmall { budget_bytes, section_bytes });
        }
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return Err(Error::Invalid(format!("the owner's name {owner:?} must have 1 to {OWNER_BYTES_MAX} bytes")));
        }
        if donors.is_empty() || donors.len() > DONORS_MAX {
            return Err(Error::Invalid(format!("{} donors: name 1 to {DONORS_MAX} memory nodes", donors.len())));
        }
        let addresses: BTreeSet<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
        if addresses.len() < donors.len() {
            return Err(Error::Invalid("a memory node is named twice among the donors".to_owned()));
        }
        let places = donors.into_iter().map(|donor| DonorConnection {
            donor,
            link: Mutex::default(),
            problem: Mutex::default(),
        });
        let shared = Arc::new(SpaceCore {
            table: SectionTable::new(section_bytes),
            section_bytes,
            verbs: Default::default(),
            asynchronous: AtomicUsize::new(0),
            owner,
            epoch,
            nonce: rt::random_u64(),
            provider,
            donors: places.collect(),
            budget: Mutex::new(BudgetUse { budget_bytes, taken_bytes: 0 }),
            live: Mutex::default(),
            losses: Mutex::default(),
            lost: Notify::new(),
            is_fenced: AtomicBool::new(false),
            newest: OnceLock::new(),
            stop: CancellationToken::new(),
        });
        // From here on, dropping the future ends the tasks too.
        let space = AddressSpace { _alive: Arc::new(CancelOnDrop(shared.stop.clone())), shared: Arc::clone(&shared) };
        let mut firsts = Vec::new();
        for place in 0..shared.donors.len() {
            let (first, outcome) = oneshot();
            rt::spawn(donor_session::run(Arc::clone(&shared), place, first));
            firsts.push(outcome);
        }
        for outcome in firsts {
            match outcome.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Rejected) => return Err(error),
                // Reported by the donor's background task, which tries again.
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

    /// Adds one section, filled with zeros, from the donor with the most free memory.
    ///
    /// When the future is dropped, the section may have been added, and is then in [`AddressSpace::sections`];
    /// otherwise a section that was requested is returned in the background.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when the space's budget or every donor is exhausted, [`Error::NoDonor`] when none answers,
    /// [`Error::Fenced`], [`Error::Closed`].
    pub async fn grow(&self) -> Result<Section, Error> {
        let shared = &self.shared;
        let start = rt::now();
        shared.check_open()?;
        let reserved = BudgetReservation::new(shared)?;
        let mut links = shared.links();
        if links.len() > 1 {
            for link in links.iter().filter(|link| link.is_answering() && link.free_age() > CAPACITY_AGE_MAX) {
                if let Ok(mut turn) = link.turn(CAPACITY_TIMEOUT).await {
                    // The answer's report of free memory is noted when it arrives; a donor without an answer is tried
                    // last.
                    let _ = turn.ask(Request::Capacity, CAPACITY_TIMEOUT).await;
                }
            }
        }
        links.sort_by_key(|link| (!link.is_answering(), Reverse(link.free_bytes())));
        let mut full = Vec::new();
        let mut silent = Vec::new();
        for link in links {
            match shared.grow_from(&link).await {
                Ok(section) => {
                    reserved.disarm();
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

    /// Returns a section. Verbs to its addresses fail from the call on; on return none of them takes effect any more.
    /// When the future is dropped, the section is returned in the background.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`] and [`Error::Unconfirmed`] when the donor has not confirmed: the
    /// section no longer belongs to the space, and is returned in the background.
    pub async fn release(&self, id: SectionId) -> Result<(), Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).ok_or(Error::UnknownSection(id.0))?;
        if !entry.end(SectionState::Released) {
            return Err(Error::UnknownSection(id.0));
        }
        let link = &entry.link;
        let unswept = SweepOnDrop(Some(link));
        link.remove(entry.section);
        shared.forget(&[id]);
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        match turn.ask(Request::Release { section: entry.section }, RESPONSE_TIMEOUT).await? {
            // A sweep may have released it first.
            Response::Released { .. } | Response::Rejected { rejection: Rejection::UnknownSection, .. } => {
                unswept.keep();
                Ok(())
            }
            Response::Rejected { rejection: Rejection::Unconfirmed, .. } => {
                Err(Error::Unconfirmed(link.address.clone()))
            }
            reply => Err(shared.unexpected(link, &reply)),
        }
    }

    /// Gets a read grant of a section for a follower, another compute node of this owner, which
    /// [enters](ReadOnlySpace::enter) the result. A repeated call returns the same grant.
    ///
    /// # Errors
    /// [`Error::UnknownSection`]; [`Error::NoAnswer`]; the donor's rejection.
    pub async fn grant_read(&self, id: SectionId, follower: u64) -> Result<ReadGrant, Error> {
        let shared = &self.shared;
        let entry = shared.table.get(id).filter(|entry| entry.is_live()).ok_or(Error::UnknownSection(id.0))?;
        let mut turn = entry.link.turn(RESPONSE_TIMEOUT).await?;
        match turn.ask(Request::GrantRead { section: entry.section, follower }, RESPONSE_TIMEOUT).await? {
            Response::ReadGranted { section, capability, .. } if section == entry.section => {
                let section = shared.table.section(id).ok_or(Error::UnknownSection(id.0))?;
                Ok(ReadGrant { section, donor: entry.link.address.clone(), capability })
            }
            Response::Rejected { rejection: Rejection::UnknownSection, .. } => Err(Error::UnknownSection(id.0)),
            reply => Err(shared.unexpected(&entry.link, &reply)),
        }
    }

    /// Revokes all capabilities of a follower at the donors that are connected: on return no verb of the follower ever
    /// takes effect there. Capabilities at a lost donor have ended with its sections.
    ///
    /// # Errors
    /// [`Error::NoAnswer`] and [`Error::Unconfirmed`] if a donor has not confirmed: ask again.
    pub async fn revoke_reads(&self, follower: u64) -> Result<(), Error> {
        let mut outcome = Ok(());
        for link in self.shared.links() {
            let revoked = async {
                let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
                match turn.ask(Request::RevokeReads { follower }, RESPONSE_TIMEOUT).await? {
                    Response::ReadsRevoked { .. } => Ok(()),
                    Response::Rejected { rejection: Rejection::Unconfirmed, .. } => {
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

    /// The live sections, in order.
    pub fn sections(&self) -> Vec<Section> {
        lock(&self.shared.live).iter().filter_map(|id| self.shared.table.section(*id)).collect()
    }

    /// The donor that granted a section, live or not; `None` if there never was such a section.
    pub fn donor_of(&self, id: SectionId) -> Option<&str> {
        self.shared.table.get(id).map(|entry| entry.link.address.as_str())
    }

    /// Bytes of sections that the space may have.
    pub fn budget_bytes(&self) -> u64 {
        lock(&self.shared.budget).budget_bytes
    }

    /// Changes how many bytes of sections the space may have. Sections above the new budget stay until they are
    /// released; meanwhile the space does not grow.
    pub fn set_budget(&self, bytes: u64) {
        lock(&self.shared.budget).budget_bytes = bytes;
    }

    /// The donors, in the options' order.
    pub fn donors(&self) -> Vec<DonorStatus> {
        let status = |place: &DonorConnection| {
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

    /// Asks every donor without a recent answer how much memory is free, so that [`AddressSpace::donors`] shows a donor
    /// that has stopped without closing its connections.
    pub async fn probe(&self) {
        for link in self.shared.links().into_iter().filter(|link| link.free_age() > CAPACITY_AGE_MAX) {
            let answered = link.is_answering();
            if let Ok(mut turn) = link.turn(CAPACITY_TIMEOUT).await {
                // An answer updates the donor's free memory; a time-out marks the donor as silent.
                let _ = turn.ask(Request::Capacity, CAPACITY_TIMEOUT).await;
            }
            match (answered, link.is_answering()) {
                (true, false) => {
                    DonorsFoundSilent.add(1);
                    tracing::warn!(donor = %link.address, owner = %self.shared.owner, "a memory node does not answer");
                }
                (false, true) => tracing::info!(donor = %link.address, "a memory node answers again"),
                _ => {}
            }
        }
    }

    /// The next loss: each section is reported once. For one task at a time; dropping the future loses nothing. Never
    /// completes when nothing can be lost any more.
    pub async fn lost(&self) -> SectionLoss {
        loop {
            let notified = self.shared.lost.notified();
            if let Some(loss) = lock(&self.shared.losses).pop_front() {
                return loss;
            }
            notified.await;
        }
    }

    /// Whether another process has taken over this owner's memory: this space has ended.
    pub fn is_fenced(&self) -> bool {
        self.shared.is_fenced.load(Ordering::Acquire)
    }

    /// Returns every section whose donor confirms it, and ends the space. Verbs then fail. Dropping the future leaves
    /// the space in its current state.
    pub async fn close(&self) {
        for section in self.sections() {
            let entry = self.shared.table.get(section.id);
            // The sections of a silent donor are reclaimed under the owner's next epoch.
            if entry.is_some_and(|entry| entry.link.is_answering())
                && let Err(error) = self.release(section.id).await
            {
                tracing::debug!(%error, "a section was not returned at the end of its address space");
            }
        }
        self.shared.stop.cancel();
        self.shared.end_links(LossReason::Disconnected);
    }
}

impl fmt::Debug for AddressSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddressSpace({} {})", self.shared.owner, self.shared.epoch)
    }
}

/// Budget for one section, returned unless `keep` is called.
struct BudgetReservation<'a>(Option<&'a SpaceCore>);

impl<'a> BudgetReservation<'a> {
    fn new(shared: &'a SpaceCore) -> Result<BudgetReservation<'a>, Error> {
        let mut room = lock(&shared.budget);
        let taken_bytes = room.taken_bytes + shared.section_bytes;
        if taken_bytes > room.budget_bytes {
            let (taken, budget) = (room.taken_bytes, room.budget_bytes);
            return Err(Error::Exhausted(format!(
                "{taken} of this owner's {budget} bytes are in use; release sections or raise the budget"
            )));
        }
        room.taken_bytes = taken_bytes;
        Ok(BudgetReservation(Some(shared)))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for BudgetReservation<'_> {
    fn drop(&mut self) {
        if let Some(shared) = self.0 {
            lock(&shared.budget).taken_bytes -= shared.section_bytes;
        }
    }
}

/// Marks a link as unswept on drop, unless `keep` is called.
struct SweepOnDrop<'a>(Option<&'a DonorLink>);

impl SweepOnDrop<'_> {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for SweepOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(link) = self.0 {
            link.leave_unswept();
        }
    }
}

impl SpaceCore {
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
        if self.stop.is_cancelled() { Err(self.closed()) } else { Ok(()) }
    }

    fn links(&self) -> Vec<Arc<DonorLink>> {
        self.donors.iter().filter_map(|place| lock(&place.link).clone()).collect()
    }

    fn unexpected(&self, link: &DonorLink, reply: &Response) -> Error {
        match reply {
            Response::Rejected { rejection: Rejection::Fenced, detail, .. } => {
                Error::Fenced { owner: self.owner.clone(), ours: self.epoch, newest: Epoch(*detail) }
            }
            Response::Rejected { rejection: Rejection::Version, detail, .. } => Error::Version {
                address: link.address.clone(),
                ours: crate::PROTOCOL_VERSION,
                theirs: u32::try_from(*detail).unwrap_or(u32::MAX),
            },
            Response::Rejected { rejection: Rejection::SectionSize, detail, .. } => {
                Error::SectionSize { address: link.address.clone(), ours: self.section_bytes, theirs: *detail }
            }
            Response::Rejected { rejection: Rejection::Exhausted | Rejection::TooMany, text, .. } => {
                Error::Exhausted(format!("{}: {text}", link.address))
            }
            Response::Rejected { text, .. } => {
                Error::Rejected { address: link.address.clone(), owner: self.owner.clone(), reason: text.clone() }
            }
            _ => Error::Malformed("the answer does not fit the request"),
        }
    }

    /// Requests a section from one donor and enters it.
    async fn grow_from(&self, link: &Arc<DonorLink>) -> Result<Section, Error> {
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        let reply = turn.ask(Request::Grant { bytes: self.section_bytes }, RESPONSE_TIMEOUT).await?;
        // No await between the answer and the entry: a sweep, which waits for the turn, finds the section known.
        self.enter(link, &turn, reply)
    }

    fn enter(&self, link: &Arc<DonorLink>, _turn: &RequestTurn<'_>, reply: Response) -> Result<Section, Error> {
        let Response::Granted { section, bytes, capability, .. } = reply else {
            return Err(self.unexpected(link, &reply));
        };
        if rt::fault_point("pool.grow.link_lost") {
            link.ended.cancel();
        }
        if bytes != self.section_bytes || capability.rights != rma::Rights::ALL || link.knows(section) {
            link.ended.cancel();
            return Err(Error::Malformed("a grant does not fit the request, or repeats a section"));
        }
        let Some(position) = self.table.position() else {
            link.leave_unswept();
            return Err(Error::Invalid("the address space has used up its addresses; open it again".to_owned()));
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

    /// Removes sections that are no longer live.
    fn forget(&self, ids: &[SectionId]) {
        {
            let mut live = lock(&self.live);
            for id in ids {
                live.remove(id);
            }
        }
        let bytes = self.section_bytes * ids.len() as u64;
        lock(&self.budget).taken_bytes -= bytes;
        SpaceBytes.add(-(bytes as i64));
    }

    /// Draws the conclusions of a failed verb about its donor.
    #[cold]
    fn note_failure(&self, entry: &SectionEntry, error: &rma::Error) {
        let reason = match error {
            rma::Error::Ambiguous(_) | rma::Error::Closed => LossReason::Disconnected,
            rma::Error::Revoked | rma::Error::Unknown => LossReason::Revoked,
            _ => return,
        };
        // A failure on a section that was just released is expected.
        if entry.is_live() {
            self.lose(&entry.link, reason);
        }
    }

    /// Ends a link and its sections; the loss of its live sections is reported, once.
    fn lose(&self, link: &DonorLink, reason: LossReason) {
        let reason =
            if link.fenced().is_some() || self.is_fenced.load(Ordering::Acquire) { LossReason::Fenced } else { reason };
        let mut sections = link.end();
        sections.retain(|id| self.table.get(*id).is_some_and(|entry| entry.end(SectionState::Lost)));
        if sections.is_empty() {
            return;
        }
        self.forget(&sections);
        SectionsLost.add(sections.len() as u64);
        sections.sort();
        self.report(SectionLoss { sections, donor: link.address.clone(), reason });
    }

    fn report(&self, loss: SectionLoss) {
        lock(&self.losses).push_back(loss);
        self.lost.notify_one();
    }

    fn end_links(&self, reason: LossReason) {
        for link in self.links() {
            self.lose(&link, reason);
        }
    }

    /// Another process has taken over our memory.
    fn become_fenced(&self, newest: Epoch) {
        if self.newest.set(newest).is_err() {
            return;
        }
        self.is_fenced.store(true, Ordering::Release);
        self.stop.cancel();
        tracing::warn!(owner = %self.owner, epoch = %self.epoch, %newest, "another process has this owner's memory");
        let before = lock(&self.losses).len();
        self.end_links(LossReason::Fenced);
        if lock(&self.losses).len() == before {
            self.report(SectionLoss { sections: Vec::new(), donor: String::new(), reason: LossReason::Fenced });
        }
    }
}
