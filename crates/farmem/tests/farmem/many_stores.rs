//! Several stores over one address space: programs that fork, with and without losses, and what forks share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rt;
use base::rt::disk::Directory;
use base::rt::simulation::{Sim, Simulation};
use base::{Bytes, BytesMut};
use farmem::mutant::{Mutant, plant};
use farmem::{FileStorage, GROUP_PAGES, PAGE_BYTES, PageNumber, PageRange, PageStore as _, PoolStore, StoreError};
use rma::sim::SimProvider;

use crate::faulty_storage::FaultyStorage;
use crate::programs::{Faults, NO_LOSSES, PAGES, Report, run_programs};
use crate::stores::{DONORS, content, open, start_donor};

const SEEDS: u64 = 8;

/// A store over simulated donors, with storage of this kind.
async fn root(sim: &Sim, faults: Faults) -> PoolStore {
    let provider = SimProvider::new(sim);
    (0..DONORS.len()).for_each(|which| start_donor(sim, &provider, which));
    rt::sleep(Duration::from_millis(50)).await;
    let directory = Directory::open("far").await.expect("the disk works");
    let file = FileStorage::create(&directory, "pages").expect("the disk works");
    let storage = Arc::new(FaultyStorage::new(file, sim.rng(), faults.storage_loses_pages));
    PoolStore::new(open(&provider).await, PAGES, Some(storage)).expect("the options are good")
}

fn run(seed: u64, faults: Faults) -> Report {
    let simulation = Simulation::new(seed).time_max(Duration::from_secs(3600));
    let run = simulation.run(move |sim| async move {
        let root = root(&sim, faults).await;
        run_programs(sim, root, faults).await
    });
    run.unwrap_or_else(|failure| panic!("seed {seed}: {failure}")).value
}

/// Runs all seeds, and adds up what happened.
fn run_all(faults: Faults) -> Report {
    let mut all = Report::default();
    for seed in 0..SEEDS {
        let report = run(seed, faults);
        assert!(report.wrong.is_empty(), "seed {seed}: {:?}", report.wrong);
        all.programs += report.programs;
        all.forks += report.forks;
        all.forks_with_losses += report.forks_with_losses;
        all.cancelled += report.cancelled;
        all.crashes += report.crashes;
        all.pages_read += report.pages_read;
        all.lost_with_donors += report.lost_with_donors;
        all.lost_in_storage += report.lost_in_storage;
    }
    println!("{all:?}");
    all
}

#[test]
fn programs_that_fork_read_what_they_wrote_and_leave_nothing_behind() {
    let all = run_all(NO_LOSSES);
    assert_eq!(all.lost_with_donors + all.lost_in_storage, 0);
    assert!(all.forks > 10 * SEEDS && all.pages_read > 1000 * SEEDS && all.cancelled > SEEDS);
}

#[test]
fn programs_lose_pages_with_donors_and_never_read_others() {
    let all = run_all(Faults { donors_crash: true, storage_loses_pages: false });
    assert_eq!(all.lost_in_storage, 0);
    assert!(all.lost_with_donors > 10 * SEEDS && all.forks_with_losses > SEEDS && all.crashes > SEEDS);
}

#[test]
fn pages_that_storage_loses_are_lost_in_stores_that_need_them_and_no_other_page_is() {
    let all = run_all(Faults { donors_crash: true, storage_loses_pages: true });
    assert!(all.lost_in_storage > 4 * SEEDS && all.forks > 10 * SEEDS);
}

const GROUP_BYTES: u64 = GROUP_PAGES as u64 * PAGE_BYTES as u64;

/// Writes whole groups, from the first one on.
async fn fill(store: &PoolStore, groups: u32, version: u64) {
    for group in 0..groups {
        let range = PageRange { first: PageNumber(group * GROUP_PAGES), pages: GROUP_PAGES };
        let bytes: Vec<u8> = range.iter().flat_map(|page| content(page, version)).collect();
        while store.write(range, Bytes::from(bytes.clone())).await.is_err() {}
    }
}

async fn is_version(store: &PoolStore, page: u32, version: u64) -> bool {
    let page = PageNumber(page);
    loop {
        if let Ok(bytes) = store.read(PageRange::of(page), BytesMut::new()).await {
            return bytes == content(page, version);
        }
    }
}

#[test]
fn a_fork_takes_memory_only_for_groups_that_are_written() {
    let run = Simulation::new(1).time_max(Duration::from_secs(3600)).run(|sim| async move {
        let parent = root(&sim, NO_LOSSES).await;
        let pool_groups = || parent.check().expect("the counts are right").pool_bytes / GROUP_BYTES;
        fill(&parent, 6, 1).await;
        let child = parent.fork();
        assert_eq!((child.usage(), pool_groups()), (parent.usage(), 6));
        child.write(PageRange::of(PageNumber(3)), Bytes::from(content(PageNumber(3), 2))).await.expect("there is room");
        assert_eq!(pool_groups(), 7);
        assert!(is_version(&child, 3, 2).await && is_version(&child, 4, 1).await && is_version(&parent, 3, 1).await);
        // The parent's frame of this group is its own again.
        parent
            .write(PageRange::of(PageNumber(4)), Bytes::from(content(PageNumber(4), 3)))
            .await
            .expect("there is room");
        assert_eq!(pool_groups(), 7);
        assert!(is_version(&child, 4, 1).await && is_version(&parent, 4, 3).await && is_version(&parent, 3, 1).await);
        drop(child);
        assert_eq!(pool_groups(), 6);
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn pages_that_stores_share_go_to_storage_once() {
    let run = Simulation::new(2).time_max(Duration::from_secs(3600)).run(|sim| async move {
        let parent = root(&sim, NO_LOSSES).await;
        fill(&parent, 6, 1).await;
        let child = parent.fork();
        let other = parent.another(PAGES).expect("the region is small");
        // The pool has room for 12 groups, so what the two share goes to storage.
        fill(&other, 10, 2).await;
        let storage = parent.usage().storage_bytes;
        assert!(storage > 0 && child.usage().storage_bytes == storage);
        let all = parent.check().expect("the counts are right").storage_bytes;
        assert_eq!(all, storage + other.usage().storage_bytes, "both have the same slots");
        drop(other);
        fill(&child, 6, 3).await;
        for page in 0..6 * GROUP_PAGES {
            assert!(is_version(&parent, page, 1).await && is_version(&child, page, 3).await, "page {page}");
        }
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

/// The pages that a store has lost, with the nodes that it names.
async fn losses(store: &PoolStore) -> BTreeMap<PageNumber, String> {
    let mut losses = BTreeMap::new();
    for page in (0..6 * GROUP_PAGES).map(PageNumber) {
        let outcome = loop {
            match store.read(PageRange::of(page), BytesMut::new()).await {
                Err(StoreError::Unavailable(_)) => rt::sleep(Duration::from_millis(10)).await,
                outcome => break outcome,
            }
        };
        if let Err(error) = outcome {
            let StoreError::Lost { range, node } = error else { panic!("page {}: {error}", page.0) };
            assert_eq!(range, PageRange::of(page));
            losses.insert(page, node);
        }
    }
    losses
}

#[test]
fn a_loss_names_the_donor_in_each_store_that_shares_the_frame_also_in_later_forks() {
    let run = Simulation::new(3).time_max(Duration::from_secs(3600)).run(|sim| async move {
        let parent = root(&sim, NO_LOSSES).await;
        fill(&parent, 6, 1).await;
        let child = parent.fork();
        sim.node(DONORS[1]).crash();
        let lost = losses(&parent).await;
        assert!(lost.len() >= GROUP_PAGES as usize && lost.values().all(|node| node.ends_with(DONORS[1])), "{lost:?}");
        assert_eq!(losses(&child).await, lost);
        let page = *lost.keys().next().expect("some are lost");
        child.write(PageRange::of(page), Bytes::from(content(page, 2))).await.expect("there is room");
        assert!(is_version(&child, page.0, 2).await, "what is written again is not lost");
        assert_eq!(losses(&parent.fork()).await, lost);
        assert_eq!(losses(&child.fork()).await.len(), lost.len() - 1);
    });
    run.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn every_mutant_of_stores_that_share_is_caught() {
    let mutants = [
        (Mutant::WriteSharedFrame, NO_LOSSES),
        (Mutant::WriteSharedSlot, NO_LOSSES),
        (Mutant::LeaveStoredPages, NO_LOSSES),
        (Mutant::ForkForgetsLost, Faults { donors_crash: true, storage_loses_pages: false }),
        (Mutant::FreeSharedFrame, NO_LOSSES),
    ];
    for (mutant, faults) in mutants {
        plant(mutant);
        let found = (0..SEEDS).find_map(|seed| run(seed, faults).wrong.into_iter().next());
        plant(Mutant::None);
        println!("{mutant:?}: {}", found.unwrap_or_else(|| panic!("{mutant:?} was not caught")));
    }
}
