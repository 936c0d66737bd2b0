//! The disaggregated state under faults: random blocks, readers at many heights, fills, splits, lost sections, and
//! primaries that are replaced while they work, most of which adopt the memory of the last one.
//!
//! Checked in every seed:
//! 1. a read or a range at a height returns exactly the state after the blocks below it, or an error that states the
//!    reason;
//! 2. the record that a pointer leads to under a live lease can be trusted, and only the primary changes slots;
//! 3. no verb takes effect after its fence (the simulated provider asserts that), and a fenced primary gets an error
//!    that says so;
//! 4. at any time remote memory is within its budget, every leased byte is accounted for, every record to which slots
//!    and the delta lead is there, and every evicted record is marked invalid;
//! 5. when the faults are over, the state answers for every key, nothing is leaked, and no donor, cache or delta is
//!    above its budget;
//! 6. a follower's snapshot is no older than the newest height that any primary had shown when the snapshot was taken
//!    ([`followers`]);
//! 7. a follower's answer to a work item counts only for that item, and only if the follower had reached the height
//!    that the primary had shown. `offloaded_work.rs` checks which leases the answer needs.
//!
//! `STATE_SEEDS=from..to` runs other seeds; a failure names the seed that repeats it. [`mutants`] shows that the checks
//! find planted mistakes.

mod followers;
mod mutants;
mod primary;
mod scenario;
mod seeds;
mod world;
