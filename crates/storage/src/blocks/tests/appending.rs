use base::ErrorKind;
use base::rt::simulation::{DiskOperation, Simulation};

use super::*;

/// Runs a test in a simulation of one node, twice.
fn simulate<F, Fut>(test: F)
where
    F: Fn(base::rt::simulation::Sim) -> Fut,
    Fut: Future<Output = ()> + Send + 'static,
{
    Simulation::new(11).check(test).expect("the run succeeds");
}

#[test]
fn blocks_are_read_back_in_every_way_before_and_after_opening_again() {
    for segment_bytes in [1, 6_000, 100_000_000] {
        simulate(move |_| async move {
            let blocks = chain(40, 3, 700);
            let (store, report) = open("/blocks", segment_bytes).await.expect("a new store opens");
            assert_eq!((report.height, report.segments, report.torn_tail), (0, 1, None));
            check_holds(&store, &[]);
            append_all(&store, &blocks).await;
            check_holds(&store, &blocks);
            assert_eq!(store.sync().await.expect("the disk is well"), 40);
            let (store, report) = open("/blocks", segment_bytes).await.expect("the store opens again");
            assert_eq!((report.height, &report.torn_tail, report.indexes_rebuilt), (40, &None, 0));
            assert!(segment_bytes == 100_000_000 || report.segments > 2, "{report:?}");
            check_holds(&store, &blocks);
        });
    }
}

#[test]
fn only_the_next_block_of_the_same_chain_is_taken() {
    simulate(|_| async {
        let blocks = chain(4, 5, 100);
        let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
        append_all(&store, &blocks[..2]).await;
        for block in [&blocks[0], &blocks[1], &blocks[3]] {
            let error = store.append(block.new_block()).await.expect_err("it is not the next block");
            assert!(matches!(error, Error::OutOfOrder { height: 2, .. }), "{error}");
            assert_eq!(error.kind(), ErrorKind::Rejected);
        }
        let stranger = NewBlock { previous_hash: [9; 32], ..blocks[2].new_block() };
        let error = store.append(stranger).await.expect_err("it continues another chain");
        assert!(matches!(error, Error::WrongPrevious { given: BlockNumber(2) }), "{error}");
        check_holds(&store, &blocks[..2]);
        append_all(&store, &blocks[2..]).await;
        check_holds(&store, &blocks);
    });
}

#[test]
fn owner_of_an_older_epoch_is_fenced_also_after_opening_again() {
    simulate(|_| async {
        let blocks = chain(4, 5, 100);
        let under = |block: usize, epoch| NewBlock { epoch: Epoch(epoch), ..blocks[block].new_block() };
        // Segments of one block each, so that the epoch is found across segments too.
        let (store, _) = open("/blocks", 1).await.expect("a new store opens");
        store.append(under(0, 3)).await.expect("any first epoch is taken");
        store.append(under(1, 3)).await.expect("the same epoch goes on");
        store.sync().await.expect("the disk is well");
        let (store, _) = open("/blocks", 1).await.expect("the store opens again");
        let error = store.append(under(2, 2)).await.expect_err("a newer epoch has written");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        store.append(under(2, 4)).await.expect("a newer epoch takes over");
        assert_eq!(store.append(under(3, 3)).await.expect_err("it is fenced now").kind(), ErrorKind::Fenced);
    });
}

#[test]
fn repeated_transaction_is_found_where_it_came_first() {
    simulate(|_| async {
        let mut blocks = chain(3, 8, 10);
        let id = TxId::from("replayed");
        blocks[0].transactions = vec![(TxId::from("other"), 0), (TxId::from(""), 7)];
        blocks[1].transactions = vec![(id.clone(), 0), (id.clone(), 9)];
        blocks[2].transactions = vec![(id.clone(), 9), (TxId::from(""), 7)];
        let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
        append_all(&store, &blocks).await;
        let place = store.find_transaction(&id).expect("the index is readable").expect("it was committed");
        assert_eq!((place.block.get(), place.index.get(), place.code), (1, 0, 0));
        assert_eq!(store.find_transaction(&TxId::from("")).expect("absence is no error"), None);
    });
}

#[test]
fn empty_block_and_block_in_many_parts_are_stored() {
    simulate(|_| async {
        let mut blocks = chain(3, 8, 10);
        blocks[0].payload = vec![];
        blocks[0].transactions = vec![];
        blocks[1].payload = (0..1000u32).map(|part| Bytes::copy_from_slice(&part.to_le_bytes())).collect();
        blocks[2].payload = vec![Bytes::new(), Bytes::from_static(b"x"), Bytes::new()];
        let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
        append_all(&store, &blocks).await;
        store.sync().await.expect("the disk is well");
        let (store, _) = open("/blocks", 1 << 20).await.expect("the store opens again");
        check_holds(&store, &blocks);
    });
}

#[test]
fn durable_height_follows_syncs_and_not_appends() {
    simulate(|_| async {
        let blocks = chain(3, 8, 10);
        let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
        let mut durable = store.subscribe_durable();
        append_all(&store, &blocks[..2]).await;
        assert_eq!((store.height(), store.durable_height()), (2, 0));
        let syncing = base::rt::spawn({
            let store = store.clone();
            async move { store.sync().await }
        });
        durable.wait_for(|height| *height == 2).await.expect("the store lives");
        assert_eq!(syncing.await.expect("the task ends").expect("the disk is well"), 2);
        append_all(&store, &blocks[2..]).await;
        assert_eq!((store.height(), store.durable_height()), (3, 2));
    });
}

#[test]
fn full_disk_refuses_a_block_and_takes_it_when_there_is_room() {
    simulate(|sim| async move {
        let node = sim.node("peer");
        let disk = node.disk();
        let run = node.spawn(async move {
            let blocks = chain(30, 12, 2_000);
            let (store, _) = open("/blocks", 9_000).await.expect("a new store opens");
            let mut refused = 0;
            for block in &blocks {
                disk.fill();
                // Small blocks may fit into what remains of the last allocation; all others are refused, and change
                // nothing.
                if let Err(error) = store.append(block.new_block()).await {
                    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
                    assert!(error.to_string().contains("ENOSPC"), "{error}");
                    refused += 1;
                    disk.set_capacity(None);
                    store.append(block.new_block()).await.expect("there is room now");
                }
                disk.set_capacity(None);
            }
            assert!(refused > 10, "{refused}");
            check_holds(&store, &blocks);
            store.sync().await.expect("the disk is well");
            let (store, report) = open("/blocks", 9_000).await.expect("the store opens again");
            assert_eq!(report.torn_tail, None);
            check_holds(&store, &blocks);
        });
        run.await.expect("the node does not crash");
    });
}

#[test]
fn half_written_block_is_undone_and_a_shorter_one_takes_its_place() {
    simulate(|sim| async move {
        let mut blocks = chain(8, 12, 2_000);
        for block in &mut blocks {
            block.payload = vec![Bytes::from(vec![1; 2_000])];
            block.transactions = vec![(TxId::from(format!("id{}", block.number)), 0)];
        }
        let (store, _) = open("/blocks", 9_000).await.expect("a new store opens");
        for block in &mut blocks {
            sim.inject_next("storage.blocks.append_torn", 1);
            let error = store.append(block.new_block()).await.expect_err("the disk fills up in the middle");
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            assert_eq!(store.height(), block.number);
            block.payload = vec![Bytes::from_static(b"shorter")];
            store.append(block.new_block()).await.expect("there is room for it");
        }
        check_holds(&store, &blocks);
        store.sync().await.expect("the disk is well");
        let (store, report) = open("/blocks", 9_000).await.expect("the store opens again");
        assert_eq!(report.torn_tail, None, "nothing is left of the longer records");
        check_holds(&store, &blocks);
    });
}

#[test]
fn failed_fsync_closes_the_store_until_it_is_opened_again() {
    simulate(|sim| async move {
        let node = sim.node("peer");
        let disk = node.disk();
        let run = node.spawn(async move {
            let blocks = chain(6, 12, 200);
            let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
            append_all(&store, &blocks[..2]).await;
            store.sync().await.expect("the disk is well");
            append_all(&store, &blocks[2..4]).await;
            disk.fail_next(DiskOperation::Sync, 1);
            let error = store.sync().await.expect_err("the fsync failed");
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            assert_eq!(store.durable_height(), 2);
            // A second fsync would succeed, and prove nothing about what the first one lost.
            assert!(store.sync().await.is_err());
            assert!(store.append(blocks[4].new_block()).await.is_err());
            assert_eq!(store.read(BlockNumber(1)).expect("reads go on"), Some(blocks[1].payload()));
            let (store, report) = open("/blocks", 1 << 20).await.expect("the store opens again");
            assert!(report.height >= 2, "{report:?}");
            append_all(&store, &blocks[report.height as usize..]).await;
            check_holds(&store, &blocks);
        });
        run.await.expect("the node does not crash");
    });
}

#[test]
fn one_fsync_serves_all_blocks_and_stores_that_wait() {
    simulate(|_| async {
        let group = GroupSync::new();
        let mut stores = Vec::new();
        for channel in 0..5 {
            let directory = Directory::open(format!("/channel{channel}")).await.expect("the directory opens");
            let (store, _) =
                BlockStore::open(directory, group.clone(), BlockStoreConfig::default()).await.expect("it opens");
            append_all(&store, &chain(10, channel, 50)).await;
            stores.push(store);
        }
        let before = crate::events::SyncRounds.value();
        let mut waiting = Vec::new();
        for store in stores.iter().flat_map(|store| std::iter::repeat_n(store, 20)) {
            let store = store.clone();
            waiting.push(base::rt::spawn(async move { store.sync().await }));
        }
        for sync in waiting {
            assert_eq!(sync.await.expect("the task ends").expect("the disk is well"), 10);
        }
        let rounds = crate::events::SyncRounds.value() - before;
        assert!((1..=3).contains(&rounds), "{rounds} rounds for 100 requests that came at once");
    });
}

#[test]
fn dropped_sync_strands_nobody() {
    simulate(|_| async {
        let blocks = chain(20, 4, 50);
        let (store, _) = open("/blocks", 1 << 20).await.expect("a new store opens");
        for block in &blocks {
            store.append(block.new_block()).await.expect("the block follows");
            let impatient = {
                let store = store.clone();
                base::rt::spawn(async move { store.sync().await })
            };
            base::rt::yield_now().await;
            impatient.abort();
            assert_eq!(store.sync().await.expect("the disk is well"), block.number + 1);
        }
    });
}

/// A whole-network simulation lost blocks that were reported durable: an fsync failed, the peer opened its store again
/// and found everything in the page cache, the next fsync succeeded without writing what the failed one had lost, and the
/// machine crashed.
#[test]
fn blocks_found_after_a_failed_fsync_survive_the_next_crash() {
    for seed in 0..40 {
        let run = Simulation::new(seed).run(move |sim| async move {
            let node = sim.node("peer");
            let disk = node.disk();
            let blocks = chain(7, 12, 900);
            let later = blocks.clone();
            let run = node.spawn(async move {
                // Segments so small that some begin between the failure and the crash.
                let (store, _) = open("/blocks", 2_500).await.expect("a new store opens");
                append_all(&store, &blocks[..2]).await;
                store.sync().await.expect("the disk is well");
                append_all(&store, &blocks[2..3]).await;
                disk.fail_next(DiskOperation::Sync, 1);
                if store.append(blocks[3].new_block()).await.is_ok() {
                    store.sync().await.expect_err("the fsync failed");
                }
                drop(store);
                let (store, report) = open("/blocks", 2_500).await.expect("the store opens again");
                append_all(&store, &blocks[report.height as usize..6]).await;
                store.sync().await.expect("the disk is well again")
            });
            let durable = run.await.expect("the node does not crash yet");
            node.crash();
            let check = node.spawn(async move {
                let (store, report) = open("/blocks", 2_500).await.expect("a crash leaves an openable store");
                assert!(report.height >= durable, "{durable} blocks were durable: {report:?}");
                check_holds(&store, &later[..report.height as usize]);
            });
            check.await.expect("the node does not crash again");
        });
        run.unwrap_or_else(|failure| panic!("{failure}"));
    }
}
