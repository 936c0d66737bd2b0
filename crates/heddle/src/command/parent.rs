//! Ends this process when its parent process ends.

use crate::failure::CommandError;

/// From now on this process receives SIGTERM when its parent ends.
pub(super) fn end_with_parent() -> Result<(), CommandError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .map_err(|error| CommandError::new(format!("the parent's end cannot be watched: {error}")))
}
