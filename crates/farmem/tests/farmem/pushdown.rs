//! The interface for pushed closures, with a library that runs them in this process.

use std::backtrace::BacktraceStatus;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use base::ErrorKind;
use farmem::pushdown::{Executor, PushdownError, PushdownOptions};

/// After `heddle_syncmem` of less than 5 bytes, it and the next call of the thread end with that kind of failure.
const LIBRARY: &str = r#"
    #include <stddef.h>
    struct failure { int kind, signal, code; const void *address, *instruction; };
    static __thread int next;
    int heddle_pushdown_open(const void *options) { return 0; }
    const char *heddle_pushdown_reason(void) { return ""; }
    int heddle_pushdown(void (*function)(void *), void *argument, unsigned flags, struct failure *failure) {
        int kind = next;
        next = 0;
        *failure = (struct failure){kind, 11, 2, (void *)64, (void *)128};
        if (kind == 0) function(argument);
        return kind;
    }
    int heddle_syncmem(const void *start, size_t bytes) { return next = bytes < 5 ? (int)bytes : 0; }
"#;

/// Panics that the hook saw which was there before the executor was opened.
static PANICS_SEEN: AtomicU32 = AtomicU32::new(0);

fn executor() -> Executor {
    static OPENED: OnceLock<Executor> = OnceLock::new();
    *OPENED.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let (source, library) = (folder.path().join("library.c"), folder.path().join("library.so"));
        std::fs::write(&source, LIBRARY).expect("the folder is writable");
        let options = ["-shared", "-fPIC", "-o"].map(OsStr::new);
        let compiled = Command::new("cc").args(options).arg(&library).arg(&source).output();
        let compiled = compiled.expect("a C compiler is installed, as for a dependency");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS_SEEN.fetch_add(1, Ordering::Relaxed);
            before(info);
        }));
        let options = PushdownOptions { library: Some(library), ..PushdownOptions::default() };
        Executor::open(&options).expect("the library can be loaded")
    })
}

#[test]
fn a_closure_uses_what_it_borrows_and_returns_what_it_makes() {
    let (executor, mut numbers) = (executor(), vec![1, 2, 3]);
    let owned = "owned".to_owned();
    let made = executor.call(|| {
        numbers.push(4);
        owned + " by the closure"
    });
    assert_eq!(made.expect("it returns"), "owned by the closure");
    assert_eq!(numbers, [1, 2, 3, 4]);
    executor.syncmem(&numbers).expect("the executor is there");
}

#[test]
fn a_panic_of_a_closure_arrives_with_message_location_and_backtrace() {
    let executor = executor();
    let line = line!() + 2;
    let failed: Result<(), PushdownError> = executor.call(|| {
        panic!("number {}", 7);
    });
    let Err(PushdownError::Panicked(report)) = failed else { panic!("{failed:?}") };
    assert_eq!(report.message(), "number 7");
    let location = report.location().expect("the hook saw it");
    assert!(location.contains(&format!("tests/farmem/pushdown.rs:{line}:")), "{location}");
    assert_eq!(report.backtrace().expect("the hook saw it").status(), BacktraceStatus::Captured);
    assert_eq!(report.to_string(), format!("number 7, at {location}"));
    assert_eq!(PushdownError::Panicked(report).kind(), ErrorKind::Rejected);
    let failed = executor.call(|| std::panic::panic_any(5));
    assert!(matches!(&failed, Err(PushdownError::Panicked(report)) if report.message().is_empty()), "{failed:?}");
}

#[test]
fn panics_outside_of_closures_go_to_the_hook_that_was_there_before() {
    let executor = executor();
    let seen = || PANICS_SEEN.load(Ordering::Relaxed);
    // No other test of this process panics meanwhile, unless it fails.
    let before = seen();
    assert!(executor.call(|| panic!("kept")).is_err());
    assert_eq!(seen(), before);
    assert!(executor.syncmem(&[0_u8; 1]).is_err());
    // SAFETY: the closure does not run.
    assert!(unsafe { executor.try_call(|| ()) }.is_err());
    assert!(std::panic::catch_unwind(|| panic!("shown")).is_err());
    assert_eq!(seen(), before + 1);
}

#[test]
fn failures_say_what_the_caller_should_do() {
    let executor = executor();
    let mut is_run = false;
    let mut fail = |kind: usize| {
        assert!(executor.syncmem(&[0_u8; 5][..kind]).is_err());
        // SAFETY: the closure does not run.
        unsafe { executor.try_call(|| is_run = true) }.expect_err("the library fails")
    };
    let (signal, lost, busy, refused) = (fail(1), fail(2), fail(3), fail(4));
    assert!(!is_run);
    let PushdownError::Signal { signal: 11, code: 2, address: 64, instruction: 128 } = signal else {
        panic!("{signal:?}")
    };
    let kinds = [&signal, &lost, &busy, &refused].map(PushdownError::kind);
    assert_eq!(kinds, [ErrorKind::Rejected, ErrorKind::Ambiguous, ErrorKind::Retry, ErrorKind::Rejected]);
    for (kind, refused) in [(3, busy), (4, refused)] {
        assert!(executor.syncmem(&[0_u8; 5][..kind]).is_err());
        let again = executor.call(|| ()).expect_err("the library fails");
        assert_eq!(again.to_string(), refused.to_string());
    }
}

#[test]
fn a_missing_library_is_named() {
    let options = PushdownOptions { library: Some("/nonexistent/library.so".into()), ..PushdownOptions::default() };
    let error = Executor::open(&options).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.to_string().contains("/nonexistent/library.so"), "{error}");
}
