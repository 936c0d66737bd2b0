//! The throughput of the key-value store within one process, and the time until another coordinator takes over.
//!
//! `cargo run --release -p heddle-kv --example kv_costs -- [keys] [seconds]`
//!
//! F = 1 over shared memory, 64 clients, values of 992 bytes, and 100,000 keys unless the command line says otherwise.
//! First all keys are put once; then puts and gets of random keys are measured for some seconds each. Then, under a
//! load of half puts and half gets, the coordinator is dropped while a standby watches the group. From then on the
//! program prints the number of operations completed in each 50 ms.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::Bytes;
use base::rt::{self, CancellationToken};
use kv::{KvConfig, KvStore, StoreGeometry};
use rma::shm::ShmProvider;
use rma::{HostConfig, NodeId, Provider, TOKEN_BYTES, Token};
use sift::{
    GroupId, GroupMemory, LogMemoryNode, LogMemoryNodeConfig, MemoryNodeAddress, SiftGroup, SiftTimeouts, Standby,
};

const TOKEN: Token = Token::new([3; TOKEN_BYTES]);
const CLIENTS: u64 = 64;
const VALUE_BYTES: usize = 992;
const STEP: Duration = Duration::from_millis(50);
const NODES: u32 = 3;

async fn group(sizes: &StoreGeometry) -> (SiftGroup, Vec<Arc<LogMemoryNode>>) {
    let provider: Arc<dyn Provider> = Arc::new(ShmProvider::default());
    let layout = sizes.group_layout(4 << 20).expect("good sizes");
    let (id, mut nodes) = (GroupId(1), Vec::new());
    let place = |node| MemoryNodeAddress { address: format!("local:kv-{node}"), name: "bench".into(), token: TOKEN };
    for node in 0..NODES {
        let options = HostConfig { node: NodeId(node), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = provider.host(&place(node).address, options).await.expect("a host");
        let groups = vec![GroupMemory { id, layout }];
        nodes.push(
            LogMemoryNode::start(LogMemoryNodeConfig { host, groups, stop: CancellationToken::new() })
                .await
                .expect("memory"),
        );
    }
    // A shared machine may send a heartbeat late.
    let timing = SiftTimeouts {
        lease: Duration::from_millis(60),
        election_timeout: Duration::from_millis(40),
        attempt_max: Duration::from_millis(100),
        ..SiftTimeouts::default()
    };
    let group = SiftGroup { id, layout, nodes: (0..NODES).map(place).collect(), provider, timing };
    sift::format(&group).await.expect("blank nodes");
    (group, nodes)
}

fn key(number: u64) -> Bytes {
    Bytes::from(format!("key-{number:012}"))
}

/// A small generator for each client.
fn next(rng: &mut u64, bound: u64) -> u64 {
    *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*rng >> 33) % bound
}

/// The store that serves now.
type Current = Arc<Mutex<KvStore>>;

/// Runs clients until the stop signal, and counts their operations. When their store has ended, they wait for the next
/// one.
async fn load(current: &Current, keys: u64, puts_of_100: u64, done: &Arc<AtomicU64>, stop: &CancellationToken) {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let mut clients = Vec::new();
    for client in 0..CLIENTS {
        let (current, value, done, stop) = (Arc::clone(current), value.clone(), Arc::clone(done), stop.clone());
        clients.push(rt::spawn(async move {
            let mut rng = client;
            while !stop.is_cancelled() {
                let store = current.lock().expect("no panic").clone();
                // As long as this store serves.
                for operation in 0_u64.. {
                    let key = key(next(&mut rng, keys));
                    let outcome = if next(&mut rng, 100) < puts_of_100 {
                        store.put(key, value.clone()).await.map(drop)
                    } else {
                        store.get(&key).await.map(drop)
                    };
                    if outcome.is_err() {
                        rt::sleep(Duration::from_millis(1)).await;
                        break;
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    if operation % 64 == 63 {
                        // With verbs that complete at once nothing here ever waits.
                        rt::yield_now().await;
                        if stop.is_cancelled() {
                            break;
                        }
                    }
                }
            }
        }));
    }
    for client in clients {
        client.await.expect("no panic");
    }
}

async fn rate(current: &Current, keys: u64, puts_of_100: u64, seconds: f64) -> f64 {
    let (done, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
    let stopping = stop.clone();
    let start = Instant::now();
    let timer = rt::spawn(async move {
        rt::sleep(Duration::from_secs_f64(seconds)).await;
        stopping.cancel();
    });
    load(current, keys, puts_of_100, &done, &stop).await;
    timer.await.expect("no panic");
    done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
}

async fn run(keys: u64, seconds: f64) {
    let sizes = StoreGeometry {
        buckets: keys.next_power_of_two(),
        blocks: keys.next_multiple_of(512),
        ..StoreGeometry::default()
    };
    let (group, _nodes) = group(&sizes).await;
    let coordinator = Standby::new(group.clone(), 1).expect("a good group").take_over().await.expect("a majority");
    let store = KvStore::take_over(coordinator, sizes, KvConfig::default()).await.expect("it serves");
    let start = Instant::now();
    let mut loading = Vec::new();
    for client in 0..CLIENTS {
        let store = store.clone();
        loading.push(rt::spawn(async move {
            let value = Bytes::from(vec![1; VALUE_BYTES]);
            for number in (client..keys).step_by(CLIENTS as usize) {
                store.put(key(number), value.clone()).await.expect("it serves");
                if number % 64 == client % 64 {
                    rt::yield_now().await;
                }
            }
        }));
    }
    for client in loading {
        client.await.expect("no panic");
    }
    let loaded = keys as f64 / start.elapsed().as_secs_f64();
    println!("{keys} keys, {CLIENTS} clients, values of {VALUE_BYTES} bytes");
    println!("first puts    {loaded:>10.0} /s");
    let current = Arc::new(Mutex::new(store));
    println!("puts          {:>10.0} /s", rate(&current, keys, 100, seconds).await);
    println!("gets          {:>10.0} /s", rate(&current, keys, 0, seconds).await);
    let before = rate(&current, keys, 50, seconds).await;
    println!("half and half {before:>10.0} /s");

    // The second one watches before the first ends.
    let (standing, next) = (group.clone(), Arc::clone(&current));
    let crashed = Arc::new(Mutex::new(Instant::now()));
    let ended = Arc::clone(&crashed);
    let successor = rt::spawn(async move {
        let mut standby = Standby::new(standing, 2).expect("a good group");
        let coordinator = standby.take_over().await.expect("a majority");
        let elected = ended.lock().expect("no panic").elapsed();
        let store = KvStore::take_over(coordinator, sizes, KvConfig::default()).await.expect("it serves");
        let serving = ended.lock().expect("no panic").elapsed();
        let recovered = store.status().recovered;
        *next.lock().expect("no panic") = store.clone();
        println!("coordinator after {elected:?}, store after {serving:?}, with {recovered} entries in its log");
        store
    });
    let (done, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
    let (counted, stopping, crashing) = (Arc::clone(&done), stop.clone(), Arc::clone(&current));
    let watching = rt::spawn(async move {
        rt::sleep(Duration::from_millis(300)).await;
        *crashed.lock().expect("no panic") = Instant::now();
        crashing.lock().expect("no panic").coordinator().step_down();
        let mut steps = Vec::new();
        let mut last = counted.load(Ordering::Relaxed);
        for _ in 0..30 {
            rt::sleep(STEP).await;
            let now = counted.load(Ordering::Relaxed);
            steps.push(now - last);
            last = now;
        }
        stopping.cancel();
        steps
    });
    load(&current, keys, 50, &done, &stop).await;
    let steps = watching.await.expect("no panic");
    let store = successor.await.expect("it took over");
    println!("percent of the rate before, for each {STEP:?} since the crash:");
    let usual = before * STEP.as_secs_f64();
    let percents: Vec<String> = steps.iter().map(|step| format!("{:.0}", *step as f64 * 100.0 / usual)).collect();
    println!("{}", percents.join(" "));
    println!("{:?}", store.status());
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let keys = arguments.next().map_or(100_000, |text| text.parse().expect("a number of keys"));
    let seconds = arguments.next().map_or(2.0, |text| text.parse().expect("seconds"));
    rt::production::Runtime::new(2).expect("threads").block_on(run(keys, seconds));
}
