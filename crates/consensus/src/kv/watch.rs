//! Watching: every entry that a majority has is told to those whose prefix its key begins with, in the order of versions.
//!
//! 1. The feed remembers the newest [`REMEMBERED_MAX`] changes, of at most [`REMEMBERED_BYTES_MAX`]. A takeover begins with those
//!    that its log holds, so that whoever watched before goes on from the version behind the last one told, unless it has been
//!    gone for too long: [`Error::Forgotten`].
//! 2. A watcher that does not take what it is told ends when [`BEHIND_MAX`] changes wait for it.
//!
//! Invariant: a watcher is told every change of its keys from its first version on, once and in order, until it ends.

use std::collections::VecDeque;

use base::Bytes;
use base::rt::channel::{Receiver, Sender, bounded};

use crate::Error;

/// Changes that are remembered.
pub const REMEMBERED_MAX: usize = 1 << 14;
/// Bytes of those.
pub const REMEMBERED_BYTES_MAX: usize = 16 << 20;
/// Changes that may wait for one watcher.
pub const BEHIND_MAX: usize = 1024;
/// Watchers at a time.
pub const WATCHERS_MAX: usize = 1024;

/// A change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// Of which key.
    pub key: Bytes,
    /// Its value; none where it was deleted.
    pub value: Option<Bytes>,
    /// The version of the change.
    pub version: u64,
}

impl Event {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// A stream of changes. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    remembered: VecDeque<Event>,
    receiver: Receiver<Event>,
    next: u64,
}

impl Watch {
    /// The next change; none when the store has ended, or this watcher was too slow: then watch again, from
    /// [`Watch::next_version`] on. Dropping the future is safe.
    pub async fn next(&mut self) -> Option<Event> {
        let event = match self.remembered.pop_front() {
            Some(event) => event,
            None => self.receiver.recv().await?,
        };
        self.next = event.version + 1;
        Some(event)
    }

    /// The version behind the last change that was told.
    pub fn next_version(&self) -> u64 {
        self.next
    }
}

struct Watcher {
    prefix: Bytes,
    from: u64,
    sender: Sender<Event>,
}

/// Who watches, and what they may still ask for.
pub(super) struct Feed {
    remembered: VecDeque<Event>,
    bytes: usize,
    /// Versions up to this are not remembered.
    forgotten: u64,
    /// Of the newest change that was told.
    told: u64,
    watchers: Vec<Watcher>,
}

impl Feed {
    pub(super) fn new(forgotten: u64) -> Feed {
        Feed { remembered: VecDeque::new(), bytes: 0, forgotten, told: forgotten, watchers: Vec::new() }
    }

    /// A change that a majority has; versions grow.
    pub(super) fn tell(&mut self, event: Event) {
        self.told = event.version;
        self.watchers.retain(|watcher| {
            let concerns = event.version >= watcher.from && event.key.starts_with(&watcher.prefix);
            !concerns || watcher.sender.try_send(event.clone()).is_ok()
        });
        self.bytes += event.bytes();
        self.remembered.push_back(event);
        while self.remembered.len() > REMEMBERED_MAX || self.bytes > REMEMBERED_BYTES_MAX {
            let Some(gone) = self.remembered.pop_front() else { break };
            self.bytes -= gone.bytes();
            self.forgotten = gone.version;
        }
    }

    /// From a version on, or from the first that was told to nobody yet.
    pub(super) fn watch(&mut self, prefix: Bytes, from: Option<u64>) -> Result<Watch, Error> {
        let from = from.unwrap_or(self.told + 1);
        if from <= self.forgotten {
            return Err(Error::Forgotten { asked: from, oldest: self.forgotten + 1 });
        }
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        if self.watchers.len() >= WATCHERS_MAX {
            return Err(Error::Busy);
        }
        let wanted = |event: &&Event| event.version >= from && event.key.starts_with(&prefix);
        let remembered = self.remembered.iter().filter(wanted).cloned().collect();
        let (sender, receiver) = bounded(BEHIND_MAX);
        self.watchers.push(Watcher { prefix, from, sender });
        Ok(Watch { remembered, receiver, next: from })
    }

    /// Whether somebody watches.
    pub(super) fn has_watchers(&self) -> bool {
        !self.watchers.is_empty()
    }

    /// Ends every watcher.
    pub(super) fn close(&mut self) {
        self.watchers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(version: u64) -> Event {
        let key = if version.is_multiple_of(2) { "even" } else { "odd" };
        Event { key: Bytes::from_static(key.as_bytes()), value: Some(Bytes::from(vec![1; 10])), version }
    }

    #[test]
    fn a_watcher_is_told_what_it_asked_for_once_and_in_order() {
        base::rt::production::run(async {
            let mut feed = Feed::new(4);
            (5..9).for_each(|version| feed.tell(event(version)));
            let asked = feed.watch(Bytes::new(), Some(4)).map(|_| ());
            assert_eq!(asked, Err(Error::Forgotten { asked: 4, oldest: 5 }));
            let mut odd = feed.watch(Bytes::from_static(b"od"), Some(6)).expect("it is remembered");
            let mut later = feed.watch(Bytes::new(), Some(11)).expect("it is to come");
            (9..13).for_each(|version| feed.tell(event(version)));
            for version in [7, 9, 11] {
                assert_eq!(odd.next().await, Some(event(version)));
            }
            assert_eq!(odd.next_version(), 12);
            assert_eq!(later.next().await, Some(event(11)));
            feed.close();
            assert_eq!(later.next().await, Some(event(12)));
            assert_eq!(later.next().await, None);
        });
    }

    #[test]
    fn a_slow_watcher_ends_and_the_others_do_not() {
        base::rt::production::run(async {
            let mut feed = Feed::new(0);
            let mut slow = feed.watch(Bytes::new(), Some(1)).expect("there is room");
            for version in 1..=2 * REMEMBERED_MAX as u64 {
                feed.tell(event(version));
            }
            assert!(feed.remembered.len() <= REMEMBERED_MAX);
            let mut told = 0;
            while slow.next().await.is_some() {
                told += 1;
            }
            assert_eq!(told, BEHIND_MAX as u64);
            let again = feed.watch(Bytes::new(), Some(slow.next_version())).map(|_| ());
            let oldest = REMEMBERED_MAX as u64 + 1;
            assert_eq!(again, Err(Error::Forgotten { asked: told + 1, oldest }));
        });
    }
}
