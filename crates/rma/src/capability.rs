//! Capabilities. A capability is the right of one holder to access one region, until it is revoked.
//!
//! ```text
//! node:u32 le | region:u32 le | grant:u16 le | rights:u8 | 0:u8 | reserved:u32 le = 0 | generation:u64 le | secret:16
//! ```
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;

use wire::{u16_at, u32_at, u64_at};

use crate::Error;

/// A host of regions, unique within one network of hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct NodeId(pub u32);

/// A region of one host. The number is never reused within one incarnation of the host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RegionId(pub u32);

/// One of the grants of a region: each can be revoked by itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct GrantId(pub u16);

/// The access that a holder has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rights(u8);

impl Rights {
    /// No access.
    pub const NONE: Rights = Rights(0);
    /// Reads.
    pub const READ: Rights = Rights(1);
    /// Writes, including those with immediate data.
    pub const WRITE: Rights = Rights(2);
    /// Compare-and-swap and fetch-and-add.
    pub const ATOMIC: Rights = Rights(4);
    /// All rights.
    pub const ALL: Rights = Rights(7);

    /// The rights of both.
    #[must_use]
    pub const fn and(self, other: Rights) -> Rights {
        Rights(self.0 | other.0)
    }

    /// Whether these rights include all of `other`.
    #[inline]
    pub const fn include(self, other: Rights) -> bool {
        self.0 & other.0 == other.0
    }

    /// The stored form.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Decodes stored bits; `None` if unknown ones are set.
    pub const fn from_bits(bits: u8) -> Option<Rights> {
        if bits & !Rights::ALL.0 == 0 { Some(Rights(bits)) } else { None }
    }
}

/// A secret shared by the host and the holders of a capability. Never shown, compared in constant time.
#[derive(Clone, Copy)]
pub struct CapabilitySecret(pub(crate) [u8; 16]);

impl CapabilitySecret {
    /// A new secret from the ambient random generator.
    pub fn random() -> CapabilitySecret {
        let mut bytes = [0; 16];
        base::rt::fill_random(&mut bytes);
        CapabilitySecret(bytes)
    }

    /// Whether both are the same, in constant time.
    #[inline(never)]
    pub fn matches(&self, other: &CapabilitySecret) -> bool {
        equal_in_constant_time(&self.0, &other.0)
    }

    /// The bytes, for providers that keep what belongs to a capability.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        self.0
    }
}

/// Compares without a branch on the contents.
pub(crate) fn equal_in_constant_time(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let difference = one.iter().zip(other).fold(0u8, |difference, (a, b)| difference | (a ^ b));
    std::hint::black_box(difference) == 0
}

impl fmt::Debug for CapabilitySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Bytes of an encoded capability.
pub const CAPABILITY_BYTES: usize = 40;

/// The right to use a region, until the host revokes it.
#[derive(Clone, Copy, Debug)]
pub struct Capability {
    /// The host that owns the region.
    pub node: NodeId,
    /// The region.
    pub region: RegionId,
    /// The grant of the region.
    pub grant: GrantId,
    /// The allowed access.
    pub rights: Rights,
    /// The grant's generation when this capability was created; a revocation raises the grant's.
    pub generation: u64,
    /// Proves that the host gave the capability to its holder.
    pub secret: CapabilitySecret,
}

impl Capability {
    /// The same capability with fewer rights. Rights that this one lacks are not added. A host that checks rights by the secret
    /// does not enforce the narrowing: for a holder that you do not trust, use another grant.
    #[must_use]
    pub fn narrowed(mut self, rights: Rights) -> Capability {
        self.rights = Rights(self.rights.0 & rights.0);
        self
    }

    /// The capability's bytes; they contain the secret.
    pub fn encode(&self) -> [u8; CAPABILITY_BYTES] {
        let mut bytes = [0; CAPABILITY_BYTES];
        bytes[0..4].copy_from_slice(&self.node.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.region.0.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.grant.0.to_le_bytes());
        bytes[10] = self.rights.0;
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.secret.0);
        bytes
    }

    /// Decodes a capability.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Capability, Error> {
        let bytes: &[u8; CAPABILITY_BYTES] =
            bytes.try_into().map_err(|_| Error::Malformed("a capability of another length"))?;
        let rights = Rights::from_bits(bytes[10]).ok_or(Error::Malformed("a capability with unknown rights"))?;
        if bytes[11..16] != [0; 5] {
            return Err(Error::Malformed("a capability with reserved bytes set"));
        }
        let mut secret = [0; 16];
        secret.copy_from_slice(&bytes[24..40]);
        Ok(Capability {
            node: NodeId(u32_at(bytes, 0)),
            region: RegionId(u32_at(bytes, 4)),
            grant: GrantId(u16_at(bytes, 8)),
            rights,
            generation: u64_at(bytes, 16),
            secret: CapabilitySecret(secret),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability() -> Capability {
        Capability {
            node: NodeId(1),
            region: RegionId(0x0203),
            grant: GrantId(4),
            rights: Rights::READ.and(Rights::ATOMIC),
            generation: 5,
            secret: CapabilitySecret([9; 16]),
        }
    }

    #[test]
    fn capabilities_have_the_documented_layout() {
        let mut golden = vec![1, 0, 0, 0, 3, 2, 0, 0, 4, 0, 5, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        golden.extend([9; 16]);
        assert_eq!(capability().encode()[..], golden);
        assert_eq!(Capability::decode(&golden).expect("they are well-formed").encode()[..], golden);
    }

    #[test]
    fn bytes_that_are_no_capability_are_refused() {
        let good = capability().encode();
        assert!(Capability::decode(&good[1..]).is_err());
        for at in 10..16 {
            let mut bad = good;
            bad[at] = 0x80;
            assert!(Capability::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        assert!(!format!("{:?}", capability()).contains('9'));
    }
}
