//! Admission control: the bounds on what a listener spends on connections before they authenticate, and on each organisation
//! afterwards.
//!
//! Every listener of Heddle (gRPC, links, memory nodes, key-value store, metrics) has one [`Admission`], which only
//! keeps accounts. The listener itself accepts connections, runs handshakes, closes connections, and enforces
//! [`AdmissionLimits::handshake_time_max`].
//!
//! 1. [`Admission::admit`] registers a connection that the listener has just accepted. It is a **stranger**: an
//!    unauthenticated connection, known only by its address. A new connection is always admitted, and may **displace**
//!    an older one: then [`AdmissionPermit::displaced`] fires, and the listener closes the displaced connection.
//!    * If the address has more strangers than allowed, the oldest stranger of that address is displaced.
//!    * If the listener still has more strangers or more connections than allowed, the oldest stranger of all is
//!      displaced. In a listener full of members, this is the new connection itself.
//! 2. [`AdmissionPermit::authenticate`] makes the connection a **member**, once it has proved an identity. A member no
//!    longer counts as a stranger, and no stranger displaces it. If an identity or an organisation exceeds its limit,
//!    its own oldest connection is displaced.
//! 3. [`AdmissionPermit::reserve`] accounts for bytes that the listener buffers for a connection. A stranger's bytes
//!    count against the budgets of its address and of all strangers, a member's bytes against the budget of its
//!    organisation. Dropping the [`Reservation`] returns the bytes. [`AdmissionPermit::claim`] does the same, except
//!    when a stranger finds the budget used up. Then it displaces strangers that began to hold bytes earlier, the
//!    earliest first, so that unfinished messages do not keep new connections out.
//! 4. Dropping the [`AdmissionPermit`] removes the connection from the accounts.
//!
//! Invariants:
//! * Once the displaced connections are closed, no count and no sum exceeds [`AdmissionLimits`].
//! * No stranger can displace a member, and no organisation can displace another one.
//! * A rejected reservation allocates nothing that outlives the call.

mod limits;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use limits::AdmissionLimits;

use crate::rt::CancellationToken;

crate::events! {
    /// Connections that listeners accepted.
    counter ConnectionsAdmitted("heddle_admission_connections_total");
    /// Open connections whose other end has not authenticated yet.
    gauge UnauthenticatedOpen("heddle_admission_unauthenticated_open");
    /// Open connections whose other end has authenticated.
    gauge AuthenticatedOpen("heddle_admission_authenticated_open");
    /// Connections closed in favour of a newer one: unauthenticated ones, or the oldest of an organisation at its limit.
    counter ConnectionsDisplaced("heddle_admission_displaced_total");
    /// Bytes currently buffered for connections, mostly unfinished messages.
    gauge BytesReserved("heddle_admission_reserved_bytes");
    /// Messages rejected because the bytes buffered for their sender had reached the limit.
    counter ReservationsRejected("heddle_admission_reservations_rejected_total");
}

/// The identity that a connection proved.
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
    /// The requested bytes.
    pub bytes: u64,
    /// The limit in force, in bytes.
    pub limit: u64,
    /// Whose limit it is, for the error text.
    pub holder: &'static str,
}

impl OverBudget {
    /// The kind of the error, which tells the caller what to do.
    pub fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Retry
    }
}

/// The accounts of one listener.
pub struct Admission {
    limits: AdmissionLimits,
    accounts: Mutex<AdmissionAccounts>,
}

/// A registered connection. Dropping it removes the connection from the accounts; reserved bytes stay accounted until their
/// [`Reservation`] is dropped.
pub struct AdmissionPermit {
    admission: Arc<Admission>,
    number: u64,
    displaced: CancellationToken,
}

/// Bytes accounted to a connection's address or organisation until this is dropped.
pub struct Reservation {
    admission: Arc<Admission>,
    payer: BudgetOwner,
    /// For a stranger's bytes, their key in [`AdmissionAccounts::stranger_bytes`].
    since: Option<u64>,
    bytes: u64,
}

/// The budget against which bytes count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum BudgetOwner {
    Address(IpAddr),
    Organization(Arc<str>),
}

struct AdmittedConnection {
    address: IpAddr,
    /// `None` for a stranger.
    principal: Option<Principal>,
    displaced: CancellationToken,
}

/// Numbers of connections grow, so the smallest of a set is the oldest.
type ConnectionNumbers = BTreeSet<u64>;

/// A connection that reserved bytes while it was a stranger.
struct StrangerBytes {
    number: u64,
    address: IpAddr,
    bytes: u64,
}

#[derive(Default)]
struct AdmissionAccounts {
    next: u64,
    places: BTreeMap<u64, AdmittedConnection>,
    unauthenticated: ConnectionNumbers,
    unauthenticated_by_address: BTreeMap<IpAddr, ConnectionNumbers>,
    authenticated_by_organization: BTreeMap<Arc<str>, ConnectionNumbers>,
    authenticated_by_identity: BTreeMap<Principal, ConnectionNumbers>,
    bytes: BTreeMap<BudgetOwner, u64>,
    unauthenticated_bytes: u64,
    next_since: u64,
    /// In the order in which they started to hold bytes.
    stranger_bytes: BTreeMap<u64, StrangerBytes>,
    /// Their keys in `stranger_bytes`, by the number of the connection.
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

    /// Registers a connection from `address` as a stranger, and displaces others if it exceeds a limit.
    ///
    /// The caller checks [`AdmissionPermit::displaced`] from here on: if the listener is full of members, the new connection
    /// itself is displaced.
    pub fn admit(self: &Arc<Self>, address: IpAddr) -> AdmissionPermit {
        let address = network_of(address);
        let displaced = CancellationToken::new();
        let mut accounts = self.accounts();
        let number = accounts.next;
        accounts.next += 1;
        accounts.places.insert(number, AdmittedConnection { address, principal: None, displaced: displaced.clone() });
        accounts.unauthenticated.insert(number);
        accounts.unauthenticated_by_address.entry(address).or_default().insert(number);
        ConnectionsAdmitted.add(1);
        UnauthenticatedOpen.add(1);
        let limits = &self.limits;
        let of_address = &accounts.unauthenticated_by_address[&address];
        if limits.unauthenticated_per_address_max > 0 && of_address.len() > limits.unauthenticated_per_address_max {
            let oldest = of_address.first().copied();
            accounts.displace(oldest);
        }
        if accounts.unauthenticated.len() > limits.unauthenticated_max || accounts.places.len() > limits.connections_max
        {
            let oldest = accounts.unauthenticated.first().copied();
            accounts.displace(oldest);
        }
        drop(accounts);
        AdmissionPermit { admission: Arc::clone(self), number, displaced }
    }

    /// The numbers of strangers and of members, without the displaced ones.
    pub fn open(&self) -> (usize, usize) {
        let accounts = self.accounts();
        (accounts.unauthenticated.len(), accounts.places.len() - accounts.unauthenticated.len())
    }

    /// Bytes reserved now, for all connections.
    pub fn reserved_bytes(&self) -> u64 {
        self.accounts().bytes.values().sum()
    }

    fn accounts(&self) -> MutexGuard<'_, AdmissionAccounts> {
        // Each operation leaves the accounts consistent, so a poisoned lock does no harm.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AdmissionAccounts {
    /// Removes a connection from all accounts and tells its listener to close it.
    fn displace(&mut self, number: Option<u64>) {
        if let Some(place) = number.and_then(|number| self.remove(number)) {
            ConnectionsDisplaced.add(1);
            place.displaced.cancel();
        }
    }

    fn remove(&mut self, number: u64) -> Option<AdmittedConnection> {
        let place = self.places.remove(&number)?;
        match &place.principal {
            None => {
                self.unauthenticated.remove(&number);
                remove_from(&mut self.unauthenticated_by_address, &place.address, number);
                UnauthenticatedOpen.add(-1);
            }
            Some(principal) => {
                remove_from(&mut self.authenticated_by_organization, &principal.organization, number);
                remove_from(&mut self.authenticated_by_identity, principal, number);
                AuthenticatedOpen.add(-1);
            }
        }
        Some(place)
    }

    /// Adds to the bytes that a stranger holds. Returns the key of the holder.
    fn add_stranger_bytes(&mut self, number: u64, address: IpAddr, bytes: u64) -> u64 {
        self.unauthenticated_bytes += bytes;
        let next = self.next_since;
        let since = *self.holding.entry(number).or_insert(next);
        self.next_since += u64::from(since == next);
        self.stranger_bytes.entry(since).or_insert(StrangerBytes { number, address, bytes: 0 }).bytes += bytes;
        since
    }

    fn stranger_bytes_of(&self, number: u64) -> u64 {
        let since = self.holding.get(&number);
        since.and_then(|since| self.stranger_bytes.get(since)).map_or(0, |holder| holder.bytes)
    }

    /// Subtracts from the bytes that a stranger holds, unless its displacement already did.
    fn release(&mut self, since: u64, bytes: u64) {
        let Some(holder) = self.stranger_bytes.get_mut(&since) else { return };
        holder.bytes -= bytes;
        let (number, address, is_empty) = (holder.number, holder.address, holder.bytes == 0);
        if is_empty {
            self.stranger_bytes.remove(&since);
            self.holding.remove(&number);
        }
        self.unauthenticated_bytes -= bytes;
        self.refund(&BudgetOwner::Address(address), bytes);
    }

    fn refund(&mut self, payer: &BudgetOwner, bytes: u64) {
        if let Some(held) = self.bytes.get_mut(payer) {
            *held -= bytes;
            if *held == 0 {
                self.bytes.remove(payer);
            }
        }
        BytesReserved.add(-i64::try_from(bytes).expect("as when it was reserved"));
    }

    /// Displaces the stranger that has held bytes for longest, of the address `within` or of all addresses, if it started
    /// before the connection `number` did. False when there is none.
    fn displace_stranger(&mut self, number: u64, within: Option<IpAddr>) -> bool {
        let before = self.holding.get(&number).copied().unwrap_or(u64::MAX);
        let found = self.stranger_bytes.range(..before).find(|(_, holder)| {
            within.is_none_or(|address| holder.address == address) && self.unauthenticated.contains(&holder.number)
        });
        let Some((since, holder)) = found.map(|(since, holder)| (*since, (holder.number, holder.bytes))) else {
            return false;
        };
        self.displace(Some(holder.0));
        self.release(since, holder.1);
        true
    }
}

/// Removes a number, and the key with its last number, so that the accounts contain only open connections.
fn remove_from<K: Ord>(index: &mut BTreeMap<K, ConnectionNumbers>, key: &K, number: u64) {
    if let Some(numbers) = index.get_mut(key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            index.remove(key);
        }
    }
}

impl AdmissionPermit {
    /// Fires when the listener must close this connection in favour of another one.
    pub fn displaced(&self) -> &CancellationToken {
        &self.displaced
    }

    /// Makes this connection a member; doing so again with another principal changes its owner.
    ///
    /// If the identity or the organisation is at its limit, its own oldest connection is displaced. Nothing happens when this
    /// connection was displaced already.
    pub fn authenticate(&self, principal: Principal) {
        let limits = &self.admission.limits;
        let mut accounts = self.admission.accounts();
        let place = accounts.places.get(&self.number);
        if place.is_none_or(|place| place.principal.as_ref() == Some(&principal)) {
            return;
        }
        let Some(place) = accounts.remove(self.number) else { return };
        let place = AdmittedConnection { principal: Some(principal.clone()), ..place };
        accounts.places.insert(self.number, place);
        accounts.authenticated_by_organization.entry(principal.organization.clone()).or_default().insert(self.number);
        accounts.authenticated_by_identity.entry(principal.clone()).or_default().insert(self.number);
        AuthenticatedOpen.add(1);
        let of_identity = &accounts.authenticated_by_identity[&principal];
        if of_identity.len() > limits.connections_per_identity_max {
            let oldest = of_identity.iter().find(|number| **number != self.number).copied();
            accounts.displace(oldest);
        }
        let of_organization = &accounts.authenticated_by_organization[&principal.organization];
        if of_organization.len() > limits.connections_per_organization_max {
            let oldest = of_organization.iter().find(|number| **number != self.number).copied();
            accounts.displace(oldest);
        }
    }

    /// The identity that this connection proved; `None` for a stranger and for a displaced connection.
    pub fn principal(&self) -> Option<Principal> {
        self.admission.accounts().places.get(&self.number).and_then(|place| place.principal.clone())
    }

    /// Accounts `bytes` that are to be buffered for this connection.
    ///
    /// # Errors
    /// [`OverBudget`] when they exceed the limit of its organisation, of its address or of all strangers, or when the
    /// connection was displaced. Nothing is accounted then.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit, OverBudgetPolicy::Reject)
    }

    /// As [`AdmissionPermit::reserve`], but if the budget is used up, a stranger displaces strangers that started to hold bytes
    /// before it did, the earliest first, as far as that frees enough bytes. The bytes of displaced strangers no longer count.
    ///
    /// # Errors
    /// As [`AdmissionPermit::reserve`].
    pub fn claim(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit, OverBudgetPolicy::Displace)
    }

    /// As [`AdmissionPermit::reserve`], for bytes that are useful but not needed: they are accounted only while the budget is
    /// at most half used, including them.
    ///
    /// # Errors
    /// As [`AdmissionPermit::reserve`].
    pub fn reserve_spare(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        self.account(bytes, |limit| limit / 2, OverBudgetPolicy::Reject)
    }

    fn account(
        &self,
        bytes: usize,
        share: impl Fn(u64) -> u64,
        scarcity: OverBudgetPolicy,
    ) -> Result<Reservation, OverBudget> {
        let bytes = bytes as u64;
        let limits = &self.admission.limits;
        let mut accounts = self.admission.accounts();
        let refuse = |limit, holder| {
            ReservationsRejected.add(1);
            Err(OverBudget { bytes, limit, holder })
        };
        let Some(place) = accounts.places.get(&self.number) else { return refuse(0, "a closed connection") };
        let (payer, limit, holder) = match &place.principal {
            None => (
                BudgetOwner::Address(place.address),
                limits.unauthenticated_bytes_per_address_max,
                "an unknown client's address",
            ),
            Some(principal) => (
                BudgetOwner::Organization(principal.organization.clone()),
                limits.bytes_per_organization_max,
                "an organisation",
            ),
        };
        let (limit, strangers_limit) = (share(limit), share(limits.unauthenticated_bytes_max));
        let stranger = match payer {
            BudgetOwner::Address(address) => Some(address),
            BudgetOwner::Organization(_) => None,
        };
        loop {
            let held = accounts.bytes.get(&payer).copied().unwrap_or(0);
            let (within, limit, holder) = if held.checked_add(bytes).is_none_or(|sum| sum > limit) {
                (stranger, limit, holder)
            } else if stranger.is_some()
                && accounts.unauthenticated_bytes.checked_add(bytes).is_none_or(|sum| sum > strangers_limit)
            {
                (None, strangers_limit, "all unknown clients together")
            } else {
                break;
            };
            let own = accounts.stranger_bytes_of(self.number);
            let hopeless =
                stranger.is_none() || scarcity == OverBudgetPolicy::Reject || bytes > limit.saturating_sub(own);
            if hopeless || !accounts.displace_stranger(self.number, within) {
                return refuse(limit, holder);
            }
        }
        let since = stranger.map(|address| accounts.add_stranger_bytes(self.number, address, bytes));
        *accounts.bytes.entry(payer.clone()).or_default() += bytes;
        BytesReserved.add(i64::try_from(bytes).expect("a sum below a limit in memory"));
        Ok(Reservation { admission: Arc::clone(&self.admission), payer, since, bytes })
    }
}

/// What to do when a budget is used up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OverBudgetPolicy {
    Reject,
    Displace,
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        self.admission.accounts().remove(self.number);
    }
}

impl Reservation {
    /// The reserved bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut accounts = self.admission.accounts();
        match self.since {
            Some(since) => accounts.release(since, self.bytes),
            None => accounts.refund(&self.payer, self.bytes),
        }
    }
}

/// The unit that counts as one address: an IPv4 address, or an IPv6 network of 64 bits, since one host commands all of it.
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

impl fmt::Debug for AdmissionPermit {
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
