//! What a compute node of an owner reads with that does not hold the owner's memory itself: sections that its primary, which
//! has the [`AddressSpace`](super::AddressSpace), has had shared with it.
//!
//! 1. [`LentSpace::open`] connects to every donor as the owner and says hello. It does not fence and asks for nothing. A donor
//!    that cannot be reached, or is lost, is tried again in the background for as long as the space lives.
//! 2. The primary has a section shared ([`AddressSpace::share`](super::AddressSpace::share)) and passes on what it was given, a
//!    [`Lent`], over a channel of the layers above; [`LentSpace::enter`] makes its addresses readable here.
//! 3. A read goes to the section's donor with the capability of this reader. It fails where the donor is not connected, and
//!    for good once the primary has given the section back, has had the reader's capabilities revoked, or was fenced.
//!
//! Invariants: nothing is ever written through such a space; every section has one entry at most, the newest.
//!
//! Which sections there are, and when they have gone, is the layers' above to say ([`LentSpace::leave`]).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use base::bytes::{BufMut as _, Bytes, BytesMut};
use base::rt::{self, Stop};
use rma::{CAPABILITY_BYTES, Capability, Completion, Credential, Endpoint, Fabric, Incoming, Rights};

use super::{ANSWER_MAX, Donor, Section, SectionId, lock};
use crate::message::{PROTOCOL_VERSION, Reply, Request};
use crate::{Error, OWNER_BYTES_MAX, check_section_bytes};

/// How long opening waits for each donor.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// Pauses between attempts to connect double from one to the other.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Bytes of a donor's address.
const ADDRESS_BYTES_MAX: usize = 1024;

/// What a reader is made of.
#[derive(Clone)]
pub struct LentSpaceOptions {
    /// Whose memory: the name that donors know.
    pub owner: String,
    /// How donors are reached.
    pub fabric: Arc<dyn Fabric>,
    /// The owner's donors.
    pub donors: Vec<Donor>,
    /// Bytes of a section: the same as at the donors.
    pub section_bytes: u64,
}

/// A section that a reader may read.
#[derive(Clone, Debug)]
pub struct Lent {
    /// Which, and where in the owner's space.
    pub section: Section,
    /// Where its donor is.
    pub donor: String,
    /// Of this reader alone, to read.
    pub capability: Capability,
}

impl Lent {
    /// Where the section is, for a message: the capability, then the donor's address. It contains the secret.
    pub fn place(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(CAPABILITY_BYTES + self.donor.len());
        bytes.put_slice(&self.capability.encode());
        bytes.put_slice(self.donor.as_bytes());
        bytes.freeze()
    }

    /// Reads [`Lent::place`].
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn of_place(section: Section, place: &[u8]) -> Result<Lent, Error> {
        let (capability, donor) =
            place.split_at_checked(CAPABILITY_BYTES).ok_or(Error::Malformed("a place without a capability"))?;
        let capability =
            Capability::decode(capability).map_err(|_| Error::Malformed("a place without a capability"))?;
        let donor = std::str::from_utf8(donor).map_err(|_| Error::Malformed("a donor's address that is no text"))?;
        if donor.len() > ADDRESS_BYTES_MAX || !capability.rights.include(Rights::READ) {
            return Err(Error::Malformed("a place that nobody gave"));
        }
        Ok(Lent { section, donor: donor.to_owned(), capability })
    }
}

/// See [the module](self). Dropping it ends its connections.
pub struct LentSpace {
    shared: Arc<Shared>,
}

struct Shared {
    owner: String,
    fabric: Arc<dyn Fabric>,
    section_bytes: u64,
    donors: Vec<Arc<Place>>,
    /// By the number of the section.
    entries: RwLock<BTreeMap<u64, Entry>>,
    stop: Stop,
}

struct Place {
    donor: Donor,
    endpoint: Mutex<Option<Endpoint>>,
}

struct Entry {
    id: SectionId,
    capability: Capability,
    place: Arc<Place>,
}

impl Drop for LentSpace {
    fn drop(&mut self) {
        self.shared.stop.stop();
        for place in &self.shared.donors {
            if let Some(endpoint) = lock(&place.endpoint).take() {
                endpoint.close();
            }
        }
    }
}

impl LentSpace {
    /// Connects to the donors. The space has no section yet. Who cannot be reached within a second is tried again in the
    /// background.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what an operator must change.
    pub async fn open(options: LentSpaceOptions) -> Result<LentSpace, Error> {
        let LentSpaceOptions { owner, fabric, donors, section_bytes } = options;
        check_section_bytes(section_bytes)?;
        if owner.is_empty() || owner.len() > OWNER_BYTES_MAX {
            return Err(Error::Invalid(format!("the owner's name {owner:?} has not 1 to {OWNER_BYTES_MAX} bytes")));
        }
        let place = |donor| Arc::new(Place { donor, endpoint: Mutex::default() });
        let donors = donors.into_iter().map(place).collect();
        let (entries, stop) = (RwLock::default(), Stop::new());
        let shared = Arc::new(Shared { owner, fabric, section_bytes, donors, entries, stop });
        let space = LentSpace { shared: Arc::clone(&shared) };
        let mut firsts = Vec::new();
        for place in &shared.donors {
            let (first, connected) = rt::channel::oneshot();
            let (shared, place) = (Arc::clone(&shared), Arc::clone(place));
            rt::spawn(async move {
                let stop = shared.stop.clone();
                stop.or_stopped(shared.keep(&place, first)).await;
            });
            firsts.push(connected);
        }
        for connected in firsts {
            // Who is late is connected in the background.
            let _ = rt::timeout(CONNECT_MAX, connected).await;
        }
        Ok(space)
    }

    /// Bytes of each section.
    pub fn section_bytes(&self) -> u64 {
        self.shared.section_bytes
    }

    /// Makes a section readable.
    ///
    /// # Errors
    /// [`Error::Invalid`] where it has other bytes than sections have here, or its donor is none of ours.
    pub fn enter(&self, lent: &Lent) -> Result<(), Error> {
        let shared = &self.shared;
        let place = shared.donors.iter().find(|place| place.donor.address == lent.donor);
        let place = place.ok_or_else(|| Error::Invalid(format!("no donor of this reader is at {}", lent.donor)))?;
        if lent.section.bytes != shared.section_bytes || !lent.section.address.is_multiple_of(shared.section_bytes) {
            return Err(Error::Invalid(format!("a section of {} bytes", lent.section.bytes)));
        }
        let entry = Entry { id: lent.section.id, capability: lent.capability, place: Arc::clone(place) };
        shared.entries_mut().insert(lent.section.address / shared.section_bytes, entry);
        Ok(())
    }

    /// The section has gone: its addresses fail from now on.
    pub fn leave(&self, address: u64) {
        self.shared.entries_mut().remove(&(address / self.shared.section_bytes));
    }

    /// Reads `length` bytes and appends them to `into`. Fails with [`rma::Error::Closed`] where there is no such section, or
    /// its donor is not connected.
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

    /// Starts whatever was posted and held back for a batch.
    pub fn flush(&self) {
        for place in &self.shared.donors {
            if let Some(endpoint) = &*lock(&place.endpoint) {
                endpoint.flush();
            }
        }
    }

    /// Tells the space that a read failed: a connection that is of no more use is made anew.
    pub fn note_failure(&self, address: u64, error: &rma::Error) {
        if !matches!(error, rma::Error::Ambiguous(_) | rma::Error::Closed) {
            return;
        }
        if let Some((endpoint, _)) = self.shared.find(address) {
            endpoint.close();
        }
    }
}

impl Shared {
    fn entries_mut(&self) -> std::sync::RwLockWriteGuard<'_, BTreeMap<u64, Entry>> {
        self.entries.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn find(&self, address: u64) -> Option<(Endpoint, Capability)> {
        let entries = self.entries.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entry = entries.get(&(address / self.section_bytes))?;
        let endpoint = lock(&entry.place.endpoint).clone()?;
        Some((endpoint, entry.capability))
    }

    /// Keeps a donor connected.
    async fn keep(&self, place: &Place, first: rt::channel::OneshotSender<()>) {
        let mut first = Some(first);
        let mut pause = PAUSE_MIN;
        loop {
            match rt::timeout(ANSWER_MAX, self.connect(place)).await {
                Ok(Ok(endpoint)) => {
                    pause = PAUSE_MIN;
                    *lock(&place.endpoint) = Some(endpoint.clone());
                    if let Some(first) = first.take() {
                        // Whoever opened the space may have gone.
                        let _ = first.send(());
                    }
                    // A donor has nothing to say to a reader.
                    while endpoint.receive().await.is_ok() {}
                    *lock(&place.endpoint) = None;
                    endpoint.close();
                }
                Ok(Err(error)) => {
                    tracing::debug!(donor = %place.donor.address, owner = %self.owner, %error, "not readable for now");
                }
                Err(rt::Elapsed) => {
                    tracing::debug!(donor = %place.donor.address, owner = %self.owner, "no answer to a reader");
                }
            }
            rt::sleep(pause + pause.mul_f64(rt::random_below(1000) as f64 / 1000.0)).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn connect(&self, place: &Place) -> Result<Endpoint, Error> {
        let address = &place.donor.address;
        let credential = Credential { name: self.owner.clone(), token: place.donor.token.clone() };
        let failed = |error| Error::Rma { doing: format!("connecting to the memory node at {address}"), error };
        let endpoint = self.fabric.connect(address, &credential).await.map_err(failed)?;
        let hello = Request::Hello { version: PROTOCOL_VERSION, section_bytes: self.section_bytes };
        let sent = endpoint.send(&[hello.encode(1)]);
        endpoint.flush();
        sent.await.map_err(failed)?;
        loop {
            if let Incoming::Message(message) = endpoint.receive().await.map_err(failed)? {
                return match Reply::decode(&message)?.1 {
                    Reply::Welcome { version, section_bytes, .. }
                        if version == PROTOCOL_VERSION && section_bytes == self.section_bytes =>
                    {
                        Ok(endpoint)
                    }
                    Reply::Refused { text, .. } => {
                        Err(Error::Refused { address: address.clone(), owner: self.owner.clone(), reason: text })
                    }
                    _ => Err(Error::Malformed("an answer to another question")),
                };
            }
        }
    }
}

impl fmt::Debug for LentSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sections: Vec<SectionId> = match self.shared.entries.read() {
            Ok(entries) => entries.values().map(|entry| entry.id).collect(),
            Err(_) => Vec::new(),
        };
        write!(f, "LentSpace({} {sections:?})", self.shared.owner)
    }
}
