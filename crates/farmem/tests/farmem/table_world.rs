//! A region without memory: threads, a kernel, a store and a driver, each of whose steps is drawn from a seed.
//!
//! A page's content is one number. The model is what the threads have written; each read is compared with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::rt::simulation::Prng;
use farmem::table::{FaultPlan, PageAccess, PageState, RegionTable};
use farmem::{PageNumber, PageRange};

pub const PAGES: u32 = 1024;
pub const BUDGET: u32 = 128;
const THREADS: usize = 4;
const NODES: u64 = 3;
const DISCARD_PAGES_MAX: u64 = 40;

/// How often things go wrong; each number is "once in so many", 0 for never.
#[derive(Clone, Copy)]
pub struct Faults {
    pub store_fails: u64,
    pub node_lost: u64,
    pub pinned: u64,
}

#[derive(Clone, Copy)]
struct Mapped {
    content: u64,
    is_protected: bool,
}

#[derive(Clone, Copy)]
struct Access {
    page: PageNumber,
    write: Option<u64>,
    /// The handler has been told.
    is_reported: bool,
}

/// What the driver has in flight.
enum Operation {
    Fill {
        ranges: Vec<PageRange>,
        writable: bool,
    },
    /// Read from the store, and not mapped yet.
    Map {
        range: PageRange,
        writable: bool,
        contents: Vec<u64>,
    },
    Zero(PageRange),
    /// Mapped, and not reported yet.
    Report(PageRange),
    Drop(PageRange),
    MoveOut(PageRange),
    WriteBack {
        range: PageRange,
    },
    Discard(PageRange),
}

/// How the threads choose pages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    Random,
    /// Three quarters of the accesses go to a sixteenth of the pages.
    Skewed,
    /// Each thread walks through the region.
    Streams,
}

pub struct World {
    rng: Prng,
    pub table: RegionTable,
    faults: Faults,
    workload: Workload,
    memory: Vec<Option<Mapped>>,
    /// Pages that were moved out and whose outcome is not known.
    buffer: BTreeMap<PageNumber, u64>,
    /// Content and node of each page that the store holds.
    store: BTreeMap<PageNumber, (u64, u64)>,
    model: Vec<u64>,
    /// Pages that had no other copy than the one which their node lost.
    gone: BTreeSet<PageNumber>,
    threads: [Option<Access>; THREADS],
    cursors: [u32; THREADS],
    /// How lazy the evictor is. If it is, faults find no room.
    eviction_one_in: u64,
    events: VecDeque<usize>,
    operations: Vec<Operation>,
    pub wrong: Vec<String>,
    pub reads: u64,
    pub losses_seen: u64,
    pub nodes_lost: u64,
    pub discarded: u64,
    next_content: u64,
}

impl World {
    pub fn new(seed: u64, workload: Workload, faults: Faults) -> World {
        let mut rng = Prng::new(seed);
        let cursors = [(); THREADS].map(|()| rng.below(u64::from(PAGES)) as u32);
        World {
            rng,
            table: RegionTable::new(PAGES, BUDGET).expect("there is memory"),
            faults,
            workload,
            memory: vec![None; PAGES as usize],
            buffer: BTreeMap::new(),
            store: BTreeMap::new(),
            model: vec![0; PAGES as usize],
            gone: BTreeSet::new(),
            threads: [None; THREADS],
            cursors,
            eviction_one_in: 1 + seed % 2 * 40,
            events: VecDeque::new(),
            operations: Vec::new(),
            wrong: Vec::new(),
            reads: 0,
            losses_seen: 0,
            nodes_lost: 0,
            discarded: 0,
            next_content: 0,
        }
    }

    fn happens(&mut self, one_in: u64) -> bool {
        one_in > 0 && self.rng.one_in(one_in)
    }

    fn draw_access(&mut self, thread: usize) -> Access {
        let pages = u64::from(PAGES);
        let page = match self.workload {
            Workload::Random => self.rng.below(pages),
            Workload::Skewed if !self.rng.one_in(4) => self.rng.below(pages / 16) * 16,
            Workload::Skewed => self.rng.below(pages),
            Workload::Streams => {
                self.cursors[thread] = (self.cursors[thread] + 1) % PAGES;
                u64::from(self.cursors[thread])
            }
        };
        let write = self.rng.one_in(3).then(|| {
            self.next_content += 1;
            self.next_content
        });
        Access { page: PageNumber(page as u32), write, is_reported: false }
    }

    /// One step of somebody.
    pub fn step(&mut self, may_start: bool) {
        match self.rng.below(10) {
            0..4 => self.run_thread(may_start),
            4..6 => self.handle_fault(),
            6 if self.table.wants_eviction() && self.rng.one_in(self.eviction_one_in) => self.evict(),
            6 if self.rng.one_in(500) => self.evict(),
            6 if may_start && self.rng.one_in(30) => self.begin_discard(),
            6 if self.happens(self.faults.node_lost) => self.lose_node(),
            _ => self.advance_operation(),
        }
        let resident = self.memory.iter().flatten().count() + self.buffer.len();
        let resident = resident.max(self.table.stats().resident_pages as usize);
        if resident > BUDGET as usize {
            self.wrong.push(format!("{resident} pages are resident, and the budget is {BUDGET}"));
        }
    }

    fn run_thread(&mut self, may_start: bool) {
        let thread = self.rng.index(THREADS);
        let access = match self.threads[thread] {
            Some(access) => access,
            None if may_start => self.draw_access(thread),
            None => return,
        };
        self.threads[thread] = Some(access);
        let Access { page, write, is_reported } = access;
        match (&mut self.memory[page.0 as usize], write) {
            (Some(mapped), None) => {
                self.reads += 1;
                let (read, written) = (mapped.content, self.model[page.0 as usize]);
                if read != written {
                    self.wrong.push(format!("page {} reads as {read}, and {written} was written", page.0));
                }
                self.threads[thread] = None;
            }
            (Some(Mapped { content, is_protected: false }), Some(new)) => {
                *content = new;
                self.model[page.0 as usize] = new;
                self.threads[thread] = None;
            }
            _ if !is_reported => {
                self.threads[thread] = Some(Access { is_reported: true, ..access });
                self.events.push_back(thread);
            }
            // It sleeps.
            _ => {}
        }
    }

    fn wake(&mut self, range: PageRange) {
        for access in self.threads.iter_mut().flatten() {
            if range.iter().any(|page| page == access.page) {
                access.is_reported = false;
            }
        }
    }

    fn handle_fault(&mut self) {
        let Some(thread) = self.events.pop_front() else { return };
        let Some(Access { page, write, .. }) = self.threads[thread] else { return };
        let range = PageRange::of(page);
        let access = if write.is_some() { PageAccess::Write } else { PageAccess::Read };
        match self.table.fault(page, access) {
            FaultPlan::Wake => self.wake(range),
            FaultPlan::Wait => {}
            FaultPlan::NoRoom => {
                self.events.push_back(thread);
                self.evict();
            }
            FaultPlan::Unprotect => {
                if let Some(mapped) = &mut self.memory[page.0 as usize] {
                    mapped.is_protected = false;
                }
                self.wake(range);
            }
            FaultPlan::Zero(range) => self.operations.push(Operation::Zero(range)),
            FaultPlan::Fill { writable, ahead } => {
                self.operations.push(Operation::Fill { ranges: vec![range], writable });
                if !ahead.is_empty() {
                    self.operations.push(Operation::Fill { ranges: ahead, writable });
                }
            }
            FaultPlan::Lost => {
                self.losses_seen += 1;
                if !self.gone.contains(&page) {
                    self.wrong.push(format!("page {} is lost, and no node had its only copy", page.0));
                }
                self.threads[thread] = None;
            }
        }
    }

    fn evict(&mut self) {
        let store = &self.store;
        if let Some(eviction) = self.table.begin_eviction(|page| store.contains_key(&page)) {
            self.operations.extend(eviction.to_drop.into_iter().map(Operation::Drop));
            self.operations.extend(eviction.to_write.into_iter().map(Operation::MoveOut));
        }
    }

    /// A memory node is lost with all pages that it holds; its place is taken by an empty one.
    fn lose_node(&mut self) {
        self.nodes_lost += 1;
        let node = self.rng.below(NODES);
        let held: Vec<PageNumber> =
            self.store.iter().filter(|(_, (_, at))| *at == node).map(|(page, _)| *page).collect();
        for page in held {
            self.store.remove(&page);
            // A clean page that is about to be dropped is as good as gone.
            let is_dropped = self.operations.iter().any(
                |operation| matches!(operation, Operation::Drop(range) if range.iter().any(|other| other == page)),
            );
            let is_here = self.memory[page.0 as usize].is_some() || self.buffer.contains_key(&page);
            if !is_here || is_dropped {
                self.gone.insert(page);
            }
        }
    }

    fn map(&mut self, range: PageRange, contents: &[u64], is_protected: bool) {
        for (page, content) in range.iter().zip(contents) {
            self.memory[page.0 as usize] = Some(Mapped { content: *content, is_protected });
        }
    }

    fn advance_operation(&mut self) {
        if self.operations.is_empty() {
            return;
        }
        let index = self.rng.index(self.operations.len());
        match self.operations.swap_remove(index) {
            Operation::Zero(range) => {
                self.map(range, &vec![0; range.pages as usize], false);
                self.operations.push(Operation::Report(range));
            }
            Operation::Fill { ranges, writable } => ranges.into_iter().for_each(|range| self.read(range, writable)),
            Operation::Map { range, writable, contents } => {
                self.map(range, &contents, !writable);
                // The kernel wakes threads when it maps a page, the driver when it has reported it.
                self.wake(range);
                self.operations.push(Operation::Report(range));
            }
            Operation::Report(range) => {
                self.table.filled(range);
                self.wake(range);
            }
            Operation::Drop(range) => {
                for page in range.iter() {
                    self.take_away(page);
                }
                self.table.dropped(range);
                self.wake(range);
            }
            Operation::MoveOut(range) => self.move_out(range),
            Operation::WriteBack { range } => self.write_back(range),
            Operation::Discard(range) => self.discard(range),
        }
    }

    /// The program says that it is about to drop pages.
    fn begin_discard(&mut self) {
        let first = self.rng.below(u64::from(PAGES)) as u32;
        let pages = (1 + self.rng.below(DISCARD_PAGES_MAX) as u32).min(PAGES - first);
        let range = PageRange { first: PageNumber(first), pages };
        if self.table.begin_discard(range) {
            self.operations.push(Operation::Discard(range));
        }
    }

    fn discard(&mut self, range: PageRange) {
        for page in range.iter() {
            self.memory[page.0 as usize] = None;
            self.model[page.0 as usize] = 0;
            self.store.remove(&page);
            self.gone.remove(&page);
        }
        self.table.discarded(range);
        self.discarded += u64::from(range.pages);
        self.wake(range);
    }

    /// The process forks: the world of the child, which has no threads yet.
    pub fn fork(&mut self, seed: u64) -> World {
        let mut quiet = self.table.freeze();
        for _ in 0..10_000 {
            if quiet {
                break;
            }
            self.evict();
            self.advance_operation();
            quiet = self.table.freeze();
        }
        assert!(quiet, "what is in flight ends");
        let mut child = World::new(seed, self.workload, self.faults);
        child.table = self.table.fork().expect("nothing is in flight");
        self.table.thaw();
        child.memory.clone_from(&self.memory);
        child.store.clone_from(&self.store);
        child.model.clone_from(&self.model);
        child.gone.clone_from(&self.gone);
        child.next_content = self.next_content;
        child
    }

    fn read(&mut self, range: PageRange, writable: bool) {
        if self.happens(self.faults.store_fails) {
            self.table.not_filled(range);
            return self.wake(range);
        }
        // A store says which pages it has lost; the others of the range are read.
        for page in range.iter() {
            let range = PageRange::of(page);
            match self.store.get(&page) {
                Some((content, _)) => {
                    let contents = vec![*content];
                    self.operations.push(Operation::Map { range, writable, contents });
                }
                None => {
                    self.table.lost(range);
                    if self.table.state(page) == PageState::Lost && !self.gone.contains(&page) {
                        self.wrong.push(format!("page {} is lost, and no node had its only copy", page.0));
                    }
                    self.wake(range);
                }
            }
        }
    }

    fn move_out(&mut self, range: PageRange) {
        for page in range.iter() {
            let range = PageRange::of(page);
            if self.happens(self.faults.pinned) {
                self.table.stayed(range);
                self.wake(range);
                continue;
            }
            if let Some(mapped) = self.take_away(page) {
                self.buffer.insert(page, mapped.content);
                self.operations.push(Operation::WriteBack { range });
            }
        }
    }

    fn take_away(&mut self, page: PageNumber) -> Option<Mapped> {
        let mapped = self.memory[page.0 as usize].take();
        if mapped.is_none() {
            self.wrong.push(format!("page {} is evicted before it is there", page.0));
        }
        mapped
    }

    fn write_back(&mut self, range: PageRange) {
        let page = range.first;
        let content = self.buffer.remove(&page).expect("it was moved there");
        if content == 0 {
            self.store.remove(&page);
            self.table.left_zero(range);
        } else if self.happens(self.faults.store_fails) {
            // The bytes may have arrived all the same, or in part: the old copy is worth nothing.
            self.store.remove(&page);
            self.map(range, &[content], false);
            self.table.restored(range);
        } else {
            let node = self.rng.below(NODES);
            self.store.insert(page, (content, node));
            self.table.written(range);
        }
        self.wake(range);
    }

    /// Ends what is in flight, and then reads every page.
    pub fn finish(&mut self) {
        self.faults = Faults { store_fails: 0, node_lost: 0, pinned: 0 };
        let is_over = |world: &World| world.operations.is_empty() && world.threads.iter().all(Option::is_none);
        for page in 0..=PAGES {
            for _ in 0..10_000 {
                if is_over(self) {
                    break;
                }
                self.step(false);
            }
            if !is_over(self) {
                let waiting: Vec<_> = self.threads.iter().flatten().map(|access| access.page).collect();
                return self.wrong.push(format!("threads wait for ever, for {waiting:?}"));
            }
            if page < PAGES {
                self.threads[0] = Some(Access { page: PageNumber(page), write: None, is_reported: false });
            }
        }
    }
}
