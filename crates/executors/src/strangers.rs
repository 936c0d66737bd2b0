//! Connections that have not said hello: how many there may be, and for how long. Pure: time and numbers come from outside.

use std::collections::BTreeMap;
use std::time::Duration;

/// Most connections without a hello.
pub const STRANGERS_MAX: usize = 64;
/// Most of one owner.
const PER_OWNER_MAX: usize = 16;
/// For how long a connection may be silent.
const HELLO_TIME_MAX: Duration = Duration::from_secs(5);

/// A connection, in the order of arrival.
pub type StrangerId = u64;

#[derive(Clone, Copy, Debug)]
struct Stranger {
    owner: u32,
    until: Duration,
}

/// Connections that have not said hello.
#[derive(Default, Debug)]
pub struct Strangers {
    next: StrangerId,
    known: BTreeMap<StrangerId, Stranger>,
}

impl Strangers {
    /// A new connection, and the one that gives way to it.
    pub fn add(&mut self, owner: u32, now: Duration) -> (StrangerId, Option<StrangerId>) {
        let of_owner = self.known.iter().filter(|(_, stranger)| stranger.owner == owner);
        let displaced = match (of_owner.clone().count() >= PER_OWNER_MAX, self.known.len() >= STRANGERS_MAX) {
            (true, _) => of_owner.map(|(id, _)| *id).next(),
            (false, true) => self.known.keys().next().copied(),
            (false, false) => None,
        };
        if let Some(displaced) = displaced {
            self.known.remove(&displaced);
        }
        let id = self.next;
        self.next += 1;
        self.known.insert(id, Stranger { owner, until: now.saturating_add(HELLO_TIME_MAX) });
        (id, displaced)
    }

    /// A connection is none any more.
    pub fn remove(&mut self, id: StrangerId) {
        self.known.remove(&id);
    }

    /// Forgets those whose time is over, and returns them.
    pub fn expire(&mut self, now: Duration) -> Vec<StrangerId> {
        let late: Vec<StrangerId> =
            self.known.iter().filter(|(_, stranger)| stranger.until <= now).map(|(id, _)| *id).collect();
        self.known.retain(|_, stranger| stranger.until > now);
        late
    }

    /// When the next one's time is over.
    pub fn next_end(&self) -> Option<Duration> {
        self.known.values().map(|stranger| stranger.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn an_owner_that_floods_displaces_its_own_connections() {
        let mut strangers = Strangers::default();
        let (quiet, none) = strangers.add(1, START);
        assert_eq!(none, None);
        let mut displaced = Vec::new();
        for _ in 0..100 {
            displaced.extend(strangers.add(2, START).1);
        }
        assert_eq!(displaced.len(), 100 - PER_OWNER_MAX);
        assert!(!displaced.contains(&quiet), "another owner's is undisturbed");
        assert_eq!(displaced, (1..=displaced.len() as u64).collect::<Vec<_>>(), "the oldest go first");
    }

    #[test]
    fn many_owners_displace_the_oldest_connection_of_all() {
        let mut strangers = Strangers::default();
        let ids: Vec<_> = (0..STRANGERS_MAX as u32).map(|owner| strangers.add(owner, START)).collect();
        assert!(ids.iter().all(|(_, displaced)| displaced.is_none()));
        assert_eq!(strangers.add(1000, START).1, Some(ids[0].0));
        strangers.remove(ids[1].0);
        assert_eq!(strangers.add(1001, START).1, None, "one has gone");
    }

    #[test]
    fn a_silent_connection_has_its_time() {
        let mut strangers = Strangers::default();
        let (first, _) = strangers.add(1, START);
        let (second, _) = strangers.add(1, START + Duration::from_secs(2));
        assert_eq!(strangers.next_end(), Some(START + HELLO_TIME_MAX));
        assert!(strangers.expire(START + Duration::from_secs(4)).is_empty());
        assert_eq!(strangers.expire(START + HELLO_TIME_MAX), [first]);
        assert_eq!(strangers.expire(START + Duration::from_secs(60)), [second]);
        assert_eq!(strangers.next_end(), None);
    }
}
