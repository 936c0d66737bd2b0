//! A read grant: the primary passes it to a follower, so that the follower can read a section of their owner's memory.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::{BufMut as _, Bytes, BytesMut};
use rma::{CAPABILITY_BYTES, Capability, Rights};

use super::Section;
use crate::Error;

/// Bytes of a donor's address.
const ADDRESS_BYTES_MAX: usize = 1024;

/// A read grant of a section.
#[derive(Clone, Debug)]
pub struct ReadGrant {
    /// The section's number, address and length in the owner's space.
    pub section: Section,
    /// The donor's network address.
    pub donor: String,
    /// For reading only, of this follower alone.
    pub capability: Capability,
}

impl ReadGrant {
    /// The section's location for a message: the capability, then the donor's address. It contains the secret.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(CAPABILITY_BYTES.saturating_add(self.donor.len()));
        bytes.put_slice(&self.capability.encode());
        bytes.put_slice(self.donor.as_bytes());
        bytes.freeze()
    }

    /// Decodes [`ReadGrant::encode`].
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode(section: Section, place: &[u8]) -> Result<ReadGrant, Error> {
        let (capability, donor) =
            place.split_at_checked(CAPABILITY_BYTES).ok_or(Error::Malformed("a location without a capability"))?;
        let capability =
            Capability::decode(capability).map_err(|_| Error::Malformed("a location without a capability"))?;
        let donor = std::str::from_utf8(donor).map_err(|_| Error::Malformed("a donor's address is not UTF-8"))?;
        if donor.len() > ADDRESS_BYTES_MAX || !capability.rights.include(Rights::READ) {
            return Err(Error::Malformed("a location without the right to read, or with too long an address"));
        }
        Ok(ReadGrant { section, donor: donor.to_owned(), capability })
    }
}
