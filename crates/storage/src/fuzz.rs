//! Fuzz harnesses for bytes from disks and other processes; see [`base::fuzz`].

use base::Epoch;
use base::fuzz::{FuzzTarget, InputShape, authenticated};

use super::sealed_input::with_sealed;
use crate::Watermark;
use crate::node::epoch::{self, EpochRecord};
use crate::node::{ChannelCopy, CopyReset, RegisteredView, View, ViewId};

/// The targets of this crate.
pub fn targets() -> Vec<FuzzTarget> {
    [TARGETS, crate::blocks::fuzz::TARGETS, crate::node::fuzz::TARGETS, crate::tables::fuzz::TARGETS].concat()
}

const TARGETS: &[FuzzTarget] = &[
    FuzzTarget { name: "storage-epoch", shape: InputShape::Bytes, run: epochs, seeds },
    FuzzTarget { name: "storage-watermarks", shape: InputShape::Bytes, run: watermarks, seeds: watermark_seeds },
];

fn seeds() -> Vec<Vec<u8>> {
    let copy = |name: &str, is_learner| ChannelCopy { name: name.to_owned(), is_learner };
    let view = View {
        id: ViewId { number: 2, epoch: Epoch(3) },
        copies: vec![copy("storage-1", false), copy("storage-2", true)],
    };
    let registered = RegisteredView { view, own: Some(1) };
    [RegisteredView::default(), registered]
        .map(|registered| EpochRecord { epoch: Epoch(3), registered, reset: CopyReset::Nothing })
        .iter()
        .map(epoch::encode)
        .collect()
}

fn epochs(input: &[u8]) {
    for bytes in with_sealed(input) {
        if let Ok(found) = authenticated(input, || epoch::decode(&bytes)) {
            assert_eq!(epoch::decode(&epoch::encode(&found)), Ok(found.clone()));
        }
    }
}

fn watermark_seeds() -> Vec<Vec<u8>> {
    vec![Watermark { epoch: Epoch(3), height: 5, block_hash: [7; 32] }.encode().to_vec()]
}

fn watermarks(input: &[u8]) {
    for bytes in with_sealed(input) {
        if let Ok(found) = authenticated(input, || Watermark::decode(&bytes)) {
            assert_eq!(found.encode(), bytes[..]);
        }
    }
}
