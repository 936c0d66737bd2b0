//! Regions with real page faults. They fail, rather than pass in silence, where the kernel does not let them handle faults.

use std::io::{Read as _, Seek as _, Write as _};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::rt::simulation::Prng;
use farmem::{FaultPath, PAGE_BYTES, PageNumber, PageRange, PageStore, Region, RegionConfig, guard};

use crate::memory_store::MemoryStore;
use crate::time_limit::time_limit;

/// Names the test that is run again, in a process of its own, and how it ends there.
const ENDS: &str = "HEDDLE_FARMEM_ENDS";

/// Who serves faults: most tests hold for both.
pub const PATHS: [FaultPath; 2] = [FaultPath::Handler, FaultPath::FaultingThread];

pub fn region(bytes: usize, budget_bytes: usize, store: Arc<dyn PageStore>, fault_path: FaultPath) -> Region {
    let (bytes, budget_bytes) = (bytes as u64, budget_bytes as u64);
    let config = RegionConfig { name: "test".to_owned(), bytes, budget_bytes, store, fault_path };
    Region::create(config).unwrap_or_else(|error| panic!("{error}"))
}

/// Random reads and writes of words, compared with a copy in plain memory.
pub fn compare_with_model(region: &mut Region, accesses: u64, seed: u64) {
    let mut rng = Prng::new(seed);
    let mut model = vec![0_u64; region.len() / 8];
    let words = region.as_mut_slice();
    for step in 0..accesses {
        let word = if rng.one_in(4) { (step as usize * 37) % model.len() } else { rng.index(model.len()) };
        let place = &mut words[word * 8..word * 8 + 8];
        if rng.one_in(2) {
            let value = rng.number();
            place.copy_from_slice(&value.to_le_bytes());
            model[word] = value;
        } else {
            let read = u64::from_le_bytes(place.try_into().expect("eight bytes"));
            assert_eq!(read, model[word], "seed {seed}, step {step}, word {word}");
        }
    }
    for (word, expected) in model.iter().enumerate() {
        let read = u64::from_le_bytes(words[word * 8..word * 8 + 8].try_into().expect("eight bytes"));
        assert_eq!(read, *expected, "seed {seed}, word {word} at the end");
    }
}

#[test]
fn random_access_with_an_eighth_of_the_memory_reads_what_was_written() {
    let _limit = time_limit();
    for path in PATHS {
        let mut region = region(8 << 20, 1 << 20, Arc::new(MemoryStore::default()), path);
        compare_with_model(&mut region, 20_000, 1);
        let stats = region.stats();
        println!("{stats:?}");
        assert!(stats.evicted_pages > 2048 && stats.written_pages > 1000 && stats.resident_pages <= 256, "{stats:?}");
        assert!(stats.prefetched_pages > 0 && stats.first_writes > 0, "{stats:?}");
    }
}

#[test]
fn a_store_that_fails_now_and_then_costs_time_and_no_bytes() {
    let _limit = time_limit();
    for path in PATHS {
        let store = Arc::new(MemoryStore::default());
        store.is_flaky.store(true, Ordering::Relaxed);
        let mut region = region(1 << 20, 256 << 10, store, path);
        compare_with_model(&mut region, 1000, 2);
        assert!(region.stats().restored_pages > 0);
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "threads that fault are what is tested")]
fn several_threads_share_a_region() {
    const THREADS: usize = 4;
    let _limit = time_limit();
    for path in PATHS {
        let region = region(8 << 20, 1 << 20, Arc::new(MemoryStore::default()), path);
        let pages = region.len() / PAGE_BYTES;
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let region = &region;
                scope.spawn(move || {
                    let mut rng = Prng::new(thread as u64);
                    let mut counts = vec![0_u64; pages];
                    for _ in 0..4000 {
                        let page = rng.index(pages);
                        // In each page every thread uses another word: threads share pages, and no bytes.
                        let word = region.as_ptr().wrapping_add(page * PAGE_BYTES + thread * 8).cast::<u64>();
                        // SAFETY: the word is within the region, aligned, and this thread's alone.
                        let count = unsafe { word.read_volatile() };
                        assert_eq!(count, counts[page], "thread {thread}, page {page}");
                        counts[page] += 1;
                        // SAFETY: as above.
                        unsafe { word.write_volatile(count + 1) };
                    }
                });
            }
        });
        assert!(region.stats().evicted_pages > 2048);
    }
}

#[test]
fn system_calls_wait_for_their_pages() {
    let _limit = time_limit();
    let mut region = region(4 << 20, 512 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler);
    let mut file = tempfile::tempfile().expect("a file");
    let content: Vec<u8> = (0..region.len()).map(|byte| (byte * 7 / 5) as u8).collect();
    file.write_all(&content).expect("room on the disk");
    file.rewind().expect("it is a file");
    file.read_exact(region.as_mut_slice()).expect("the kernel fills far pages");
    assert!(region.as_slice() == content, "the file's bytes are in the region");
    file.rewind().expect("it is a file");
    file.write_all(region.as_slice()).expect("the kernel reads far pages");
    file.rewind().expect("it is a file");
    let mut copied = Vec::new();
    file.read_to_end(&mut copied).expect("it is readable");
    assert!(copied == content, "the region's bytes are in the file");
}

#[test]
fn system_calls_on_absent_pages_fail_where_threads_serve_themselves() {
    let _limit = time_limit();
    let mut region = region(4 << 20, 512 << 10, Arc::new(MemoryStore::default()), FaultPath::FaultingThread);
    region.as_mut_slice().fill(3);
    let mut file = tempfile::tempfile().expect("a file");
    // The first pages have left long since.
    let failed = file.write(&region.as_slice()[..PAGE_BYTES]).expect_err("the kernel waits for no page here");
    assert_eq!(failed.raw_os_error(), Some(14), "EFAULT: {failed}");
    let mut copy = vec![0; PAGE_BYTES];
    region.read(0, &mut copy).expect("it is not lost");
    file.write_all(&copy).expect("room on the disk");
    assert!(copy.iter().all(|byte| *byte == 3));
}

#[test]
fn a_stream_faults_once_for_many_pages() {
    const BUDGET: usize = 4 << 20;
    let _limit = time_limit();
    for path in PATHS {
        let mut region = region(16 << 20, BUDGET, Arc::new(MemoryStore::default()), path);
        region.as_mut_slice().chunks_exact_mut(PAGE_BYTES).enumerate().for_each(|(page, bytes)| bytes[5] = page as u8);
        let before = region.stats();
        for (page, bytes) in region.as_slice().chunks_exact(PAGE_BYTES).enumerate() {
            // How far ahead a fault reads depends on how much room there is. The evictor keeps a sixteenth of the budget free.
            while region.stats().resident_pages > (BUDGET / PAGE_BYTES * 15 / 16) as u64 {
                std::thread::yield_now();
            }
            assert_eq!(bytes[5], page as u8);
        }
        let stats = region.stats();
        println!("{before:?}\n{stats:?}");
        let (faults, hits) = (stats.faults - before.faults, stats.prefetch_hits - before.prefetch_hits);
        // At least 32 pages for each, but for the first ones.
        assert!(faults < 400, "{faults} faults for 4096 pages");
        assert!(hits > 1000, "{hits} pages were there before the program");
    }
}

/// A region whose page 1 is lost.
fn region_with_a_loss(path: FaultPath) -> Region {
    let store = Arc::new(MemoryStore::default());
    let mut region = region(2 << 20, 256 << 10, Arc::<MemoryStore>::clone(&store), path);
    region.as_mut_slice().chunks_exact_mut(PAGE_BYTES).for_each(|page| page[0] = 1);
    // What is read now pushes the first pages out.
    assert!(region.as_slice().chunks_exact(PAGE_BYTES).skip(256).all(|page| page[0] == 1));
    store.lose(PageRange::of(PageNumber(1)));
    region
}

#[test]
fn a_lost_page_is_an_error_that_names_the_node_and_other_pages_are_not_affected() {
    let _limit = time_limit();
    for path in PATHS {
        let mut region = region_with_a_loss(path);
        let mut bytes = [0; 8];
        for _ in 0..2 {
            let lost = region.read(PAGE_BYTES + 100, &mut bytes).expect_err("the page is lost");
            assert_eq!((lost.region.as_str(), lost.node.as_str()), ("test", "the node of the test"));
            assert_eq!(lost.range, PageRange::of(PageNumber(1)));
        }
        region.write(PAGE_BYTES, &[1]).expect_err("it stays lost");
        region.read(0, &mut bytes).expect("this page is not lost");
        assert_eq!(bytes[0], 1);
        let values = [1_u32, 2, 3];
        // SAFETY: a leaked vector harms nobody, and it is not leaked here.
        let sum = unsafe { guard(|| values.iter().sum::<u32>() + u32::from(region.as_slice()[2 * PAGE_BYTES])) };
        assert_eq!(sum, Ok(7));
        // SAFETY: the closure holds nothing.
        let nested = unsafe { guard(|| guard(|| region.as_slice()[PAGE_BYTES])) };
        assert!(nested.is_ok_and(|inner| inner.is_err()), "the innermost guard returns the loss");
        assert_eq!(region.losses().len(), 1);
    }
}

#[test]
fn an_access_to_a_lost_page_ends_the_program_with_a_message() {
    let _limit = time_limit();
    if let Ok(path) = std::env::var(ENDS) {
        let path = PATHS[usize::from(path == "1")];
        let region = region_with_a_loss(path);
        println!("read {}", region.as_slice()[PAGE_BYTES]);
        return;
    }
    let program = std::env::current_exe().expect("the test has a file");
    let name = "regions::an_access_to_a_lost_page_ends_the_program_with_a_message";
    for path in ["0", "1"] {
        let run =
            Command::new(&program).args([name, "--exact", "--nocapture"]).env(ENDS, path).output().expect("it runs");
        let (output, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(!run.status.success() && !output.contains("read "), "{output}");
        assert!(errors.contains("the region test has lost pages with the node of the test"), "{errors}");
        assert!(errors.contains("it happened at page 1\n"), "{errors}");
    }
}

#[test]
fn a_region_ends_while_others_go_on() {
    let _limit = time_limit();
    for path in PATHS {
        for round in 0..8 {
            let mut one = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), path);
            let mut other = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), path);
            one.as_mut_slice().fill(round);
            other.as_mut_slice().fill(round + 100);
            drop(one);
            assert!(other.as_slice().iter().all(|byte| *byte == round + 100));
        }
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let _limit = time_limit();
    for (bytes, budget_bytes) in [(0, 1 << 20), (1 << 50, 1 << 20), (1 << 20, 4096)] {
        let store = Arc::new(MemoryStore::default());
        let config =
            RegionConfig { name: "test".to_owned(), bytes, budget_bytes, store, fault_path: FaultPath::Handler };
        let error = Region::create(config).expect_err("it makes no sense");
        assert_eq!(error.kind(), base::ErrorKind::Rejected);
    }
}
