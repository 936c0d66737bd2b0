//! The manager's durable state, one file.
//!
//! The first line is `heddle-manager 1 ` and the XXH3-64 checksum of everything after that line, 16 hexadecimal digits;
//! then follows JSON. `docs/formats/manager.md` describes it. A file has at most [`RECORD_BYTES_MAX`] bytes.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::action::{Intent, ScalingLoop};
use crate::event::{EVENTS_MAX, PoolEvent, TEXT_BYTES_MAX};
use crate::settings::{NODES_MAX, PEERS_MAX};
use crate::view::NodeOrigin;

/// The largest file.
pub const RECORD_BYTES_MAX: u64 = 1 << 20;
const HEAD: &str = "heddle-manager 1 ";
/// Open intents of a peer: one of each loop.
const INTENTS_MAX: usize = 3;

/// What a manager knows about a compute node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// Where it comes from.
    pub origin: NodeOrigin,
    /// The quota that it is to have, if this manager has set one.
    pub quota_percent: Option<u32>,
    /// Whether it is to go.
    pub draining: bool,
}

/// What a manager knows about a peer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerRecord {
    /// Its compute nodes.
    pub nodes: BTreeMap<String, NodeRecord>,
    /// What has been begun and has not ended.
    pub open: Vec<Intent>,
}

impl PeerRecord {
    /// Whether an action of a loop is open.
    pub(crate) fn is_open(&self, of: ScalingLoop) -> bool {
        self.open.iter().any(|open| open.action.scaling_loop() == of)
    }
}

/// The durable state of a manager.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagerRecord {
    /// How many managers have started on this record: the last of them is the manager.
    pub incarnation: u64,
    /// The number of the next intent.
    pub next_intent: u64,
    /// The number of the next event.
    pub next_event: u64,
    /// The peers, by name.
    pub peers: BTreeMap<String, PeerRecord>,
    /// The newest events, the oldest first.
    pub events: VecDeque<PoolEvent>,
}

impl ManagerRecord {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let body = serde_json::to_vec_pretty(self).expect("it has a JSON form");
        let mut bytes = format!("{HEAD}{:016x}\n", checksum(&body)).into_bytes();
        bytes.extend(body);
        bytes
    }

    /// Reads a file's bytes.
    ///
    /// # Errors
    /// They are not a record of this release, or damaged.
    pub fn decode(bytes: &[u8]) -> Result<ManagerRecord, String> {
        if bytes.len() as u64 > RECORD_BYTES_MAX {
            return Err(format!("it has more than {RECORD_BYTES_MAX} bytes"));
        }
        let rest = bytes.strip_prefix(HEAD.as_bytes()).ok_or("it is not a manager's record of this release")?;
        let (sum, rest) = rest.split_at_checked(16).ok_or("it ends in its first line")?;
        let body = rest.strip_prefix(b"\n").ok_or("its first line is malformed")?;
        if sum != format!("{:016x}", checksum(body)).as_bytes() {
            return Err("its checksum is not the one that it was written with".to_owned());
        }
        let record: ManagerRecord = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        record.check()?;
        Ok(record)
    }

    /// A file with a correct checksum, whose body is that of these bytes: for fuzzing.
    pub(crate) fn sealed(bytes: &[u8]) -> Vec<u8> {
        let start = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |end| end.saturating_add(1));
        let body = bytes.get(start..).unwrap_or_default();
        let mut sealed = format!("{HEAD}{:016x}\n", checksum(body)).into_bytes();
        sealed.extend(body);
        sealed
    }

    fn check(&self) -> Result<(), String> {
        let peers = self.peers.iter().all(|(name, peer)| {
            name.len() <= TEXT_BYTES_MAX && peer.nodes.len() <= NODES_MAX && peer.open.len() <= INTENTS_MAX
        });
        let events = self.events.iter().all(|event| event.number < self.next_event);
        let intents = self.peers.values().flat_map(|peer| &peer.open).all(|open| open.number < self.next_intent);
        match peers && events && intents && self.peers.len() <= PEERS_MAX && self.events.len() <= EVENTS_MAX {
            true => Ok(()),
            false => Err("it holds more than a record may, or numbers that it has not given".to_owned()),
        }
    }
}

fn checksum(bytes: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;

    #[test]
    fn a_record_is_read_as_it_was_written_and_damage_is_noticed() {
        let mut record = ManagerRecord { incarnation: 3, next_intent: 8, next_event: 1, ..ManagerRecord::default() };
        let peer = record.peers.entry("org1".to_owned()).or_default();
        let node = NodeRecord { origin: NodeOrigin::Managed, quota_percent: Some(50), draining: false };
        peer.nodes.insert("compute-org1-2".to_owned(), node);
        peer.open.push(Intent { number: 7, action: Action::Launch { node: "compute-org1-2".to_owned() } });
        let bytes = record.encode();
        assert_eq!(ManagerRecord::decode(&bytes), Ok(record.clone()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            ManagerRecord::decode(&damaged).expect_err("a bit is wrong");
            ManagerRecord::decode(&bytes[..at]).expect_err("the end is missing");
        }
        record.next_intent = 7;
        ManagerRecord::decode(&record.encode()).expect_err("intent 7 was never given");
    }
}
