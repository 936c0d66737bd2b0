//! Panics of pushed closures, kept for the caller instead of printed.
//!
//! Only the panic hook sees where a panic happened, and the hook is one for the process. So the hook asks a thread-local
//! variable whether this thread runs a pushed closure. The closure runs as its caller's thread, and so do the hook and this
//! variable.

use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{self, PanicHookInfo};
use std::sync::Once;

/// A panic of a pushed closure.
#[derive(Debug)]
pub struct PanicReport {
    message: String,
    place: Option<PanicPlace>,
}

#[derive(Debug)]
struct PanicPlace {
    location: String,
    backtrace: Backtrace,
}

impl PanicReport {
    /// The panic's message; empty if its payload is no string.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// `file:line:column`; `None` if the program has installed another panic hook after the executor was opened.
    pub fn location(&self) -> Option<&str> {
        self.place.as_ref().map(|place| place.location.as_str())
    }

    /// The frames of the panic in the executor; `None` as for [`PanicReport::location`]. Symbols are looked up when it is formatted.
    pub fn backtrace(&self) -> Option<&Backtrace> {
        self.place.as_ref().map(|place| &place.backtrace)
    }
}

/// The message and the location.
impl fmt::Display for PanicReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match self.location() {
            Some(location) => write!(f, ", at {location}"),
            None => Ok(()),
        }
    }
}

thread_local! {
    static IS_PUSHED: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<PanicPlace>> = const { RefCell::new(None) };
}

/// While it exists, panics of this thread are kept.
pub(super) struct KeptPanics {
    /// Within a pushed closure, whose own call goes on after this one is refused.
    was_pushed: bool,
}

impl KeptPanics {
    pub(super) fn start() -> KeptPanics {
        KeptPanics { was_pushed: IS_PUSHED.replace(true) }
    }

    /// Of the panic that was caught last.
    pub(super) fn report(&self, payload: Box<dyn Any + Send>) -> Box<PanicReport> {
        let message = match payload.downcast::<String>() {
            Ok(message) => *message,
            Err(payload) => payload.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
        };
        Box::new(PanicReport { message, place: LAST.take() })
    }
}

impl Drop for KeptPanics {
    fn drop(&mut self) {
        IS_PUSHED.set(self.was_pushed);
        LAST.set(None);
    }
}

/// Installs the hook, once.
pub(super) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !keep(info) {
                before(info);
            }
        }));
    });
}

/// Whether the panic is one of a pushed closure.
fn keep(info: &PanicHookInfo<'_>) -> bool {
    if !IS_PUSHED.get() {
        return false;
    }
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    LAST.set(Some(PanicPlace { location, backtrace: Backtrace::force_capture() }));
    true
}
