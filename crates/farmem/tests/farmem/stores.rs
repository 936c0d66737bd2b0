//! Stores over simulated donors and a simulated disk: content against a model, with donors that crash.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt::disk::Directory;
use base::rt::simulation::{Prng, Sim, Simulation};
use base::rt::{self, CancellationToken};
use base::{Bytes, BytesMut, Epoch};
use farmem::mutant::{Mutant, plant};
use farmem::{
    FileStorage, GROUP_PAGES, PAGE_BYTES, PageNumber, PageRange, PageStore, PoolStore, StorageTier, StoreError,
};
use pool::{AddressSpace, AddressSpaceConfig, Donor, MemoryNode, MemoryNodeConfig};
use rma::sim::SimProvider;
use rma::{HostConfig, NodeId, Provider as _, Token};

use crate::draws::{draw_range, draw_written};

const TOKEN: Token = Token::new([7; 32]);
pub const DONORS: [&str; 3] = ["d0", "d1", "d2"];
pub const SECTION: u64 = 128 << 10;
/// Sections of each donor: together as much as 192 pages.
const DONOR_SECTIONS: u64 = 2;
const PAGES: u32 = 640;
const OPERATIONS: u32 = 400;
const SEEDS: u64 = 8;
/// Attempts of an operation that does not work this time.
pub const ATTEMPTS: u32 = 40;

pub fn start_donor(sim: &Sim, provider: &SimProvider, which: usize) {
    let provider = provider.clone();
    sim.node(DONORS[which]).start(move || {
        let provider = provider.clone();
        async move {
            let options = HostConfig { node: NodeId(which as u32), tokens: Arc::new(|_| Some(TOKEN)) };
            let host = loop {
                match provider.host(DONORS[which], options.clone()).await {
                    Ok(host) => break host,
                    Err(_) => rt::sleep(Duration::from_millis(10)).await,
                }
            };
            let budget_bytes = DONOR_SECTIONS * SECTION;
            let stop = CancellationToken::new();
            let options = MemoryNodeConfig { host, budget_bytes, section_bytes: SECTION, stop };
            let _node = MemoryNode::start(options).await.expect("the options are good");
            std::future::pending::<()>().await;
        }
    });
}

/// A page's content: its number and a version, over and over.
pub fn content(page: PageNumber, version: u64) -> Vec<u8> {
    let words = [u64::from(page.0), version].map(u64::to_le_bytes).concat();
    words.repeat(PAGE_BYTES / 16)
}

/// A run of a store, and what was wrong.
struct Run {
    store: Arc<PoolStore>,
    rng: Prng,
    /// The version of each page that was acknowledged last.
    model: BTreeMap<PageNumber, u64>,
    version: u64,
    crashes: u32,
    lost: u64,
    full: u64,
    wrong: Vec<String>,
}

impl Run {
    async fn write(&mut self, range: PageRange) {
        self.version += 1;
        let bytes: Vec<u8> = range.iter().flat_map(|page| content(page, self.version)).collect();
        for _ in 0..ATTEMPTS {
            match self.store.write(range, Bytes::from(bytes.clone())).await {
                Ok(()) => {
                    self.model.extend(range.iter().map(|page| (page, self.version)));
                    if let Some(page) = range.iter().find(|page| !self.store.holds(*page)) {
                        self.wrong.push(format!("page {} was written and is not held", page.0));
                    }
                    return;
                }
                Err(StoreError::Full(_)) => self.full += 1,
                Err(_) => {}
            }
            // The store has none of the pages now.
            self.forget(range);
            rt::sleep(Duration::from_millis(100)).await;
        }
        if self.full == 0 {
            self.wrong.push(format!("{range:?} could not be written"));
        }
    }

    async fn read(&mut self, range: PageRange) {
        let mut why = String::new();
        for _ in 0..ATTEMPTS {
            match self.store.read(range, BytesMut::new()).await {
                Ok(bytes) => {
                    for (page, read) in range.iter().zip(bytes.chunks_exact(PAGE_BYTES)) {
                        if read != content(page, self.model[&page]) {
                            self.wrong.push(format!("page {} reads as something else", page.0));
                        }
                    }
                    return;
                }
                Err(StoreError::Lost { range, node }) => {
                    if self.crashes == 0 || !DONORS.iter().any(|donor| node.ends_with(donor)) {
                        self.wrong.push(format!("{range:?} are lost with {node}"));
                    }
                    for page in range.iter() {
                        self.lost += 1;
                        self.model.remove(&page);
                    }
                    return;
                }
                Err(error) => why = error.to_string(),
            }
            rt::sleep(Duration::from_millis(100)).await;
        }
        self.wrong.push(format!("{range:?} could not be read: {why}"));
    }

    fn forget(&mut self, range: PageRange) {
        for page in range.iter() {
            self.model.remove(&page);
        }
    }
}

pub async fn open(provider: &SimProvider) -> AddressSpace {
    let donors = DONORS.map(|address| Donor { address: address.to_owned(), token: TOKEN }).to_vec();
    let config = AddressSpaceConfig {
        owner: "owner".to_owned(),
        epoch: Epoch(1),
        provider: Arc::new(provider.clone()),
        donors,
        section_bytes: SECTION,
        budget_bytes: 64 * SECTION,
    };
    AddressSpace::open(config).await.expect("no newer epoch has begun")
}

async fn run_store(sim: Sim, with_storage: bool, with_crashes: bool) -> Run {
    let provider = SimProvider::new(&sim);
    (0..DONORS.len()).for_each(|which| start_donor(&sim, &provider, which));
    rt::sleep(Duration::from_millis(50)).await;
    let space = open(&provider).await;
    let storage: Option<Arc<dyn StorageTier>> = if with_storage {
        let directory = Directory::open("far").await.expect("the disk works");
        Some(Arc::new(FileStorage::create(&directory, "pages").expect("the disk works")))
    } else {
        None
    };
    let store = Arc::new(PoolStore::new(space, PAGES, storage).expect("the options are good"));
    let (rng, model, wrong) = (sim.rng(), BTreeMap::new(), Vec::new());
    let mut run = Run { store, rng, model, version: 0, crashes: 0, lost: 0, full: 0, wrong };
    for _ in 0..OPERATIONS {
        match run.rng.below(100) {
            0..45 => {
                let range = draw_range(&mut run.rng, PAGES, 40);
                run.write(range).await;
            }
            45..98 => {
                if let Some(range) = draw_written(&mut run.rng, &run.model) {
                    run.read(range).await;
                }
            }
            98 => {
                let range = draw_range(&mut run.rng, PAGES, 20);
                run.store.discard(range);
                run.forget(range);
            }
            _ if with_crashes => {
                let donor = sim.node(DONORS[run.rng.index(DONORS.len())]);
                donor.crash();
                run.crashes += 1;
                rt::sleep(Duration::from_millis(run.rng.below(500))).await;
                donor.restart();
            }
            _ => {}
        }
        if !run.wrong.is_empty() {
            return run;
        }
    }
    let pages: Vec<PageNumber> = run.model.keys().copied().collect();
    for page in pages {
        if run.model.contains_key(&page) {
            run.read(PageRange::of(page)).await;
        }
    }
    run.wrong.extend(run.store.check().err());
    run
}

fn run(seed: u64, with_storage: bool, with_crashes: bool) -> Run {
    let simulation = Simulation::new(seed).time_max(Duration::from_secs(3600));
    let run = simulation.run(move |sim| run_store(sim, with_storage, with_crashes));
    run.unwrap_or_else(|failure| panic!("{failure}")).value
}

#[test]
fn pages_that_the_pool_has_no_room_for_are_in_storage() {
    for seed in 0..SEEDS {
        let run = run(seed, true, false);
        assert!(run.wrong.is_empty(), "seed {seed}: {:?}", run.wrong);
        assert_eq!((run.lost, run.full), (0, 0), "seed {seed}");
        assert!(run.model.len() > 400, "more pages than the pool has room for");
    }
}

#[test]
fn a_lost_donor_loses_the_pages_that_storage_does_not_have_and_no_others() {
    let (mut lost, mut crashes, mut kept) = (0, 0, 0);
    for seed in 0..SEEDS {
        let run = run(seed, true, true);
        assert!(run.wrong.is_empty(), "seed {seed}: {:?}", run.wrong);
        lost += run.lost;
        crashes += run.crashes;
        kept += run.model.len();
    }
    println!("{crashes} crashes, {lost} pages lost, {kept} pages kept");
    assert!(crashes > 10 && lost > 50 && kept > 100 * SEEDS as usize);
}

#[test]
fn without_storage_a_full_pool_says_so() {
    let run = run(1, false, false);
    assert!(run.wrong.is_empty(), "{:?}", run.wrong);
    assert!(run.full > 0 && run.lost == 0);
}

/// One bad page made every page of its group that storage alone had unreadable, and then lost.
#[test]
fn a_page_that_storage_has_lost_takes_no_other_page_with_it() {
    let simulation = Simulation::new(1).time_max(Duration::from_secs(3600));
    let run = simulation.run(|sim| async move {
        let provider = SimProvider::new(&sim);
        (0..DONORS.len()).for_each(|which| start_donor(&sim, &provider, which));
        rt::sleep(Duration::from_millis(50)).await;
        let directory = Directory::open("far").await.expect("the disk works");
        let storage = Arc::new(FileStorage::create(&directory, "pages").expect("the disk works"));
        let store = PoolStore::new(open(&provider).await, PAGES, Some(storage)).expect("the options are good");
        for first in (0..PAGES).step_by(GROUP_PAGES as usize) {
            let range = PageRange { first: PageNumber(first), pages: GROUP_PAGES };
            let bytes: Vec<u8> = range.iter().flat_map(|page| content(page, 1)).collect();
            store.write(range, Bytes::from(bytes)).await.expect("there is room");
        }
        // By now the first groups are in storage alone.
        let bad = [PageNumber(3), PageNumber(9)];
        let file = directory.open_file("pages", false).expect("it is there");
        bad.iter().for_each(|page| file.write_at(page.offset() + 100, b"rot").expect("the disk works"));
        for _ in 0..2 {
            for page in (0..GROUP_PAGES).map(PageNumber) {
                match store.read(PageRange::of(page), BytesMut::new()).await {
                    Ok(bytes) => assert!(bytes == content(page, 1) && !bad.contains(&page), "page {}", page.0),
                    Err(StoreError::Lost { range, node }) => {
                        assert!(bad.contains(&page) && range == PageRange::of(page), "{range:?} for page {}", page.0);
                        assert!(node.contains("pages"), "{node}");
                    }
                    Err(error) => panic!("page {}: {error}", page.0),
                }
            }
        }
        // What is written again is not lost.
        store.write(PageRange::of(bad[0]), Bytes::from(content(bad[0], 2))).await.expect("there is room");
        let read = store.read(PageRange::of(bad[0]), BytesMut::new()).await.expect("it was written");
        assert_eq!(read, content(bad[0], 2));
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// Groups whose pages were all discarded kept their frames, and a pool that held nothing was full.
#[test]
fn the_frames_of_discarded_groups_are_used_again() {
    let simulation = Simulation::new(1).time_max(Duration::from_secs(3600));
    let run = simulation.run(|sim| async move {
        let provider = SimProvider::new(&sim);
        (0..DONORS.len()).for_each(|which| start_donor(&sim, &provider, which));
        rt::sleep(Duration::from_millis(50)).await;
        let store = PoolStore::new(open(&provider).await, PAGES, None).expect("the options are good");
        let group = |first| PageRange { first: PageNumber(first), pages: GROUP_PAGES };
        for first in (0..PAGES).step_by(GROUP_PAGES as usize) {
            let bytes: Vec<u8> = group(first).iter().flat_map(|page| content(page, 1)).collect();
            store.write(group(first), Bytes::from(bytes)).await.expect("the earlier pages need no room any more");
            let read = store.read(group(first), BytesMut::new()).await.expect("it was written");
            assert_eq!(read[..PAGE_BYTES], content(PageNumber(first), 1));
            store.discard(group(first));
        }
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn every_mutant_of_the_store_is_caught() {
    for mutant in [Mutant::WrittenIsClean, Mutant::DropDirtyFrame] {
        plant(mutant);
        let found = (0..SEEDS).find_map(|seed| run(seed, true, false).wrong.into_iter().next());
        plant(Mutant::None);
        println!("{mutant:?}: {}", found.unwrap_or_else(|| panic!("{mutant:?} was not caught")));
    }
}
