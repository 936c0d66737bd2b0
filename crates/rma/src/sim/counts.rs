//! Numbers of posted verbs.

use crate::sim::verb::SimVerb;

/// Numbers of posted verbs.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VerbCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Compare-and-swaps.
    pub compare_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_adds: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes that were requested by reads and carried by writes.
    pub bytes: u64,
    /// Verbs that were posted and have not completed.
    pub in_flight: u64,
    /// Verbs that were still in transit when their connection was lost.
    pub stray: u64,
}

impl VerbCounts {
    pub(super) fn count(&mut self, work: &SimVerb, length: u64) {
        match work {
            SimVerb::Read { .. } => self.reads += 1,
            SimVerb::Write { .. } => self.writes += 1,
            SimVerb::CompareSwap { .. } => self.compare_swaps += 1,
            SimVerb::FetchAdd { .. } => self.fetch_adds += 1,
            SimVerb::Message(_) => self.messages += 1,
        }
        self.bytes += length;
    }
}
