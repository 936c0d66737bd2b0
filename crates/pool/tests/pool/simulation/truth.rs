//! Observes the pool from outside the code under test, and checks these properties:
//!
//! * At every registration: the memory that a donor has registered is within its budget.
//! * When a space has been opened that adopts nothing: no donor to which it is connected has memory registered for an older epoch, and no
//!   newer epoch was opened at that donor earlier in the donor's current run.
//! * An adopted section was granted to an earlier epoch of its owner, and nobody else changes its words any more.
//! * After a donor has answered the fence of a newer epoch, it grants nothing to requests of an older epoch.
//! * A verb to a section fails if it is posted after the fence of an epoch that is newer than the section's grant.
//! * Memory is zero at first, and after that holds what its owner wrote.
//! * A section is granted once and lost at most once; live, released and lost sections together are the granted ones.
//! * In the end: donors have granted exactly the sections that spaces have, and none when there are no spaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::Epoch;
use base::rt::{self, Instant};
use pool::{AddressSpace, MemoryNode, SectionId};
use rma::RegionId;

#[derive(Default)]
pub struct Truth(Mutex<TruthState>);

#[derive(Default)]
struct TruthState {
    epochs: BTreeMap<String, u64>,
    donors: BTreeMap<&'static str, DonorTruth>,
    fences: Vec<Fence>,
    operations: u64,
    spaces: Vec<Accounts>,
}

#[derive(Default)]
struct DonorTruth {
    incarnation: u64,
    budget_bytes: u64,
    node: Option<Arc<MemoryNode>>,
    regions: BTreeMap<RegionId, Registered>,
}

struct Registered {
    owner: String,
    /// The owner's newest epoch so far.
    epoch: u64,
    bytes: u64,
}

/// A space that was opened, and the epoch that it fenced under.
struct Fence {
    owner: &'static str,
    epoch: Epoch,
    at: Instant,
    /// Address and incarnation of each donor that it was connected to.
    donors: Vec<(&'static str, u64)>,
}

/// The sections of one space.
#[derive(Default)]
struct Accounts {
    node: &'static str,
    owner: &'static str,
    epoch: Epoch,
    space: Option<AddressSpace>,
    given: BTreeSet<SectionId>,
    ended: BTreeMap<SectionId, &'static str>,
}

impl Truth {
    fn lock(&self) -> MutexGuard<'_, TruthState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn next_epoch(&self, owner: &'static str) -> Epoch {
        let mut state = self.lock();
        let epoch = state.epochs.entry(owner.to_owned()).or_default();
        *epoch += 1;
        Epoch(*epoch)
    }

    pub fn donor_starts(&self, address: &'static str, budget_bytes: u64) -> u64 {
        let mut state = self.lock();
        let donor = state.donors.entry(address).or_default();
        // The memory of an earlier incarnation was lost with its node.
        *donor = DonorTruth { incarnation: donor.incarnation + 1, budget_bytes, ..DonorTruth::default() };
        donor.incarnation
    }

    pub fn donor_serves(&self, address: &'static str, node: Arc<MemoryNode>) {
        self.lock().donors.get_mut(address).expect("it has started").node = Some(node);
    }

    pub fn registers(&self, address: &'static str, incarnation: u64, region: RegionId, owner: &str, bytes: u64) {
        let mut state = self.lock();
        let epoch = state.epochs.get(owner).copied().unwrap_or_default();
        let donor = state.donors.get_mut(address).expect("it has started");
        if donor.incarnation != incarnation {
            return;
        }
        donor.regions.insert(region, Registered { owner: owner.to_owned(), epoch, bytes });
        let registered: u64 = donor.regions.values().map(|region| region.bytes).sum();
        let budget = donor.budget_bytes;
        assert!(registered <= budget, "budget: {address} has {registered} bytes registered and may have {budget}");
    }

    pub fn deregisters(&self, address: &'static str, incarnation: u64, region: RegionId) {
        let mut state = self.lock();
        let donor = state.donors.get_mut(address).expect("it has started");
        if donor.incarnation == incarnation {
            donor.regions.remove(&region);
        }
    }

    /// Records that a space has been opened; `since` is when opening started. Returns the index of its accounts.
    pub fn opened(
        &self,
        node: &'static str,
        owner: &'static str,
        epoch: Epoch,
        since: Instant,
        space: &AddressSpace,
        adopts: bool,
    ) -> usize {
        let connected: BTreeSet<String> =
            space.donors().into_iter().filter(|donor| donor.connected).map(|donor| donor.address).collect();
        let mut state = self.lock();
        let connected: Vec<(&'static str, u64)> = state
            .donors
            .iter()
            .filter(|(address, _)| connected.contains(**address))
            .map(|(address, donor)| (*address, donor.incarnation))
            .collect();
        for fence in &state.fences {
            let common = fence.donors.iter().find(|donor| connected.contains(donor));
            if let Some((address, _)) = common {
                let earlier = fence.owner == owner && fence.epoch > epoch && fence.at < since;
                assert!(
                    !earlier,
                    "epochs: {owner} opened under {epoch} at {address} after {} had fenced there",
                    fence.epoch
                );
            }
        }
        for (address, _) in &connected {
            for (region, registered) in &state.donors[address].regions {
                // Regions of this very epoch may be there, from an earlier attempt to open.
                let older = !adopts && registered.owner == owner && registered.epoch < epoch.get();
                assert!(
                    !older,
                    "fence: {owner} opened under {epoch}, and {address} still has {region:?} of {}",
                    registered.epoch
                );
            }
        }
        state.fences.push(Fence { owner, epoch, at: rt::now(), donors: connected });
        state.spaces.push(Accounts { node, owner, epoch, space: Some(space.clone()), ..Accounts::default() });
        state.spaces.len() - 1
    }

    /// Records that a verb succeeded, posted at `posted`, to a section granted at `given`.
    pub fn verb(&self, owner: &'static str, epoch: Epoch, donor: &str, given: Instant, posted: Instant) {
        let mut state = self.lock();
        state.operations += 1;
        for fence in &state.fences {
            if fence.owner == owner && fence.epoch > epoch && given < fence.at && posted > fence.at {
                let there = fence.donors.iter().any(|(address, _)| *address == donor);
                assert!(!there, "fence: a verb of {owner} under {epoch} took effect at {donor} after {}", fence.epoch);
            }
        }
    }

    /// Counts another operation.
    pub fn operation(&self) {
        self.lock().operations += 1;
    }

    /// Records a section that a donor granted, requested no earlier than `asked`.
    pub fn given(&self, account: usize, section: SectionId, asked: Instant) {
        let mut state = self.lock();
        let TruthState { donors, fences, spaces, .. } = &mut *state;
        let Accounts { space, owner, epoch, given, .. } = &mut spaces[account];
        let donor = space.as_ref().and_then(|space| space.donor_of(section)).expect("it was given");
        let here = |fence: &&Fence| {
            fence
                .donors
                .iter()
                .any(|(address, incarnation)| *address == donor && donors[address].incarnation == *incarnation)
        };
        for fence in fences.iter().filter(here) {
            let late = fence.owner == *owner && fence.epoch > *epoch && fence.at < asked;
            assert!(
                !late,
                "epochs: {donor} gave {owner} a section under {epoch} after {} had fenced there",
                fence.epoch
            );
        }
        let fresh = given.insert(section);
        assert!(fresh, "accounts: {section:?} was given twice");
    }

    pub fn ended(&self, account: usize, section: SectionId, how: &'static str) {
        let mut state = self.lock();
        let account = &mut state.spaces[account];
        // A section that was lost before its owner heard of the grant.
        account.given.insert(section);
        let before = account.ended.insert(section, how);
        assert!(before.is_none(), "accounts: {section:?} ended by {before:?} and again by {how}");
    }

    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Records that the process on a node has ended; the donors must reclaim its sections themselves.
    pub fn owner_process_ends(&self, node: &'static str) {
        let mut state = self.lock();
        let ended = state.spaces.iter_mut().filter(|account| account.node == node);
        let ended: Vec<_> = ended.filter_map(|account| account.space.take()).collect();
        drop(state);
        // Dropping a space may wake tasks.
        drop(ended);
    }

    /// All faults are healed, and spaces are still open: donors have granted exactly what the spaces have.
    pub fn check_calm(&self) {
        let mut state = self.lock();
        let spaces: Vec<AddressSpace> = state
            .spaces
            .iter_mut()
            .filter_map(|account| {
                let space = account.space.as_ref()?;
                let live: BTreeSet<SectionId> = space.sections().iter().map(|section| section.id).collect();
                let ended: BTreeSet<SectionId> = account.ended.keys().copied().collect();
                // Losses that the process has not fetched yet.
                assert!(live.is_disjoint(&ended), "accounts: a section that ended is live");
                Some(space.clone())
            })
            .filter(|space| !space.is_fenced())
            .collect();
        for (address, donor) in &state.donors {
            let held: u64 = spaces
                .iter()
                .flat_map(|space| space.sections().into_iter().map(move |section| (space, section)))
                .filter(|(space, section)| space.donor_of(section.id) == Some(*address))
                .map(|(_, section)| section.bytes)
                .sum();
            let usage = donor.node.as_ref().expect("it serves").usage();
            let registered: u64 = donor.regions.values().map(|region| region.bytes).sum();
            assert_eq!(registered, usage.granted_bytes, "leak: what {address} has registered and counted");
            assert!(
                usage.granted_bytes == held,
                "leak: {address} has given {} bytes, of which spaces know {held}",
                usage.granted_bytes
            );
        }
    }

    /// Checks that donors have granted nothing, as there are no spaces.
    pub fn check_empty(&self) {
        for (address, donor) in &self.lock().donors {
            let usage = donor.node.as_ref().expect("it serves").usage();
            let registered: u64 = donor.regions.values().map(|region| region.bytes).sum();
            assert_eq!((usage.granted_bytes, registered), (0, 0), "leak: of {address}, when there are no spaces");
        }
    }
}
