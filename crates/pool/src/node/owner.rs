//! One owner at a memory node: its epoch, its connection and its sections.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::rt::{self, Instant};
use base::{Epoch, FenceToken};
use rma::{Capability, Endpoint, RegionId};

use super::ABANDONED_AFTER;
use crate::events::OwnersConnected;
use crate::lock::lock;
use crate::message::DonorSection;

/// An owner, from its first connection on.
pub(super) struct Owner {
    pub(super) name: String,
    pub(super) presence: Mutex<OwnerPresence>,
    /// Held while one of its requests runs.
    pub(super) state: rt::sync::Mutex<OwnerState>,
}

pub(super) struct OwnerPresence {
    pub(super) connections: usize,
    /// Since when there has been no connection.
    pub(super) since: Instant,
}

#[derive(Default)]
pub(super) struct OwnerState {
    pub(super) session: Option<OwnerSession>,
    pub(super) sections: BTreeMap<DonorSection, GrantedSection>,
}

/// The epoch and the connection whose requests are executed.
pub(super) struct OwnerSession {
    pub(super) token: FenceToken<Epoch>,
    pub(super) connection: u64,
    pub(super) endpoint: Endpoint,
}

/// A section that was granted, or whose return is not confirmed.
pub(super) struct GrantedSection {
    /// The epoch that holds it, or that held it last.
    pub(super) epoch: Epoch,
    /// `None` while the section is not registered.
    pub(super) region: Option<RegionId>,
    pub(super) bytes: u64,
    /// The owner's number of the section.
    pub(super) number: u32,
    /// The capability of the epoch that holds it; `None` from the next fence until it is adopted.
    pub(super) capability: Option<Capability>,
    /// Its return could not be confirmed; nobody may use it any more.
    pub(super) returning: bool,
    /// The capabilities of followers, by number.
    pub(super) read_grants: BTreeMap<u64, Capability>,
}

impl GrantedSection {
    /// Whether the owner's next epoch may have it with its content.
    pub(super) fn may_be_adopted(&self) -> bool {
        self.region.is_some() && !self.returning
    }

    /// Whether it may be adopted now: nobody has a capability of it.
    pub(super) fn is_unheld(&self) -> bool {
        self.may_be_adopted() && self.capability.is_none() && self.read_grants.is_empty()
    }
}

/// Counts a connection of an owner while it exists.
pub(super) struct ConnectionGuard(pub(super) Arc<Owner>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut presence = lock(&self.0.presence);
        presence.connections -= 1;
        if presence.connections == 0 {
            presence.since = rt::now();
            OwnersConnected.add(-1);
        }
    }
}

impl Owner {
    /// Since when the owner has had no connection; `None` while it has one.
    pub(super) fn absent_since(&self) -> Option<Instant> {
        let presence = lock(&self.presence);
        (presence.connections == 0).then_some(presence.since)
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.absent_since().is_some_and(|since| since.elapsed() >= ABANDONED_AFTER)
    }
}
