//! The limits and time-outs of the protocol between a primary and its followers.

use std::time::Duration;

/// The most followers of one primary: memory nodes serve twice as many connections of one owner.
pub const FOLLOWERS_MAX: usize = 63;
/// How often the primary sends an update without a block.
pub const HEARTBEAT: Duration = Duration::from_millis(10);
/// How long a follower waits for a message of its primary before it joins again.
pub const SILENCE_TIMEOUT: Duration = Duration::from_millis(200);
/// How long a follower follows without a lease. It misses no update meanwhile: storage may be slow to confirm.
pub const LEASELESS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long joining may take.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How many heartbeats in a row a follower may leave without an acknowledgement before it is fenced: those of a second.
/// They are counted, not timed, since a primary that was suspended has sent none meanwhile.
pub const SILENT_HEARTBEATS_MAX: u32 = 100;
