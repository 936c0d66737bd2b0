//! Fuzz harness for the manager's record; see [`base::fuzz`].

use base::fuzz::{FuzzTarget, InputShape, authenticated};

use crate::action::{Action, Intent};
use crate::event::{self, PoolEvent};
use crate::record::{ManagerRecord, NodeRecord};
use crate::view::NodeOrigin;

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "manager-record", shape: InputShape::Bytes, run: record, seeds }];

fn seeds() -> Vec<Vec<u8>> {
    let mut record = ManagerRecord { incarnation: 2, next_intent: 5, next_event: 1, ..ManagerRecord::default() };
    let empty = record.encode();
    let peer = record.peers.entry("org1".to_owned()).or_default();
    let node = NodeRecord { origin: NodeOrigin::Managed, quota_percent: Some(50), draining: true };
    peer.nodes.insert("compute-org1-2".to_owned(), node);
    peer.open.push(Intent { number: 3, action: Action::Drain { node: "compute-org1-2".to_owned() } });
    peer.open.push(Intent { number: 4, action: Action::SetMemory { bytes: 1 << 27 } });
    let text = || "text".to_owned();
    let said = PoolEvent { number: 0, unix_ms: 7, peer: text(), seen: text(), done: text(), why: text() };
    event::append(&mut record.events, said);
    vec![empty, record.encode()]
}

/// Any bytes as a file; bytes that decode decode to the same again.
pub fn record(bytes: &[u8]) {
    // The checksum keeps all others out, so the bytes are tried with the right one too.
    for bytes in [bytes.to_vec(), ManagerRecord::sealed(bytes)] {
        if let Ok(record) = authenticated(&bytes, || ManagerRecord::decode(&bytes)) {
            assert_eq!(ManagerRecord::decode(&record.encode()), Ok(record));
        }
    }
}
