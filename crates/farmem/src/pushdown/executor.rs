//! The executor of a process, and calls of closures.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::abort;
use std::time::Duration;

use super::coherence::Coherence;
use super::error::PushdownError;
use super::failure::Failure;
use super::far_memory::FarMemory;
use super::library::{Library, check};
use super::library_terms::{self, DECLINED, LibraryTerms};
use super::measurement::{self, CallTimes};
use super::options::PushdownOptions;
use super::panics;
use super::terms::{PushdownStatistics, PushdownTerms, PushdownTicket};

/// The executor of this process. Copies are the same executor; it ends with the process.
#[derive(Clone, Copy, Debug)]
pub struct Executor {
    library: Library,
}

impl Executor {
    /// Starts the executor, or finds the one that has been started. Call it early: before there are other threads.
    ///
    /// It installs a panic hook that keeps the panics of pushed closures for [`PushdownError::Panicked`], and passes all others to the hook
    /// that was there before.
    ///
    /// # Errors
    /// [`PushdownError::Unavailable`].
    ///
    /// # Panics
    /// If this thread is panicking.
    pub fn open(options: &PushdownOptions) -> Result<Executor, PushdownError> {
        let library = Library::load(options.library.as_deref())?;
        library.open(options)?;
        panics::install_hook();
        Ok(Executor { library })
    }

    /// Runs a closure in the executor, waits until it has ended, and returns its result.
    ///
    /// A signal that the closure causes, such as that of a stack overflow, the closure's limit, and the loss of the executor end this
    /// process with a message: the closure was left in the middle, as a crash of this process would have left it.
    /// [`Executor::try_call`] returns them.
    ///
    /// # Errors
    /// [`PushdownError::Panicked`] if the closure panicked; [`PushdownError::Busy`], [`PushdownError::Refused`] if it has not run.
    pub fn call<F, T>(&self, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        self.call_with(&PushdownTerms::default(), closure)
    }

    /// As [`Executor::call`], on terms.
    ///
    /// # Errors
    /// Those of [`Executor::call`], [`PushdownError::Cancelled`].
    pub fn call_with<F, T>(&self, terms: &PushdownTerms<'_>, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: this process does not go on if the closure was left in the middle.
        match unsafe { self.try_call_with(terms, closure) } {
            Err(error @ (PushdownError::Signal { .. } | PushdownError::Killed { .. } | PushdownError::Lost)) => {
                eprintln!("heddle: {error}: this process ends");
                abort()
            }
            outcome => outcome,
        }
    }

    /// As [`Executor::call`], but a signal of the closure, its limit and the loss of the executor are errors.
    ///
    /// After a loss, memory that the executor had is lost: a thread that touches it ends the process. The stack around this
    /// call may belong to it, if the closure has written to variables there.
    ///
    /// # Errors
    /// Those of [`Executor::call`], [`PushdownError::Signal`], [`PushdownError::Killed`], [`PushdownError::Lost`].
    ///
    /// # Safety
    /// With the last three errors, the closure was left in the middle, and the destructors of its frames and of the functions that
    /// it called have not run. So none of them may have held a value whose destructor others rely on: a lock's guard, a borrowed
    /// `RefCell`, a pinned value. Nor may a function have been left that had broken an invariant of a value which lives on:
    /// values from outside that the closure changes must be plain data, every state of which is valid, or must not be used after such
    /// an error.
    pub unsafe fn try_call<F, T>(&self, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: as the caller answers for.
        unsafe { self.try_call_with(&PushdownTerms::default(), closure) }
    }

    /// As [`Executor::try_call`], on terms.
    ///
    /// # Errors
    /// Those of [`Executor::try_call`], [`PushdownError::Cancelled`].
    ///
    /// # Safety
    /// That of [`Executor::try_call`]. A closure that was killed may have been anywhere, within the allocator too: if it held a lock of the C
    /// library then, a thread that needs it waits for ever.
    pub unsafe fn try_call_with<F, T>(&self, terms: &PushdownTerms<'_>, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: as the caller answers for; in this mode both sides see one memory.
        unsafe { self.push_down(Coherence::Coherent, terms, closure) }
    }

    /// As [`Executor::try_call`], in a mode of coherence. A closure that the library refuses because closures of another mode run is
    /// [`PushdownError::Busy`].
    ///
    /// # Errors
    /// Those of [`Executor::try_call`].
    ///
    /// # Safety
    /// Beside what [`Executor::try_call`] demands, for any mode but [`Coherence::Coherent`]: while the closure runs, it and other threads of
    /// this process must not both use a value, unless neither writes to it, or each does so in the way that the mode allows, by raw
    /// pointers and [`Executor::syncmem`]. Locks, channels and atomics do not make it allowed, and the heap is such a value: either
    /// the closure or the other threads may allocate and free, and not both.
    pub unsafe fn try_call_in<F, T>(&self, coherence: Coherence, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: as the caller answers for.
        unsafe { self.push_down(coherence, &PushdownTerms::default(), closure) }
    }

    /// Runs a function in the executor, and waits until it has ended. Unlike a closure, whose result is written to the stack of this thread, a
    /// function that touches no memory moves no page.
    ///
    /// # Errors
    /// Those of [`Executor::try_call`], but for panics.
    ///
    /// # Safety
    /// That of [`Executor::try_call`]. The function may be called with the argument, on another thread.
    pub unsafe fn try_call_function(
        &self,
        function: extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), PushdownError> {
        let mut failure = Failure::default();
        let terms = LibraryTerms::of(&PushdownTerms::default(), Coherence::Coherent);
        // SAFETY: as the caller answers for.
        let kind =
            unsafe { (self.library.pushdown_with)(Some(function), argument, &raw const terms, &raw mut failure) };
        check(kind, &failure, &self.library)
    }

    /// # Safety
    /// That of [`Executor::try_call_with`] and [`Executor::try_call_in`].
    unsafe fn push_down<F, T>(
        &self,
        coherence: Coherence,
        terms: &PushdownTerms<'_>,
        closure: F,
    ) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let mut call = Call { closure: Some(closure), outcome: None };
        let mut failure = Failure::default();
        let argument = (&raw mut call).cast::<c_void>();
        let panics = panics::KeptPanics::start();
        let terms = LibraryTerms::of(terms, coherence);
        // SAFETY: the trampoline gets the argument that it expects, which lives until this returns, as the ticket does. It returns without
        // unwinding, or is left as the caller of this function allows.
        let kind = unsafe {
            (self.library.pushdown_with)(Some(trampoline::<F, T>), argument, &raw const terms, &raw mut failure)
        };
        match check(kind, &failure, &self.library) {
            Ok(()) => {}
            Err(error @ (PushdownError::Busy | PushdownError::Refused | PushdownError::Cancelled)) => {
                return Err(error);
            }
            Err(error) => {
                // Its state is unknown, so it is not dropped.
                std::mem::forget(call);
                return Err(error);
            }
        }
        let outcome = call.outcome.expect("the trampoline has returned, so it has run the closure");
        outcome.map_err(|payload| PushdownError::Panicked(panics.report(payload)))
    }

    /// Cancels the call that was made with a ticket, from another thread. Returns whether its closure has not run and will not for this push:
    /// then the call is [`PushdownError::Cancelled`], or does what its terms say. Otherwise the closure has begun or has
    /// ended, and nothing changes.
    ///
    /// # Errors
    /// [`PushdownError::Lost`]; [`PushdownError::Refused`] if no call was made with the ticket.
    pub fn try_cancel(&self, ticket: &PushdownTicket) -> Result<bool, PushdownError> {
        // SAFETY: the ticket is a number that the library reads.
        match unsafe { (self.library.try_cancel)(ticket.address()) } {
            DECLINED => Ok(false),
            kind => check(kind, &Failure::default(), &self.library).map(|()| true),
        }
    }

    /// What was counted of calls so far.
    ///
    /// # Errors
    /// [`PushdownError::Refused`] in a pushed closure, and in a forked child.
    pub fn statistics(&self) -> Result<PushdownStatistics, PushdownError> {
        library_terms::statistics(self.library.statistics).ok_or(PushdownError::Refused)
    }

    /// How long the parts of this thread's last call took. `None` if it has made none, or its closure has not run to an end.
    pub fn last_times(&self) -> Option<CallTimes> {
        measurement::times(self.library.times)
    }

    /// Messages about pages that this process has sent and received so far; 0 in a pushed closure, and in a forked child.
    pub fn messages(&self) -> u64 {
        measurement::messages(self.library.counts).unwrap_or(0)
    }

    /// The latency of the link that is imitated between this process and the executor (`HEDDLE_PUSHDOWN_LINK`); zero without one.
    pub fn link_latency(&self) -> Duration {
        // SAFETY: the function takes nothing, and returns a number.
        Duration::from_nanos(unsafe { (self.library.link_latency)() })
    }

    /// Maps far memory, of which this process keeps at most `budget_bytes` bytes, and at least a page. A rest of less than eight bytes is left out.
    ///
    /// # Errors
    /// [`PushdownError::FarMemory`], also for 0 bytes, and while closures run; [`PushdownError::Refused`].
    pub fn far_memory(&self, bytes: u64, budget_bytes: u64) -> Result<FarMemory, PushdownError> {
        FarMemory::map(self.library, bytes, budget_bytes)
    }

    /// [`Executor::syncmem`] for all of this process's private memory that it may write.
    ///
    /// # Errors
    /// Those of [`Executor::syncmem`], [`PushdownError::Mappings`].
    pub fn syncmem_everything(&self) -> Result<(), PushdownError> {
        let maps = std::fs::read_to_string("/proc/self/maps").map_err(PushdownError::Mappings)?;
        for range in maps.lines().filter_map(private_memory) {
            // SAFETY: the library only sends pages of the range, and leaves out those that are gone meanwhile.
            let kind = unsafe { (self.library.syncmem)(range.start as *const c_void, range.len()) };
            check(kind, &Failure::default(), &self.library)?;
        }
        Ok(())
    }

    /// A synchronisation point for the pages of a slice: what this process has written there goes home, so that a closure finds it and need not
    /// ask for each page. It may be called beside a closure, and by one. With [`Coherence::Coherent`] this is about speed only: both
    /// sides see the same bytes with it and without it.
    ///
    /// # Errors
    /// [`PushdownError::Lost`], [`PushdownError::Refused`].
    pub fn syncmem<T>(&self, slice: &[T]) -> Result<(), PushdownError> {
        // SAFETY: the range is one of this process, and its bytes stay what they are.
        let kind = unsafe { (self.library.syncmem)(slice.as_ptr().cast(), size_of_val(slice)) };
        check(kind, &Failure::default(), &self.library)
    }

    /// With [`Coherence::Off`], fetches what a closure has written to the bytes of a slice; otherwise as [`Executor::syncmem`].
    ///
    /// # Errors
    /// [`PushdownError::Lost`], [`PushdownError::Refused`].
    ///
    /// # Safety
    /// The range is memory of this process that may be written, and what the closure has written there is valid. Nothing borrows it.
    pub unsafe fn pullmem<T>(&self, slice: *mut [T]) -> Result<(), PushdownError> {
        // SAFETY: as the caller answers for.
        let kind = unsafe { (self.library.pullmem)(slice.cast(), slice.len() * size_of::<T>()) };
        check(kind, &Failure::default(), &self.library)
    }
}

/// The addresses of a line of `/proc/self/maps`, if it is private memory that may be written.
fn private_memory(line: &str) -> Option<Range<usize>> {
    let (addresses, rest) = line.split_once(' ')?;
    let (start, end) = addresses.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let is_private = rest.starts_with("rw") && rest.get(3..4) == Some("p");
    is_private.then_some(address(start)?..address(end)?)
}

/// A closure and how it ended.
struct Call<F, T> {
    closure: Option<F>,
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
}

/// Runs in the executor.
extern "C" fn trampoline<F: FnOnce() -> T, T>(argument: *mut c_void) {
    // SAFETY: `try_call` passes a pointer to its own value of this type, which nothing else uses meanwhile.
    let call = unsafe { &mut *argument.cast::<Call<F, T>>() };
    if let Some(closure) = call.closure.take() {
        call.outcome = Some(catch_unwind(AssertUnwindSafe(closure)));
    }
}
