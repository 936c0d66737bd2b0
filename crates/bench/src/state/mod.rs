//! `heddle bench state`: the world state alone, without a network.
//!
//! 1. [`reads`]: warm and cold reads, ranges, and the memory of a record. They are compared with an in-process hash map, with
//!    the storage engine alone, and with FlexChain's division of labour, in which the memory node performs look-up and
//!    allocation ([`two_sided`]).
//! 2. [`blocks`]: applying blocks, with the same comparisons.
//! 3. [`load`]: YCSB-A and YCSB-B in blocks; the disaggregated and the monolithic form take turns. Each is a [`peer`] with
//!    blocks and tables on disk.
//! 4. [`pressure`]: reads while other records are evicted, and long runs of updates within constant memory.
//!
//! Both sides of a ratio are measured in one run, in turns, and the medians of the turns are compared.

mod blocks;
mod config;
pub(crate) mod load;
pub(crate) mod peer;
mod pressure;
mod reads;
pub(crate) mod setup;
mod suite;
pub(crate) mod transactions;
pub(crate) mod two_sided;

pub(crate) use config::PERSIST_BLOCKS;
pub use config::{StateConfig, StatePart};
pub use suite::run;
