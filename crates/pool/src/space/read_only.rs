//! A follower's read-only view of its owner's memory. The primary has the [`AddressSpace`](super::AddressSpace), and
//! obtains read grants for the follower; the view consists of the sections with such a grant.
//!
//! 1. [`ReadOnlySpace::open`] connects to every donor under the owner's name and sends a hello. It does not fence and
//!    sends no other request. If a donor cannot be reached, or is lost, a background task retries it for as long as the
//!    space exists.
//! 2. The primary obtains a read grant of a section ([`AddressSpace::grant_read`](super::AddressSpace::grant_read)).
//!    The layers above pass this [`ReadGrant`] to the follower, and [`ReadOnlySpace::enter`] makes the section's
//!    addresses readable here.
//! 3. A read goes to the section's donor with this follower's capability. It fails while the donor is not connected. It
//!    fails for good once the primary has returned the section, the donor has revoked the follower's capabilities, or
//!    the primary has been fenced.
//!
//! Invariants: Nothing is ever written through a read-only space. The view holds at most one grant per section, the
//! newest.
//!
//! The layers above say which sections exist, and when they are gone ([`ReadOnlySpace::leave`]).

use std::collections::BTreeMap;
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use base::bytes::BytesMut;
use base::rt::channel::{OneshotReceiver, OneshotSender, oneshot};
use base::rt::{self, Backoff, CancellationToken};
use futures_util::future::select;
use rma::{Capability, Completion, Credential, Endpoint, IncomingEvent, Provider};

use super::donor_list::DonorList;
use super::{Donor, RESPONSE_TIMEOUT, ReadGrant, SectionId, other_versions, watch};
use crate::lock::lock;
use crate::message::{PROTOCOL_VERSIONS, Request, Response};
use crate::{Error, OWNER_BYTES_MAX, check_section_bytes};

/// How long opening waits for each donor.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The first pause between attempts to connect; half of it is jitter.
const BACKOFF_MIN: Duration = Duration::from_millis(40);
/// The longest such pause.
const BACKOFF_MAX: Duration = Duration::from_secs(4);
/// The configuration of a follower's space.
#[derive(Clone)]
pub struct ReadOnlySpaceConfig {
    /// The owner of the memory: the name that donors know.
    pub owner: String,
    /// The RMA provider by which donors are reached.
    pub provider: Arc<dyn Provider>,
    /// The owner's donors.
    pub donors: Vec<Donor>,
    /// Bytes of a section: the same as at the donors.
    pub section_bytes: u64,
    /// Finds a donor that has joined since, when a grant names it.
    pub find_donor: FindDonor,
}

/// Finds the donor at an address, if the owner has one there.
pub type FindDonor = Arc<dyn Fn(&str) -> Option<Donor> + Send + Sync>;

/// See [the module](self). Dropping it ends its connections.
pub struct ReadOnlySpace {
    shared: Arc<ReadOnlySpaceCore>,
}

struct ReadOnlySpaceCore {
    owner: String,
    provider: Arc<dyn Provider>,
    section_bytes: u64,
    donors: DonorList<Arc<ReadOnlyDonor>>,
    find_donor: FindDonor,
    /// By section number.
    entries: RwLock<BTreeMap<u64, ReadOnlySection>>,
    stop: CancellationToken,
}

struct ReadOnlyDonor {
    donor: Donor,
    endpoint: Mutex<Option<Endpoint>>,
}

impl ReadOnlyDonor {
    fn new(donor: Donor) -> Arc<ReadOnlyDonor> {
        Arc::new(ReadOnlyDonor { donor, endpoint: Mutex::default() })
    }
}

struct ReadOnlySection {
    id: SectionId,
    capability: Capability,
    donor: Arc<ReadOnlyDonor>,
}

impl Drop for ReadOnlySpace {
    fn drop(&mut self) {
        self.shared.stop.cancel();
        for place in self.shared.donors.iter() {
            if let Some(endpoint) = lock(&place.endpoint).take() {
                endpoint.close();
            }
        }
    }
}

impl ReadOnlySpace {
    /// Connects to the donors. The space has no section yet. A donor that cannot be reached within a second is retried
    /// in the background.
    ///
    /// # Errors
    /// [`Error::Invalid`] for mistakes that an operator must correct.
    pub async fn open(options: ReadOnlySpaceConfig) -> Result<ReadOnlySpace, Error> {
        let ReadOnlySpaceConfig { owner, provider, donors, section_bytes, find_donor } = options;
        check_section_bytes(section_bytes)?;
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return Err(Error::Invalid(format!("the owner's name {owner:?} must have 1 to {OWNER_BYTES_MAX} bytes")));
        }
        let donors = DonorList::new(donors.into_iter().map(ReadOnlyDonor::new));
        let (entries, stop) = (RwLock::default(), CancellationToken::new());
        let shared = Arc::new(ReadOnlySpaceCore { owner, provider, section_bytes, donors, find_donor, entries, stop });
        let space = ReadOnlySpace { shared: Arc::clone(&shared) };
        let mut firsts = Vec::new();
        for place in shared.donors.iter() {
            firsts.push(space.connect(place));
        }
        for connected in firsts {
            // A donor that is late is connected in the background.
            let _ = rt::timeout(CONNECT_TIMEOUT, connected).await;
        }
        Ok(space)
    }

    /// Starts the background task of a donor, and says when it is connected.
    fn connect(&self, place: &Arc<ReadOnlyDonor>) -> OneshotReceiver<()> {
        let (first, connected) = oneshot();
        let (shared, place) = (Arc::clone(&self.shared), Arc::clone(place));
        rt::spawn(async move {
            let stop = shared.stop.clone();
            stop.run_until_cancelled(shared.keep_connected(&place, first)).await;
        });
        connected
    }

    /// The donor at an address, which may have joined since this space was opened.
    fn donor(&self, address: &str) -> Option<&Arc<ReadOnlyDonor>> {
        let donors = &self.shared.donors;
        let known = donors.iter().find(|place| place.donor.address == address);
        known.or_else(|| {
            let place = donors.push(ReadOnlyDonor::new((self.shared.find_donor)(address)?))?;
            // It is connected in the background.
            drop(self.connect(donors.at(place)));
            Some(donors.at(place))
        })
    }

    /// Bytes of each section.
    pub fn section_bytes(&self) -> u64 {
        self.shared.section_bytes
    }

    /// Makes a section readable.
    ///
    /// # Errors
    /// [`Error::Invalid`] if its length is not this space's section size, or its donor is none of this space's donors.
    pub fn enter(&self, lent: &ReadGrant) -> Result<(), Error> {
        let shared = &self.shared;
        let place = self
            .donor(&lent.donor)
            .ok_or_else(|| Error::Invalid(format!("this follower has no donor at {}", lent.donor)))?;
        if lent.section.bytes != shared.section_bytes || !lent.section.address.is_multiple_of(shared.section_bytes) {
            return Err(Error::Invalid(format!("a section of {} bytes does not fit here", lent.section.bytes)));
        }
        let entry = ReadOnlySection { id: lent.section.id, capability: lent.capability, donor: Arc::clone(place) };
        shared.entries_mut().insert(lent.section.address / shared.section_bytes, entry);
        Ok(())
    }

    /// Removes a section that is gone: its addresses fail from now on.
    pub fn leave(&self, address: u64) {
        self.shared.entries_mut().remove(&(address / self.shared.section_bytes));
    }

    /// Reads `length` bytes and appends them to `into`. Fails with [`rma::Error::Closed`] if there is no such section,
    /// or its donor is not connected.
    pub fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        let offset = address % self.shared.section_bytes;
        if length as u64 > self.shared.section_bytes - offset {
            let region_bytes = self.shared.section_bytes;
            let error = rma::Error::OutOfBounds { offset, length: length as u64, region_bytes };
            return Completion::ready(Err(error));
        }
        match self.shared.find(address) {
            Some((endpoint, capability)) => endpoint.read(&capability, offset, length, into),
            None => Completion::ready(Err(rma::Error::Closed)),
        }
    }

    /// Starts all reads that were posted and held back for a batch.
    pub fn flush(&self) {
        for place in self.shared.donors.iter() {
            if let Some(endpoint) = &*lock(&place.endpoint) {
                endpoint.flush();
            }
        }
    }

    /// Reports a failed read to the space, which replaces a connection that is of no more use.
    pub fn note_failure(&self, address: u64, error: &rma::Error) {
        if !matches!(error, rma::Error::Ambiguous(_) | rma::Error::Closed) {
            return;
        }
        if let Some((endpoint, _)) = self.shared.find(address) {
            endpoint.close();
        }
    }
}

impl ReadOnlySpaceCore {
    fn entries_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, ReadOnlySection>> {
        self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn find(&self, address: u64) -> Option<(Endpoint, Capability)> {
        let entries = self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = entries.get(&(address / self.section_bytes))?;
        let endpoint = lock(&entry.donor.endpoint).clone()?;
        Some((endpoint, entry.capability))
    }

    /// The capability of a section at a donor, if there is one.
    fn a_section(&self, place: &ReadOnlyDonor) -> Option<Capability> {
        let entries = self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        entries.values().find(|entry| std::ptr::eq(&*entry.donor, place)).map(|entry| entry.capability)
    }

    /// Keeps a donor connected.
    async fn keep_connected(&self, place: &ReadOnlyDonor, first: OneshotSender<()>) {
        let mut first = Some(first);
        let mut backoff = Backoff::spread(BACKOFF_MIN, BACKOFF_MAX);
        loop {
            match rt::timeout(RESPONSE_TIMEOUT, self.connect(place)).await {
                Ok(Ok(endpoint)) => {
                    backoff.reset();
                    *lock(&place.endpoint) = Some(endpoint.clone());
                    if let Some(first) = first.take() {
                        // The caller of `open` may have gone.
                        let _ = first.send(());
                    }
                    // A donor sends a follower nothing after the welcome.
                    let ended = pin!(async { while endpoint.receive().await.is_ok() {} });
                    let section = || self.a_section(place);
                    let watching = pin!(watch::close_when_stuck(&endpoint, &place.donor.address, section));
                    select(ended, watching).await;
                    *lock(&place.endpoint) = None;
                    endpoint.close();
                }
                Ok(Err(error)) => {
                    tracing::debug!(donor = %place.donor.address, owner = %self.owner, %error, "cannot be read for now");
                }
                Err(rt::Elapsed) => {
                    tracing::debug!(donor = %place.donor.address, owner = %self.owner, "does not answer a follower");
                }
            }
            backoff.wait().await;
        }
    }

    async fn connect(&self, place: &ReadOnlyDonor) -> Result<Endpoint, Error> {
        let address = &place.donor.address;
        let credential = Credential { name: self.owner.clone(), token: place.donor.token.clone() };
        let failed = |error| Error::Rma { doing: format!("connecting to the memory node at {address}"), error };
        let endpoint = self.provider.connect(address, &credential).await.map_err(failed)?;
        let hello = Request::Hello { versions: PROTOCOL_VERSIONS, section_bytes: self.section_bytes };
        let sent = endpoint.send(&[hello.encode(1)]);
        endpoint.flush();
        sent.await.map_err(failed)?;
        loop {
            if let IncomingEvent::Message(message) = endpoint.receive().await.map_err(failed)? {
                return match Response::decode(&message)?.1 {
                    Response::Welcome { section_bytes, .. } if section_bytes == self.section_bytes => Ok(endpoint),
                    Response::OtherVersions(hello) => Err(other_versions(address, &hello)),
                    Response::Rejected { text, .. } => {
                        Err(Error::Rejected { address: address.clone(), owner: self.owner.clone(), reason: text })
                    }
                    _ => Err(Error::Malformed("the answer does not fit the request")),
                };
            }
        }
    }
}

impl fmt::Debug for ReadOnlySpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sections: Vec<SectionId> = match self.shared.entries.read() {
            Ok(entries) => entries.values().map(|entry| entry.id).collect(),
            Err(_) => Vec::new(),
        };
        write!(f, "LentSpace({} {sections:?})", self.shared.owner)
    }
}
