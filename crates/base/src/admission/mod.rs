//! Admission control: what a listener spends on connections before it knows who they are, and on each organisation after.
//!
//! Every listener of Heddle (gRPC, links, memory nodes, key-value store, metrics) has one [`Admission`]. It keeps accounts
//! only: the listener accepts, shakes hands, closes, and enforces [`AdmissionLimits::handshake_time_max`] itself.
//!
//! 1. [`Admission::admit`] registers a connection that was just accepted. It is a **stranger**: it has an address and
//!    nothing else. A newcomer is always admitted. When its address or the listener already has as many strangers as it
//!    may, or the listener is full, the oldest stranger (of the same address, if the address is over its share) is
//!    displaced: [`Admitted::displaced`] fires and the listener closes that connection. Where members alone fill the
//!    listener, the newcomer itself is displaced at once.
//! 2. [`Admitted::authenticate`] makes the connection a **member's**, once it has proved an identity. A member does not
//!    count as a stranger any more and is never displaced by one. An identity or an organisation that has its share of
//!    connections displaces its own oldest one, and nobody else's.
//! 3. [`Admitted::reserve`] accounts bytes that are buffered for a connection: a stranger's against the budgets of its
//!    address and of all strangers, a member's against the budget of its organisation. The [`Reservation`] gives them back.
//!    [`Admitted::claim`] does the same, but where a stranger finds the budget used up it displaces strangers that have
//!    held bytes for longer, the longest first, so that unfinished messages keep no newcomer out.
//! 4. Dropping the [`Admitted`] frees the place.
//!
//! Invariants:
//! * All counts and sums stay at or below [`AdmissionLimits`] once the displaced connections are closed.
//! * No stranger can displace a member, and no organisation another one.
//! * A refusal allocates nothing that outlives the call.

mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use limits::AdmissionLimits;

use crate::rt::Stop;

crate::events! {
    /// Connections that listeners accepted.
    counter ConnectionsAdmitted("heddle_admission_connections_total");
    /// Connections open now whose other side has not proved who it is.
    gauge StrangersOpen("heddle_admission_strangers_open");
    /// Connections open now whose other side has proved who it is.
    gauge MembersOpen("heddle_admission_members_open");
    /// Connections closed to make room for a newer one: strangers, or the oldest of an organisation that has its share.
    counter ConnectionsDisplaced("heddle_admission_displaced_total");
    /// Bytes buffered now for connections, unfinished messages above all.
    gauge BytesReserved("heddle_admission_reserved_bytes");
    /// Messages refused because the bytes buffered for their sender had reached the limit.
    counter ReservationsRefused("heddle_admission_reservations_refused_total");
}

/// Who a connection proved to be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Principal {
    /// The organisation, by its MSP id or the name of its trust anchor.
    pub organization: Arc<str>,
    /// The identity within it: a certificate's digest, a name.
    pub identity: Arc<str>,
}

impl Principal {
    /// An identity of an organisation.
    pub fn new(organization: &str, identity: &str) -> Principal {
        Principal { organization: organization.into(), identity: identity.into() }
    }
}

/// The bytes cannot be buffered now; the sender may try again later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{bytes} more bytes would exceed the {limit} that {holder} may have buffered here; try again later")]
pub struct OverBudget {
    /// The bytes that were asked for.
    pub bytes: u64,
    /// The limit in force, in bytes.
    pub limit: u64,
    /// Whose limit it is, for people.
    pub holder: &'static str,
}

impl OverBudget {
    /// What the caller can do.
    pub fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Retry
    }
}

/// The accounts of one listener.
pub struct Admission {
    limits: AdmissionLimits,
    accounts: Mutex<Accounts>,
}

/// A connection's place. Dropping it frees the place; bytes that are still reserved stay accounted until their
/// [`Reservation`] is dropped.
pub struct Admitted {
    admission: Arc<Admission>,
    number: u64,
    displaced: Stop,
}

/// Bytes accounted to a connection's holder until this is dropped.
pub struct Reservation {
    admission: Arc<Admission>,
    payer: Payer,
    /// For a stranger's bytes, under which of [`Accounts::holders`] they are.
    since: Option<u64>,
    bytes: u64,
}

/// Whose budget bytes count against.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Payer {
    Address(IpAddr),
    Organization(Arc<str>),
}

struct Place {
    address: IpAddr,
    /// `None` for a stranger.
    principal: Option<Principal>,
    displaced: Stop,
}

/// Numbers of connections grow, so the first of a set is the oldest.
type Numbers = BTreeSet<u64>;

/// A connection that had bytes reserved while it was a stranger's.
struct Holder {
    number: u64,
    address: IpAddr,
    bytes: u64,
}

#[derive(Default)]
struct Accounts {
    next: u64,
    places: BTreeMap<u64, Place>,
    strangers: Numbers,
    strangers_by_address: BTreeMap<IpAddr, Numbers>,
    members_by_organization: BTreeMap<Arc<str>, Numbers>,
    members_by_identity: BTreeMap<Principal, Numbers>,
    bytes: BTreeMap<Payer, u64>,
    strangers_bytes: u64,
    next_since: u64,
    /// By the order in which they began to hold bytes.
    holders: BTreeMap<u64, Holder>,
    /// Their keys in `holders`, by the number of the connection.
    holding: BTreeMap<u64, u64>,
}

impl Admission {
    /// Accounts within these limits.
    pub fn new(limits: AdmissionLimits) -> Arc<Admission> {
        limits.check();
        Arc::new(Admission { limits, accounts: Mutex::default() })
    }

    /// The limits in force.
    pub fn limits(&self) -> &AdmissionLimits {
        &self.limits
    }

    /// Registers a connection from `address` as a stranger's, and displaces others where it exceeds a limit.
    ///
    /// The caller looks at [`Admitted::displaced`] from here on: of a listener full of members the newcomer itself is
    /// displaced.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> Admitted {
        let address = network_of(address);
        let displaced = Stop::new();
        let mut accounts = self.accounts();
        let number = accounts.next;
        accounts.next += 1;
        accounts.places.insert(number, Place { address, principal: None, displaced: displaced.clone() });
        accounts.strangers.insert(number);
        accounts.strangers_by_address.entry(address).or_default().insert(number);
        ConnectionsAdmitted.add(1);
        StrangersOpen.add(1);
        let limits = &self.limits;
        let of_address = &accounts.strangers_by_address[&address];
        if limits.strangers_per_address_max > 0 && of_address.len() > limits.strangers_per_address_max {
            let oldest = of_address.first().copied();
            accounts.displace(oldest);
        }
        if accounts.strangers.len() > limits.strangers_max || accounts.places.len() > limits.connections_max {
            let oldest = accounts.strangers.first().copied();
            accounts.displace(oldest);
        }
        drop(accounts);
        Admitted { admission: Arc::clone(self), number, displaced }
    }

    /// Connections of strangers and of members, those that were displaced not counted.
    pub fn open(&self) -> (usize, usize) {
        let accounts = self.accounts();
        (accounts.strangers.len(), accounts.places.len() - accounts.strangers.len())
    }

    /// Bytes reserved now, by all.
    pub fn reserved_bytes(&self) -> u64 {
        self.accounts().bytes.values().sum()
    }

    fn accounts(&self) -> MutexGuard<'_, Accounts> {
        // Each operation leaves the accounts whole, so a poisoned lock is as good as another.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accounts {
    /// Takes a connection out of all accounts and tells its listener to close it.
    fn displace(&mut self, number: Option<u64>) {
        if let Some(place) = number.and_then(|number| self.remove(number)) {
            ConnectionsDisplaced.add(1);
            place.displaced.stop();
        }
    }

    fn remove(&mut self, number: u64) -> Option<Place> {
        let place = self.places.remove(&number)?;
        match &place.principal {
            None => {
                self.strangers.remove(&number);
                remove_from(&mut self.strangers_by_address, &place.address, number);
                StrangersOpen.add(-1);
            }
            Some(principal) => {
                remove_from(&mut self.members_by_organization, &principal.organization, number);
                remove_from(&mut self.members_by_identity, principal, number);
                MembersOpen.add(-1);
            }
        }
        Some(place)
    }

    /// Adds bytes to what a stranger holds. The result finds them again.
    fn hold(&mut self, number: u64, address: IpAddr, bytes: u64) -> u64 {
        self.strangers_bytes += bytes;
        let next = self.next_since;
        let since = *self.holding.entry(number).or_insert(next);
        self.next_since += u64::from(since == next);
        self.holders.entry(since).or_insert(Holder { number, address, bytes: 0 }).bytes += bytes;
        since
    }

    fn held_by(&self, number: u64) -> u64 {
        let since = self.holding.get(&number);
        since.and_then(|since| self.holders.get(since)).map_or(0, |holder| holder.bytes)
    }

    /// Takes bytes from what a stranger holds, unless they were taken when it was displaced.
    fn release(&mut self, since: u64, bytes: u64) {
        let Some(holder) = self.holders.get_mut(&since) else { return };
        holder.bytes -= bytes;
        let (number, address, is_empty) = (holder.number, holder.address, holder.bytes == 0);
        if is_empty {
            self.holders.remove(&since);
            self.holding.remove(&number);
        }
        self.strangers_bytes -= bytes;
        self.give_back(&Payer::Address(address), bytes);
    }

    fn give_back(&mut self, payer: &Payer, bytes: u64) {
        if let Some(held) = self.bytes.get_mut(payer) {
            *held -= bytes;
            if *held == 0 {
                self.bytes.remove(payer);
            }
        }
        BytesReserved.add(-i64::try_from(bytes).expect("as when it was reserved"));
    }

    /// Displaces the stranger that has held bytes for longest, among those of `within` or of all addresses, if it began
    /// before the connection of that number did. False when there is none.
    fn displace_holder(&mut self, number: u64, within: Option<IpAddr>) -> bool {
        let before = self.holding.get(&number).copied().unwrap_or(u64::MAX);
        let found = self.holders.range(..before).find(|(_, holder)| {
            within.is_none_or(|address| holder.address == address) && self.strangers.contains(&holder.number)
        });
        let Some((since, holder)) = found.map(|(since, holder)| (*since, (holder.number, holder.bytes))) else {
            return false;
        };
        self.displace(Some(holder.0));
        self.release(since, holder.1);
        true
    }
}

/// Removes a number, and the key with its last number, so that the accounts hold what is open and nothing else.
fn remove_from<K: Ord>(index: &mut BTreeMap<K, Numbers>, key: &K, number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}

impl Admitted {
    /// Fires when the listener is to close this connection in favour of another one.
    pub fn displaced(&self) -> &Stop {
        &self.displaced
    }

    /// Makes this the connection of a member; doing so again with the same or another principal changes whose it is.
    ///
    /// Where the identity or the organisation has its share of connections, its own oldest one is displaced. Nothing
    /// happens when this connection was displaced already.
    pub fn authenticate(&self, principal: Principal) {
        let limits = &self.admission.limits;
        let mut accounts = self.admission.accounts();
        let place = accounts.places.get(&self.number);
        if place.is_none_or(|place| place.principal.as_ref() == Some(&principal)) {
            return;
        }
        let Some(place) = accounts.remove(self.number) else { return };
        let place = Place { principal: Some(principal.clone()), ..place };
        accounts.places.insert(self.number, place);
        accounts.members_by_organization.entry(principal.organization.clone()).or_default().insert(self.number);
        accounts.members_by_identity.entry(principal.clone()).or_default().insert(self.number);
        MembersOpen.add(1);
        let of_identity = &accounts.members_by_identity[&principal];
        if of_identity.len() > limits.connections_per_identity_max {
            let oldest = of_identity.iter().find(|number| **number != self.number).copied();
            accounts.displace(oldest);
        }
        let of_organization = &accounts.members_by_organization[&principal.organization];
        if of_organization.len() > limits.connections_per_organization_max {
            let oldest = of_organization.iter().find(|number| **number != self.number).copied();
            accounts.displace(oldest);
        }
    }

    /// Who this connection proved to be; `None` for a stranger and for one that was displaced.
    pub fn principal(&self) -> Option<Principal> {
        self.admission.accounts().places.get(&self.number).and_then(|place| place.principal.clone())
    }

    /// Accounts `bytes` that are to be buffered for this connection.
    ///
    /// # Errors
    /// [`OverBudget`] when they exceed what its organisation, its address or all strangers may have buffered, or when it
    /// was displaced. Nothing is accounted then.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit, Scarcity::Refuse)
    }

    /// As [`Admitted::reserve`], but a stranger for whom the budget has no room displaces strangers that began to hold
    /// bytes before it did, the first of them first, as far as that makes room. Their bytes count no more from then on.
    ///
    /// # Errors
    /// As [`Admitted::reserve`].
    pub fn claim(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit, Scarcity::Displace)
    }

    /// As [`Admitted::reserve`], for bytes that are worth having but not needed: of a budget no more than half goes to
    /// them, and whatever else it holds counts towards that half.
    ///
    /// # Errors
    /// As [`Admitted::reserve`].
    pub fn reserve_spare(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit / 2, Scarcity::Refuse)
    }

    fn account(&self, bytes: usize, share: impl Fn(u64) -> u64, scarcity: Scarcity) -> Result<Reservation, OverBudget> {
        let bytes = bytes as u64;
        let limits = &self.admission.limits;
        let mut accounts = self.admission.accounts();
        let refuse = |limit, holder| {
            ReservationsRefused.add(1);
            Err(OverBudget { bytes, limit, holder })
        };
        let Some(place) = accounts.places.get(&self.number) else { return refuse(0, "a closed connection") };
        let (payer, limit, holder) = match &place.principal {
            None => {
                (Payer::Address(place.address), limits.stranger_bytes_per_address_max, "an unknown client's address")
            }
            Some(principal) => (
                Payer::Organization(principal.organization.clone()),
                limits.bytes_per_organization_max,
                "an organisation",
            ),
        };
        let (limit, strangers_limit) = (share(limit), share(limits.stranger_bytes_max));
        let stranger = match payer {
            Payer::Address(address) => Some(address),
            Payer::Organization(_) => None,
        };
        loop {
            let held = accounts.bytes.get(&payer).copied().unwrap_or(0);
            let (within, limit, holder) = if held.checked_add(bytes).is_none_or(|sum| sum > limit) {
                (stranger, limit, holder)
            } else if stranger.is_some()
                && accounts.strangers_bytes.checked_add(bytes).is_none_or(|sum| sum > strangers_limit)
            {
                (None, strangers_limit, "all unknown clients together")
            } else {
                break;
            };
            let own = accounts.held_by(self.number);
            let hopeless = stranger.is_none() || scarcity == Scarcity::Refuse || bytes > limit.saturating_sub(own);
            if hopeless || !accounts.displace_holder(self.number, within) {
                return refuse(limit, holder);
            }
        }
        let since = stranger.map(|address| accounts.hold(self.number, address, bytes));
        *accounts.bytes.entry(payer.clone()).or_default() += bytes;
        BytesReserved.add(i64::try_from(bytes).expect("a sum below a limit in memory"));
        Ok(Reservation { admission: Arc::clone(&self.admission), payer, since, bytes })
    }
}

/// What happens when a budget has no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scarcity {
    Refuse,
    Displace,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.accounts().remove(self.number);
    }
}

impl Reservation {
    /// Bytes it stands for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut accounts = self.admission.accounts();
        match self.since {
            Some(since) => accounts.release(since, self.bytes),
            None => accounts.give_back(&self.payer, self.bytes),
        }
    }
}

/// What counts as one address: all of an IPv6 network of 64 bits, which one host commands; an IPv4 address by itself.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) if address.is_loopback() => IpAddr::V6(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (strangers, members) = self.open();
        f.debug_struct("Admission").field("strangers", &strangers).field("members", &members).finish()
    }
}

impl fmt::Debug for Admitted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admitted").field("number", &self.number).field("principal", &self.principal()).finish()
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
mod tests;
