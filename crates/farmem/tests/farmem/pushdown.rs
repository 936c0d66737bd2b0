//! The interface for pushed closures, with a library that runs them in this process.

use std::backtrace::BacktraceStatus;
use std::ffi::OsStr;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::ErrorKind;
use farmem::pushdown::{
    Coherence, Executor, PushdownError, PushdownOptions, PushdownStatistics, PushdownTerms, PushdownTicket,
};

/// After `heddle_syncmem` of less than 7 bytes, it and the next call of the thread end with that kind of failure.
const LIBRARY: &str = r#"
    #include <errno.h>
    #include <stddef.h>
    #include <sys/mman.h>
    struct failure { int kind, signal, code; const void *address, *instruction; };
    static __thread int next;
    int heddle_pushdown_open(const void *options) { return 0; }
    const char *heddle_pushdown_reason(void) { return ""; }
    struct terms { size_t size; unsigned flags, timeout_ms, limit_ms; unsigned long long *ticket; };
    static __thread struct terms last;
    int heddle_pushdown_with(void (*function)(void *), void *argument, const struct terms *terms, struct failure *failure) {
        int kind = next;
        last = *terms;
        if (terms->ticket != NULL) *terms->ticket = 9;
        next = 0;
        *failure = (struct failure){kind, 11, 2, (void *)64, (void *)128};
        if (kind == 0) function(argument);
        return kind;
    }
    int heddle_syncmem(const void *start, size_t bytes) { return next = bytes < 7 ? (int)bytes : 0; }
    int heddle_pullmem(void *start, size_t bytes) { return heddle_syncmem(start, bytes); }
    int heddle_try_cancel(const unsigned long long *ticket) { return *ticket == 0 ? 4 : *ticket == 9 ? 7 : 0; }
    struct range { void *start; size_t bytes; };
    size_t heddle_pushdown_torn(struct range *ranges, size_t count) {
        if (count > 0) ranges[0] = (struct range){(void *)4096, 8192};
        return 1;
    }
    struct statistics { size_t size; unsigned long long counts[9]; unsigned open, running; };
    int heddle_pushdown_statistics(struct statistics *statistics) {
        if (statistics->size != sizeof *statistics) return 4;
        for (int i = 0; i < 9; i++) statistics->counts[i] = 10 + i;
        statistics->counts[0] = last.flags;
        statistics->counts[1] = last.timeout_ms;
        statistics->counts[2] = last.limit_ms;
        statistics->open = 1;
        statistics->running = 2;
        return 0;
    }
    struct counts { size_t size; unsigned long long sent, received; };
    int heddle_pushdown_counts(struct counts *counts) {
        if (counts->size != sizeof *counts) return 4;
        counts->sent = 30;
        counts->received = 12;
        return 0;
    }
    struct times { size_t size; unsigned long long parts[7]; };
    static __thread int calls;
    int heddle_pushdown_times(struct times *times) {
        if (times->size != sizeof *times || calls++ == 0) return 4;
        for (int i = 0; i < 7; i++) times->parts[i] = 100 + i;
        return 0;
    }
    unsigned long long heddle_pushdown_link_ns(void) { return 1200; }
    static size_t mapped, budget_of_mapped;
    void *heddle_far_map(size_t bytes, size_t budget) {
        mapped = bytes;
        budget_of_mapped = budget;
        if (bytes == 0) errno = EINVAL;
        if (bytes == 8) errno = EBUSY;
        if (bytes == 16) errno = ENOTCONN;
        if (bytes <= 16) return NULL;
        return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    int heddle_far_evict(void *start, size_t bytes) { return bytes == mapped / 8 * 8 && budget_of_mapped == 4096 ? 0 : 2; }
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
        assert!(executor.syncmem(&[0_u8; 7][..kind]).is_err());
        // SAFETY: the closure does not run.
        unsafe { executor.try_call(|| is_run = true) }.expect_err("the library fails")
    };
    let (signal, lost, busy, refused, cancelled, killed) = (fail(1), fail(2), fail(3), fail(4), fail(5), fail(6));
    assert!(!is_run);
    let PushdownError::Signal { signal: 11, code: 2, address: 64, instruction: 128, reason: None } = signal else {
        panic!("{signal:?}")
    };
    let PushdownError::Killed { instruction: 128, torn } = &killed else { panic!("{killed:?}") };
    assert!(torn.len() == 1 && torn[0] == (4096..12288), "{torn:?}");
    let kinds = [&signal, &lost, &busy, &refused, &cancelled, &killed].map(PushdownError::kind);
    let (rejected, ambiguous, retry) = (ErrorKind::Rejected, ErrorKind::Ambiguous, ErrorKind::Retry);
    assert_eq!(kinds, [rejected, ambiguous, retry, rejected, retry, ambiguous]);
    for (kind, refused) in [(3, busy), (4, refused), (5, cancelled)] {
        assert!(executor.syncmem(&[0_u8; 7][..kind]).is_err());
        let again = executor.call(|| ()).expect_err("the library fails");
        assert_eq!(again.to_string(), refused.to_string());
    }
}

#[test]
fn terms_arrive_as_the_library_has_them() {
    let (executor, ticket) = (executor(), PushdownTicket::new());
    assert!(!ticket.is_used() && executor.try_cancel(&ticket).is_err());
    let terms = PushdownTerms {
        timeout: Some(Duration::from_micros(5)),
        limit: Some(Duration::from_secs(1 << 40)),
        again: true,
        or_here: false,
        ticket: Some(&ticket),
    };
    executor.call_with(&terms, || ()).expect("it returns");
    assert!(ticket.is_used() && !executor.try_cancel(&ticket).expect("its call has ended"));
    let statistics = executor.statistics().expect("it is open");
    let PushdownStatistics { calls, returned, signalled, killed, declined, queued, open, running, .. } = statistics;
    // The library gives back the terms of this thread's last call in the place of the first three.
    assert_eq!((calls, returned, signalled), (1 << 9, 1, u64::from(u32::MAX)));
    assert_eq!((killed, declined, queued, open, running), (13, 17, Duration::from_nanos(18), 1, 2));
    executor.call_with(&PushdownTerms { or_here: true, ..PushdownTerms::default() }, || ()).expect("it returns");
    let statistics = executor.statistics().expect("it is open");
    assert_eq!((statistics.calls, statistics.returned, statistics.signalled), (1 << 8, 0, 0));
}

#[test]
fn a_missing_library_is_named() {
    let options = PushdownOptions { library: Some("/nonexistent/library.so".into()), ..PushdownOptions::default() };
    let error = Executor::open(&options).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.to_string().contains("/nonexistent/library.so"), "{error}");
}

#[test]
fn measurements_arrive_as_the_library_has_them() {
    let executor = executor();
    assert_eq!((executor.messages(), executor.link_latency()), (42, Duration::from_nanos(1200)));
    assert_eq!(executor.last_times(), None);
    let times = executor.last_times().expect("the library has some from the second time on");
    let parts = [times.before, times.request, times.set_up, times.run, times.online_sync, times.response, times.after];
    assert_eq!(parts, [100, 101, 102, 103, 104, 105, 106].map(Duration::from_nanos));
}

#[test]
fn far_memory_is_mapped_evicted_and_unmapped() {
    let executor = executor();
    let mut far = executor.far_memory(8195, 4096).expect("it is mapped");
    assert_eq!(far.words().len(), 1024);
    far.words_mut()[1023] = 7;
    assert_eq!((far.words()[0], far.words()[1023]), (0, 7));
    far.evict().expect("the library evicts that range");
    let start = far.words().as_ptr().addr();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("it is there");
        maps.lines().filter_map(|line| line.split_once(' ')?.0.split_once('-')).any(|(first, last)| {
            let [first, last] = [first, last].map(|address| usize::from_str_radix(address, 16).expect("a number"));
            (first..last).contains(&start)
        })
    };
    assert!(is_mapped());
    drop(far);
    assert!(!is_mapped());
    for (bytes, kind) in [(0, ErrorKind::Rejected), (8, ErrorKind::Retry), (16, ErrorKind::Rejected)] {
        let error = executor.far_memory(bytes, 4096).expect_err("the library refuses it");
        assert_eq!((error.kind(), matches!(error, PushdownError::Refused)), (kind, bytes == 16), "{error}");
    }
}

#[test]
fn the_coherence_arrives_as_the_library_has_it() {
    let executor = executor();
    for (coherence, flags) in [(Coherence::Coherent, 0), (Coherence::Pso, 1), (Coherence::Weak, 2), (Coherence::Off, 3)]
    {
        // SAFETY: the closure has nothing that would have to be dropped, and shares nothing with other threads.
        assert_eq!(unsafe { executor.try_call_in(coherence, || 5) }.expect("it returns"), 5);
        assert_eq!(executor.statistics().expect("it is open").calls, flags, "{coherence:?}");
    }
}
