//! The executor of a process, and calls of closures.

#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::abort;

use super::error::PushdownError;
use super::library::{COHERENT, Failure, Library, check};
use super::panics;

/// How to open the executor.
#[derive(Clone, Debug, Default)]
pub struct PushdownOptions {
    /// The library. `None`: the value of `HEDDLE_PUSHDOWN_LIBRARY` in the environment; without it, `libheddle_pushdown.so` beside this
    /// program.
    pub library: Option<PathBuf>,
    /// The executor's program. `None`: the value of `HEDDLE_EXECUTOR` in the environment; without it, `heddle-executor` beside the
    /// library.
    pub executor: Option<PathBuf>,
    /// How many functions may run at the same time; others wait for their turn. 0 means 1.
    pub contexts: u32,
}

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
        library.open(options.executor.as_deref(), options.contexts)?;
        panics::install_hook();
        Ok(Executor { library })
    }

    /// Runs a closure in the executor, waits until it has ended, and returns its result.
    ///
    /// A signal that the closure causes, such as that of a stack overflow, and the loss of the executor end this process with a message:
    /// the closure was left in the middle, as a crash of this process would have left it. [`Executor::try_call`] returns them.
    ///
    /// # Errors
    /// [`PushdownError::Panicked`] if the closure panicked; [`PushdownError::Busy`], [`PushdownError::Refused`] if it has not run.
    pub fn call<F, T>(&self, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        // SAFETY: this process does not go on if the closure was left in the middle.
        match unsafe { self.try_call(closure) } {
            Err(error @ (PushdownError::Signal { .. } | PushdownError::Lost)) => {
                eprintln!("heddle: {error}: this process ends");
                abort()
            }
            outcome => outcome,
        }
    }

    /// As [`Executor::call`], but a signal of the closure and the loss of the executor are errors.
    ///
    /// After a loss, memory that the executor had is lost: a thread that touches it ends the process. The stack around this
    /// call may belong to it, if the closure has written to variables there.
    ///
    /// # Errors
    /// Those of [`Executor::call`], [`PushdownError::Signal`], [`PushdownError::Lost`].
    ///
    /// # Safety
    /// With the last two errors, the closure was left in the middle, and the destructors of its frames and of the functions that
    /// it called have not run. So none of them may have held a value whose destructor others rely on: a lock's guard, a borrowed
    /// `RefCell`, a pinned value. Nor may a function have been left that had broken an invariant of a value which lives on:
    /// values from outside that the closure changes must be plain data, every state of which is valid, or must not be used after such
    /// an error.
    pub unsafe fn try_call<F, T>(&self, closure: F) -> Result<T, PushdownError>
    where
        F: FnOnce() -> T + Send,
        T: Send,
    {
        let mut call = Call { closure: Some(closure), outcome: None };
        let mut failure = Failure::default();
        let argument = (&raw mut call).cast::<c_void>();
        let panics = panics::KeptPanics::start();
        // SAFETY: the trampoline gets the argument that it expects, which lives until this returns. It returns without unwinding, or
        // is left as the caller of this function allows.
        let kind = unsafe { (self.library.pushdown)(Some(trampoline::<F, T>), argument, COHERENT, &raw mut failure) };
        match check(kind, &failure) {
            Ok(()) => {}
            Err(error @ (PushdownError::Busy | PushdownError::Refused)) => return Err(error),
            Err(error) => {
                // Its state is unknown, so it is not dropped.
                std::mem::forget(call);
                return Err(error);
            }
        }
        let outcome = call.outcome.expect("the trampoline has returned, so it has run the closure");
        outcome.map_err(|payload| PushdownError::Panicked(panics.report(payload)))
    }

    /// Sends home what this process has written to the pages of a slice, so that a closure finds them there and need not ask for each one.
    /// This is about speed only: both sides see the same bytes with it and without it.
    ///
    /// # Errors
    /// [`PushdownError::Lost`], [`PushdownError::Refused`].
    pub fn syncmem<T>(&self, slice: &[T]) -> Result<(), PushdownError> {
        // SAFETY: the range is one of this process, and its bytes stay what they are.
        let kind = unsafe { (self.library.syncmem)(slice.as_ptr().cast(), size_of_val(slice)) };
        check(kind, &Failure::default())
    }
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
