//! What all stages of a channel need for faults:
//!
//! * fault points at which a simulation delays a stage, so that crashes fall between its steps;
//! * back-off, and reports of what a stage waits for;
//! * a record of the error or panic that ended a stage.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use base::rt::{self, Backoff, TaskFailure};

use crate::Error;

/// How long a delayed stage waits.
const HELD_UP: Duration = Duration::from_millis(150);
/// The first wait before an operation is retried.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A named fault point: in a simulation a stage may wait here. In the product nothing happens.
#[inline(always)]
pub(crate) fn hold_up(name: &'static str) -> impl Future<Output = ()> + Send {
    rt::fault::hold_up(name, HELD_UP)
}

/// Runs a stage of a channel ([`rt::supervised`]). Its panic becomes [`Error::Panicked`], so that everything that depends
/// on the stage receives an error, instead of waiting for answers that never come.
pub(crate) async fn run_stage(stage: impl Future<Output = Result<(), Error>>, failed: impl FnOnce(Error)) {
    let report = |failure| match failure {
        TaskFailure::Failed(error) => failed(error),
        TaskFailure::Panicked(message) => failed(Error::Panicked(message)),
    };
    rt::supervised(stage, report).await;
}

/// The back-off of an operation that fails for lack of space or time.
pub(crate) fn retry_backoff() -> Backoff {
    Backoff::new(RETRY_MIN, RETRY_MAX)
}

/// The reason why a channel ended: the first error. [`Error::Stopped`], the error of a stage that only saw its
/// neighbour end, gives way to a later one that names the cause.
#[derive(Default)]
pub(crate) struct ChannelFailure(Mutex<Option<Arc<Error>>>);

impl ChannelFailure {
    pub(crate) fn record(&self, error: Error) {
        let mut noted = self.0.lock().expect("no holder of this lock panics");
        if noted.as_deref().is_none_or(|noted| matches!(noted, Error::Stopped)) {
            *noted = Some(Arc::new(error));
        }
    }

    /// Hands the error over, if it is not shared.
    pub(crate) fn take(&self) -> Option<Error> {
        self.0.lock().expect("no holder of this lock panics").take().and_then(Arc::into_inner)
    }

    pub(crate) fn get(&self) -> Option<Arc<Error>> {
        self.0.lock().expect("no holder of this lock panics").clone()
    }
}

/// What the stages of a channel wait for. A wait may end only once an operator acts, so it must be visible. There are
/// no more entries than stages.
#[derive(Default)]
pub(crate) struct StallReasons(Mutex<Vec<Arc<str>>>);

/// A stage that waits, until this is dropped.
pub(crate) struct StallGuard<'a> {
    stalls: &'a StallReasons,
    reason: Arc<str>,
}

impl StallReasons {
    pub(crate) fn start(&self, reason: String) -> StallGuard<'_> {
        let reason: Arc<str> = reason.into();
        self.0.lock().expect("no holder of this lock panics").push(reason.clone());
        StallGuard { stalls: self, reason }
    }

    /// The reason of the stage that has waited longest.
    pub(crate) fn reason(&self) -> Option<String> {
        self.0.lock().expect("no holder of this lock panics").first().map(|reason| reason.to_string())
    }
}

impl Drop for StallGuard<'_> {
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

    /// Regression: a stage that panicked ended without a report. The channel was reported healthy and accepted
    /// transactions, and every caller that waited for one waited until its deadline.
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
        let failure = ChannelFailure::default();
        failure.record(Error::Stopped);
        failure.record(Error::Panicked("the cause".to_owned()));
        failure.record(Error::Panicked("a consequence".to_owned()));
        failure.record(Error::Stopped);
        assert!(matches!(failure.get().as_deref(), Some(Error::Panicked(message)) if message == "the cause"));
    }

    #[test]
    fn a_stall_shows_while_it_lasts() {
        let stalls = StallReasons::default();
        let first = stalls.start("the disk is full".to_owned());
        let second = stalls.start("the disk is full".to_owned());
        drop(first);
        assert_eq!(stalls.reason().as_deref(), Some("the disk is full"), "another one waits");
        drop(second);
        assert_eq!(stalls.reason(), None);
    }
}
