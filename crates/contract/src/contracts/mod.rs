//! The contracts that are compiled in, one folder each.
//!
//! [`basic`] is Fabric's sample of assets and owners, for first experiments and for unmodified sample applications.
//! [`ycsb`], [`smallbank`] and [`kmeans`] are the workloads of the papers' measurements. Their clients (key choice,
//! operation mixes, rates) are part of the benchmarks.
//!
//! Each contract declares its functions once, in an [`interface::ContractInterface`]: names, arguments and their types.
//! From the declaration follow the errors for unknown functions and wrong arguments, and the metadata that Fabric's
//! tools ask for.

pub mod basic;
mod interface;
pub mod kmeans;
mod sequence;
pub mod smallbank;
pub mod ycsb;

#[cfg(test)]
mod tests;
