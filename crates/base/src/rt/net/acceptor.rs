//! A listener that accepts links only from given parties, and limits how many links each of them has.
//!
//! 1. [`LinkAcceptor::open`] listens at an address for links from the given [`Parties`].
//! 2. [`LinkAcceptor::accept`] returns the next link together with its [`LinkPermit`]. The acceptor drops and counts a
//!    link that proves the name of any other party.
//! 3. Every organisation has the same limit of links, and every identity a limit within that of its organisation. A
//!    link beyond a limit displaces the oldest link of the same organisation or identity ([`LinkPermit::displaced`]),
//!    never a link of another one. So a party is served at once even if its old links have broken unnoticed, and a
//!    party that opens too many links shuts out only itself.
//! 4. Unfinished messages of a link count against its organisation
//!    ([`UNFINISHED_BYTES_MAX`](super::UNFINISHED_BYTES_MAX)) from the moment at which the link is accepted; before
//!    that no byte of its messages is read.
//! 5. When the permit of a link is displaced, the task that serves the link ends the link and drops the permit.
//!
//! Links that prove no name come from within the process, from a simulation, or over a transport on which all nodes are
//! trusted. They are always accepted, and each counts as a separate party.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::receive_account::{ReceiveAccount, ReceiveAccounts};
use super::{Link, Listener, Parties, listen};
use crate::admission::{Admission, AdmissionLimits, AdmissionPermit, OverBudget, Principal, Reservation};
use crate::rt::CancellationToken;
use crate::rt::channel::Closed;

crate::events! {
    /// Links rejected because the other end proved to be a party that the listener does not serve.
    counter LinksRejected("heddle_links_rejected_total");
    /// Links ended because unfinished messages of their organisation exceeded its limit.
    counter LinksOverdrawn("heddle_links_overdrawn_total");
    /// Links ended because a message that had started did not arrive in time.
    counter LinksStalled("heddle_links_stalled_total");
    /// Bytes currently held for unfinished messages of links.
    gauge LinkBytesArriving("heddle_links_arriving_bytes");
}

/// The least number of links of one identity or organisation: those that it uses, and those whose end is not noticed yet.
const PRINCIPAL_LINKS_MIN: usize = 16;
/// An identity may have its organisation's number of links divided by this.
const IDENTITY_DIVISOR: usize = 2;
/// Assumed number of organisations of a listener whose parties are not named.
const ORGANIZATIONS_DEFAULT: usize = 2;
/// Bytes that may be buffered for the links of one listener.
const BUFFERED_BYTES_MAX: u64 = 1 << 30;

/// Accepts links of some parties, each with a permit.
#[derive(Debug)]
pub struct LinkAcceptor {
    listener: Listener,
    parties: Parties,
    admission: Arc<Admission>,
    arrivals: Arc<ReceiveAccounts>,
    unnamed: u64,
}

/// The permit of one link. Dropping it lets another link take its place.
#[derive(Debug)]
pub struct LinkPermit {
    admitted: AdmissionPermit,
    is_named: bool,
}

impl LinkAcceptor {
    /// Listens at `address` for links of `parties`, about `links_max` at once: each organisation may have an equal part of
    /// them, and at least sixteen.
    ///
    /// # Errors
    /// As [`listen`].
    pub async fn open(address: &str, parties: &Parties, links_max: usize) -> io::Result<LinkAcceptor> {
        Ok(LinkAcceptor::new(listen(address).await?, parties, links_max))
    }

    /// As [`LinkAcceptor::open`], with an existing listener.
    pub fn new(listener: Listener, parties: &Parties, links_max: usize) -> LinkAcceptor {
        let organizations = parties.count().unwrap_or(ORGANIZATIONS_DEFAULT).max(1);
        let of_organization = (links_max / organizations).max(PRINCIPAL_LINKS_MIN);
        let limits = AdmissionLimits {
            // One more, so that a new link is registered before the oldest of its organisation is displaced.
            connections_max: links_max.max(of_organization * organizations) + 1,
            connections_per_organization_max: of_organization,
            connections_per_identity_max: (of_organization / IDENTITY_DIVISOR).max(PRINCIPAL_LINKS_MIN),
            ..AdmissionLimits::in_proportion(links_max.max(1), BUFFERED_BYTES_MAX, organizations)
        };
        let limits = AdmissionLimits {
            unauthenticated_max: limits.connections_max,
            unauthenticated_per_address_max: 0,
            ..limits
        };
        LinkAcceptor {
            listener,
            parties: parties.clone(),
            admission: Admission::new(limits),
            arrivals: Arc::default(),
            unnamed: 0,
        }
    }

    /// The next link of one of the parties. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`Closed`] when the node is going down.
    pub async fn accept(&mut self) -> Result<(Link, LinkPermit), Closed> {
        loop {
            let mut link = self.listener.accept().await?;
            if self.parties.include(&link) {
                if let Some(principal) = link.principal() {
                    let arriving = ReceiveAccount::new(&self.arrivals, &principal.organization);
                    link.receiver.charge(arriving);
                }
                let place = self.admit(&link);
                return Ok((link, place));
            }
            // The other end, which knows why it connected, sees its link end and reports it.
            LinksRejected.add(1);
        }
    }

    /// The address at which it listens.
    pub fn address(&self) -> &str {
        self.listener.address()
    }

    fn admit(&mut self, link: &Link) -> LinkPermit {
        let admitted = self.admission.admit(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let principal = link.principal().cloned().unwrap_or_else(|| {
            self.unnamed += 1;
            let number = self.unnamed.to_string();
            Principal::new(&number, &number)
        });
        admitted.authenticate(principal);
        LinkPermit { admitted, is_named: link.principal().is_some() }
    }
}

impl LinkPermit {
    /// Fires when the link must end in favour of a newer one of the same organisation or identity.
    pub fn displaced(&self) -> &CancellationToken {
        self.admitted.displaced()
    }

    /// Accounts bytes that are held for the link to its organisation. Links without a name have no such budget, since they come
    /// from this process itself.
    ///
    /// # Errors
    /// [`OverBudget`]: the sender may try again later.
    pub fn reserve(&self, bytes: usize) -> Result<Option<Reservation>, OverBudget> {
        if self.is_named { self.admitted.reserve(bytes).map(Some) } else { Ok(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::net::connect;
    use crate::rt::production;

    /// A link that proved an identity, and its other end.
    async fn link_of(door: &mut LinkAcceptor, organization: &str, identity: &str) -> (Link, LinkPermit) {
        let near = connect(door.address()).await.expect("it listens");
        let (far, unnamed) = door.accept().await.expect("it was connected to");
        drop(unnamed);
        let far = far.with_principal(Principal::new(organization, identity));
        let place = door.admit(&far);
        (near, place)
    }

    async fn door(address: &str, parties: &Parties, links_max: usize) -> LinkAcceptor {
        LinkAcceptor::open(address, parties, links_max).await.expect("nobody else listens there")
    }

    /// Regression: with any member's certificate an attacker could use all 256 links of an orderer's block port and read
    /// nothing, and a peer whose link had broken got no blocks any more.
    #[test]
    fn links_of_one_organisation_leave_the_places_of_another_free() {
        production::run(async {
            let mut door = door("door-shares", &Parties::of(["A", "B"]), 256).await;
            let b = link_of(&mut door, "B", "peer").await;
            let mut greedy = Vec::new();
            for number in 0..300 {
                greedy.push(link_of(&mut door, "A", &(number % 16).to_string()).await);
            }
            let newcomer = link_of(&mut door, "B", "peer").await;
            assert!(!b.1.displaced().is_cancelled() && !newcomer.1.displaced().is_cancelled());
            let open: Vec<bool> = greedy.iter().map(|(_, place)| !place.displaced().is_cancelled()).collect();
            assert_eq!(open.iter().filter(|open| **open).count(), 128);
            assert!(open[172..].iter().all(|open| *open), "the newest stay");
        });
    }

    #[test]
    fn an_identity_displaces_its_own_oldest_link() {
        production::run(async {
            let mut door = door("door-identity", &Parties::of(["A"]), 64).await;
            let (_near, other) = link_of(&mut door, "A", "other").await;
            let mut links = Vec::new();
            for _ in 0..34 {
                links.push(link_of(&mut door, "A", "one").await);
            }
            let open: Vec<bool> = links.iter().map(|(_, place)| !place.displaced().is_cancelled()).collect();
            assert!(!open[0] && !open[1] && open[2..].iter().all(|open| *open), "{open:?}");
            assert!(!other.displaced().is_cancelled());
        });
    }

    #[test]
    fn links_of_this_process_are_let_in_and_do_not_displace_one_another() {
        production::run(async {
            let mut door = door("door-unnamed", &Parties::of(["A"]), 16).await;
            let mut held = Vec::new();
            for _ in 0..16 {
                let near = connect("door-unnamed").await.expect("it listens");
                held.push((near, door.accept().await.expect("it was connected to")));
            }
            assert!(held.iter().all(|(_, (_, place))| !place.displaced().is_cancelled()));
        });
    }

    #[test]
    fn bytes_count_against_the_organisation() {
        production::run(async {
            let mut door = door("door-bytes", &Parties::of(["A", "B"]), 16).await;
            let ((_one, first), (_two, second)) =
                (link_of(&mut door, "A", "1").await, link_of(&mut door, "A", "2").await);
            let held = first.reserve(400 << 20).expect("it is within its share");
            assert!(second.reserve(200 << 20).is_err(), "both links are of one organisation");
            assert!(link_of(&mut door, "B", "1").await.1.reserve(400 << 20).is_ok());
            drop(held);
            assert!(second.reserve(200 << 20).is_ok());
        });
    }
}
