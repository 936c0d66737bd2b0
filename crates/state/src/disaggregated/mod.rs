//! The world state on pooled memory: index and records in an address space, rows on the storage node, caches on the
//! compute node.
//!
//! The design follows FlexChain (section 4) with one difference: memory nodes are passive. Index and records are laid
//! out so that one-sided verbs suffice to read and write them (docs/adr, passive memory nodes), and a block is applied
//! as one batch instead of record by record (docs/adr, group apply).
//!
//! What lies where, and who may change it:
//!
//! | place | holds | changed by |
//! |---|---|---|
//! | [`record`]s in remote memory | versions; `prev` leads to an older one, `next` to a newer one | the writer |
//! | [`index`] in remote memory | for each key, its newest version | the writer |
//! | [`cache`] on the compute node | each key's newest version, values of versions | apply; reads with a valid token |
//! | [`delta`] on the compute node | keys written after the savepoint, locations of their versions | apply, savepoint |
//! | storage | every version up to the savepoint that a read may need | the storage node, from its blocks |
//!
//! The writer is the task that holds the lock of [`StateWriter`] at the peer's one primary: apply, a fill, eviction,
//! or background maintenance ([`maintenance`]). The peer's other compute nodes, its followers ([`followers`]), read
//! the same memory and follow the updates that the primary sends. They run the same code, except for the parts that
//! change remote memory.
//!
//! 1. A block is durable in storage before [`WorldState::apply`] makes any of its records reachable. Remote memory may
//!    vanish at any moment: everything in it is also in storage, as a row or in a block above the savepoint.
//! 2. [`apply`] writes records, adds them to the delta, links them, swaps index slots, replaces the cached versions, sends
//!    an update to the followers, waits for their acknowledgements, and only then raises the height.
//! 3. [`read`] looks into caches, index, delta and storage, in this order. A miss is always safe: the search
//!    continues. A hit on an old version would be wrong; the protocols exclude it.
//! 4. [`reclaim`](maintenance) retires a version once no view needs it, neither here nor on a follower. A reader may
//!    have learnt the address of the version's buffer under a [`lease`]; the buffer is reused only when all such
//!    leases have ended.
//! 5. [`evict`] keeps memory below its budget: it removes cold records from memory, if storage has them as rows.
//!    [`drain`] returns sections after the budget was lowered. [`migrate`] moves a section to another memory node.
//! 6. The savepoint moves when storage materialises blocks, on its own or because [`WorldState::persist`] asks. The
//!    delta then drops the blocks that the savepoint covers.
//! 7. A section is abandoned if it is lost, or if an ambiguous verb may still write into it ([`StateCore::give_up`]).
//!    From then on reads find nothing in it, and read from storage or from other sections instead.
//! 8. A new primary opens the address space under a higher epoch, which fences the old primary: the old primary's
//!    verbs have no effect from then on, and its calls fail with [`Error::Fenced`]. The new primary adopts the sections,
//!    the index and the records that the old one left ([`adopt`]), as far as headers and marks ([`marks`]) say that
//!    they belong together, and applies the blocks again that the index may lack. It raises no height and lets no
//!    follower join until every lease that the old primary can have granted has ended.
//!
//! Invariants:
//! * A slot of the index is empty or leads to the newest applied version of its key.
//! * A buffer is reused only after nothing has led to it for [`lease::REUSE_AFTER`].
//! * Every leased byte is free, live or quarantined. Every live byte belongs to a subtable of the index or to a
//!   reachable record: reachable from an index slot, from the `prev` of a newer version, or from the list of
//!   superseded versions. In a section that was adopted this is known only after its survey.
//!
//! [`Error::Fenced`]: crate::Error::Fenced
//! [`WorldState::apply`]: crate::WorldState::apply
//! [`WorldState::persist`]: crate::WorldState::persist
//! [`lease`]: replica::lease
//! [`lease::REUSE_AFTER`]: replica::lease::REUSE_AFTER

mod adopt;
mod apply;
mod apply_part;
mod apply_workers;
mod audit;
mod cache;
mod delta;
mod directory;
mod drain;
mod evict;
mod eviction_candidate;
pub mod fault;
mod fill;
pub mod followers;
#[doc(hidden)]
pub mod fuzz;
mod grow;
mod header;
mod index;
mod limits;
mod maintenance;
mod marks;
pub mod memory;
mod migrate;
mod pending_write;
mod pointer;
mod range;
mod read;
mod record;
mod reference_bits;
mod section_headers;
mod sections;
mod space;
mod state_core;
mod world_state;

pub use apply_workers::ApplyWorkers;
pub use audit::MemoryAudit;
pub use followers::Follower;
use record::KeyName;
use state_core::{DONOR_TIMEOUT, READS_AT_ONCE, StateCore, StateWriter, SupersededVersion, Tombstone};
pub use state_core::{DisaggregatedConfig, StateUsage, StateView};
pub use world_state::Disaggregated;
