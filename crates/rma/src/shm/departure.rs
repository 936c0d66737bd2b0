//! What the host's end records about a caller on a socket: whether the caller has gone, and which regions the
//! caller must still unmap.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use base::rt::sync::Notify;

use super::view::REGIONS_MAX;
use crate::RegionId;

/// Whether a caller has gone, and which regions must still be announced to it.
#[derive(Default)]
pub(super) struct ConnectionDeparture {
    pub(super) gone: AtomicBool,
    pub(super) regions: Mutex<VecDeque<RegionId>>,
    pub(super) changed: Notify,
}

impl ConnectionDeparture {
    /// Whether the caller has closed its socket, so that it sets no further mark.
    pub(super) fn has_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Announces to the caller that a region can be unmapped.
    pub(super) fn announce(&self, region: RegionId) {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if regions.len() == REGIONS_MAX {
            // A caller that does not read unmaps the region late, when its slot is reused.
            regions.pop_front();
        }
        regions.push_back(region);
        drop(regions);
        self.changed.notify_one();
    }
}
