//! Tests of channels through the public interface, in one program: [`codes`] of invalid transactions, [`contention`] for the same keys,
//! [`end_to_end`] on real disks, and worlds under simulated faults: [`simulation`] of a whole channel, [`ordering`] by a group on passive memory nodes,
//! [`storage_node`] with the state in pooled memory.

mod codes;
mod contention;
mod end_to_end;
mod ordering;
mod simulation;
mod storage_node;
mod support;
mod world;
