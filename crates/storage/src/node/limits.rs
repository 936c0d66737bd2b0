//! Limits and times of both ends of a link.

use std::time::Duration;

/// Links that a node serves at a time; it ends further ones at once.
pub const LINKS_MAX: usize = 256;
/// Requests of one link that the node works on at a time.
pub const REQUESTS_MAX: usize = 64;
/// Channels that a node keeps.
pub const CHANNELS_MAX: usize = 1024;
/// Appends of a channel that may wait in its queue; further ones are refused with `Retry`.
pub const APPENDS_WAITING_MAX: usize = 128;
/// Blocks that one fsync may cover.
pub const APPENDS_TOGETHER_MAX: usize = 32;
/// Durable blocks that wait before the node materialises them: enough to spread the cost of a savepoint over several
/// blocks, and few enough that a primary that lost its memory has little to replay. Smaller than the number after which a
/// primary asks on its own.
pub const MATERIALIZE_BLOCKS: u64 = 24;
/// Bytes of durable blocks that wait before the node materialises them.
pub const MATERIALIZE_BYTES: u64 = 32 << 20;
/// Blocks by which the savepoint may be behind the newest block.
pub const SAVEPOINT_LAG_BLOCKS_MAX: u64 = 64;
/// Bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 1024;
/// Bytes of a channel's name.
pub const CHANNEL_BYTES_MAX: usize = 249;
/// An answer with rows or blocks ends once it reaches this size in bytes; the client asks for the rest.
pub const RESPONSE_BYTES_SOFT_MAX: usize = 8 << 20;

/// Blocks that a primary holds until they are durable, sent or not; further appends wait.
pub const PENDING_BLOCKS_MAX: usize = 64;
/// Bytes of those blocks; further appends wait.
pub const PENDING_BYTES_MAX: usize = 256 << 20;
/// Appends in flight at a time.
pub const APPENDS_IN_FLIGHT_MAX: usize = 32;
/// How long a client waits for an answer before it tries another link.
pub const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client waits for materialisation or pruning.
pub const WORK_TIMEOUT: Duration = Duration::from_secs(60);
/// How many times a client asks a question whose link is lost before it gives up.
pub const ASK_ATTEMPTS_MAX: usize = 8;
