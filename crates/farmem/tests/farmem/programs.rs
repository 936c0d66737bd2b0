//! Simulated programs, each with a store over one address space. They start, fork, write, read and end at the same time, with
//! donors that crash and storage that fails; each store's content is compared with a model of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt::simulation::{Prng, Sim};
use base::rt::{self, Task};
use base::{Bytes, BytesMut};
use farmem::{PAGE_BYTES, PageNumber, PageRange, PageStore as _, PoolStore, StoreError, StoreUsage};
use futures_util::future::join;

use crate::draws::{draw_range, draw_written};
use crate::faulty_storage;
use crate::stores::{ATTEMPTS, DONORS, content};

/// Pages of a region. The pool has room for 192 pages, so that one region fits and two do not.
pub const PAGES: u32 = 160;
const PROGRAMS_FIRST: u64 = 2;
/// Programs at the same time.
const PROGRAMS_MAX: u64 = 6;
/// Operations of all programs together.
const OPERATIONS: u64 = 1200;
/// Writes of a run that are given up halfway. Each may cost a frame, of which there are 12.
const CANCELLED_MAX: u64 = 3;

/// The faults of a run.
#[derive(Clone, Copy)]
pub struct Faults {
    pub donors_crash: bool,
    pub storage_loses_pages: bool,
}

pub const NO_LOSSES: Faults = Faults { donors_crash: false, storage_loses_pages: false };

/// What happened in a run.
#[derive(Default, Debug)]
pub struct Report {
    operations: u64,
    pub programs: u64,
    running: u64,
    pub forks: u64,
    pub forks_with_losses: u64,
    pub cancelled: u64,
    pub crashes: u64,
    pub pages_read: u64,
    pub lost_with_donors: u64,
    pub lost_in_storage: u64,
    version: u64,
    pub wrong: Vec<String>,
}

struct World {
    sim: Sim,
    faults: Faults,
    /// Holds nothing. Other stores are made from it.
    root: PoolStore,
    report: Mutex<Report>,
    tasks: Mutex<Vec<Task<()>>>,
}

impl World {
    fn report(&self) -> MutexGuard<'_, Report> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong(&self, what: String) {
        self.report().wrong.push(what);
    }

    fn next_task(&self) -> Option<Task<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Starts a program with this store, which holds what the model says.
    fn start(self: &Arc<World>, store: PoolStore, model: BTreeMap<PageNumber, u64>, rng: Prng) {
        let number = {
            let mut report = self.report();
            report.running += 1;
            report.programs += 1;
            report.programs
        };
        let program = Program { number, world: Arc::clone(self), store, model, rng };
        let running: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(program.run());
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(rt::spawn(running));
    }

    /// Whether there is room for one more program.
    fn has_room(&self) -> bool {
        self.report().running < PROGRAMS_MAX
    }
}

struct Program {
    number: u64,
    world: Arc<World>,
    store: PoolStore,
    /// The version of each page that was acknowledged last, to this program or to one that it was forked off.
    model: BTreeMap<PageNumber, u64>,
    rng: Prng,
}

impl Program {
    async fn run(mut self) {
        while self.begin_operation() {
            match self.rng.below(200) {
                0..80 => self.write().await,
                80..170 => self.read_some().await,
                170..180 => self.discard(),
                180..188 => self.fork().await,
                188..190 => self.cancel().await,
                190..192 if self.world.has_room() => {
                    let store = self.world.root.another(PAGES).expect("the region is small");
                    self.world.start(store, BTreeMap::new(), Prng::new(self.rng.number()));
                }
                192..194 if self.world.report().running > 1 => break,
                194..196 if self.world.faults.donors_crash => self.crash_donor().await,
                _ => rt::sleep(Duration::from_micros(self.rng.below(500))).await,
            }
            if let Err(wrong) = self.store.check() {
                self.world.wrong(wrong);
            }
        }
        let pages: Vec<PageNumber> = self.model.keys().copied().collect();
        for page in pages {
            if self.model.contains_key(&page) && self.world.report().wrong.is_empty() {
                self.read(PageRange::of(page)).await;
            }
        }
        self.world.report().running -= 1;
    }

    /// Counts an operation. False if the run is over.
    fn begin_operation(&self) -> bool {
        let mut report = self.world.report();
        report.operations += 1;
        report.operations <= OPERATIONS && report.wrong.is_empty()
    }

    async fn write(&mut self) {
        let (range, version) = (draw_range(&mut self.rng, PAGES, 40), self.next_version());
        let bytes = self.bytes(range, version);
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match self.store.write(range, bytes.clone()).await {
                Ok(()) => {
                    self.model.extend(range.iter().map(|page| (page, version)));
                    return;
                }
                Err(error) => why = error.to_string(),
            }
            // The store has none of the pages now.
            self.forget(range);
            rt::sleep(Duration::from_millis(100)).await;
        }
        self.world.wrong(format!("program {} could not write {range:?}: {why}", self.number));
    }

    fn bytes(&self, range: PageRange, version: u64) -> Bytes {
        range.iter().flat_map(|page| content(page, version)).collect::<Vec<u8>>().into()
    }

    /// A version that no other write has, in whichever program.
    fn next_version(&self) -> u64 {
        let mut report = self.world.report();
        report.version += 1;
        report.version
    }

    async fn read_some(&mut self) {
        if let Some(range) = draw_written(&mut self.rng, &self.model) {
            self.read(range).await;
        }
    }

    async fn read(&mut self, range: PageRange) {
        let mut why = None;
        for _ in 0..ATTEMPTS {
            let outcome = self.store.read(range, BytesMut::new()).await;
            why = self.judge(range, outcome);
            if why.is_none() {
                return;
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        let why = why.map(|error| error.to_string());
        self.world.wrong(format!("program {} could not read {range:?}: {why:?}", self.number));
    }

    /// Compares a read with the model. An error that another attempt may not have is returned.
    fn judge(&mut self, range: PageRange, outcome: Result<BytesMut, StoreError>) -> Option<StoreError> {
        let mut wrong = Vec::new();
        let mut report = self.world.report();
        match outcome {
            Ok(bytes) => {
                for (page, read) in range.iter().zip(bytes.chunks_exact(PAGE_BYTES)) {
                    if read != content(page, self.model[&page]) {
                        wrong.push(format!("program {}: page {} reads as something else", self.number, page.0));
                    }
                }
                report.pages_read += u64::from(range.pages);
            }
            Err(StoreError::Lost { range: lost, node }) => {
                let by_donor = DONORS.iter().any(|donor| node.ends_with(donor));
                report.lost_with_donors += if by_donor { u64::from(lost.pages) } else { 0 };
                report.lost_in_storage += if by_donor { 0 } else { u64::from(lost.pages) };
                let is_possible = match by_donor {
                    true => report.crashes > 0,
                    false => node == faulty_storage::NAME && self.world.faults.storage_loses_pages,
                };
                if !is_possible || !range.contains(lost) {
                    wrong.push(format!("program {}: {lost:?} are lost with {node}", self.number));
                }
                self.model.retain(|page, _| !lost.contains(PageRange::of(*page)));
            }
            Err(error) => return Some(error),
        }
        report.wrong.extend(wrong);
        None
    }

    fn discard(&mut self) {
        let range = draw_range(&mut self.rng, PAGES, 40);
        self.store.discard(range);
        self.forget(range);
    }

    /// Forks the store, with or without a read in flight, and starts a program with the copy.
    async fn fork(&mut self) {
        if !self.world.has_room() {
            return;
        }
        let model = self.model.clone();
        let child = match draw_written(&mut self.rng, &self.model) {
            Some(range) if self.rng.one_in(2) => {
                let wait = Duration::from_micros(self.rng.below(1500));
                let read = self.store.read(range, BytesMut::new());
                let fork = async {
                    rt::sleep(wait).await;
                    self.store.fork()
                };
                let (outcome, child) = join(read, fork).await;
                self.judge(range, outcome);
                child
            }
            _ => self.store.fork(),
        };
        {
            let mut report = self.world.report();
            report.forks += 1;
            let has_losses = model.keys().any(|page| !child.holds(*page));
            report.forks_with_losses += u64::from(has_losses);
        }
        self.world.start(child, model, Prng::new(self.rng.number()));
    }

    /// Drops the future of a write, or of a read, before it is done.
    async fn cancel(&mut self) {
        let patience = Duration::from_micros(self.rng.below(3000));
        if self.rng.one_in(2) {
            if let Some(range) = draw_written(&mut self.rng, &self.model) {
                let _ = rt::timeout(patience, self.store.read(range, BytesMut::new())).await;
            }
            return;
        }
        {
            let mut report = self.world.report();
            if report.cancelled == CANCELLED_MAX {
                return;
            }
            report.cancelled += 1;
        }
        let (range, version) = (draw_range(&mut self.rng, PAGES, 40), self.next_version());
        let bytes = self.bytes(range, version);
        self.forget(range);
        if let Ok(Ok(())) = rt::timeout(patience, self.store.write(range, bytes)).await {
            self.model.extend(range.iter().map(|page| (page, version)));
        }
    }

    async fn crash_donor(&mut self) {
        let donor = self.world.sim.node(DONORS[self.rng.index(DONORS.len())]);
        self.world.report().crashes += 1;
        donor.crash();
        rt::sleep(Duration::from_millis(self.rng.below(300))).await;
        donor.restart();
    }

    fn forget(&mut self, range: PageRange) {
        self.model.retain(|page, _| !range.contains(PageRange::of(*page)));
    }
}

/// Runs programs whose stores are made from this one, which holds nothing.
pub async fn run_programs(sim: Sim, root: PoolStore, faults: Faults) -> Report {
    let mut rng = sim.rng();
    let world = Arc::new(World { sim, faults, root, report: Mutex::default(), tasks: Mutex::default() });
    for _ in 0..PROGRAMS_FIRST {
        let store = world.root.another(PAGES).expect("the region is small");
        world.start(store, BTreeMap::new(), Prng::new(rng.number()));
    }
    while let Some(task) = world.next_task() {
        if task.await.is_err() {
            world.wrong("a program panicked".to_owned());
        }
    }
    // Every frame and slot is free, but for those that must not be written any more.
    match world.root.check() {
        Ok(usage) if usage == StoreUsage::default() => {}
        other => world.wrong(format!("after the last program has ended: {other:?}")),
    }
    std::mem::take(&mut *world.report())
}
