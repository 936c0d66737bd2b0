//! Completions: the futures of posted verbs.
//!
//! A provider that finishes a verb while posting it gives a completion that is ready and costs nothing; any other keeps
//! the [`Completer`] of a pending one until the verb's outcome is known. A completer that is dropped without an outcome
//! completes its verb as ambiguous: no verb is left hanging, and none is taken for refused. A provider may have whoever
//! waits do its work ([`Drive`]): that saves handing the outcome from thread to thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use base::rt::Instant;

use crate::Error;
use crate::shaped::Deadline;

/// The outcome of a posted verb, once it is there.
///
/// Dropping it gives up waiting; the verb takes effect, or not, all the same.
#[must_use = "a verb whose completion nobody awaits has an unknown outcome"]
pub struct Completion<T>(State<T>);

enum State<T> {
    Ready(Result<T, Error>),
    Pending(Arc<Slot<T>>),
    Deferred(Box<Deferred<T>>),
    Driven(Arc<Slot<T>>, Arc<dyn Drive>),
    /// The outcome was taken.
    Done,
}

/// One that is not there before a deadline.
struct Deferred<T> {
    inner: Completion<T>,
    outcome: Option<Result<T, Error>>,
    deadline: Deadline,
}

struct Slot<T>(Mutex<Progress<T>>);

enum Progress<T> {
    Waiting(Option<Waker>),
    Finished(Result<T, Error>),
    /// The completion was dropped, or has the outcome.
    Over,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Progress<T>> {
        // Whole between any two statements, so that a poisoned lock is as good as another.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_finished(&self) -> bool {
        matches!(*self.lock(), Progress::Finished(_))
    }

    /// The outcome, if it is there.
    fn take(&self) -> Option<Result<T, Error>> {
        let mut progress = self.lock();
        match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Finished(outcome) => Some(outcome),
            waiting => {
                *progress = waiting;
                None
            }
        }
    }

    /// The outcome, if it is there; else `cx` is woken when it is.
    fn poll(&self, cx: &Context<'_>) -> Poll<Result<T, Error>> {
        let mut progress = self.lock();
        match std::mem::replace(&mut *progress, Progress::Over) {
            Progress::Finished(outcome) => return Poll::Ready(outcome),
            Progress::Waiting(waker) => {
                let waker = match waker {
                    Some(waker) if waker.will_wake(cx.waker()) => waker,
                    _ => cx.waker().clone(),
                };
                *progress = Progress::Waiting(Some(waker));
            }
            Progress::Over => {}
        }
        Poll::Pending
    }
}

/// A provider's work that whoever waits for a completion can do.
pub trait Drive: Send + Sync + 'static {
    /// Starts what was held back for a batch, takes in what has arrived, and may go on so for a short while until `done`.
    /// Whatever is not done by then the provider completes by itself.
    fn drive(&self, done: &dyn Fn() -> bool);
}

/// The provider's end of a pending completion.
#[must_use = "dropping it completes the verb as ambiguous"]
pub struct Completer<T>(Option<Arc<Slot<T>>>);

impl<T> Completion<T> {
    /// One whose outcome is known.
    #[inline]
    pub fn ready(outcome: Result<T, Error>) -> Completion<T> {
        Completion(State::Ready(outcome))
    }

    /// One whose outcome is to come.
    pub fn pending() -> (Completer<T>, Completion<T>) {
        let slot = Arc::new(Slot(Mutex::new(Progress::Waiting(None))));
        (Completer(Some(Arc::clone(&slot))), Completion(State::Pending(slot)))
    }

    /// Whether the verb had succeeded when its completion was made. Asked in place: an outcome that is moved is read in pieces that
    /// are not those in which it was written, which waits until the processor has stored all that the verb has copied.
    #[inline]
    pub fn is_success(&self) -> bool {
        matches!(&self.0, State::Ready(Ok(_)))
    }

    /// Why the verb failed, if its completion was ready from the start and is a failure.
    #[inline]
    pub fn failure(&self) -> Option<&Error> {
        match &self.0 {
            State::Ready(Err(error)) => Some(error),
            _ => None,
        }
    }

    /// The same, whose outcome is there no earlier than at a deadline. Whoever awaits it near that spins.
    pub fn deferred(self, until: Instant) -> Completion<T> {
        let deadline = Deadline::new(until);
        Completion(State::Deferred(Box::new(Deferred { inner: self, outcome: None, deadline })))
    }

    /// One whose outcome is to come, by the waiter's own doing too.
    pub fn driven(driver: Arc<dyn Drive>) -> (Completer<T>, Completion<T>) {
        let slot = Arc::new(Slot(Mutex::new(Progress::Waiting(None))));
        (Completer(Some(Arc::clone(&slot))), Completion(State::Driven(slot, driver)))
    }

    /// The outcome, if it is there by now; else the completion again. Never waits.
    ///
    /// # Errors
    /// The completion itself.
    #[inline]
    pub fn now(self) -> Result<Result<T, Error>, Completion<T>> {
        match self.0 {
            State::Ready(outcome) => Ok(outcome),
            State::Pending(slot) => slot.take().ok_or(Completion(State::Pending(slot))),
            State::Driven(slot, driver) => {
                if !slot.is_finished() {
                    driver.drive(&|| true);
                }
                slot.take().ok_or(Completion(State::Driven(slot, driver)))
            }
            State::Deferred(mut deferred) => {
                if deferred.outcome.is_none() {
                    let inner = std::mem::replace(&mut deferred.inner, Completion(State::Done));
                    match inner.now() {
                        Ok(outcome) => deferred.outcome = Some(outcome),
                        Err(inner) => deferred.inner = inner,
                    }
                }
                match deferred.outcome.take() {
                    Some(outcome) if deferred.deadline.has_passed() => Ok(outcome),
                    outcome => {
                        deferred.outcome = outcome;
                        Err(Completion(State::Deferred(deferred)))
                    }
                }
            }
            State::Done => Err(Completion(State::Done)),
        }
    }

    /// The outcome, if it is there by now; it is taken. Never waits.
    pub fn take_now(&mut self) -> Option<Result<T, Error>> {
        match Completion(std::mem::replace(&mut self.0, State::Done)).now() {
            Ok(outcome) => Some(outcome),
            Err(completion) => {
                *self = completion;
                None
            }
        }
    }
}

impl<T> Completer<T> {
    /// Ends the verb.
    pub fn complete(mut self, outcome: Result<T, Error>) {
        self.finish(outcome);
    }

    /// Whether anybody still waits for the outcome.
    pub fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1)
    }

    fn finish(&mut self, outcome: Result<T, Error>) {
        let Some(slot) = self.0.take() else { return };
        let before = std::mem::replace(&mut *slot.lock(), Progress::Finished(outcome));
        if let Progress::Waiting(Some(waker)) = before {
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
        match std::mem::replace(&mut self.0, State::Done) {
            State::Ready(outcome) => Poll::Ready(outcome),
            State::Pending(slot) => {
                let polled = slot.poll(cx);
                if polled.is_pending() {
                    self.0 = State::Pending(slot);
                }
                polled
            }
            State::Driven(slot, driver) => {
                if !slot.is_finished() {
                    driver.drive(&|| slot.is_finished());
                }
                let polled = slot.poll(cx);
                if polled.is_pending() {
                    self.0 = State::Driven(slot, driver);
                }
                polled
            }
            State::Deferred(mut deferred) => {
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
                self.0 = State::Deferred(deferred);
                Poll::Pending
            }
            State::Done => Poll::Pending,
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
    fn an_outcome_reaches_whoever_waits() {
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
