//! The flow-control window; see [`super::peer`].

/// Messages that may be sent and have no credit yet.
pub const WINDOW_MESSAGES: usize = 1024;
/// Bytes of messages without credit at which no further message is sent.
pub const WINDOW_BYTES: usize = 64 << 20;
