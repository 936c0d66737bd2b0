//! `heddle down`.

use std::time::Duration;

use crate::cli::network::Down;
use crate::failure::Failure;
use crate::{instance, output};

pub async fn run(arguments: &Down) -> Result<(), Failure> {
    let dir = &arguments.directory.dir;
    // One that is starting holds the lock and has not said yet where it listens.
    let process = match instance::holder(dir)? {
        Some(process) if !instance::is_planned(dir) => process,
        _ => instance::expect_running(dir)?.process,
    };
    instance::terminate(process)
        .map_err(|error| Failure::new(format!("process {process} of the network cannot be ended: {error}")))?;
    let patience = Duration::from_secs(arguments.timeout);
    if !instance::released(dir, patience).await? {
        let seconds = arguments.timeout;
        let message = format!("process {process} has not ended within {seconds} s; wait longer with --timeout");
        return Err(Failure::new(message));
    }
    output::print(&format!("the network in {} has ended\n", dir.display()))
}
