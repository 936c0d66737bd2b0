//! The flow-control window; see [`super::peer`].

/// Messages sent and not yet received.
pub const WINDOW_MESSAGES: usize = 1024;
/// Bytes of messages sent and not yet received, above which no further message is sent.
pub const WINDOW_BYTES: usize = 64 << 20;
