//! The trace of a simulation: a digest of all its events, and the last events in readable form.
//!
//! Two runs with the same digest made the same decisions in the same order, at the same virtual times, with the same
//! bytes on every disk and link.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use super::ids::{InodeId, LinkId, NodeId, TaskId};

/// 128 bits that identify the events of a run.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceDigest(pub u128);

impl fmt::Display for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

/// One event.
#[derive(Clone, Hash, Debug)]
pub(super) enum TraceEvent {
    Spawned { task: TaskId, node: NodeId },
    Polled { task: TaskId },
    Ended { task: TaskId },
    TimerFired { order: u64 },
    Wrote { node: NodeId, inode: InodeId, offset: u64, length: u64, content: u64 },
    Truncated { node: NodeId, inode: InodeId, length: u64 },
    Synced { node: NodeId, inode: InodeId },
    NamesChanged { node: NodeId, name: String },
    NamesSynced { node: NodeId },
    Survived { node: NodeId, inode: InodeId, length: u64, content: u64 },
    DiskFailed { node: NodeId, operation: &'static str },
    Connected { link: LinkId, from: NodeId, to: NodeId },
    Sent { link: LinkId, side: usize, length: u64, content: u64 },
    Delivered { link: LinkId, side: usize },
    LinkEnded { link: LinkId, side: usize },
    FaultPoint { name: &'static str },
    Fault(String),
    Note(String),
    Mark { what: &'static str, numbers: [u64; 3] },
}

/// Collects events.
pub(super) struct Trace {
    state: [u64; 2],
    recent: VecDeque<(u64, TraceEvent)>,
    recent_max: usize,
}

impl Trace {
    pub(super) fn new(recent_max: usize) -> Trace {
        Trace { state: [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344], recent: VecDeque::new(), recent_max }
    }

    pub(super) fn record(&mut self, clock: u64, event: TraceEvent) {
        let mut absorb = DigestHasher(&mut self.state);
        absorb.write_u64(clock);
        event.hash(&mut absorb);
        if self.recent_max > 0 {
            if self.recent.len() == self.recent_max {
                self.recent.pop_front();
            }
            self.recent.push_back((clock, event));
        }
    }

    pub(super) fn digest(&self) -> TraceDigest {
        TraceDigest((u128::from(self.state[0]) << 64) | u128::from(self.state[1]))
    }

    /// The last events, oldest first; the caller supplies the names of nodes.
    pub(super) fn recent(&self, node_name: impl Fn(NodeId) -> String) -> Vec<String> {
        self.recent.iter().map(|(clock, event)| line(*clock, event, &node_name)).collect()
    }
}

fn line(clock: u64, event: &TraceEvent, node_name: &impl Fn(NodeId) -> String) -> String {
    let at = Duration::from_nanos(clock);
    let what = match event {
        TraceEvent::Spawned { task, node } => format!("{task} spawned on {}", node_name(*node)),
        TraceEvent::Polled { task } => format!("{task} polled"),
        TraceEvent::Ended { task } => format!("{task} ended"),
        TraceEvent::TimerFired { order } => format!("timer {order} fired"),
        TraceEvent::Wrote { node, inode, offset, length, .. } => {
            format!("{} wrote {length} bytes at {offset} of {inode}", node_name(*node))
        }
        TraceEvent::Truncated { node, inode, length } => format!("{} truncated {inode} to {length}", node_name(*node)),
        TraceEvent::Synced { node, inode } => format!("{} synced {inode}", node_name(*node)),
        TraceEvent::NamesChanged { node, name } => format!("{} changed the name {name}", node_name(*node)),
        TraceEvent::NamesSynced { node } => format!("{} synced a directory", node_name(*node)),
        TraceEvent::Survived { node, inode, length, .. } => {
            format!("{length} bytes of {inode} survived the crash of {}", node_name(*node))
        }
        TraceEvent::DiskFailed { node, operation } => {
            format!("{} of the disk of {} failed", operation, node_name(*node))
        }
        TraceEvent::Connected { link, from, to } => format!("{link} from {} to {}", node_name(*from), node_name(*to)),
        TraceEvent::Sent { link, side, length, .. } => format!("{length} bytes sent on {link} from side {side}"),
        TraceEvent::Delivered { link, side } => format!("delivery on {link} to side {side}"),
        TraceEvent::LinkEnded { link, side } => format!("{link} ended for side {side}"),
        TraceEvent::FaultPoint { name } => format!("fault injected at {name}"),
        TraceEvent::Fault(fault) => format!("fault: {fault}"),
        TraceEvent::Note(note) => note.clone(),
        TraceEvent::Mark { what, numbers } => format!("{what} {numbers:?}"),
    };
    format!("{at:>14.9?}  {what}")
}

/// A number that represents some bytes in the digest.
pub(super) fn content_of(bytes: &[u8]) -> u64 {
    let mut state = [bytes.len() as u64, 0];
    DigestHasher(&mut state).write(bytes);
    state[0] ^ state[1].rotate_left(32)
}

/// Two lanes of multiply and rotate: fast, and more than enough to tell two runs apart.
struct DigestHasher<'a>(&'a mut [u64; 2]);

impl Hasher for DigestHasher<'_> {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let [a, b] = &mut *self.0;
        *a = (*a ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
        *b = (*b).wrapping_add(*a ^ word.rotate_left(32)).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ (*b >> 31);
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(word.into());
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_time_and_content_all_change_the_digest() {
        let polled = |n| TraceEvent::Polled { task: TaskId(n) };
        let digest_of = |events: &[(u64, TraceEvent)]| {
            let mut trace = Trace::new(4);
            events.iter().for_each(|(clock, event)| trace.record(*clock, event.clone()));
            trace.digest()
        };
        let runs = [
            digest_of(&[(1, polled(1)), (2, polled(2))]),
            digest_of(&[(1, polled(2)), (2, polled(1))]),
            digest_of(&[(1, polled(1)), (3, polled(2))]),
            digest_of(&[(1, polled(1)), (2, TraceEvent::Ended { task: TaskId(2) })]),
            digest_of(&[(1, polled(1)), (2, TraceEvent::Note("a".into()))]),
            digest_of(&[(1, polled(1)), (2, TraceEvent::Note("b".into()))]),
        ];
        let distinct: std::collections::BTreeSet<_> = runs.iter().collect();
        assert_eq!(distinct.len(), runs.len());
        assert_ne!(content_of(b"abc"), content_of(b"abc\0"));
    }
}
