//! When a fault that waits for room waits in vain.
//!
//! The evictor notes why its last eviction made no room. The handler, which alone knows whether a thread needs room and since
//! when, ends the program once it has waited for too long because of such an obstacle. A store that is full ends no program
//! whose threads find their pages resident.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::store::StoreError;

/// For how long a fault waits for room before the program ends: the thread could never go on.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Why an eviction made no room, if only somebody else can change that.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Obstacle {
    /// The store has no room.
    StoreFull(String),
    /// The kernel refused to move every page.
    PagesInUse,
}

/// What became of the pages of an eviction.
pub(super) struct EvictionOutcome {
    /// Pages that left.
    pub(super) left: u32,
    /// Why others are resident again. A full store comes before other failures, since it may last for ever.
    pub(super) failure: Option<StoreError>,
}

impl EvictionOutcome {
    pub(super) fn fail(&mut self, error: StoreError) {
        if !matches!(self.failure, Some(StoreError::Full(_))) {
            self.failure = Some(error);
        }
    }

    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        match &self.failure {
            Some(StoreError::Full(why)) => Some(Obstacle::StoreFull(why.clone())),
            None if self.left == 0 => Some(Obstacle::PagesInUse),
            _ => None,
        }
    }
}

/// The obstacle that the last eviction met.
#[derive(Default)]
pub(super) struct LastObstacle(Mutex<Option<Obstacle>>);

impl LastObstacle {
    pub(super) fn set(&self, obstacle: Option<Obstacle>) {
        // A value that is replaced as a whole.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = obstacle;
    }

    /// An error if a fault that has waited for so long will wait for ever.
    pub(super) fn check(&self, waited: Duration) -> io::Result<()> {
        if waited <= WAIT_MAX {
            return Ok(());
        }
        let seconds = WAIT_MAX.as_secs();
        let text = match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            None => return Ok(()),
            Some(Obstacle::StoreFull(why)) => {
                format!(
                    "for {seconds} s the store had none: {why}; give the pool more memory, or the region a storage tier"
                )
            }
            Some(Obstacle::PagesInUse) => format!(
                "for {seconds} s the kernel refused to move its pages, which devices are using (direct IO, io_uring); pin \
                 less of the region, or give it a larger budget"
            ),
        };
        Err(io::Error::other(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_waits_in_vain_only_when_somebody_else_has_to_make_room() {
        let (soon, late) = (Duration::from_secs(29), Duration::from_secs(31));
        let last = LastObstacle::default();
        let full = || StoreError::Full("3 donors".to_owned());
        let away = || StoreError::Unavailable("a donor restarts".to_owned());
        for (left, failures, text) in [
            (1, vec![], None),
            (0, vec![], Some("refused to move")),
            (0, vec![away()], None),
            (0, vec![full(), away()], Some("3 donors")),
            (0, vec![away(), full()], Some("3 donors")),
        ] {
            let mut outcome = EvictionOutcome { left, failure: None };
            failures.into_iter().for_each(|error| outcome.fail(error));
            last.set(outcome.obstacle());
            assert!(last.check(soon).is_ok());
            let ends = last.check(late).err().map(|error| error.to_string());
            assert_eq!(ends.is_some(), text.is_some(), "{ends:?}");
            assert!(text.is_none_or(|text| ends.is_some_and(|ends| ends.contains(text))), "{text:?}");
        }
        last.set(None);
        assert!(last.check(late).is_ok(), "there is room again");
    }
}
