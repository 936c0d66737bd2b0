//! Cutting a stream of messages into blocks: a pure state machine, told the time.
//!
//! The rules, which are Fabric's:
//! 1. A message larger than the preferred bytes is alone in its block; what waited before it is cut first.
//! 2. Otherwise, if it would take what waits beyond the preferred bytes, what waits is cut first.
//! 3. The message then waits. If the count of waiting messages reaches the maximum, they are cut.
//! 4. The first message to wait starts the clock; at its deadline whatever waits is cut.
//!
//! So one message cuts at most two blocks, a block is never empty, and messages never change their order. Messages above
//! the absolute maximum are refused before they come here.

use std::time::Duration;

use base::Bytes;
use base::rt::Instant;

/// When blocks are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Messages a block holds at most; at least 1.
    pub messages_max: u32,
    /// Bytes a block of more than one message holds at most.
    pub preferred_bytes_max: u32,
    /// How long a message waits for others.
    pub timeout: Duration,
}

/// Messages that become one block, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Encoded envelopes; never none.
    pub envelopes: Vec<Bytes>,
}

/// What a message cut, oldest first.
pub type Cuts = [Option<Batch>; 2];

/// Messages that wait for their block.
#[derive(Debug)]
pub struct Cutter {
    limits: Limits,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    deadline: Option<Instant>,
}

impl Cutter {
    /// A cutter with nothing waiting.
    pub fn new(limits: Limits) -> Cutter {
        assert!(limits.messages_max > 0, "a configuration allows at least one message a block");
        Cutter { limits, waiting: Vec::new(), waiting_bytes: 0, deadline: None }
    }

    /// Takes the next message. `bytes` is its size as Fabric counts it: payload and signature.
    pub fn offer(&mut self, envelope: Bytes, bytes: usize, now: Instant) -> Cuts {
        let preferred = self.limits.preferred_bytes_max as usize;
        if bytes > preferred {
            return [self.cut(), Some(Batch { envelopes: vec![envelope] })];
        }
        let first = if self.waiting_bytes + bytes > preferred { self.cut() } else { None };
        if self.waiting.is_empty() {
            self.deadline = Some(now + self.limits.timeout);
        }
        self.waiting.push(envelope);
        self.waiting_bytes += bytes;
        let second = if self.waiting.len() as u32 >= self.limits.messages_max { self.cut() } else { None };
        [first, second]
    }

    /// When what waits must be cut; nothing if nothing waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Cuts what waits: at the deadline, and when the orderer stops.
    pub fn cut(&mut self) -> Option<Batch> {
        self.waiting_bytes = 0;
        self.deadline = None;
        if self.waiting.is_empty() {
            return None;
        }
        let capacity = self.waiting.len();
        Some(Batch { envelopes: std::mem::replace(&mut self.waiting, Vec::with_capacity(capacity)) })
    }

    /// Messages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { messages_max: 3, preferred_bytes_max: 100, timeout: Duration::from_millis(500) };

    /// Runs a script: a number is a message of that many bytes, `+n` lets n milliseconds pass. The answer lists the
    /// blocks as sizes joined by `,`, in brackets where the clock cut them, and what waits after `|`.
    fn run(script: &str) -> String {
        let mut cutter = Cutter::new(LIMITS);
        let mut now = Instant::from_nanos(0);
        let mut out: Vec<String> = Vec::new();
        let show = |batch: Batch| {
            batch.envelopes.iter().map(|envelope| envelope.len().to_string()).collect::<Vec<_>>().join(",")
        };
        for word in script.split_whitespace() {
            if let Some(wait) = word.strip_prefix('+') {
                now += Duration::from_millis(wait.parse().expect("milliseconds"));
                if cutter.deadline().is_some_and(|deadline| deadline <= now) {
                    out.push(format!("[{}]", show(cutter.cut().expect("a deadline means that something waits"))));
                }
            } else {
                let size = word.parse().expect("a size");
                for batch in cutter.offer(Bytes::from(vec![0; size]), size, now).into_iter().flatten() {
                    out.push(show(batch));
                }
            }
        }
        format!("{} |{}", out.join(" "), cutter.waiting())
    }

    #[test]
    fn blocks_are_cut_by_count_bytes_and_time() {
        for (script, expected) in [
            // Count.
            ("1 1 1", "1,1,1 |0"),
            ("1 1 1 1", "1,1,1 |1"),
            // Preferred bytes: what waits goes first, the message waits for others.
            ("60 60", "60 |1"),
            ("60 40", " |2"),
            ("60 41", "60 |1"),
            // A message above them is alone, and cuts what waits.
            ("101", "101 |0"),
            ("10 101 10", "10 101 |1"),
            ("100", " |1"),
            ("100 1", "100 |1"),
            // A message may cut for bytes and not for count at once; with three messages for count only.
            ("50 50 1 1 1", "50,50 1,1,1 |0"),
            // Time counts from the first message that waits.
            ("10 +499 10 +1", "[10,10] |0"),
            ("10 +499", " |1"),
            ("+1000", " |0"),
            ("10 10 10 +1000", "10,10,10 |0"),
            ("10 +400 101 +100 10 +499 +1", "10 101 [10] |0"),
        ] {
            assert_eq!(run(script), expected, "{script}");
        }
    }

    #[test]
    fn a_message_that_overflows_a_block_of_one_message_cuts_two_blocks() {
        let mut cutter = Cutter::new(Limits { messages_max: 1, ..LIMITS });
        let now = Instant::from_nanos(0);
        let cuts = cutter.offer(Bytes::from_static(b"a"), 1, now);
        assert_eq!(cuts.iter().flatten().count(), 1);
        assert_eq!(cutter.deadline(), None);
    }
}
