//! Donors that join an open space, and leave it again.
//!
//! 1. [`AddressSpace::add_donor`] connects to the donor and fences there, as opening does. Nothing is adopted: what an
//!    earlier epoch left there is returned.
//! 2. The donor begins as one that is vacated, so that the caller can make it durable before it has sections: a later
//!    epoch that does not know of the donor loses them. [`AddressSpace::set_vacated`] puts it to use.
//! 3. A donor that was vacated and has no section left can be removed ([`AddressSpace::remove_donor`]).

use super::AddressSpace;
use super::config::Donor;
use super::donor_list::DONORS_JOINING_MAX;
use super::donor_session::Adoption;
use super::space_core::DonorConnection;
use crate::Error;

impl AddressSpace {
    /// Adds a donor, which begins as vacated. One call at a time. When the future is dropped, the donor stays, vacated.
    ///
    /// # Errors
    /// Why the donor cannot be reached, or refuses; it has not been added then. [`Error::Invalid`] if the space has it, or
    /// too many have joined.
    pub async fn add_donor(&self, donor: Donor) -> Result<(), Error> {
        let shared = &self.shared;
        shared.check_open()?;
        let address = donor.address.clone();
        if shared.donor(&address).is_some() {
            return Err(Error::Invalid(format!("the memory node at {address} is one of this owner's already")));
        }
        let joining = DonorConnection::new(donor);
        joining.set_vacated(true);
        let place = shared.donors.push(joining).ok_or_else(|| {
            let count = DONORS_JOINING_MAX;
            Error::Invalid(format!(
                "{count} memory nodes have joined since this owner's memory was opened; open it again"
            ))
        })?;
        let outcome = self.keep_connected(place, Adoption::None).await.unwrap_or_else(|_| Err(shared.closed()));
        match outcome {
            // It may be reachable by and by; but then its operator adds it again.
            Err(error) => {
                shared.donors.at(place).removed.cancel();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Removes a donor that was vacated. Its connection ends.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no such donor, it is in use, or it has sections of this space.
    pub fn remove_donor(&self, address: &str) -> Result<(), Error> {
        let Some(place) = self.shared.donor(address) else {
            return Err(Error::Invalid(format!("there is no memory node at {address}")));
        };
        let sections = self.sections().iter().filter(|section| self.donor_of(section.id) == Some(address)).count();
        if !place.is_vacated() || sections > 0 {
            let why = format!("the memory node at {address} is in use, with {sections} sections; vacate it first");
            return Err(Error::Invalid(why));
        }
        place.removed.cancel();
        Ok(())
    }
}
