//! The memory pool: donors give sections of memory to owners, who see them as one flat address space.
//!
//! ```text
//!  owner (a logical peer)                        donors
//!  AddressSpace ── address ─▶ section table ─┬─▶ MemoryNode a   region, capability
//!     grow, release, lost                    └─▶ MemoryNode b   region, capability
//! ```
//!
//! 1. A [`MemoryNode`] serves control messages on an [`rma::Host`]: it grants sections out of a byte budget, takes them
//!    back, lists them. It has no part in reads and writes.
//! 2. An [`AddressSpace`] connects to donors, fences whoever held this owner's memory before under an older epoch, and
//!    grows section by section. Its section table maps the high bits of an address to a donor's region.
//! 3. A donor that is lost takes its sections with it: the owner is told once, fills its memory again elsewhere, and may
//!    grow from that donor again when it comes back. Pooled memory is a cache of what storage holds; nobody waits for it.
//!
//! Invariants (the simulation in `tests/pool/simulation` checks them under faults):
//! * A byte of a donor belongs to at most one live grant, and every grant to one owner: the name that the owner proved.
//! * The sections of a donor, those included whose return is not confirmed, never exceed its budget.
//! * When a fence has been answered, no verb under an older epoch takes effect at that donor, ever.
//! * Memory is zero when it is given. A region is never given twice.
//! * What neither side knows of any more (an answer was lost, an owner was killed) comes back: see [`node`] and [`space`].
//!
//! `docs/formats/section-table.md` has the messages' bytes. Routes, bonding and the pool's own control plane come later;
//! what the bytes of a section mean is left to the layers above.

mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
mod message;
pub mod node;
pub mod space;

pub use error::Error;
pub use message::PROTOCOL_VERSION;
pub use node::{MemoryNode, MemoryNodeOptions, Usage};
pub use space::{
    AddressSpace, Donor, DonorStatus, Lent, LentSpace, LentSpaceOptions, Loss, LossReason, Section, SectionId,
    SpaceOptions, VerbCounts,
};

/// Bytes of a section unless configured otherwise.
pub const SECTION_BYTES_DEFAULT: u64 = 16 << 20;
/// Bytes of the smallest section: a page of the processors and adapters below.
pub const SECTION_BYTES_MIN: u64 = 4096;
/// Bytes of the largest section.
pub const SECTION_BYTES_MAX: u64 = 1 << 36;
/// Addresses of a space are below two to the power of this: 8 TiB.
pub const ADDRESS_BITS: u32 = 43;
/// Bytes of an owner's name.
pub const OWNER_BYTES_MAX: usize = 64;

/// Whether sections may have this size.
fn check_section_bytes(bytes: u64) -> Result<(), Error> {
    if bytes.is_power_of_two() && (SECTION_BYTES_MIN..=SECTION_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "a section of {bytes} bytes: choose a power of two between {SECTION_BYTES_MIN} and {SECTION_BYTES_MAX}, \
         the same at every memory node and owner of a pool"
    )))
}
