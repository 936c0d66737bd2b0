//! What an operator asks about the memory of a running peer, and what he changes.

use std::path::Path;
use std::sync::Arc;

use base::rt;
use pool::AddressSpace;
use replica::ComputeRole;
use state::{Disaggregated, StateUsage};

use super::compute::{ComputeInstance, NodeMode};
use super::pooled_memory::PooledMemory;
use crate::control::budget::{self, MemorySettings};
use crate::control::{DonorMemoryReport, HitRate, MemoryReport};
use crate::process::file::{DonorFile, NodeFile, ProcessRole};

/// Why a follower has no memory report.
const FOLLOWER_HINT: &str = "a follower: the peer's primary, another compute node, owns its memory";

impl ComputeInstance {
    /// How this node uses its remote memory.
    ///
    /// # Errors
    /// Why the report is not available, and what to do.
    pub(crate) async fn memory_report(&self) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let (space, state) = self.opened()?;
        let StateUsage {
            allowed,
            leased,
            free,
            live,
            quarantined,
            evicted_records,
            evicted_bytes,
            sections_drained,
            sections_migrated,
        } = state.usage().await;
        let sections = space.sections();
        let nodes = space.donors().into_iter().map(|donor| {
            let own = sections.iter().filter(|section| space.donor_of(section.id) == Some(donor.address.as_str()));
            DonorMemoryReport {
                sections: own.count() as u64,
                address: donor.address,
                connected: donor.connected,
                budget_bytes: donor.budget_bytes,
                free_bytes: donor.free_bytes,
                problem: donor.problem,
                vacated: donor.vacated,
            }
        });
        Ok(MemoryReport {
            name: self.name.clone(),
            budget_bytes: space.budget_bytes(),
            configured_bytes: memory.remote.budget_bytes,
            section_bytes: space.section_bytes(),
            allowed_bytes: allowed,
            leased_bytes: leased,
            used_bytes: live,
            waiting_bytes: quarantined,
            free_bytes: free,
            nodes: nodes.collect(),
            evicted_records,
            evicted_bytes,
            sections_drained,
            sections_migrated,
            hits: hits(),
            hits_of_process: memory.remote.shares_process,
        })
    }

    /// Sets another budget of remote memory, for now and for later starts.
    ///
    /// # Errors
    /// Why the budget cannot be set, and what to do; nothing has changed then.
    pub(crate) async fn set_memory(&self, bytes: u64) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let _one_at_a_time = self.budget_lock.lock().await;
        let (space, state) = self.opened()?;
        let section = space.section_bytes();
        if bytes < section {
            return Err(state::Error::BudgetTooSmall { bytes, section_bytes: section }.to_string());
        }
        let donors = space.donors();
        let there: u64 = donors.iter().map(|donor| donor.budget_bytes).sum();
        if bytes > space.budget_bytes() && bytes > there {
            let missed: Vec<&str> =
                donors.iter().filter(|donor| !donor.connected).map(|donor| donor.address.as_str()).collect();
            let missed = match missed.is_empty() {
                true => String::new(),
                false => format!(" (without {}, which cannot be reached)", missed.join(", ")),
            };
            return Err(format!(
                "a budget of {bytes} bytes is more than the memory nodes have, {there} bytes{missed}; start more memory \
                 nodes, raise their pool.memory_bytes, or set a lower budget"
            ));
        }
        let settings = MemorySettings { bytes, ..settings(memory, &space)? };
        store(memory, settings, "the budget stays as it was, because the new one").await?;
        state.set_budget(bytes).map_err(|error| error.to_string())?;
        self.memory_report().await
    }

    /// Has the peer vacate a memory node, or use it again, for now and for later starts.
    ///
    /// # Errors
    /// Why that cannot be done; nothing has changed then.
    pub(crate) async fn set_memory_node(&self, address: &str, vacated: bool) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let _one_at_a_time = self.budget_lock.lock().await;
        let (space, state) = self.opened()?;
        let donors = space.donors();
        if !donors.iter().any(|donor| donor.address == address) {
            let known: Vec<&str> = donors.iter().map(|donor| donor.address.as_str()).collect();
            return Err(format!("{} has no memory node at {address}; it has {}", self.name, known.join(", ")));
        }
        if vacated && donors.iter().all(|donor| donor.vacated || donor.address == address) {
            return Err(format!(
                "{address} is the last memory node that {} uses; use another one first, or lower the budget with --set",
                self.name
            ));
        }
        let mut settings = settings(memory, &space)?;
        match vacated {
            true => settings.vacated.insert(address.to_owned()),
            false => settings.vacated.remove(address),
        };
        store(memory, settings, "nothing has changed, because it").await?;
        space.set_vacated(address, vacated);
        state.vacate();
        self.memory_report().await
    }

    /// Has the peer use a memory node that its settings do not name, for now and for later starts. Its file names the
    /// address, and the peer's token there.
    ///
    /// # Errors
    /// Why that cannot be done; nothing has changed then.
    pub(crate) async fn add_memory_node(&self, file: &Path) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let _one_at_a_time = self.budget_lock.lock().await;
        let (space, state) = self.opened()?;
        let node = NodeFile::load(ProcessRole::Memory, file).map_err(|error| error.to_string())?;
        let owner = &memory.remote.owner;
        let donor = node.memory.and_then(|memory| {
            let token = memory.owners.get(owner)?.clone();
            Some(DonorFile { address: memory.address, token })
        });
        let donor = donor.ok_or_else(|| format!("{}: {owner} is not among its memory.owners", file.display()))?;
        let address = donor.address.clone();
        let mut settings = settings(memory, &space)?;
        space.add_donor(donor.donor()).await.map_err(|error| format!("it cannot be added: {error}"))?;
        settings.joined.retain(|joined| joined.address != address);
        settings.joined.push(donor);
        if let Err(error) = store(memory, settings, "it is not added, because it").await {
            let _unused = space.remove_donor(&address);
            return Err(error);
        }
        space.set_vacated(&address, false);
        // Sections that found no room may do so there.
        state.vacate();
        self.memory_report().await
    }

    /// Has the peer forget a memory node that was added, and has been vacated.
    ///
    /// # Errors
    /// Why that cannot be done; nothing has changed then.
    pub(crate) async fn remove_memory_node(&self, address: &str) -> Result<MemoryReport, String> {
        let memory = self.pooled()?;
        let _one_at_a_time = self.budget_lock.lock().await;
        let (space, _) = self.opened()?;
        if memory.remote.donors.iter().any(|donor| donor.address == address) {
            return Err(format!(
                "{address} is named by the settings of {}, so the next start would use it; --vacate frees it for good",
                self.name
            ));
        }
        let mut settings = settings(memory, &space)?;
        space.remove_donor(address).map_err(|error| error.to_string())?;
        settings.joined.retain(|joined| joined.address != address);
        settings.vacated.remove(address);
        store(memory, settings, "it is removed until the next start only, because that").await?;
        self.memory_report().await
    }

    pub(super) fn pooled(&self) -> Result<&Arc<PooledMemory>, String> {
        self.memory.as_ref().ok_or_else(|| {
            let name = &self.name;
            format!(
                "{name} is monolithic and has no remote memory; storage.cache_bytes of the configuration sizes its cache; \
                 it is read at each start"
            )
        })
    }

    /// The memory and the state in it, while this node commits.
    fn opened(&self) -> Result<(AddressSpace, Arc<Disaggregated>), String> {
        let memory = self.pooled()?;
        let state = match &self.node {
            NodeMode::SingleNode { .. } => memory.state(),
            NodeMode::PeerNodes(node) => match (node.role(), node.primary()) {
                (_, Some(primary)) => Some(primary.state),
                (ComputeRole::Follower, None) => return Err(format!("{} is {FOLLOWER_HINT}; ask that one", self.name)),
                (_, None) => None,
            },
        };
        let opened = memory.space().and_then(|space| Some((space, state?)));
        opened.ok_or_else(|| "the peer is not open yet, or is stopping; try again".to_owned())
    }
}

/// The settings that are in force.
fn settings(memory: &PooledMemory, space: &AddressSpace) -> Result<MemorySettings, String> {
    let vacated = space.donors().into_iter().filter(|donor| donor.vacated).map(|donor| donor.address).collect();
    let stored = memory.remote.settings().map_err(|error| error.to_string())?;
    Ok(MemorySettings { bytes: space.budget_bytes(), vacated, joined: stored.joined })
}

/// Keeps settings for later starts; `otherwise` says what follows if that fails.
async fn store(memory: &PooledMemory, settings: MemorySettings, otherwise: &str) -> Result<(), String> {
    let (folder, configured) = (memory.remote.folder.clone(), memory.remote.budget_bytes);
    let file = folder.join(budget::BUDGET_FILE);
    let stored = rt::blocking(move || budget::store(&folder, configured, settings)).await;
    stored.map_err(|error| {
        let advice = storage::advice(&error);
        format!("{otherwise} cannot be stored for the next start: {}: {error}{advice}", file.display())
    })
}

/// The hit rates of this process's caches.
fn hits() -> Vec<HitRate> {
    use state::events::{DataCacheHits, DataCacheMisses, MetadataCacheHits, MetadataCacheMisses, StorageReads};
    let (found, looked) = (MetadataCacheHits.value(), MetadataCacheMisses.value());
    let rate = |place: &str, hits, misses| HitRate { place: place.to_owned(), hits, misses };
    vec![
        rate("metadata cache", found, looked),
        rate("data cache", DataCacheHits.value(), DataCacheMisses.value()),
        // A key whose version is cached, or that is found in remote memory, needs no read of the storage node.
        rate("all memory", (found + looked).saturating_sub(StorageReads.value()), StorageReads.value()),
    ]
}
