//! Regions: memory that is larger than its budget.

#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Lost};
use crate::guard::{FaultService, guard};
use crate::kernel::userfault::UserFaults;
use crate::own_eviction::OwnEviction;
use crate::own_memory::OwnMemory;
use crate::page::{PAGE_BYTES, REGION_PAGES_MAX};
use crate::pager::{self, FaultingThreads, PagerCore, PagerThreads};
use crate::report;
use crate::store::PageStore;
use crate::table::{BUDGET_PAGES_MIN, RegionStats, RegionTable};

/// Which thread serves the page faults of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultPath {
    /// A thread of the region: any access works, that of system calls included.
    #[default]
    Handler,
    /// The thread that touches the page, in a handler of SIGBUS. Over shared memory a fault takes about half the time then, over
    /// TCP two thirds. In exchange:
    /// * A system call on a page that is not resident, or a write of a system call to a page that is write-protected, fails with
    ///   `EFAULT`. Copy through other memory ([`Region::read`], [`Region::write`]).
    /// * A thread that touches the region must not block SIGBUS, nor be a handler of that signal, and needs some 16 KiB of stack
    ///   more. Signal stacks (`sigaltstack`) are not used for SIGBUS in this process any more.
    /// * The memory allocator of the program must not lie in a region.
    FaultingThread,
}

/// The configuration of a region.
#[derive(Clone)]
pub struct RegionConfig {
    /// A name for messages.
    pub name: String,
    /// Bytes of the region; rounded up to pages.
    pub bytes: u64,
    /// Bytes of it that may be resident; at least 256 KiB. While pages are evicted, a buffer of at most 2 MiB comes on top.
    pub budget_bytes: u64,
    /// Where the other pages are.
    pub store: Arc<dyn PageStore>,
    /// Which thread serves page faults.
    pub fault_path: FaultPath,
}

/// Memory of this process that pages fault into. It reads as zeros at first. It ends with this value: what the
/// store holds of it is of no use then.
///
/// A child of a fork does not have the region, and may have other memory at its addresses: the child must not use the region.
/// The program must not unmap, protect, discard (`madvise`) or lock (`mlock`, `mlockall`) parts of it.
///
/// A thread that drives what the store needs (the runtime of a [`PoolStore`](crate::PoolStore)'s space) must neither touch a
/// region nor drop one: it would wait for itself.
pub struct Region {
    core: Arc<PagerCore>,
    own: Arc<OwnMemory>,
    threads: PagerThreads,
    bytes: usize,
    process: u32,
}

impl Region {
    /// Reserves addresses and starts the region's three threads.
    ///
    /// # Errors
    /// [`Error::NoUserFaults`] on a machine that does not allow it, [`Error::Config`], [`Error::System`].
    pub fn create(config: RegionConfig) -> Result<Region, Error> {
        let RegionConfig { name, bytes, budget_bytes, store, fault_path } = config;
        let (pages, table) = new_table(bytes, budget_bytes)?;
        report::start()?;
        let (faults, threads) = match fault_path {
            FaultPath::Handler => (UserFaults::open()?, None),
            FaultPath::FaultingThread => (UserFaults::open_signalling()?, Some(Arc::new(FaultingThreads::default()))),
        };
        faults.check_moves()?;
        let bytes = pages as usize * PAGE_BYTES;
        let own = Arc::new(OwnMemory::new(&name, bytes, &faults, threads.clone())?);
        let path = Box::new(OwnEviction::new(Arc::clone(&own), &faults)?);
        let core = Arc::new(PagerCore::new(name, table, faults, Arc::<OwnMemory>::clone(&own), store, threads.clone()));
        let process = std::process::id();
        let mut region = Region { core: Arc::clone(&core), own, threads: PagerThreads::new(), bytes, process };
        region.threads.start(&core, path)?;
        if let Some(threads) = threads {
            let core = Arc::downgrade(&core);
            let serve = move |address, is_write| {
                // Nobody touches a region that has ended.
                core.upgrade().is_some_and(|core| pager::serve(&threads, &core, address, is_write))
            };
            region.own.site.serve(FaultService(Box::new(serve)))?;
        }
        Ok(region)
    }

    /// How many bytes there are, in whole pages.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes, which no region is.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte. All of [`Region::len`] bytes can be read and written through it, from any thread, while the
    /// region exists; as with all memory, accesses of which one is a write must be synchronised.
    ///
    /// An access to a lost page is a SIGBUS: see [`guard`].
    pub fn as_ptr(&self) -> *mut u8 {
        self.own.memory.start()
    }

    /// All bytes. An access to a lost page ends the program: see [`guard`].
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range is mapped for as long as `self` lives, any bytes are valid, and a page that is not resident is filled
        // before an access to it goes on. A write needs `&mut self`, or a promise to synchronise (`as_ptr`).
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.bytes) }
    }

    /// All bytes. An access to a lost page ends the program: see [`guard`].
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`; `&mut self` excludes other slices.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.bytes) }
    }

    /// Copies bytes out of the region.
    ///
    /// Panics when the range is not within the region.
    ///
    /// # Errors
    /// [`Lost`]: a page of the range is lost. The content of `into` is unspecified then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), Lost> {
        let from = &self.as_slice()[offset..offset + into.len()];
        // SAFETY: the closure holds nothing, and copies bytes only.
        unsafe { guard(|| into.copy_from_slice(from)) }
    }

    /// Copies bytes into the region.
    ///
    /// Panics when the range is not within the region.
    ///
    /// # Errors
    /// [`Lost`]: a page of the range is lost. Other pages of it may have been written.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Lost> {
        let to = &mut self.as_mut_slice()[offset..offset + bytes.len()];
        // SAFETY: the closure holds nothing, and copies bytes only.
        unsafe { guard(|| to.copy_from_slice(bytes)) }
    }

    /// Counts so far.
    pub fn stats(&self) -> RegionStats {
        self.core.table().stats()
    }

    /// The losses that faults have met so far.
    pub fn losses(&self) -> Vec<Lost> {
        self.own.site.losses()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if std::process::id() != self.process {
            // A child of a fork has neither the threads nor the memory.
            std::mem::forget((Arc::clone(&self.core), Arc::clone(&self.own)));
            return std::mem::forget(std::mem::replace(&mut self.threads, PagerThreads::new()));
        }
        self.core.stop();
        if self.threads.len() > 0 {
            self.own.ring();
        }
        self.threads.join();
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} {} bytes)", self.core.name, self.bytes)
    }
}

/// The number of pages of a region, and its page table.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn new_table(bytes: u64, budget_bytes: u64) -> Result<(u32, RegionTable), Error> {
    let pages = u32::try_from(bytes.div_ceil(PAGE_BYTES as u64)).unwrap_or(u32::MAX);
    if !(1..=REGION_PAGES_MAX).contains(&pages) {
        let most = u64::from(REGION_PAGES_MAX) * PAGE_BYTES as u64;
        return Err(Error::Config(format!("a region of {bytes} bytes: choose 1 to {most}")));
    }
    let budget = u32::try_from(budget_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX).min(REGION_PAGES_MAX);
    if budget < BUDGET_PAGES_MIN {
        let least = BUDGET_PAGES_MIN as usize * PAGE_BYTES;
        return Err(Error::Config(format!("a budget of {budget_bytes} bytes: a region needs {least} and more")));
    }
    let table = RegionTable::new(pages, budget);
    let table = table.map_err(|error| Error::Config(format!("a region of {bytes} bytes: its page table: {error}")))?;
    Ok((pages, table))
}
