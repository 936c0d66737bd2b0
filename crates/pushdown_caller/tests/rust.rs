//! A program in Rust that pushes closures down. It is a program of its own: tests of the usual harness run on threads, and the executor
//! is opened before there are any.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use farmem::pushdown::{Executor, PushdownError, PushdownOptions};

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
    };
    let executor = Executor::open(&options).expect("the executor starts");
    closures_borrow_and_return(&executor);
    panics_are_carried_back(&executor);
    threads_share_a_lock(&executor);
    failures_are_errors(&executor);
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
