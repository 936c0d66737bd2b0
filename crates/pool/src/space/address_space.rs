//! One owner's handle of its address space.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::rt::channel::{OneshotReceiver, oneshot};
use base::rt::sync::Notify;
use base::rt::{self, CancellationToken};
use base::{Epoch, ErrorKind};

use crate::events::DonorsFoundSilent;
use crate::lock::lock;
use crate::message::Request;
use crate::space::config::{AddressSpaceConfig, CAPACITY_AGE_MAX, CAPACITY_TIMEOUT, DONORS_MAX};
use crate::space::donor_list::DonorList;
use crate::space::donor_session::{self, Adoption};
use crate::space::section::{LossReason, Section, SectionId, SectionLoss};
use crate::space::space_core::{BudgetUse, DonorConnection, SpaceCore};
use crate::space::table::SectionTable;
use crate::{Error, OWNER_BYTES_MAX, check_section_bytes};

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
    /// Whether it is being vacated: no more sections are requested from it.
    pub vacated: bool,
}

/// One owner's memory. Clones share it. When the last clone is dropped, its connections end; its sections stay with the
/// donors until the owner's next epoch, or until other owners need the memory. [`AddressSpace::close`] returns them at
/// once.
#[derive(Clone)]
pub struct AddressSpace {
    pub(super) shared: Arc<SpaceCore>,
    _alive: Arc<CancelOnDrop>,
}

/// Ends the space when the last handle is dropped: the background tasks hold the remaining references.
struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl AddressSpace {
    /// Connects to the donors and fences, under the options' epoch, every process that held this owner's memory before,
    /// at every donor that can be reached. The space has no section yet: what earlier epochs left is returned.
    ///
    /// Dropping the future may leave earlier processes fenced.
    ///
    /// # Errors
    /// [`Error::Fenced`] when a donor knows a newer epoch, or another process under this one; [`Error::Version`],
    /// [`Error::SectionSize`], [`Error::Rejected`], [`Error::BudgetTooSmall`] and [`Error::Invalid`] for mistakes that
    /// an operator must correct.
    pub async fn open(options: AddressSpaceConfig) -> Result<AddressSpace, Error> {
        AddressSpace::open_space(options, Adoption::None).await
    }

    /// As [`AddressSpace::open`], but the space has the sections that the owner's last epoch left at the donors that can
    /// be reached, with their numbers and their content, as many as the budget allows. The earlier process is fenced from
    /// them before they are adopted.
    ///
    /// # Errors
    /// As [`AddressSpace::open`].
    pub async fn adopt(options: AddressSpaceConfig) -> Result<AddressSpace, Error> {
        AddressSpace::open_space(options, Adoption::All).await
    }

    /// As [`AddressSpace::adopt`], for an owner that writes a *head* that does not begin with zeros into each section. A
    /// section without one is not adopted: it was never used, or is the incomplete copy of a section that was
    /// [migrating](crate::SectionMigration), which is adopted where it was.
    ///
    /// # Errors
    /// As [`AddressSpace::open`].
    pub async fn adopt_headed(options: AddressSpaceConfig) -> Result<AddressSpace, Error> {
        AddressSpace::open_space(options, Adoption::Headed).await
    }

    async fn open_space(options: AddressSpaceConfig, adoption: Adoption) -> Result<AddressSpace, Error> {
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
        let count = donors.len();
        let shared = Arc::new(SpaceCore {
            table: SectionTable::new(section_bytes),
            section_bytes,
            verbs: Default::default(),
            asynchronous: AtomicUsize::new(0),
            owner,
            epoch,
            nonce: rt::random_u64(),
            provider,
            donors: DonorList::new(donors.into_iter().map(DonorConnection::new)),
            budget: Mutex::new(BudgetUse { budget_bytes, taken_bytes: 0 }),
            live: Mutex::default(),
            losses: Mutex::default(),
            lost: Notify::new(),
            is_fenced: AtomicBool::new(false),
            newest: OnceLock::new(),
            stop: CancellationToken::new(),
            adopted: Mutex::default(),
            copied: Mutex::default(),
        });
        // From here on, dropping the future ends the tasks too.
        let space = AddressSpace { _alive: Arc::new(CancelOnDrop(shared.stop.clone())), shared: Arc::clone(&shared) };
        let mut firsts = Vec::new();
        for place in 0..count {
            firsts.push(space.keep_connected(place, adoption));
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

    /// Starts the background task of a donor; returns the outcome of its first attempts to connect.
    pub(super) fn keep_connected(&self, place: usize, adoption: Adoption) -> OneshotReceiver<Result<(), Error>> {
        let (first, outcome) = oneshot();
        rt::spawn(donor_session::run(Arc::clone(&self.shared), place, adoption, first));
        outcome
    }

    /// Bytes of each section.
    pub fn section_bytes(&self) -> u64 {
        self.shared.section_bytes
    }

    /// The epoch under which the space holds its memory.
    pub fn epoch(&self) -> Epoch {
        self.shared.epoch
    }
}

/// What the space has, and what became of it.
impl AddressSpace {
    /// The live sections, in order.
    pub fn sections(&self) -> Vec<Section> {
        lock(&self.shared.live).iter().filter_map(|id| self.shared.table.section(*id)).collect()
    }

    /// The donor that has a section, or had it when it ended; `None` if there never was such a section.
    pub fn donor_of(&self, id: SectionId) -> Option<&str> {
        self.shared.table.locate(id).map(|location| location.link.address.as_str())
    }

    /// The adopted sections that are live. Later calls return none: what their bytes mean is decided once.
    pub fn take_adopted(&self) -> Vec<Section> {
        let adopted = std::mem::take(&mut *lock(&self.shared.adopted));
        let live = lock(&self.shared.live);
        adopted.into_iter().filter(|id| live.contains(id)).filter_map(|id| self.shared.table.section(id)).collect()
    }

    /// Which donor has a section: its number among the donors of this space.
    pub fn donor_place(&self, id: SectionId) -> Option<usize> {
        let address = self.donor_of(id)?;
        let is_there = |place: &DonorConnection| place.donor.address == address && !place.removed.is_cancelled();
        self.shared.donors.iter().position(is_there)
    }

    /// Whether the donor of a section has confirmed the return of every section that was released or not adopted. Until
    /// then the owner's next epoch might adopt such a section.
    pub fn is_settled(&self, id: SectionId) -> bool {
        self.shared.table.locate(id).is_some_and(|location| location.link.is_settled())
    }

    /// The number that the next section will have at least.
    pub fn next_number(&self) -> u32 {
        self.shared.table.next()
    }

    /// Gives no section a number below `next` from now on.
    pub fn start_from(&self, next: u32) {
        self.shared.table.start_from(next);
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

    /// The donors, in the options' order, and behind them those that have joined.
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
                vacated: place.is_vacated(),
                answers: link.as_ref().is_some_and(|link| link.is_answering()),
                budget_bytes: link.map_or(0, |link| link.budget_bytes()),
            }
        };
        self.shared.present().map(status).collect()
    }

    /// Requests no more sections from a donor, or does so again. The sections that it has stay until they
    /// [migrate](AddressSpace::migrate) or are released. False if the space has no donor at this address.
    pub fn set_vacated(&self, address: &str, vacated: bool) -> bool {
        let donor = self.shared.donor(address);
        if let Some(donor) = donor {
            donor.set_vacated(vacated);
        }
        donor.is_some()
    }

    /// The newest live section at a donor that is being vacated, if there is one.
    pub fn section_to_vacate(&self) -> Option<Section> {
        let vacated: BTreeSet<&str> = {
            let donors = self.shared.present().filter(|place| place.is_vacated());
            donors.map(|place| place.donor.address.as_str()).collect()
        };
        if vacated.is_empty() {
            return None;
        }
        let is_vacated = |section: &Section| self.donor_of(section.id).is_some_and(|at| vacated.contains(at));
        self.sections().into_iter().rev().find(is_vacated)
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

    /// Ends the space and leaves its sections with the donors, for the owner's next epoch to adopt. Other owners may get
    /// their memory once this owner has been away for [`ABANDONED_AFTER`](crate::node::ABANDONED_AFTER).
    pub fn leave(&self) {
        self.shared.stop.cancel();
        self.shared.end_links(LossReason::Disconnected);
    }

    /// Returns every section whose donor confirms it, and ends the space. Verbs then fail. Dropping the future leaves
    /// the space in its current state.
    pub async fn close(&self) {
        for section in self.sections() {
            let location = self.shared.table.locate(section.id);
            // The sections of a silent donor are reclaimed under the owner's next epoch.
            if location.is_some_and(|location| location.link.is_answering())
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
