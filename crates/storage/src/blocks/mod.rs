//! The block store: the blocks of one channel, appended and never changed.
//!
//! A store is a directory of segments and their indexes. A segment is a file of checksummed records, one a block; the
//! last segment grows, the others are sealed.
//!
//! 1. [`BlockStore::append`] takes a block only at (height, hash of the newest block) and under no older epoch, and writes
//!    one record: header, payload, list of transactions with their validation codes. It does not fsync.
//! 2. [`BlockStore::sync`] makes everything appended before it durable, together with whoever else waits for the disk
//!    ([`crate::GroupSync`]). One fsync may serve many blocks. Afterwards it notes in the segment how far it got: the
//!    durable mark.
//! 3. When a segment has reached its size, the next append syncs it, writes its index beside it and begins the next one.
//!    Sealed segments are therefore durable as a whole.
//! 4. [`BlockStore::open`] reads the indexes of sealed segments and every record of the last segment. A record that is
//!    not whole and lies beyond the durable mark was being written when the process or the machine stopped: it and what
//!    follows is cut off and reported. Damage anywhere else is an error that names file, byte and block.
//! 5. Reads check the record's checksums. A block that does not pass is never served.
//!
//! Invariants:
//! * Numbers are consecutive from 0, and each record's previous hash is the header hash of the record before it.
//! * What [`BlockStore::sync`] has covered is found again after a crash, in the same bytes.
//! * The durable mark never says more than is true. It reaches the disk with the sync after the one it describes, so
//!   damage to the blocks of the very last sync before a crash cannot be told from a torn write; it is reported as one.
//!
//! The store does not look into blocks: hashes, signatures and codes are computed and checked by the ledger.

mod cut;
mod files;
mod fingerprints;
mod format;
#[doc(hidden)]
pub mod fuzz;
mod index;
mod interface;
mod recovery;
mod store;

#[cfg(test)]
mod tests;

pub use cut::cut;
pub(crate) use fingerprints::{SHARDS, fingerprint, shard_and_tag};
pub use format::{RECORD_BYTES_MAX, VERSION};
pub(crate) use format::{Transactions, check_seal, encode_transactions, seal};
pub use index::Tip;
pub use interface::{Blocks, PAGE_BLOCKS_MAX, PAGE_BYTES_SOFT_MAX, StoredBlocks};
pub use recovery::{OpenReport, TornTail};
pub use store::{BlockIterator, BlockOptions, BlockStore, NewBlock, StoredBlock, TransactionPlace};

/// The previous hash of block 0, which has none.
pub const NO_PREVIOUS: [u8; 32] = [0; 32];
