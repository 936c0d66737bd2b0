//! Makes the files of a compute node that joins a running peer.
//!
//! The peer need not know the node beforehand: no file of another process names it, and no process is restarted. Its
//! token is made of its name and the secret of the peer's plan, which its primary and storage node know as well
//! ([`Secret::of_process`](crate::process::file::Secret::of_process)). It finds the primary as every compute node does, tells
//! it where it answers, and gateways ask the primary (`replica::followers`, steps 12 to 14). It never becomes the primary.
//!
//! 1. The settings, tokens and authorities are those of the peer's first compute node. Addresses, certificate and token
//!    are new.
//! 2. The configuration is written last: a folder without one is no node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use identity::MemberRole as CertificateRole;
use identity::issue::IssuingOrganization as Issuer;
use replica::NODES_MAX;

use crate::chaincodes::PACKAGES_FOLDER;
use crate::free_ports::AddedPorts;
use crate::network::layout::{compute_folder, compute_name};
use crate::network::{NodeError, material, write_private};
use crate::planned_chaincodes;
use crate::process::file::{GENESIS, MSP, NODE_FILE, NodeFile, PeerNodesFile, ProcessRole, TRUST};

/// A compute node that has its files.
#[derive(Clone, Debug)]
pub struct JoiningNode {
    /// Such as `compute-org1-3`.
    pub name: String,
    /// Its number among the peer's compute nodes, from 2 on.
    pub number: usize,
    /// The folder of its files.
    pub folder: PathBuf,
    /// Its address for gateways of its organisation.
    pub address: String,
    /// Its address for other organisations.
    pub others_address: String,
}

impl JoiningNode {
    /// The path of its configuration file.
    pub fn config(&self) -> PathBuf {
        self.folder.join(NODE_FILE)
    }
}

/// Makes the files of a compute node of an organisation. They lie on this machine, beside the others; or they are to be
/// copied to another host, where the node uses three ports starting at the given one: for gateways of its organisation,
/// for other organisations, and for metrics.
///
/// # Errors
/// [`NodeError::Joining`]; files that cannot be read or written.
pub fn add_compute_node(
    network: &Path,
    organization: &str,
    remote: Option<SocketAddr>,
) -> Result<JoiningNode, NodeError> {
    let is_free = |number: &usize| !compute_folder(network, organization, *number - 1).exists();
    let number = (2..=NODES_MAX).find(is_free).ok_or_else(|| {
        NodeError::Joining(format!("the peer has {NODES_MAX} compute nodes; remove one with `heddle peer remove-node`"))
    })?;
    make_compute_node(network, organization, number, remote)
}

/// As [`add_compute_node`], for the node of this number, whose files may exist.
pub(crate) fn make_compute_node(
    network: &Path,
    organization: &str,
    number: usize,
    remote: Option<SocketAddr>,
) -> Result<JoiningNode, NodeError> {
    let first = compute_folder(network, organization, 0);
    let path = first.join(NODE_FILE);
    let file = NodeFile::load(ProcessRole::Compute, &path)?;
    let mut compute = file.compute().clone();
    let no_joining = || {
        NodeError::Joining(format!(
            "{}: no compute node can join this peer: it keeps its state on its own disk, or was planned by an earlier release",
            path.display()
        ))
    };
    let peer_nodes = compute.peer_nodes.take().ok_or_else(no_joining)?;
    let joining = peer_nodes.joining.ok_or_else(no_joining)?;
    let (name, folder) = (compute_name(organization, number - 1), compute_folder(network, organization, number - 1));

    let mut ports = AddedPorts::new(remote);
    let host = ports.host();
    compute.address = ports.link_address(&compute.address, &name, 0)?;
    compute.others_address = format!("tls:{}", SocketAddr::new(host, ports.choose(1)?));
    let metrics_port = if remote.is_some() { ports.choose(2)? } else { 0 };
    compute.token = joining.secret.of_process(&name);
    compute.chaincode_port = None;
    let beside = Path::new("..").join(compute_name(organization, 0));
    compute.packages = if remote.is_some() { PACKAGES_FOLDER.into() } else { beside.join(PACKAGES_FOLDER) };
    compute.peer_nodes = Some(PeerNodesFile {
        address: None,
        others: peer_nodes.address.into_iter().chain(peer_nodes.others).collect(),
        nodes: BTreeMap::new(),
        joining: None,
        offload: peer_nodes.offload,
        spot_check_one_in: peer_nodes.spot_check_one_in,
        budget_directory: peer_nodes.budget_directory.filter(|_| remote.is_none()),
    });

    let issuer = material::issuer(network, organization)?;
    // Everything but the node's own files: its certificate, its configuration, and what it writes while it runs.
    for entry in std::fs::read_dir(&first).map_err(NodeError::file("reading", &first))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if [MSP, TRUST, GENESIS, planned_chaincodes::FOLDER].contains(&name.as_str()) {
            copy(&entry.path(), &folder.join(name))?;
        }
    }
    write_tls(&issuer, "compute", host, &folder)?;
    let metrics = SocketAddr::new(file.metrics.ip(), metrics_port);
    let (address, others_address) = (compute.address.clone(), compute.others_address.clone());
    let file = NodeFile { name: name.clone(), metrics, compute: Some(compute), ..file };
    let joining = JoiningNode { name, number, folder, address, others_address };
    let text = file.to_text();
    NodeFile::parse(ProcessRole::Compute, &text, &joining.config().display().to_string())?;
    write_private(&joining.config(), text.as_bytes())?;
    Ok(joining)
}

/// Writes the certificate for links of a process on this host.
pub(crate) fn write_tls(issuer: &Issuer, name: &str, host: IpAddr, folder: &Path) -> Result<(), NodeError> {
    let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host.to_string()];
    hosts.sort();
    hosts.dedup();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    Ok(issuer.issue_tls(CertificateRole::Peer, name, &hosts)?.write(folder, CertificateRole::Peer)?)
}

/// Copies a file, or a folder with everything in it, for its owner alone.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), NodeError> {
    // A leftover of a file that was being written when power failed.
    if from.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.')) {
        return Ok(());
    }
    if !from.is_dir() {
        let bytes = std::fs::read(from).map_err(NodeError::file("reading", from))?;
        return write_private(to, &bytes);
    }
    for entry in std::fs::read_dir(from).map_err(NodeError::file("reading", from))?.flatten() {
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use replica::CANDIDATES_MAX;

    use super::*;
    use crate::added_nodes::AddedNodes;
    use crate::network::Network;
    use crate::plan::Placement;
    use crate::process::file::ComputeFile;

    fn compute(folder: &Path) -> ComputeFile {
        let file = NodeFile::load(ProcessRole::Compute, &folder.join(NODE_FILE)).expect("it was written");
        file.compute().clone()
    }

    #[tokio::test]
    async fn nodes_beyond_the_candidates_join_with_a_token_of_their_name() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = crate::HeddleConfig::default();
        config.network.organizations.truncate(1);
        config.pool.compute_nodes = CANDIDATES_MAX + 1;
        // Another test plans with the ports of the default configuration.
        (config.ports.gateway, config.ports.orderer, config.ports.links, config.ports.metrics) = (0, 0, 0, 0);
        let path = folder.path().join("network");
        let network = Network::create(&path, &config).await.expect("it can be made");
        let sockets = folder.path().to_owned();
        let plan = network.plan(&Placement::OneHost { sockets }).expect("it can be planned");
        let files = plan.processes.iter().filter(|process| process.role == ProcessRole::Compute);
        let files: Vec<ComputeFile> = files.map(|process| compute(&process.folder)).collect();
        let nodes: Vec<&PeerNodesFile> = files.iter().map(|file| file.peer_nodes.as_ref().expect("several")).collect();
        let candidates = nodes.iter().filter(|node| node.address.is_some() && node.others.len() == CANDIDATES_MAX - 1);
        assert_eq!(candidates.count(), CANDIDATES_MAX);
        let organization = &config.network.organizations[0];
        let secret = &nodes[0].joining.as_ref().expect("others may join").secret;
        let own = |number: usize| secret.of_process(&compute_name(organization, number)).token();
        let last = nodes.last().expect("there are some");
        assert!(last.address.is_none() && last.joining.is_none() && last.nodes.is_empty());
        assert_eq!(last.others.len(), CANDIDATES_MAX);
        assert_eq!(files.last().expect("there are some").token.token().bytes(), own(CANDIDATES_MAX).bytes());

        let joined = AddedNodes::add(&path, organization, None).expect("there is room");
        assert_eq!(joined.name, compute_name(organization, CANDIDATES_MAX + 1));
        let file = compute(&joined.folder);
        assert_eq!(file.token.token().bytes(), own(CANDIDATES_MAX + 1).bytes());
        assert!(files.iter().all(|other| other.address != file.address && other.others_address != file.others_address));
        let elsewhere = Some(([10, 0, 0, 5], 7400).into());
        let remote = AddedNodes::add(&path, organization, elsewhere).expect("there is room");
        assert_eq!(compute(&remote.folder).others_address, "tls:10.0.0.5:7401");
        assert!(joined.folder.join(MSP).is_dir() && remote.folder.join(GENESIS).is_file());

        // The next plan has new secrets, and makes its files again.
        let sockets = folder.path().to_owned();
        let again = network.plan(&Placement::OneHost { sockets }).expect("it can be planned");
        let added: Vec<&str> =
            again.processes.iter().filter(|process| process.is_added).map(|process| process.name.as_str()).collect();
        assert_eq!(added, [joined.name.as_str()], "a plan for one machine has no other hosts");
        let first = compute(&compute_folder(&path, organization, 0)).peer_nodes.expect("it has a port for followers");
        let secret = &first.joining.as_ref().expect("others may join").secret;
        assert_eq!(compute(&joined.folder).token.token().bytes(), secret.of_process(&joined.name).token().bytes());

        // A peer that was planned by an earlier release with one node has no port for followers.
        let first = compute_folder(&path, organization, 0).join(NODE_FILE);
        let mut alone = NodeFile::load(ProcessRole::Compute, &first).expect("it was written");
        alone.compute.as_mut().expect("it is one").peer_nodes = None;
        write_private(&first, alone.to_text().as_bytes()).expect("it can be written");
        let error = add_compute_node(&path, organization, None).expect_err("nobody can join");
        assert!(error.to_string().contains("on its own disk"), "{error}");
    }
}
