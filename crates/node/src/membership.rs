//! Adds the files of a new orderer to a running network on Raft, and removes an orderer from the files of the other
//! processes.
//!
//! 1. The folder of the new orderer is made beside the folders of the others, with the same kinds of files. Settings
//!    that all orderers share, including tokens and authorities, are copied from an existing folder; certificates and
//!    addresses are new. The configuration tells the orderer to join: it starts without a log and waits to be admitted.
//! 2. Then the new orderer is entered into the files of gateways and compute nodes. Running processes notice the
//!    change.
//! 3. Last, the new orderer is entered into the orderer set ([`OrdererSet`]). Then the supervisor of the processes
//!    starts it.
//!
//! The membership of the group itself is changed by a request to its leader ([`crate::control`]).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use identity::MemberRole as CertificateRole;

use crate::config::{HeddleConfig, OrderingEngine};
use crate::control::orderer_of;
use crate::free_ports::AddedPorts;
use crate::network::layout::{NODES, orderer_data};
use crate::network::orderer_set::OrdererSet;
use crate::network::{CONFIG_FILE, NodeError, material, write, write_private};
use crate::process::file::{GENESIS, NODE_FILE, NodeFile, ProcessRole, TRUST};
use crate::process::file::{OrdererFile, RaftFile, RaftMemberFile};

/// An orderer that has its files.
#[derive(Clone, Debug)]
pub struct AddedOrderer {
    /// Its number.
    pub number: u64,
    /// Such as `orderer-4`.
    pub name: String,
    /// The folder of its files.
    pub folder: PathBuf,
    /// Its address for the other orderers.
    pub address: String,
    /// Its addresses for compute nodes, gateways and clients.
    pub answers: [String; 3],
}

/// The orderer set of a network on Raft.
///
/// # Errors
/// [`NodeError::Orderers`] for another engine.
pub fn orderer_set(network: &Path) -> Result<OrdererSet, NodeError> {
    let config = HeddleConfig::load(&network.join(CONFIG_FILE))?;
    if config.ordering.engine != OrderingEngine::Raft {
        let engine = config.ordering.engine.name();
        let reason =
            format!("this network orders with {engine}; only a network made with `--ordering raft` changes members");
        return Err(NodeError::Orderers(reason));
    }
    OrdererSet::load(network, config.ordering.count())
}

/// The folder of an orderer's files.
pub fn folder(network: &Path, number: u64) -> PathBuf {
    network.join(NODES).join(orderer_of(number))
}

fn load(network: &Path, number: u64) -> Result<(NodeFile, OrdererFile, RaftFile), NodeError> {
    let path = folder(network, number).join(NODE_FILE);
    let file = NodeFile::load(ProcessRole::Orderer, &path)?;
    let orderer = file.orderer().clone();
    let raft = orderer.raft.clone();
    let raft = raft.ok_or_else(|| NodeError::Orderers(format!("{} belongs to no orderer on Raft", path.display())))?;
    Ok((file, orderer, raft))
}

/// An orderer whose files exist already.
///
/// # Errors
/// The files cannot be read.
pub fn added_orderer(network: &Path, number: u64) -> Result<AddedOrderer, NodeError> {
    let (file, orderer, raft) = load(network, number)?;
    let own = raft.members.iter().find(|member| member.number == number);
    let address = own.map(|member| member.address.clone()).unwrap_or_default();
    let answers = [orderer.blocks_address, orderer.intake_address, orderer.listen.to_string()];
    Ok(AddedOrderer { number, name: file.name, folder: folder(network, number), address, answers })
}

/// Makes the files of a new orderer. They lie on this machine, beside the others; or they are to be copied to another
/// host, where the orderer uses five ports starting at the given one: for clients, blocks, submissions, other orderers,
/// and metrics.
///
/// # Errors
/// [`NodeError::Orderers`]; files that cannot be read or written.
pub fn add_orderer(network: &Path, remote: Option<SocketAddr>) -> Result<AddedOrderer, NodeError> {
    let mut set = orderer_set(network)?;
    let number = set.next;
    let (sibling, mut orderer, mut raft) = load(network, set.numbers[0])?;
    let name = orderer_of(number);
    let mut ports = AddedPorts::new(remote);
    let host = ports.host();
    let listen = if remote.is_some() { host } else { orderer.listen.ip() };
    orderer.listen = SocketAddr::new(listen, ports.choose(0)?);
    orderer.blocks_address = format!("tls:{}", SocketAddr::new(host, ports.choose(1)?));
    orderer.intake_address = format!("tls:{}", SocketAddr::new(host, ports.choose(2)?));
    let address = ports.link_address(&raft.members[0].address, &name, 3)?;
    let metrics_port = if remote.is_some() { ports.choose(4)? } else { 0 };
    orderer.directory = match remote {
        Some(_) => "data".into(),
        None => Path::new("../..").join(orderer_data(number)),
    };
    raft.number = number;
    raft.joins = true;
    raft.members.push(RaftMemberFile { number, address: address.clone() });
    orderer.raft = Some(raft);
    let answers = [orderer.blocks_address.clone(), orderer.intake_address.clone(), orderer.listen.to_string()];

    let folder = folder(network, number);
    let issuer = material::orderer_issuer(network)?;
    let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned(), host.to_string()];
    hosts.push(orderer.listen.ip().to_string());
    hosts.sort();
    hosts.dedup();
    let hosts: Vec<&str> =
        hosts.iter().map(String::as_str).filter(|host| *host != "0.0.0.0" && *host != "::").collect();
    issuer.issue_tls(CertificateRole::Orderer, "orderer", &hosts)?.write(&folder, CertificateRole::Peer)?;
    issuer.write_identity(&folder, &issuer.issue(CertificateRole::Orderer, &format!("orderer{number}"))?)?;
    let beside = self::folder(network, set.numbers[0]);
    copy(&beside.join(GENESIS), &folder.join(GENESIS))?;
    for entry in std::fs::read_dir(beside.join(TRUST)).map_err(NodeError::file("reading", &beside))?.flatten() {
        // A leftover of a file that was being written when power failed.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        copy(&entry.path(), &folder.join(TRUST).join(entry.file_name()))?;
    }
    let metrics = SocketAddr::new(sibling.metrics.ip(), metrics_port);
    let file = NodeFile { name: name.clone(), metrics, orderer: Some(orderer), ..sibling };
    let path = folder.join(NODE_FILE);
    let text = file.to_text();
    NodeFile::parse(ProcessRole::Orderer, &text, &path.display().to_string())?;
    write_private(&path, text.as_bytes())?;

    rewrite(network, |orderers, is_gateway| orderers.push(answers[usize::from(is_gateway)].clone()))?;
    set.numbers.push(number);
    set.next = number + 1;
    set.store(network)?;
    Ok(AddedOrderer { number, name, folder, address, answers })
}

/// Removes an orderer that is no longer a member from the orderer set, and from the files of gateways and compute
/// nodes. Its own files and data stay.
///
/// # Errors
/// Files that cannot be read or written.
pub fn remove_orderer(network: &Path, number: u64) -> Result<(), NodeError> {
    let mut set = orderer_set(network)?;
    if set.numbers == [number] {
        return Err(NodeError::Orderers(
            "it is the network's last orderer; add another one before you remove it".to_owned(),
        ));
    }
    let gone = added_orderer(network, number)?;
    rewrite(network, |orderers, is_gateway| {
        orderers.retain(|address| *address != gone.answers[usize::from(is_gateway)])
    })?;
    set.numbers.retain(|other| *other != number);
    set.store(network)
}

/// Changes the orderer addresses in the files of compute nodes and gateways: where blocks come from, or where a gateway
/// sends envelopes.
fn rewrite(network: &Path, change: impl Fn(&mut Vec<String>, bool)) -> Result<(), NodeError> {
    let nodes = network.join(NODES);
    for entry in std::fs::read_dir(&nodes).map_err(NodeError::file("reading", &nodes))?.flatten() {
        let path = entry.path().join(NODE_FILE);
        let name = entry.file_name().to_string_lossy().into_owned();
        let role = match name.split('-').next() {
            Some("gateway") => ProcessRole::Gateway,
            Some("compute") => ProcessRole::Compute,
            _ => continue,
        };
        if !path.exists() {
            continue;
        }
        let mut file = NodeFile::load(role, &path)?;
        if let Some(gateway) = &mut file.gateway {
            change(&mut gateway.orderers, true);
        }
        if let Some(compute) = &mut file.compute {
            change(&mut compute.orderers, false);
        }
        write_private(&path, file.to_text().as_bytes())?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), NodeError> {
    let bytes = std::fs::read(from).map_err(NodeError::file("reading", from))?;
    write(to, &bytes)
}
