//! Private data of a channel: rows that are not in its blocks, in tables of their own.
//!
//! The world state's rows are made from blocks, and blocks hold only the hashes of private data. The data themselves come from
//! endorsers and from other organisations' peers, at any time. The layers above decide what the rows mean and check them against
//! the hashes on the ledger; here they are rows with versions, as in [`crate::tables`].
//!
//! A channel has two such tables ([`PrivateTable`]). They differ in who may write them at a storage node: only the primary, under
//! its epoch, writes committed data; every compute node of the peer may add data of transactions that are not ordered yet.
//!
//! Invariants:
//! * Rows are durable once [`PrivateRows::write`] has returned. Writes that run at the same time share an fsync.
//! * Rows may be written in any order of their versions. A read sees the newest version of a key up to the block that it names.
//! * A superseded or deleted row leaves the disk after [`PrivateRows::prune`] has passed it.

mod interface;
mod local;
#[cfg(test)]
mod tests;

pub use interface::{PrivateRow, PrivateRows, PrivateTable, RowsPage};
pub use local::LocalPrivateRows;
