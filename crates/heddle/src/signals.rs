//! The signals that ask a command to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

/// SIGINT and SIGTERM, which no longer end the process by themselves.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on signals wait for [`StopSignals::received`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<StopSignals, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::new(format!("signals cannot be received: {error}")));
        Ok(StopSignals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next of them. Dropping the future loses none.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
