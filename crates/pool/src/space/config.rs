//! The configuration of an address space, and its limits.

use std::sync::Arc;
use std::time::Duration;

use base::Epoch;
use rma::{Provider, Token};

/// Donors of one space.
pub const DONORS_MAX: usize = 1024;
/// How long a donor may take to answer a request.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a donor may take to report its free memory.
pub(super) const CAPACITY_TIMEOUT: Duration = Duration::from_secs(1);
/// For how long a donor's report of its free memory counts as current.
pub(super) const CAPACITY_AGE_MAX: Duration = Duration::from_secs(1);

/// The configuration of an address space.
#[derive(Clone)]
pub struct AddressSpaceConfig {
    /// The owner of the memory: the name that donors know.
    pub owner: String,
    /// Greater than any epoch under which this owner's memory was held before.
    pub epoch: Epoch,
    /// The RMA provider by which donors are reached.
    pub provider: Arc<dyn Provider>,
    /// The memory nodes that may grant sections.
    pub donors: Vec<Donor>,
    /// Bytes of a section: the same as at the donors.
    pub section_bytes: u64,
    /// Bytes of sections that the space may have.
    pub budget_bytes: u64,
}

/// A memory node, and the secret that proves the owner's identity to it.
#[derive(Clone, Debug)]
pub struct Donor {
    /// The donor's network address.
    pub address: String,
    /// The secret that it shares with the owner.
    pub token: Token,
}
