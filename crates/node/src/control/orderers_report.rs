//! An orderer's report on the members of its ordering group.

use serde::{Deserialize, Serialize};

use crate::network::layout::orderer_name;

/// The orderers of a group, as one of them knows them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderersReport {
    /// The orderer that reports.
    pub name: String,
    /// Its number.
    pub number: u64,
    /// The newest term that this orderer knows.
    pub term: u64,
    /// The leader of that term, as far as this orderer knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// The block height that this orderer shows.
    pub height: u64,
    /// All members, by number.
    pub orderers: Vec<OrdererReport>,
}

/// One of the orderers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrdererReport {
    /// Its number.
    pub number: u64,
    /// The address at which it answers the others.
    pub address: String,
    /// Whether it votes, or still learns.
    pub votes: bool,
    /// Entries of the leader's log that it is not known to have; only the leader reports this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Milliseconds since the leader last heard from it. Only the leader reports this, and not for an orderer that it
    /// has never heard from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ms: Option<u64>,
}

impl OrderersReport {
    /// Whether the reporting orderer leads.
    pub fn is_leader(&self) -> bool {
        self.leader == Some(self.number)
    }

    /// The member with this number.
    pub fn orderer(&self, number: u64) -> Option<&OrdererReport> {
        self.orderers.iter().find(|orderer| orderer.number == number)
    }
}

/// The name of the orderer with this number.
pub fn orderer_of(number: u64) -> String {
    orderer_name(number.saturating_sub(1) as usize)
}
