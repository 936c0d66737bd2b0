//! Verbs that wait until the host has confirmed a capability.
//!
//! Invariant: verbs are executed in the order of posting. While one waits, later ones wait behind it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::rt::sync::Notify;
use base::{Bytes, BytesMut};

use super::connection::{Caller, Stopped};
use crate::{Capability, Completer, Completion, Error, IN_FLIGHT_MAX};

/// A verb with what it needs to be posted again.
pub(super) enum Verb {
    Read { capability: Capability, offset: u64, length: usize, into: BytesMut, completer: Completer<BytesMut> },
    Write { capability: Capability, offset: u64, parts: Vec<Bytes>, immediate: Option<u32>, completer: Completer<()> },
    CompareSwap { capability: Capability, offset: u64, expected: u64, new: u64, completer: Completer<u64> },
    FetchAdd { capability: Capability, offset: u64, add: u64, completer: Completer<u64> },
    Send { parts: Vec<Bytes>, completer: Completer<()> },
}

impl Verb {
    /// The capability that must be confirmed.
    pub(super) fn capability(&self) -> Option<&Capability> {
        match self {
            Verb::Read { capability, .. }
            | Verb::Write { capability, .. }
            | Verb::CompareSwap { capability, .. }
            | Verb::FetchAdd { capability, .. } => Some(capability),
            Verb::Send { .. } => None,
        }
    }

    /// Ends it without effect.
    pub(super) fn fail(self, error: Error) {
        match self {
            Verb::Read { completer, .. } => completer.complete(Err(error)),
            Verb::Write { completer, .. } | Verb::Send { completer, .. } => completer.complete(Err(error)),
            Verb::CompareSwap { completer, .. } | Verb::FetchAdd { completer, .. } => completer.complete(Err(error)),
        }
    }

    /// Executes it; gives it back when its capability is not confirmed. Whoever waits is told after `settle`.
    fn execute(self, caller: &Caller, settle: impl FnOnce()) -> Result<(), Verb> {
        match self {
            Verb::Read { capability, offset, length, mut into, completer } => {
                match caller.read_now(&capability, offset, length, &mut into) {
                    Ok(()) => {
                        settle();
                        completer.complete(Ok(into));
                    }
                    Err(Stopped::Failed(error)) => {
                        settle();
                        completer.complete(Err(error));
                    }
                    Err(Stopped::Unconfirmed) => {
                        return Err(Verb::Read { capability, offset, length, into, completer });
                    }
                }
            }
            Verb::Write { capability, offset, parts, immediate, completer } => {
                match (caller.write_now(&capability, offset, &parts), immediate) {
                    (Ok(_), None) => {
                        settle();
                        completer.complete(Ok(()));
                    }
                    (Ok(length), Some(immediate)) => {
                        let notice = caller.side.notify(immediate, capability.region, offset, length as u64);
                        settle();
                        forward(notice, completer);
                    }
                    (Err(Stopped::Failed(error)), _) => {
                        settle();
                        completer.complete(Err(error));
                    }
                    (Err(Stopped::Unconfirmed), immediate) => {
                        return Err(Verb::Write { capability, offset, parts, immediate, completer });
                    }
                }
            }
            Verb::CompareSwap { capability, offset, expected, new, completer } => {
                match caller.compare_swap_now(&capability, offset, expected, new) {
                    Ok(found) => {
                        settle();
                        completer.complete(Ok(found));
                    }
                    Err(Stopped::Failed(error)) => {
                        settle();
                        completer.complete(Err(error));
                    }
                    Err(Stopped::Unconfirmed) => {
                        return Err(Verb::CompareSwap { capability, offset, expected, new, completer });
                    }
                }
            }
            Verb::FetchAdd { capability, offset, add, completer } => {
                match caller.fetch_add_now(&capability, offset, add) {
                    Ok(found) => {
                        settle();
                        completer.complete(Ok(found));
                    }
                    Err(Stopped::Failed(error)) => {
                        settle();
                        completer.complete(Err(error));
                    }
                    Err(Stopped::Unconfirmed) => return Err(Verb::FetchAdd { capability, offset, add, completer }),
                }
            }
            Verb::Send { parts, completer } => {
                let sent = caller.side.send(&parts);
                settle();
                forward(sent, completer);
            }
        }
        Ok(())
    }
}

/// Completes one with the outcome of the other.
fn forward(completion: Completion<()>, completer: Completer<()>) {
    match completion.now() {
        Ok(outcome) => completer.complete(outcome),
        Err(completion) => {
            // Ends when there is room in the ring or the connection ends.
            let _forwarded = base::rt::spawn(async move { completer.complete(completion.await) });
        }
    }
}

/// The verbs of one connection that wait.
#[derive(Default)]
pub(super) struct Waiting {
    count: AtomicUsize,
    queue: Mutex<Queue>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct Queue {
    verbs: VecDeque<Verb>,
    closed: bool,
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Whole between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any verb waits.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Lets a verb wait.
    pub(super) fn post<T>(&self, verb: impl FnOnce(Completer<T>) -> Verb) -> Completion<T> {
        let mut queue = self.lock();
        if queue.closed {
            return Completion::ready(Err(Error::Closed));
        }
        if self.count.load(Ordering::Relaxed) >= IN_FLIGHT_MAX {
            return Completion::ready(Err(Error::Busy));
        }
        let (completer, completion) = Completion::pending();
        queue.verbs.push_back(verb(completer));
        self.count.fetch_add(1, Ordering::Release);
        drop(queue);
        self.changed.notify_one();
        completion
    }

    /// Executes verbs in order, until one's capability must be confirmed first: then gives the capability. `None` when no
    /// verb waits any more. One caller at a time.
    pub(super) fn advance(&self, caller: &Caller) -> Option<Capability> {
        loop {
            let verb = self.lock().verbs.pop_front()?;
            // It counts until it has taken effect, so that none overtakes it; and no longer once anybody can know that it
            // has, so that the verb which that one posts next need not wait.
            let settle = || {
                self.count.fetch_sub(1, Ordering::Release);
            };
            if let Err(verb) = verb.execute(caller, settle) {
                let capability = verb.capability().copied();
                self.lock().verbs.push_front(verb);
                return capability;
            }
        }
    }

    /// Fails the first verb that waits: the host refused its capability.
    pub(super) fn refuse_first(&self, error: Error) {
        let verb = self.lock().verbs.pop_front();
        if let Some(verb) = verb {
            self.count.fetch_sub(1, Ordering::Release);
            verb.fail(error);
        }
    }

    /// Ends all that wait: the connection has ended.
    pub(super) fn close(&self) {
        let verbs = {
            let mut queue = self.lock();
            queue.closed = true;
            std::mem::take(&mut queue.verbs)
        };
        for verb in verbs {
            verb.fail(Error::Ambiguous("the connection ended"));
            self.count.fetch_sub(1, Ordering::Release);
        }
    }
}
