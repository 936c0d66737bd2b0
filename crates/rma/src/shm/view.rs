//! What a process knows of one host: the generations of all its grants and the regions that it has mapped.
//!
//! Generations lie in one memfd of the host's, a word for each grant of each region's place:
//!
//! ```text
//! (region % REGIONS_MAX) * GRANTS_MAX + grant   generation:u64; odd while the grant is in force
//! ```
//!
//! Invariants:
//! * A generation only grows, also when a region's place or a grant is used again: no capability ever gets valid again.
//! * Finding a region takes no lock. A region that was taken out is unmapped when no mark of this process names it.
//! * A secret and the name of whoever holds the grant are compared on every verb, with words of a grant that its host has
//!   confirmed to that name.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::area::Area;
use super::marks;
use super::memory::{Access, Mapping};
use crate::{Capability, Error, GrantId, NodeId, RegionId, Rights, Secret};

/// Regions that a host has at once.
pub(super) const REGIONS_MAX: usize = 4096;
/// Grants that a region has at once.
pub(super) const GRANTS_MAX: usize = 256;
/// Bytes of all generations.
pub(super) const GENERATIONS_BYTES: u64 = (REGIONS_MAX * GRANTS_MAX * 8) as u64;

/// The place of a region.
#[inline]
pub(super) fn place(region: RegionId) -> usize {
    region.0 as usize % REGIONS_MAX
}

/// Where a grant's generation lies; `None` for a grant that no region has.
#[inline]
pub(super) fn generation_offset(region: RegionId, grant: GrantId) -> Option<usize> {
    let grant = grant.0 as usize;
    (grant < GRANTS_MAX).then(|| (place(region) * GRANTS_MAX + grant) * 8)
}

/// Whether a grant of this generation is in force.
pub(super) fn is_in_force(generation: u64) -> bool {
    generation % 2 == 1
}

/// A region that is mapped here.
pub(super) struct Region {
    pub(super) id: RegionId,
    pub(super) memory: Mapping,
    grants: Box<[Confirmed]>,
}

/// A name, as verbs compare it: the first 8 bytes of its SHA-256. Whoever looks for a second name with the same ones needs
/// the token of that name, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Holder(u64);

impl Holder {
    pub(super) fn of(name: &str) -> Holder {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
        let first = digest.as_ref().first_chunk::<8>().expect("a digest has 32 bytes");
        Holder(u64::from_le_bytes(*first))
    }
}

/// A grant that the host has confirmed. Readers find the generation the same before and behind the rest.
#[derive(Default)]
struct Confirmed {
    /// 0: none.
    generation: AtomicU64,
    rights: AtomicU64,
    holder: AtomicU64,
    secret: [AtomicU64; 2],
}

fn halves(secret: &Secret) -> [u64; 2] {
    let whole = u128::from_le_bytes(secret.0);
    [whole as u64, (whole >> 64) as u64]
}

/// What a process knows of a capability's secret.
pub(super) enum Proof {
    /// It is right, and the grant has these rights.
    Right(Rights),
    /// It is wrong.
    Wrong,
    /// The host must be asked.
    Unknown,
}

impl Region {
    pub(super) fn new(id: RegionId, memory: Mapping) -> Region {
        Region { id, memory, grants: (0..GRANTS_MAX).map(|_| Confirmed::default()).collect() }
    }

    /// Notes that the host has said of a capability that it is good, on connections of `holder`. One caller at a time.
    fn confirm(&self, capability: &Capability, rights: Rights, holder: Holder) {
        let confirmed = &self.grants[capability.grant.0 as usize];
        confirmed.generation.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        confirmed.rights.store(u64::from(rights.bits()), Ordering::Relaxed);
        confirmed.holder.store(holder.0, Ordering::Relaxed);
        for (word, half) in confirmed.secret.iter().zip(halves(&capability.secret)) {
            word.store(half, Ordering::Relaxed);
        }
        confirmed.generation.store(capability.generation, Ordering::Release);
    }

    /// Checks the secret of a capability that is shown on a connection of `holder`; the same time whatever the secret.
    #[inline]
    pub(super) fn prove(&self, capability: &Capability, holder: Holder) -> Proof {
        let Some(confirmed) = self.grants.get(capability.grant.0 as usize) else { return Proof::Wrong };
        if confirmed.generation.load(Ordering::Acquire) != capability.generation {
            return Proof::Unknown;
        }
        let rights = confirmed.rights.load(Ordering::Relaxed);
        let [low, high] = halves(&capability.secret);
        let difference = (confirmed.secret[0].load(Ordering::Relaxed) ^ low)
            | (confirmed.secret[1].load(Ordering::Relaxed) ^ high)
            | (confirmed.holder.load(Ordering::Relaxed) ^ holder.0);
        fence(Ordering::Acquire);
        // A generation never returns, so that the same one twice means that nothing changed in between.
        if confirmed.generation.load(Ordering::Relaxed) != capability.generation {
            return Proof::Unknown;
        }
        match Rights::from_bits(rights as u8) {
            Some(rights) if difference == 0 => Proof::Right(rights),
            _ => Proof::Wrong,
        }
    }
}

/// One host, as this process sees it.
pub(super) struct View {
    pub(super) node: NodeId,
    generations: Mapping,
    /// Each is null or comes from a box.
    regions: Box<[AtomicPtr<Region>]>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Taken out of the table, not yet unmapped. Verbs may still refer to them where they are.
    #[allow(clippy::vec_box, reason = "a region that is referred to must not move")]
    retired: Vec<Box<Region>>,
    /// Where this process puts its marks.
    areas: Vec<Weak<Area>>,
}

impl View {
    /// With the generations' memfd mapped for reading, and no region yet.
    pub(super) fn new(node: NodeId, generations: impl AsFd) -> Result<View, Error> {
        Ok(View {
            node,
            generations: Mapping::new(generations, GENERATIONS_BYTES, Access::Read, false)?,
            regions: (0..REGIONS_MAX).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            kept: Mutex::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Whole between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says where marks of verbs through this view will be put. Before any of them.
    pub(super) fn add_area(&self, area: &Arc<Area>) {
        let mut kept = self.kept();
        kept.areas.retain(|area| area.strong_count() > 0);
        kept.areas.push(Arc::downgrade(area));
    }

    /// The word of a grant's generation.
    #[inline]
    pub(super) fn generation(&self, offset: usize) -> &AtomicU64 {
        self.generations.word(offset)
    }

    /// Calls `access` with a region.
    ///
    /// # Safety
    /// A mark that names the region stands in one of this view's areas from before the call until after it.
    #[inline]
    pub(super) unsafe fn with_region<T>(&self, region: RegionId, access: impl FnOnce(Option<&Region>) -> T) -> T {
        let pointer = self.regions[place(region)].load(Ordering::Acquire);
        // SAFETY: it came from a box, which is dropped only after it was taken out of the table and then no mark named a
        // region of its place. The caller's mark does, whichever region of the place this is, and was put before the load
        // with a fence in between.
        access(unsafe { pointer.as_ref() }.filter(|found| found.id == region))
    }

    /// Whether a region is mapped.
    pub(super) fn is_mapped(&self, region: RegionId) -> bool {
        let _no_removal = self.kept();
        let pointer = self.regions[place(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        unsafe { pointer.as_ref() }.is_some_and(|found| found.id == region)
    }

    /// Puts a region into the table in place of an earlier one; keeps the one that stands there when it is the same or later.
    pub(super) fn replace(&self, region: Region) {
        let mut kept = self.kept();
        let slot = &self.regions[place(region.id)];
        let pointer = slot.load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        if unsafe { pointer.as_ref() }.is_some_and(|found| found.id >= region.id) {
            return;
        }
        slot.store(Box::into_raw(Box::new(region)), Ordering::Release);
        if !pointer.is_null() {
            // SAFETY: it came from a box and is no longer in the table.
            kept.retired.push(unsafe { Box::from_raw(pointer) });
            kept.reclaim();
        }
    }

    /// Notes that the host has said of a capability that it is good, with these rights and on connections of `holder`; false
    /// when the region is not mapped.
    pub(super) fn confirm(&self, capability: &Capability, rights: Rights, holder: Holder) -> bool {
        let _one_at_a_time_and_no_removal = self.kept();
        let region = capability.region;
        let pointer = self.regions[place(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        match unsafe { pointer.as_ref() }.filter(|found| found.id == region) {
            Some(found) => {
                found.confirm(capability, rights, holder);
                true
            }
            None => false,
        }
    }

    /// Takes a region out; it is unmapped as soon as no verb uses it.
    pub(super) fn remove(&self, region: RegionId) {
        let mut kept = self.kept();
        let pointer = self.regions[place(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        if unsafe { pointer.as_ref() }.is_some_and(|found| found.id == region) {
            self.regions[place(region)].store(std::ptr::null_mut(), Ordering::Release);
            // SAFETY: it came from a box and is no longer in the table.
            kept.retired.push(unsafe { Box::from_raw(pointer) });
        }
        kept.reclaim();
    }

    /// Takes every region out.
    pub(super) fn clear(&self) {
        let mut kept = self.kept();
        for place in &self.regions {
            let pointer = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
            if !pointer.is_null() {
                // SAFETY: it came from a box and is no longer in the table.
                kept.retired.push(unsafe { Box::from_raw(pointer) });
            }
        }
        kept.reclaim();
    }
}

impl Kept {
    /// Unmaps what no mark names.
    fn reclaim(&mut self) {
        fence(Ordering::SeqCst);
        self.areas.retain(|area| area.strong_count() > 0);
        let marks: Vec<u64> = self.areas.iter().filter_map(Weak::upgrade).flat_map(|area| marks_of(&area)).collect();
        self.retired.retain(|region| {
            marks
                .iter()
                .any(|mark| marks::region_of(*mark).is_some_and(|named| place(RegionId(named)) == place(region.id)))
        });
    }
}

fn marks_of(area: &Area) -> Vec<u64> {
    area.marks().map(|(_, mark)| mark).collect()
}

impl Drop for View {
    fn drop(&mut self) {
        // Nobody is within a verb: verbs borrow the connection, which holds the view.
        self.clear();
    }
}
