//! The start of a program: whether it has a far heap, decided once, with the first call that needs it.
//!
//! Without the server's variables in the environment, everything passes through to the kernel.

use std::sync::atomic::{AtomicU32, Ordering};

use bare::system_call::{pause, thread_id};

use crate::environment::{self, Environment};
use crate::message::end_program;
use crate::{attach, forks, mimalloc_options};

const UNDECIDED: u32 = 0;
const DECIDED: u32 = u32::MAX;

/// [`UNDECIDED`], the thread that attaches, or [`DECIDED`].
static PROGRESS: AtomicU32 = AtomicU32::new(UNDECIDED);

const DECISION_PAUSE_MICROSECONDS: i64 = 100;

/// Decides also for programs that never allocate.
#[allow(unsafe_code)] // The dynamic linker calls the function before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    ensure();
    forks::look_up();
}

/// Returns when it is decided whether the program has a far heap. A call from within the decision returns at once.
#[inline]
pub(crate) fn ensure() {
    if PROGRESS.load(Ordering::Acquire) != DECIDED {
        decide();
    }
}

#[cold]
fn decide() {
    let thread = thread_id();
    match PROGRESS.compare_exchange(UNDECIDED, thread, Ordering::Acquire, Ordering::Acquire) {
        Ok(_) => {
            set_up();
            PROGRESS.store(DECIDED, Ordering::Release);
        }
        Err(other) if other == thread => {}
        Err(_) => {
            while PROGRESS.load(Ordering::Acquire) != DECIDED {
                pause(DECISION_PAUSE_MICROSECONDS);
            }
        }
    }
}

fn set_up() {
    match environment::read() {
        Environment::Silent => mimalloc_options::configure(None),
        Environment::Malformed => end_program(&["the far heap: the environment names no server as it should"]),
        Environment::Server(server) => {
            let region_bytes = attach::attach_to(server);
            mimalloc_options::configure(Some(region_bytes));
            // From here on the program has its heap: what these calls allocate is far.
            forks::register();
        }
    }
}
