//! Makes the files of a memory node that joins running peers.
//!
//! No file of another process names the node. It knows the network's organisations, with new tokens; an operator tells each
//! peer of it (`heddle peer memory --add`), which reads its token from the node's file.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::free_ports::AddedPorts;
use crate::joining::{copy, write_tls};
use crate::network::layout::NODES;
use crate::network::{NodeError, material, write_private};
use crate::process::file::{NODE_FILE, NodeFile, ProcessRole, Secret, TRUST};

/// Memory nodes of a network, at most.
const MEMORY_NODES_MAX: u16 = 1024;

/// Makes the files of a memory node, and returns the path of its configuration, in a folder of its name. They lie on this machine, beside the others; or they are to be copied to another host,
/// where the node uses two ports starting at the given one: for compute nodes, and for metrics.
///
/// # Errors
/// [`NodeError::Joining`]; files that cannot be read or written.
pub fn add_memory_node(network: &Path, remote: Option<SocketAddr>) -> Result<PathBuf, NodeError> {
    let folder = |number: u16| network.join(NODES).join(format!("memory-{number}"));
    let first = folder(1);
    let file = NodeFile::load(ProcessRole::Memory, &first.join(NODE_FILE))?;
    let mut memory = file.memory.clone().expect("the file was checked");
    let number = (2..=MEMORY_NODES_MAX).find(|number| !folder(*number).exists());
    let number = number.ok_or_else(|| NodeError::Joining(format!("there are {MEMORY_NODES_MAX} memory nodes")))?;
    let (name, folder) = (format!("memory-{number}"), folder(number));
    let mut ports = AddedPorts::new(remote);
    memory.number = number;
    memory.address = ports.link_address(&memory.address, &name, 0)?;
    memory.one_user &= remote.is_none();
    memory.owners.values_mut().for_each(|token| *token = Secret::random());
    let metrics = SocketAddr::new(file.metrics.ip(), if remote.is_some() { ports.choose(1)? } else { 0 });
    if first.join(TRUST).is_dir() {
        copy(&first.join(TRUST), &folder.join(TRUST))?;
        write_tls(&material::orderer_issuer(network)?, "memory", ports.host(), &folder)?;
    }
    let file = NodeFile { name, metrics, memory: Some(memory), ..file };
    let config = folder.join(NODE_FILE);
    let text = file.to_text();
    NodeFile::parse(ProcessRole::Memory, &text, &config.display().to_string())?;
    write_private(&config, text.as_bytes())?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use identity::MemberRole as CertificateRole;
    use identity::issue::TlsIdentity;

    use super::*;
    use crate::network::Network;
    use crate::plan::Placement;

    #[tokio::test]
    async fn a_memory_node_that_joins_has_tokens_an_address_and_a_certificate_of_its_own() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut config = crate::HeddleConfig::default();
        (config.ports.gateway, config.ports.orderer, config.ports.links, config.ports.metrics) = (0, 0, 0, 0);
        let path = folder.path().join("network");
        let network = Network::create(&path, &config).await.expect("it can be made");
        network.plan(&Placement::OneHost { sockets: folder.path().to_owned() }).expect("it can be planned");
        let load = |config: &Path| {
            let file = NodeFile::load(ProcessRole::Memory, config).expect("it was written");
            file.memory.expect("it is a memory node")
        };
        let first = load(&path.join("nodes/memory-1/node.toml"));
        let joined = load(&add_memory_node(&path, None).expect("there is room"));
        assert!(joined.address.starts_with("shm:") && joined.address != first.address && joined.one_user);
        assert!(joined.owners.keys().eq(first.owners.keys()));
        let tokens = joined.owners.values().zip(first.owners.values());
        assert!(tokens.into_iter().all(|(new, old)| new.token().bytes() != old.token().bytes()));

        config.ports.links = 7300;
        config.ports.gateway = 7400;
        config.ports.orderer = 7500;
        config.ports.metrics = 7600;
        drop(network);
        let network = Network::open_with(&path, &config).await.expect("it is there");
        let hosts = Placement::Hosts { default: [10, 0, 0, 7].into(), by_name: BTreeMap::new() };
        network.plan(&hosts).expect("it can be planned");
        let remote = add_memory_node(&path, Some(([10, 0, 0, 5], 7400).into())).expect("there is room");
        let memory = load(&remote);
        let folder = remote.parent().expect("it has a folder");
        assert_eq!((memory.address.as_str(), memory.one_user), ("tcp:10.0.0.5:7400", false));
        let tls = TlsIdentity::read(folder, CertificateRole::Peer).expect("it has a certificate");
        let certificate = identity::Certificate::from_pem(&tls.certificate_pem).expect("it is one");
        assert!(certificate.names().iter().any(|name| name == "10.0.0.5"), "{:?}", certificate.names());
        crate::process::tcp_tls(folder, &tls).expect("both sides of a connection can be made of it");
    }
}
