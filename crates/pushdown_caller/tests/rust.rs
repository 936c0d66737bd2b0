//! A program in Rust that pushes closures down. It is a program of its own: tests of the usual harness run on threads, and the executor
//! is opened before there are any.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::ErrorKind;
use farmem::pushdown::{Coherence, Executor, PushdownError, PushdownOptions, PushdownTerms, PushdownTicket};

thread_local! {
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

trait Shape: Send + Sync {
    fn area(&self) -> f64;
}

struct Square(f64);

impl Shape for Square {
    fn area(&self) -> f64 {
        self.0 * self.0
    }
}

fn main() {
    let own = std::env::current_exe().expect("the program has a file");
    let library = own.with_file_name("libheddle_pushdown.so");
    let program = own.parent().and_then(|folder| folder.parent()).map(|folder| folder.join("heddle-executor"));
    let options = PushdownOptions {
        library: Some(library),
        executor: program.filter(|path: &PathBuf| path.exists()),
        contexts: 2,
        ..PushdownOptions::default()
    };
    let executor = Executor::open(&options).expect("the executor starts");
    closures_borrow_and_return(&executor);
    panics_are_carried_back(&executor);
    threads_share_a_lock(&executor);
    failures_are_errors(&executor);
    calls_are_cancelled_or_run_here(&executor);
    closures_have_limits(&executor);
    closures_run_in_each_mode(&executor);
    calls_are_measured(&executor);
    far_memory_is_used_on_both_sides(&executor);
    println!("test result: ok");
}

fn closures_borrow_and_return(executor: &Executor) {
    let mut words: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let shapes: Vec<Box<dyn Shape>> = vec![Box::new(Square(2.0)), Box::new(Square(3.0))];
    for round in 0..100 {
        let text = executor
            .call(|| {
                words.entry(format!("word {}", round % 7)).or_default().push(round);
                CALLS.set(CALLS.get() + 1);
                format!("{:.1}", shapes.iter().map(|shape| shape.area()).sum::<f64>())
            })
            .expect("it returns");
        assert_eq!(text, "13.0");
    }
    assert_eq!((words.len(), words.values().map(Vec::len).sum::<usize>(), CALLS.get()), (7, 100, 100));
}

fn panics_are_carried_back(executor: &Executor) {
    let numbers: Vec<u32> = (1..4).collect();
    for _ in 0..10 {
        match executor.call(|| numbers[numbers.len() + 4]) {
            Err(PushdownError::Panicked(report)) => {
                assert!(report.message().contains("the len is 3 but the index is 7"), "{}", report.message());
                assert!(report.location().is_some_and(|location| location.contains("rust.rs")), "{report:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(executor.call(|| numbers.len()).expect("it goes on"), 3);
}

#[allow(clippy::disallowed_methods, reason = "a program without the runtime")]
fn threads_share_a_lock(executor: &Executor) {
    let (sum, plain) = (Mutex::new(0_u64), AtomicU64::new(0));
    let add = || {
        for _ in 0..500 {
            *sum.lock().expect("nobody panics with it") += 1;
            plain.fetch_add(1, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| executor.call(add).expect("it returns"));
            scope.spawn(add);
        }
    });
    assert_eq!((*sum.lock().expect("nobody panics with it"), plain.load(Ordering::Relaxed)), (2000, 2000));
}

#[allow(unsafe_code, reason = "the closure leaves nothing behind that has to be dropped")]
fn failures_are_errors(executor: &Executor) {
    // SAFETY: the closure has nothing that would have to be dropped.
    let outcome = unsafe { executor.try_call(|| (64 as *const u32).read_volatile()) };
    assert!(outcome.is_err_and(|error| error.to_string().contains("11") || error.to_string().contains("SIGSEGV")));
    let nested = executor.call(|| executor.call(|| 1).is_err()).expect("it returns");
    assert!(nested, "a pushed-down closure cannot push down");
}

#[allow(clippy::disallowed_methods, reason = "a program without the runtime")]
fn calls_are_cancelled_or_run_here(executor: &Executor) {
    let (running, is_released) = (AtomicU64::new(0), AtomicBool::new(false));
    let blocks = || {
        running.fetch_add(1, Ordering::SeqCst);
        while !is_released.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    };
    let ticket = PushdownTicket::new();
    assert!(matches!(executor.try_cancel(&ticket), Err(PushdownError::Refused)));
    let has_run = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| executor.call(blocks).expect("it returns"));
        }
        while running.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        let terms = PushdownTerms { timeout: Some(Duration::from_millis(20)), ..PushdownTerms::default() };
        let outcome = executor.call_with(&terms, || has_run.store(true, Ordering::SeqCst));
        assert!(matches!(&outcome, Err(error @ PushdownError::Cancelled) if error.kind() == ErrorKind::Retry));
        let words = ["here".to_owned()];
        let terms = PushdownTerms { or_here: true, ..terms };
        assert_eq!(executor.call_with(&terms, || words.concat()).expect("it runs here"), "here");
        let panicked = executor.call_with(&terms, || assert!(words.is_empty(), "{} words", words.len()));
        assert!(
            matches!(&panicked, Err(PushdownError::Panicked(report)) if report.message() == "1 words"),
            "{panicked:?}"
        );
        let waits = scope.spawn(|| {
            let terms = PushdownTerms { ticket: Some(&ticket), ..PushdownTerms::default() };
            executor.call_with(&terms, || has_run.store(true, Ordering::SeqCst))
        });
        while !ticket.is_used() {
            std::thread::yield_now();
        }
        assert!(executor.try_cancel(&ticket).expect("the executor is there"), "it waits for its turn");
        let outcome = waits.join().expect("it does not panic");
        assert!(matches!(outcome, Err(PushdownError::Cancelled)), "{outcome:?}");
        is_released.store(true, Ordering::SeqCst);
    });
    assert!(!has_run.load(Ordering::SeqCst) && !executor.try_cancel(&ticket).expect("the executor is there"));
}

/// On a page of its own.
#[repr(align(4096))]
struct Apart(AtomicU64);

#[allow(unsafe_code, reason = "the closure leaves nothing behind that has to be dropped")]
fn closures_have_limits(executor: &Executor) {
    let (written, other) = (Box::new(Apart(AtomicU64::new(0))), Box::new(Apart(AtomicU64::new(0))));
    let terms = PushdownTerms { limit: Some(Duration::from_millis(30)), ..PushdownTerms::default() };
    let before = executor.statistics().expect("it is open");
    // SAFETY: the closure has nothing that would have to be dropped, and takes no lock.
    let outcome = unsafe {
        executor.try_call_with(&terms, || {
            while other.0.load(Ordering::Relaxed) == 0 {
                written.0.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    match outcome {
        Err(error @ PushdownError::Killed { .. }) => {
            assert_eq!(error.kind(), ErrorKind::Ambiguous);
            let PushdownError::Killed { torn, instruction } = error else { unreachable!("it was just matched") };
            let contains = |value: &AtomicU64| torn.iter().any(|range| range.contains(&value.as_ptr().addr()));
            assert!(contains(&written.0) && !contains(&other.0) && instruction != 0, "{torn:?}");
        }
        other => panic!("{other:?}"),
    }
    assert!(written.0.load(Ordering::Relaxed) > 0);
    assert_eq!(executor.call_with(&terms, || 4).expect("it returns in time"), 4);
    let after = executor.statistics().expect("it is open");
    assert_eq!((after.killed - before.killed, after.returned - before.returned, after.calls - before.calls), (1, 1, 2));
    assert_eq!((after.open, after.running, after.lost), (0, 0, 0));
    assert!(executor.call(|| executor.statistics().is_err()).expect("it returns"), "a closure cannot ask");
}

#[allow(unsafe_code, reason = "no other thread uses what the closure uses")]
fn closures_run_in_each_mode(executor: &Executor) {
    let mut numbers: Vec<u64> = (0..5000).collect();
    for mode in [Coherence::Off, Coherence::Coherent, Coherence::Weak, Coherence::Pso] {
        executor.syncmem(&numbers).expect("the executor is there");
        // SAFETY: there is no other thread.
        let sum: u64 = unsafe {
            executor.try_call_in(mode, || {
                numbers.push(1);
                numbers.iter_mut().for_each(|number| *number += 1);
                executor.syncmem(&numbers).expect("it is a synchronisation point");
                numbers.iter().sum()
            })
        }
        .expect("it returns");
        assert_eq!(sum, numbers.iter().sum::<u64>(), "{mode:?}");
        // SAFETY: they are plain numbers, and nobody else uses them.
        unsafe { executor.pullmem(&raw mut numbers[..]) }.expect("the executor is there");
    }
    assert_eq!((numbers[0], numbers.len(), numbers[5000], numbers[5003]), (4, 5004, 5, 2));
}

#[allow(clippy::disallowed_methods, reason = "a program without the runtime")]
fn calls_are_measured(executor: &Executor) {
    let counted = executor.messages();
    let begun = Instant::now();
    executor
        .call(|| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(2) {}
        })
        .expect("it returns");
    let taken = begun.elapsed();
    let times = executor.last_times().expect("it has run");
    let parts = [times.before, times.request, times.set_up, times.run, times.response, times.after];
    // The clock's rate is off by less than a thousandth.
    assert!(parts.iter().sum::<Duration>() <= taken + taken / 1000, "{times:?} of {taken:?}");
    assert!(times.run >= Duration::from_micros(1998) && times.online_sync <= times.run, "{times:?}");
    assert!(executor.messages() >= counted + 2);
    assert_eq!(executor.link_latency(), Duration::ZERO);
    executor.syncmem_everything().expect("it is open");
    assert_eq!(executor.call(|| executor.last_times().is_none()).ok(), Some(true), "a closure cannot ask");
}

fn far_memory_is_used_on_both_sides(executor: &Executor) {
    const WORDS: u64 = 1 << 18;
    let mut far = executor.far_memory(8 * WORDS, 1 << 17).expect("nothing runs");
    (0_u64..).zip(far.words_mut()).for_each(|(at, word)| *word = at);
    far.evict().expect("the executor is there");
    let before = executor.messages();
    let sum = executor.call(|| far.words().iter().sum::<u64>()).expect("it returns");
    assert_eq!(sum, WORDS * (WORDS - 1) / 2);
    // A page has 512 words: the closure has asked for next to none of them.
    assert!(executor.messages() - before < WORDS / 512 / 2, "{} messages", executor.messages() - before);
    executor.call(|| far.words_mut().iter_mut().for_each(|word| *word += 1)).expect("it returns");
    assert!((1..).zip(far.words()).all(|(at, word)| *word == at));
    let too_much = executor.far_memory(0, 1).expect_err("there is nothing to map");
    assert_eq!(too_much.kind(), ErrorKind::Rejected);
    let is_refused = executor.call(|| executor.far_memory(4096, 4096).is_err()).expect("it returns");
    assert!(is_refused, "a closure cannot map far memory");
}
