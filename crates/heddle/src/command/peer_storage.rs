//! `heddle peer storage`: shows or changes the copies of a peer's blocks and tables.
//!
//! 1. Find the folder of the primary, as `heddle peer memory` does; for `--force`, of any compute node.
//! 2. Have the process run at which a copy is to be built, if it was stopped for want of one ([`StoppedStorage`]).
//! 3. Send the request through the socket in that folder ([`node::control`]).
//! 4. Poll until the copy is complete, or left out. Another compute node may become the primary meanwhile; it goes on with the
//!    copies that it finds.

use std::path::PathBuf;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use node::Ready;
use node::control::{ControlError, ControlRequest, StorageReport, request_storage};

use super::peer::{AWAY_MAX, POLL, failure, folders, primary_folder};
use super::stopped_storage::StoppedStorage;
use crate::cli::peer::PeerStorageArguments;
use crate::failure::CommandError;
use crate::{instance, output};

pub async fn storage(arguments: &PeerStorageArguments) -> Result<(), CommandError> {
    let PeerStorageArguments { asked, add, drop, move_copy, force, json } = arguments;
    let report = if let Some(name) = force {
        run_process(arguments, name).await?;
        let folder = folders(asked)?.remove(0);
        request_storage(&folder, &ControlRequest::ForceStorageCopy { name: name.clone() }).await.map_err(failure)?
    } else {
        let folder = primary_folder(asked).await?;
        match (add, drop, &move_copy[..]) {
            (Some(name), ..) => self::add(arguments, folder, name).await?,
            (_, Some(name), _) => leave_out(arguments, folder, name).await?,
            (.., [from, to]) => {
                if from == to {
                    return Err(CommandError::new("a copy moves from one storage node to another"));
                }
                self::add(arguments, folder.clone(), to).await?;
                leave_out(arguments, folder, from).await?
            }
            _ => request_storage(&folder, &ControlRequest::Storage {}).await.map_err(failure)?,
        }
    };
    match json {
        true => output::print_json(&serde_json::to_value(&report).map_err(CommandError::new)?),
        false => output::print(&text(&report)),
    }
}

async fn add(arguments: &PeerStorageArguments, folder: PathBuf, name: &str) -> Result<StorageReport, CommandError> {
    run_process(arguments, name).await?;
    request_storage(&folder, &ControlRequest::AddStorageCopy { name: name.to_owned() }).await.map_err(failure)?;
    until(arguments, folder, name, "complete", "building a copy").await
}

/// Has the process of a storage node run, and keeps it from being stopped. With `--node` the folder may be of another host, whose
/// supervisor nobody here knows.
async fn run_process(arguments: &PeerStorageArguments, name: &str) -> Result<(), CommandError> {
    let dir = &arguments.asked.directory.dir;
    if arguments.asked.node.is_some() || !StoppedStorage::start(dir, name, true)? {
        return Ok(());
    }
    eprintln!("{name} was stopped, and starts");
    let (folder, asked) = (dir.join("nodes").join(name), Instant::now());
    let runs =
        || Ready::load(&folder).is_some_and(|ready| instance::runs_with(ready.process, &folder.join("node.toml")));
    while !runs() && asked.elapsed() < AWAY_MAX {
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

async fn leave_out(
    arguments: &PeerStorageArguments,
    folder: PathBuf,
    name: &str,
) -> Result<StorageReport, CommandError> {
    if arguments.asked.node.is_none() {
        StoppedStorage::release(&arguments.asked.directory.dir, name)?;
    }
    request_storage(&folder, &ControlRequest::DropStorageCopy { name: name.to_owned() }).await.map_err(failure)?;
    until(arguments, folder, name, "none", "leaving a copy out").await
}

/// Waits until a storage node has what it is to have, and shows how far it has come.
async fn until(
    arguments: &PeerStorageArguments,
    mut folder: PathBuf,
    name: &str,
    wanted: &str,
    doing: &'static str,
) -> Result<StorageReport, CommandError> {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len} blocks, {elapsed}").expect("well formed");
    let bar = ProgressBar::new(0).with_style(style.progress_chars("=> ")).with_message(doing);
    let mut answered = Instant::now();
    loop {
        match request_storage(&folder, &ControlRequest::Storage {}).await {
            Ok(report) => {
                answered = Instant::now();
                if report.copy(name) == wanted {
                    bar.finish_and_clear();
                    return Ok(report);
                }
                let height = report.nodes.iter().find(|node| node.name == name).map_or(0, |node| node.height);
                bar.set_length(report.height());
                bar.set_position(height);
            }
            Err(ControlError::Unreachable { .. } | ControlError::Rejected(_)) if answered.elapsed() < AWAY_MAX => {
                // Another compute node may be the primary by now.
                folder = primary_folder(&arguments.asked).await?;
            }
            Err(error) => return Err(failure(error)),
        }
        tokio::time::sleep(POLL).await;
    }
}

fn text(report: &StorageReport) -> String {
    let mut lines = vec![format!("{}: {} copies wanted, view {}", report.name, report.wanted, report.view)];
    let lag = |height: u64| match report.height().saturating_sub(height) {
        0 => String::new(),
        behind => format!(", {behind} behind"),
    };
    for node in &report.nodes {
        let blocks = match node.copy.as_str() {
            "none" => String::new(),
            _ => format!("{} blocks{}", node.height, lag(node.height)),
        };
        let rows = match node.private_rows {
            0 => String::new(),
            rows => format!(", {rows} private rows copied"),
        };
        lines.push(format!("  {:<16} {:<10} {blocks}{rows}", node.name, node.copy).trim_end().to_owned());
    }
    lines.join("\n") + "\n"
}
