//! The memory of one host: regions, their grants, and how the words of a verb land.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use base::rt::simulation::Prng;

use crate::{Capability, CapabilitySecret, Error, GrantId, NodeId, RegionId, Rights, VerbOrdering, WORD_BYTES};

/// Grants of a region, over its lifetime.
const GRANTS_MAX: usize = u16::MAX as usize;
/// The size of a region is a multiple of this.
const PAGE_BYTES: u64 = 4096;

/// All regions of one incarnation of a host.
pub(super) struct HostMemory {
    node: NodeId,
    regions: BTreeMap<RegionId, SimRegion>,
    regions_made: u32,
    bytes: u64,
    bytes_max: u64,
    /// Whether fences work; only a test of the checker disables them.
    pub(super) fences_hold: bool,
}

struct SimRegion {
    bytes: Vec<u8>,
    grants: Vec<SimGrant>,
}

struct SimGrant {
    rights: Rights,
    secret: CapabilitySecret,
    /// The name on whose connections the grant is valid.
    holder: Arc<str>,
    generation: u64,
    /// A revocation has returned: from then on nothing may land under any capability of this grant.
    fenced: bool,
}

/// The access of a verb to a region.
#[derive(Clone, Copy)]
pub(super) struct VerbAccess {
    pub capability: Capability,
    pub needs: Rights,
    pub offset: u64,
    pub length: u64,
    pub atomic: bool,
}

impl HostMemory {
    pub(super) fn new(node: NodeId, bytes_max: u64) -> HostMemory {
        HostMemory { node, regions: BTreeMap::new(), regions_made: 0, bytes: 0, bytes_max, fences_hold: true }
    }

    pub(super) fn node(&self) -> NodeId {
        self.node
    }

    /// Bytes of all regions.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn register(&mut self, bytes: u64) -> Result<RegionId, Error> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::Rejected(format!(
                "a region of {bytes} bytes: its size must be a multiple of {PAGE_BYTES}"
            )));
        }
        if bytes > self.bytes_max - self.bytes {
            return Err(Error::Exhausted(format!("{} of {} bytes of memory are in use", self.bytes, self.bytes_max)));
        }
        let length = usize::try_from(bytes).map_err(|_| Error::Exhausted("address space".to_owned()))?;
        self.bytes += bytes;
        let region = RegionId(self.regions_made);
        self.regions_made += 1;
        self.regions.insert(region, SimRegion { bytes: vec![0; length], grants: Vec::new() });
        Ok(region)
    }

    pub(super) fn grant(
        &mut self,
        region: RegionId,
        rights: Rights,
        holder: &str,
        secret: CapabilitySecret,
    ) -> Result<Capability, Error> {
        let node = self.node;
        let grants = &mut self.regions.get_mut(&region).ok_or(Error::Unknown)?.grants;
        if grants.len() >= GRANTS_MAX {
            return Err(Error::Exhausted(format!("all {GRANTS_MAX} grants of a region")));
        }
        let grant = GrantId(grants.len() as u16);
        grants.push(SimGrant { rights, secret, holder: holder.into(), generation: 1, fenced: false });
        Ok(Capability { node, region, grant, rights, generation: 1, secret })
    }

    /// A region's bytes, for its owner.
    pub(super) fn owned(&mut self, region: RegionId, offset: u64, length: usize) -> Result<&mut [u8], Error> {
        let bytes = &mut self.regions.get_mut(&region).ok_or(Error::Unknown)?.bytes;
        let region_bytes = bytes.len() as u64;
        match offset.checked_add(length as u64) {
            Some(end) if end <= region_bytes => Ok(&mut bytes[offset as usize..end as usize]),
            _ => Err(Error::OutOfBounds { offset, length: length as u64, region_bytes }),
        }
    }

    /// The grant that a capability was created for.
    fn grant_of(&self, capability: &Capability) -> Result<(&SimRegion, &SimGrant), Error> {
        if capability.node != self.node {
            return Err(Error::Unknown);
        }
        let region = self.regions.get(&capability.region).ok_or(Error::Unknown)?;
        let grant = region.grants.get(usize::from(capability.grant.0)).ok_or(Error::Unknown)?;
        if !grant.secret.matches(&capability.secret) || capability.generation > grant.generation {
            return Err(Error::Unknown);
        }
        Ok((region, grant))
    }

    fn grant_mut(&mut self, capability: &Capability) -> Result<&mut SimGrant, Error> {
        self.grant_of(capability)?;
        let region = self.regions.get_mut(&capability.region).ok_or(Error::Unknown)?;
        region.grants.get_mut(usize::from(capability.grant.0)).ok_or(Error::Unknown)
    }

    /// First step of a revocation: verbs that have not started are rejected from now on.
    pub(super) fn raise(&mut self, capability: &Capability) -> Result<(), Error> {
        let grant = self.grant_mut(capability)?;
        if capability.generation == grant.generation {
            grant.generation += 1;
        }
        Ok(())
    }

    /// Last step of a revocation: verbs that have started do not continue.
    pub(super) fn fence(&mut self, capability: &Capability) -> Result<(), Error> {
        self.grant_mut(capability)?.fenced = true;
        Ok(())
    }

    /// The capabilities of a region's grants that are not revoked.
    pub(super) fn capabilities(&self, region: RegionId) -> Result<Vec<Capability>, Error> {
        let state = self.regions.get(&region).ok_or(Error::Unknown)?;
        let capability = |(number, grant): (usize, &SimGrant)| Capability {
            node: self.node,
            region,
            grant: GrantId(number as u16),
            rights: grant.rights,
            generation: grant.generation,
            secret: grant.secret,
        };
        Ok(state.grants.iter().enumerate().filter(|(_, grant)| !grant.fenced).map(capability).collect())
    }

    pub(super) fn remove(&mut self, region: RegionId) {
        if let Some(region) = self.regions.remove(&region) {
            self.bytes -= region.bytes.len() as u64;
        }
    }

    /// Whether a verb that came over a connection of `holder` may start.
    pub(super) fn admit(&self, access: &VerbAccess, holder: &str) -> Result<(), Error> {
        let VerbAccess { capability, needs, offset, length, atomic } = access;
        let (region, grant) = self.grant_of(capability)?;
        if *grant.holder != *holder {
            return Err(Error::Unknown);
        }
        if capability.generation < grant.generation {
            return Err(Error::Revoked);
        }
        if !grant.rights.include(*needs) || !capability.rights.include(*needs) {
            return Err(Error::Forbidden);
        }
        let region_bytes = region.bytes.len() as u64;
        if offset.checked_add(*length).is_none_or(|end| end > region_bytes) {
            return Err(Error::OutOfBounds { offset: *offset, length: *length, region_bytes });
        }
        if *atomic && !offset.is_multiple_of(WORD_BYTES as u64) {
            return Err(Error::Misaligned(*offset));
        }
        Ok(())
    }

    /// The region's bytes for a verb that has started; `None` after a fence or the end of the region.
    pub(super) fn reach(&mut self, access: &VerbAccess) -> Option<&mut [u8]> {
        let number = usize::from(access.capability.grant.0);
        let region = self.regions.get_mut(&access.capability.region)?;
        let fenced = region.grants[number].fenced;
        if fenced && self.fences_hold {
            return None;
        }
        // The checker, which does not depend on the check that lets the verb through above.
        assert!(
            !fenced,
            "a word lands in {:?} under {:?}, which was revoked",
            access.capability.region, access.capability
        );
        let start = usize::try_from(access.offset).expect("the verb was admitted");
        let length = usize::try_from(access.length).expect("the verb was admitted");
        Some(&mut region.bytes[start..start + length])
    }
}

/// The words of a transfer that land together.
pub(super) enum Tear {
    /// All of them.
    Whole,
    /// Random for each word.
    Scattered { seed: u64, bursts: u32 },
    /// Runs of words that end at these indices, from low addresses to high ones or the other way.
    Runs { ends: Vec<u64>, descending: bool },
}

impl Tear {
    /// A random tear for a transfer of `words` words.
    pub(super) fn draw(rng: &mut Prng, words: u64, ordering: VerbOrdering) -> Tear {
        if words < 2 {
            return Tear::Whole;
        }
        let bursts = 2 + u32::from(words > 2 && rng.one_in(3));
        if ordering == VerbOrdering::Verbs && words > 2 && rng.one_in(2) {
            return Tear::Scattered { seed: rng.number(), bursts };
        }
        let mut ends: Vec<u64> = (1..bursts).map(|_| 1 + rng.below(words - 1)).collect();
        ends.push(words);
        ends.sort_unstable();
        ends.dedup();
        Tear::Runs { ends, descending: ordering == VerbOrdering::Verbs && rng.one_in(2) }
    }

    pub(super) fn bursts(&self) -> u32 {
        match self {
            Tear::Whole => 1,
            Tear::Scattered { bursts, .. } => *bursts,
            Tear::Runs { ends, .. } => ends.len() as u32,
        }
    }

    /// Calls `land` with the bytes of a transfer from `offset` that land in a burst. Each range consists of whole words, except
    /// for the first and last word of the transfer, of which it has only the bytes that belong to the transfer.
    pub(super) fn each(&self, burst: u32, offset: u64, length: usize, mut land: impl FnMut(Range<usize>)) {
        let word = WORD_BYTES as u64;
        let skew = (offset % word) as usize;
        let words = words_of(offset, length);
        let bytes_of = |from: u64, to: u64| {
            let start = (from as usize * WORD_BYTES).saturating_sub(skew);
            let end = (to as usize * WORD_BYTES - skew).min(length);
            start..end
        };
        match self {
            Tear::Whole => land(0..length),
            Tear::Scattered { seed, bursts } => {
                for place in (0..words).filter(|place| mix(seed ^ place) % u64::from(*bursts) == u64::from(burst)) {
                    land(bytes_of(place, place + 1));
                }
            }
            Tear::Runs { ends, descending } => {
                let place = if *descending { ends.len() - 1 - burst as usize } else { burst as usize };
                let from = if place == 0 { 0 } else { ends[place - 1] };
                land(bytes_of(from, ends[place]));
            }
        }
    }
}

/// The number of words that a transfer touches.
pub(super) fn words_of(offset: u64, length: usize) -> u64 {
    let skew = offset % WORD_BYTES as u64;
    (skew + length as u64).div_ceil(WORD_BYTES as u64)
}

/// The finaliser of splitmix64.
fn mix(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_transfer_lands_once_and_words_never_tear() {
        let mut rng = Prng::new(1);
        let mut bursts_seen = [0; 4];
        for _ in 0..2000 {
            let offset = rng.below(64);
            let length = rng.index(200);
            let ordering = *rng.pick(&[VerbOrdering::Verbs, VerbOrdering::Words]);
            let tear = Tear::draw(&mut rng, words_of(offset, length), ordering);
            bursts_seen[tear.bursts() as usize] += 1;
            let mut landed = vec![None; length];
            let mut last = 0;
            for burst in 0..tear.bursts() {
                tear.each(burst, offset, length, |range| {
                    if ordering == VerbOrdering::Words {
                        assert_eq!(range.start, last, "words land from low addresses to high ones");
                        last = range.end;
                    }
                    for place in range {
                        assert_eq!(landed[place].replace(burst), None);
                    }
                });
            }
            for place in 0..length {
                let burst = landed[place].expect("every byte lands");
                let address = offset + place as u64;
                if place > 0 && !address.is_multiple_of(8) {
                    assert_eq!(landed[place - 1], Some(burst), "bytes of one word land together");
                }
            }
        }
        assert!(bursts_seen[2] > 100 && bursts_seen[3] > 100, "{bursts_seen:?}");
    }

    #[test]
    #[should_panic(expected = "which was revoked")]
    fn the_checker_sees_a_word_that_lands_behind_a_fence() {
        let mut memory = HostMemory::new(NodeId(1), 1 << 20);
        let region = memory.register(4096).expect("there is room");
        let capability =
            memory.grant(region, Rights::ALL, "owner", CapabilitySecret([1; 16])).expect("the region is there");
        let access = VerbAccess { capability, needs: Rights::WRITE, offset: 0, length: 8, atomic: false };
        assert!(memory.admit(&access, "owner").is_ok() && memory.reach(&access).is_some());
        memory.raise(&capability).expect("the grant is there");
        assert!(memory.reach(&access).is_some(), "a verb that has begun may go on until the fence stands");
        memory.fence(&capability).expect("the grant is there");
        assert_eq!(memory.admit(&access, "another"), Err(Error::Unknown));
        assert_eq!(memory.admit(&access, "owner"), Err(Error::Revoked));
        assert!(memory.reach(&access).is_none());
        memory.fences_hold = false;
        memory.reach(&access);
    }
}
