//! Sections of a primary: leasing them, sharing them with followers, abandoning them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::rt;

use super::followers::changes::ChangeLog;
use super::header::header_bytes;
use super::memory::{MemoryError, Section};
use super::pointer::ADDRESS_BYTES_MAX;
use super::state_core::PoolExhausted;
use super::{DONOR_TIMEOUT, StateCore, StateWriter};
use crate::events;

impl StateCore {
    /// Abandons the section of an address with everything in it: 1. reads find nothing in it any more; 2. the
    /// directory, the allocator and the lists drop it; 3. it is returned to the pool, after which no verb ever takes
    /// effect in it. Slots in other sections that lead into it become dangling but harmless: its addresses are never
    /// reused. The membership of the marks changes, so that no later primary adopts the section together with others.
    pub(super) fn give_up(&self, writer: &mut StateWriter, address: u64) {
        let base = self.base(address);
        let Some(id) = writer.sections.remove(&base) else { return };
        events::SectionsGivenUp.add(1);
        self.mark_gone(base);
        let within = |address: u64| self.base(address) == base;
        writer.space.remove(base);
        writer.headers.forget(base);
        writer.orphans |= !self.directory.forget(|subtable| within(subtable.address)).is_empty();
        writer.superseded.retain(|superseded| !within(superseded.pointer.address()));
        writer.tombstones.retain(|tombstone| !within(tombstone.pointer.address()));
        writer.evicted.retain(|(_, pointer)| !within(pointer.address()));
        writer.retired_unsurveyed.retain(|pointer| !within(pointer.address()));
        writer.unacknowledged.retain(|(_, pointer)| !within(pointer.address()));
        self.log_change(|changes| changes.section_gone(base));
        self.release(id);
        self.wanted.notify_one();
    }

    /// Leases one more section. After a failure the pool is not asked again for a while. A donor's process may be
    /// silent while its memory works: a section that does not arrive within [`DONOR_TIMEOUT`] is added when it
    /// arrives, and until then this returns false.
    pub(super) async fn grow_space(&self, writer: &mut StateWriter) -> bool {
        if writer.growing.is_some() {
            return self.enter_late_section(writer).await;
        }
        let budget_bytes = self.memory.budget_bytes();
        if writer.exhausted.is_some_and(|exhausted| exhausted.holds(budget_bytes) && rt::now() < exhausted.until) {
            return false;
        }
        let memory = Arc::clone(&self.memory);
        let seed = self.seed;
        let mut growing = rt::spawn(async move {
            super::fault::hold_up("state.grow").await;
            let section = memory.grow().await?;
            super::section_headers::write_header(&*memory, &section, seed).await?;
            Ok(section)
        })
        .abort_on_drop();
        match rt::timeout(DONOR_TIMEOUT, &mut growing).await {
            Ok(grown) => self.enter_section(writer, grown).await,
            Err(rt::Elapsed) => {
                writer.growing = Some(growing);
                writer.exhausted = Some(PoolExhausted::now(budget_bytes));
                false
            }
        }
    }

    /// Adds the section that was requested from the pool, if it has arrived by now.
    pub(super) async fn enter_late_section(&self, writer: &mut StateWriter) -> bool {
        match writer.growing.take_if(|growing| growing.is_finished()) {
            Some(grown) => self.enter_section(writer, grown.await).await,
            None => false,
        }
    }

    /// Adds a section that the pool granted, unless the pool refused.
    async fn enter_section(
        &self,
        writer: &mut StateWriter,
        grown: Result<Result<Section, MemoryError>, rt::TaskAborted>,
    ) -> bool {
        let lost = std::mem::take(&mut writer.lost);
        let grown = grown.unwrap_or_else(|_| Err(MemoryError::Failed("the request has ended".to_owned())));
        let refused = match grown {
            Ok(section) if lost.contains(&section.id) => MemoryError::Failed("it was lost while granted".to_owned()),
            Ok(section) if !self.cover_number(writer, section.id).await => {
                self.release(section.id);
                MemoryError::Failed("a memory node does not take its mark".to_owned())
            }
            Ok(section) if section.address + section.bytes <= ADDRESS_BYTES_MAX => {
                writer.space.add(section.address, section.bytes, header_bytes(section.bytes));
                writer.sections.insert(section.address, section.id);
                writer.headers.enter(&section, self.memory.donor_of(section.id), &[]);
                writer.exhausted = None;
                events::SectionsLeased.add(1);
                self.grant_to_followers(&section).await;
                return true;
            }
            Ok(section) => {
                self.release(section.id);
                MemoryError::Failed("the section lies beyond the highest address that a pointer can hold".to_owned())
            }
            Err(error) => error,
        };
        if refused == MemoryError::Fenced {
            self.fenced.store(true, Ordering::Relaxed);
        }
        tracing::debug!(error = %refused, "no further section");
        writer.exhausted = Some(PoolExhausted::now(self.memory.budget_bytes()));
        false
    }

    /// Gives followers read grants of a new section. A follower without a grant reads the section's records from
    /// storage instead.
    async fn grant_to_followers(&self, section: &Section) {
        for holder in self.followers.ids() {
            super::fault::hold_up("state.followers.share").await;
            match rt::timeout(DONOR_TIMEOUT, self.memory.grant_read(section.id, holder)).await {
                Ok(Ok(place)) => self.followers.log_for(holder, |bytes| ChangeLog(bytes).section(section, &place)),
                Ok(Err(error)) => tracing::debug!(%error, section = section.id, "a follower goes without a section"),
                Err(rt::Elapsed) => {
                    tracing::debug!(section = section.id, "followers go without a section: its donor is silent");
                    return;
                }
            }
        }
    }

    /// Returns a section. As a first step the pool fails all verbs to it; nobody waits for the donor's answer.
    pub(super) fn release(&self, section: u32) {
        let memory = Arc::clone(&self.memory);
        drop(rt::spawn(async move {
            if let Err(error) = memory.release(section).await {
                tracing::debug!(%error, section, "an abandoned section is returned to the pool in the background");
            }
        }));
    }
}
