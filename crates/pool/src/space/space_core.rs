//! The state that an address space's handles and tasks share: the sections, the budget, the links and the losses.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::Epoch;
use base::event::ShardedSum;
use base::rt::sync::Notify;
use base::rt::{self, CancellationToken};
use rma::{Capability, Provider};
use wire::hello::{HelloAnswer, VersionMismatch};

use crate::Error;
use crate::events::{SectionsLost, SpaceBytes};
use crate::lock::lock;
use crate::message::{DonorSection, Rejection, Request, Response};
use crate::space::config::{Donor, RESPONSE_TIMEOUT};
use crate::space::copied_pages::CopiedPages;
use crate::space::donor_list::DonorList;
use crate::space::link::{DonorLink, RequestTurn};
use crate::space::section::{LossReason, Section, SectionId, SectionLoss};
use crate::space::table::{SectionEntry, SectionLocation, SectionState, SectionTable, TablePosition};

pub(super) struct SpaceCore {
    pub(super) table: SectionTable,
    pub(super) section_bytes: u64,
    pub(super) verbs: [ShardedSum; 4],
    /// Number of connections whose verbs do not complete while they are posted.
    pub(super) asynchronous: AtomicUsize,
    pub(super) owner: String,
    pub(super) epoch: Epoch,
    /// A nonce that distinguishes this process from others that use the same epoch by mistake.
    pub(super) nonce: u64,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) donors: DonorList<DonorConnection>,
    pub(super) budget: Mutex<BudgetUse>,
    pub(super) live: Mutex<BTreeSet<SectionId>>,
    pub(super) losses: Mutex<VecDeque<SectionLoss>>,
    pub(super) lost: Notify,
    pub(super) is_fenced: AtomicBool,
    pub(super) newest: OnceLock<Epoch>,
    pub(super) stop: CancellationToken,
    /// The sections that were adopted, until they are taken.
    pub(super) adopted: Mutex<Vec<SectionId>>,
    /// What the migration under way has still to copy.
    pub(super) copied: Mutex<Option<CopiedPages>>,
}

/// A donor and the link to it, if there is one.
pub(super) struct DonorConnection {
    pub(super) donor: Donor,
    pub(super) link: Mutex<Option<Arc<DonorLink>>>,
    pub(super) problem: Mutex<Option<String>>,
    /// Whether it is being vacated.
    pub(super) vacated: AtomicBool,
    /// Ends its background task when it is removed from the space.
    pub(super) removed: CancellationToken,
}

impl DonorConnection {
    pub(super) fn new(donor: Donor) -> DonorConnection {
        DonorConnection {
            donor,
            link: Mutex::default(),
            problem: Mutex::default(),
            vacated: AtomicBool::new(false),
            removed: CancellationToken::new(),
        }
    }

    pub(super) fn set_vacated(&self, vacated: bool) {
        self.vacated.store(vacated, Ordering::Release);
    }

    /// Whether the space takes no more sections from it.
    pub(super) fn is_vacated(&self) -> bool {
        self.vacated.load(Ordering::Acquire)
    }
}

/// The budget, and the part of it in use: live sections and requested ones.
pub(super) struct BudgetUse {
    pub(super) budget_bytes: u64,
    pub(super) taken_bytes: u64,
}

impl SpaceCore {
    #[cold]
    pub(super) fn outside(&self, offset: u64, length: u64) -> rma::Error {
        rma::Error::OutOfBounds { offset, length, region_bytes: self.section_bytes }
    }

    pub(super) fn closed(&self) -> Error {
        match self.newest.get() {
            Some(newest) => Error::Fenced { owner: self.owner.clone(), ours: self.epoch, newest: *newest },
            None => Error::Closed,
        }
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.stop.is_cancelled() { Err(self.closed()) } else { Ok(()) }
    }

    /// The donors that have not been removed.
    pub(super) fn present(&self) -> impl Iterator<Item = &DonorConnection> {
        self.donors.iter().filter(|place| !place.removed.is_cancelled())
    }

    /// The donor at an address.
    pub(super) fn donor(&self, address: &str) -> Option<&DonorConnection> {
        self.present().find(|place| place.donor.address == address)
    }

    pub(super) fn links(&self) -> Vec<Arc<DonorLink>> {
        self.donors.iter().filter_map(|place| lock(&place.link).clone()).collect()
    }

    pub(super) fn unexpected(&self, link: &DonorLink, reply: &Response) -> Error {
        match reply {
            Response::Rejected { rejection: Rejection::Fenced, detail, .. } => {
                Error::Fenced { owner: self.owner.clone(), ours: self.epoch, newest: Epoch(*detail) }
            }
            Response::OtherVersions(hello) => other_versions(&link.address, hello),
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
    pub(super) async fn grow_from(&self, link: &Arc<DonorLink>) -> Result<Section, Error> {
        let mut turn = link.turn(RESPONSE_TIMEOUT).await?;
        let Some(position) = self.table.position() else {
            return Err(Error::Invalid("the address space has used up its addresses; open it again".to_owned()));
        };
        let request = Request::Grant { bytes: self.section_bytes, number: position.0.0 };
        match turn.ask(request, RESPONSE_TIMEOUT).await? {
            // No await between the answer and the entry: a sweep, which waits for the turn, finds the section known.
            Response::Granted { section, bytes, capability, .. } => {
                self.enter(link, &turn, position, section, bytes, capability)
            }
            reply => {
                self.table.give_back(position);
                Err(self.unexpected(link, &reply))
            }
        }
    }

    pub(super) fn enter(
        &self,
        link: &Arc<DonorLink>,
        _turn: &RequestTurn<'_>,
        position: TablePosition,
        section: DonorSection,
        bytes: u64,
        capability: Capability,
    ) -> Result<Section, Error> {
        if rt::fault_point("pool.grow.link_lost") {
            link.ended.cancel();
        }
        if bytes != self.section_bytes || capability.rights != rma::Rights::ALL || link.knows(section) {
            link.ended.cancel();
            return Err(Error::Malformed("a grant does not fit the request, or repeats a section"));
        }
        let id = position.0;
        let entered = link.add(section, id, || {
            lock(&self.live).insert(id);
            SpaceBytes.add(self.section_bytes as i64);
            self.table.enter(position, SectionLocation { capability, link: Arc::clone(link), section });
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
    pub(super) fn forget(&self, ids: &[SectionId]) {
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
    pub(super) fn note_failure(&self, entry: &SectionEntry, location: &SectionLocation, error: &rma::Error) {
        let reason = match error {
            rma::Error::Ambiguous(_) | rma::Error::Closed => LossReason::Disconnected,
            rma::Error::Revoked | rma::Error::Unknown => LossReason::Revoked,
            _ => return,
        };
        // A failure is expected on a section that was just released, and at the old location of a migrated one.
        if entry.is_live() && std::ptr::eq(location, self.table.location(entry)) {
            self.lose(&location.link, reason);
        }
    }

    /// Ends a link and its sections; the loss of its live sections is reported, once.
    pub(super) fn lose(&self, link: &DonorLink, reason: LossReason) {
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

    pub(super) fn end_links(&self, reason: LossReason) {
        for link in self.links() {
            self.lose(&link, reason);
        }
    }

    /// Another process has taken over our memory.
    pub(super) fn become_fenced(&self, newest: Epoch) {
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

/// The error for a donor that speaks other versions of the protocol.
pub(super) fn other_versions(address: &str, hello: &HelloAnswer) -> Error {
    let mismatch = VersionMismatch { ours: crate::PROTOCOL_VERSIONS, theirs: hello.versions() };
    Error::Version { address: address.to_owned(), mismatch }
}
