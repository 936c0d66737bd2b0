//! The guarantees of simulations: seeds decide, failures are named, nodes crash, pause and restart.

mod disk;
mod net;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::event::EventValue;
use crate::rt::channel::bounded;
use crate::rt::disk::Directory;
use crate::rt::net::{connect, listen};
use crate::rt::{self, Elapsed};

const MS: Duration = Duration::from_millis(1);

/// Three nodes that talk, write and compete, under a plan of faults.
async fn busy(sim: Sim) -> u64 {
    let nodes = ["a", "b", "c"];
    let done = Arc::new(AtomicU64::new(0));
    for name in nodes {
        let done = Arc::clone(&done);
        sim.node(name).start(move || {
            let done = Arc::clone(&done);
            async move {
                rt::spawn(serve(name));
                let directory = Directory::open("/data").await.expect("the disk works");
                let file = directory.open_file("log", true).expect("the disk works");
                loop {
                    let bytes = rt::random_u64().to_le_bytes();
                    file.write_at(file.len().expect("the disk works"), &bytes).expect("there is room");
                    file.sync().await.expect("the disk works");
                    let target = nodes[rt::random_below(3) as usize];
                    if let Ok(Ok(link)) = rt::timeout(500 * MS, connect(target)).await
                        && link.send(Bytes::copy_from_slice(&bytes)).await.is_ok()
                    {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    rt::sleep(10 * MS).await;
                }
            }
        });
    }
    let bounds = FaultPlanLimits { nodes: nodes.map(String::from).to_vec(), faults: 10, ..FaultPlanLimits::default() };
    sim.run_plan(&FaultPlan::random(sim.seed(), &bounds)).await;
    done.load(Ordering::SeqCst)
}

async fn serve(name: &'static str) {
    let Ok(mut listener) = listen(name).await else { return };
    while let Ok(mut link) = listener.accept().await {
        rt::spawn(async move { while link.receive().await.is_ok() {} });
    }
}

#[test]
fn a_seed_decides_everything_and_seeds_differ() {
    let mut digests = BTreeSet::new();
    for seed in 0..20 {
        let report = Simulation::new(seed).check(busy).expect("the run succeeds");
        assert!(report.value > 10, "seed {seed}: {} messages", report.value);
        digests.insert(report.digest);
    }
    assert_eq!(digests.len(), 20);
}

#[test]
fn simulations_on_several_threads_do_not_disturb_one_another() {
    let run = |seed| Simulation::new(seed).run(busy).expect("the run succeeds").digest;
    let alone: Vec<_> = (0..4).map(run).collect();
    let together: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|seed| scope.spawn(move || run(seed))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the run succeeds")).collect()
    });
    assert_eq!(alone, together);
}

#[test]
fn scheduling_varies_with_the_seed() {
    let order = |seed| {
        let run = Simulation::new(seed).run(|_| async {
            let (sender, mut receiver) = bounded(8);
            for number in 0..4 {
                let sender = sender.clone();
                rt::spawn(async move { sender.send(number).await });
            }
            drop(sender);
            let mut order = Vec::new();
            while let Some(number) = receiver.recv().await {
                order.push(number);
            }
            order
        });
        run.expect("the run succeeds").value
    };
    let orders: BTreeSet<Vec<i32>> = (0..500).map(order).collect();
    assert_eq!(orders.len(), 24, "every order of four tasks occurs");
}

#[test]
fn an_hour_passes_at_once() {
    let report = Simulation::new(1).run(|_| async {
        let (start, wall) = (rt::now(), rt::wall_now());
        rt::sleep(Duration::from_secs(3600)).await;
        (start.elapsed(), rt::wall_now() - wall)
    });
    let report = report.expect("the run succeeds");
    assert!(report.value.0 >= Duration::from_secs(3600) && report.value.0 < Duration::from_secs(3601));
    assert_eq!(report.value.0.as_millis(), report.value.1.as_millis());
    assert!(report.steps < 10);
}

#[test]
fn a_deadlock_names_the_tasks_that_wait() {
    let failure = Simulation::new(1).run(|sim| async move {
        sim.node("stuck").spawn(std::future::pending::<()>());
        std::future::pending::<()>().await;
    });
    let failure = failure.expect_err("nothing can happen");
    let FailureReason::Deadlock(tasks) = &failure.reason else { panic!("{failure}") };
    assert!(tasks.iter().any(|task| task.starts_with("stuck task 1 (")), "{tasks:?}");
    assert_eq!(tasks.len(), 2);
}

#[test]
fn limits_end_a_run_that_does_not_end() {
    async fn spin(_: Sim) {
        loop {
            rt::yield_now().await;
        }
    }
    let failure = Simulation::new(1).steps_max(1000).run(spin).expect_err("it spins");
    assert_eq!(failure.reason, FailureReason::StepLimit(1000));
    let failure = Simulation::new(1).time_max(MS).run(spin).expect_err("it spins");
    assert_eq!(failure.reason, FailureReason::TimeLimit(MS));
}

#[test]
fn a_panic_that_nobody_joins_fails_the_run_and_names_the_seed() {
    let failure = Simulation::new(77).run(|sim| async move {
        sim.node("peer").spawn(async { panic!("out of cheese") });
        rt::sleep(MS).await;
    });
    let failure = failure.expect_err("a task panicked");
    let text = failure.to_string();
    assert!(text.contains("seed 77") && text.contains("peer task 1") && text.contains("out of cheese"), "{text}");

    let kept = Simulation::new(1).run(|_| async {
        let task = rt::spawn(async { panic!("kept") });
        rt::sleep(MS).await;
        Some(task)
    });
    assert!(matches!(kept.expect_err("a task panicked").reason, FailureReason::Panic(_)));
    let own = Simulation::new(1).run(|_| async { panic!("in the run's own future") });
    assert!(matches!(
        own.map(|report: SimulationReport<()>| report.value).expect_err("it panicked").reason,
        FailureReason::Panic(_)
    ));
}

#[test]
fn a_wake_up_from_another_thread_fails_the_run() {
    let failure = Simulation::new(1).run(|_| async {
        let (sender, mut receiver) = bounded(1);
        // A library with its own threads would do this behind our back.
        std::thread::spawn(move || sender.try_send(()).expect("there is room")).join().expect("it sends");
        rt::yield_now().await;
        receiver.recv().await;
        let (sender, mut receiver) = bounded::<()>(1);
        let other = rt::spawn(async move { receiver.recv().await });
        rt::sleep(MS).await;
        std::thread::spawn(move || drop(sender)).join().expect("it drops");
        let _ = other.await;
    });
    assert_eq!(
        failure.map(|report| report.value).expect_err("a thread woke a task").reason,
        FailureReason::ForeignWake
    );
}

#[test]
fn a_crash_ends_a_nodes_tasks_and_a_restart_boots_it_again() {
    let check = Simulation::new(1).check(|sim| async move {
        let boots = Arc::new(AtomicU64::new(0));
        let ticks = Arc::new(AtomicU64::new(0));
        let node = sim.node("peer");
        node.start({
            let (boots, ticks) = (Arc::clone(&boots), Arc::clone(&ticks));
            move || {
                boots.fetch_add(1, Ordering::SeqCst);
                let ticks = Arc::clone(&ticks);
                async move {
                    // A task spawned by a node's task lives on the node too.
                    let _task = rt::spawn(async move {
                        loop {
                            rt::sleep(MS).await;
                            ticks.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                    std::future::pending().await
                }
            }
        });
        rt::sleep(10 * MS).await;
        let task = node.spawn(std::future::pending::<()>());
        node.crash();
        assert!(!node.is_up() && node.crashes() == 1);
        assert_eq!(task.await, Err(rt::TaskAborted));
        let seen = ticks.load(Ordering::SeqCst);
        assert!(seen > 5);
        rt::sleep(10 * MS).await;
        assert_eq!(ticks.load(Ordering::SeqCst), seen);
        node.restart();
        node.restart();
        rt::sleep(10 * MS).await;
        assert!(ticks.load(Ordering::SeqCst) > seen);
        assert_eq!(boots.load(Ordering::SeqCst), 2);
    });
    check.expect("the run succeeds");
}

#[test]
fn a_node_may_crash_itself_and_what_it_does_then_has_no_effect() {
    let check = Simulation::new(1).check(|sim| async move {
        let node = sim.node("peer");
        let task = node.spawn({
            let node = node.clone();
            async move {
                let directory = Directory::open("/").await.expect("the disk works");
                node.crash();
                assert!(directory.open_file("late", true).is_err());
                assert!(listen("late").await.is_err());
                assert_eq!(rt::spawn(async {}).await, Err(rt::TaskAborted));
                rt::yield_now().await;
                unreachable!("a node that crashed does not go on");
            }
        });
        assert_eq!(task.await, Err(rt::TaskAborted));
    });
    check.expect("the run succeeds");
}

#[test]
fn a_paused_node_stands_still_while_time_goes_on() {
    let check = Simulation::new(1).check(|sim| async move {
        let node = sim.node("peer");
        let task = node.spawn(async {
            let start = rt::now();
            rt::sleep(10 * MS).await;
            start.elapsed()
        });
        rt::sleep(MS).await; // It has started.
        node.pause();
        assert_eq!(rt::timeout(100 * MS, std::future::pending::<()>()).await, Err(Elapsed));
        assert!(!task.is_finished());
        node.resume();
        assert!(task.await.expect("nobody aborts it") >= 100 * MS);
    });
    check.expect("the run succeeds");
}

#[test]
fn a_plan_strikes_at_its_times() {
    let check = Simulation::new(1).check(|sim| async move {
        let node = sim.node("peer1");
        node.start(std::future::pending);
        let plan = FaultPlan::parse("at 3s crash peer1 for 1s; at 3500ms fill peer0; at 3600ms pause peer2 for 10ms");
        let plan = plan.expect("the plan is well formed");
        assert_eq!(plan.end(), Duration::from_secs(4));
        let observer = rt::spawn({
            let node = node.clone();
            async move {
                let mut seen = Vec::new();
                for _ in 0..50 {
                    seen.push(node.is_up());
                    rt::sleep(100 * MS).await;
                }
                seen
            }
        });
        sim.run_plan(&plan).await;
        let seen = observer.await.expect("nobody aborts it");
        let down: Vec<usize> = (0..50).filter(|at| !seen[*at]).collect();
        assert!(down.len() >= 9 && down.len() <= 11 && down[0] >= 29 && down[0] <= 31, "{down:?}");
        node.crash();
    });
    check.expect("the run succeeds");
}

crate::events! {
    /// Counted by a test.
    counter Counted("heddle_simulation_test_counted_total");
}

#[test]
fn fault_points_and_events_are_counted_for_their_run_alone() {
    let run = |probability, next| {
        let run = Simulation::new(5).check(move |sim| async move {
            sim.inject("torn header", probability);
            sim.inject_next("torn header", next);
            let injected = (0..1000).filter(|_| rt::fault_point("torn header")).count();
            Counted.add(injected as u64);
            assert_eq!(Counted.value(), injected as u64);
            assert_eq!(sim.fault_point("torn header").injected, injected as u64);
        });
        let report = run.expect("the run succeeds");
        let point = report.fault_points["torn header"];
        assert_eq!(point.reached, 1000);
        assert_eq!(report.events[Counted.description().name], EventValue::Counter(point.injected));
        point.injected
    };
    use crate::event::Event as _;
    assert_eq!((run(0.0, 0), run(0.0, 3), run(1.0, 0)), (0, 3, 1000));
    assert!((200..300).contains(&run(0.25, 0)));
    assert_eq!(Counted.value(), 0, "nothing was counted outside of simulations");
}

/// Regression: a campaign of seeds grew by megabytes per seed, because nodes' boot functions held the world that held them.
#[test]
fn a_run_that_is_over_leaves_nothing_behind() {
    let held = Arc::new(());
    let weak = Arc::downgrade(&held);
    Simulation::new(1)
        .run(|sim| async move {
            let in_boot = (sim.clone(), held);
            sim.node("peer").start(move || {
                let held = in_boot.clone();
                async move {
                    rt::sleep(MS).await;
                    drop(held);
                }
            });
            rt::sleep(10 * MS).await;
        })
        .expect("the run succeeds");
    assert_eq!(weak.strong_count(), 0);
}

#[test]
fn clocks_drift_and_sleeps_follow_them() {
    let check = Simulation::new(1).check(|sim| async move {
        let node = sim.node("peer");
        assert_eq!(node.clock_drift_ppm(), 0);
        node.set_clock_drift_ppm(CLOCK_DRIFT_PPM_MAX);
        let hour = Duration::from_secs(3600);
        let begun = sim.elapsed();
        let shown = node.spawn(async move {
            let start = rt::now();
            rt::sleep(hour).await;
            start.elapsed()
        });
        let shown = shown.await.expect("nobody aborts it");
        assert!(shown >= hour && shown < hour + MS);
        // A hundredth fast: an hour by its clock is less than a true hour.
        let passed = sim.elapsed() - begun;
        assert!(passed > hour.mul_f64(0.990) && passed < hour.mul_f64(0.991), "{passed:?}");

        // A change in the middle of a sleep counts from then on, and the clock never jumps.
        let begun = sim.elapsed();
        let sleeper = node.spawn(async move { rt::timeout(hour, std::future::pending::<()>()).await });
        let watcher = node.spawn(async move {
            let mut before = (rt::now(), rt::wall_now());
            for _ in 0..100 {
                rt::sleep(Duration::from_secs(30)).await;
                let now = (rt::now(), rt::wall_now());
                assert!(now.0 > before.0 && now.1 > before.1);
                assert!(now.0 - before.0 < Duration::from_secs(31));
                before = now;
            }
        });
        rt::sleep(hour / 2).await;
        node.set_clock_drift_ppm(-CLOCK_DRIFT_PPM_MAX);
        assert_eq!(sleeper.await.expect("nobody aborts it"), Err(Elapsed));
        let passed = sim.elapsed() - begun;
        assert!(passed > hour - Duration::from_secs(1) && passed < hour + Duration::from_secs(1), "{passed:?}");
        watcher.await.expect("nobody aborts it");
        assert!(rt::now().nanos().abs_diff(sim.elapsed().as_nanos() as u64) < 1_000_000, "the driver's clock is true");
        let plan = FaultPlan::parse("at 1s drift peer 500 for 2s").expect("the plan is well formed");
        sim.run_plan(&plan).await;
        assert_eq!(node.clock_drift_ppm(), 0);
    });
    check.expect("the run succeeds");
}

#[test]
fn functions_are_called_whatever_became_of_the_node() {
    let check = Simulation::new(1).check(|sim| async move {
        let calls = Arc::new(AtomicU64::new(0));
        let count = |by: u64| {
            let calls = Arc::clone(&calls);
            move || {
                calls.fetch_add(by, Ordering::SeqCst);
            }
        };
        let node = sim.node("peer");
        assert_eq!(SimNode::current().expect("this is a simulation").name(), "driver");
        let named = node.spawn(async { SimNode::current().expect("this is a simulation").name().to_owned() });
        assert_eq!(named.await.expect("nobody aborts it"), "peer");
        node.when_crashed(count(1));
        let (later, world) = (count(10), sim.clone());
        node.spawn(async move { world.call_after(10 * MS, later) }).await.expect("nobody aborts it");
        assert!(!node.is_paused());
        node.pause();
        assert!(node.is_paused());
        node.crash();
        assert!(!node.is_paused());
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        node.when_crashed(count(100));
        assert_eq!(calls.load(Ordering::SeqCst), 101, "it is down already");
        rt::sleep(20 * MS).await;
        assert_eq!(calls.load(Ordering::SeqCst), 111);
        sim.mute("peer", "other");
        assert!(sim.is_cut("peer", "other") && !sim.is_cut("other", "peer"));
    });
    check.expect("the run succeeds");
    let failure = Simulation::new(1).run(|sim| async move {
        sim.call_after(MS, || panic!("in a function"));
        rt::sleep(2 * MS).await;
    });
    let failure = failure.map(|report| report.value).expect_err("the function panicked");
    assert!(failure.to_string().contains("in a function"), "{failure}");
}
