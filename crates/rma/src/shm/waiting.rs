//! Verbs that wait until the host has confirmed a capability.
//!
//! Invariant: verbs are executed in the order of posting. While a verb waits, all later verbs and messages of the
//! connection wait behind it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base::rt::sync::Notify;
use base::{Bytes, BytesMut};

use super::connection::{ShmConnection, VerbFailure};
use crate::{Capability, Completer, Completion, Error, IN_FLIGHT_MAX};

/// A verb with all that is needed to post it again.
pub(super) enum WaitingVerb {
    Read { capability: Capability, offset: u64, length: usize, into: BytesMut, completer: Completer<BytesMut> },
    Write { capability: Capability, offset: u64, parts: Vec<Bytes>, immediate: Option<u32>, completer: Completer<()> },
    CompareSwap { capability: Capability, offset: u64, expected: u64, new: u64, completer: Completer<u64> },
    FetchAdd { capability: Capability, offset: u64, add: u64, completer: Completer<u64> },
    Send { parts: Vec<Bytes>, completer: Completer<()> },
}

impl WaitingVerb {
    /// The capability that must be confirmed.
    pub(super) fn capability(&self) -> Option<&Capability> {
        match self {
            WaitingVerb::Read { capability, .. }
            | WaitingVerb::Write { capability, .. }
            | WaitingVerb::CompareSwap { capability, .. }
            | WaitingVerb::FetchAdd { capability, .. } => Some(capability),
            WaitingVerb::Send { .. } => None,
        }
    }

    /// Fails the verb, which had no effect.
    pub(super) fn fail(self, error: Error) {
        match self {
            WaitingVerb::Read { completer, .. } => completer.complete(Err(error)),
            WaitingVerb::Write { completer, .. } | WaitingVerb::Send { completer, .. } => {
                completer.complete(Err(error))
            }
            WaitingVerb::CompareSwap { completer, .. } | WaitingVerb::FetchAdd { completer, .. } => {
                completer.complete(Err(error))
            }
        }
    }

    /// Executes the verb, or returns it when its capability is not confirmed. The waiter is woken after `settle`.
    fn execute(self, caller: &ShmConnection, settle: impl FnOnce()) -> Result<(), WaitingVerb> {
        match self {
            WaitingVerb::Read { capability, offset, length, mut into, completer } => {
                let outcome = match caller.read_now(&capability, offset, length, &mut into) {
                    Ok(()) => Ok(into),
                    Err(VerbFailure::Failed(error)) => Err(error),
                    Err(VerbFailure::Unconfirmed) => {
                        return Err(WaitingVerb::Read { capability, offset, length, into, completer });
                    }
                };
                settle();
                completer.complete(outcome);
            }
            WaitingVerb::Write { capability, offset, parts, immediate, completer } => {
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
                    (Err(VerbFailure::Failed(error)), _) => {
                        settle();
                        completer.complete(Err(error));
                    }
                    (Err(VerbFailure::Unconfirmed), immediate) => {
                        return Err(WaitingVerb::Write { capability, offset, parts, immediate, completer });
                    }
                }
            }
            WaitingVerb::CompareSwap { capability, offset, expected, new, completer } => {
                let swapped = caller.compare_swap_now(&capability, offset, expected, new);
                finish(swapped, completer, settle).map_err(|completer| WaitingVerb::CompareSwap {
                    capability,
                    offset,
                    expected,
                    new,
                    completer,
                })?;
            }
            WaitingVerb::FetchAdd { capability, offset, add, completer } => {
                let added = caller.fetch_add_now(&capability, offset, add);
                finish(added, completer, settle).map_err(|completer| WaitingVerb::FetchAdd {
                    capability,
                    offset,
                    add,
                    completer,
                })?;
            }
            WaitingVerb::Send { parts, completer } => {
                let sent = caller.side.send(&parts);
                settle();
                forward(sent, completer);
            }
        }
        Ok(())
    }
}

/// Completes an atomic verb after `settle`; returns the completer if the verb's capability is not confirmed.
fn finish(
    outcome: Result<u64, VerbFailure>,
    completer: Completer<u64>,
    settle: impl FnOnce(),
) -> Result<(), Completer<u64>> {
    let outcome = match outcome {
        Ok(found) => Ok(found),
        Err(VerbFailure::Failed(error)) => Err(error),
        Err(VerbFailure::Unconfirmed) => return Err(completer),
    };
    settle();
    completer.complete(outcome);
    Ok(())
}

/// Completes `completer` with the outcome of `completion`.
fn forward(completion: Completion<()>, completer: Completer<()>) {
    match completion.now() {
        Ok(outcome) => completer.complete(outcome),
        Err(completion) => {
            // Ends when there is space in the ring or the connection ends.
            let _forwarded = base::rt::spawn(async move { completer.complete(completion.await) });
        }
    }
}

/// The waiting verbs of one connection.
#[derive(Default)]
pub(super) struct WaitingVerbs {
    count: AtomicUsize,
    queue: Mutex<VerbQueue>,
    pub(super) changed: Notify,
}

#[derive(Default)]
struct VerbQueue {
    verbs: VecDeque<WaitingVerb>,
    closed: bool,
}

impl WaitingVerbs {
    fn lock(&self) -> MutexGuard<'_, VerbQueue> {
        // Consistent between any two statements.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether any verb waits.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Queues a verb.
    pub(super) fn post<T>(&self, verb: impl FnOnce(Completer<T>) -> WaitingVerb) -> Completion<T> {
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

    /// Executes verbs in order, until a verb's capability must be confirmed first; returns that capability. `None` when no verb
    /// waits any more. One caller at a time.
    pub(super) fn advance(&self, caller: &ShmConnection) -> Option<Capability> {
        loop {
            let verb = self.lock().verbs.pop_front()?;
            // The verb counts as waiting until it has taken effect, so that no later verb overtakes it. It stops counting
            // before its waiter can learn of the effect, so that the waiter's next verb need not wait.
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

    /// Fails the first waiting verb: the host rejected its capability.
    pub(super) fn reject_first(&self, error: Error) {
        let verb = self.lock().verbs.pop_front();
        if let Some(verb) = verb {
            self.count.fetch_sub(1, Ordering::Release);
            verb.fail(error);
        }
    }

    /// Fails all waiting verbs: the connection has ended.
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
