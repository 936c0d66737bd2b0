//! A memory node that was cut off comes back with its memory, and gets only the data that it lacks.

use base::rt::simulation::Simulation;

use super::*;

/// Blocks that are written while it is cut off.
const AWAY: u64 = 3;
/// Records that are kept.
const RECORDS: u64 = 2500;

/// A group, erasure-coded in every second seed.
async fn formatted(sim: &Sim, memory_nodes: usize, log_bytes: u64) -> World {
    let seed = sim.seed();
    let (memory_bytes, data_shares) = (256 << 10, 1 + (seed % 2) as u32 * (memory_nodes as u32 / 2));
    let layout = GroupLayout { log_bytes, unlogged_bytes: 64, memory_bytes, block_bytes: 64, data_shards: data_shares };
    let (truth, provider) = (Arc::new(Truth::new(sim)), SimProvider::new(sim));
    let world = World { sim: sim.clone(), provider, truth, memory_nodes, layout, lie: None };
    (0..memory_nodes).for_each(|which| world.start_memory_node(which));
    testing::format(sim, world.group(Arc::new(world.provider.clone()))).await;
    world
}

/// The address of a block.
fn at(block: u64) -> u64 {
    64 + block % 4096 * 64
}

async fn write(coordinator: &Coordinator, block: u64, value: u64) {
    let bytes = Bytes::from(value.to_le_bytes().repeat(BLOCK / 8));
    coordinator.write(at(block), bytes).await.expect("a majority is there");
}

async fn until_live(coordinator: &Coordinator, is_whole: bool) {
    while (coordinator.status().live == 3) != is_whole {
        rt::sleep(Duration::from_millis(1)).await;
    }
}

async fn scenario(sim: Sim) -> [u64; 2] {
    let world = formatted(&sim, 3, 8192).await;
    let cutting = sim.clone();
    let copied = sim.node("p0").spawn(async move {
        let group = world.group(Arc::new(world.provider.clone()));
        let mut standby = Standby::new(group, 0).expect("the group is good");
        let coordinator = standby.take_over().await.expect("a majority is whole");
        coordinator.set_unlogged_recovered();
        for block in 0..200 {
            write(&coordinator, block * 20, block).await;
        }
        coordinator.wait_applied().await.expect("it serves");
        cutting.break_links("p0", "m1");
        cutting.cut("p0", "m1");
        for block in 0..AWAY {
            write(&coordinator, block * 1000 + 7, 1000 + block).await;
        }
        until_live(&coordinator, false).await;
        cutting.heal_all();
        until_live(&coordinator, true).await;
        let partly = coordinator.status().copied_bytes;
        // From now on without one of the others: reads need the node that came back.
        cutting.break_links("p0", "m0");
        cutting.cut("p0", "m0");
        for block in 0..AWAY {
            let bytes = coordinator.read(at(block * 1000 + 7), BLOCK).await.expect("it serves");
            assert_eq!(value_of(&bytes), 1000 + block);
        }
        for block in 0..200 {
            let bytes = coordinator.read(at(block * 20), BLOCK).await.expect("it serves");
            assert_eq!(value_of(&bytes), block);
        }
        // Much longer than the log.
        for block in 0..400 {
            write(&coordinator, block * 10, 2000 + block).await;
        }
        cutting.heal_all();
        until_live(&coordinator, true).await;
        [partly, coordinator.status().copied_bytes - partly]
    });
    copied.await.expect("nothing crashes it")
}

#[test]
fn a_node_that_kept_its_memory_gets_what_was_written_while_it_was_away() {
    for seed in 0..6 {
        let report = Simulation::new(seed).run(scenario);
        let [partly, wholly] = report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).value;
        // The regions of the blocks that were written, and the region of the unlogged memory.
        assert!(partly <= 8192 * (AWAY + 1), "seed {seed}: {partly} bytes were copied");
        assert!(
            wholly >= 256 << 10,
            "seed {seed}: {wholly} bytes were copied, of a node that lacks more than the log has"
        );
    }
}

/// Writes continue while the node comes back. The log is read from a node that is cut off for a while, so that the
/// others commit and apply later entries. Returns how often the node came back.
async fn busy(sim: Sim) -> u64 {
    let world = formatted(&sim, 5, 8192).await;
    let cutting = sim.clone();
    let checked = sim.node("p0").spawn(async move {
        let group = world.group(Arc::new(world.provider.clone()));
        let mut standby = Standby::new(group, 0).expect("the group is good");
        let coordinator = standby.take_over().await.expect("a majority is whole");
        coordinator.set_unlogged_recovered();
        let (mut value, mut returned) = (0_u64, 0);
        for _ in 0..2 {
            while coordinator.status().live < 5 && coordinator.is_serving() {
                rt::sleep(Duration::from_millis(1)).await;
            }
            cutting.break_links("p0", "m1");
            cutting.cut("p0", "m1");
            while coordinator.status().live == 5 {
                rt::sleep(Duration::from_millis(1)).await;
            }
            cutting.heal_all();
            let (slowing, joining) = (cutting.clone(), coordinator.clone());
            let slow = rt::spawn(async move {
                // The log is being read from the first.
                while joining.status().joining == 0 && joining.is_serving() {
                    rt::sleep(Duration::from_micros(20)).await;
                }
                slowing.cut("p0", "m0");
                rt::sleep(Duration::from_millis(8)).await;
                slowing.heal_all();
            });
            while coordinator.status().lost > 0 || coordinator.status().joining > 0 {
                value += 1;
                let bytes = Bytes::from(value.to_le_bytes().repeat(BLOCK / 8));
                if coordinator.write(at(value * 61), bytes).await.is_err() {
                    return returned;
                }
            }
            slow.await.expect("nothing panics");
            let copies = coordinator.status().live == 5;
            returned += u64::from(copies);
            // Without erasure coding, each node is read; with it, reads need the shards of this node when others are
            // missing.
            for value in (value.saturating_sub(400).max(1)..=value).filter(|_| copies) {
                let copies = match world.layout.is_erasure_coded() {
                    false => coordinator.read_each(at(value * 61), BLOCK).await,
                    true => coordinator.read(at(value * 61), BLOCK).await.map(|copy| vec![copy]),
                };
                let Ok(copies) = copies else { return returned };
                copies.iter().for_each(|copy| assert_eq!(value_of(copy), value, "of {} copies", copies.len()));
            }
        }
        returned
    });
    checked.await.expect("nothing crashes it")
}

#[test]
fn what_is_written_while_a_node_comes_back_reaches_it() {
    let mut returned = 0;
    for seed in 0..12 {
        let report = Simulation::new(seed).run(busy);
        returned += report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).value;
    }
    assert!(returned >= 12, "the node came back {returned} times");
}

/// A record that is kept has more entries after it than a node may have outstanding verbs. A node that came back had to
/// get all of them at once, and so was lost again, for ever.
async fn kept(sim: Sim) -> u64 {
    let world = formatted(&sim, 3, 1 << 20).await;
    let cutting = sim.clone();
    let checked = sim.node("p0").spawn(async move {
        let group = world.group(Arc::new(world.provider.clone()));
        let coordinator = Standby::new(group.clone(), 0).expect("the group is good").take_over().await;
        let coordinator = coordinator.expect("a majority is whole");
        coordinator.set_unlogged_recovered();
        until_live(&coordinator, true).await;
        cutting.break_links("p0", "m1");
        cutting.cut("p0", "m1");
        let record = |number: u64| Bytes::from(number.to_le_bytes().repeat(1 + number as usize % 9));
        for number in 1..=RECORDS {
            assert_eq!(coordinator.append_record(record(number)).await, Ok(number));
        }
        cutting.heal_all();
        let back = rt::timeout(Duration::from_secs(5), until_live(&coordinator, true)).await;
        back.expect("it comes back");
        coordinator.step_down();
        // It got the same data as the others.
        cutting.break_links("p0", "m0");
        cutting.cut("p0", "m0");
        let next = Standby::new(group, 0).expect("the group is good").take_over().await.expect("two are whole");
        let found = next.recovered().iter().map(|entry| entry.writes[0].bytes.clone());
        assert!(found.eq((1..=RECORDS).map(record)), "all records, in order");
    });
    checked.await.expect("nothing crashes it");
    1
}

#[test]
fn a_node_comes_back_however_many_records_are_kept() {
    const { assert!(RECORDS as usize > sift::coordinator::PENDING_VERBS_MAX) };
    for seed in 0..2 {
        Simulation::new(seed).run(kept).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}
