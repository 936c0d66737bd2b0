//! Runs many requests at once, and continues when enough of them have succeeded.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use base::rt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};

/// Most memory nodes of a group.
pub const NODES_MAX: usize = 9;

/// Runs all futures. Returns the results so far when all futures have ended, when `grace` has passed since `enough` of
/// them succeeded, or when `limit` has passed. The remaining futures are dropped: verbs that they posted have an
/// unknown outcome.
pub fn gather<'a, T: Send + 'a, F: Future<Output = Option<T>> + Send + 'a>(
    futures: impl IntoIterator<Item = F>,
    enough: usize,
    grace: Duration,
    limit: Duration,
) -> BoxFuture<'a, Vec<T>> {
    gather_until(futures, move |results: &[T]| results.len() >= enough, grace, limit)
}

/// As [`gather`], where not every success counts: `is_enough` decides on the results so far.
pub fn gather_until<'a, T: Send + 'a, F: Future<Output = Option<T>> + Send + 'a>(
    futures: impl IntoIterator<Item = F>,
    is_enough: impl Fn(&[T]) -> bool + Send + 'a,
    grace: Duration,
    limit: Duration,
) -> BoxFuture<'a, Vec<T>> {
    // Boxed, so that the types of the callers' futures stay simple.
    let running: FuturesUnordered<BoxFuture<'a, Option<T>>> =
        futures.into_iter().map(|future| future.boxed()).collect();
    gather_boxed(running, is_enough, grace, limit).boxed()
}

async fn gather_boxed<T>(
    mut running: FuturesUnordered<BoxFuture<'_, Option<T>>>,
    is_enough: impl Fn(&[T]) -> bool,
    grace: Duration,
    limit: Duration,
) -> Vec<T> {
    let mut until = pin!(rt::sleep(limit));
    let mut results = Vec::new();
    let mut were_enough = is_enough(&results);
    loop {
        let next = futures_util::future::select(running.next(), until.as_mut());
        match next.await {
            futures_util::future::Either::Left((Some(result), _)) => {
                results.extend(result);
                if !were_enough && is_enough(&results) {
                    were_enough = true;
                    until.set(rt::sleep(grace.min(limit)));
                }
            }
            _ => return results,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::rt::simulation::Simulation;

    use super::*;

    #[test]
    fn slow_nodes_are_not_waited_for_once_there_are_enough() {
        let run = |delays: [u64; 3], enough| {
            let simulation = Simulation::new(1);
            let report = simulation.run(move |_| async move {
                let start = rt::now();
                let one = |delay: u64| async move {
                    rt::sleep(Duration::from_millis(delay)).await;
                    (delay != 2).then_some(delay)
                };
                let limits = (Duration::from_millis(5), Duration::from_millis(100));
                let results = gather(delays.map(one), enough, limits.0, limits.1).await;
                (results, start.elapsed().as_millis())
            });
            report.expect("nothing panics").value
        };
        assert_eq!(run([3, 1, 50], 2), (vec![1, 3], 8));
        assert_eq!(run([3, 1, 5], 2), (vec![1, 3, 5], 5));
        assert_eq!(run([3, 2, 500], 2), (vec![3], 100), "a failure is no success");
        assert_eq!(run([3, 2, 4], 3), (vec![3, 4], 4));
    }
}
