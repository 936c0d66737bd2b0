//! The first failure of the tables' engine.

use std::sync::OnceLock;

use base::ErrorKind;
use base::rt::CancellationToken;

use crate::Error;

/// The first failure of the tables' engine. When a channel is opened again, its tables still belong to the engine, which
/// takes no more writes after some errors (a full disk, a failed fsync) until the engine itself is opened again, with the
/// whole node.
#[derive(Default)]
pub(super) struct EngineFailure {
    pub(super) error: OnceLock<Error>,
    pub(super) recorded: CancellationToken,
}

impl EngineFailure {
    /// Notes an error of writing or opening tables, if the engine is unusable after it.
    pub(super) fn record<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && matches!(error, Error::Broken { .. } | Error::Engine { .. })
            && matches!(error.kind(), ErrorKind::Closed | ErrorKind::Ambiguous)
        {
            self.end(error.clone());
        }
        outcome
    }

    /// Notes why the node is unusable.
    pub(super) fn end(&self, error: Error) {
        self.error.get_or_init(|| error);
        self.recorded.cancel();
    }
}
