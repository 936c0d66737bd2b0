//! The start of a program: whether it has a far heap, decided once, with the first call that needs it.
//!
//! Without the variables in the environment, everything passes through to the kernel. A heap whose home is an executor is opened
//! when the program's libraries are set up, and until then allocations are [`early`] ones.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use bare::system_call::{pause, thread_id};

use crate::environment::{self, Environment, ExecutorHeap};
use crate::message::{end_program, end_program_after};
use crate::{attach, early, executor_heap, forks, mimalloc_options};

const UNDECIDED: u32 = 0;
/// It is decided that there will be a heap.
const EARLY: u32 = u32::MAX - 1;
const DECIDED: u32 = u32::MAX;

/// [`UNDECIDED`], the thread that attaches, [`EARLY`], or [`DECIDED`].
static PROGRESS: AtomicU32 = AtomicU32::new(UNDECIDED);

/// The heap that there will be.
static EXECUTOR_HEAP: OnceLock<ExecutorHeap> = OnceLock::new();

const DECISION_PAUSE_MICROSECONDS: i64 = 100;

/// Decides also for programs that never allocate.
#[allow(unsafe_code)] // The dynamic linker calls the function before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    ensure();
    forks::look_up();
    if let Some(heap) = EXECUTOR_HEAP.get() {
        executor_heap::attach(*heap);
        PROGRESS.store(DECIDED, Ordering::Release);
        forks::register();
    }
}

/// Returns when it is decided whether the program has a far heap. A call from within the decision returns at once. False if allocations
/// are [`early`] ones.
#[inline]
pub(crate) fn ensure() -> bool {
    PROGRESS.load(Ordering::Acquire) == DECIDED || decide()
}

#[cold]
fn decide() -> bool {
    let thread = thread_id();
    match PROGRESS.compare_exchange(UNDECIDED, thread, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            let progress = set_up();
            PROGRESS.store(progress, Ordering::Release);
            progress == DECIDED
        }
        Err(other) if other == thread => true,
        Err(_) => loop {
            match PROGRESS.load(Ordering::Acquire) {
                DECIDED => break true,
                EARLY => break false,
                _ => pause(DECISION_PAUSE_MICROSECONDS),
            }
        },
    }
}

/// How far the decision is then.
fn set_up() -> u32 {
    match environment::read() {
        Environment::Silent => mimalloc_options::configure(None),
        Environment::Malformed => {
            end_program(&["the far heap: the environment names no server and no executor as it should"])
        }
        Environment::Server(server) => {
            let region_bytes = attach::attach_to(server);
            mimalloc_options::configure(Some(region_bytes));
            // From here on the program has its heap: what these calls allocate is far.
            forks::register();
        }
        Environment::Executor(heap) => {
            mimalloc_options::configure(Some(heap.bytes));
            early::reserve().unwrap_or_else(|error| end_program_after("cannot reserve addresses", error));
            // Nobody else sets it.
            let _ = EXECUTOR_HEAP.set(heap);
            return EARLY;
        }
    }
    DECIDED
}
