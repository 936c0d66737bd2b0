//! Blocks that Fabric and its configuration library wrote, for tests.

use base::Bytes;

use crate::block::Block;

pub(crate) const GENESIS: &[u8] = include_bytes!("../../proto/tests/golden/b0.block");
pub(crate) const BLOCK_1: &[u8] = include_bytes!("../../proto/tests/golden/b1.block");
pub(crate) const BLOCK_8: &[u8] = include_bytes!("../../proto/tests/golden/b8.block");
pub(crate) const BLOCK_9: &[u8] = include_bytes!("../../proto/tests/golden/b9.block");

pub(crate) const ALL: [&[u8]; 4] = [GENESIS, BLOCK_1, BLOCK_8, BLOCK_9];

pub(crate) fn block(bytes: &'static [u8]) -> Block {
    Block::parse(&Bytes::from_static(bytes)).expect("a golden block parses")
}

/// Genesis blocks that Fabric's configuration library (fabric-config 0.3.0) made: three organisations, one with Ed25519
/// keys and one with an intermediate authority, access rules, capabilities of the third generation.
pub(crate) const RAFT_V3: &[u8] = include_bytes!("../tests/golden/raft-v3.block");
/// The same channel ordered by four numbered consenters.
pub(crate) const BFT_V3: &[u8] = include_bytes!("../tests/golden/bft-v3.block");

/// A block of the channel that was recorded from Fabric's peers (`tests/fabric-channel`).
pub(crate) fn recorded(number: u64) -> Block {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fabric-channel/blocks");
    let bytes = std::fs::read(format!("{folder}/{number:04}.block")).expect("the recorded blocks are in the tree");
    Block::parse(&Bytes::from(bytes)).expect("Fabric wrote it")
}
