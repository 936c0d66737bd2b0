//! The block store: the blocks of one channel, appended and never changed.
//!
//! A store is a directory of segments and their indexes. A segment is a file of checksummed records, one per block; the
//! last segment grows, the others are sealed.
//!
//! 1. [`BlockStore::append`] accepts a block only if its number is the height, its previous hash is the header hash of
//!    the newest block, and its epoch is not older than that block's. It writes one record: header, payload, and the
//!    list of transactions with their validation codes. It does not sync.
//! 2. [`BlockStore::sync`] makes everything appended before it durable. It shares the fsync with all other waiting
//!    writers of the disk ([`crate::GroupSync`]), and one fsync may cover many blocks. Afterwards it writes the
//!    *durable watermark* into the segment: the offset below which the segment is durable.
//! 3. When a segment has reached its size limit, the next append syncs it, writes its index beside it and begins the
//!    next one. Sealed segments are therefore durable as a whole.
//! 4. [`BlockStore::open`] reads the indexes of sealed segments and every record of the last segment. An incomplete
//!    record beyond the durable watermark is a torn write: the process or the machine stopped while it was written. The
//!    store truncates the segment at that record, and reports it. Damage anywhere else is an error that names file,
//!    byte and block.
//! 5. Reads check the record's checksums. A block that fails the check is never served.
//!
//! Invariants:
//! * Numbers are consecutive from 0, and each record's previous hash is the header hash of the record before it.
//! * A block that [`BlockStore::sync`] has covered is found again after a crash, with the same bytes.
//! * The durable watermark never covers more than is durable. The watermark itself reaches the disk only with the next
//!   sync. So damage to the blocks of the very last sync before a crash cannot be distinguished from a torn write, and
//!   is reported as a torn write.
//!
//! The store does not interpret blocks: the ledger computes and checks hashes, signatures and codes.

mod files;
mod fingerprints;
mod format;
#[doc(hidden)]
pub mod fuzz;
mod genesis;
mod index;
mod interface;
mod recovery;
mod store;
mod truncate;

pub(crate) use fingerprints::{SHARDS, fingerprint, shard_and_tag};
pub use format::{FORMAT_VERSION, RECORD_BYTES_MAX};
pub(crate) use format::{TransactionList, check_seal, encode_transactions, seal, sealed};
pub use genesis::NO_PREVIOUS;
pub use index::ChainTip;
pub use interface::{Blocks, PAGE_BLOCKS_MAX, PAGE_BYTES_SOFT_MAX, StoredBlocks};
pub use recovery::{OpenReport, TornTail};
pub use store::{BlockIterator, BlockStore, BlockStoreConfig, NewBlock, StoredBlock, TransactionLocation};
pub use truncate::truncate;

#[cfg(test)]
mod tests;
