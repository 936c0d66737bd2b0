//! Tests with one client and one node.

use std::collections::BTreeMap;

use base::rt::simulation::{DiskOperation, Sim, SimNode, Simulation};
use base::rt::{self, net};
use base::{ErrorKind, Version};
use wire::VersionRange;
use wire::hello::HelloAnswer;

use super::*;
use crate::state_store::StateStore;
use crate::state_store::tests::rows;
use crate::tables::{RangeQuery, Row};

pub fn simulate<F, Fut>(seed: u64, scenario: F)
where
    F: FnOnce(Sim, SimNode) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let run = Simulation::new(seed).time_max(LONG).run(|sim| async move {
        let node = sim.node("storage");
        node.start(|| async {
            let started = start().await.expect("the node starts");
            std::future::pending::<()>().await;
            drop(started);
        });
        rt::sleep(Duration::from_millis(50)).await;
        let task = sim.node("compute").spawn(scenario(sim.clone(), node));
        task.await.expect("nobody crashes the client");
    });
    run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
}

/// Live rows by namespace and key.
type ModelState = BTreeMap<(String, Vec<u8>), (Version, Bytes)>;

/// The rows of a chain after each of its blocks.
pub fn states(texts: &[String]) -> Vec<ModelState> {
    let mut state = ModelState::new();
    let mut states = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        for (namespace, key, version, value) in rows(number as u64, text) {
            match value {
                Some(value) => state.insert((namespace, key), (version, value)),
                None => state.remove(&(namespace, key)),
            };
        }
        states.push(state.clone());
    }
    states
}

pub async fn check_rows(store: &dyn StateStore, texts: &[String], from: usize) {
    for (number, state) in states(texts).iter().enumerate().skip(from) {
        let through = BlockNumber(number as u64);
        let mut found = BTreeMap::new();
        for namespace in store.namespaces().await.expect("names are readable") {
            let mut start = Bytes::new();
            loop {
                let page = store
                    .range(RangeQuery { namespace: &namespace, start: &start, end: b"", through, limit: 3 })
                    .await
                    .expect("rows are readable");
                for entry in page.entries {
                    found.insert((namespace.clone(), entry.key.to_vec()), (entry.version, entry.value));
                }
                match page.next {
                    Some(next) => start = next,
                    None => break,
                }
            }
        }
        assert_eq!(&found, state, "through block {number}");
        let keys: Vec<_> = state.keys().map(|(namespace, key)| (namespace.as_str(), &key[..])).collect();
        let rows = store.get_many(&keys, through).await.expect("rows are readable");
        let versions = store.versions(&keys, through).await.expect("rows are readable");
        for ((row, version), (expected, value)) in rows.into_iter().zip(versions).zip(state.values()) {
            assert_eq!(row, Some(Row { version: *expected, value: Some(value.clone()) }));
            assert_eq!(version, Some((*expected, true)));
        }
    }
}

#[test]
fn blocks_and_rows_are_there_as_if_they_were_here() {
    simulate(1, |_, _| async {
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
        let mut rng = Prng::new(7);
        let mut chain: Vec<TestBlock> = Vec::new();
        let mut savepoints = state.subscribe_savepoint();
        for number in 0..100 {
            let block = TestBlock::after(blocks.tip(), &mut rng);
            block.append(&blocks).await.expect("it follows");
            chain.push(block);
            // Visible at once, durable or not.
            assert_eq!(blocks.height(), number + 1);
            for block in [&chain[number as usize], rng.pick(&chain)] {
                let at = BlockNumber(block.number);
                let stored = blocks.read_stored(at).await.expect("it is there").expect("it was appended");
                assert_eq!((stored.header_hash, &stored.payload[..]), (block.header_hash, block.text.as_bytes()));
                assert_eq!(stored.transactions, block.transactions);
                assert_eq!(blocks.read(at).await.expect("it is there"), Some(stored.payload));
                assert_eq!(blocks.transactions(at).await.expect("it is there"), Some(stored.transactions));
                let found = blocks.number_by_hash(&block.header_hash).await.expect("it is there");
                assert_eq!(found, Some(at));
                let mut ids: Vec<_> = block.transactions.iter().map(|(id, _)| id.clone()).collect();
                ids.push(TxId::from("absent"));
                let places = blocks.find_transactions(&ids).await.expect("it is there");
                for (index, place) in places.iter().enumerate() {
                    let expected = block.transactions.get(index).map(|(_, code)| (at, index as u32, *code));
                    assert_eq!(place.map(|place| (place.block, place.index.get(), place.code)), expected);
                }
            }
            if rng.one_in(3) {
                assert_eq!(blocks.sync().await.expect("the disk works"), number + 1);
            }
        }
        assert_eq!(blocks.sync().await.expect("the disk works"), 100);
        assert_eq!(blocks.read(BlockNumber(100)).await.expect("absence is no error"), None);
        let page = blocks.read_page(BlockNumber(40), 10).await.expect("it is there");
        assert_eq!(page.iter().map(|block| block.number.get()).collect::<Vec<_>>(), (40..50).collect::<Vec<_>>());
        // The node materialises on its own and sends a notice.
        savepoints.wait_for(|height| *height >= 85).await.expect("the node goes on");
        let savepoint = state.materialize(100).await.expect("it works");
        assert_eq!((savepoint.height, savepoint.block_hash, savepoint.epoch), (100, chain[99].header_hash, Epoch(1)));
        assert_eq!(state.savepoint(), savepoint);
        let texts: Vec<_> = chain.iter().map(|block| block.text.clone()).collect();
        check_rows(&state, &texts, 0).await;
        state.confirm().await.expect("nobody is newer");
        state.prune(BlockNumber(90)).await.expect("it works");
        let error = state.get("cc", b"k1", BlockNumber(89)).await.expect_err("it was pruned");
        assert_eq!(error.kind(), ErrorKind::Retry);
        check_rows(&state, &texts, 90).await;
        let reader = RemoteStateStore::open_read_only(options(0)).await.expect("the node is there");
        check_rows(&reader, &texts, 90).await;
        assert_eq!(reader.materialize(100).await.expect_err("it only reads").kind(), ErrorKind::Rejected);
        assert_eq!(channels(ADDRESS, &Bytes::from_static(TOKEN)).await.expect("the node is there"), [CHANNEL]);
        for (channel, epoch) in [(CHANNEL, Epoch(1)), ("other", Epoch(0))] {
            let newest = newest_epoch(ADDRESS, &Bytes::from_static(TOKEN), channel).await;
            assert_eq!(newest.expect("the node is there"), epoch);
        }
        blocks.close().await.expect("the disk works");
    });
}

#[test]
fn an_append_that_does_not_follow_is_refused_here() {
    simulate(2, |_, _| async {
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let mut rng = Prng::new(7);
        let first = TestBlock::after(nothing(), &mut rng);
        first.append(&blocks).await.expect("it follows");
        let again = first.append(&blocks).await.expect_err("it does not follow");
        assert!(matches!(again, Error::OutOfOrder { height: 1, .. }), "{again}");
        let other = TestBlock { number: 1, ..TestBlock::after(nothing(), &mut rng) };
        assert!(matches!(other.append(&blocks).await, Err(Error::WrongPrevious { .. })));
        blocks.sync().await.expect("what was refused has changed nothing");
    });
}

#[test]
fn an_older_primary_is_fenced_from_the_opening_of_a_newer_one_on() {
    simulate(3, |sim, node| async move {
        let mut rng = Prng::new(7);
        let old = RemoteBlocks::open(options(3)).await.expect("the node is there");
        let old_state = RemoteStateStore::open(options(3)).await.expect("the node is there");
        TestBlock::after(old.tip(), &mut rng).append(&old).await.expect("it follows");
        old.sync().await.expect("the disk works");
        let new = RemoteBlocks::open(options(4)).await.expect("the node is there");
        assert_eq!(new.height(), 1);
        TestBlock::after(old.tip(), &mut rng).append(&old).await.expect("it is not sent yet");
        assert_eq!(old.sync().await.expect_err("a newer one is there").kind(), ErrorKind::Fenced);
        assert_eq!(old_state.materialize(9).await.expect_err("a newer one is there").kind(), ErrorKind::Fenced);
        assert_eq!(old_state.confirm().await.expect_err("a newer one is there").kind(), ErrorKind::Fenced);
        assert_eq!(old_state.prune(BlockNumber(0)).await.expect_err("a newer one is there").kind(), ErrorKind::Fenced);
        // Across crashes too.
        node.crash();
        rt::sleep(Duration::from_millis(10)).await;
        node.restart();
        assert_eq!(RemoteBlocks::open(options(4)).await.expect_err_or_retry().await.height(), 1);
        let fenced = RemoteBlocks::open(options(3)).await.expect_err("a newer one was there");
        assert_eq!(fenced.kind(), ErrorKind::Fenced);
        drop(sim);
    });
}

#[test]
fn an_epoch_is_given_once_and_fences_those_before() {
    simulate(5, |_, node| async move {
        let token = Bytes::from_static(TOKEN);
        let begin = || begin_epoch(ADDRESS, &token, CHANNEL);
        assert_eq!(begin().await.expect("the node is there"), Epoch(1), "also of a channel that is not there yet");
        let old = RemoteBlocks::open(options(1)).await.expect("it has begun");
        let other = rt::spawn(async { begin_epoch(ADDRESS, &Bytes::from_static(TOKEN), CHANNEL).await });
        let mut epochs = [begin().await, other.await.expect("it ends")].map(|epoch| epoch.expect("the node is there"));
        epochs.sort();
        assert_eq!(epochs, [Epoch(2), Epoch(3)]);
        TestBlock::after(old.tip(), &mut Prng::new(7)).append(&old).await.expect("it is not sent yet");
        assert_eq!(old.sync().await.expect_err("later ones have begun").kind(), ErrorKind::Fenced);
        let error = RemoteBlocks::open(options(2)).await.expect_err("a later one has begun");
        assert_eq!(error.kind(), ErrorKind::Fenced);
        // If two nodes try to succeed the same primary, one does.
        let after = |newest| begin_epoch_after(ADDRESS, &token, CHANNEL, Epoch(newest));
        let other =
            rt::spawn(async { begin_epoch_after(ADDRESS, &Bytes::from_static(TOKEN), CHANNEL, Epoch(3)).await });
        let outcomes = [after(3).await, other.await.expect("it ends")];
        assert_eq!(outcomes.iter().filter(|outcome| matches!(outcome, Ok(Epoch(4)))).count(), 1, "{outcomes:?}");
        let refused = outcomes.into_iter().find_map(Result::err).expect("one is refused");
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        // Across crashes too.
        node.crash();
        rt::sleep(Duration::from_millis(10)).await;
        node.restart();
        let mut begun = begin().await;
        while begun.as_ref().is_err_and(|error| error.kind() == ErrorKind::Retry) {
            rt::sleep(Duration::from_millis(50)).await;
            begun = begin().await;
        }
        assert_eq!(begun.expect("the node is back"), Epoch(5));
        assert_eq!(after(4).await.expect_err("a later one has begun").kind(), ErrorKind::Fenced);
        let error = begin_epoch(ADDRESS, &Bytes::from_static(b"a tokem"), CHANNEL).await.expect_err("a wrong token");
        assert_eq!(error.kind(), ErrorKind::Rejected);
    });
}

#[test]
fn an_epoch_whose_candidate_went_away_does_not_refuse_those_after_it() {
    simulate(9, |sim, _| async move {
        let token = Bytes::from_static(TOKEN);
        assert_eq!(begin_epoch(ADDRESS, &token, CHANNEL).await.expect("the node is there"), Epoch(1));
        sim.inject_next("storage.node.epoch_written", 1);
        let breaking = sim.clone();
        sim.call_after(Duration::from_millis(50), move || breaking.break_links("compute", "storage"));
        begin_epoch_after(ADDRESS, &token, CHANNEL, Epoch(1)).await.expect_err("the link breaks before the answer");
        let newest = newest_epoch(ADDRESS, &token, CHANNEL).await.expect("the node is there");
        assert_eq!(newest, Epoch(2), "it was written");
        let next = begin_epoch_after(ADDRESS, &token, CHANNEL, newest).await;
        assert_eq!(next.expect("no later one has begun"), Epoch(3));
    });
}

/// Retries while the node may not listen yet.
trait OrRetry {
    async fn expect_err_or_retry(self) -> RemoteBlocks;
}

impl OrRetry for Result<RemoteBlocks, Error> {
    async fn expect_err_or_retry(self) -> RemoteBlocks {
        let mut outcome = self;
        for _ in 0..100 {
            match outcome {
                Ok(blocks) => return blocks,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
            }
            rt::sleep(Duration::from_millis(50)).await;
            outcome = RemoteBlocks::open(options(4)).await;
        }
        panic!("the node does not come back")
    }
}

#[test]
fn who_may_not_in_is_told_why() {
    simulate(4, |_, _| async {
        let refused =
            |options: RemoteStoreConfig| async move { RemoteBlocks::open(options).await.expect_err("it may not") };
        let error = refused(RemoteStoreConfig { token: Bytes::from_static(b"a tokem"), ..options(1) }).await;
        assert!(error.to_string().contains("token") && error.kind() == ErrorKind::Rejected, "{error}");
        for name in ["..", "a/b", "A", "alpha~new", &"a".repeat(250)] {
            let error = refused(RemoteStoreConfig { channel: name.to_owned(), ..options(1) }).await;
            assert!(matches!(error.kind(), ErrorKind::Rejected), "{name}: {error}");
        }
        let error = RemoteStateStore::open_read_only(options(1)).await.expect_err("nobody made the channel");
        assert!(error.to_string().contains("no channel alpha"), "{error}");
        let error = refused(RemoteStoreConfig { address: "elsewhere".to_owned(), ..options(1) }).await;
        assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
        // Another version of the messages.
        let link = net::connect(ADDRESS).await.expect("the node is there");
        let caller = base::rt::net::rpc::RpcClient::new(link, 1, |_| {});
        let mut hello = message::Hello {
            versions: VersionRange::new(3, 4),
            purpose: LinkPurpose::Appender,
            epoch: Epoch(1),
            token: Bytes::from_static(TOKEN),
            channel: CHANNEL.to_owned(),
        };
        let refused = caller.call(hello.encode()).await.expect("the node names its versions");
        assert_eq!(refused[..], HelloAnswer::refuse(PROTOCOL_VERSIONS).encode());
        hello.versions = VersionRange::new(1, 4);
        let opened = caller.call(hello.encode()).await.expect("it may try again");
        assert_eq!(opened[..12], HelloAnswer::accept(PROTOCOL_VERSIONS, 2).encode());
        let again = caller.call(hello.encode()).await.expect_err("once is enough");
        assert_eq!(again.kind(), ErrorKind::Rejected);
    });
}

#[test]
fn a_node_that_stops_in_order_leaves_everything_in_its_tables() {
    let run = Simulation::new(5).time_max(LONG).run(|_| async {
        let node = start().await.expect("the node starts");
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let mut rng = Prng::new(7);
        for _ in 0..5 {
            TestBlock::after(blocks.tip(), &mut rng).append(&blocks).await.expect("it follows");
        }
        blocks.sync().await.expect("the disk works");
        drop(blocks);
        node.stop().await.expect("it stops");
        drop(node);
        rt::sleep(Duration::from_secs(1)).await;
        let node = start().await.expect("the node starts");
        let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
        assert_eq!(state.savepoint().height, 5);
        drop(node);
    });
    run.expect("the run is whole");
}

/// The savepoint moves when enough blocks or bytes wait, and not for every block.
#[test]
fn a_savepoint_is_for_many_blocks() {
    const BLOCKS: u64 = 150;
    const BLOCK_BYTES: usize = 1 << 20;
    simulate(7, |_, _| async {
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
        let mut savepoints = state.subscribe_savepoint();
        let counting = rt::spawn(async move {
            let mut moves = 0;
            while *savepoints.borrow_and_update() < BLOCKS - MATERIALIZE_BLOCKS {
                savepoints.changed().await.expect("the node goes on");
                moves += 1;
            }
            moves
        });
        let mut rng = Prng::new(7);
        let value = "v".repeat(BLOCK_BYTES);
        for number in 0..BLOCKS {
            let block = TestBlock::after(blocks.tip(), &mut rng);
            TestBlock { text: format!("cc k{number} {value}\n"), ..block }.append(&blocks).await.expect("it follows");
        }
        blocks.sync().await.expect("the disk works");
        let moves = counting.await.expect("nobody ends it");
        // Some durable blocks may not be prepared yet when it begins.
        let due = BLOCKS / MATERIALIZE_BLOCKS.min(MATERIALIZE_BYTES / BLOCK_BYTES as u64);
        assert!(moves <= 2 * due, "the savepoint moved {moves} times, where {due} are due");
    });
}

/// When the node cannot materialise any more, it refuses appends in time and for good: the channel must be opened again.
#[test]
fn appends_are_refused_when_rows_cannot_be_made() {
    simulate(8, |sim, _| async move {
        sim.inject("storage.node.materializing", 1.0);
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let mut rng = Prng::new(7);
        let appending = async {
            for _ in 0..2 * SAVEPOINT_LAG_BLOCKS_MAX {
                // The key is too long for a row.
                let block = TestBlock::after(blocks.tip(), &mut rng);
                TestBlock { text: format!("cc {}\n", "k".repeat(100_000)), ..block }.append(&blocks).await?;
            }
            blocks.sync().await
        };
        let appended = rt::timeout(RESPONSE_TIMEOUT, appending).await.expect("it is answered in time");
        let error = appended.expect_err("rows cannot be made");
        assert!(!matches!(error.kind(), ErrorKind::Retry | ErrorKind::Ambiguous), "{error}");
    });
}

/// A disk failed for a moment. The node opened the channel again for the primary's next appends, but the same primary's
/// link for reading still read the earlier store. It did not find transactions of durable blocks, so this peer called a
/// repeated transaction new while all others called it a duplicate.
#[test]
fn a_read_after_a_channel_is_opened_again_reads_the_new_one() {
    simulate(5, |_, node| async move {
        let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
        let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
        let mut savepoints = state.subscribe_savepoint();
        let mut rng = Prng::new(11);
        let first = TestBlock::after(blocks.tip(), &mut rng);
        first.append(&blocks).await.expect("it follows");
        blocks.sync().await.expect("the disk works");
        let places = |block: &TestBlock| {
            let ids: Vec<TxId> = block.transactions.iter().map(|(id, _)| id.clone()).collect();
            let blocks = &blocks;
            async move { blocks.find_transactions(&ids).await.expect("the node answers") }
        };
        assert!(places(&first).await.iter().all(Option::is_some));

        node.disk().set_failing(true);
        let second = TestBlock::after(blocks.tip(), &mut rng);
        second.append(&blocks).await.expect("it waits here");
        rt::sleep(Duration::from_millis(30)).await;
        node.disk().set_failing(false);
        blocks.sync().await.expect("the block is sent again");
        assert!(places(&second).await.iter().all(Option::is_some), "a durable block is found");

        // No client waits for notices of the earlier channel either.
        let other = RemoteStateStore::open(options(1)).await.expect("the node is there");
        state.get("cc", b"k1", BlockNumber(1)).await.expect("the node answers");
        other.materialize(2).await.expect("the disk works");
        let told = rt::timeout(Duration::from_secs(5), savepoints.wait_for(|height| *height == 2)).await;
        assert!(told.is_ok(), "a savepoint is told to all");
    });
}

/// The disk failed while rows were made durable. The node opened the channel again, but the tables belong to the engine,
/// which takes no more writes after a failed fsync. The peer waited for its savepoint forever, and then stopped committing,
/// while the node called itself healthy.
#[test]
fn an_engine_that_takes_no_more_writes_ends_the_node() {
    let run = Simulation::new(6).time_max(LONG).run(|sim| async move {
        let node = sim.node("storage");
        let disk = node.disk();
        let (reported, reports) = base::rt::channel::oneshot();
        let served = node.spawn(async move {
            let started = start().await.expect("the node starts");
            let error = started.failed().await;
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            // It has ended despite the error.
            let _ = started.stop().await;
            drop(started);
            reported.send(()).expect("the client waits");
            let again = loop {
                match start().await {
                    Ok(again) => break again,
                    // The earlier links are still ending.
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Retry, "{error}"),
                }
                rt::sleep(Duration::from_millis(10)).await;
            };
            again.failed().await
        });
        rt::sleep(Duration::from_millis(50)).await;
        let client = sim.node("compute").spawn(async move {
            let blocks = RemoteBlocks::open(options(1)).await.expect("the node is there");
            let state = RemoteStateStore::open(options(1)).await.expect("the node is there");
            let mut rng = Prng::new(11);
            TestBlock::after(blocks.tip(), &mut rng).append(&blocks).await.expect("it follows");
            blocks.sync().await.expect("the disk works");
            disk.fail_next(DiskOperation::Sync, 1);
            rt::timeout(Duration::from_secs(5), state.materialize(1)).await.ok();
            reports.await.expect("the node notices");
            rt::sleep(Duration::from_secs(1)).await;
            let savepoint = state.materialize(1).await.expect("the node was opened again");
            assert_eq!(savepoint.height, 1);
        });
        client.await.expect("nobody crashes the client");
        drop(served);
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}
