//! `heddle down`.

use std::time::Duration;

use crate::cli::network::DownArguments;
use crate::failure::CommandError;
use crate::{instance, output};

pub async fn run(arguments: &DownArguments) -> Result<(), CommandError> {
    let dir = &arguments.directory.dir;
    // A starting network holds the lock, but has not published its addresses yet.
    let process = match instance::holder(dir)? {
        Some(process) if !instance::is_planned(dir) => process,
        _ => instance::expect_running(dir)?.process,
    };
    instance::terminate(process)
        .map_err(|error| CommandError::new(format!("process {process} of the network cannot be ended: {error}")))?;
    let patience = Duration::from_secs(arguments.timeout);
    if !instance::released(dir, patience).await? {
        let seconds = arguments.timeout;
        let message = format!("process {process} has not ended within {seconds} s; wait longer with --timeout");
        return Err(CommandError::new(message));
    }
    output::print(&format!("the network in {} has ended\n", dir.display()))
}
