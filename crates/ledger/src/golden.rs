//! The blocks that Fabric wrote, for tests.

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
