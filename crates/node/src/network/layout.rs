//! Migrates the data of a network that an earlier release laid out differently.
//!
//! An earlier release kept a peer's blocks in `peers/<organisation>/ledger`, and the orderer's blocks directly in
//! `orderer`. Now each of them is a data directory with a folder `blocks`, so that a separate process can lock it.

use std::path::{Path, PathBuf};

use base::durable;

use super::{NodeError, write_private};

/// The folder of blocks in the data directory of a peer, a storage node or an orderer.
pub(crate) const BLOCKS: &str = "blocks";
/// The folder of tables in the data directory of a peer or a storage node.
pub(crate) const TABLES: &str = "state";
/// The folder of processes' files: each process has a folder of its name in it.
pub(crate) const NODES: &str = "nodes";

/// The name of an organisation's compute node, counted from 0.
pub(crate) fn compute_name(organization: &str, node: usize) -> String {
    let organization = organization.to_ascii_lowercase();
    match node {
        0 => format!("compute-{organization}"),
        _ => format!("compute-{organization}-{}", node + 1),
    }
}

/// The folder of an organisation's compute node, even if the node is not a process of its own.
pub(crate) fn compute_folder(network: &Path, organization: &str, node: usize) -> PathBuf {
    network.join(NODES).join(compute_name(organization, node))
}

/// The folder of an orderer, counted from 0, even if the orderer is not a process of its own.
pub(crate) fn orderer_folder(network: &Path, place: usize) -> PathBuf {
    network.join(NODES).join(orderer_name(place))
}

/// The name of an orderer, counted from 0.
pub(crate) fn orderer_name(place: usize) -> String {
    match place {
        0 => "orderer".to_owned(),
        _ => format!("orderer-{}", place + 1),
    }
}

/// The data directory of the orderer with this number, in its network's directory.
pub(crate) fn orderer_data(number: u64) -> String {
    match number {
        1 => "orderer".to_owned(),
        _ => format!("orderers/{number}"),
    }
}

const VERSION_FILE: &str = "VERSION";

/// Moves data from the old layout to the new one. Skips what is moved already, so it may be interrupted at any point.
pub(super) fn bring_up(network: &Path) -> Result<(), NodeError> {
    let peers = network.join("peers");
    for entry in std::fs::read_dir(&peers).into_iter().flatten().flatten() {
        let peer = entry.path();
        let old = peer.join("ledger");
        if old.is_dir() {
            rename(&old, &peer.join(BLOCKS))?;
            mark(network, &peer)?;
        }
    }
    let orderer = network.join("orderer");
    if orderer.is_dir() && !orderer.join(VERSION_FILE).exists() {
        let blocks = orderer.join(BLOCKS);
        durable::create_folder(&blocks).map_err(NodeError::file("creating", &blocks))?;
        for entry in std::fs::read_dir(&orderer).map_err(NodeError::file("reading", &orderer))?.flatten() {
            if entry.path() != blocks && entry.path().is_dir() {
                rename(&entry.path(), &blocks.join(entry.file_name()))?;
            }
        }
        mark(network, &orderer)?;
    }
    Ok(())
}

fn rename(from: &Path, to: &Path) -> Result<(), NodeError> {
    durable::rename(from, to).map_err(NodeError::file("moving", from))
}

/// Makes a folder a data directory, of the same format version as the network.
fn mark(network: &Path, folder: &Path) -> Result<(), NodeError> {
    let version = folder.join(VERSION_FILE);
    let bytes = std::fs::read(network.join(VERSION_FILE)).map_err(NodeError::file("reading", &version))?;
    write_private(&version, &bytes)
}
