//! The work of a CPU node beside its engine: it appends entries while it leads, and reports the entries that it may
//! show.

use std::collections::VecDeque;
use std::pin::pin;
use std::time::Duration;

use base::{Bytes, Term, rt};
use futures_util::future::{join, pending, select};

use super::LogChecker;
use crate::{Error, Leadership, LogStore, OrderedLog};

/// The largest entry that [`drive`] appends, in bytes.
pub const ENTRY_BYTES_MAX: u64 = 700;
/// Bytes of an entry beside its filling, at most.
const ENTRY_HEAD_BYTES: u64 = 60;
/// Appended and not yet deliverable entries of one leader at which it waits.
const AHEAD_MAX: usize = 12;

/// Appends through an engine while its node leads, and reports all that happens. It never ends: drop it when
/// [`OrderedLog::ended`] completes.
///
/// # Panics
/// If the engine breaks a guarantee, or the log store cannot be read.
pub async fn drive(checker: &LogChecker, name: &str, engine: &dyn OrderedLog, log_store: &dyn LogStore) {
    join(watch(checker, name, engine, log_store), append(checker, name, engine, log_store)).await;
}

/// Reports every entry that may be shown.
async fn watch(checker: &LogChecker, name: &str, engine: &dyn OrderedLog, log_store: &dyn LogStore) {
    let mut deliverable = engine.deliverable();
    let mut shown = 0;
    loop {
        let now = *deliverable.borrow_and_update();
        assert!(now >= shown, "never falls: {name} has shown {shown} and may show {now}");
        while shown < now {
            let entry = log_store.read(shown).expect("disks do not fail here");
            checker.shows(name, shown, entry);
            shown += 1;
        }
        if deliverable.changed().await.is_err() {
            return pending().await;
        }
    }
}

/// Appends while this CPU node is the leader.
async fn append(checker: &LogChecker, name: &str, engine: &dyn OrderedLog, log_store: &dyn LogStore) {
    let (mut role, mut deliverable) = (engine.leadership(), engine.deliverable());
    let mut over = Term(0);
    loop {
        let leading = role.wait_for(|role| role.term().is_some_and(|term| term > over)).await;
        let Ok(Leadership::Leading { term, next }) = leading else { return pending().await };
        checker.leads(name, term, next, log_store);
        over = term;
        let mut position = next;
        let mut ahead: VecDeque<(u64, Bytes)> = VecDeque::new();
        while role.borrow().term() == Some(term) {
            let now = *deliverable.borrow_and_update();
            while ahead.front().is_some_and(|(position, _)| *position < now) {
                let (position, entry) = ahead.pop_front().expect("there is one");
                let held = log_store.read(position).expect("disks do not fail here");
                if held.as_ref() == Some(&entry) {
                    checker.shows(name, position, held);
                    checker.acknowledges(position, &entry);
                }
            }
            if ahead.len() >= AHEAD_MAX {
                let more = deliverable.changed();
                let patience = rt::sleep(Duration::from_millis(20));
                select(pin!(more), pin!(patience)).await;
                continue;
            }
            rt::sleep(Duration::from_micros(rt::random_below(6000))).await;
            let entry = checker.entry(position, rt::random_below(ENTRY_BYTES_MAX - ENTRY_HEAD_BYTES) as usize);
            match engine.append(term, position, entry.clone()).await {
                Ok(()) => {
                    ahead.push_back((position, entry));
                    position += 1;
                }
                Err(Error::Fenced(_) | Error::Closed) => break,
                Err(error) => panic!("report: {name} appends at {position} in {term}: {error}"),
            }
        }
    }
}
