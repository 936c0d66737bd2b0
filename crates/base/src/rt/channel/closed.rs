//! The error of a channel whose other end was dropped.

/// The other end of a channel or link was dropped, or this end has been closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("closed")]
pub struct Closed;
