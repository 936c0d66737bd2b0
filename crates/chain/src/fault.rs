//! Places where a simulation may hold a stage up, so that crashes fall between its steps.

use std::time::Duration;

use base::rt;

/// How long a stage that is held up waits.
const HELD_UP: Duration = Duration::from_millis(150);
/// The first wait before an operation is tried again.
const RETRY_MIN: Duration = Duration::from_millis(100);
/// The longest wait between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// A named fault point: in a simulation a stage may wait here. In production nothing happens.
pub(crate) async fn hold_up(name: &'static str) {
    if rt::fault_point(name) {
        rt::sleep(HELD_UP).await;
    }
}

/// Waits between attempts of something that fails for lack of space or time, longer each time.
pub(crate) struct Patience(Duration);

impl Patience {
    pub(crate) fn new() -> Patience {
        Patience(RETRY_MIN)
    }

    pub(crate) async fn wait(&mut self) {
        rt::sleep(self.0).await;
        self.0 = (self.0 * 2).min(RETRY_MAX);
    }
}
