//! The data that a peer and an orderer keep on disk: blocks, world-state tables, and the directory that holds both.
//!
//! ```
//! use base::rt::simulation::Simulation;
//! use base::{BlockNumber, Bytes, Epoch, TxId, Version};
//! use storage::blocks::{BlockStore, BlockStoreConfig, NO_PREVIOUS, NewBlock};
//! use storage::tables::{ModelEngine, RowBatch, Savepoint, TablesEngine as _};
//! use storage::{DataDirectory, Error, GroupSync};
//!
//! let run = Simulation::new(1).run(|_| async {
//!     let data = DataDirectory::open("/data").await?;
//!     let (directory, config) = (data.subdirectory("blocks").await?, BlockStoreConfig::default());
//!     let (blocks, _) = BlockStore::open(directory, GroupSync::new(), config).await?;
//!     let engine = ModelEngine::open(data.subdirectory("tables").await?).await?;
//!     let tables = engine.tables("trade").await?;
//!
//!     // First the block. It is durable when `sync` has returned.
//!     let block = NewBlock {
//!         number: BlockNumber(0),
//!         header_hash: [1; 32],
//!         previous_hash: NO_PREVIOUS,
//!         epoch: Epoch(1),
//!         parts: &[Bytes::from_static(b"an encoded block")],
//!         transactions: &[(TxId::from("tx"), 0)],
//!     };
//!     blocks.append(block).await?;
//!     assert_eq!(blocks.sync().await?, 1);
//!
//!     // Then its rows. The savepoint covers the block when `persist` has returned.
//!     let mut batch = RowBatch::new(Savepoint { height: 1, epoch: Epoch(1), block_hash: [1; 32] });
//!     batch.put("cc", b"owner", Version::new(0, 0), Some(Bytes::from_static(b"Ann")))?;
//!     tables.write(batch)?;
//!     assert_eq!(tables.persist().await?.height, 1);
//!
//!     assert_eq!(blocks.find_transaction(&TxId::from("tx"))?.map(|found| found.block), Some(BlockNumber(0)));
//!     let row = tables.get("cc", b"owner", BlockNumber(0))?;
//!     assert_eq!(row.and_then(|row| row.value), Some(Bytes::from_static(b"Ann")));
//!     Ok::<_, Error>(())
//! });
//! run.expect("the run ends").value.expect("no step fails");
//! ```
//!
//! # Modules
//! * [`blocks`]: the block store. Append-only checksummed segments, which accept only the block that continues the
//!   chain. A synced block is never lost; a damaged block is reported and never served.
//! * [`tables`]: the rows of the world state, keyed (namespace, key, version descending), on an embedded engine and on
//!   a deterministic model that passes the same suite.
//! * [`StateStore`]: the interface to a disaggregated world state, which reads rows as of a block. Storage itself makes
//!   the rows from the blocks.
//! * [`History`]: an index from a key to the blocks that wrote it, built from the blocks when a client first asks.
//! * [`node`]: the storage node, which keeps blocks and tables for compute nodes on other machines, and refuses the
//!   writes of replaced primaries.
//! * [`GroupSync`]: one round of fsync for all waiting writers of a disk.
//! * [`DataDirectory`]: the version and the lock of a data directory.
//! * [`WatermarkFile`]: a file, apart from a channel's data, that records the height of the data. It reveals that an
//!   older copy of the data was restored.
//!
//! # Guarantees
//! * A block that [`blocks::BlockStore::sync`] has covered is found again after a crash, with the same bytes. Bytes
//!   that fail their checksum are reported with file and byte ([`Corruption`]), and never served.
//! * Rows and their savepoint survive a crash together or not at all. A savepoint of the tables covers a block once
//!   [`tables::Tables::persist`] has returned, and not before.
//! * A write fails with [`Error::Fenced`] and has no effect if its epoch is older than that of the newest block or of
//!   the savepoint. At a storage node it also fails if its epoch is older than the newest epoch that has begun.
//! * At most one process writes a data directory. A directory of another format is refused before anything in it is
//!   touched.
//!
//! # What it needs around it
//! * `ledger`, `state`, `chain`, `sift`, `raft` and `kv` call it. It calls `base` for files, links and tasks, and the
//!   engine `fjall`.
//! * The caller must keep the order of durability: it syncs a block in the block store before it writes any of the
//!   block's rows to the tables, so that tables are never ahead of blocks after a crash.
//! * The layers above know the meaning of a block's bytes and which rows a block writes. They compute and check hashes
//!   and signatures, and provide the [`Materializer`].
//! * The compute nodes of a peer decide which of them is primary; a storage node knows the primary by its epoch.
//!
//! `docs/formats/blocks.md` and `docs/formats/tables.md` document the formats byte by byte.

#![deny(missing_docs)]

pub mod blocks;
mod checksum;
pub mod directory;
mod error;
pub mod events;
#[doc(hidden)]
pub mod fuzz;
pub mod history;
mod lock;
pub mod node;
pub mod private;
mod sealed_input;
pub mod state_store;
mod sync;
pub mod tables;
pub mod watermark;

pub(crate) use checksum::checksum;
pub use directory::DataDirectory;
pub use error::{Corruption, Error, advice};
pub use history::{History, HistoryQuery, LocalHistory};
pub(crate) use lock::lock;
pub use private::{LocalPrivateRows, PrivateRow, PrivateRows, PrivateTable};
pub use state_store::{LocalStateStore, Materializer, MemoryStateStore, StateStore};
pub use sync::{GroupSync, SyncHandle};
pub use watermark::{Watermark, WatermarkFile};
