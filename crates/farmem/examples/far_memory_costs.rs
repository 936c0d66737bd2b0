//! What far memory costs over a link of 1.2 µs and 56 Gbit/s, and its ratios to what the link and the kernel cost alone.
//!
//! `cargo run --release -p heddle-farmem --example far_memory_costs [shm|tcp] [--json]`
//!
//! * `fault_over_floor`: the median of a fault on a page that a donor has, while others are evicted, over the sum of the least
//!   that a fault costs (a thread on the same processor that does nothing but fill the page) and a read of one page.
//! * `stream_over_provider`: the rate at which a program reads a region in order, over that of reads of 64 KiB.
//! * `cores_per_100k_faults`: the processor time of the whole process for 100,000 random faults, in seconds.

#![allow(clippy::disallowed_methods, reason = "it measures the machine's time")]
#![allow(unsafe_code, reason = "it asks the kernel for the processor time of this process")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::{CancellationToken, production};
use base::{BytesMut, Epoch};
use farmem::{GROUP_PAGES, PAGE_BYTES, PageNumber, PageRange, PageStore, PoolStore, Region, RegionConfig, floor};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::tcp::TcpProvider;
use rma::{HostConfig, NodeId, Provider, Token};

const TOKEN: Token = Token::new([3; 32]);
const SECTION: u64 = 16 << 20;
const DONORS: u32 = 2;
const REGION_BYTES: usize = 256 << 20;
const BUDGET_BYTES: u64 = 64 << 20;
const FAULTS: usize = 20_000;
const READS: usize = 5_000;
const ROUNDS: usize = 5;
/// Reads in flight when the provider is measured alone.
const IN_FLIGHT: usize = 4;
const LINK: ShapingConfig = ShapingConfig { latency: Duration::from_nanos(1200), bytes_per_second: 7_000_000_000 };

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    // SAFETY: the structure is plain data, which the kernel fills.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

async fn open(inner: Arc<dyn Provider>) -> (AddressSpace, Vec<Arc<MemoryNode>>) {
    let provider: Arc<dyn Provider> = Arc::new(ShapedProvider::new(inner, LINK));
    let mut nodes = Vec::new();
    for node in 0..DONORS {
        let address = if provider.name() == "tcp" { "127.0.0.1:0" } else { "local:" };
        let options = HostConfig { node: NodeId(node), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = provider.host(address, options).await.expect("the address is free");
        let budget_bytes = REGION_BYTES as u64;
        let stop = CancellationToken::new();
        let options = MemoryNodeConfig { host, budget_bytes, section_bytes: SECTION, stop };
        nodes.push(MemoryNode::start(options).await.expect("the options are good"));
    }
    let donors = nodes.iter().map(|node| Donor { address: node.address(), token: TOKEN }).collect();
    let config = AddressSpaceConfig {
        owner: "bench".to_owned(),
        epoch: Epoch(1),
        provider,
        donors,
        section_bytes: SECTION,
        budget_bytes: 2 * REGION_BYTES as u64,
    };
    (AddressSpace::open(config).await.expect("the donors are there"), nodes)
}

/// Pages that hardly ever follow one another: a walk by a step that has no factor in common with their number.
fn scattered(index: usize) -> usize {
    index * 25_013 % (REGION_BYTES / PAGE_BYTES)
}

async fn read_nanos(store: &PoolStore) -> f64 {
    let mut times = Vec::new();
    let mut buffer = BytesMut::new();
    for read in 0..READS {
        let range = PageRange { first: PageNumber(scattered(read) as u32), pages: 1 };
        if !store.holds(range.first) {
            continue;
        }
        buffer.clear();
        let start = Instant::now();
        buffer = store.read(range, buffer).await.expect("the donor has it");
        times.push(start.elapsed().as_nanos() as f64);
    }
    median(times)
}

async fn provider_rate(store: &PoolStore) -> f64 {
    let groups: Vec<u32> = (0..(REGION_BYTES / PAGE_BYTES) as u32).step_by(GROUP_PAGES as usize).collect();
    let held: Vec<u32> =
        groups.into_iter().filter(|first| (0..GROUP_PAGES).all(|page| store.holds(PageNumber(first + page)))).collect();
    let start = Instant::now();
    let mut reads = VecDeque::new();
    for first in &held {
        let range = PageRange { first: PageNumber(*first), pages: GROUP_PAGES };
        reads.push_back(store.read(range, BytesMut::with_capacity(range.bytes())));
        if reads.len() == IN_FLIGHT
            && let Some(read) = reads.pop_front()
        {
            std::hint::black_box(read.await.expect("the donor has it"));
        }
    }
    while let Some(read) = reads.pop_front() {
        std::hint::black_box(read.await.expect("the donor has it"));
    }
    held.len() as f64 * f64::from(GROUP_PAGES) * PAGE_BYTES as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let inner: Arc<dyn Provider> = match arguments.iter().any(|argument| argument == "tcp") {
        true => Arc::new(TcpProvider::default()),
        false => Arc::new(ShmProvider::default()),
    };
    let name = inner.name();
    let runtime = production::Runtime::new(1).expect("the machine has threads");
    let (space, nodes) = runtime.block_on(open(inner));
    let pages = (REGION_BYTES / PAGE_BYTES) as u32;
    let store = runtime.block_on(async { Arc::new(PoolStore::new(space, pages, None).expect("the options are good")) });
    let shared: Arc<dyn PageStore> = Arc::<PoolStore>::clone(&store);
    let config = RegionConfig {
        name: "bench".to_owned(),
        bytes: REGION_BYTES as u64,
        budget_bytes: BUDGET_BYTES,
        store: shared,
    };
    let mut region = Region::create(config).unwrap_or_else(|error| panic!("{error}"));
    region.as_mut_slice().chunks_exact_mut(PAGE_BYTES).for_each(|page| page[0] = 1);

    let (mut floors, mut reads, mut faults, mut cores, mut streams, mut rates) = Default::default();
    let mut next = 0;
    for _ in 0..ROUNDS {
        let push = |values: &mut Vec<f64>, value: f64| values.push(value);
        let floor = floor::fault_nanos(FAULTS / 4).unwrap_or_else(|error| panic!("{error}"));
        push(&mut floors, median(floor.into_iter().map(|nanos| nanos as f64).collect()));
        push(&mut reads, runtime.block_on(read_nanos(&store)));
        push(&mut rates, runtime.block_on(provider_rate(&store)));
        let (before, used) = (region.stats(), processor_seconds());
        let mut times = Vec::with_capacity(FAULTS);
        for _ in 0..FAULTS {
            let place = scattered(next) * PAGE_BYTES;
            next += 1;
            let start = Instant::now();
            std::hint::black_box(region.as_slice()[place]);
            times.push(start.elapsed().as_nanos() as f64);
        }
        let served = region.stats().faults - before.faults;
        push(&mut cores, (processor_seconds() - used) / served as f64 * 100_000.0);
        push(&mut faults, median(times));
        let start = Instant::now();
        let words = region.as_slice().chunks_exact(64).map(|line| u64::from(line[0]));
        std::hint::black_box(words.sum::<u64>());
        push(&mut streams, REGION_BYTES as f64 / start.elapsed().as_secs_f64());
    }
    let [floor, read, fault, cores, stream, rate] = [floors, reads, faults, cores, streams, rates].map(median);
    let ratios = [
        ("fault_over_floor", fault / (floor + read)),
        ("stream_over_provider", stream / rate),
        ("cores_per_100k_faults", cores),
    ];
    if arguments.iter().any(|argument| argument == "--json") {
        let ratios = ratios.map(|(name, value)| format!("\"{name}\": {value:.3}")).join(", ");
        println!("{{\"figure\": \"farmem\", \"provider\": \"{name}\", \"ratios\": {{{ratios}}}}}");
    } else {
        println!("{name}: fault {:.1} µs; alone {:.1} µs, a read {:.1} µs", fault / 1e3, floor / 1e3, read / 1e3);
        println!("stream {:.2} GB/s; provider {:.2} GB/s", stream / 1e9, rate / 1e9);
        ratios.iter().for_each(|(name, value)| println!("{name:<22} {value:.2}"));
        println!("{:?}", region.stats());
    }
    drop(region);
    drop((store, nodes));
}
