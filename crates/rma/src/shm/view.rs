//! A process's view of one host: the generations of all its grants, and the regions that the process has mapped.
//!
//! Generations lie in one memfd of the host, one word for each grant of each region slot:
//!
//! ```text
//! (region % REGIONS_MAX) * GRANTS_MAX + grant   generation:u64; odd while the grant is in force
//! ```
//!
//! Invariants:
//! * A generation only grows, even when a region's slot or a grant is reused: a revoked capability never becomes valid
//!   again.
//! * Finding a region takes no lock. A region that was removed from the table is unmapped when no mark of this process
//!   names it.
//! * Every verb compares its capability's secret, and the name that its connection has proved, with the grant that the
//!   host has confirmed.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::hazards;
use super::memory::{Mapping, MappingAccess};
use super::segment::ConnectionSegment;
use crate::{Capability, CapabilitySecret, Error, GrantId, NodeId, RegionId, Rights};

/// Regions of a host.
pub(super) const REGIONS_MAX: usize = 4096;
/// Grants of a region.
pub(super) const GRANTS_MAX: usize = 256;
/// Bytes of all generations.
pub(super) const GENERATIONS_BYTES: u64 = (REGIONS_MAX * GRANTS_MAX * 8) as u64;

/// The slot of a region.
#[inline]
pub(super) fn slot_index(region: RegionId) -> usize {
    region.0 as usize % REGIONS_MAX
}

/// The offset of a grant's generation; `None` for a grant number that no region has.
#[inline]
pub(super) fn generation_offset(region: RegionId, grant: GrantId) -> Option<usize> {
    let grant = grant.0 as usize;
    (grant < GRANTS_MAX).then(|| (slot_index(region) * GRANTS_MAX + grant) * 8)
}

/// Whether a grant of this generation is in force.
pub(super) fn is_in_force(generation: u64) -> bool {
    generation % 2 == 1
}

/// A region that is mapped here.
pub(super) struct MappedRegion {
    pub(super) id: RegionId,
    pub(super) memory: Mapping,
    grants: Box<[ConfirmedGrant]>,
}

/// A name in the form that verbs compare: the first 8 bytes of its SHA-256. An attacker who finds a second name with the same
/// bytes needs that name's token, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HolderDigest(u64);

impl HolderDigest {
    pub(super) fn of(name: &str) -> HolderDigest {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
        let first = digest.as_ref().first_chunk::<8>().expect("a digest has 32 bytes");
        HolderDigest(u64::from_le_bytes(*first))
    }
}

/// A grant that the host has confirmed. A reader must find the same generation before and after it reads the rest.
#[derive(Default)]
struct ConfirmedGrant {
    /// 0 for no grant.
    generation: AtomicU64,
    rights: AtomicU64,
    holder: AtomicU64,
    secret: [AtomicU64; 2],
}

fn halves(secret: &CapabilitySecret) -> [u64; 2] {
    let whole = u128::from_le_bytes(secret.0);
    [whole as u64, (whole >> 64) as u64]
}

/// What a process knows about a capability's secret.
pub(super) enum SecretCheck {
    /// The secret is right, and the grant has these rights.
    Right(Rights),
    /// The secret is wrong.
    Wrong,
    /// The host must be asked.
    Unknown,
}

impl MappedRegion {
    pub(super) fn new(id: RegionId, memory: Mapping) -> MappedRegion {
        MappedRegion { id, memory, grants: (0..GRANTS_MAX).map(|_| ConfirmedGrant::default()).collect() }
    }

    /// Records that the host has confirmed a capability for connections of `holder`. One caller at a time.
    fn confirm(&self, capability: &Capability, rights: Rights, holder: HolderDigest) {
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

    /// Checks the secret of a capability that is presented on a connection of `holder`, in constant time.
    #[inline]
    pub(super) fn check_secret(&self, capability: &Capability, holder: HolderDigest) -> SecretCheck {
        let Some(confirmed) = self.grants.get(capability.grant.0 as usize) else { return SecretCheck::Wrong };
        if confirmed.generation.load(Ordering::Acquire) != capability.generation {
            return SecretCheck::Unknown;
        }
        let rights = confirmed.rights.load(Ordering::Relaxed);
        let [low, high] = halves(&capability.secret);
        let difference = (confirmed.secret[0].load(Ordering::Relaxed) ^ low)
            | (confirmed.secret[1].load(Ordering::Relaxed) ^ high)
            | (confirmed.holder.load(Ordering::Relaxed) ^ holder.0);
        fence(Ordering::Acquire);
        // A generation never returns, so reading the same one twice means that nothing changed in between.
        if confirmed.generation.load(Ordering::Relaxed) != capability.generation {
            return SecretCheck::Unknown;
        }
        match Rights::from_bits(rights as u8) {
            Some(rights) if difference == 0 => SecretCheck::Right(rights),
            _ => SecretCheck::Wrong,
        }
    }
}

/// One host, as this process sees it.
pub(super) struct HostView {
    pub(super) node: NodeId,
    generations: Mapping,
    /// Each is null or comes from a box.
    regions: Box<[AtomicPtr<MappedRegion>]>,
    state: Mutex<ViewState>,
}

#[derive(Default)]
struct ViewState {
    /// Removed from the table and not yet unmapped. Verbs may still refer to them at their address.
    #[allow(clippy::vec_box, reason = "a region that is referred to must not move")]
    retired: Vec<Box<MappedRegion>>,
    /// The segments in which this process sets its marks.
    segments: Vec<Weak<ConnectionSegment>>,
}

impl HostView {
    /// Maps the generations' memfd for reading; has no region yet.
    pub(super) fn new(node: NodeId, generations: impl AsFd) -> Result<HostView, Error> {
        Ok(HostView {
            node,
            generations: Mapping::new(generations, GENERATIONS_BYTES, MappingAccess::Read, false)?,
            regions: (0..REGIONS_MAX).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect(),
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, ViewState> {
        // Consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a segment in which marks of verbs through this view will be set. Call this before any of them is set.
    pub(super) fn add_segment(&self, area: &Arc<ConnectionSegment>) {
        let mut kept = self.state();
        kept.segments.retain(|area| area.strong_count() > 0);
        kept.segments.push(Arc::downgrade(area));
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
    pub(super) unsafe fn with_region<T>(&self, region: RegionId, access: impl FnOnce(Option<&MappedRegion>) -> T) -> T {
        let pointer = self.regions[slot_index(region)].load(Ordering::Acquire);
        // SAFETY: it came from a box, which is dropped only after it was removed from the table and no mark named a region of
        // its slot after that. The caller's mark names this slot, whichever of its regions this is, and was set before the load
        // with a fence in between.
        access(unsafe { pointer.as_ref() }.filter(|found| found.id == region))
    }

    /// Whether a region is mapped.
    pub(super) fn is_mapped(&self, region: RegionId) -> bool {
        let _no_removal = self.state();
        let pointer = self.regions[slot_index(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        unsafe { pointer.as_ref() }.is_some_and(|found| found.id == region)
    }

    /// Puts a region into the table in place of an earlier one; keeps the present one if it is the same or later.
    pub(super) fn replace(&self, region: MappedRegion) {
        let mut kept = self.state();
        let slot = &self.regions[slot_index(region.id)];
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

    /// Records that the host has confirmed a capability, with these rights and for connections of `holder`; false when the
    /// region is not mapped.
    pub(super) fn confirm(&self, capability: &Capability, rights: Rights, holder: HolderDigest) -> bool {
        let _one_at_a_time_and_no_removal = self.state();
        let region = capability.region;
        let pointer = self.regions[slot_index(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        match unsafe { pointer.as_ref() }.filter(|found| found.id == region) {
            Some(found) => {
                found.confirm(capability, rights, holder);
                true
            }
            None => false,
        }
    }

    /// Removes a region; it is unmapped as soon as no verb uses it.
    pub(super) fn remove(&self, region: RegionId) {
        let mut kept = self.state();
        let pointer = self.regions[slot_index(region)].load(Ordering::Acquire);
        // SAFETY: regions are dropped under the lock that is held here, after they were taken out of the table.
        if unsafe { pointer.as_ref() }.is_some_and(|found| found.id == region) {
            self.regions[slot_index(region)].store(std::ptr::null_mut(), Ordering::Release);
            // SAFETY: it came from a box and is no longer in the table.
            kept.retired.push(unsafe { Box::from_raw(pointer) });
        }
        kept.reclaim();
    }

    /// Removes every region.
    pub(super) fn clear(&self) {
        let mut kept = self.state();
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

impl ViewState {
    /// Unmaps the retired regions that no mark names.
    fn reclaim(&mut self) {
        fence(Ordering::SeqCst);
        self.segments.retain(|area| area.strong_count() > 0);
        let marks: Vec<u64> =
            self.segments.iter().filter_map(Weak::upgrade).flat_map(|area| hazards_of(&area)).collect();
        self.retired.retain(|region| {
            marks.iter().any(|mark| {
                hazards::region_of(*mark).is_some_and(|named| slot_index(RegionId(named)) == slot_index(region.id))
            })
        });
    }
}

fn hazards_of(area: &ConnectionSegment) -> Vec<u64> {
    area.hazards().map(|(_, mark)| mark).collect()
}

impl Drop for HostView {
    fn drop(&mut self) {
        // No verb is in progress: verbs borrow the connection, which holds the view.
        self.clear();
    }
}
