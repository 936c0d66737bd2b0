//! The limits of a call over a link: sizes and time-outs.

use std::time::Duration;

/// Bytes of one request, reply or notice.
pub const BODY_BYTES_MAX: usize = 256 << 20;
/// Bytes of the text of a rejection; a longer text is truncated.
pub const REJECTION_BYTES_MAX: usize = 4096;

/// Bytes of the requests of one link that a server holds; a longer request is accepted when it is alone.
pub const LINK_REQUEST_BYTES_MAX: usize = 64 << 20;
/// How often a caller without requests sends a ping.
pub const PING_PERIOD: Duration = Duration::from_secs(3);
/// How long a caller may take to send its first message after it has connected.
pub const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server keeps a silent link without open requests.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server waits for a caller that receives no answers; longer by a second for each 64 KiB of a message.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);
