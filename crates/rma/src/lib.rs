//! Remote memory access: the memory interconnect that everything inside one organisation's pools speaks.
//!
//! A [`Host`] owns regions of memory and grants [`Capability`]s for them, each to one name. Whoever holds a capability and
//! an [`Endpoint`] to that host, connected under that name, reads and writes the region with one-sided verbs: the host runs none of our code for them (the progress
//! thread of the `tcp` provider apart). Small messages travel over the same endpoints, for control.
//!
//! 1. A host [registers](Host::register) a region and [grants](Host::grant) capabilities for it. It hands them to their
//!    holders in messages.
//! 2. A holder posts verbs. Posting never waits: it gives a [`Completion`], a future. Many may be in flight; they take
//!    effect in the order of posting on one endpoint as far as the provider's [`Profile`] says so.
//! 3. The host [revokes](Host::revoke) a capability. When that has completed, no verb under it takes effect, ever: neither
//!    one posted later nor one that was in flight, nor one of a holder that was paused in the middle. This is the fence on
//!    which every protocol with a leader stands.
//!
//! Invariants:
//! * A verb touches only the bytes of its region that its capability's rights allow, or fails without effect.
//! * A capability is good on connections of its holder's name alone: one that was overheard opens nothing on another's.
//! * A failed completion whose kind is [`base::ErrorKind::Ambiguous`] says nothing about whether the verb took effect or
//!   will take effect later; only a revocation ends that doubt. Every other failure means that it had no effect.
//! * Words (8 bytes, aligned, little-endian) are read and written whole; longer transfers may be torn between words and
//!   their words may land in any order, unless the profile says more. An [`Endpoint::compare_swap`] and a
//!   [`Endpoint::fetch_add`] are atomic with respect to one another and to words read and written, within the one
//!   atomicity domain of their region.
//! * Bytes that come out of a region or a message are the other side's and hostile until checked.
//!
//! Who owns which region, retries, and where memory comes from are left to the layers above.

mod capability;
mod completion;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod endpoint;
mod error;
mod failure;
#[doc(hidden)]
pub mod fuzz;
mod host;
pub mod links;
mod profile;
pub mod shaped;
pub mod shm;
pub mod sim;
pub mod tcp;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use capability::{CAPABILITY_BYTES, Capability, GrantId, NodeId, RegionId, Rights, Secret};
pub use completion::{Completer, Completion, Drive};
pub use endpoint::{Connection, Endpoint, Incoming};
pub use error::Error;
pub use host::{Credential, Fabric, Host, HostOptions, TOKEN_BYTES, Token, Tokens};
pub use profile::{Atomicity, Ordering, Profile};

/// Bytes that one read or write moves at most.
pub const TRANSFER_BYTES_MAX: usize = 64 << 20;
/// Bytes of one message. A block of the ledger, with room to spare.
pub const MESSAGE_BYTES_MAX: usize = 128 << 20;
/// Verbs in flight on one endpoint; one more fails with [`Error::Busy`].
pub const IN_FLIGHT_MAX: usize = 4096;
/// Parts of one write or message.
pub const PARTS_MAX: usize = 16;
/// Bytes of a word, the unit of atomicity and of alignment.
pub const WORD_BYTES: usize = 8;
