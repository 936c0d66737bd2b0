//! The contracts that are compiled in, one folder each.
//!
//! [`basic`] is Fabric's sample of assets and owners, for trying things out and for unmodified sample applications;
//! [`ycsb`], [`smallbank`] and [`kmeans`] are the workloads that the papers measure with. What the clients of those do
//! (key choice, mixes, rates) belongs to the benchmarks.
//!
//! Each declares its functions once, in an [`interface::Interface`]: names, arguments and their types. Refusals of unknown
//! functions and wrong arguments, and the metadata that Fabric's tools ask for, come from that declaration.

pub mod basic;
mod interface;
pub mod kmeans;
mod sequence;
pub mod smallbank;
pub mod ycsb;

#[cfg(test)]
mod tests;
