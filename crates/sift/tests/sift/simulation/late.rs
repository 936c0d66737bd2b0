//! Takeovers in which memory nodes with complete copies are slower than a blank node, or slower than a time limit that
//! ignores the length of the log.

use async_trait::async_trait;
use base::rt::simulation::Simulation;
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::{Credential, Endpoint, HostConfig};

use super::*;

/// Longer than a takeover waits for others once a majority has answered.
const LATE: Duration = Duration::from_millis(8);
const LATE_TIMEOUT: Duration = Duration::from_secs(3);

/// A network on which some links are slow.
struct Slow {
    inner: SimProvider,
    shape: ShapingConfig,
    /// Only links to this address are slow; all links, if there is none.
    only: Option<&'static str>,
}

#[async_trait]
impl Provider for Slow {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, rma::Error> {
        match self.only.is_none_or(|only| only == address) {
            true => ShapedProvider::new(Arc::new(self.inner.clone()), self.shape).connect(address, credential).await,
            false => self.inner.connect(address, credential).await,
        }
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, rma::Error> {
        self.inner.host(address, options).await
    }

    fn name(&self) -> &'static str {
        "slow"
    }
}

/// A group of three, one of whose nodes takes longer to fence.
async fn formatted(sim: &Sim, layout: GroupLayout, late_fence: Option<usize>) -> World {
    let (truth, provider) = (Arc::new(Truth::new(sim)), SimProvider::new(sim));
    let world = World { sim: sim.clone(), provider, truth, memory_nodes: 3, layout, lie: None };
    for which in 0..3 {
        let fence_takes = if late_fence == Some(which) { LATE } else { Duration::ZERO };
        let late = move |inner| Arc::new(LyingHost { inner, lie: None, fence_takes }) as Arc<dyn Host>;
        testing::start_memory_node(sim, &world.provider, which, layout, false, late);
    }
    testing::format(sim, world.group(Arc::new(world.provider.clone()))).await;
    world
}

fn value(byte: u8) -> Bytes {
    vec![byte; BLOCK].into()
}

/// A node that had restarted blank was part of the majority after which the takeover stopped waiting: it was fenced and
/// read at once. A complete node that was late was left out, and there was never a majority of copies.
async fn blank_is_first(sim: Sim, late_fence: bool) -> u64 {
    let layout =
        GroupLayout { log_bytes: 1 << 20, unlogged_bytes: 0, memory_bytes: 4096, block_bytes: 64, data_shards: 1 };
    let world = formatted(&sim, layout, late_fence.then_some(1)).await;
    let (group, blank) = (world.group(Arc::new(world.provider.clone())), sim.node("m2"));
    let first = sim.node("p0").spawn(async move {
        let coordinator = Standby::new(group, 0).expect("the group is good").take_over().await.expect("all are whole");
        coordinator.write(0, value(7)).await.expect("it serves");
        coordinator.wait_applied().await.expect("it serves");
        blank.crash();
        coordinator.step_down();
        blank.restart();
    });
    first.await.expect("nothing crashes it");
    let shape = ShapingConfig::from_latency(if late_fence { Duration::ZERO } else { LATE / 2 });
    let group = world.group(Arc::new(Slow { inner: world.provider.clone(), shape, only: Some("m1") }));
    let second = sim.node("p1").spawn(async move {
        let mut standby = Standby::new(group, 1).expect("the group is good");
        let taken = rt::timeout(LATE_TIMEOUT, standby.take_over()).await.expect("late is not lost");
        let coordinator = taken.expect("two are whole");
        assert_eq!(coordinator.read(0, BLOCK).await.expect("it serves"), value(7));
    });
    second.await.expect("nothing crashes it");
    1
}

#[test]
fn a_blank_node_does_not_count_among_those_that_are_waited_for() {
    for (seed, late_fence) in (0..6).flat_map(|seed| [(seed, true), (seed, false)]) {
        let run = Simulation::new(seed).run(move |sim| blank_is_first(sim, late_fence));
        run.unwrap_or_else(|failure| panic!("seed {seed}, late to be fenced: {late_fence}: {failure}"));
    }
}

/// The whole log had to be read, written and replayed within the time that a node may take to answer one message.
async fn log_is_long(sim: Sim) -> u64 {
    const ENTRY_BYTES: u64 = 1 << 20;
    const ENTRIES: u64 = 18;
    let memory_bytes = ENTRY_BYTES;
    let layout = GroupLayout { log_bytes: 32 << 20, unlogged_bytes: 0, memory_bytes, block_bytes: 64, data_shards: 1 };
    let world = formatted(&sim, layout, None).await;
    let longer = |mut group: SiftGroup| {
        group.timing.lease = Duration::from_millis(300);
        group
    };
    let (group, cutting) = (longer(world.group(Arc::new(world.provider.clone()))), sim.clone());
    let first = sim.node("p0").spawn(async move {
        let coordinator = Standby::new(group, 0).expect("the group is good").take_over().await.expect("all are whole");
        coordinator.wait_applied().await.expect("it serves");
        cutting.break_links("p0", "m2");
        cutting.cut("p0", "m2");
        for entry in 0..ENTRIES {
            let bytes = vec![entry as u8; ENTRY_BYTES as usize].into();
            coordinator.write(0, bytes).await.expect("a majority is there");
        }
        coordinator.step_down();
        // From now on the node that lacks all of these entries is needed.
        cutting.heal_all();
    });
    first.await.expect("nothing crashes it");
    sim.cut("p1", "m0");
    // A second for 64 pieces; a node has to answer within a tenth.
    let shape = ShapingConfig { latency: Duration::ZERO, bytes_per_second: 64 << 20 };
    let group = longer(world.group(Arc::new(Slow { inner: world.provider.clone(), shape, only: None })));
    assert!(ENTRIES * ENTRY_BYTES > shape.bytes_per_second / 5, "longer than a node may take to answer");
    let (provider, most) = (world.provider.clone(), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let counted = Arc::clone(&most);
    let _watching = rt::spawn(async move {
        loop {
            counted.fetch_max(provider.counts().in_flight, std::sync::atomic::Ordering::Relaxed);
            rt::sleep(Duration::from_micros(1)).await;
        }
    })
    .abort_on_drop();
    let second = sim.node("p1").spawn(async move {
        let mut standby = Standby::new(group, 1).expect("the group is good");
        let taken = rt::timeout(LATE_TIMEOUT, standby.take_over()).await.expect("what comes slowly is waited for");
        let coordinator = taken.expect("two are whole");
        let bytes = coordinator.read(0, BLOCK).await.expect("it serves");
        assert_eq!(bytes, value(ENTRIES as u8 - 1));
    });
    second.await.expect("nothing crashes it");
    most.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn a_log_is_read_and_replayed_for_as_long_as_it_comes_a_bounded_part_at_a_time() {
    let run = Simulation::new(1).run(log_is_long);
    let most = run.unwrap_or_else(|failure| panic!("{failure}")).value;
    assert!((1..=50).contains(&most), "{most} verbs in flight to two nodes, of a log of 32 pieces each");
}
