//! The disaggregated world state as an implementation of [`WorldState`](crate::WorldState).

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use base::rt;
use base::rt::AbortOnDrop;
use base::rt::net::Link;
use replica::load::ReportedNode;
use replica::offload::WorkPlacement;
use replica::{ReplicatedState, WorkPermit};
use storage::StateStore;

use super::audit::MemoryAudit;
use super::followers::ComputeRole;
use super::memory::Memory;
use super::space::SpaceAccounts;
use super::state_core::{DisaggregatedConfig, StateCore, StateUsage, StateView};
use crate::{Durable, Error, Snapshot, UpdateBatch, WorldState, digest};

/// [`WorldState`] over pooled memory and a storage node.
pub struct Disaggregated {
    shared: Arc<StateCore>,
    _background: Vec<AbortOnDrop<()>>,
}

impl Disaggregated {
    /// Opens the state at the height of storage's savepoint or, if the memory that it [adopts](super::adopt) lacks some of
    /// these blocks, below it: the caller applies later blocks again. Memory that adopted nothing is empty.
    ///
    /// `memory` was opened under an epoch higher than that of any earlier primary, which fenced them.
    pub async fn open(
        memory: Arc<dyn Memory>,
        store: Arc<dyn StateStore>,
        settings: DisaggregatedConfig,
    ) -> Result<Disaggregated, Error> {
        let savepoint = store.savepoint().height;
        let budget_bytes = memory.budget_bytes();
        let adoption = super::adopt::find(&*memory, savepoint).await;
        let (seed, height) = match &adoption {
            Some(adoption) => (adoption.seed, adoption.height),
            None => (rt::random_u64(), savepoint),
        };
        let mut core = StateCore::new(memory, store, settings, ComputeRole::Primary, seed, height, budget_bytes);
        if let Some(adoption) = adoption {
            core.mends_below = adoption.above;
            core.install_adopted(adoption).await;
        }
        let shared = Arc::new(core);
        StateCore::publish(&shared, height);
        let background = super::maintenance::start(&shared);
        Ok(Disaggregated { shared, _background: background })
    }

    /// The view of the last applied block, with the reads that do not go through [`Snapshot`].
    pub fn view(&self) -> Arc<StateView> {
        self.shared.newest_view()
    }

    /// Changes the budget of remote memory during operation. On return, memory no longer grows above the new budget.
    /// Sections above a lower budget are emptied and returned in the background, one by one ([`Disaggregated::usage`]
    /// reports the leased bytes).
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`] below one section.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let section_bytes = self.shared.memory.section_bytes();
        if bytes < section_bytes {
            return Err(Error::BudgetTooSmall { bytes, section_bytes });
        }
        // The reference bits first: uses of records in new sections are noted at once.
        self.shared.heat.enlarge(bytes);
        self.shared.memory.set_budget(bytes);
        self.shared.crowded.notify_one();
        Ok(())
    }

    /// Has the sections on memory nodes that are being [vacated](pool::AddressSpace::set_vacated) moved to others, in the
    /// background, one by one. Without this call that begins within a second.
    pub fn vacate(&self) {
        self.shared.vacating.notify_one();
    }

    /// How much remote memory is used. Waits for the writer's lock; reads no remote memory.
    pub async fn usage(&self) -> StateUsage {
        let writer = self.shared.writer.lock().await;
        let SpaceAccounts { leased, free, live, quarantined } = writer.space.accounts();
        let allowed = self.shared.allowed();
        StateUsage { allowed, leased, free, live, quarantined, ..writer.usage }
    }

    /// How remote memory is used, and whether every byte of it is accounted for. Reads the whole index.
    ///
    /// # Errors
    /// [`Error::Busy`] when a verb fails.
    pub async fn audit(&self) -> Result<MemoryAudit, Error> {
        self.shared.audit().await
    }
}

impl Drop for Disaggregated {
    fn drop(&mut self) {
        // The view refers back to this state. Views that readers hold stay as they are.
        *self.shared.current.write().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[async_trait::async_trait]
impl ReplicatedState for Disaggregated {
    async fn admit_followers(&self) {
        self.shared.earlier_leases.admit_followers().await;
    }

    fn reported(&self) -> Vec<ReportedNode> {
        self.shared.followers.reported()
    }

    async fn serve_follower(&self, link: Link) -> Result<(), replica::Error> {
        replica::followers::serve_follower(&self.shared, link).await
    }
}

impl WorkPlacement for Disaggregated {
    fn followers(&self) -> usize {
        self.shared.followers.count()
    }

    fn work_permit(&self, load_max: u8, trusts: &dyn Fn(&str) -> bool) -> Option<WorkPermit> {
        self.shared.followers.work_permit(load_max, WorldState::height(self), trusts)
    }
}

#[async_trait::async_trait]
impl WorldState for Disaggregated {
    fn height(&self) -> u64 {
        self.shared.height.load(Ordering::Acquire)
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        self.shared.newest_view()
    }

    async fn apply(&self, number: u64, batch: UpdateBatch) -> Result<(), Error> {
        StateCore::apply(&self.shared, number, batch, None).await
    }

    async fn apply_when(&self, number: u64, batch: UpdateBatch, durable: Durable<'_>) -> Result<(), Error> {
        StateCore::apply(&self.shared, number, batch, Some(durable)).await
    }

    fn wants_persist(&self) -> bool {
        let settings = &self.shared.settings;
        let lag = self.height().saturating_sub(self.savepoint());
        lag >= settings.savepoint_lag_blocks_max || self.shared.delta().bytes() > settings.delta_bytes_max
    }

    async fn persist(&self) -> Result<u64, Error> {
        let target = self.height();
        self.shared.materialize(target).await?;
        Ok(self.savepoint())
    }

    fn savepoint(&self) -> u64 {
        self.shared.store.savepoint().height
    }

    async fn digest(&self) -> Result<[u8; 32], Error> {
        let view = self.shared.newest_view();
        let mut namespaces: std::collections::BTreeSet<String> =
            self.shared.delta_in_order().namespaces().map(|name| name.to_string()).collect();
        namespaces.extend(self.shared.store.namespaces().await?);
        digest::of(&*view, namespaces).await
    }
}

#[cfg(test)]
mod tests;
