//! The compute nodes that were added to the peers of a network. The file `compute-nodes.json` in the network's directory names
//! them, so that each later plan makes their files again, and the supervisor of a network's processes runs them too.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use replica::NODES_MAX;
use serde::{Deserialize, Serialize};

use crate::joining::{self, JoiningNode};
use crate::network::layout::{compute_folder, compute_name};
use crate::network::{NodeError, write};
use crate::process::file::{NODE_FILE, NodeFile, ProcessRole};

const FILE: &str = "compute-nodes.json";
/// Held by the process that changes the file.
const LOCK: &str = "compute-nodes.lock";

/// A compute node that was added to a peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AddedNode {
    /// The organisation of the peer, such as `org1`.
    pub organization: String,
    /// Its number among the peer's compute nodes, from 2 on: that of `compute-org1-3` is 3.
    pub number: usize,
    /// Its first port on another host; `None` if it runs on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<SocketAddr>,
}

impl AddedNode {
    /// Such as `compute-org1-3`.
    pub fn name(&self) -> String {
        compute_name(&self.organization, self.index())
    }

    /// The folder of its files.
    pub fn folder(&self, network: &Path) -> PathBuf {
        compute_folder(network, &self.organization, self.index())
    }

    /// The path of its configuration file.
    pub fn config(&self, network: &Path) -> PathBuf {
        self.folder(network).join(NODE_FILE)
    }

    /// Its files, which exist.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn files(&self, network: &Path) -> Result<JoiningNode, NodeError> {
        let (name, number, folder) = (self.name(), self.number, self.folder(network));
        let file = NodeFile::load(ProcessRole::Compute, &self.config(network))?;
        let (address, others_address) = (file.compute().address.clone(), file.compute().others_address.clone());
        Ok(JoiningNode { name, number, folder, address, others_address })
    }

    fn index(&self) -> usize {
        self.number.saturating_sub(1)
    }
}

/// The added compute nodes of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddedNodes {
    /// Each of them once.
    pub nodes: Vec<AddedNode>,
}

impl AddedNodes {
    /// The nodes that were added to the network in a directory.
    ///
    /// # Errors
    /// [`NodeError::File`].
    pub fn load(network: &Path) -> Result<AddedNodes, NodeError> {
        let path = network.join(FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(AddedNodes::default()),
            Err(error) => return Err(NodeError::file("reading", &path)(error)),
        };
        let strange = |reason: String| NodeError::file("reading", &path)(std::io::Error::other(reason));
        let added: AddedNodes = serde_json::from_slice(&bytes).map_err(|error| strange(error.to_string()))?;
        match added.nodes.iter().all(|node| (2..=NODES_MAX).contains(&node.number)) {
            true => Ok(added),
            false => Err(strange(format!("a number is not from 2 to {NODES_MAX}"))),
        }
    }

    /// When the network's file was written, if there is one.
    pub fn modified_at(network: &Path) -> Option<SystemTime> {
        std::fs::metadata(network.join(FILE)).and_then(|file| file.modified()).ok()
    }

    /// The right to change the file, until it is dropped.
    fn lock(network: &Path) -> Result<File, NodeError> {
        let path = network.join(LOCK);
        let lock = File::options().create(true).append(true).open(&path).and_then(|file| file.lock().map(|()| file));
        lock.map_err(NodeError::file("locking", &path))
    }

    fn store(&self, network: &Path) -> Result<(), NodeError> {
        let text = serde_json::to_string(self).expect("it has a JSON form");
        write(&network.join(FILE), (text + "\n").as_bytes())
    }

    /// Makes the files of a compute node, as [`joining::add_compute_node`] does, and enters it. The supervisor of the
    /// network's processes starts it, if there is one and the node is of this machine.
    ///
    /// # Errors
    /// As [`joining::add_compute_node`].
    pub fn add(network: &Path, organization: &str, address: Option<SocketAddr>) -> Result<JoiningNode, NodeError> {
        let _lock = AddedNodes::lock(network)?;
        let mut added = AddedNodes::load(network)?;
        let joining = joining::add_compute_node(network, organization, address)?;
        let node = AddedNode { organization: organization.to_owned(), number: joining.number, address };
        // A folder was removed by hand.
        added.nodes.retain(|other| other.name() != joining.name);
        added.nodes.push(node);
        added.store(network)?;
        Ok(joining)
    }

    /// Strikes a compute node out. Then its supervisor ends it, and its folder may be removed.
    ///
    /// # Errors
    /// [`NodeError::Joining`] if no such node was added; [`NodeError::File`].
    pub fn remove(network: &Path, name: &str) -> Result<AddedNode, NodeError> {
        let _lock = AddedNodes::lock(network)?;
        let mut added = AddedNodes::load(network)?;
        let Some(place) = added.nodes.iter().position(|node| node.name() == name) else {
            let names: Vec<String> = added.nodes.iter().map(AddedNode::name).collect();
            let known = if names.is_empty() { "none were".to_owned() } else { names.join(", ") };
            return Err(NodeError::Joining(format!(
                "{name} is no compute node that was added ({known}); those of the plan are as many as pool.compute_nodes \
                 says"
            )));
        };
        let removed = added.nodes.remove(place);
        added.store(network)?;
        Ok(removed)
    }

    /// Makes the files of all added nodes again, for a new plan that has `planned` nodes a peer and runs on one machine or
    /// on several hosts. Nodes whose numbers the plan has taken are added no more.
    pub(crate) fn renew(
        network: &Path,
        planned: usize,
        one_host: bool,
    ) -> Result<Vec<(JoiningNode, Option<SocketAddr>)>, NodeError> {
        let _lock = AddedNodes::lock(network)?;
        let mut added = AddedNodes::load(network)?;
        let before = added.nodes.len();
        added.nodes.retain(|node| node.number > planned);
        if added.nodes.len() != before {
            added.store(network)?;
        }
        // A plan for one machine has addresses that other hosts do not reach.
        let nodes = added.nodes.iter().filter(|node| node.address.is_none() == one_host);
        let make = |AddedNode { organization, number, address }: &AddedNode| {
            Ok((joining::make_compute_node(network, organization, *number, *address)?, *address))
        };
        nodes.map(make).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_is_kept_until_it_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(AddedNodes::load(folder.path()).expect("there is none"), AddedNodes::default());
        let node = |number, address| AddedNode { organization: "Org1".to_owned(), number, address };
        let nodes = vec![node(3, None), node(4, Some(([10, 0, 0, 5], 7400).into()))];
        let added = AddedNodes { nodes };
        added.store(folder.path()).expect("it can be written");
        assert_eq!(AddedNodes::load(folder.path()).expect("it is there"), added);
        let error = AddedNodes::remove(folder.path(), "compute-org1-2").expect_err("it is planned").to_string();
        assert!(error.contains("compute-org1-3, compute-org1-4"), "{error}");
        assert_eq!(AddedNodes::remove(folder.path(), "compute-org1-3").expect("it was added").number, 3);
        assert_eq!(AddedNodes::load(folder.path()).expect("it is there").nodes.len(), 1);
        for wrong in ["", "[]", r#"{"nodes":[{"organization":"org1","number":1}]}"#] {
            std::fs::write(folder.path().join(FILE), wrong).expect("it can be written");
            assert!(AddedNodes::load(folder.path()).is_err(), "{wrong}");
        }
    }
}
