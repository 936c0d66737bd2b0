//! How a run goes on: whom it is told, and a line in the terminal that shows it; nothing when standard error is no terminal.

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use indicatif::{ProgressBar, ProgressStyle};

use crate::driver::{Observer, Phase};
use crate::error::Error;
use crate::figure::Figure;

/// Is told what is done next.
pub type Tell<'a> = &'a dyn Fn(&str);

/// A measurement that somebody outside this crate awaits. It is boxed because what an `async fn` does, and all that it awaits, is
/// compiled where it is awaited: so it is compiled here, and not with the program, each time that this is.
pub type Measuring<'a, T = Figure> = LocalBoxFuture<'a, Result<T, Error>>;

/// Shows a run in the terminal.
pub struct Terminal {
    bar: ProgressBar,
    phase: Phase,
    /// Valid transactions and when they were counted, for the current rate.
    last: (Instant, u64),
}

/// Rates are taken over at least so long.
const RATE_WINDOW: Duration = Duration::from_millis(900);

impl Terminal {
    /// Nothing is shown before the first phase begins.
    pub fn new() -> Terminal {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{prefix:>9} [{bar:30}] {percent:>3} %  {msg}");
        bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
        Terminal { bar, phase: Phase::Load, last: (Instant::now(), 0) }
    }
}

impl Default for Terminal {
    fn default() -> Terminal {
        Terminal::new()
    }
}

impl Observer for Terminal {
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

impl Drop for Terminal {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
