//! Regions in processes whose other parts get in their way: loggers, signals, locked memory, forks.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::{fs, io, ptr};

use farmem::{FaultPath, PAGE_BYTES};

use crate::memory_store::MemoryStore;
use crate::regions::{PATHS, region};
use crate::time_limit::time_limit;

const CHILD: &str = "HEDDLE_FARMEM_CHILD";

/// Runs this test once more in a child process, and returns its output. In the child it returns `None`: run the test.
fn in_child(test: &str) -> Option<Output> {
    if std::env::var(CHILD).is_ok() {
        return None;
    }
    let mut program = Command::new(std::env::current_exe().expect("the test has a file"));
    program.args([&format!("processes::{test}"), "--exact", "--nocapture"]).env(CHILD, "1").stdin(Stdio::null());
    Some(program.output().expect("it runs"))
}

fn assert_succeeds(run: &Output) {
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// The region's threads logged each failed read while the program held the lock of standard error, and waited for it.
#[test]
fn a_program_may_hold_standard_error_while_it_waits_for_pages() {
    if let Some(run) = in_child("a_program_may_hold_standard_error_while_it_waits_for_pages") {
        return assert_succeeds(&run);
    }
    let _limit = time_limit();
    tracing::subscriber::set_global_default(StderrLogger).expect("this process has no other");
    for path in PATHS {
        let store = Arc::new(MemoryStore::default());
        store.is_flaky.store(true, Ordering::Relaxed);
        let mut region = region(1 << 20, 256 << 10, store, path);
        let _held = (io::stderr().lock(), io::stdout().lock());
        for round in 0..4 {
            region.as_mut_slice().chunks_exact_mut(PAGE_BYTES).for_each(|page| page[0] = round);
        }
        assert!(region.stats().restored_pages > 0);
    }
}

static TICKED: AtomicUsize = AtomicUsize::new(0);
static TICKED_AT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());

/// Pages of the region that [`on_tick`] touches in turn.
const TICKED_PAGES: usize = 1024;

extern "C" fn on_tick(_: libc::c_int) {
    let tick = TICKED.fetch_add(1, Ordering::Relaxed);
    let word = TICKED_AT.load(Ordering::Relaxed).wrapping_add(tick * 37 % TICKED_PAGES * PAGE_BYTES + 8).cast::<u64>();
    // SAFETY: the timer runs while the region exists, and nothing else uses these words.
    unsafe { word.write_volatile(word.read_volatile() + 1) };
}

/// Where a thread serves its own fault, it holds locks that the fault of a signal's handler needs.
#[test]
fn a_handler_of_the_program_may_touch_the_region_at_any_time() {
    if let Some(run) = in_child("a_handler_of_the_program_may_touch_the_region_at_any_time") {
        return assert_succeeds(&run);
    }
    let _limit = time_limit();
    for path in PATHS {
        let mut region = region(TICKED_PAGES * PAGE_BYTES, 512 << 10, Arc::new(MemoryStore::default()), path);
        TICKED.store(0, Ordering::Relaxed);
        TICKED_AT.store(region.as_ptr(), Ordering::Relaxed);
        let every = |micros| libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = |micros| libc::itimerval { it_interval: every(micros), it_value: every(micros) };
        // SAFETY: the handler has one argument, and does what a handler may.
        unsafe { libc::signal(libc::SIGALRM, on_tick as *const () as usize) };
        // SAFETY: the kernel reads one structure.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer(200), ptr::null_mut()) }, 0);
        let mut round = 0_u64;
        while TICKED.load(Ordering::Relaxed) < 2000 {
            round += 1;
            for page in region.as_mut_slice().chunks_exact_mut(PAGE_BYTES) {
                page[..8].copy_from_slice(&round.to_le_bytes());
            }
        }
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &timer(0), ptr::null_mut()) }, 0);
        let word = |page: &[u8], at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"));
        let pages = || region.as_slice().chunks_exact(PAGE_BYTES);
        assert!(pages().all(|page| word(page, 0) == round), "{path:?}");
        assert_eq!(pages().map(|page| word(page, 8)).sum::<u64>(), TICKED.load(Ordering::Relaxed) as u64, "{path:?}");
    }
}

/// Writes events to standard error, under its lock, as loggers do.
struct StderrLogger;

impl tracing::Subscriber for StderrLogger {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        eprintln!("{event:?}");
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// A handler of the program that touches the region must not run on a thread that serves it.
#[test]
fn the_threads_of_a_region_take_no_signals_of_the_program() {
    let _limit = time_limit();
    let _region = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler);
    // A thread has its name only when it runs.
    let mut seen = BTreeSet::new();
    while seen.len() < 3 {
        for task in fs::read_dir("/proc/self/task").expect("Linux has it").flatten() {
            let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let name = field("Name:").expect("each has one").to_owned();
            // The kernel keeps fifteen characters of a name.
            if ["farmem-handler", "farmem-prefetch", "farmem-evictor"].contains(&name.as_str()) {
                let blocked = u64::from_str_radix(field("SigBlk:").expect("each has it"), 16).expect("hexadecimal");
                let is_blocked = |signal: i32| blocked & 1 << (signal - 1) != 0;
                assert!(is_blocked(libc::SIGTERM) && !is_blocked(libc::SIGBUS), "{name}: {blocked:x}");
                seen.insert(name);
            }
        }
    }
}

/// A signal that another program sends was taken for an access, and forgotten.
#[test]
fn a_bus_error_that_is_sent_ends_the_program() {
    if let Some(run) = in_child("a_bus_error_that_is_sent_ends_the_program") {
        assert_eq!(run.status.signal(), Some(libc::SIGBUS));
        return assert!(!String::from_utf8_lossy(&run.stdout).contains("survived"));
    }
    let _limit = time_limit();
    // Without the handler of Rust's standard library, which takes each signal for an access that will be repeated.
    // SAFETY: the call has no memory argument.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
    let _region = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler);
    // SAFETY: as above.
    unsafe { libc::raise(libc::SIGBUS) };
    println!("survived");
}

/// Whatever reads or locks all memory of a process rings the doorbell, and the handler ended.
#[test]
fn a_region_serves_faults_after_somebody_else_rang_its_doorbell() {
    if let Some(run) = in_child("a_region_serves_faults_after_somebody_else_rang_its_doorbell") {
        return assert_succeeds(&run);
    }
    let _limit = time_limit();
    let before = fs::read_to_string("/proc/self/maps").expect("Linux has it");
    let mut region = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), FaultPath::Handler);
    let start = region.as_ptr() as usize;
    let mut rung = 0;
    for line in fs::read_to_string("/proc/self/maps").expect("Linux has it").lines() {
        // The doorbell is a page of its own, or the last one behind the buffer of evicted pages.
        let (from, rest) = line.split_once('-').expect("a range");
        let (to, rest) = rest.split_once(' ').expect("a range");
        let [from, to] = [from, to].map(|digits| usize::from_str_radix(digits, 16).expect("hexadecimal"));
        let is_region = (from..to).contains(&start) || (start..start + (1 << 20)).contains(&from);
        if rest.starts_with("rw-p 00000000 00:00 0")
            && [PAGE_BYTES, PAGE_BYTES + (2 << 20)].contains(&(to - from))
            && !is_region
            && !before.contains(line)
        {
            rung += 1;
            for _ in 0..3 {
                // SAFETY: the range is mapped, and a read changes nothing.
                let _ = unsafe { ((to - PAGE_BYTES) as *const u8).read_volatile() };
            }
        }
    }
    assert!(rung > 0, "the doorbell was not found");
    region.as_mut_slice().fill(3);
    assert!(region.as_slice().iter().all(|byte| *byte == 3));
}

/// The child has neither the region's threads nor its memory: the end of its copy waited for the one and unmapped the other.
#[test]
fn a_child_of_a_fork_can_drop_its_copy_of_a_region() {
    if let Some(run) = in_child("a_child_of_a_fork_can_drop_its_copy_of_a_region") {
        return assert_succeeds(&run);
    }
    let _limit = time_limit();
    for path in PATHS {
        let region = region(1 << 20, 256 << 10, Arc::new(MemoryStore::default()), path);
        // SAFETY: the child drops the region, which takes no lock there, and exits.
        let child = unsafe { libc::fork() };
        drop(region);
        if child == 0 {
            // SAFETY: it ends this process.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the kernel writes to one number.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }
}
