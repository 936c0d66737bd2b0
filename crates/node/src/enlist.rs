//! The files of one orderer more, in a network on Raft whose processes run; and what other files say of one that has gone.
//!
//! 1. The new one's folder lies beside those of the others, and is made like them: what all share is taken from one of theirs, tokens and
//!    authorities too; certificates and addresses are its own. It joins: with no log of its own it waits to be added.
//! 2. The files of gateways and compute nodes name it from then on, which those that run notice.
//! 3. The roster ([`Roster`]) names it last: whoever supervises the processes starts it then.
//!
//! The group itself is changed by whoever asks its leader ([`crate::control`]).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use identity::Role as CertificateRole;

use crate::config::{Config, Engine};
use crate::control::orderer_of;
use crate::network::layout::{NODES, orderer_data};
use crate::network::roster::Roster;
use crate::network::{CONFIG_FILE, NodeError, material, write, write_private};
use crate::plan::bind_free;
use crate::process::file::{FILE, GENESIS, NodeFile, OrdererFile, ProcessRole, RaftFile, RaftMemberFile, TRUST};

/// An orderer whose files there are.
#[derive(Clone, Debug)]
pub struct Enlisted {
    /// Its number.
    pub number: u64,
    /// Such as `orderer-4`.
    pub name: String,
    /// Where its files are.
    pub folder: PathBuf,
    /// Where it answers the other orderers.
    pub address: String,
    /// Where it answers compute nodes, gateways and clients.
    pub answers: [String; 3],
}

/// The orderers that a network on Raft is to have.
///
/// # Errors
/// [`NodeError::Orderers`] for another engine.
pub fn roster(network: &Path) -> Result<Roster, NodeError> {
    let config = Config::load(&network.join(CONFIG_FILE))?;
    if config.ordering.engine != Engine::Raft {
        let engine = config.ordering.engine.name();
        let reason = format!("this network orders with {engine}; members change with `--ordering raft` alone");
        return Err(NodeError::Orderers(reason));
    }
    Roster::load(network, config.ordering.count())
}

/// Where the files of an orderer are.
pub fn folder(network: &Path, number: u64) -> PathBuf {
    network.join(NODES).join(orderer_of(number))
}

fn load(network: &Path, number: u64) -> Result<(NodeFile, OrdererFile, RaftFile), NodeError> {
    let path = folder(network, number).join(FILE);
    let file = NodeFile::load(ProcessRole::Orderer, &path)?;
    let orderer = file.orderer().clone();
    let raft = orderer.raft.clone();
    let raft = raft.ok_or_else(|| NodeError::Orderers(format!("{} is of no orderer on Raft", path.display())))?;
    Ok((file, orderer, raft))
}

/// An orderer whose files there are already.
///
/// # Errors
/// They cannot be read.
pub fn enlisted(network: &Path, number: u64) -> Result<Enlisted, NodeError> {
    let (file, orderer, raft) = load(network, number)?;
    let own = raft.members.iter().find(|member| member.number == number);
    let address = own.map(|member| member.address.clone()).unwrap_or_default();
    let answers = [orderer.blocks_address, orderer.intake_address, orderer.listen.to_string()];
    Ok(Enlisted { number, name: file.name, folder: folder(network, number), address, answers })
}

/// Makes the files of one orderer more: on this machine, beside the others, or to be copied to another host, where it takes five ports
/// from the one given on: for clients, blocks, submissions, other orderers, and metrics.
///
/// # Errors
/// [`NodeError::Orderers`]; files that cannot be read or written.
pub fn enlist(network: &Path, elsewhere: Option<SocketAddr>) -> Result<Enlisted, NodeError> {
    let mut roster = roster(network)?;
    let number = roster.next;
    let (sibling, mut orderer, mut raft) = load(network, roster.numbers[0])?;
    let name = orderer_of(number);
    let host = elsewhere.map_or(IpAddr::from(Ipv4Addr::LOCALHOST), |address| address.ip());
    let failed = |source| NodeError::Port { address: SocketAddr::new(host, 0), key: "ports.links", source };
    // Held until all are chosen, so that they differ.
    let mut held = Vec::new();
    let mut port = |offset: u16| match elsewhere {
        Some(address) => Ok(address.port().saturating_add(offset)),
        None => {
            let listener = bind_free(host)?;
            let port = listener.local_addr()?.port();
            held.push(listener);
            Ok(port)
        }
    };
    let listen = if elsewhere.is_some() { host } else { orderer.listen.ip() };
    orderer.listen = SocketAddr::new(listen, port(0).map_err(failed)?);
    orderer.blocks_address = format!("tls:{}", SocketAddr::new(host, port(1).map_err(failed)?));
    orderer.intake_address = format!("tls:{}", SocketAddr::new(host, port(2).map_err(failed)?));
    let theirs = raft.members[0].address.strip_prefix("shm:").filter(|_| elsewhere.is_none());
    let address = match theirs.and_then(|socket| Path::new(socket).parent()) {
        Some(sockets) => format!("shm:{}", sockets.join(format!("{name}.socket")).display()),
        None => format!("tcp:{}", SocketAddr::new(host, port(3).map_err(failed)?)),
    };
    let metrics_port = if elsewhere.is_some() { port(4).map_err(failed)? } else { 0 };
    orderer.directory = match elsewhere {
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
    let beside = self::folder(network, roster.numbers[0]);
    copy(&beside.join(GENESIS), &folder.join(GENESIS))?;
    for entry in std::fs::read_dir(beside.join(TRUST)).map_err(NodeError::file("reading", &beside))?.flatten() {
        // What a loss of power left of a file that was being written.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        copy(&entry.path(), &folder.join(TRUST).join(entry.file_name()))?;
    }
    let metrics = SocketAddr::new(sibling.metrics.ip(), metrics_port);
    let file = NodeFile { name: name.clone(), metrics, orderer: Some(orderer), ..sibling };
    let path = folder.join(FILE);
    let text = file.to_text();
    NodeFile::parse(ProcessRole::Orderer, &text, &path.display().to_string())?;
    write_private(&path, text.as_bytes())?;

    rewrite(network, |orderers, is_gateway| orderers.push(answers[usize::from(is_gateway)].clone()))?;
    roster.numbers.push(number);
    roster.next = number + 1;
    roster.store(network)?;
    Ok(Enlisted { number, name, folder, address, answers })
}

/// Takes an orderer that is no member any more out of the roster, and out of the files of gateways and compute nodes. Its own files and
/// its data stay.
///
/// # Errors
/// Files that cannot be read or written.
pub fn strike(network: &Path, number: u64) -> Result<(), NodeError> {
    let mut roster = roster(network)?;
    if roster.numbers == [number] {
        return Err(NodeError::Orderers("a network has an orderer".to_owned()));
    }
    let gone = enlisted(network, number)?;
    rewrite(network, |orderers, is_gateway| {
        orderers.retain(|address| *address != gone.answers[usize::from(is_gateway)])
    })?;
    roster.numbers.retain(|other| *other != number);
    roster.store(network)
}

/// Changes what gateways and compute nodes are told of orderers: where blocks come from, or, for a gateway, where envelopes go.
fn rewrite(network: &Path, change: impl Fn(&mut Vec<String>, bool)) -> Result<(), NodeError> {
    let nodes = network.join(NODES);
    for entry in std::fs::read_dir(&nodes).map_err(NodeError::file("reading", &nodes))?.flatten() {
        let path = entry.path().join(FILE);
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
