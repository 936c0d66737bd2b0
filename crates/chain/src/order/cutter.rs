//! Cutting a stream of messages into blocks: a pure state machine, to which the caller passes the time.
//!
//! The rules are Fabric's:
//! 1. A message larger than the preferred bytes is alone in its block; the messages that waited before it are cut
//!    first.
//! 2. Otherwise, if the message would take the waiting messages beyond the preferred bytes, they are cut first.
//! 3. The message then waits. If the count of waiting messages reaches the maximum, they are cut.
//! 4. The first message to wait starts the clock; at its deadline all waiting messages are cut.
//!
//! So one message cuts at most two blocks, a block is never empty, and messages keep their order. Messages above the
//! absolute maximum are rejected before they reach the cutter.

use std::time::Duration;

use base::Bytes;
use base::rt::Instant;

/// When blocks are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutterLimits {
    /// The largest number of messages in a block; at least 1.
    pub messages_max: u32,
    /// The largest number of bytes in a block of more than one message.
    pub preferred_bytes_max: u32,
    /// How long a message waits for others.
    pub timeout: Duration,
}

/// Messages that become one block, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvelopeBatch {
    /// Encoded envelopes; at least one.
    pub envelopes: Vec<Bytes>,
}

/// The batches that a message cut, oldest first.
pub type CutBatches = [Option<EnvelopeBatch>; 2];

/// Messages that wait for their block.
#[derive(Debug)]
pub struct Cutter {
    limits: CutterLimits,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
    deadline: Option<Instant>,
}

impl Cutter {
    /// A cutter in which no message waits.
    pub fn new(limits: CutterLimits) -> Cutter {
        assert!(limits.messages_max > 0, "a configuration allows at least one message a block");
        Cutter { limits, waiting: Vec::new(), waiting_bytes: 0, deadline: None }
    }

    /// Takes the next message. `bytes` is its size as Fabric counts it: payload and signature.
    pub fn offer(&mut self, envelope: Bytes, bytes: usize, now: Instant) -> CutBatches {
        let preferred = self.limits.preferred_bytes_max as usize;
        if bytes > preferred {
            return [self.cut(), Some(EnvelopeBatch { envelopes: vec![envelope] })];
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

    /// When the waiting messages must be cut; `None` if no message waits.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Replaces the limits, for messages that come from now on.
    ///
    /// # Panics
    /// While a message waits.
    pub fn set_limits(&mut self, limits: CutterLimits) {
        assert!(self.waiting.is_empty(), "messages are cut by the limits under which they came");
        *self = Cutter::new(limits);
    }

    /// Cuts the waiting messages: at the deadline, before a configuration, and when the orderer stops.
    pub fn cut(&mut self) -> Option<EnvelopeBatch> {
        self.waiting_bytes = 0;
        self.deadline = None;
        if self.waiting.is_empty() {
            return None;
        }
        let capacity = self.waiting.len();
        Some(EnvelopeBatch { envelopes: std::mem::replace(&mut self.waiting, Vec::with_capacity(capacity)) })
    }

    /// Number of messages that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: CutterLimits =
        CutterLimits { messages_max: 3, preferred_bytes_max: 100, timeout: Duration::from_millis(500) };

    /// Runs a script: a number is a message of that many bytes, `+n` lets n milliseconds pass. The answer lists the
    /// blocks as sizes joined by `,`, in brackets if the clock cut them, and the number of waiting messages after `|`.
    fn run(script: &str) -> String {
        let mut cutter = Cutter::new(LIMITS);
        let mut now = Instant::from_nanos(0);
        let mut out: Vec<String> = Vec::new();
        let show = |batch: EnvelopeBatch| {
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
            // Preferred bytes: the waiting messages are cut first, the new message waits for others.
            ("60 60", "60 |1"),
            ("60 40", " |2"),
            ("60 41", "60 |1"),
            // A message above the preferred bytes is alone, and cuts the waiting ones.
            ("101", "101 |0"),
            ("10 101 10", "10 101 |1"),
            ("100", " |1"),
            ("100 1", "100 |1"),
            // One message may cut for bytes without cutting for count; with three messages it cuts for count only.
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
        let mut cutter = Cutter::new(CutterLimits { messages_max: 1, ..LIMITS });
        let now = Instant::from_nanos(0);
        let cuts = cutter.offer(Bytes::from_static(b"a"), 1, now);
        assert_eq!(cuts.iter().flatten().count(), 1);
        assert_eq!(cutter.deadline(), None);
    }
}
