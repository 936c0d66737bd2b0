//! A coordinator that is cut off answers from its cache until its lease has run out. Meanwhile a new coordinator is
//! elected; it repairs the store's log at once, but answers clients only after the old lease is over.

use base::rt::simulation::Simulation;

use super::*;
use sift::testing::MEMORY_NODES;

const KEY: Bytes = Bytes::from_static(b"key");
const OLD: Bytes = Bytes::from_static(b"old");
const NEW: Bytes = Bytes::from_static(b"new");

async fn first(world: &World) -> Result<KvStore, Error> {
    let mut standby = Standby::new(world.group(), 0)?;
    // A value that was read once is answered from the cache.
    KvStore::take_over(standby.take_over().await?, world.sizes, KvConfig { cache_bytes: 1 << 20 }).await
}

/// Takes over without waiting for silence, like a standby whose clock is fast or that is cut off itself.
async fn second(world: &World) -> Result<KvStore, Error> {
    let mut standby = Standby::new(world.group(), 1)?;
    let recovered = standby.elect().await?.recover_without_waiting().await?;
    KvStore::take_over_recovered(recovered, world.sizes, world.options).await
}

async fn scenario(sim: Sim) {
    let world = World::found(&sim, 0, tables::Open::default()).await;
    let (old, cutting) = (world.clone(), sim.clone());
    let answered = Arc::new(Mutex::new(None));
    let last = Arc::clone(&answered);
    let is_up = CancellationToken::new();
    let up = is_up.clone();
    let reading = sim.node("p0").spawn(async move {
        let store = first(&old).await.expect("a majority is whole");
        store.put(KEY, OLD).await.expect("it serves");
        for node in &MEMORY_NODES[..old.memory_nodes] {
            cutting.cut("p0", node);
        }
        up.cancel();
        while let Ok(found) = store.get(&KEY).await {
            let value = found.map(|found| found.value);
            assert_eq!(value, Some(OLD), "the cache has it");
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(rt::now());
            rt::sleep(Duration::from_micros(100)).await;
        }
    });
    is_up.cancelled().await;
    let new = world.clone();
    let acknowledged = sim.node("p1").spawn(async move {
        let store = second(&new).await.expect("a majority is whole");
        store.put(KEY, NEW).await.expect("it serves");
        rt::now()
    });
    let acknowledged = acknowledged.await.expect("nothing crashes it");
    reading.await.expect("nothing crashes it");
    let answered = answered.lock().unwrap_or_else(PoisonError::into_inner).expect("it answers until its lease is over");
    assert!(
        answered < acknowledged,
        "stale: an answer {:?} after another value was acknowledged",
        answered - acknowledged
    );
}

#[test]
fn nobody_is_answered_while_an_earlier_lease_may_stand() {
    for seed in 0..40 {
        Simulation::new(seed).run(scenario).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn a_store_that_opens_at_once_is_caught() {
    plant(Mutant::OpenAtOnce);
    let failures = (0..40).filter_map(|seed| Simulation::new(seed).run(scenario).err());
    let caught = failures.filter(|failure| failure.to_string().contains("stale:")).count();
    plant(Mutant::None);
    assert!(caught >= 30, "caught {caught} times");
}
