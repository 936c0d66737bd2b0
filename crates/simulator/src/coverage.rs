//! What must have happened in a campaign of many seeds: a simulation that never gets somewhere proves nothing about it.

use crate::campaign::Totals;

/// Kinds of faults, as [`crate::scenario::kind_of`] names them.
pub const FAULTS: [&str; 7] = ["break", "crash", "cut", "failing disk", "full disk", "mute", "pause"];

/// Validation codes that clients provoke.
pub const CODES: [u8; 9] = [0, 3, 5, 8, 9, 10, 11, 12, 23];

/// Fault points in the code under test.
pub const FAULT_POINTS: [&str; 12] = [
    "chain.commit.appended",
    "chain.commit.applied",
    "chain.commit.durable",
    "chain.commit.judged",
    "chain.order.appended",
    "chain.order.durable",
    "state.persist.durable",
    "state.persist.written",
    "storage.blocks.append_torn",
    "storage.blocks.index_missing",
    "storage.blocks.mark_missing",
    "storage.blocks.segment_early",
];

/// What has not happened.
pub fn missing(totals: &Totals) -> Vec<String> {
    let faults = FAULTS.iter().filter(|fault| !totals.faults.contains_key(*fault));
    let codes = CODES.iter().filter(|code| !totals.codes.contains_key(code));
    let points =
        FAULT_POINTS.iter().filter(|name| totals.fault_points.get(*name).is_none_or(|point| point.injected == 0));
    faults
        .map(|fault| format!("the fault {fault}"))
        .chain(codes.map(|code| format!("validation code {code}")))
        .chain(points.map(|name| format!("the fault point {name}")))
        .collect()
}
