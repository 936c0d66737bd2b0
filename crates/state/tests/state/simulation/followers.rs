//! Followers beside the primary: their links, what they read, and the faults that hit them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::net::{self, Link};
use base::rt::simulation::{Prng, Sim};
use base::rt::{self, AbortOnDrop, CancellationToken};
use replica::followers::work::WORK_ITEMS_MAX;
use replica::load::LoadReport;
use replica::offload::WorkPlacement as _;
use replica::{FindPrimary, ReplicatedState as _, WorkHandler};
use state::disaggregated::followers::FollowerEnvironment;
use state::disaggregated::memory::{MemoryError, ReadOnlyMemory};
use state::{Disaggregated, Error, Follower, Snapshot as _, WorldState as _};
use storage::StateStore;

use super::world::{NAMESPACE, World};

fn address(epoch: u64) -> String {
    format!("primary{epoch}")
}

/// Serves the followers of a primary until the future is dropped.
pub async fn serve(epoch: u64, state: Arc<Disaggregated>) -> AbortOnDrop<()> {
    let mut listener = net::listen(&address(epoch)).await.expect("one primary an epoch");
    rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            let state = Arc::clone(&state);
            drop(rt::spawn(async move {
                // The follower finds out by itself why it ended.
                let _ = state.serve_follower(link).await;
            }));
        }
    })
    .abort_on_drop()
}

/// How long the primary waits for the answer to a work item.
const WORK_TIMEOUT_MAX: Duration = Duration::from_millis(300);

/// The follower of a node, once there is one.
type OwnFollower = Arc<Mutex<Weak<Follower>>>;

/// A follower's answer to a work item: the item, and the height that the follower knows when it is done.
struct FollowerWorkHandler(OwnFollower);

#[async_trait]
impl WorkHandler for FollowerWorkHandler {
    fn load(&self) -> LoadReport {
        LoadReport { percent: rt::random_below(101) as u8, queued: 0 }
    }

    async fn work(&self, piece: Bytes) -> Option<Bytes> {
        if rt::fault_point("state.followers.work") {
            rt::sleep(Duration::from_millis(rt::random_below(120))).await;
        }
        let reader = self.0.lock().expect("nobody panics with it").upgrade()?;
        let height = *reader.heights().borrow();
        Some([&piece[..], &height.to_le_bytes()].concat().into())
    }
}

/// Has followers work for a primary. Check 7: an answer that counts answers this item, and its follower has reached the
/// height that the primary had shown.
pub async fn offload(state: Arc<Disaggregated>, mut rng: Prng, stop: CancellationToken) {
    let mut unused = Vec::new();
    while !stop.is_cancelled() {
        rt::sleep(rng.duration(&(Duration::from_micros(100)..Duration::from_millis(8)))).await;
        let (load_max, height) = (rng.below(101) as u8, state.height());
        let Some(place) = state.work_permit(load_max, &|_| true) else { continue };
        if rng.one_in(8) {
            unused.push(place);
            unused.truncate(WORK_ITEMS_MAX - 1);
            continue;
        }
        let question = rng.number().to_le_bytes();
        let patience = rng.duration(&(Duration::ZERO..WORK_TIMEOUT_MAX));
        if let Some(answer) = place.work(Bytes::copy_from_slice(&question), patience).await {
            let (echo, known) = answer.split_at(question.len());
            let known = u64::from_le_bytes(known.try_into().expect("a height"));
            assert!(echo == question && known >= height, "who knows height {known} is believed at {height}");
        }
    }
}

/// A follower's environment: the newest primary, the donors, and the store.
struct WorldEnvironment(Arc<World>, OwnFollower);

#[async_trait]
impl FindPrimary for WorldEnvironment {
    async fn primary(&self) -> io::Result<Link> {
        net::connect(&address(self.0.epoch.load(Ordering::Acquire))).await
    }

    fn work_handler(&self) -> Option<Arc<dyn WorkHandler>> {
        Some(Arc::new(FollowerWorkHandler(self.1.clone())))
    }
}

#[async_trait]
impl FollowerEnvironment for WorldEnvironment {
    async fn memory(&self) -> Result<Arc<dyn ReadOnlyMemory>, MemoryError> {
        let lent = self.0.donors.read_only().await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(self.0.store.clone()))
    }
}

/// Reads as clients of a follower do, until it is promoted or the run ends.
async fn follow(world: Arc<World>, mut rng: Prng, promoted: CancellationToken, stop: CancellationToken) {
    let own = OwnFollower::default();
    let join = || {
        let around = WorldEnvironment(Arc::clone(&world), own.clone());
        let reader = Arc::new(Follower::start(Arc::new(around), world.settings.clone()));
        *own.lock().expect("nobody panics with it") = Arc::downgrade(&reader);
        reader
    };
    let mut reader = join();
    while !stop.is_cancelled() && !promoted.is_cancelled() {
        if rt::fault_point("state.followers.leave") {
            reader.drain();
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            reader.leave().await;
            // For as long as its last lease lasts, nobody waits for it: it must answer nothing old.
            for _ in 0..20 {
                let shown = world.shown.load(Ordering::Acquire);
                if let Ok(view) = reader.view().await {
                    assert!(view.height() >= shown, "a reader that has left shows {} after {shown}", view.height());
                }
                rt::sleep(Duration::from_millis(2)).await;
            }
            reader = join();
        }
        let shown = world.shown.load(Ordering::Acquire);
        match reader.view().await {
            Ok(view) => {
                assert!(view.height() >= shown, "a reader shows {} after {shown} was shown", view.height());
                for _ in 0..1 + rng.below(8) {
                    if !world.check_one(&*view, &mut rng).await {
                        break;
                    }
                    if rt::fault_point("state.followers.serve") {
                        rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(60)))).await;
                    }
                }
                let (metadata, data) = reader.cache_bytes();
                let settings = &world.settings;
                assert!(metadata <= settings.metadata_cache_bytes && data <= settings.data_cache_bytes);
            }
            Err(error) => assert!(matches!(error, Error::NoLease), "{error}"),
        }
        rt::sleep(rng.duration(&(Duration::from_micros(10)..Duration::from_millis(3)))).await;
    }
    if promoted.is_cancelled() {
        return;
    }
    // At the end it must be able to read everything.
    let since = rt::now();
    loop {
        assert!(since.elapsed() < Duration::from_secs(30), "a reader does not come back");
        rt::sleep(Duration::from_millis(5)).await;
        if promoted.is_cancelled() {
            return;
        }
        let Ok(view) = reader.view().await else { continue };
        if view.height() < world.ledger().blocks.len() as u64 {
            continue;
        }
        let expected = world.expected(view.height());
        let mut found = Vec::new();
        for number in 0..world.keys {
            let key = format!("k{number:03}");
            match view.get(NAMESPACE, &key).await {
                Ok(read) => found.push((key, read)),
                Err(error) => {
                    assert_eq!(error.kind(), base::ErrorKind::Retry, "{error}");
                    break;
                }
            }
        }
        if found.len() == world.keys as usize {
            for (key, read) in found {
                let read = read.map(|read| (read.value, read.version));
                assert_eq!(read, expected.get(&key).cloned(), "{key} at a reader at the end");
            }
            break;
        }
    }
    world.readers.fetch_sub(1, Ordering::AcqRel);
}

/// Waits until every follower has read everything.
pub async fn wait_until_all_have_read(world: &World) {
    while world.readers.load(Ordering::Acquire) > 0 {
        rt::sleep(Duration::from_millis(5)).await;
    }
}

/// The followers of a world.
pub struct Followers {
    world: Arc<World>,
    /// Names of their nodes, and the tokens that stop them when they become the primary.
    readers: Mutex<Vec<(String, CancellationToken)>>,
}

impl Followers {
    /// Half of all worlds have some, and those that are about them.
    pub fn start(sim: &Sim, world: &Arc<World>, rng: &mut Prng, stop: &CancellationToken) -> Followers {
        let count = if rng.one_in(2) || world.is_followed { 1 + rng.below(2) } else { 0 };
        let mut readers = Vec::new();
        for number in 1..=count {
            let name = format!("reader{number}");
            let node = sim.node(&name);
            node.set_clock_drift_ppm(rng.below(20_000) as i64 - 10_000);
            let promoted = CancellationToken::new();
            world.readers.fetch_add(1, Ordering::AcqRel);
            let (world, stop, ends) = (Arc::clone(world), stop.clone(), promoted.clone());
            let seed = rng.number();
            let boot = move || {
                let rng = Prng::new(seed ^ rt::random_u64());
                follow(Arc::clone(&world), rng, ends.clone(), stop.clone())
            };
            node.start(boot);
            readers.push((name, promoted));
        }
        Followers { world: Arc::clone(world), readers: Mutex::new(readers) }
    }

    /// Stops a follower, whose node becomes that of a primary.
    pub fn promote(&self) -> Option<String> {
        let (name, promoted) = self.readers.lock().expect("nobody panics with it").pop()?;
        promoted.cancel();
        self.world.readers.fetch_sub(1, Ordering::AcqRel);
        Some(name)
    }

    /// Injects a fault at a follower.
    pub async fn disturb(&self, sim: &Sim, world: &World, rng: &mut Prng) {
        let Some((name, _)) = self.readers.lock().expect("nobody panics with it").last().cloned() else { return };
        let node = sim.node(&name);
        let primary = world.seat();
        match rng.below(6) {
            0 => {
                node.crash();
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
                node.restart();
            }
            1 | 2 => {
                node.pause();
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(300)))).await;
                node.resume();
            }
            3 => {
                sim.cut(&name, &primary);
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(400)))).await;
                sim.heal(&name, &primary);
            }
            4 => sim.break_links(&name, &primary),
            _ => {
                let donor = rng.pick(&world.donors.names).clone();
                sim.cut(&name, &donor);
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
                sim.heal(&name, &donor);
            }
        }
    }
}
