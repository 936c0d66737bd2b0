//! What far memory costs, beside what the link and the kernel cost alone (TELEPORT, sections 2.1 and 7: a process with a
//! local cache over disaggregated memory).
//!
//! 1. Memory nodes of this process serve a pool over a provider whose verbs take at least the time of the paper's link. A
//!    region over the pool is filled, so that most of its pages are remote. There are two such regions, one for each
//!    [`FaultPath`].
//! 2. In each round the floors and the regions are measured in turns: what serving a fault costs at least in either way
//!    ([`farmem::floor`]), a read of one page and reads of whole groups over the provider, random faults, and a pass through
//!    the region in order.
//! 3. The medians over the rounds give the ratios. They are of the region whose faults the faulting thread serves; the floor of a
//!    fault is that of the cheaper way.
//!
//! One thread touches the regions; it does not belong to the pool's runtime, whose threads would wait for themselves. Processor time
//! is that of the whole process: of the region, the memory nodes and the provider.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::{CancellationToken, production};
use base::{BytesMut, Epoch};
use farmem::{
    FaultPath, GROUP_PAGES, PAGE_BYTES, PageNumber, PageRange, PageStore, PoolStore, Region, RegionConfig, floor,
};
use measurement::error::Error;
use measurement::figure::{Figure, RatioBound};
use measurement::interval::median;
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::shaped::{ShapedProvider, ShapingConfig};
use rma::shm::ShmProvider;
use rma::tcp::TcpProvider;
use rma::{HostConfig, NodeId, Provider, Token};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc::UnboundedSender;

/// Bounds on the ratios.
const FAULT_OVER_FLOOR_MAX: f64 = 1.3;
const STREAM_OVER_PROVIDER_MIN: f64 = 0.8;
const CORES_PER_100K_FAULTS_MAX: f64 = 1.0;

const TOKEN: Token = Token::new([3; 32]);
const SECTION_BYTES: u64 = 16 << 20;
const DONORS: u32 = 2;
/// Reads in flight when the provider is measured alone.
const READS_IN_FLIGHT: usize = 4;
/// Page reads of each round.
const READS: usize = 5_000;
/// The link of the paper's evaluation.
const LINK: ShapingConfig = ShapingConfig { latency: Duration::from_nanos(1200), bytes_per_second: 7_000_000_000 };

/// How to measure.
#[derive(Clone, Debug)]
pub struct FarMemoryConfig {
    /// Rounds, of which the medians count.
    pub rounds: usize,
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Bytes of it that are resident at most.
    pub budget_bytes: u64,
    /// Random faults of each round.
    pub faults: usize,
    /// Over TCP instead of shared memory.
    pub tcp: bool,
    /// Without the time of the paper's link. Not what the bounds are for.
    pub unshaped: bool,
}

impl Default for FarMemoryConfig {
    fn default() -> FarMemoryConfig {
        FarMemoryConfig {
            rounds: 5,
            region_bytes: 256 << 20,
            budget_bytes: 64 << 20,
            faults: 20_000,
            tcp: false,
            unshaped: false,
        }
    }
}

/// What is measured, in the order of [`MEASURED`].
type Round = [f64; MEASURED.len()];

/// The rows: the subject, where it was measured, and the unit.
const MEASURED: [(&str, &str, &str); 10] = [
    ("fault", "floor, handler", "us"),
    ("fault", "floor, faulting thread", "us"),
    ("page read", "provider", "us"),
    ("fault", "region, handler", "us"),
    ("fault", "region, faulting thread", "us"),
    ("stream", "provider", "gb_per_second"),
    ("stream", "region, handler", "gb_per_second"),
    ("stream", "region, faulting thread", "gb_per_second"),
    ("100,000 faults", "region, handler", "processor_seconds"),
    ("100,000 faults", "region, faulting thread", "processor_seconds"),
];

/// Measures.
///
/// # Errors
/// The machine does not allow user page faults, a part of the system fails, or `stop` was stopped.
pub async fn run(config: &FarMemoryConfig, stop: &CancellationToken, tell: &dyn Fn(&str)) -> Result<Figure, Error> {
    let mut figure = Figure::new("farmem", "Far memory: page faults and streams beside their floors");
    let provider = if config.tcp { "tcp" } else { "shm" };
    figure.setting("provider", provider);
    match config.unshaped {
        true => figure.setting("link", "none"),
        false => {
            figure.setting("link_latency_us", LINK.latency.as_secs_f64() * 1e6);
            figure.setting("link_gbit_per_second", LINK.bytes_per_second as f64 * 8.0 / 1e9);
        }
    }
    figure.setting("rounds", config.rounds);
    figure.setting("region_bytes", config.region_bytes);
    figure.setting("budget_bytes", config.budget_bytes);
    figure.setting("faults", config.faults);
    let (told, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let (own, stopped) = (config.clone(), stop.clone());
    // A thread that may sleep for a page. A task of this runtime would keep others waiting.
    let measuring = tokio::task::spawn_blocking(move || measure(&own, &stopped, &told));
    while let Some(step) = steps.recv().await {
        tell(&step);
    }
    let rounds = measuring.await.map_err(|error| part(&error))??;
    let medians: Round = std::array::from_fn(|index| median(rounds.iter().map(|round| round[index])));
    for ((subject, way, unit), value) in MEASURED.iter().zip(medians) {
        figure.row(&[("subject", subject), ("way", way)], &[(unit, value)]);
    }
    let [handler_floor, own_floor, read, _, fault, rate, _, stream, _, cores] = medians;
    let floor = handler_floor.min(own_floor);
    // Only with the link of the paper do the ratios count.
    let bound = |bound| (!config.unshaped).then_some(bound);
    figure.ratio("fault_over_floor", fault / (floor + read), bound(RatioBound::AtMost(FAULT_OVER_FLOOR_MAX)));
    figure.ratio("stream_over_provider", stream / rate, bound(RatioBound::AtLeast(STREAM_OVER_PROVIDER_MIN)));
    figure.ratio("cores_per_100k_faults", cores, bound(RatioBound::AtMost(CORES_PER_100K_FAULTS_MAX)));
    Ok(figure)
}

fn part(error: &dyn std::fmt::Display) -> Error {
    Error::Part { what: "far memory", reason: error.to_string() }
}

/// A region that is filled, and what it stands on.
struct FilledRegion {
    // Dropped in this order: the region first, the runtime last.
    region: Region,
    store: Arc<PoolStore>,
    _nodes: Vec<Arc<MemoryNode>>,
    runtime: production::Runtime,
    /// The page that is touched next.
    next: usize,
}

/// Measures all rounds, on a thread that is none of the pool's runtime.
fn measure(
    config: &FarMemoryConfig,
    stop: &CancellationToken,
    tell: &UnboundedSender<String>,
) -> Result<Vec<Round>, Error> {
    let say = |step: String| drop(tell.send(step));
    say(format!("filling {} MiB", config.region_bytes >> 20));
    let mut handled = FilledRegion::create(config, FaultPath::Handler)?;
    let mut own = FilledRegion::create(config, FaultPath::FaultingThread)?;
    let mut rounds = Vec::new();
    for round in 1..=config.rounds {
        if stop.is_cancelled() {
            return Err(Error::Interrupted);
        }
        say(format!("round {round} of {}", config.rounds));
        let faults = config.faults.div_ceil(4);
        let [floor, own_floor] = [floor::fault_nanos(faults), floor::own_fault_nanos(faults)];
        let us = |nanos: Vec<u64>| median(nanos.into_iter().map(|nanos| nanos as f64 / 1e3));
        let floor = floor.map(us).map_err(|error| part(&error))?;
        let own_floor = own_floor.map(us).map_err(|error| part(&error))?;
        let read = own.page_read_us()?;
        let rate = own.provider_rate()?;
        let (fault, cores) = handled.random_faults(config.faults);
        let (own_fault, own_cores) = own.random_faults(config.faults);
        let (stream, own_stream) = (handled.stream(), own.stream());
        rounds.push([floor, own_floor, read, fault, own_fault, rate, stream, own_stream, cores, own_cores]);
    }
    Ok(rounds)
}

impl FilledRegion {
    fn create(config: &FarMemoryConfig, fault_path: FaultPath) -> Result<FilledRegion, Error> {
        let inner: Arc<dyn Provider> = match config.tcp {
            true => Arc::new(TcpProvider::default()),
            false => Arc::new(ShmProvider::default()),
        };
        let address = if config.tcp { "127.0.0.1:0" } else { "local:" };
        let provider: Arc<dyn Provider> = match config.unshaped {
            true => inner,
            false => Arc::new(ShapedProvider::new(inner, LINK)),
        };
        let runtime = production::Runtime::new(1).map_err(|error| part(&error))?;
        let pages = u32::try_from(config.region_bytes / PAGE_BYTES as u64).map_err(|error| part(&error))?;
        let (store, nodes) = runtime.block_on(async {
            let (space, nodes) = open(provider, address, config.region_bytes).await?;
            let store = PoolStore::new(space, pages, None).map_err(|error| part(&error))?;
            Ok::<_, Error>((Arc::new(store), nodes))
        })?;
        let shared: Arc<dyn PageStore> = Arc::<PoolStore>::clone(&store);
        let (bytes, budget_bytes) = (config.region_bytes, config.budget_bytes);
        let region = RegionConfig { name: "bench".to_owned(), bytes, budget_bytes, store: shared, fault_path };
        let mut region = Region::create(region).map_err(|error| part(&error))?;
        region.as_mut_slice().chunks_exact_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
        Ok(FilledRegion { region, store, _nodes: nodes, runtime, next: 0 })
    }

    fn pages(&self) -> usize {
        self.region.as_slice().len() / PAGE_BYTES
    }

    /// Pages that hardly ever follow one another: a walk by a step that has no factor in common with their number.
    fn scattered(&self, index: usize) -> usize {
        index * 25_013 % self.pages()
    }

    /// The median of reads of single pages that the pool has.
    fn page_read_us(&self) -> Result<f64, Error> {
        let mut times = Vec::with_capacity(READS);
        self.runtime.block_on(async {
            let mut buffer = BytesMut::new();
            for read in 0..READS {
                let range = PageRange { first: PageNumber(self.scattered(read) as u32), pages: 1 };
                if !self.store.holds(range.first) {
                    continue;
                }
                buffer.clear();
                let start = Instant::now();
                buffer = self.store.read(range, buffer).await.map_err(|error| part(&error))?;
                times.push(start.elapsed().as_nanos() as f64 / 1e3);
            }
            Ok::<_, Error>(())
        })?;
        match times.is_empty() {
            true => Err(part(&"the pool has no page of the region: its budget must be below its size")),
            false => Ok(median(times)),
        }
    }

    /// Gigabytes a second of reads of whole groups, several in flight.
    fn provider_rate(&self) -> Result<f64, Error> {
        let groups = (0..self.pages() as u32).step_by(GROUP_PAGES as usize);
        let is_held = |first: &u32| (0..GROUP_PAGES).all(|page| self.store.holds(PageNumber(first + page)));
        let held: Vec<u32> = groups.filter(is_held).collect();
        let start = Instant::now();
        self.runtime.block_on(async {
            let mut reads = VecDeque::new();
            for first in &held {
                let range = PageRange { first: PageNumber(*first), pages: GROUP_PAGES };
                reads.push_back(self.store.read(range, BytesMut::with_capacity(range.bytes())));
                if reads.len() == READS_IN_FLIGHT
                    && let Some(read) = reads.pop_front()
                {
                    std::hint::black_box(read.await.map_err(|error| part(&error))?);
                }
            }
            for read in reads {
                std::hint::black_box(read.await.map_err(|error| part(&error))?);
            }
            Ok::<_, Error>(())
        })?;
        Ok(held.len() as f64 * f64::from(GROUP_PAGES) * PAGE_BYTES as f64 / start.elapsed().as_secs_f64() / 1e9)
    }

    /// The median of accesses to pages at random, in microseconds, and the processor time for 100,000 faults, in seconds.
    fn random_faults(&mut self, faults: usize) -> (f64, f64) {
        let (before, used) = (self.region.stats().faults, processor_seconds());
        let mut times = Vec::with_capacity(faults);
        for _ in 0..faults {
            let place = self.scattered(self.next) * PAGE_BYTES;
            self.next += 1;
            let start = Instant::now();
            std::hint::black_box(self.region.as_slice()[place]);
            times.push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        let served = self.region.stats().faults - before;
        (median(times), (processor_seconds() - used) / served as f64 * 100_000.0)
    }

    /// Gigabytes a second of a pass through the region that reads every cache line.
    fn stream(&self) -> f64 {
        let start = Instant::now();
        let words = self.region.as_slice().chunks_exact(64).map(|line| u64::from(line[0]));
        std::hint::black_box(words.sum::<u64>());
        self.region.as_slice().len() as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}

/// Memory nodes of this process, and an address space over them.
async fn open(
    provider: Arc<dyn Provider>,
    address: &str,
    region_bytes: u64,
) -> Result<(AddressSpace, Vec<Arc<MemoryNode>>), Error> {
    let mut nodes = Vec::new();
    for node in 0..DONORS {
        let options = HostConfig { node: NodeId(node), tokens: Arc::new(|_| Some(TOKEN)) };
        let host = provider.host(address, options).await.map_err(|error| part(&error))?;
        let stop = CancellationToken::new();
        let options = MemoryNodeConfig { host, budget_bytes: region_bytes, section_bytes: SECTION_BYTES, stop };
        nodes.push(MemoryNode::start(options).await.map_err(|error| part(&error))?);
    }
    let donors = nodes.iter().map(|node| Donor { address: node.address(), token: TOKEN }).collect();
    let config = AddressSpaceConfig {
        owner: "bench".to_owned(),
        epoch: Epoch(1),
        provider,
        donors,
        section_bytes: SECTION_BYTES,
        budget_bytes: 2 * region_bytes,
    };
    Ok((AddressSpace::open(config).await.map_err(|error| part(&error))?, nodes))
}

/// Seconds of processor time that this process has used.
fn processor_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}
