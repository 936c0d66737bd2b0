use base::Bytes;

use super::*;
use crate::golden::{self, BLOCK_1, BLOCK_8, BLOCK_9, GENESIS};

fn golden_config() -> ChannelConfig {
    ChannelConfig::from_block(&golden::block(GENESIS)).expect("golden")
}

/// A verifier that has checked what comes before a golden block.
fn before(block: &Block, previous_commit_hash: Option<Hash>) -> Verifier {
    let mut verifier = Verifier::new(VerifyOptions::default());
    verifier.config = Some(Arc::new(golden_config()));
    verifier.report.blocks = block.number().get();
    verifier.report.block_hash = block.header().previous_hash;
    verifier.report.commit_hash = previous_commit_hash;
    verifier
}

fn commit_hash(bytes: &'static [u8]) -> Hash {
    golden::block(bytes).metadata().commit_hash().expect("golden").expect("golden")
}

#[test]
fn golden_blocks_0_and_1_are_a_sound_ledger() {
    let mut verifier = Verifier::new(VerifyOptions::default());
    for bytes in [GENESIS, BLOCK_1] {
        verifier.check(&golden::block(bytes)).expect("golden");
    }
    let report = verifier.report();
    assert_eq!((report.blocks, report.transactions, report.valid), (2, 2, 2));
    assert_eq!((report.configurations, report.commit_hashes_unchecked), (1, 0));
    assert_eq!(report.commit_hash, Some(commit_hash(BLOCK_1)));
    assert_eq!(report.bytes, (GENESIS.len() + BLOCK_1.len()) as u64);
    assert_eq!(verifier.config().expect("block 0 has it").channel().as_str(), "mychannel");
}

#[test]
fn the_commit_hash_of_block_9_follows_from_that_of_block_8() {
    let ninth = golden::block(BLOCK_9);
    let mut verifier = before(&ninth, Some(commit_hash(BLOCK_8)));
    verifier.check(&ninth).expect("golden");
    assert_eq!(verifier.report().commit_hash, Some(commit_hash(BLOCK_9)));

    let mut verifier = before(&ninth, Some(commit_hash(BLOCK_1)));
    assert!(matches!(verifier.check(&ninth), Err(Error::CommitHash { block: BlockNumber(9), .. })));
}
