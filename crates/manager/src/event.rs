//! Events for people: each says what the manager observed, what it did, and why.

use std::collections::VecDeque;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The most events that are kept; an older one gives way to a newer.
pub const EVENTS_MAX: usize = 256;
/// The longest text of an event.
pub const TEXT_BYTES_MAX: usize = 300;

/// A decision of the manager, or its end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolEvent {
    /// Its number: later events have higher ones.
    pub number: u64,
    /// When it happened, by the machine's clock.
    pub unix_ms: u64,
    /// The peer.
    pub peer: String,
    /// What was seen.
    pub seen: String,
    /// What was done.
    pub done: String,
    /// Why.
    pub why: String,
}

impl fmt::Display for PoolEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {} ({}), because {}", self.number, self.peer, self.done, self.seen, self.why)
    }
}

/// Appends an event; the oldest gives way.
pub(crate) fn append(events: &mut VecDeque<PoolEvent>, mut event: PoolEvent) {
    for text in [&mut event.seen, &mut event.done, &mut event.why] {
        let end = (0..=TEXT_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    while events.len() >= EVENTS_MAX {
        events.pop_front();
    }
    events.push_back(event);
}
