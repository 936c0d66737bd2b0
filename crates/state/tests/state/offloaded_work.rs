//! Offloaded work under faults: an answer of a follower counts, or does not count because the follower was late, was
//! gone, or lacked the lease that the answer needs. A planted mistake, counting answers without a lease, must be
//! detected here.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Donors, rows};
use async_trait::async_trait;
use base::Bytes;
use base::rt::net::{self, Link};
use base::rt::simulation::{FaultPlan, Sim, Simulation};
use base::rt::{self, CancellationToken};
use replica::fault::{Mutant, plant};
use replica::followers::work::{AVOIDED_FOR, NO_WORK, WORK_ITEMS_MAX};
use replica::lease::FIRST_LEASES_FOR;
use replica::load::LoadReport;
use replica::offload::WorkPlacement as _;
use replica::{FindPrimary, ReplicatedState as _, WorkHandler};
use state::disaggregated::followers::FollowerEnvironment;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Disaggregated, DisaggregatedConfig, Follower, UpdateBatch, WorldState};
use storage::{MemoryStateStore, StateStore};

/// One of the seeds under which the faults of [`CASES`] fall where they are meant to: a primary that stands still must do
/// so before the answer has arrived.
const SEED: u64 = 8;
const ADDRESS: &str = "primary's readers";
const LOAD: u8 = 40;
const SECTION_BYTES: u64 = 64 << 10;

/// A follower's environment, and how long it takes for a work item.
struct FixedEnvironment {
    donors: Donors,
    store: MemoryStateStore,
    work: Duration,
    load: u8,
}

struct SlowWorkHandler(Duration, u8);

#[async_trait]
impl WorkHandler for SlowWorkHandler {
    fn load(&self) -> LoadReport {
        LoadReport { percent: self.1, queued: 0 }
    }

    async fn work(&self, piece: Bytes) -> Option<Bytes> {
        rt::sleep(self.0).await;
        (piece[..] != *b"what it cannot do").then(|| [b"done: ", &piece[..]].concat().into())
    }
}

#[async_trait]
impl FindPrimary for FixedEnvironment {
    async fn primary(&self) -> io::Result<Link> {
        net::connect(ADDRESS).await
    }

    fn work_handler(&self) -> Option<Arc<dyn WorkHandler>> {
        (self.load != NO_WORK).then(|| Arc::new(SlowWorkHandler(self.work, self.load)) as Arc<dyn WorkHandler>)
    }
}

#[async_trait]
impl FollowerEnvironment for FixedEnvironment {
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let lent = self.donors.read_only().await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(self.store.clone()))
    }
}

/// A primary that keeps making blocks, and its state.
async fn run_primary(environment: Arc<FixedEnvironment>, shown: Arc<Mutex<Option<Arc<Disaggregated>>>>) {
    let space = environment.donors.open(1, 8 * SECTION_BYTES).await.expect("there is memory");
    let store: Arc<dyn StateStore> = Arc::new(environment.store.clone());
    let state = Disaggregated::open(Arc::new(space), store, DisaggregatedConfig::default()).await;
    let state = Arc::new(state.expect("the store answers"));
    *shown.lock().expect("nobody panics with it") = Some(Arc::clone(&state));
    let mut listener = net::listen(ADDRESS).await.expect("it is free");
    let serving = Arc::clone(&state);
    let _serving = rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            let state = Arc::clone(&serving);
            drop(rt::spawn(async move {
                // The follower finds out by itself why it ended.
                let _ = state.serve_follower(link).await;
            }));
        }
    })
    .abort_on_drop();
    state.admit_followers().await;
    loop {
        let batch = UpdateBatch::default();
        environment.store.add_block(rows(&batch));
        state.apply(state.height(), batch).await.expect("nothing is in its way");
        rt::sleep(Duration::from_millis(7)).await;
    }
}

/// Runs `what` with a primary and a follower that has a lease.
fn with_a_follower<F, T>(
    work: Duration,
    load: u8,
    what: impl FnOnce(Sim, Arc<Disaggregated>) -> F + Send + 'static,
) -> T
where
    F: Future<Output = T> + Send + 'static,
    T: Send + 'static,
{
    let report = Simulation::new(SEED).run(move |sim| async move {
        let donors = Donors::start(&sim, 1, SECTION_BYTES, 8 * SECTION_BYTES).await;
        let around = Arc::new(FixedEnvironment { donors, store: MemoryStateStore::new(), work, load });
        let shown = Arc::new(Mutex::new(None));
        let primary = (Arc::clone(&around), Arc::clone(&shown));
        sim.node("primary").start(move || run_primary(Arc::clone(&primary.0), Arc::clone(&primary.1)));
        rt::sleep(Duration::from_millis(20)).await;
        let following = Arc::clone(&around);
        sim.node("reader").start(move || {
            let around = Arc::clone(&following);
            async move {
                let _reader = Follower::start(around, DisaggregatedConfig::default());
                CancellationToken::new().cancelled().await;
            }
        });
        // A reader that has just joined has short leases at first.
        rt::sleep(Duration::from_millis(200) + FIRST_LEASES_FOR).await;
        let state = shown.lock().expect("nobody panics with it").take().expect("it is open");
        what(sim, state).await
    });
    report.unwrap_or_else(|failure| panic!("{failure}")).value
}

/// The answer to a work item that takes the follower `work_ms` and is waited for `timeout_ms`, under the faults of
/// `plan`.
fn asked(work_ms: u64, timeout_ms: u64, plan: &str) -> Option<Bytes> {
    let plan = FaultPlan::parse(plan).expect("it is well formed");
    with_a_follower(Duration::from_millis(work_ms), LOAD, move |sim, state| async move {
        let asking = sim.node("primary").spawn(async move {
            let place = state.work_permit(LOAD, &|_| true).expect("the reader has a lease, and is not busy");
            let began = rt::now();
            let patience = Duration::from_millis(timeout_ms);
            let answer = place.work(Bytes::from_static(b"piece"), patience).await;
            let waited = began.elapsed();
            // A node that is suspended cannot return in time.
            assert!(waited <= patience + Duration::from_millis(160), "it waited {waited:?}");
            answer
        });
        sim.run_plan(&plan).await;
        asking.await.expect("the primary lives")
    })
}

/// Faults during a work item of 30 ms, whose answer is waited for long enough, and whether the answer counts.
const CASES: [(&str, &str, bool); 8] = [
    ("nothing happens", "", true),
    ("the reader dies", "at 10ms crash reader for 20ms", false),
    ("the reader dies for good", "at 10ms crash reader for 2s", false),
    ("their links break", "at 10ms break primary reader", false),
    ("they are cut off for a moment", "at 10ms cut primary reader for 25ms", true),
    ("they are cut off for longer than a lease", "at 10ms cut primary reader for 150ms", false),
    ("the reader stands still for longer than a lease", "at 10ms pause reader for 150ms", false),
    ("the primary stands still for longer than a lease", "at 10ms pause primary for 150ms", false),
];

#[test]
fn what_a_reader_has_done_counts_only_under_its_lease() {
    for (what, plan, counts) in CASES {
        let answer = asked(30, 500, plan);
        assert_eq!(answer.is_some(), counts, "{what}");
        assert!(answer.is_none_or(|answer| answer[..] == *b"done: piece"));
    }
}

#[test]
fn a_reader_that_is_late_is_not_waited_for() {
    assert_eq!(asked(120, 100, ""), None);
    assert!(asked(120, 200, "").is_some());
}

#[test]
fn answers_that_count_without_a_lease_are_noticed() {
    plant(Mutant::CountLapsed);
    let caught: Vec<&str> = CASES
        .into_iter()
        .filter(|(_, plan, counts)| asked(30, 500, plan).is_some() != *counts)
        .map(|(what, _, _)| what)
        .collect();
    plant(Mutant::None);
    assert!(caught.contains(&"they are cut off for longer than a lease"), "{caught:?}");
}

#[test]
fn work_goes_to_readers_that_have_room_and_are_not_busy() {
    with_a_follower(Duration::from_millis(5), LOAD, |sim, state| async move {
        let asking = sim.node("primary").spawn(async move {
            assert!(state.work_permit(LOAD - 1, &|_| true).is_none(), "it is too busy");
            let places: Vec<_> =
                (0..WORK_ITEMS_MAX).map(|_| state.work_permit(LOAD, &|_| true).expect("there is room")).collect();
            assert!(state.work_permit(LOAD, &|_| true).is_none(), "there is no room");
            let reader = places[0].follower().clone();
            drop(places);
            assert!(state.work_permit(LOAD, &|name| name != &*reader).is_none(), "it is not trusted");
            let place = state.work_permit(LOAD, &|_| true).expect("what was not used is given back");
            let piece = Bytes::from_static(b"what it cannot do");
            assert_eq!(place.work(piece, Duration::from_millis(100)).await, None);
            assert!(state.work_permit(LOAD, &|_| true).is_none(), "it is passed over");
            rt::sleep(AVOIDED_FOR + Duration::from_millis(50)).await;
            assert!(state.work_permit(LOAD, &|_| true).is_some(), "for a while");
        });
        asking.await.expect("the primary lives");
    });
    with_a_follower(Duration::ZERO, NO_WORK, |sim, state| async move {
        let asking = sim.node("primary").spawn(async move {
            assert!(state.work_permit(100, &|_| true).is_none(), "it does no work");
        });
        asking.await.expect("the primary lives");
    });
}
