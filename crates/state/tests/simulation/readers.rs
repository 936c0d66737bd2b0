//! Readers beside the primary: how they are served, what they are asked, and what befalls them.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::{self, Link};
use base::rt::simulation::{Chance, Sim};
use base::rt::{self, AbortOnDrop, Stop};
use state::disaggregated::memory::{LentMemory, MemoryError};
use state::disaggregated::readers::Surroundings;
use state::{Disaggregated, Error, Reader, Snapshot as _};
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

/// What readers find: the newest primary, the donors, and the store.
struct Around(Arc<World>);

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
}

/// Reads as clients of a reader do, until it is promoted or everything ends.
async fn follow(world: Arc<World>, mut chance: Chance, promoted: Stop, stop: Stop) {
    let reader = Reader::start(Arc::new(Around(Arc::clone(&world))), world.settings.clone());
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
