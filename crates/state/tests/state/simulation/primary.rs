//! A primary of the simulated peer, its readers, and the checks of its state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::rt::channel::WatchReceiver;
use base::rt::simulation::Prng;
use base::rt::{self, CancellationToken};
use base::{BlockNumber, Epoch, ErrorKind, Version};
use pool::AddressSpace;
use replica::ReplicatedState as _;
use state::{Disaggregated, Durable, Error, WorldState};
use storage::StateStore;
use storage::tables::{RangeQuery, Row, Savepoint};

use super::followers;
use super::world::{NAMESPACE, World};

/// A primary: opens the state, applies the existing blocks again, and makes blocks until it is replaced.
pub async fn run_primary(world: Arc<World>, epoch: u64, mut rng: Prng, stop: CancellationToken) {
    let opened = match rng.one_in(world.opens_one_in) {
        true => world.donors.open(epoch, world.budget_bytes).await,
        false => world.donors.adopt(epoch, world.budget_bytes).await,
    };
    let space = match opened {
        Ok(space) => space,
        Err(error) => return assert!(world.epoch.load(Ordering::Acquire) > epoch, "epoch {epoch}: {error}"),
    };
    let store: Arc<dyn StateStore> = Arc::new(ReachableStore { world: Arc::clone(&world), epoch });
    let state = Disaggregated::open(Arc::new(space.clone()), store, world.settings.clone()).await;
    let state = Arc::new(state.expect("the store answers"));
    // Blocks that were reported to this primary as durable.
    let durable = Arc::new(AtomicU64::new(state.height()));
    let mut readers = Vec::new();
    for _ in 0..3 {
        let rng = Prng::new(rng.number());
        readers.push(rt::spawn(read(Arc::clone(&world), Arc::clone(&state), Arc::clone(&durable), rng, stop.clone())));
    }
    readers.push(rt::spawn(followers::offload(Arc::clone(&state), Prng::new(epoch), stop.clone())));
    let _serving = followers::serve(epoch, Arc::clone(&state)).await;
    let mut lingering = 3;
    while !stop.is_cancelled() {
        let height = state.height();
        let made = world.ledger().blocks.len() as u64;
        if height == made {
            state.admit_followers().await;
            world.shown.fetch_max(height, Ordering::AcqRel);
        }
        if height == made && !world.make_block(epoch, &mut rng) {
            // Replaced. It continues for a while as if it did not know.
            lingering -= 1;
            if lingering == 0 {
                break;
            }
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(200)))).await;
            continue;
        }
        let batch = world.ledger().blocks[height as usize].clone();
        let is_fenced = world.ledger().epochs[height as usize] > epoch;
        let applied = match rng.below(3) {
            0 if !is_fenced => {
                durable.store(height + 1, Ordering::Release);
                state.apply(height, batch).await
            }
            _ => state.apply_when(height, batch, become_durable(&durable, height, is_fenced, &mut rng)).await,
        };
        match applied {
            // The block did not become durable. It is given again.
            Err(Error::Busy) => {}
            Ok(()) => drop(world.shown.fetch_max(height + 1, Ordering::AcqRel)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Fenced, "block {height}: {error}");
                assert!(world.epoch.load(Ordering::Acquire) > epoch, "nobody has replaced epoch {epoch}");
                break;
            }
        }
        if (state.wants_persist() || rng.one_in(12))
            && let Err(error) = state.persist().await
        {
            assert_eq!(error.kind(), ErrorKind::Fenced, "the store works: {error}");
            assert!(world.epoch.load(Ordering::Acquire) > epoch, "nobody has replaced epoch {epoch}");
        }
        if world.shrinks.swap(false, Ordering::AcqRel) {
            state.set_budget(world.donors.section_bytes).expect("it is a section");
        } else if world.is_resized && rng.one_in(8) {
            let bytes = world.donors.section_bytes * (1 + rng.below(world.budget_bytes / world.donors.section_bytes));
            state.set_budget(bytes).expect("it is a section or more");
        }
        if rng.one_in(world.vacates_one_in) {
            vacate_one(&world, &space, &mut rng);
            state.vacate();
        }
        if rng.one_in(4) {
            look_in(&world, &space, &state).await;
        }
        if rng.one_in(3) {
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(30)))).await;
        }
    }
    for reader in readers {
        reader.await.expect("nobody ends a reader");
    }
    if world.epoch.load(Ordering::Acquire) == epoch {
        while state.height() < world.ledger().blocks.len() as u64 {
            let batch = world.ledger().blocks[state.height() as usize].clone();
            durable.store(state.height() + 1, Ordering::Release);
            state.apply(state.height(), batch).await.expect("nothing disturbs it");
        }
        state.admit_followers().await;
        followers::wait_until_all_have_read(&world).await;
        quiesce(&world, &space, &state).await;
    }
}

async fn read(
    world: Arc<World>,
    state: Arc<Disaggregated>,
    durable: Arc<AtomicU64>,
    mut rng: Prng,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let snapshot = state.snapshot();
        let height = snapshot.height();
        assert!(height <= durable.load(Ordering::Acquire), "block {} is seen and not durable", height - 1);
        for _ in 0..rng.below(12) {
            if !world.check_one(&*snapshot, &mut rng).await {
                break;
            }
            if rng.one_in(3) {
                rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            }
        }
        drop(snapshot);
        rt::sleep(rng.duration(&(Duration::from_micros(10)..Duration::from_millis(2)))).await;
    }
}

/// A block becomes durable at once, soon, after the state has stopped holding its lock for it, or not at all.
fn become_durable(durable: &Arc<AtomicU64>, number: u64, is_fenced: bool, rng: &mut Prng) -> Durable<'static> {
    let durable = Arc::clone(durable);
    let after = match rng.below(16) {
        0 => rng.duration(&(Duration::ZERO..Duration::from_millis(120))),
        1..=5 => rng.duration(&(Duration::ZERO..Duration::from_millis(3))),
        _ => Duration::ZERO,
    };
    let fails = rng.one_in(20);
    Box::pin(async move {
        rt::sleep(after).await;
        if is_fenced {
            return Err(Error::Fenced);
        }
        if fails {
            return Err(Error::Busy);
        }
        durable.store(number + 1, Ordering::Release);
        Ok(())
    })
}

/// Has the peer vacate a memory node, or use one again.
fn vacate_one(world: &World, space: &AddressSpace, rng: &mut Prng) {
    if !world.vacates_fullest {
        space.set_vacated(rng.pick::<String>(&world.donors.names), rng.one_in(2));
        return;
    }
    let sections = space.sections();
    let count =
        |name: &String| sections.iter().filter(|section| space.donor_of(section.id) == Some(name.as_str())).count();
    if space.donors().iter().any(|donor| donor.vacated && count(&donor.address) > 0) {
        return;
    }
    let fullest = world.donors.names.iter().max_by_key(|name| count(name)).expect("there are donors");
    for name in &world.donors.names {
        space.set_vacated(name, name == fullest);
    }
}

/// Check 4, during the run. Lost subtables may leave unreachable records until the sweep finds them; nothing else may.
async fn look_in(world: &World, space: &AddressSpace, state: &Disaggregated) {
    let Ok(audit) = state.audit().await else { return };
    assert_eq!((audit.dangling, audit.unmarked), (0, 0), "{audit:?}");
    assert_eq!(audit.leased, audit.free + audit.live + audit.quarantined, "{audit:?}");
    // The state may not have heard of lost sections yet.
    assert!(space.sections().len() as u64 * space.section_bytes() <= world.budget_bytes, "{audit:?}");
}

/// Check 5, when all faults are over.
async fn quiesce(world: &World, space: &AddressSpace, state: &Disaggregated) {
    rt::sleep(Duration::from_secs(3)).await;
    let mut rest = None;
    for _ in 0..20 {
        let audit = state.audit().await.expect("nothing disturbs it");
        if audit.leaked == 0 && audit.leased <= space.budget_bytes() {
            rest = Some(audit);
            break;
        }
        rt::sleep(Duration::from_secs(1)).await;
    }
    let audit = rest.unwrap_or_else(|| panic!("something is leaked, or not given back"));
    assert_eq!((audit.dangling, audit.unmarked), (0, 0), "{audit:?}");
    assert_eq!(audit.leased, audit.free + audit.live + audit.quarantined, "{audit:?}");
    assert_eq!(audit.live, audit.index + audit.records + audit.superseded + audit.untold, "{audit:?}");
    assert!(audit.metadata_cache <= world.settings.metadata_cache_bytes as u64, "{audit:?}");
    assert!(audit.data_cache <= world.settings.data_cache_bytes as u64, "{audit:?}");
    let snapshot = state.snapshot();
    let expected = world.expected(snapshot.height());
    for number in 0..world.keys {
        let key = format!("k{number:03}");
        let found = snapshot.get(NAMESPACE, &key).await.expect("nothing disturbs it");
        let found = found.map(|found| (found.value, found.version));
        assert_eq!(found, expected.get(&key).cloned(), "{key} at the end");
    }
}

/// The store as one primary reaches it: its changes are rejected once there is a newer primary.
struct ReachableStore {
    world: Arc<World>,
    epoch: u64,
}

impl ReachableStore {
    fn check(&self) -> Result<(), storage::Error> {
        let newest = self.world.epoch.load(Ordering::Acquire);
        match newest == self.epoch {
            true => Ok(()),
            false => Err(storage::Error::Fenced { given: Epoch(self.epoch), newest: Epoch(newest) }),
        }
    }
}

#[async_trait::async_trait]
impl StateStore for ReachableStore {
    async fn get(&self, namespace: &str, key: &[u8], through: BlockNumber) -> Result<Option<Row>, storage::Error> {
        self.world.store.get(namespace, key, through).await
    }

    async fn get_many(&self, keys: &[(&str, &[u8])], through: BlockNumber) -> Result<Vec<Option<Row>>, storage::Error> {
        self.world.store.get_many(keys, through).await
    }

    async fn versions(
        &self,
        keys: &[(&str, &[u8])],
        through: BlockNumber,
    ) -> Result<Vec<Option<(Version, bool)>>, storage::Error> {
        self.world.store.versions(keys, through).await
    }

    async fn range(&self, query: RangeQuery<'_>) -> Result<storage::tables::RangePage, storage::Error> {
        self.world.store.range(query).await
    }

    async fn namespaces(&self) -> Result<Vec<String>, storage::Error> {
        self.world.store.namespaces().await
    }

    fn savepoint(&self) -> Savepoint {
        self.world.store.savepoint()
    }

    fn subscribe_savepoint(&self) -> WatchReceiver<u64> {
        self.world.store.subscribe_savepoint()
    }

    async fn materialize(&self, height: u64) -> Result<Savepoint, storage::Error> {
        self.check()?;
        self.world.store.materialize(height).await
    }

    async fn prune(&self, oldest: BlockNumber) -> Result<(), storage::Error> {
        self.check()?;
        self.world.store.prune(oldest).await
    }

    async fn confirm(&self) -> Result<(), storage::Error> {
        rt::sleep(Duration::from_micros(50)).await;
        self.check()
    }
}
