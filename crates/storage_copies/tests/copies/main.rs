//! The copies of a channel in simulation: storage nodes that crash, stall, are cut off or have full disks; primaries that replace
//! one another; a follower that reads. The checks are those of `evidence.rs`.

mod directed;
mod evidence;
mod faults;
mod mutants;
mod world;
