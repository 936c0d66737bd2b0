//! Storage whose reads are delayed, as a disk would delay them.
//!
//! One thread delays all reads, with an error of a few microseconds. The runtime's timers would be too coarse: they count in
//! milliseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base::rt::channel::WatchReceiver;
use base::{BlockNumber, Version};
use storage::StateStore;
use storage::tables::{RangePage, RangeQuery, Row, Savepoint};
use tokio::sync::oneshot;

/// A [`StateStore`] that takes `delay` longer to answer reads. Any number of them overlap.
pub struct DelayedStateStore {
    inner: Arc<dyn StateStore>,
    delay: Duration,
    line: Arc<DelayLine>,
}

impl DelayedStateStore {
    /// Delays the reads of `inner` by `delay`, on the thread of `line`.
    pub fn new(inner: Arc<dyn StateStore>, delay: Duration, line: Arc<DelayLine>) -> DelayedStateStore {
        DelayedStateStore { inner, delay, line }
    }
}

/// Delays its callers. Dropping it ends its thread.
pub struct DelayLine {
    shared: Arc<DelayedCore>,
}

#[derive(Default)]
struct DelayedCore {
    waiting: Mutex<DelayedReads>,
    changed: Condvar,
    reads: AtomicU64,
    waited_ns: AtomicU64,
}

#[derive(Default)]
struct DelayedReads {
    due: BinaryHeap<Reverse<DelayedRead>>,
    next: u64,
    ended: bool,
}

struct DelayedRead {
    at: Instant,
    since: Instant,
    number: u64,
    waiter: oneshot::Sender<()>,
}

impl PartialEq for DelayedRead {
    fn eq(&self, other: &DelayedRead) -> bool {
        self.number == other.number
    }
}

impl Eq for DelayedRead {}

impl PartialOrd for DelayedRead {
    fn partial_cmp(&self, other: &DelayedRead) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for DelayedRead {
    fn cmp(&self, other: &DelayedRead) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl DelayedCore {
    fn lock(&self) -> MutexGuard<'_, DelayedReads> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        // Otherwise the kernel may wake this thread 50 µs late. If this fails, reads take longer, and the figure shows how
        // long.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let mut waiting = self.lock();
        while !waiting.ended {
            let now = Instant::now();
            while waiting.due.peek().is_some_and(|Reverse(due)| due.at <= now) {
                let Reverse(due) = waiting.due.pop().expect("it was just there");
                self.reads.fetch_add(1, Ordering::Relaxed);
                self.waited_ns.fetch_add((now - due.since).as_nanos() as u64, Ordering::Relaxed);
                // The caller may have gone.
                let _ = due.waiter.send(());
            }
            waiting = match waiting.due.peek().map(|Reverse(due)| due.at) {
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    self.changed.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

impl DelayLine {
    /// Starts its thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> std::io::Result<Arc<DelayLine>> {
        let shared = Arc::new(DelayedCore::default());
        let of_thread = Arc::clone(&shared);
        std::thread::Builder::new().name("delay".to_owned()).spawn(move || of_thread.run())?;
        Ok(Arc::new(DelayLine { shared }))
    }

    /// Waits for this time.
    pub async fn wait(&self, delay: Duration) {
        let since = Instant::now();
        let (waiter, woken) = oneshot::channel();
        {
            let mut waiting = self.shared.lock();
            let (at, number) = (since + delay, waiting.next);
            waiting.next += 1;
            let is_first = waiting.due.peek().is_none_or(|Reverse(due)| at < due.at);
            waiting.due.push(Reverse(DelayedRead { at, since, number, waiter }));
            if is_first {
                self.shared.changed.notify_one();
            }
        }
        // The thread ends with the line, which outlives this borrow.
        let _ = woken.await;
    }

    /// The number of reads that were delayed so far, and the total of their delays in nanoseconds.
    pub fn delayed_reads(&self) -> (u64, u64) {
        (self.shared.reads.load(Ordering::Relaxed), self.shared.waited_ns.load(Ordering::Relaxed))
    }
}

impl Drop for DelayLine {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

#[async_trait::async_trait]
impl StateStore for DelayedStateStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, storage::Error> {
        let row = self.inner.get(namespace, key, through).await;
        self.line.wait(self.delay).await;
        row
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, storage::Error> {
        let rows = self.inner.get_many(keys, through).await;
        self.line.wait(self.delay).await;
        rows
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, storage::Error> {
        let versions = self.inner.versions(keys, through).await;
        self.line.wait(self.delay).await;
        versions
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<RangePage, storage::Error> {
        let page = self.inner.range(query).await;
        self.line.wait(self.delay).await;
        page
    }

    async fn namespaces(&self) -> Result<Vec<String>, storage::Error> {
        self.inner.namespaces().await
    }

    fn savepoint(&self) -> Savepoint {
        self.inner.savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.inner.subscribe_savepoint()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, storage::Error> {
        self.inner.materialize(height).await
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), storage::Error> {
        self.inner.prune(oldest).await
    }
}

#[cfg(test)]
mod tests {
    use storage::MemoryStateStore;

    use super::*;

    #[tokio::test]
    async fn reads_take_the_delay_side_by_side() {
        let memory = MemoryStateStore::new();
        let (key, value) = (b"key".to_vec(), base::Bytes::from_static(b"value"));
        memory.add_block(vec![("bench".to_owned(), key.clone(), Version::new(0, 0), Some(value.clone()))]);
        let line = DelayLine::start().expect("a thread");
        let store = DelayedStateStore::new(Arc::new(memory), Duration::from_millis(20), Arc::clone(&line));
        store.materialize(1).await.expect("a savepoint");
        let begin = Instant::now();
        let get = || store.get("bench", &key, BlockNumber(0));
        let (one, other) = futures_util::future::join(get(), get()).await;
        assert!(begin.elapsed() >= Duration::from_millis(20), "nobody is let go early");
        for row in [one, other] {
            assert_eq!(row.expect("it can be read").and_then(|row| row.value), Some(value.clone()));
        }
        let (reads, waited_ns) = line.delayed_reads();
        assert_eq!(reads, 2);
        assert!(waited_ns >= 40_000_000);
    }
}
