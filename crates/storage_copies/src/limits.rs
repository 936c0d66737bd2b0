//! Times.

use std::time::Duration;

/// How long a copy may take to confirm the epoch, or to make the next block durable, before it is left out.
pub const LOST_AFTER: Duration = Duration::from_millis(400);
/// How often each copy is asked to confirm the epoch.
pub const HEARTBEAT_PERIOD: Duration = Duration::from_millis(100);
/// How often the primary looks after its copies.
pub(crate) const KEEPER_PERIOD: Duration = Duration::from_millis(20);
/// How long one copy may take to take over a view.
pub(crate) const INSTALL_TIMEOUT: Duration = Duration::from_millis(300);
/// How long a candidate waits for the answer of one node.
pub(crate) const STATUS_TIMEOUT: Duration = Duration::from_millis(400);
/// How long a candidate waits for a node to begin an epoch, which waits for running writes.
pub(crate) const BEGIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a new learner may take to remove what it has.
pub(crate) const RESET_TIMEOUT: Duration = Duration::from_secs(60);
/// How long one probe of a candidate node may take. The keeper does not wait for it.
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The shortest and the longest pause between two probes of one node.
pub(crate) const PROBE_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The shortest and the longest pause before a copy is built again at a node where it was not completed, or was lost.
pub(crate) const BUILD_PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// How long appends are held back for a learner that has all blocks but the last ones.
pub(crate) const ATTACH_TIMEOUT: Duration = Duration::from_millis(200);
/// Blocks that may be missing at a learner while appends are held back for it.
pub(crate) const ATTACH_BLOCKS_MAX: u64 = 8;
/// Blocks of one page that is copied.
pub(crate) const COPY_PAGE_BLOCKS: usize = 32;
/// How long a call on all copies is repeated for one that gives no answer and is not left out either.
pub(crate) const REPEAT_MAX: Duration = Duration::from_secs(10);
/// The pause between such attempts.
pub(crate) const REPEAT_PAUSE: Duration = Duration::from_millis(20);
/// How long one attempt of a reader at one copy takes at most.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a reader asks how far the rows of the copies have come.
pub(crate) const SAVEPOINT_PERIOD: Duration = Duration::from_millis(50);
/// How long closing waits for blocks to become durable.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
