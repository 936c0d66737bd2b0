//! The contracts that are compiled in, one folder each.
//!
//! [`basic`] is Fabric's sample of assets and owners, for trying things out and for unmodified sample applications;
//! [`ycsb`], [`smallbank`] and [`kmeans`] are the workloads that the papers measure with. What the clients of those do
//! (key choice, mixes, rates) belongs to the benchmarks.

mod arguments;
pub mod basic;
pub mod kmeans;
pub mod smallbank;
pub mod ycsb;
