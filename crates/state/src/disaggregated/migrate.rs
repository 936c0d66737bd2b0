//! Migration of a section to another memory node, while blocks are applied and readers read ([`pool::SectionMigration`]).
//!
//! Addresses stay as they are: the section's entry in the address space is re-pointed, so slots, links and caches
//! remain valid.
//! 1. **Pre-copy.** The pool grants memory for a copy and notes the pages that are written. The task copies
//!    [`BATCH_BYTES`] at each time that it holds the writer's lock. With the lock held nobody writes to the section,
//!    apart from verbs whose effect does not matter: ambiguous links and marks.
//! 2. **Grants.** Each follower gets a read grant of the copy.
//! 3. **Switch**, with the writer's lock held once: copy the pages written since, write the section's header into the copy,
//!    without a mark, and re-point the section. Erase the header at the old location. The membership of the marks
//!    changes, as when a section is given up ([`super::marks`]).
//! 4. **Tell** each follower of its grant before the lock is released, so before any further change. If a
//!    follower has no grant, tell it that the section is gone.
//! 5. **Return** the old location after [`REUSE_AFTER`], and when each follower has acknowledged the change: until then a
//!    reader may have a verb in flight there. From step 1 until now nothing is allocated in the section.
//!
//! Why readers are right: after the switch the old location does not change. A reader at this node that posted a verb
//! before the switch sees the section as it was when the read began. A follower reads there until it hears of the switch.
//! It hears of it before it hears of the next block, and before the primary counts any later eviction as acknowledged, so
//! nothing that it finds there has been reused. Nor does anything lead it to a record that is only at the new location:
//! no record is written there yet.
//!
//! Why the next primary is right, whichever of the two locations it finds: it adopts only one with a header. The copy
//! gets its header when it is complete; the old location loses its own before the next write. If an outcome is ambiguous,
//! the memory node gets no mark until it has confirmed the return, and no buffer is reused until the new membership is
//! recorded: the location is like a section that was given up.
//!
//! A memory node that is being vacated loses its sections one by one in this way. If no other node has memory for a
//! section, the section is emptied and returned as [`super::drain`] does; its records are then in storage.
//!
//! If this process ends during step 1 or 2, its successor does not adopt the copy, which has no header, but the section
//! where it was ([`pool::AddressSpace::adopt_headed`]).

use std::time::Duration;

use base::rt::Backoff;
use base::{Bytes, BytesMut, Map, rt};
use futures_util::future::join_all;
use replica::lease::{FollowerId, REUSE_AFTER};

use super::fault::{Mutant, hold_up, mutant};
use super::followers::changes::ChangeLog;
use super::header;
use super::limits::RETRY_PAUSE;
use super::memory::{MemoryError, MigratingSection, Section, completed};
use super::{DONOR_TIMEOUT, StateCore, StateWriter};
use crate::events;

/// Bytes that are copied under one hold of the writer's lock.
const BATCH_BYTES: u64 = 256 << 10;
/// How often each page may be copied before the switch, on average. More copies do not help: pages are written faster
/// than they are copied.
const PASSES_MAX: u64 = 4;
/// How often sections to be vacated are looked for.
const VACATE_PERIOD: Duration = Duration::from_secs(1);

impl StateCore {
    /// Moves sections away from memory nodes that are being vacated.
    pub(super) async fn vacate(&self) {
        let mut backoff = Backoff::new(RETRY_PAUSE, VACATE_PERIOD);
        loop {
            let _woken = rt::timeout(VACATE_PERIOD, self.vacating.notified()).await;
            while let Some(id) = self.memory.section_to_vacate() {
                let outcome = match self.migrate(id).await {
                    Err(MemoryError::Exhausted(why)) => {
                        tracing::debug!(
                            why,
                            section = id,
                            "no other memory node has memory for a section; it is emptied"
                        );
                        self.empty_section(id).await
                    }
                    outcome => outcome,
                };
                if self.is_fenced() {
                    return;
                }
                match outcome {
                    Ok(()) => backoff.reset(),
                    Err(error) => {
                        tracing::debug!(%error, section = id, "a section stays where it is for now");
                        backoff.wait().await;
                    }
                }
            }
            if self.is_fenced() {
                return;
            }
        }
    }

    /// Moves a section to the memory node with the most free memory, of those that are not being vacated.
    async fn migrate(&self, id: u32) -> Result<(), MemoryError> {
        let bytes = self.memory.section_bytes();
        let migration = self.memory.migrate(id, header::header_bytes(bytes)).await?;
        let base = {
            let mut writer = self.writer.lock().await;
            let base = self.migrating_base(&writer, id)?;
            writer.space.begin_migration(base);
            base
        };
        let migrated = self.copy_and_switch(&Section { id, address: base, bytes }, migration).await;
        self.writer.lock().await.space.end_migration(base);
        migrated
    }

    async fn copy_and_switch(
        &self,
        section: &Section,
        migration: Box<dyn MigratingSection>,
    ) -> Result<(), MemoryError> {
        if mutant(Mutant::CopyHeaded) {
            let _writer = self.writer.lock().await;
            migration.complete(self.head_of_copy(section).await?).await?;
        }
        for _ in 0..PASSES_MAX * section.bytes.div_ceil(BATCH_BYTES) {
            hold_up("state.migrate.copy").await;
            let writer = self.writer.lock().await;
            self.migrating_base(&writer, section.id)?;
            // A memory node that is slow must not hold up blocks.
            let left = rt::timeout(DONOR_TIMEOUT, migration.copy_some(BATCH_BYTES)).await;
            if left.map_err(|_| silent())?? <= BATCH_BYTES {
                break;
            }
        }
        hold_up("state.migrate.grant").await;
        let grants = self.grant_copy(&*migration).await;
        hold_up("state.migrate.switch").await;
        let (old, told) = {
            let mut guard = self.writer.lock().await;
            let writer = &mut *guard;
            self.migrating_base(writer, section.id)?;
            let head = rt::timeout(DONOR_TIMEOUT, self.head_of_copy(section)).await.map_err(|_| silent())??;
            let switched = rt::timeout(DONOR_TIMEOUT, async {
                migration.complete(head).await?;
                migration.finish()
            });
            let old = match switched.await.map_err(|_| silent()).and_then(|switched| switched) {
                Ok(old) => old,
                Err(error) => {
                    // The copy may have its header.
                    writer.headers.renew_membership();
                    return Err(error);
                }
            };
            if !mutant(Mutant::OldHeaded) {
                // If it does not end in time, the memory node counts as unsettled.
                let _ = rt::timeout(DONOR_TIMEOUT, old.erase_head()).await;
                writer.headers.relocate(section.address, self.memory.donor_of(section.id));
            }
            self.tell_of_switch(section, &grants);
            if mutant(Mutant::AllocatedEarly) {
                writer.space.end_migration(section.address);
            }
            writer.usage.sections_migrated += 1;
            events::SectionsMigrated.add(1);
            (old, self.followers.position())
        };
        rt::sleep(REUSE_AFTER).await;
        while told.is_some_and(|position| self.followers.acknowledged_below() < position) {
            rt::sleep(RETRY_PAUSE).await;
            if self.is_fenced() {
                return Err(MemoryError::Fenced);
            }
        }
        hold_up("state.migrate.return").await;
        old.release().await;
        Ok(())
    }

    /// The first address of the section, if it may be copied.
    fn migrating_base(&self, writer: &StateWriter, id: u32) -> Result<u64, MemoryError> {
        if self.is_fenced() {
            return Err(MemoryError::Fenced);
        }
        let known = writer.sections.iter().find(|(_, known)| **known == id);
        known.map(|(base, _)| *base).ok_or_else(|| MemoryError::Failed("the section was given up".to_owned()))
    }

    /// The header of the section, without a mark: the memory node of the copy may have one elsewhere.
    async fn head_of_copy(&self, section: &Section) -> Result<Bytes, MemoryError> {
        let length = header::header_bytes(section.bytes) as usize;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let verb = self.memory.read(section.address, length, BytesMut::with_capacity(length));
        let mut head = completed(&*self.memory, verb).await.map_err(|error| {
            self.memory.note_failure(section.address, &error);
            MemoryError::Failed(format!("the header of a section cannot be read: {error}"))
        })?;
        header::clear_mark(&mut head);
        Ok(head.freeze())
    }

    /// Step 2.
    async fn grant_copy(&self, migration: &dyn MigratingSection) -> Map<FollowerId, Bytes> {
        let grants = self.followers.ids().into_iter().map(async |follower| {
            let grant = rt::timeout(DONOR_TIMEOUT, migration.grant_read(follower)).await.ok()?.ok()?;
            Some((follower, grant))
        });
        join_all(grants).await.into_iter().flatten().collect()
    }

    /// Step 4.
    fn tell_of_switch(&self, section: &Section, grants: &Map<FollowerId, Bytes>) {
        if mutant(Mutant::SwitchUntold) {
            return;
        }
        for follower in self.followers.ids() {
            self.followers.log_for(follower, |bytes| match grants.get(&follower) {
                Some(grant) => ChangeLog(bytes).section(section, grant),
                None => ChangeLog(bytes).section_gone(section.address),
            });
        }
    }

    /// Empties a section that cannot migrate, and returns it.
    async fn empty_section(&self, id: u32) -> Result<(), MemoryError> {
        let base = {
            let mut writer = self.writer.lock().await;
            if writer.space.has_unsurveyed() {
                return Err(MemoryError::Failed("the memory was adopted and is still being surveyed".to_owned()));
            }
            let base = self.migrating_base(&writer, id)?;
            writer.space.close(base);
            base
        };
        let emptied = self.empty(base).await;
        emptied.map_err(|error| MemoryError::Failed(format!("a section cannot be emptied: {error}")))
    }
}

fn silent() -> MemoryError {
    MemoryError::Failed("a memory node does not answer".to_owned())
}
