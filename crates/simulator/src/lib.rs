//! Whole networks of the real code of layers 0 to 6, simulated, under faults, with an oracle.
//!
//! * [`scenario`]: what a seed decides: sizes, delays, the fault plan.
//! * [`network`]: an orderer, or a group of them on memory nodes or on messages, and three peers, monolithic or over pools, on
//!   simulated nodes, and the links between them and their clients.
//! * [`client`]: who uses and misuses the network.
//! * [`witness`]: what outsiders saw, held against what is seen later, while a seed runs.
//! * [`oracle`]: the ledger's rules, one transaction after the other; [`verdict`]: the end of a run against it.
//! * [`reads`]: what endorsers read, held against the ledger.
//! * [`mutant`]: planted mistakes, which the checkers must catch.
//! * [`seed`]: one run; [`ending`]: what a run looks at when its faults are over; [`campaign`]: many, over all processors.
//!
//! `docs/simulation.md` says how to run, replay and extend it.

pub mod campaign;
pub mod client;
pub mod coverage;
pub mod ending;
pub mod mutant;
pub mod network;
pub mod oracle;
pub mod reads;
pub mod scenario;
pub mod seed;
pub mod verdict;
pub mod witness;
