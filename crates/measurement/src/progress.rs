//! Reports the progress of a run on one line of the terminal. If standard error is no terminal, nothing is shown.

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use indicatif::{ProgressBar, ProgressStyle};

use crate::error::Error;
use crate::figure::Figure;

/// Called with a description of each next step.
pub type ReportProgress<'a> = &'a dyn Fn(&str);

/// A measurement that another crate awaits. An `async fn`, with everything that it awaits, is compiled where it is awaited.
/// The box has it compiled in this crate, and not again with each build of the program.
pub type MeasurementFuture<'a, T = Figure> = LocalBoxFuture<'a, Result<T, Error>>;

/// Shows a run in the terminal.
pub struct TerminalProgress {
    bar: ProgressBar,
    phase: Phase,
    /// Valid transactions and when they were counted, for the current rate.
    last: (Instant, u64),
}

/// Rates are taken over at least this time.
const RATE_WINDOW: Duration = Duration::from_millis(900);

impl TerminalProgress {
    /// Shows nothing before the first phase starts.
    pub fn new() -> TerminalProgress {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix:>9} [{bar:30}] {percent:>3} %  {msg}");
        bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
        TerminalProgress { bar, phase: Phase::Load, last: (Instant::now(), 0) }
    }
}

impl Default for TerminalProgress {
    fn default() -> TerminalProgress {
        TerminalProgress::new()
    }
}

impl ProgressObserver for TerminalProgress {
    fn begin(&mut self, phase: Phase, steps: u64) {
        self.phase = phase;
        self.bar.set_length(steps);
        self.bar.set_position(0);
        self.bar.set_prefix(match phase {
            Phase::Load => "loading",
            Phase::WarmUp => "warming up",
            Phase::Measure => "measuring",
            Phase::Drain => "finishing",
        });
        if phase == Phase::Drain {
            self.bar.finish_and_clear();
        }
    }

    fn progress(&mut self, steps: u64, valid: u64) {
        self.bar.set_position(steps);
        let (at, counted) = self.last;
        if self.phase != Phase::Load && at.elapsed() >= RATE_WINDOW {
            let rate = valid.saturating_sub(counted) as f64 / at.elapsed().as_secs_f64();
            self.bar.set_message(format!("{rate:.0} valid transactions a second"));
            self.last = (Instant::now(), valid);
        }
    }
}

impl Drop for TerminalProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// What the driver is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Loads the workload's data.
    Load,
    /// Runs all clients; nothing counts yet.
    WarmUp,
    /// Counts the transactions that end.
    Measure,
    /// Lets clients finish their transactions in flight.
    Drain,
}

/// Observes the progress of a run.
pub trait ProgressObserver: Send {
    /// A phase starts; it has this many steps (loading transactions, or milliseconds).
    fn begin(&mut self, phase: Phase, steps: u64);
    /// The phase has reached this step; `valid` valid transactions ended since the run started.
    fn progress(&mut self, steps: u64, valid: u64);
}

/// An observer that ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct SilentObserver;

impl ProgressObserver for SilentObserver {
    fn begin(&mut self, _: Phase, _: u64) {}
    fn progress(&mut self, _: u64, _: u64) {}
}
