//! Tests of the key-value store over shared memory within one process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::{self, CancellationToken};
use kv::fault::{Mutant, plant};
use kv::{ChangeEvent, Error, KvConfig, KvStore, Precondition, StoreGeometry, SwapOutcome, VersionedValue};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    Coordinator, GroupId, GroupLayout, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup,
    SiftTimeouts, Standby,
};

const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const GROUP: GroupId = GroupId(7);
/// Few buckets, so that chains are long; a small log, so that it wraps around often.
const SIZES: StoreGeometry = StoreGeometry { log_bytes: 8192, buckets: 8, blocks: 1024, block_bytes: 128 };
/// The cache holds only what it must.
const SMALL: KvConfig = KvConfig { cache_bytes: 2000 };

struct World {
    group: SiftGroup,
    _nodes: Vec<Arc<LogMemoryNode>>,
}

impl World {
    async fn start(name: &str, sizes: StoreGeometry) -> World {
        let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
        let layout: GroupLayout = sizes.group_layout(64 << 10).expect("good sizes");
        let place = |slot| MemoryNodeAddress {
            address: format!("local:kv-{name}-{slot}"),
            name: "kv".to_owned(),
            token: TOKEN,
        };
        let timing = SiftTimeouts {
            // No test depends on how fast this machine is.
            lease: Duration::from_millis(1000),
            election_timeout: Duration::from_millis(20),
            attempt_max: Duration::from_millis(500),
            ..SiftTimeouts::default()
        };
        let group = SiftGroup { id: GROUP, layout, nodes: (0..3).map(place).collect(), provider, timing };
        let mut nodes = Vec::new();
        for place in &group.nodes {
            let options = HostConfig { node: NodeId(1), tokens: Arc::new(|_| Some(TOKEN)) };
            let host = group.provider.host(&place.address, options).await.expect("the address is free");
            let groups = vec![GroupMemory { id: GROUP, layout }];
            nodes.push(
                LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() })
                    .await
                    .expect("memory"),
            );
        }
        sift::format(&group).await.expect("the nodes are blank");
        World { group, _nodes: nodes }
    }

    async fn coordinator(&self) -> Coordinator {
        loop {
            let mut standby = Standby::new(self.group.clone(), 1).expect("the group is good");
            let coordinator = standby.take_over().await.expect("a majority is there");
            if coordinator.is_serving() {
                return coordinator;
            }
        }
    }

    async fn store(&self, sizes: StoreGeometry, options: KvConfig) -> KvStore {
        KvStore::take_over(self.coordinator().await, sizes, options).await.expect("it serves")
    }
}

fn run(test: impl Future<Output = ()>) {
    rt::production::Runtime::new(2).expect("threads").block_on(test);
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// A small random generator, so that a test is the same every time.
struct Prng(u64);

impl Prng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

async fn wait_applied(store: &KvStore) {
    while store.status().applied < store.status().last {
        rt::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_store_is_what_a_map_is_also_after_takeovers() {
    run(async {
        let world = World::start("model", SIZES).await;
        let mut store = world.store(SIZES, SMALL).await;
        let mut model: BTreeMap<String, (Bytes, u64)> = BTreeMap::new();
        let mut rng = Prng(1);
        let mut last = 0;
        for step in 0..4000_u64 {
            let key = format!("key-{}", rng.below(60));
            let expected =
                model.get(&key).map(|(value, version)| VersionedValue { value: value.clone(), version: *version });
            let value = Bytes::from(vec![step as u8; rng.below(SIZES.value_bytes_max() as u64 + 1) as usize]);
            match rng.below(10) {
                0..4 => assert_eq!(store.get(key.as_bytes()).await, Ok(expected), "step {step}"),
                4..7 => {
                    let version = store.put(bytes(&key), value.clone()).await.expect("it serves");
                    assert!(version > last);
                    last = version;
                    model.insert(key, (value, version));
                }
                7 => {
                    let gone = store.delete(bytes(&key)).await.expect("it serves");
                    assert_eq!(gone.is_some(), model.remove(&key).is_some(), "step {step}");
                    last = gone.unwrap_or(last);
                }
                8 => {
                    let swapped = store
                        .compare_and_set(bytes(&key), Precondition::Version(last), Some(value.clone()))
                        .await
                        .expect("it serves");
                    match swapped {
                        SwapOutcome::Done(version) => {
                            assert_eq!(expected.map(|found| found.version), Some(last));
                            last = version;
                            model.insert(key, (value, version));
                        }
                        SwapOutcome::Mismatch(found) => {
                            assert_ne!(expected.as_ref().map(|found| found.version), Some(last));
                            assert_eq!(found, expected);
                        }
                    }
                }
                _ => {
                    let wanted = expected
                        .as_ref()
                        .map_or(Precondition::Absent, |found| Precondition::Value(found.value.clone()));
                    let swapped = store.compare_and_set(bytes(&key), wanted, Some(value.clone())).await;
                    let Ok(SwapOutcome::Done(version)) = swapped else { panic!("step {step}: {swapped:?}") };
                    last = version;
                    model.insert(key, (value, version));
                }
            }
            if step % 500 == 499 {
                // As if it had crashed, with the log in any state.
                let before = store.status();
                drop(store);
                store = world.store(SIZES, SMALL).await;
                let after = store.status();
                assert!(after.recovered as u64 >= after.last - before.applied.max(after.applied));
                assert_eq!(after.last, last);
            }
        }
        for key in 0..60 {
            let key = format!("key-{key}");
            let found = store.get(key.as_bytes()).await.expect("it serves");
            assert_eq!(found.map(|found| (found.value, found.version)), model.get(&key).cloned());
        }
        // No block is lost.
        wait_applied(&store).await;
        let records = model.iter().map(|(key, (value, _))| (48 + key.len() + value.len()).div_ceil(128) as u64);
        assert_eq!(store.status().blocks_free, SIZES.blocks - records.sum::<u64>());
        assert!(store.status().cache_bytes < 20_000, "{:?}", store.status());
    });
}

/// A put once reserved free blocks for its whole value, as if its key had none: a nearly full store accepted no more
/// concurrent puts than it had free blocks, and a full store accepted none.
#[test]
fn a_full_store_takes_new_values_of_the_keys_that_it_has() {
    for (name, options) in [("overwritten", KvConfig::default()), ("overwritten-uncached", KvConfig { cache_bytes: 0 })]
    {
        run(async {
            // A log that holds all concurrent operations.
            let sizes = StoreGeometry { log_bytes: 1 << 20, blocks: 512, ..SIZES };
            let world = World::start(name, sizes).await;
            let store = world.store(sizes, options).await;
            let value = |blocks: usize, fill: u8| Bytes::from(vec![fill; blocks * 128 - 60]);
            for key in 0..256 {
                store.put(bytes(&format!("key-{key}")), value(2, 0)).await.expect("it has room");
            }
            wait_applied(&store).await;
            assert_eq!(store.status().blocks_free, 0);
            assert_eq!(store.put(bytes("another"), value(1, 0)).await, Err(Error::StoreFull));
            assert_eq!(store.put(bytes("key-0"), value(3, 0)).await, Err(Error::StoreFull));
            for fill in 1..4 {
                let puts = (0..256).map(|key| store.put(bytes(&format!("key-{key}")), value(2, fill)));
                for put in futures_util::future::join_all(puts).await {
                    put.expect("its key has the blocks that it needs");
                }
            }
            // A block that one put frees can be used by another once the entry is applied, and not before.
            store.put(bytes("key-1"), value(1, 9)).await.expect("it needs less");
            wait_applied(&store).await;
            store.delete(bytes("key-2")).await.expect("it serves");
            store.put(bytes("key-2"), value(1, 9)).await.expect("it needs less than it had");
            for key in ["key-3", "key-4"] {
                store.put(bytes(key), value(3, 9)).await.expect("one is free soon");
            }
            assert_eq!(store.put(bytes("key-5"), value(3, 9)).await, Err(Error::StoreFull));
            drop(store);
            let store = world.store(sizes, options).await;
            for key in 0..256 {
                let expected = match key {
                    1 | 2 => value(1, 9),
                    3 | 4 => value(3, 9),
                    _ => value(2, 3),
                };
                let found = store.get(format!("key-{key}").as_bytes()).await.expect("it serves");
                assert_eq!(found.map(|found| found.value), Some(expected), "{key}");
            }
            wait_applied(&store).await;
            assert_eq!(store.status().blocks_free, 0);
        });
    }
}

#[test]
fn changes_that_take_no_room_for_their_blocks_are_found_out() {
    // A mistake is planted in one thread.
    rt::production::run(async {
        plant(Mutant::AdmitUnreserved);
        let sizes = StoreGeometry { blocks: 512, ..SIZES };
        let world = World::start("unreserved", sizes).await;
        let store = world.store(sizes, KvConfig::default()).await;
        let mut key = 0;
        while key < 1024 && store.put(bytes(&format!("key-{key}")), bytes("value")).await.is_ok() {
            key += 1;
        }
        assert_eq!(store.ended().await, Error::Corrupt("a put was acknowledged for which there is no room"));
        plant(Mutant::None);
    });
}

#[test]
fn keys_and_values_that_are_too_long_are_refused_and_a_full_store_says_so() {
    run(async {
        let sizes = StoreGeometry { blocks: 512, ..SIZES };
        let world = World::start("full", sizes).await;
        let store = world.store(sizes, KvConfig::default()).await;
        for bad in [Bytes::new(), Bytes::from(vec![1; sizes.key_bytes_max() + 1])] {
            assert!(matches!(store.put(bad.clone(), bytes("value")).await, Err(Error::Invalid(_))));
            assert!(matches!(store.get(&bad).await, Err(Error::Invalid(_))));
        }
        let long = Bytes::from(vec![1; sizes.value_bytes_max() + 1]);
        assert!(matches!(store.put(bytes("key"), long).await, Err(Error::Invalid(_))));

        let long = Bytes::from(vec![1; sizes.value_bytes_max() - 16]);
        let mut keys = 0;
        while store.put(bytes(&format!("key-{keys}")), long.clone()).await.is_ok() {
            keys += 1;
        }
        assert!(keys >= 512 / 7 - 1, "{keys}");
        assert_eq!(store.put(bytes("another"), long.clone()).await, Err(Error::StoreFull));
        assert!(store.delete(bytes("key-0")).await.expect("it serves").is_some());
        wait_applied(&store).await;
        assert!(store.put(bytes("another"), long.clone()).await.is_ok());
        drop(store);
        let store = world.store(sizes, SMALL).await;
        for key in 1..keys {
            let found = store.get(format!("key-{key}").as_bytes()).await.expect("it serves");
            assert_eq!(found.map(|found| found.value), Some(long.clone()), "{key}");
        }
        let other = StoreGeometry { blocks: 1024, ..sizes };
        drop(store);
        let refused = KvStore::take_over(world.coordinator().await, other, SMALL).await;
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
    });
}

#[test]
fn watchers_are_told_every_change_also_across_a_takeover() {
    run(async {
        let world = World::start("watch", SIZES).await;
        let store = world.store(SIZES, SMALL).await;
        let mut watch = store.watch(bytes("a"), None).expect("it serves");
        let mut versions = Vec::new();
        for step in 0..30 {
            let key = if step % 3 == 0 { "b" } else { "ab" };
            let version = store.put(bytes(key), bytes(&step.to_string())).await.expect("it serves");
            if key == "ab" {
                versions.push((version, Some(bytes(&step.to_string()))));
            }
        }
        versions.push((store.delete(bytes("ab")).await.expect("it serves").expect("it was there"), None));
        for (version, value) in versions {
            let told = watch.next().await.expect("it goes on");
            assert_eq!(told, ChangeEvent { key: bytes("ab"), value, version });
        }
        let from = watch.next_version();
        let after = store.put(bytes("abc"), bytes("after")).await.expect("it serves");
        drop(store);
        while watch.next().await.is_some() {}

        let store = world.store(SIZES, SMALL).await;
        match store.watch(bytes("a"), Some(from)) {
            Ok(mut watch) => assert_eq!(watch.next().await.expect("it goes on").version, after),
            // It was applied before the first store ended.
            Err(error) => assert_eq!(error, Error::Compacted { asked: from, oldest: after + 1 }),
        }
    });
}

/// Neither log ever fills up by itself, since puts are applied as fast as they arrive.
#[test]
fn a_takeover_that_finds_both_logs_full_loses_nothing() {
    run(async {
        let world = World::start("full-logs", SIZES).await;
        let store = world.store(SIZES, SMALL).await;
        store.coordinator().stop_reclaiming();
        let putting = (0..4).map(|client| {
            let store = store.clone();
            rt::spawn(async move {
                let mut put = BTreeMap::new();
                for step in 0_u64.. {
                    let (key, value) = (format!("{client}-{}", step % 20), step.to_string());
                    let outcome = store.put(bytes(&key), bytes(&value)).await;
                    match outcome {
                        Ok(version) => put.insert(key, (bytes(&value), version)),
                        Err(_) => return (put, key, bytes(&value)),
                    };
                }
                unreachable!("there is no end of steps");
            })
        });
        let putting: Vec<_> = putting.collect();
        // An entry takes 64 bytes, a transaction no more than a quarter of the group's log.
        let group_bytes = store.coordinator().layout().log_bytes;
        while store.status().log_used_bytes + 64 <= SIZES.log_bytes
            || store.coordinator().status().log_used_bytes < group_bytes / 4 * 3
        {
            rt::sleep(Duration::from_millis(1)).await;
        }
        store.coordinator().step_down();
        drop(store);
        let mut put = BTreeMap::new();
        let mut in_doubt = BTreeMap::new();
        for client in putting {
            let (answered, key, value) = client.await.expect("no check fails");
            put.extend(answered);
            in_doubt.insert(key, value);
        }

        let store = world.store(SIZES, SMALL).await;
        assert!(store.status().recovered as u64 >= SIZES.log_bytes / 64 / 2, "{:?}", store.status());
        for (key, (value, version)) in put {
            let found = store.get(key.as_bytes()).await.expect("it serves").expect("it was put");
            match in_doubt.get(&key) {
                Some(doubtful) if *doubtful == found.value => assert!(found.version > version),
                _ => assert_eq!((found.value, found.version), (value, version), "{key}"),
            }
        }
        // There is free log space again.
        wait_applied(&store).await;
        store.put(bytes("another"), bytes("value")).await.expect("it serves");
    });
}

#[test]
fn many_at_a_time_count_every_step_once() {
    run(async {
        let world = World::start("many", SIZES).await;
        let store = world.store(SIZES, SMALL).await;
        let clients = (0..16).map(|_| {
            let store = store.clone();
            rt::spawn(async move {
                for _ in 0..50 {
                    loop {
                        let found = store.get(b"counter").await.expect("it serves");
                        let count: u64 = found.as_ref().map_or(0, |found| {
                            std::str::from_utf8(&found.value).expect("text").parse().expect("a number")
                        });
                        let expected = found.map_or(Precondition::Absent, |found| Precondition::Version(found.version));
                        let next = Some(bytes(&(count + 1).to_string()));
                        let swapped = store.compare_and_set(bytes("counter"), expected, next).await;
                        if matches!(swapped.expect("it serves"), SwapOutcome::Done(_)) {
                            break;
                        }
                    }
                }
            })
        });
        for client in clients.collect::<Vec<_>>() {
            client.await.expect("no check fails");
        }
        assert_eq!(store.get(b"counter").await.expect("it serves").expect("it is there").value, bytes("800"));
    });
}

/// A store that could not continue left its coordinator alive: no other coordinator was elected, and watchers waited
/// for ever. A record that held a free block made the store's applier panic, and nothing was reported.
#[test]
fn a_damaged_store_ends_with_its_coordinator() {
    run(async {
        // After the log and the heads: the index, the bitmap, the blocks.
        let bitmap_at = SIZES.log_bytes + 256 + 8 * SIZES.buckets;
        let (bitmap_bytes, blocks_bytes) = (SIZES.blocks / 8, 4 * SIZES.block_bytes);
        for (name, at, length) in
            [("bitmap", bitmap_at, bitmap_bytes), ("blocks", bitmap_at + bitmap_bytes, blocks_bytes)]
        {
            let world = World::start(&format!("damaged-{name}"), SIZES).await;
            let store = world.store(SIZES, SMALL).await;
            store.put(bytes("key"), bytes("key")).await.expect("it serves");
            wait_applied(&store).await;
            store.coordinator().step_down();
            let coordinator = world.coordinator().await;
            coordinator.write(at, Bytes::from(vec![0; length as usize])).await.expect("it serves");
            let store = KvStore::take_over(coordinator, SIZES, SMALL).await.expect("nobody has looked yet");
            let mut watch = store.watch(Bytes::new(), None).expect("it serves");
            // The key is in no cache, so that the store reads the block.
            let _ = store.put(bytes("key"), bytes("key")).await;
            let _ = store.delete(bytes("key")).await;
            let ended = rt::timeout(Duration::from_secs(10), store.ended()).await.expect("it ends");
            assert!(matches!(ended, Error::Corrupt(_)), "{name}: {ended}");
            rt::timeout(Duration::from_secs(10), store.coordinator().ended()).await.expect("its coordinator too");
            assert!(!store.coordinator().is_serving());
            let told = async { while watch.next().await.is_some() {} };
            rt::timeout(Duration::from_secs(10), told).await.expect("the watcher is notified");
            assert!(store.watch(Bytes::new(), None).is_err(), "{name}: nobody would ever be told");
        }
    });
}
