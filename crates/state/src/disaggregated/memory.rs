//! The state's interface to an address space: sections, verbs, and reports of losses.
//!
//! Production uses [`pool::AddressSpace`]. Tests substitute a model that needs no donors.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use base::{Bytes, BytesMut, ErrorKind};
use rma::Completion;

use replica::lease::FollowerId;

/// A leased section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Never reused for another section; neither are its addresses.
    pub id: u32,
    /// The first address, not 0.
    pub address: u64,
    /// Length in bytes, the same for all sections of an address space.
    pub bytes: u64,
}

/// Why a section could not be leased or returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A newer primary holds this memory.
    #[error("a newer primary holds this memory")]
    Fenced,
    /// No memory node has memory for it.
    #[error("{0}")]
    Exhausted(String),
    /// Try again later, or with other memory.
    #[error("{0}")]
    Failed(String),
}

/// Lost sections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostSections {
    /// Their numbers, as in [`Section::id`].
    pub sections: Vec<u32>,
}

/// A flat address space of sections, reached by one-sided verbs. No verb crosses the end of a section.
#[async_trait]
pub trait Memory: Send + Sync + 'static {
    /// Bytes of every section.
    fn section_bytes(&self) -> u64;

    /// Bytes of sections that may be leased.
    fn budget_bytes(&self) -> u64;

    /// Changes the budget. Sections above it stay until they are released; meanwhile memory does not grow.
    fn set_budget(&self, bytes: u64);

    /// Leases one more section, filled with zeros.
    async fn grow(&self) -> Result<Section, MemoryError>;

    /// Returns a section: its addresses fail from now on, and once this returns, no verb to them ever takes effect.
    async fn release(&self, id: u32) -> Result<(), MemoryError>;

    /// The next loss; each section is reported once. Dropping the future loses nothing.
    async fn lost(&self) -> LostSections;

    /// Whether a newer primary holds this memory.
    fn is_fenced(&self) -> bool;

    /// Reads `length` bytes from `address` on and appends them to `into`.
    ///
    /// The completion fails with [`rma::Error::OutOfBounds`] if the range is not within one section, and with
    /// [`rma::Error::Closed`] if the section was released or lost.
    fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut>;

    /// Writes the parts one after the other, from `address` on. Fails as [`Memory::read`] does; a write that failed
    /// with [`rma::Error::Ambiguous`] may still take effect.
    fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()>;

    /// Replaces the 8 bytes at `address` by `new` if they are `expected`; returns the value before. Fails as
    /// [`Memory::write`] does.
    fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64>;

    /// Gets a read grant of a section for a follower; returns the location that the follower's memory enters
    /// ([`ReadOnlyMemory::enter`]).
    async fn grant_read(&self, _id: u32, _follower: FollowerId) -> Result<Bytes, MemoryError> {
        Err(MemoryError::Failed("this memory cannot be shared with followers".to_owned()))
    }

    /// Revokes a follower's read grants. On return no read of the follower ever succeeds.
    async fn revoke_reads(&self, _follower: FollowerId) -> Result<(), MemoryError> {
        Ok(())
    }

    /// The sections that an earlier primary left and that this memory has adopted. Given once.
    fn take_adopted(&self) -> Vec<Section> {
        Vec::new()
    }

    /// A section on a memory node that is being vacated.
    fn section_to_vacate(&self) -> Option<u32> {
        None
    }

    /// Begins to move a section to another memory node ([`pool::AddressSpace::migrate`]).
    async fn migrate(&self, _id: u32, _head_bytes: u64) -> Result<Box<dyn MigratingSection>, MemoryError> {
        Err(MemoryError::Failed("this memory has one memory node".to_owned()))
    }

    /// A number for the memory node that has a section.
    fn donor_of(&self, _id: u32) -> u32 {
        0
    }

    /// Whether the memory node that granted a section has confirmed the return of every section that was released.
    fn is_settled(&self, _id: u32) -> bool {
        true
    }

    /// A number above those of all sections so far.
    fn next_number(&self) -> u32 {
        0
    }

    /// Gives no section a number below this one from now on.
    fn start_from(&self, _next: u32) {}

    /// Starts verbs that were posted and held back.
    fn flush(&self);

    /// Reports a failed verb.
    fn note_failure(&self, address: u64, error: &rma::Error);
}

/// A section on its way to another memory node ([`pool::SectionMigration`]).
#[async_trait]
pub trait MigratingSection: Send + Sync {
    /// Copies at most `bytes_max` bytes of what has still to be copied; returns how much is left.
    async fn copy_some(&self, bytes_max: u64) -> Result<u64, MemoryError>;

    /// Gets a follower a read grant of the copy, as [`Memory::grant_read`].
    async fn grant_read(&self, follower: FollowerId) -> Result<Bytes, MemoryError>;

    /// Copies the rest, and writes the head.
    async fn complete(&self, head: Bytes) -> Result<(), MemoryError>;

    /// Re-points the section to the copy, which is complete.
    fn finish(self: Box<Self>) -> Result<Box<dyn FormerLocation>, MemoryError>;
}

/// Where a section was before it migrated ([`pool::OldLocation`]).
#[async_trait]
pub trait FormerLocation: Send + Sync {
    /// Overwrites the head with zeros.
    async fn erase_head(&self);

    /// Returns it to the memory node.
    async fn release(self: Box<Self>);
}

/// Memory of another compute node, of which some sections may be read here. Nothing in it is ever changed.
pub trait ReadOnlyMemory: Memory {
    /// Makes a section readable whose location [`Memory::grant_read`] returned.
    ///
    /// # Errors
    /// If the section does not fit this memory.
    fn enter(&self, section: &Section, read_grant: &[u8]) -> Result<(), MemoryError>;

    /// Removes the section at this address, which is gone.
    fn leave(&self, address: u64);
}

/// Waits for a verb.
#[inline]
pub(super) fn completed<T: Unpin>(memory: &dyn Memory, verb: Completion<T>) -> VerbCompletion<'_, T, fn()> {
    completed_meanwhile(memory, verb, || ())
}

/// Waits for a verb, and runs `meanwhile` while the verb is in flight, if it is.
#[inline]
pub(super) fn completed_meanwhile<T: Unpin, F: FnOnce()>(
    memory: &dyn Memory,
    verb: Completion<T>,
    meanwhile: F,
) -> VerbCompletion<'_, T, F> {
    VerbCompletion { memory, verb: Some(verb), meanwhile: Some(meanwhile) }
}

/// See [`completed_meanwhile`]. Hand-written, since every read passes here twice.
pub(super) struct VerbCompletion<'a, T, F> {
    memory: &'a dyn Memory,
    verb: Option<Completion<T>>,
    /// `Some` until the verb is known to be in flight.
    meanwhile: Option<F>,
}

impl<T: Unpin, F: FnOnce() + Unpin> Future for VerbCompletion<'_, T, F> {
    type Output = Result<T, rma::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let verb = self.verb.take().expect("polled only until it is ready");
        let outcome = match self.meanwhile.take() {
            None => Err(verb),
            Some(meanwhile) => verb.now().inspect_err(|_| {
                self.memory.flush();
                meanwhile();
            }),
        };
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(mut verb) => match Pin::new(&mut verb).poll(cx) {
                Poll::Ready(outcome) => outcome,
                Poll::Pending => {
                    self.verb = Some(verb);
                    return Poll::Pending;
                }
            },
        };
        if base::rt::fault_point("state.verb.ambiguous") {
            return Poll::Ready(Err(rma::Error::Ambiguous("the simulation says so")));
        }
        Poll::Ready(outcome)
    }
}

/// Whether a failed verb certainly had no effect.
pub(super) fn had_no_effect(error: &rma::Error) -> bool {
    error.kind() != ErrorKind::Ambiguous
}

#[async_trait]
impl Memory for pool::AddressSpace {
    fn section_bytes(&self) -> u64 {
        pool::AddressSpace::section_bytes(self)
    }

    fn budget_bytes(&self) -> u64 {
        pool::AddressSpace::budget_bytes(self)
    }

    fn set_budget(&self, bytes: u64) {
        pool::AddressSpace::set_budget(self, bytes);
    }

    async fn grow(&self) -> Result<Section, MemoryError> {
        let section = pool::AddressSpace::grow(self).await.map_err(memory_error)?;
        Ok(Section { id: section.id.0, address: section.address, bytes: section.bytes })
    }

    async fn release(&self, id: u32) -> Result<(), MemoryError> {
        pool::AddressSpace::release(self, pool::SectionId(id)).await.map_err(memory_error)
    }

    async fn lost(&self) -> LostSections {
        let loss = pool::AddressSpace::lost(self).await;
        LostSections { sections: loss.sections.iter().map(|section| section.0).collect() }
    }

    #[inline]
    fn is_fenced(&self) -> bool {
        pool::AddressSpace::is_fenced(self)
    }

    #[inline]
    fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        pool::AddressSpace::read(self, address, length, into)
    }

    #[inline]
    fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()> {
        pool::AddressSpace::write(self, address, parts)
    }

    #[inline]
    fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64> {
        pool::AddressSpace::compare_swap(self, address, expected, new)
    }

    async fn grant_read(&self, id: u32, follower: FollowerId) -> Result<Bytes, MemoryError> {
        let lent = pool::AddressSpace::grant_read(self, pool::SectionId(id), u64::from(follower.0)).await;
        Ok(lent.map_err(memory_error)?.encode())
    }

    async fn revoke_reads(&self, follower: FollowerId) -> Result<(), MemoryError> {
        pool::AddressSpace::revoke_reads(self, u64::from(follower.0)).await.map_err(memory_error)
    }

    fn take_adopted(&self) -> Vec<Section> {
        let adopted = pool::AddressSpace::take_adopted(self);
        adopted.into_iter().map(|pool::Section { id, address, bytes }| Section { id: id.0, address, bytes }).collect()
    }

    fn section_to_vacate(&self) -> Option<u32> {
        pool::AddressSpace::section_to_vacate(self).map(|section| section.id.0)
    }

    async fn migrate(&self, id: u32, head_bytes: u64) -> Result<Box<dyn MigratingSection>, MemoryError> {
        let begun = pool::AddressSpace::migrate(self, pool::SectionId(id), head_bytes).await;
        Ok(Box::new(begun.map_err(memory_error)?))
    }

    fn donor_of(&self, id: u32) -> u32 {
        pool::AddressSpace::donor_place(self, pool::SectionId(id)).map_or(u32::MAX, |place| place as u32)
    }

    fn is_settled(&self, id: u32) -> bool {
        pool::AddressSpace::is_settled(self, pool::SectionId(id))
    }

    fn next_number(&self) -> u32 {
        pool::AddressSpace::next_number(self)
    }

    fn start_from(&self, next: u32) {
        pool::AddressSpace::start_from(self, next);
    }

    fn flush(&self) {
        pool::AddressSpace::flush(self);
    }

    fn note_failure(&self, address: u64, error: &rma::Error) {
        pool::AddressSpace::note_failure(self, address, error);
    }
}

#[async_trait]
impl MigratingSection for pool::SectionMigration {
    async fn copy_some(&self, bytes_max: u64) -> Result<u64, MemoryError> {
        pool::SectionMigration::copy_some(self, bytes_max).await.map_err(memory_error)
    }

    async fn grant_read(&self, follower: FollowerId) -> Result<Bytes, MemoryError> {
        let granted = pool::SectionMigration::grant_read(self, u64::from(follower.0)).await;
        Ok(granted.map_err(memory_error)?.encode())
    }

    async fn complete(&self, head: Bytes) -> Result<(), MemoryError> {
        pool::SectionMigration::complete(self, head).await.map_err(memory_error)
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn FormerLocation>, MemoryError> {
        Ok(Box::new(pool::SectionMigration::finish(*self).map_err(memory_error)?))
    }
}

#[async_trait]
impl FormerLocation for pool::OldLocation {
    async fn erase_head(&self) {
        if let Err(error) = pool::OldLocation::erase_head(self).await {
            tracing::debug!(%error, "the old header of a section that migrated may still be there");
        }
    }

    async fn release(self: Box<Self>) {
        if let Err(error) = pool::OldLocation::release(*self).await {
            tracing::debug!(%error, "the old location of a section is returned in the background");
        }
    }
}

/// The error of operations that a follower's memory does not support.
fn read_only() -> MemoryError {
    MemoryError::Failed("a follower only reads: it cannot change remote memory".to_owned())
}

#[async_trait]
impl Memory for pool::ReadOnlySpace {
    fn section_bytes(&self) -> u64 {
        pool::ReadOnlySpace::section_bytes(self)
    }

    fn budget_bytes(&self) -> u64 {
        0
    }

    fn set_budget(&self, _bytes: u64) {}

    async fn grow(&self) -> Result<Section, MemoryError> {
        Err(read_only())
    }

    async fn release(&self, _id: u32) -> Result<(), MemoryError> {
        Err(read_only())
    }

    async fn lost(&self) -> LostSections {
        std::future::pending().await
    }

    fn is_fenced(&self) -> bool {
        false
    }

    #[inline]
    fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        pool::ReadOnlySpace::read(self, address, length, into)
    }

    fn write(&self, _address: u64, _parts: &[Bytes]) -> Completion<()> {
        Completion::ready(Err(rma::Error::Forbidden))
    }

    fn compare_swap(&self, _address: u64, _expected: u64, _new: u64) -> Completion<u64> {
        Completion::ready(Err(rma::Error::Forbidden))
    }

    fn flush(&self) {
        pool::ReadOnlySpace::flush(self);
    }

    fn note_failure(&self, address: u64, error: &rma::Error) {
        pool::ReadOnlySpace::note_failure(self, address, error);
    }
}

impl ReadOnlyMemory for pool::ReadOnlySpace {
    fn enter(&self, section: &Section, read_grant: &[u8]) -> Result<(), MemoryError> {
        let Section { id, address, bytes } = *section;
        let section = pool::Section { id: pool::SectionId(id), address, bytes };
        let lent = pool::ReadGrant::decode(section, read_grant).map_err(memory_error)?;
        pool::ReadOnlySpace::enter(self, &lent).map_err(memory_error)
    }

    fn leave(&self, address: u64) {
        pool::ReadOnlySpace::leave(self, address);
    }
}

fn memory_error(error: pool::Error) -> MemoryError {
    match error {
        pool::Error::Exhausted(_) => MemoryError::Exhausted(error.to_string()),
        _ if error.kind() == ErrorKind::Fenced => MemoryError::Fenced,
        _ => MemoryError::Failed(error.to_string()),
    }
}
