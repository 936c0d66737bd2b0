//! Completions: the futures of posted verbs.
//!
//! A provider that finishes a verb while posting it returns a ready completion, which costs nothing. Any other provider
//! returns a pending completion and keeps its [`Completer`] until the verb's outcome is known. If a provider drops a
//! completer without an outcome, the verb completes as ambiguous: so no verb hangs, and a verb that may have taken
//! effect is not mistaken for a rejected one. A provider may let the waiting thread do the provider's work
//! ([`CompletionDriver`]), so that no other thread has to hand over the outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::rt::Instant;

use crate::Error;
use crate::deadline::Deadline;

/// The future outcome of a posted verb.
///
/// Dropping it stops waiting; whether the verb takes effect does not change.
#[must_use = "a verb whose completion nobody awaits has an unknown outcome"]
pub struct Completion<T>(CompletionState<T>);

enum CompletionState<T> {
    Ready(Result<T, Error>),
    Pending(Arc<CompletionSlot<T>>),
    Deferred(Box<DeferredCompletion<T>>),
    Driven(Arc<CompletionSlot<T>>, Arc<dyn CompletionDriver>),
    /// The outcome was taken.
    Done,
}

/// A completion that is not ready before a deadline.
struct DeferredCompletion<T> {
    inner: Completion<T>,
    outcome: Option<Result<T, Error>>,
    deadline: Deadline,
}

struct CompletionSlot<T>(Mutex<CompletionProgress<T>>);

enum CompletionProgress<T> {
    Waiting(Option<Waker>),
    Finished(Result<T, Error>),
    /// The completion was dropped, or has the outcome.
    Over,
}

impl<T> CompletionSlot<T> {
    fn lock(&self) -> MutexGuard<'_, CompletionProgress<T>> {
        // Consistent between any two statements, so a poisoned lock does no harm.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_finished(&self) -> bool {
        matches!(*self.lock(), CompletionProgress::Finished(_))
    }

    /// The outcome, if it is known.
    fn take(&self) -> Option<Result<T, Error>> {
        let mut progress = self.lock();
        match std::mem::replace(&mut *progress, CompletionProgress::Over) {
            CompletionProgress::Finished(outcome) => Some(outcome),
            waiting => {
                *progress = waiting;
                None
            }
        }
    }

    /// The outcome, if it is known; otherwise `cx` is woken when it is.
    fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Error>> {
        let mut progress = self.lock();
        match std::mem::replace(&mut *progress, CompletionProgress::Over) {
            CompletionProgress::Finished(outcome) => return Poll::Ready(outcome),
            CompletionProgress::Waiting(waker) => {
                let waker = match waker {
                    Some(waker) if waker.will_wake(cx.waker()) => waker,
                    _ => cx.waker().clone(),
                };
                *progress = CompletionProgress::Waiting(Some(waker));
            }
            CompletionProgress::Over => {}
        }
        Poll::Pending
    }
}

/// Work of a provider that a thread waiting for a completion can do.
pub trait CompletionDriver: Send + Sync + 'static {
    /// Starts verbs that were held back for a batch, processes what has arrived, and may continue for a short time until
    /// `done`. The provider completes by itself what is not done by then.
    fn drive(&self, done: &dyn Fn() -> bool);
}

/// The provider's end of a pending completion.
#[must_use = "dropping it completes the verb as ambiguous"]
pub struct Completer<T>(Option<Arc<CompletionSlot<T>>>);

impl<T> Completion<T> {
    /// A completion whose outcome is known.
    #[inline]
    pub fn ready(outcome: Result<T, Error>) -> Completion<T> {
        Completion(CompletionState::Ready(outcome))
    }

    /// A completion whose outcome is not known yet.
    pub fn pending() -> (Completer<T>, Completion<T>) {
        let slot = Arc::new(CompletionSlot(Mutex::new(CompletionProgress::Waiting(None))));
        (Completer(Some(Arc::clone(&slot))), Completion(CompletionState::Pending(slot)))
    }

    /// Whether the verb had succeeded when its completion was created. Checks in place: moving an outcome reads it in other
    /// pieces than it was written in, which stalls until the processor has stored all that the verb has copied.
    #[inline]
    pub fn is_success(&self) -> bool {
        matches!(&self.0, CompletionState::Ready(Ok(_)))
    }

    /// Why the verb failed, if its completion was a failure from the start.
    #[inline]
    pub fn failure(&self) -> Option<&Error> {
        match &self.0 {
            CompletionState::Ready(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// The same completion, ready no earlier than at a deadline. A waiter that awaits it near the deadline spins.
    pub fn deferred(self, until: Instant) -> Completion<T> {
        let deadline = Deadline::new(until);
        Completion(CompletionState::Deferred(Box::new(DeferredCompletion { inner: self, outcome: None, deadline })))
    }

    /// A completion whose outcome is not known yet, and that its waiter can help along.
    pub fn driven(driver: Arc<dyn CompletionDriver>) -> (Completer<T>, Completion<T>) {
        let slot = Arc::new(CompletionSlot(Mutex::new(CompletionProgress::Waiting(None))));
        (Completer(Some(Arc::clone(&slot))), Completion(CompletionState::Driven(slot, driver)))
    }

    /// The outcome if it is known, otherwise the completion. Never waits.
    ///
    /// # Errors
    /// The completion itself.
    #[inline]
    pub fn now(self) -> Result<Result<T, Error>, Completion<T>> {
        match self.0 {
            CompletionState::Ready(outcome) => Ok(outcome),
            CompletionState::Pending(slot) => slot.take().ok_or(Completion(CompletionState::Pending(slot))),
            CompletionState::Driven(slot, driver) => {
                if !slot.is_finished() {
                    driver.drive(&|| true);
                }
                slot.take().ok_or(Completion(CompletionState::Driven(slot, driver)))
            }
            CompletionState::Deferred(mut deferred) => {
                if deferred.outcome.is_none() {
                    let inner = std::mem::replace(&mut deferred.inner, Completion(CompletionState::Done));
                    match inner.now() {
                        Ok(outcome) => deferred.outcome = Some(outcome),
                        Err(inner) => deferred.inner = inner,
                    }
                }
                match deferred.outcome.take() {
                    Some(outcome) if deferred.deadline.has_passed() => Ok(outcome),
                    outcome => {
                        deferred.outcome = outcome;
                        Err(Completion(CompletionState::Deferred(deferred)))
                    }
                }
            }
            CompletionState::Done => Err(Completion(CompletionState::Done)),
        }
    }

    /// Takes the outcome if it is known. Never waits.
    pub fn take_now(&mut self) -> Option<Result<T, Error>> {
        match Completion(std::mem::replace(&mut self.0, CompletionState::Done)).now() {
            Ok(outcome) => Some(outcome),
            Err(completion) => {
                *self = completion;
                None
            }
        }
    }
}

impl<T> Completer<T> {
    /// Completes the verb.
    pub fn complete(mut self, outcome: Result<T, Error>) {
        self.finish(outcome);
    }

    /// Whether the outcome is still awaited.
    pub fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1)
    }

    fn finish(&mut self, outcome: Result<T, Error>) {
        let Some(slot) = self.0.take() else { return };
        let before = std::mem::replace(&mut *slot.lock(), CompletionProgress::Finished(outcome));
        if let CompletionProgress::Waiting(Some(waker)) = before {
            waker.wake();
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.finish(Err(Error::Ambiguous("the verb was given up while it was in flight")));
    }
}

impl<T: Unpin> Future for Completion<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::mem::replace(&mut self.0, CompletionState::Done) {
            CompletionState::Ready(outcome) => Poll::Ready(outcome),
            CompletionState::Pending(slot) => {
                let polled = slot.poll(cx);
                if polled.is_pending() {
                    self.0 = CompletionState::Pending(slot);
                }
                polled
            }
            CompletionState::Driven(slot, driver) => {
                if !slot.is_finished() {
                    driver.drive(&|| slot.is_finished());
                }
                let polled = slot.poll(cx);
                if polled.is_pending() {
                    self.0 = CompletionState::Driven(slot, driver);
                }
                polled
            }
            CompletionState::Deferred(mut deferred) => {
                if deferred.outcome.is_none()
                    && let Poll::Ready(outcome) = Pin::new(&mut deferred.inner).poll(cx)
                {
                    deferred.outcome = Some(outcome);
                }
                if deferred.outcome.is_some()
                    && deferred.deadline.poll(cx).is_ready()
                    && let Some(outcome) = deferred.outcome.take()
                {
                    return Poll::Ready(outcome);
                }
                self.0 = CompletionState::Deferred(deferred);
                Poll::Pending
            }
            CompletionState::Done => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completer_that_is_dropped_leaves_an_ambiguous_verb() {
        let (completer, completion) = Completion::<u64>::pending();
        let Err(completion) = completion.now() else { panic!("nothing completed it") };
        drop(completer);
        let outcome = completion.now().map_err(|_| "pending").expect("the completer is gone");
        assert_eq!(outcome.expect_err("no outcome was given").kind(), base::ErrorKind::Ambiguous);
    }

    #[test]
    fn an_outcome_reaches_its_waiter() {
        base::rt::production::run(async {
            let (completer, completion) = Completion::<u64>::pending();
            assert!(completer.is_awaited());
            let waiting = base::rt::spawn(completion);
            base::rt::yield_now().await;
            completer.complete(Ok(7));
            assert_eq!(waiting.await.expect("nothing aborts it"), Ok(7));
        });
    }
}
