//! Tests of the block store, one module per property.

mod appending;
mod crashes;
mod damage;
mod formats;
mod truncating;

use base::rt::disk::Directory;
use base::rt::simulation::Prng;
use base::{BlockNumber, Bytes, Epoch, TxId};

use super::*;

use crate::{Error, GroupSync};

/// A block that is easy to build and to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TestBlock {
    number: u64,
    header_hash: [u8; 32],
    previous_hash: [u8; 32],
    payload: Vec<Bytes>,
    transactions: Vec<(TxId, u8)>,
}

impl TestBlock {
    /// The block after `previous`, with random contents: a payload in up to three parts of up to `bytes_max` bytes.
    fn after(previous: Option<&TestBlock>, rng: &mut Prng, bytes_max: u64) -> TestBlock {
        let mut header_hash = [0; 32];
        rng.fill(&mut header_hash);
        let number = previous.map_or(0, |block| block.number + 1);
        let part = |rng: &mut Prng| {
            let mut part = vec![0; rng.below(bytes_max + 1) as usize];
            rng.fill(&mut part);
            Bytes::from(part)
        };
        let payload = (0..rng.below(4)).map(|_| part(rng)).collect();
        let transactions = (0..rng.below(6))
            .map(|index| (TxId::from(format!("{:x}-{number}-{index}", rng.number())), rng.below(256) as u8))
            .collect();
        let previous_hash = previous.map_or(NO_PREVIOUS, |block| block.header_hash);
        TestBlock { number, header_hash, previous_hash, payload, transactions }
    }

    fn new_block(&self) -> NewBlock<'_> {
        NewBlock {
            number: BlockNumber(self.number),
            header_hash: self.header_hash,
            previous_hash: self.previous_hash,
            epoch: Epoch(0),
            parts: &self.payload,
            transactions: &self.transactions,
        }
    }

    fn payload(&self) -> Bytes {
        Bytes::from(self.payload.concat())
    }

    fn check_is(&self, stored: &StoredBlock) {
        assert_eq!(stored.number, BlockNumber(self.number));
        assert_eq!(stored.header_hash, self.header_hash, "block {}", self.number);
        assert_eq!(stored.previous_hash, self.previous_hash, "block {}", self.number);
        assert_eq!(stored.payload, self.payload(), "block {}", self.number);
        assert_eq!(stored.transactions, self.transactions, "block {}", self.number);
    }
}

/// A chain of blocks with random contents.
fn chain(length: usize, seed: u64, bytes_max: u64) -> Vec<TestBlock> {
    let mut rng = Prng::new(seed);
    let mut blocks: Vec<TestBlock> = Vec::new();
    for _ in 0..length {
        blocks.push(TestBlock::after(blocks.last(), &mut rng, bytes_max));
    }
    blocks
}

/// A store with small segments, so that a few blocks fill several.
async fn open(path: &str, segment_bytes: u64) -> Result<(BlockStore, OpenReport), Error> {
    let directory = Directory::open(path).await.expect("the directory opens");
    BlockStore::open(directory, GroupSync::new(), BlockStoreConfig { segment_bytes, open_segments_max: 2 }).await
}

async fn append_all(store: &BlockStore, blocks: &[TestBlock]) {
    for block in blocks {
        store.append(block.new_block()).await.expect("the block follows");
    }
}

/// Checks every way of reading against the appended blocks.
fn check_holds(store: &BlockStore, blocks: &[TestBlock]) {
    assert_eq!(store.height(), blocks.len() as u64);
    assert_eq!(store.tip().header_hash, blocks.last().map_or(NO_PREVIOUS, |block| block.header_hash));
    let mut stored = store.iterate(BlockNumber(0));
    for block in blocks {
        let number = BlockNumber(block.number);
        block.check_is(&stored.next().expect("the iterator reaches the height").expect("the block is readable"));
        assert_eq!(store.read(number).expect("the block is readable"), Some(block.payload()));
        assert_eq!(store.transactions(number).expect("the block is readable"), Some(block.transactions.clone()));
        assert_eq!(store.number_by_hash(&block.header_hash).expect("the index is readable"), Some(number));
        for (index, (id, code)) in block.transactions.iter().enumerate() {
            let place = store.find_transaction(id).expect("the index is readable").expect("the transaction is there");
            assert_eq!((place.block, place.index.get(), place.code), (number, index as u32, *code));
        }
    }
    assert!(stored.next().is_none(), "the iterator ends at the height");
    let beyond = BlockNumber(blocks.len() as u64);
    assert_eq!(store.read(beyond).expect("absence is no error"), None);
    assert_eq!(store.transactions(beyond).expect("absence is no error"), None);
    assert_eq!(store.number_by_hash(&[7; 32]).expect("absence is no error"), None);
    assert_eq!(store.find_transaction(&TxId::from("absent")).expect("absence is no error"), None);
}
