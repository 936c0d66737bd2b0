//! What the state needs of an address space: sections, verbs, and news of losses.
//!
//! [`pool::AddressSpace`] is the one of production. Tests put a model in its place that needs no donors.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use base::{Bytes, BytesMut, ErrorKind};
use rma::Completion;

use super::lease::HolderId;

/// A leased section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section {
    /// Never used again for another section, nor are its addresses.
    pub id: u32,
    /// The first address, not 0.
    pub address: u64,
    pub bytes: u64,
}

/// Why a section could not be had or given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// A newer primary holds this memory.
    #[error("a newer primary holds this memory")]
    Fenced,
    /// Try again later, or elsewhere.
    #[error("{0}")]
    Failed(String),
}

/// Sections that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    pub sections: Vec<u32>,
}

/// A flat address space of sections, reached by one-sided verbs. No verb crosses the end of a section.
#[async_trait]
pub trait Memory: Send + Sync + 'static {
    /// Bytes of every section.
    fn section_bytes(&self) -> u64;

    /// Bytes of sections that may be leased.
    fn budget_bytes(&self) -> u64;

    /// Changes that. What is above stays until it is released; there is no growth meanwhile.
    fn set_budget(&self, bytes: u64);

    /// One section more, of zeros.
    async fn grow(&self) -> Result<Section, MemoryError>;

    /// Gives a section back: its addresses fail from now on, and on return no verb to them takes effect, ever.
    async fn release(&self, id: u32) -> Result<(), MemoryError>;

    /// The next loss; each section is reported once. Dropping the future loses nothing.
    async fn lost(&self) -> Lost;

    /// Whether a newer primary holds this memory.
    fn is_fenced(&self) -> bool;

    fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut>;
    fn write(&self, address: u64, parts: &[Bytes]) -> Completion<()>;
    fn compare_swap(&self, address: u64, expected: u64, new: u64) -> Completion<u64>;

    /// Lets a reader read a section; gives what its own memory enters ([`LentMemory::enter`]).
    async fn share(&self, _id: u32, _reader: HolderId) -> Result<Bytes, MemoryError> {
        Err(MemoryError::Failed("this memory is nobody else's to read".to_owned()))
    }

    /// Revokes what a reader was given. On return no read of its succeeds, ever.
    async fn unshare(&self, _reader: HolderId) -> Result<(), MemoryError> {
        Ok(())
    }

    /// Starts what was posted and held back.
    fn flush(&self);

    /// Tells that a verb failed.
    fn note_failure(&self, address: u64, error: &rma::Error);
}

/// Memory of another compute node, of which some sections may be read here. Nothing in it is ever changed.
pub trait LentMemory: Memory {
    /// Makes a section readable that [`Memory::share`] gave.
    ///
    /// # Errors
    /// Where it makes no sense here.
    fn enter(&self, section: &Section, place: &[u8]) -> Result<(), MemoryError>;

    /// The section at this address has gone.
    fn leave(&self, address: u64);
}

/// Waits for a verb.
#[inline]
pub(super) fn completed<T: Unpin>(memory: &dyn Memory, verb: Completion<T>) -> Completed<'_, T, fn()> {
    completed_meanwhile(memory, verb, || ())
}

/// Waits for a verb, and does something else while it is under way, if it is.
#[inline]
pub(super) fn completed_meanwhile<T: Unpin, F: FnOnce()>(
    memory: &dyn Memory,
    verb: Completion<T>,
    meanwhile: F,
) -> Completed<'_, T, F> {
    Completed { memory, verb: Some(verb), meanwhile: Some(meanwhile) }
}

/// See [`completed_meanwhile`]. By hand, since every read passes here twice.
pub(super) struct Completed<'a, T, F> {
    memory: &'a dyn Memory,
    verb: Option<Completion<T>>,
    /// Until it is known to be under way.
    meanwhile: Option<F>,
}

impl<T: Unpin, F: FnOnce() + Unpin> Future for Completed<'_, T, F> {
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
        let section = pool::AddressSpace::grow(self).await.map_err(refused)?;
        Ok(Section { id: section.id.0, address: section.address, bytes: section.bytes })
    }

    async fn release(&self, id: u32) -> Result<(), MemoryError> {
        pool::AddressSpace::release(self, pool::SectionId(id)).await.map_err(refused)
    }

    async fn lost(&self) -> Lost {
        let loss = pool::AddressSpace::lost(self).await;
        Lost { sections: loss.sections.iter().map(|section| section.0).collect() }
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

    async fn share(&self, id: u32, reader: HolderId) -> Result<Bytes, MemoryError> {
        let lent = pool::AddressSpace::share(self, pool::SectionId(id), u64::from(reader.0)).await;
        Ok(lent.map_err(refused)?.place())
    }

    async fn unshare(&self, reader: HolderId) -> Result<(), MemoryError> {
        pool::AddressSpace::unshare(self, u64::from(reader.0)).await.map_err(refused)
    }

    fn flush(&self) {
        pool::AddressSpace::flush(self);
    }

    fn note_failure(&self, address: u64, error: &rma::Error) {
        pool::AddressSpace::note_failure(self, address, error);
    }
}

/// What a reader's memory does not do.
fn read_only() -> MemoryError {
    MemoryError::Failed("a reader changes nothing".to_owned())
}

#[async_trait]
impl Memory for pool::LentSpace {
    fn section_bytes(&self) -> u64 {
        pool::LentSpace::section_bytes(self)
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

    async fn lost(&self) -> Lost {
        std::future::pending().await
    }

    fn is_fenced(&self) -> bool {
        false
    }

    #[inline]
    fn read(&self, address: u64, length: usize, into: BytesMut) -> Completion<BytesMut> {
        pool::LentSpace::read(self, address, length, into)
    }

    fn write(&self, _address: u64, _parts: &[Bytes]) -> Completion<()> {
        Completion::ready(Err(rma::Error::Forbidden))
    }

    fn compare_swap(&self, _address: u64, _expected: u64, _new: u64) -> Completion<u64> {
        Completion::ready(Err(rma::Error::Forbidden))
    }

    fn flush(&self) {
        pool::LentSpace::flush(self);
    }

    fn note_failure(&self, address: u64, error: &rma::Error) {
        pool::LentSpace::note_failure(self, address, error);
    }
}

impl LentMemory for pool::LentSpace {
    fn enter(&self, section: &Section, place: &[u8]) -> Result<(), MemoryError> {
        let Section { id, address, bytes } = *section;
        let section = pool::Section { id: pool::SectionId(id), address, bytes };
        let lent = pool::Lent::of_place(section, place).map_err(refused)?;
        pool::LentSpace::enter(self, &lent).map_err(refused)
    }

    fn leave(&self, address: u64) {
        pool::LentSpace::leave(self, address);
    }
}

fn refused(error: pool::Error) -> MemoryError {
    match error.kind() {
        ErrorKind::Fenced => MemoryError::Fenced,
        _ => MemoryError::Failed(error.to_string()),
    }
}
