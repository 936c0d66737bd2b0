//! Supervises background tasks that no caller awaits: an error or a panic of the task ends the component that owns the
//! task.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;

use super::is_simulation;

/// Why a supervised task ended before its work was done.
#[derive(Debug)]
pub enum TaskFailure<E> {
    /// It returned an error.
    Failed(E),
    /// It panicked, with this message.
    Panicked(String),
}

/// Runs a task. If it returns an error or panics, drops it and then calls `end`, which ends the task's owner.
///
/// Without it a panic would go unnoticed: the rest of the owner would continue without the task, or wait for it in vain. In a
/// simulation the panic continues after `end` was called, so that the run fails.
pub async fn supervised<E>(task: impl Future<Output = Result<(), E>>, end: impl FnOnce(TaskFailure<E>)) {
    let polled = {
        let mut task = pin!(task);
        // Nobody uses the state that the task has left half changed: its owner ends.
        poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(cx))) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        })
        .await
    };
    match polled {
        Ok(Ok(())) => {}
        Ok(Err(error)) => end(TaskFailure::Failed(error)),
        Err(panic) => {
            end(TaskFailure::Panicked(message(panic.as_ref())));
            if is_simulation() {
                resume_unwind(panic);
            }
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::rt::{production, yield_now};

    fn reported(task: fn() -> Result<(), &'static str>) -> Option<TaskFailure<&'static str>> {
        production::run(async move {
            let mut reported = None;
            let task = async move {
                yield_now().await;
                task()
            };
            supervised(task, |failure| reported = Some(failure)).await;
            reported
        })
    }

    #[test]
    fn an_error_and_a_panic_are_both_reported() {
        let panicked = reported(|| panic!("it was {}", "impossible"));
        assert!(matches!(panicked, Some(TaskFailure::Panicked(message)) if message == "it was impossible"));
        assert!(matches!(reported(|| Err("no room")), Some(TaskFailure::Failed("no room"))));
        assert!(reported(|| Ok(())).is_none());
    }

    #[test]
    fn a_task_that_panicked_is_dropped_before_its_owner_ends() {
        struct Dropped(Arc<AtomicBool>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        production::run(async {
            let is_dropped = Arc::new(AtomicBool::new(false));
            let (held, mut seen) = (Dropped(Arc::clone(&is_dropped)), None);
            let task = async move {
                let _held = &held;
                yield_now().await;
                if true {
                    panic!("planned");
                }
                Ok::<(), ()>(())
            };
            supervised(task, |_| seen = Some(is_dropped.load(Ordering::Relaxed))).await;
            assert_eq!(seen, Some(true));
        });
    }
}
