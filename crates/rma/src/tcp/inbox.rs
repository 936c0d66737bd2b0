//! The messages that came in and wait until the application takes them.

use std::collections::VecDeque;
use std::task::Waker;

use base::BytesMut;

use super::window::{WINDOW_BYTES, WINDOW_MESSAGES};
use crate::{Error, IncomingEvent};

/// Messages up to this size wait in one buffer, and the receiver allocates the message: memory that one thread allocates and
/// another frees costs far more than a copy of so few bytes.
pub const SMALL_BYTES_MAX: usize = 4 << 10;
/// An empty buffer of more than this is freed.
pub const SMALL_BUFFER_BYTES_MAX: usize = 64 << 10;

/// What a waiting message counts in addition to its bytes.
const ENTRY_BYTES: usize = 64;

/// The messages that came in.
pub struct MessageInbox {
    pub(super) messages: VecDeque<ArrivedMessage>,
    /// The bytes of small messages, one behind the other.
    small: VecDeque<u8>,
    /// The bytes of the other messages.
    whole_bytes: usize,
    /// What all messages count against the name's budget.
    counted: usize,
    pub(super) waker: Option<Waker>,
    /// Received here and not yet credited, and the part of it that our application has taken.
    pub(super) outstanding: usize,
    pub(super) outstanding_bytes: usize,
    pub(super) taken: usize,
    pub(super) taken_bytes: usize,
    pub(super) closed: bool,
}

/// A message that waits to be taken.
pub enum ArrivedMessage {
    Whole(IncomingEvent),
    /// A message of this length in the buffer of small messages.
    Small(usize),
}

impl MessageInbox {
    pub(super) fn new() -> MessageInbox {
        MessageInbox {
            messages: VecDeque::new(),
            small: VecDeque::new(),
            whole_bytes: 0,
            counted: 0,
            waker: None,
            outstanding: 0,
            outstanding_bytes: 0,
            taken: 0,
            taken_bytes: 0,
            closed: false,
        }
    }

    pub(super) fn push_small(&mut self, bytes: &[u8]) {
        self.small.extend(bytes);
        self.messages.push_back(ArrivedMessage::Small(bytes.len()));
    }

    pub(super) fn push_whole(&mut self, incoming: IncomingEvent) {
        self.whole_bytes += bytes_of(&incoming);
        self.messages.push_back(ArrivedMessage::Whole(incoming));
    }

    /// Drops all messages: the application receives no more.
    pub(super) fn discard(&mut self) {
        self.closed = true;
        (self.messages, self.small, self.whole_bytes) = (VecDeque::new(), VecDeque::new(), 0);
    }

    /// The charge against the name's budget, before and now. An empty buffer counts nothing.
    pub(super) fn count(&mut self) -> (usize, usize) {
        let small = self.small.len().max(self.small.capacity().saturating_sub(SMALL_BUFFER_BYTES_MAX));
        let now = self.whole_bytes + small + self.messages.len() * ENTRY_BYTES;
        (std::mem::replace(&mut self.counted, now), now)
    }

    pub(super) fn admit(&mut self, length: usize) -> Result<(), Error> {
        if self.outstanding >= WINDOW_MESSAGES || self.outstanding_bytes >= WINDOW_BYTES {
            return Err(Error::Malformed("a message beyond the window"));
        }
        self.outstanding += 1;
        self.outstanding_bytes += length;
        Ok(())
    }

    pub(super) fn next(&mut self) -> Option<IncomingEvent> {
        let length = match self.messages.pop_front()? {
            ArrivedMessage::Whole(incoming) => {
                self.whole_bytes -= bytes_of(&incoming);
                return Some(incoming);
            }
            ArrivedMessage::Small(length) => length,
        };
        let mut message = BytesMut::with_capacity(length);
        let (first, second) = self.small.as_slices();
        let (first, second) = (&first[..length.min(first.len())], &second[..length.saturating_sub(first.len())]);
        message.extend_from_slice(first);
        message.extend_from_slice(second);
        self.small.drain(..length);
        let room = self.small.capacity();
        if room > SMALL_BUFFER_BYTES_MAX {
            // A buffer that never runs empty shrinks as well.
            match self.small.len() {
                0 => self.small = VecDeque::new(),
                left if left < room / 4 => self.small.shrink_to(room / 2),
                _ => {}
            }
        }
        Some(IncomingEvent::Message(message.freeze()))
    }
}

fn bytes_of(incoming: &IncomingEvent) -> usize {
    match incoming {
        IncomingEvent::Message(message) => message.len(),
        IncomingEvent::Immediate { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use base::Bytes;

    use super::*;

    #[test]
    fn small_messages_come_out_whole_and_in_order_also_where_their_buffer_wraps() {
        let message = |number: usize| vec![number as u8; number * 577 % (SMALL_BYTES_MAX + 1)];
        let mut inbox = MessageInbox::new();
        let (mut put, mut taken) = (0, 0);
        let mut wrapped = false;
        for round in 0..200 {
            for _ in 0..2 + round % 3 {
                inbox.push_small(&message(put));
                put += 1;
            }
            inbox.push_whole(IncomingEvent::Message(Bytes::from_static(b"whole")));
            wrapped |= !inbox.small.as_slices().1.is_empty();
            // Some stay behind, but now and then none.
            while taken + round % 10 < put {
                match inbox.next() {
                    Some(IncomingEvent::Message(whole)) if whole == b"whole"[..] => {}
                    found => {
                        assert_eq!(found, Some(IncomingEvent::Message(message(taken).into())), "message {taken}");
                        taken += 1;
                    }
                }
            }
        }
        assert!(wrapped, "the buffer never wrapped");
        assert!(put - taken < 10);
    }

    /// Regression: a connection that always left a message behind kept the largest buffer that it had ever filled.
    #[test]
    fn small_messages_count_what_their_buffer_takes_and_it_shrinks() {
        let mut inbox = MessageInbox::new();
        for _ in 0..WINDOW_MESSAGES {
            inbox.push_small(&[7; SMALL_BYTES_MAX]);
        }
        let (_, full) = inbox.count();
        assert!(full >= WINDOW_MESSAGES * SMALL_BYTES_MAX);
        for _ in 1..WINDOW_MESSAGES {
            inbox.next().expect("it is there");
            let (_, counted) = inbox.count();
            assert!(counted + SMALL_BUFFER_BYTES_MAX >= inbox.small.capacity());
        }
        assert!(
            inbox.small.capacity() <= 4 * SMALL_BUFFER_BYTES_MAX,
            "{} bytes for one message",
            inbox.small.capacity()
        );
        inbox.next().expect("the last one");
        assert_eq!(inbox.count().1, 0, "an empty inbox counts nothing");
    }
}
