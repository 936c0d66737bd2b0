//! A listener that knows who may link, and how often.
//!
//! 1. [`Door::open`] listens at an address for the links of some [`Parties`].
//! 2. [`Door::accept`] gives the next link together with its [`Place`]. A link of anybody else is dropped and counted.
//! 3. The places are shared between the organisations in equal parts, and one identity has a part of its organisation's.
//!    A link beyond such a share displaces the oldest link of the same holder ([`Place::displaced`]), never another's: a
//!    party that lost its links without noticing is served at once, and one that opens links without end shuts out itself.
//! 4. Messages of a link that are not whole yet count against its organisation ([`ARRIVING_BYTES_MAX`](super::ARRIVING_BYTES_MAX)),
//!    from the moment that the link is accepted; before that nothing of it is read.
//! 5. Whoever serves the link ends it when its place is displaced, and drops the place with it.
//!
//! Links that prove no name come from within the process or from a simulation; each of them counts for itself.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use super::arriving::{Arrivals, Arriving};
use super::{Link, Listener, Parties, listen};
use crate::admission::{Admission, AdmissionLimits, Admitted, OverBudget, Principal, Reservation};
use crate::rt::Stop;
use crate::rt::channel::Closed;

crate::events! {
    /// Links refused because the other side proved to be somebody that the listener is not for.
    counter LinksRefused("heddle_links_refused_total");
    /// Links ended because the messages on their way from one organisation would have held more than it may have.
    counter LinksOverdrawn("heddle_links_overdrawn_total");
    /// Links ended because a message that had begun did not arrive in time.
    counter LinksStalled("heddle_links_stalled_total");
    /// Bytes held now for messages of links that are not whole yet.
    gauge LinkBytesArriving("heddle_links_arriving_bytes");
}

/// Links of one identity or organisation, at least: those that it uses, and those whose end is not noticed yet.
const HOLDER_LINKS_MIN: usize = 16;
/// An identity's part of what its organisation may have.
const IDENTITY_PART: usize = 2;
/// Organisations that share the places of a listener whose parties are not named.
const ORGANIZATIONS_USUAL: usize = 2;
/// Bytes that are buffered for the links of one listener.
const BYTES_MAX: u64 = 1 << 30;

/// Accepts links of some parties, each with a place.
#[derive(Debug)]
pub struct Door {
    listener: Listener,
    parties: Parties,
    admission: Arc<Admission>,
    arrivals: Arc<Arrivals>,
    unnamed: u64,
}

/// The place of one link. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    admitted: Admitted,
    is_named: bool,
}

impl Door {
    /// Listens at `address` for links of `parties`, about `links_max` at once: each organisation has an equal share of
    /// them, and sixteen at least.
    ///
    /// # Errors
    /// As [`listen`].
    pub async fn open(address: &str, parties: &Parties, links_max: usize) -> io::Result<Door> {
        Ok(Door::new(listen(address).await?, parties, links_max))
    }

    /// As [`Door::open`], with a listener that is there already.
    pub fn new(listener: Listener, parties: &Parties, links_max: usize) -> Door {
        let organizations = parties.count().unwrap_or(ORGANIZATIONS_USUAL).max(1);
        let of_organization = (links_max / organizations).max(HOLDER_LINKS_MIN);
        let limits = AdmissionLimits {
            // One more, so that a newcomer finds a place before the oldest of its organisation makes room.
            connections_max: links_max.max(of_organization * organizations) + 1,
            connections_per_organization_max: of_organization,
            connections_per_identity_max: (of_organization / IDENTITY_PART).max(HOLDER_LINKS_MIN),
            ..AdmissionLimits::in_proportion(links_max.max(1), BYTES_MAX, organizations)
        };
        let limits = AdmissionLimits { strangers_max: limits.connections_max, strangers_per_address_max: 0, ..limits };
        Door {
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
    pub async fn accept(&mut self) -> Result<(Link, Place), Closed> {
        loop {
            let mut link = self.listener.accept().await?;
            if self.parties.include(&link) {
                if let Some(principal) = link.principal() {
                    let arriving = Arriving::new(&self.arrivals, &principal.organization);
                    link.receiver.charge(arriving);
                }
                let place = self.place(&link);
                return Ok((link, place));
            }
            // The other side, which knows what it wanted, sees its link end and says so.
            LinksRefused.add(1);
        }
    }

    /// Where it listens.
    pub fn address(&self) -> &str {
        self.listener.address()
    }

    fn place(&mut self, link: &Link) -> Place {
        let admitted = self.admission.admit(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let principal = link.principal().cloned().unwrap_or_else(|| {
            self.unnamed += 1;
            let number = self.unnamed.to_string();
            Principal::new(&number, &number)
        });
        admitted.authenticate(principal);
        Place { admitted, is_named: link.principal().is_some() }
    }
}

impl Place {
    /// Fires when the link is to be ended in favour of a newer one of the same holder.
    pub fn displaced(&self) -> &Stop {
        self.admitted.displaced()
    }

    /// Accounts bytes that are held for the link to its organisation. Links without a name have no such budget: they are
    /// of this process itself.
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

    /// A link that proved to be of an identity, and its other end.
    async fn link_of(door: &mut Door, organization: &str, identity: &str) -> (Link, Place) {
        let near = connect(door.address()).await.expect("it listens");
        let (far, unnamed) = door.accept().await.expect("it was connected to");
        drop(unnamed);
        let far = far.with_principal(Principal::new(organization, identity));
        let place = door.place(&far);
        (near, place)
    }

    async fn door(address: &str, parties: &Parties, links_max: usize) -> Door {
        Door::open(address, parties, links_max).await.expect("nobody else listens there")
    }

    /// Any member's certificate could open all 256 places of an orderer's block port and read nothing: a peer whose link
    /// had broken got no blocks any more.
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
            assert!(!b.1.displaced().is_stopped() && !newcomer.1.displaced().is_stopped());
            let open: Vec<bool> = greedy.iter().map(|(_, place)| !place.displaced().is_stopped()).collect();
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
            let open: Vec<bool> = links.iter().map(|(_, place)| !place.displaced().is_stopped()).collect();
            assert!(!open[0] && !open[1] && open[2..].iter().all(|open| *open), "{open:?}");
            assert!(!other.displaced().is_stopped());
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
            assert!(held.iter().all(|(_, (_, place))| !place.displaced().is_stopped()));
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
