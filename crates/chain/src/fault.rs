//! What stages do about trouble: places where a simulation may hold one up, so that crashes fall between its steps; waits
//! for what passes; and panics, which must not go unseen.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
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
}
