//! Watching: a watcher gets every entry that a majority has and whose key starts with the watcher's prefix, in the
//! order of versions.
//!
//! 1. The feed retains the newest changes: at most [`RETAINED_MAX`], with at most [`RETAINED_BYTES_MAX`] bytes. After a
//!    takeover the feed starts with the changes in the log. So a client can watch again from the version after the last
//!    change that it got; if the feed no longer has that version, the client gets [`Error::Compacted`].
//! 2. A watcher ends when more than [`BACKLOG_MAX`] changes wait for it.
//!
//! Invariant: a watcher gets every change of its keys from its first version on, once and in order, until it ends.

use std::collections::VecDeque;

use base::Bytes;
use base::rt::channel::{Receiver, Sender, bounded};

use crate::Error;

/// Changes that are remembered.
pub const RETAINED_MAX: usize = 1 << 14;
/// Bytes of the remembered changes.
pub const RETAINED_BYTES_MAX: usize = 16 << 20;
/// Changes that may wait for one watcher.
pub const BACKLOG_MAX: usize = 1024;
/// Watchers at a time.
pub const WATCHERS_MAX: usize = 1024;

/// A change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangeEvent {
    /// The key that was changed.
    pub key: Bytes,
    /// Its value; `None` where it was deleted.
    pub value: Option<Bytes>,
    /// The version of the change.
    pub version: u64,
}

impl ChangeEvent {
    fn bytes(&self) -> usize {
        self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}

/// A stream of changes. Dropping it ends it.
#[derive(Debug)]
pub struct KeyWatch {
    retained: VecDeque<ChangeEvent>,
    receiver: Receiver<ChangeEvent>,
    next: u64,
}

impl KeyWatch {
    /// The next change; `None` when the store has ended, or this watcher was too slow: then watch again, from
    /// [`KeyWatch::next_version`] on. Dropping the future is safe.
    pub async fn next(&mut self) -> Option<ChangeEvent> {
        let event = match self.retained.pop_front() {
            Some(event) => event,
            None => self.receiver.recv().await?,
        };
        self.next = event.version + 1;
        Some(event)
    }

    /// The version behind the last change that this watcher got.
    pub fn next_version(&self) -> u64 {
        self.next
    }
}

struct Watcher {
    prefix: Bytes,
    from: u64,
    sender: Sender<ChangeEvent>,
}

/// The watchers, and the changes that they may still ask for.
pub(super) struct ChangeFeed {
    remembered: VecDeque<ChangeEvent>,
    bytes: usize,
    /// Versions up to this one are no longer remembered.
    compacted: u64,
    /// The version of the newest change that was published.
    published: u64,
    watchers: Vec<Watcher>,
}

impl ChangeFeed {
    pub(super) fn new(forgotten: u64) -> ChangeFeed {
        ChangeFeed {
            remembered: VecDeque::new(),
            bytes: 0,
            compacted: forgotten,
            published: forgotten,
            watchers: Vec::new(),
        }
    }

    /// Publishes a change that a majority has; versions grow.
    pub(super) fn publish(&mut self, event: ChangeEvent) {
        self.published = event.version;
        self.watchers.retain(|watcher| {
            let concerns = event.version >= watcher.from && event.key.starts_with(&watcher.prefix);
            !concerns || watcher.sender.try_send(event.clone()).is_ok()
        });
        self.bytes += event.bytes();
        self.remembered.push_back(event);
        while self.remembered.len() > RETAINED_MAX || self.bytes > RETAINED_BYTES_MAX {
            let Some(gone) = self.remembered.pop_front() else { break };
            self.bytes -= gone.bytes();
            self.compacted = gone.version;
        }
    }

    /// Watches from a version on, or from the first one that is not published yet.
    pub(super) fn watch(&mut self, prefix: Bytes, from: Option<u64>) -> Result<KeyWatch, Error> {
        let from = from.unwrap_or(self.published + 1);
        if from <= self.compacted {
            return Err(Error::Compacted { asked: from, oldest: self.compacted + 1 });
        }
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
        if self.watchers.len() >= WATCHERS_MAX {
            return Err(Error::Busy);
        }
        let wanted = |event: &&ChangeEvent| event.version >= from && event.key.starts_with(&prefix);
        let remembered = self.remembered.iter().filter(wanted).cloned().collect();
        let (sender, receiver) = bounded(BACKLOG_MAX);
        self.watchers.push(Watcher { prefix, from, sender });
        Ok(KeyWatch { retained: remembered, receiver, next: from })
    }

    /// Whether there are watchers.
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

    fn event(version: u64) -> ChangeEvent {
        let key = if version.is_multiple_of(2) { "even" } else { "odd" };
        ChangeEvent { key: Bytes::from_static(key.as_bytes()), value: Some(Bytes::from(vec![1; 10])), version }
    }

    #[test]
    fn a_watcher_is_told_what_it_asked_for_once_and_in_order() {
        base::rt::production::run(async {
            let mut feed = ChangeFeed::new(4);
            (5..9).for_each(|version| feed.publish(event(version)));
            let asked = feed.watch(Bytes::new(), Some(4)).map(|_| ());
            assert_eq!(asked, Err(Error::Compacted { asked: 4, oldest: 5 }));
            let mut odd = feed.watch(Bytes::from_static(b"od"), Some(6)).expect("it is remembered");
            let mut later = feed.watch(Bytes::new(), Some(11)).expect("it is to come");
            (9..13).for_each(|version| feed.publish(event(version)));
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
            let mut feed = ChangeFeed::new(0);
            let mut slow = feed.watch(Bytes::new(), Some(1)).expect("there is room");
            for version in 1..=2 * RETAINED_MAX as u64 {
                feed.publish(event(version));
            }
            assert!(feed.remembered.len() <= RETAINED_MAX);
            let mut told = 0;
            while slow.next().await.is_some() {
                told += 1;
            }
            assert_eq!(told, BACKLOG_MAX as u64);
            let again = feed.watch(Bytes::new(), Some(slow.next_version())).map(|_| ());
            let oldest = RETAINED_MAX as u64 + 1;
            assert_eq!(again, Err(Error::Compacted { asked: told + 1, oldest }));
        });
    }
}
