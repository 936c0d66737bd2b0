//! Address spaces: the flat 64-bit space of one owner, made of sections that donors granted.
//!
//! 1. [`AddressSpace::open`] connects to every donor as the owner and fences, under the owner's new epoch, every
//!    process that held the owner's memory before. The donor revokes the capabilities of these processes and reclaims
//!    their sections before it answers. If a donor cannot be reached, a background task retries it for as long as the
//!    space exists. [`AddressSpace::adopt`] does the same, but the donors that it reaches keep the sections, and the
//!    space enters them into its table under the numbers that they had.
//! 2. [`AddressSpace::grow`] requests a section from the donor with the most free memory and enters it into the
//!    [section table](table).
//! 3. A verb looks up its address in the table, and goes to the section's endpoint with the section's capability.
//!    This look-up is all that the crate does on the data path.
//! 4. A donor is lost when its connection ends, or when a verb shows that the donor no longer knows its capability.
//!    Then all its sections are lost, at once and for good. Verbs to them fail with [`rma::Error::Closed`], and
//!    [`AddressSpace::lost`] reports the loss once. The space does not try to resume the sections, because verbs that
//!    were in flight when the connection broke may still take effect until a revocation. A connection on which verbs do
//!    not complete any more is [closed](watch).
//! 5. On each new connection to a donor, the space fences again and returns every section that the donor lists. When
//!    an answer does not come in time but the connection lasts, the space makes a *sweep*: it asks for the list, and
//!    returns the listed sections that it does not know.
//!
//! Invariants:
//! * Address 0 is never granted, and no address and no [`SectionId`] is granted twice: a space that has used up its
//!   addresses must be opened again. A space that adopts continues behind the numbers that it found.
//! * A section is adopted only while the space opens, and only from a donor that has revoked every older capability of
//!   it. A section that is not adopted is returned.
//! * Live and requested sections together stay within the space's budget. The copy of a section that migrates comes on
//!   top.
//! * A section is live, released or lost. It is live only once, and is reported lost at most once.
//! * No section is leaked: if a donor holds a section that is not in the table, the link is due for a sweep or has
//!   ended.
//!
//! A section may [migrate](migration) to another donor; its addresses and its number stay.
//!
//! A donor may [join](joining) an open space, and leave it again.
//!
//! Other compute nodes of the owner read the same sections through a [`ReadOnlySpace`], with capabilities that this
//! space requests ([`AddressSpace::grant_read`]). Such a capability ends with the section, with the epoch of the
//! space, or by revocation.
//!
//! The layers above decide what the bytes mean, and what to do after a loss.

mod address_space;
mod config;
mod copied_pages;
mod donor_list;
mod donor_session;
mod growth;
mod joining;
mod link;
mod migration;
mod read_grant;
mod read_only;
mod section;
mod space_core;
mod table;
mod verbs;
mod watch;

pub use address_space::{AddressSpace, DonorStatus};
pub use config::{AddressSpaceConfig, DONORS_MAX, Donor, RESPONSE_TIMEOUT};
pub use migration::{OldLocation, SectionMigration};
pub use read_grant::ReadGrant;
pub use read_only::{FindDonor, ReadOnlySpace, ReadOnlySpaceConfig};
pub use section::{LossReason, Section, SectionId, SectionLoss};
use space_core::{DonorConnection, SpaceCore, other_versions};
pub use table::SECTIONS_EVER_MAX;
pub use verbs::VerbCounts;
pub use watch::STUCK_AFTER;
