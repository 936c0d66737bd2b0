use std::time::Duration;

use base::rt::simulation::Simulation;

use super::*;
use crate::blocks::truncate;

async fn directory() -> Directory {
    Directory::open("/blocks").await.expect("the directory opens")
}

#[test]
fn a_cut_store_goes_on_with_other_blocks_where_it_was_cut() {
    for segment_bytes in [1, 3_000, 100_000_000] {
        for height in [1, 2, 5, 6, 11, 12] {
            Simulation::new(3)
                .check(move |_| async move {
                    let blocks = chain(12, 3, 700);
                    let (store, _) = open("/blocks", segment_bytes).await.expect("a new store opens");
                    append_all(&store, &blocks).await;
                    store.close().await.expect("the disk is well");
                    drop(store);
                    truncate(&directory().await, height as u64).await.expect("the disk is well");
                    let (store, report) = open("/blocks", segment_bytes).await.expect("the store opens again");
                    assert_eq!((report.height, &report.torn_tail), (height as u64, &None));
                    check_holds(&store, &blocks[..height]);
                    let mut rng = base::rt::simulation::Prng::new(99);
                    let other = TestBlock::after(Some(&blocks[height - 1]), &mut rng, 700);
                    store.append(other.new_block()).await.expect("another block takes the place");
                    store.sync().await.expect("the disk is well");
                    check_holds(&store, &[&blocks[..height], &[other]].concat());
                })
                .expect("the run succeeds");
        }
    }
}

#[test]
fn a_cut_that_a_crash_ends_leaves_a_beginning_and_can_be_done_again() {
    let mut ended = 0;
    for seed in 0..60 {
        let report = Simulation::new(seed).run(move |sim| async move {
            let blocks = chain(9, 3, 700);
            let held = blocks.clone();
            let node = sim.node("orderer");
            let appended = node.spawn(async move {
                let (store, _) = open("/blocks", 2_000).await.expect("a new store opens");
                append_all(&store, &held).await;
                store.close().await.expect("the disk is well");
            });
            appended.await.expect("nothing crashes it");
            let cutting = node.spawn(async { truncate(&directory().await, 3).await.expect("the disk is well") });
            base::rt::sleep(sim.rng().duration(&(Duration::ZERO..Duration::from_millis(10)))).await;
            node.crash();
            let crashed = cutting.await.is_err();
            let again = node.spawn(async move {
                let (store, report) = open("/blocks", 2_000).await.expect("what is left is a store");
                assert!((3..=9).contains(&report.height), "{report:?}");
                check_holds(&store, &blocks[..report.height as usize]);
                drop(store);
                truncate(&directory().await, 3).await.expect("the disk is well");
                let (store, _) = open("/blocks", 2_000).await.expect("the store opens");
                check_holds(&store, &blocks[..3]);
            });
            again.await.expect("nothing crashes it any more");
            crashed
        });
        ended += usize::from(report.expect("the run succeeds").value);
    }
    assert!(ended > 5, "{ended} cuts were ended by a crash");
}

/// Another block of the same lengths.
fn other(block: &TestBlock, previous: &TestBlock) -> TestBlock {
    let mut other = block.clone();
    other.header_hash[0] ^= 1;
    other.previous_hash = previous.header_hash;
    other.transactions.iter_mut().for_each(|(id, _)| *id = TxId::from(id.as_str().replace('-', "+")));
    other
}

/// Indexes were removed last. A crash brought one back beside a segment that had been truncated. Other blocks of the same
/// lengths were appended in place of the removed ones, and the index passed for theirs: the store did not open any more.
#[test]
fn no_index_of_what_was_cut_off_comes_back_for_other_blocks() {
    let mut cut_off = 0;
    for seed in 0..150 {
        let report = Simulation::new(seed).run(move |sim| async move {
            let blocks = chain(12, 3, 700);
            let (node, held) = (sim.node("orderer"), blocks.clone());
            let appended = node.spawn(async move {
                let (store, _) = open("/blocks", 2_000).await.expect("a new store opens");
                append_all(&store, &held).await;
                store.close().await.expect("the disk is well");
                drop(store);
                // Makes indexes durable, as if time had passed.
                let directory = directory().await;
                for name in directory.list().expect("the disk is well").iter().filter(|name| name.ends_with(".index")) {
                    let index = directory.open_file(name, false).expect("the disk is well");
                    index.sync().await.expect("the disk is well");
                }
                directory.sync().await.expect("the disk is well");
            });
            appended.await.expect("nothing crashes it");
            let cutting = node.spawn(async { truncate(&directory().await, 3).await.expect("the disk is well") });
            base::rt::sleep(sim.rng().duration(&(Duration::ZERO..Duration::from_millis(20)))).await;
            node.crash();
            let _ended = cutting.await;
            // The final close writes no index: an old one, if it came back, would stay.
            sim.inject("storage.blocks.index_missing", 1.0);
            let again = node.spawn(async move {
                let (store, report) = open("/blocks", 2_000).await.expect("what is left is a store");
                let height = report.height as usize;
                let mut new = blocks[..height].to_vec();
                for block in &blocks[height..] {
                    new.push(other(block, new.last().expect("a chain keeps its first block")));
                }
                append_all(&store, &new[height..]).await;
                check_holds(&store, &new);
                store.close().await.expect("the disk is well");
                drop(store);
                let (store, _) = open("/blocks", 2_000).await.expect("the store opens again");
                check_holds(&store, &new);
                height < 12
            });
            again.await.expect("nothing crashes it any more")
        });
        cut_off += usize::from(report.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).value);
    }
    assert!(cut_off > 20, "{cut_off} of them lost blocks");
}
