//! The guarantees of the runtime in both worlds: every claim is checked on tokio and, for several seeds, in simulation.

use std::future::Future;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::Bytes;
use base::rt::channel::{Closed, TryReceiveError, TrySendError, bounded, oneshot, watch};
use base::rt::disk::Directory;
use base::rt::net::{LINK_MESSAGES_MAX, connect, listen};
use base::rt::simulation::Simulation;
use base::rt::sync::{Mutex, Notify, Semaphore};
use base::rt::{self, CancellationToken, Elapsed, TaskAborted};

const SEEDS: std::ops::Range<u64> = 0..30;
/// Longer than any test waits for an expected event.
const LONG: Duration = Duration::from_secs(60);
/// Long enough for ready tasks to have run, where there is no event to wait for.
const SHORT: Duration = Duration::from_millis(20);

/// Runs a scenario in both worlds. It gets its own directory and a name that no other test uses.
fn in_both_worlds<F, Fut>(scenario: F)
where
    F: Fn(PathBuf, String) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let directory = tempfile::tempdir().expect("the machine has room for temporary files");
    let name = format!("runtime-test-{}", RUNS.fetch_add(1, Ordering::Relaxed));
    rt::production::run(async {
        // In a task, so that a hang shows as a failure.
        let task = rt::spawn(scenario(directory.path().join("a/b"), name.clone()));
        rt::timeout(LONG, task).await.expect("the scenario ends").expect("nobody aborts it");
    });
    for seed in SEEDS {
        let report = Simulation::new(seed).time_max(LONG).check(|_| scenario(PathBuf::from("/a/b"), name.clone()));
        report.expect("the scenario succeeds");
    }
}

#[test]
fn a_task_gives_its_output_and_its_panic_and_can_be_aborted() {
    in_both_worlds(|_, _| async {
        assert_eq!(rt::spawn(async { 7 }).await, Ok(7));
        let asleep = rt::spawn(rt::sleep(LONG));
        asleep.abort();
        assert_eq!(asleep.await, Err(TaskAborted));

        let (sender, receiver) = oneshot::<()>();
        let holder = rt::spawn(async move {
            rt::sleep(LONG).await;
            drop(sender);
        });
        drop(holder.abort_on_drop());
        assert_eq!(receiver.await, Err(Closed), "dropping the handle drops the task");

        let panicking = rt::spawn(async { panic!("told to") });
        let joining = rt::spawn(async move {
            let _: Result<(), TaskAborted> = panicking.await;
        });
        let relay = rt::spawn(joining);
        // The panic passes through both joins and is caught in the test's own task.
        let caught = futures_catch(relay).await.expect_err("the panic is raised again");
        assert_eq!(caught.downcast_ref::<&str>(), Some(&"told to"));
        assert_eq!(rt::blocking(|| 3).await, 3);
    });
}

/// Awaits a future and catches its panic.
async fn futures_catch<F: Future>(future: F) -> std::thread::Result<F::Output> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| future.as_mut().poll(cx)));
        match polled {
            Ok(poll) => poll.map(Ok),
            Err(payload) => std::task::Poll::Ready(Err(payload)),
        }
    })
    .await
}

#[test]
fn a_timeout_ends_what_is_late_and_nothing_else() {
    in_both_worlds(|_, _| async {
        let start = rt::now();
        assert_eq!(rt::timeout(SHORT, std::future::pending::<()>()).await, Err(Elapsed));
        assert!(start.elapsed() >= SHORT);
        assert_eq!(rt::timeout(LONG, async { 1 }).await, Ok(1));
        assert_eq!(rt::timeout(Duration::ZERO, async { 1 }).await, Ok(1), "what is ready is not late");
        let deadline = rt::now() + SHORT;
        rt::sleep_until(deadline).await;
        assert!(rt::now() >= deadline);
        rt::sleep_until(start).await;
        rt::yield_now().await;
        assert!(rt::wall_now().seconds() > 1_700_000_000);
    });
}

#[test]
fn a_bounded_channel_holds_no_more_than_its_capacity_and_keeps_order() {
    in_both_worlds(|_, _| async {
        let (sender, mut receiver) = bounded(2);
        assert_eq!(receiver.try_recv(), Err(TryReceiveError::Empty));
        sender.send(0).await.expect("there is room");
        sender.try_send(1).expect("there is room");
        assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        assert_eq!(sender.free_capacity(), 0);
        let more = rt::spawn({
            let sender = sender.clone();
            async move {
                for number in 2..100 {
                    sender.send(number).await.expect("the receiver waits for all");
                }
            }
        });
        drop(sender);
        let mut received = vec![receiver.recv().await.expect("one was sent")];
        while receiver.recv_many(&mut received, 7).await > 0 {}
        assert_eq!(received, (0..100).collect::<Vec<_>>());
        assert_eq!(receiver.try_recv(), Err(TryReceiveError::Closed));
        more.await.expect("nobody aborts it");

        let (sender, receiver) = bounded(1);
        sender.try_send(1).expect("there is room");
        let waiting = rt::spawn(async move { sender.send(2).await });
        drop(receiver);
        assert_eq!(waiting.await, Ok(Err(Closed)));
    });
}

#[test]
fn a_watcher_sees_the_last_value_and_the_end() {
    in_both_worlds(|_, _| async {
        let (sender, mut one) = watch(0);
        let mut two = sender.subscribe();
        let waiter = rt::spawn(async move { two.wait_for(|value| *value >= 3).await });
        for value in 1..=3 {
            sender.send(value);
        }
        assert!(!sender.send_if_modified(|_| false));
        assert_eq!(waiter.await, Ok(Ok(3)));
        assert!(one.has_changed());
        one.changed().await.expect("the value changed");
        assert_eq!(*one.borrow(), 3);
        assert!(!one.has_changed());
        assert_eq!(sender.receivers(), 1);
        let many: Vec<_> = (0..10)
            .map(|_| {
                let mut watcher = sender.subscribe();
                rt::spawn(async move { watcher.changed().await.map(|()| *watcher.borrow()) })
            })
            .collect();
        rt::sleep(SHORT).await;
        sender.send_modify(|value| *value = 9);
        drop(sender);
        for watcher in many {
            assert_eq!(watcher.await, Ok(Ok(9)), "the last value is seen before the end");
        }
        assert_eq!(one.changed().await, Ok(()));
        assert_eq!(one.changed().await, Err(Closed));
        assert_eq!(one.wait_for(|value| *value == 1).await, Err(Closed));
    });
}

#[test]
fn permits_locks_and_wake_ups_are_handed_out_in_order() {
    in_both_worlds(|_, _| async {
        let semaphore = Semaphore::new(2);
        let held = semaphore.acquire_many(2).await;
        assert!(semaphore.try_acquire().is_none());
        let waiting = rt::spawn({
            let semaphore = semaphore.clone();
            async move { drop(semaphore.acquire().await) }
        });
        drop(held);
        waiting.await.expect("nobody aborts it");
        assert_eq!(semaphore.available(), 2);

        let counter = Arc::new(Mutex::new(0));
        let tasks: Vec<_> = (0..10)
            .map(|_| {
                let counter = Arc::clone(&counter);
                rt::spawn(async move {
                    let mut count = counter.lock().await;
                    let before = *count;
                    rt::yield_now().await;
                    *count = before + 1;
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("nobody aborts it");
        }
        assert_eq!(*counter.lock().await, 10);

        let notify = Notify::new();
        notify.notify_one();
        notify.notified().await;
        let late = notify.notified();
        notify.notify_waiters();
        late.await;
    });
}

#[test]
fn everyone_hears_a_stop() {
    in_both_worlds(|_, _| async {
        let stop = CancellationToken::new();
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let stop = stop.clone();
                rt::spawn(async move { stop.cancelled().await })
            })
            .collect();
        assert_eq!(stop.run_until_cancelled(async { 1 }).await, Some(1));
        stop.cancel();
        for task in tasks {
            task.await.expect("nobody aborts it");
        }
        assert_eq!(stop.run_until_cancelled(std::future::pending::<()>()).await, None);
        assert!(stop.is_cancelled());
    });
}

#[test]
fn files_hold_what_was_written_under_the_names_they_were_given() {
    in_both_worlds(|path, _| async move {
        let directory = Directory::open(&path).await.expect("it can be created");
        assert_eq!(directory.open_file("one", false).expect_err("missing").kind(), std::io::ErrorKind::NotFound);
        let file = directory.open_file("one", true).expect("it can be created");
        file.write_at(4, b"5678").expect("there is room");
        let parts = [&b"ab"[..], b"", b"cde"].map(Bytes::from_static);
        file.write_vectored_at(8, &parts).expect("there is room");
        assert_eq!(file.len().expect("it is open"), 13);
        assert_eq!(&file.read_at(0, 100).expect("readable")[..], b"\0\0\0\x005678abcde");
        assert_eq!(&file.read_exact_at(6, 3).expect("readable")[..], b"78a");
        let short = file.read_exact_at(6, 100).expect_err("the file is shorter");
        assert_eq!(short.kind(), std::io::ErrorKind::UnexpectedEof);
        assert!(file.read_at(100, 5).expect("readable").is_empty());
        file.sync().await.expect("the disk works");
        file.truncate(5).expect("it is open");
        file.truncate(7).expect("it is open");
        assert_eq!(&file.read_at(4, 9).expect("readable")[..], b"5\0\0");

        let other = directory.open_file("two", true).expect("it can be created");
        other.write_at(0, b"other").expect("there is room");
        directory.rename("one", "two").expect("it is there");
        assert_eq!(directory.open_file("two", false).expect("it is there").len().expect("it is open"), 7);
        assert_eq!(&other.read_at(0, 9).expect("an open file outlives its name")[..], b"other");
        directory.remove("two").expect("it is there");
        assert!(directory.remove("two").is_err() && directory.rename("two", "one").is_err());

        let below = directory.subdirectory("below").await.expect("it can be created");
        below.open_file("x", true).expect("it can be created");
        directory.open_file("z", true).expect("it can be created");
        directory.open_file("a", true).expect("it can be created");
        directory.sync().await.expect("the disk works");
        assert_eq!(directory.list().expect("readable"), ["a", "below", "z"]);
        assert_eq!(below.list().expect("readable"), ["x"]);
        for name in ["", ".", "..", "a/b"] {
            assert!(directory.open_file(name, true).is_err(), "{name:?} is no name of a file");
        }

        let lock = directory.open_file("a", false).expect("it is there");
        let rival = directory.open_file("a", false).expect("it is there");
        assert!(lock.try_lock().expect("it is open"));
        assert!(!rival.try_lock().expect("it is open"));
        drop(lock);
        assert!(rival.try_lock().expect("it is open"));
    });
}

/// Regression: every user of the machine could read blocks, tables and logs; only keys were protected.
#[test]
fn what_is_made_is_readable_by_its_owner_alone_and_what_there_is_keeps_its_mode() {
    let scratch = tempfile::tempdir().expect("the machine has room for temporary files");
    let there = scratch.path().join("there");
    std::fs::DirBuilder::new().mode(0o755).create(&there).expect("it can be made");
    let mode = |path: &str| std::fs::metadata(there.join(path)).expect("it is there").permissions().mode() & 0o777;
    let before = mode("");
    rt::production::run(async {
        let directory = Directory::open(there.join("data/blocks")).await.expect("it can be made");
        directory.open_file("segment", true).expect("it can be made");
        Directory::open(&there).await.expect("it is there").open_file("LOCK", true).expect("it can be made");
    });
    let modes = ["", "data", "data/blocks", "data/blocks/segment", "LOCK"].map(mode);
    assert_eq!(modes, [before, 0o700, 0o700, 0o600, 0o600]);
}

#[test]
fn a_link_carries_messages_in_order_and_waits_for_room() {
    in_both_worlds(|_, name| async move {
        assert_eq!(connect(&name).await.expect_err("nobody listens").kind(), std::io::ErrorKind::ConnectionRefused);
        let mut listener = listen(&name).await.expect("the name is free");
        assert_eq!(listen(&name).await.expect_err("taken").kind(), std::io::ErrorKind::AddrInUse);
        let far = rt::spawn(async move { (listener.accept().await.expect("somebody connects"), listener) });
        let near = connect(&name).await.expect("somebody listens");
        let (far, listener) = far.await.expect("nobody aborts it");

        let (near_sender, mut near_receiver) = near.split();
        let (far_sender, mut far_receiver) = far.split();
        let sending = rt::spawn(async move {
            for number in 0..1000u32 {
                near_sender.send(Bytes::from(number.to_le_bytes().to_vec())).await.expect("the link holds");
            }
        });
        rt::sleep(SHORT).await;
        assert!(!sending.is_finished(), "a sender waits when {LINK_MESSAGES_MAX} messages are on their way");
        for number in 0..1000u32 {
            assert_eq!(far_receiver.receive().await.expect("the link holds")[..], number.to_le_bytes());
        }
        sending.await.expect("nobody aborts it");
        assert_eq!(far_receiver.receive().await, Err(Closed), "the sender was dropped after its last message");
        far_sender.send(Bytes::from_static(b"back")).await.expect("the other direction holds");
        assert_eq!(near_receiver.receive().await.expect("the other direction holds")[..], b"back"[..]);
        drop(near_receiver);
        let refused = async { while far_sender.send(Bytes::new()).await.is_ok() {} };
        rt::timeout(LONG, refused).await.expect("a sender learns that nobody receives");
        drop(listener);
        assert!(connect(&name).await.is_err());
    });
}

#[test]
fn randomness_differs_and_stays_within_its_bound() {
    in_both_worlds(|_, _| async {
        let numbers: std::collections::BTreeSet<u64> = (0..100).map(|_| rt::random_u64()).collect();
        assert_eq!(numbers.len(), 100);
        assert!((0..100).all(|_| rt::random_below(3) < 3));
        let mut bytes = [0; 33];
        rt::fill_random(&mut bytes);
        assert_ne!(bytes, [0; 33]);
        assert!(!rt::fault_point("never configured"));
    });
}
