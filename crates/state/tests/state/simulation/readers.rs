//! Readers beside the primary: how they are served, what they are asked, and what befalls them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use base::Bytes;
use base::rt::net::{self, Link};
use base::rt::simulation::{Chance, Sim};
use base::rt::{self, AbortOnDrop, Stop};
use state::disaggregated::memory::{LentMemory, MemoryError};
use state::disaggregated::readers::work::PIECES_MAX;
use state::disaggregated::readers::{Helper, Surroundings};
use state::{Disaggregated, Error, Reader, Snapshot as _, WorldState as _};
use storage::StateStore;

use super::{NAMESPACE, World};

fn address(epoch: u64) -> String {
    format!("primary{epoch}")
}

/// Serves readers of a primary until the future's end.
pub async fn serve(epoch: u64, state: Arc<Disaggregated>) -> AbortOnDrop<()> {
    let mut listener = net::listen(&address(epoch)).await.expect("one primary an epoch");
    rt::spawn(async move {
        while let Ok(link) = listener.accept().await {
            let state = Arc::clone(&state);
            drop(rt::spawn(async move {
                // Why it ended, its reader finds out by itself.
                let _ = state.serve_reader(link).await;
            }));
        }
    })
    .abort_on_drop()
}

/// How long work for a primary is waited for.
const WORK_PATIENCE_MAX: Duration = Duration::from_millis(300);

/// The reader of a node, once there is one.
type Own = Arc<OnceLock<Weak<Reader>>>;

/// What a reader makes of a piece of work: the piece, and the height that it knows when it has done it.
struct Works(Own);

#[async_trait]
impl Helper for Works {
    fn load(&self) -> u8 {
        rt::random_below(101) as u8
    }

    async fn work(&self, piece: Bytes) -> Option<Bytes> {
        if rt::fault_point("state.readers.work") {
            rt::sleep(Duration::from_millis(rt::random_below(120))).await;
        }
        let reader = self.0.get().and_then(Weak::upgrade)?;
        let height = *reader.heights().borrow();
        Some([&piece[..], &height.to_le_bytes()].concat().into())
    }
}

/// Has readers work for a primary. Check 7: an answer that counts is one to the question, of somebody who knows no less than
/// the primary had shown.
pub async fn borrow(state: Arc<Disaggregated>, mut chance: Chance, stop: Stop) {
    let mut unused = Vec::new();
    while !stop.is_stopped() {
        rt::sleep(chance.duration(&(Duration::from_micros(100)..Duration::from_millis(8)))).await;
        let (load_max, height) = (chance.below(101) as u8, state.height());
        let Some(place) = state.place_work(load_max, &|_| true) else { continue };
        if chance.one_in(8) {
            unused.push(place);
            unused.truncate(PIECES_MAX - 1);
            continue;
        }
        let question = chance.number().to_le_bytes();
        let patience = chance.duration(&(Duration::ZERO..WORK_PATIENCE_MAX));
        if let Some(answer) = place.work(Bytes::copy_from_slice(&question), patience).await {
            let (echo, known) = answer.split_at(question.len());
            let known = u64::from_le_bytes(known.try_into().expect("a height"));
            assert!(echo == question && known >= height, "who knows height {known} is believed at {height}");
        }
    }
}

/// What readers find: the newest primary, the donors, and the store.
struct Around(Arc<World>, Own);

#[async_trait]
impl Surroundings for Around {
    async fn primary(&self) -> io::Result<Link> {
        net::connect(&address(self.0.epoch.load(Ordering::Acquire))).await
    }

    async fn memory(&self) -> Result<Arc<dyn LentMemory>, MemoryError> {
        let lent = self.0.donors.lent().await;
        Ok(Arc::new(lent.map_err(|error| MemoryError::Failed(error.to_string()))?))
    }

    async fn store(&self) -> Result<Arc<dyn StateStore>, storage::Error> {
        Ok(Arc::new(self.0.store.clone()))
    }

    fn helper(&self) -> Option<Arc<dyn Helper>> {
        Some(Arc::new(Works(self.1.clone())))
    }
}

/// Reads as clients of a reader do, until it is promoted or everything ends.
async fn follow(world: Arc<World>, mut chance: Chance, promoted: Stop, stop: Stop) {
    let own = Own::default();
    let around = Around(Arc::clone(&world), own.clone());
    let reader = Arc::new(Reader::start(Arc::new(around), world.settings.clone()));
    own.set(Arc::downgrade(&reader)).expect("there is one");
    while !stop.is_stopped() && !promoted.is_stopped() {
        let shown = world.shown.load(Ordering::Acquire);
        match reader.view().await {
            Ok(view) => {
                assert!(view.height() >= shown, "a reader shows {} after {shown} was shown", view.height());
                for _ in 0..1 + chance.below(8) {
                    if !world.check_one(&*view, &mut chance).await {
                        break;
                    }
                    if rt::fault_point("state.readers.serve") {
                        rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(60)))).await;
                    }
                }
                let (metadata, data) = reader.cache_bytes();
                let settings = &world.settings;
                assert!(metadata <= settings.metadata_cache_bytes && data <= settings.data_cache_bytes);
            }
            Err(error) => assert!(matches!(error, Error::NoLease), "{error}"),
        }
        rt::sleep(chance.duration(&(Duration::from_micros(10)..Duration::from_millis(3)))).await;
    }
    if promoted.is_stopped() {
        return;
    }
    // At the end it must come to read everything.
    let since = rt::now();
    loop {
        assert!(since.elapsed() < Duration::from_secs(30), "a reader does not come back");
        rt::sleep(Duration::from_millis(5)).await;
        if promoted.is_stopped() {
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

/// Waits until every reader has read everything.
pub async fn until_all_have_read(world: &World) {
    while world.readers.load(Ordering::Acquire) > 0 {
        rt::sleep(Duration::from_millis(5)).await;
    }
}

/// The readers of a world.
pub struct Crew {
    world: Arc<World>,
    /// Names of their nodes, and what ends them when they become the primary.
    readers: Mutex<Vec<(String, Stop)>>,
}

impl Crew {
    /// In half of all worlds there are some.
    pub fn start(sim: &Sim, world: &Arc<World>, chance: &mut Chance, stop: &Stop) -> Crew {
        let count = if chance.one_in(2) { 1 + chance.below(2) } else { 0 };
        let mut readers = Vec::new();
        for number in 1..=count {
            let name = format!("reader{number}");
            let node = sim.node(&name);
            node.set_clock_drift_ppm(chance.below(20_000) as i64 - 10_000);
            let promoted = Stop::new();
            world.readers.fetch_add(1, Ordering::AcqRel);
            let (world, stop, ends) = (Arc::clone(world), stop.clone(), promoted.clone());
            let seed = chance.number();
            let boot = move || {
                let chance = Chance::new(seed ^ rt::random_u64());
                follow(Arc::clone(&world), chance, ends.clone(), stop.clone())
            };
            node.start(boot);
            readers.push((name, promoted));
        }
        Crew { world: Arc::clone(world), readers: Mutex::new(readers) }
    }

    /// Makes a reader give its node to a primary.
    pub fn promote(&self) -> Option<String> {
        let (name, promoted) = self.readers.lock().expect("nobody panics with it").pop()?;
        promoted.stop();
        self.world.readers.fetch_sub(1, Ordering::AcqRel);
        Some(name)
    }

    /// What strikes a reader.
    pub async fn disturb(&self, sim: &Sim, world: &World, chance: &mut Chance) {
        let Some((name, _)) = self.readers.lock().expect("nobody panics with it").last().cloned() else { return };
        let node = sim.node(&name);
        let primary = world.seat();
        match chance.below(6) {
            0 => {
                node.crash();
                rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(100)))).await;
                node.restart();
            }
            1 | 2 => {
                node.pause();
                rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(300)))).await;
                node.resume();
            }
            3 => {
                sim.cut(&name, &primary);
                rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(400)))).await;
                sim.heal(&name, &primary);
            }
            4 => sim.break_links(&name, &primary),
            _ => {
                let donor = chance.pick(&world.donors.names).clone();
                sim.cut(&name, &donor);
                rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
                sim.heal(&name, &donor);
            }
        }
    }
}
