//! The signals that ask a command to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::CommandError;

/// SIGINT and SIGTERM; they no longer end the process by themselves.
pub struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// From now on signals are held for [`StopSignals::received`].
    ///
    /// # Errors
    /// The system refuses.
    pub fn listen() -> Result<StopSignals, CommandError> {
        let listen =
            |kind| signal(kind).map_err(|error| CommandError::new(format!("signals cannot be received: {error}")));
        Ok(StopSignals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for the next signal. Dropping the future loses no signal.
    pub async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
