//! What stages do about trouble: places where a simulation may hold one up, so that crashes fall between its steps; waits
//! for what passes, and what is waited for; errors and panics, which must not go unseen.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use base::rt;

use crate::Error;

/// How long a stage that is held up waits.
const HELD_UP: Duration = Duration::from_millis(150);
/// The first wait before an operation is tried again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A named fault point: in a simulation a stage may wait here. In production nothing happens.
pub(crate) async fn hold_up(name: &'static str) {
    if rt::fault_point(name) {
        rt::sleep(HELD_UP).await;
    }
}

/// Runs a stage. Its panic becomes [`Error::Panicked`], so that whoever depends on the stage is told like of any error,
/// instead of finding out one by one that nobody answers. In a simulation the panic goes on after `failed` was told.
pub(crate) async fn run_stage(stage: impl Future<Output = Result<(), Error>>, failed: impl FnOnce(Error)) {
    let mut stage = pin!(stage);
    // Of what a stage leaves behind half done nothing is used any more: its channel ends.
    let polled = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| stage.as_mut().poll(context))) {
        Ok(poll) => poll.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    match polled.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => failed(error),
        Err(panic) => {
            failed(Error::Panicked(message(panic.as_ref())));
            if rt::is_simulation() {
                resume_unwind(panic);
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// Waits between attempts of something that fails for lack of space or time, longer each time.
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(RETRY_MIN)
    }

    pub(crate) async fn wait(&mut self) {
        rt::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_MAX);
    }
}

/// What ended a channel: the first error. A stage that only saw its neighbour end does not know why, and gives way.
#[derive(Default)]
pub(crate) struct Failure(Mutex<Option<Arc<Error>>>);

impl Failure {
    pub(crate) fn note(&self, error: Error) {
        let mut noted = self.0.lock().expect("no holder of this lock panics");
        if noted.as_deref().is_none_or(|noted| matches!(noted, Error::Stopped)) {
            *noted = Some(Arc::new(error));
        }
    }

    /// Hands it over, if nobody else has it.
    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().expect("no holder of this lock panics").take().and_then(Arc::into_inner)
    }

    pub(crate) fn get(&self) -> Option<Arc<Error>> {
        self.0.lock().expect("no holder of this lock panics").clone()
    }
}

/// What the stages of a channel wait for: it may pass only once somebody acts, so it must be visible. No more than there
/// are stages.
#[derive(Default)]
pub(crate) struct Stalls(Mutex<Vec<Arc<str>>>);

/// A stage that waits, until this is dropped.
pub(crate) struct Stalled<'a> {
    stalls: &'a Stalls,
    reason: Arc<str>,
}

impl Stalls {
    pub(crate) fn begin(&self, reason: String) -> Stalled<'_> {
        let reason: Arc<str> = reason.into();
        self.0.lock().expect("no holder of this lock panics").push(reason.clone());
        Stalled { stalls: self, reason }
    }

    /// What the stage that waits longest waits for.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().expect("no holder of this lock panics").first().map(|reason| reason.to_string())
    }
}

impl Drop for Stalled<'_> {
    fn drop(&mut self) {
        let mut reasons = self.stalls.0.lock().expect("no holder of this lock panics");
        reasons.retain(|reason| !Arc::ptr_eq(reason, &self.reason));
    }
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use base::rt::production;

    use super::*;

    /// A stage that panicked ended without a word: the channel was called healthy, took transactions, and let everybody
    /// who waited for one wait to the deadline.
    #[test]
    fn a_panic_is_reported_like_an_error() {
        let report = |stage: fn() -> Result<(), Error>| {
            production::run(async move {
                let mut reported = None;
                let stage = async move {
                    rt::yield_now().await;
                    stage()
                };
                run_stage(stage, |error| reported = Some(error)).await;
                reported
            })
        };
        let panicked = report(|| panic!("it was {}", "impossible")).expect("it is reported");
        assert!(matches!(&panicked, Error::Panicked(message) if message == "it was impossible"), "{panicked}");
        assert_eq!(panicked.kind(), ErrorKind::Closed);
        assert!(matches!(report(|| Err(Error::Stopped)), Some(Error::Stopped)));
        assert!(report(|| Ok(())).is_none());
    }

    #[test]
    fn the_first_error_stays_unless_it_only_says_that_another_stage_has_ended() {
        let failure = Failure::default();
        failure.note(Error::Stopped);
        failure.note(Error::Panicked("the cause".to_owned()));
        failure.note(Error::Panicked("a consequence".to_owned()));
        failure.note(Error::Stopped);
        assert!(matches!(failure.get().as_deref(), Some(Error::Panicked(message)) if message == "the cause"));
    }

    #[test]
    fn a_stall_shows_while_it_lasts() {
        let stalls = Stalls::default();
        let first = stalls.begin("the disk is full".to_owned());
        let second = stalls.begin("the disk is full".to_owned());
        drop(first);
        assert_eq!(stalls.reason().as_deref(), Some("the disk is full"), "another one waits");
        drop(second);
        assert_eq!(stalls.reason(), None);
    }
}
