//! Keys, certificates and the genesis block.
//!
//! Everything lies where Fabric's `cryptogen` would put it, so that Fabric's tools find it. Keys are readable by their
//! owner only.

use std::path::{Path, PathBuf};

use base::Bytes;
use identity::issue::{MspDirectory, Organization as Issuer, Terms, TlsIdentity};
use identity::{KeyKind, Role, Signer};
use ledger::Block;
use ledger::config::genesis::{GenesisSpec, OrganizationSpec};
use ledger::config::{Capabilities, Consensus};
use prost::Message as _;

use super::NodeError;
use crate::config::Config;

const ORDERER_MSP: &str = "OrdererMSP";
pub(crate) const ORDERER_DOMAIN: &str = "example.com";
const ORDERER_NAME: &str = "orderer";
pub(crate) const PEER_NAME: &str = "peer0";
const USER_NAME: &str = "User1";
const ADMIN_NAME: &str = "Admin";
/// Ports that the genesis block names where the configuration takes any free one.
const NOMINAL_PEER_PORT: u16 = 7051;
const NOMINAL_ORDERER_PORT: u16 = 7050;

/// An organisation with a peer.
#[derive(Debug)]
pub(crate) struct Organization {
    /// Such as `Org1`.
    pub name: String,
    /// Such as `Org1MSP`.
    pub msp_id: String,
    /// Such as `peer0.org1.example.com`.
    pub host: String,
    pub peer: Signer,
    pub tls: TlsIdentity,
    pub user: Signer,
    pub admin: Signer,
    /// The folder of a user that clients may read: certificate and key.
    pub user_folder: PathBuf,
}

/// The organisation of the orderer.
#[derive(Debug)]
pub(crate) struct OrdererOrganization {
    /// Such as `OrdererMSP`.
    pub msp_id: String,
    /// Such as `orderer.example.com`.
    pub host: String,
    pub orderer: Signer,
    pub tls: TlsIdentity,
}

struct Folders {
    organization: PathBuf,
    node: PathBuf,
    user: PathBuf,
    admin: PathBuf,
}

/// The MSP's name of an organisation.
pub(crate) fn msp_id(name: &str) -> String {
    format!("{name}MSP")
}

fn domain(name: &str) -> String {
    format!("{}.example.com", name.to_ascii_lowercase())
}

fn peer_folders(path: &Path, name: &str) -> Folders {
    let domain = domain(name);
    let organization = path.join("organizations/peerOrganizations").join(&domain);
    Folders {
        node: organization.join("peers").join(format!("{PEER_NAME}.{domain}")),
        user: organization.join("users").join(format!("{USER_NAME}@{domain}")),
        admin: organization.join("users").join(format!("{ADMIN_NAME}@{domain}")),
        organization,
    }
}

fn orderer_folders(path: &Path) -> Folders {
    let organization = path.join("organizations/ordererOrganizations").join(ORDERER_DOMAIN);
    Folders {
        node: organization.join("orderers").join(format!("{ORDERER_NAME}.{ORDERER_DOMAIN}")),
        user: organization.join("users").join(format!("{USER_NAME}@{ORDERER_DOMAIN}")),
        admin: organization.join("users").join(format!("{ADMIN_NAME}@{ORDERER_DOMAIN}")),
        organization,
    }
}

/// Makes everything, writes the keys, and returns the genesis block.
pub(super) fn create(path: &Path, config: &Config) -> Result<Block, NodeError> {
    let terms = Terms::starting_now(KeyKind::P256);
    let host = config.ports.host.to_string();
    let mut hosts = vec!["localhost", "127.0.0.1", "::1"];
    if !config.ports.host.is_loopback() && !config.ports.host.is_unspecified() {
        hosts.push(&host);
    }

    let mut application = Vec::new();
    for (index, name) in config.network.organizations.iter().enumerate() {
        let issuer = Issuer::found(msp_id(name), &domain(name), &terms)?;
        let folders = peer_folders(path, name);
        issuer.write(&folders.organization)?;
        issuer.write_identity(&folders.node, &issuer.issue(Role::Peer, PEER_NAME)?)?;
        issuer.issue_tls(Role::Peer, PEER_NAME, &hosts)?.write(&folders.node, Role::Peer)?;
        issuer.write_identity(&folders.user, &issuer.issue(Role::Client, USER_NAME)?)?;
        issuer.issue_tls(Role::Client, USER_NAME, &[])?.write(&folders.user, Role::Client)?;
        issuer.write_identity(&folders.admin, &issuer.issue(Role::Admin, ADMIN_NAME)?)?;
        issuer.issue_tls(Role::Admin, ADMIN_NAME, &[])?.write(&folders.admin, Role::Admin)?;
        let port = match config.gateway_port(index) {
            0 => NOMINAL_PEER_PORT,
            port => port,
        };
        application.push(OrganizationSpec {
            name: name.clone(),
            msp_id: msp_id(name),
            msp: issuer.definition().encode_to_vec().into(),
            anchor_peers: vec![(format!("{PEER_NAME}.{}", domain(name)), port)],
            endpoints: Vec::new(),
        });
    }

    let issuer = Issuer::found(ORDERER_MSP, ORDERER_DOMAIN, &terms)?;
    let folders = orderer_folders(path);
    issuer.write(&folders.organization)?;
    issuer.write_identity(&folders.node, &issuer.issue(Role::Orderer, ORDERER_NAME)?)?;
    issuer.issue_tls(Role::Orderer, ORDERER_NAME, &hosts)?.write(&folders.node, Role::Orderer)?;
    issuer.write_identity(&folders.admin, &issuer.issue(Role::Admin, ADMIN_NAME)?)?;
    let port = if config.ports.orderer == 0 { NOMINAL_ORDERER_PORT } else { config.ports.orderer };
    let orderer = OrganizationSpec {
        name: "Orderer".into(),
        msp_id: ORDERER_MSP.into(),
        msp: issuer.definition().encode_to_vec().into(),
        anchor_peers: Vec::new(),
        endpoints: vec![format!("{ORDERER_NAME}.{ORDERER_DOMAIN}:{port}")],
    };

    let genesis = GenesisSpec {
        channel: config.network.channel.clone(),
        application,
        orderers: vec![orderer],
        endorsement: config.endorsement_rule(),
        batch: config.batch_limits(),
        consensus: Consensus { kind: "solo".into(), metadata: Bytes::new(), maintenance: false },
        capabilities: Capabilities::newest(),
    };
    Ok(genesis.build()?)
}

/// An organisation with the keys of its authorities, to issue more certificates.
pub(crate) fn issuer(path: &Path, name: &str) -> Result<Issuer, NodeError> {
    let terms = Terms::starting_now(KeyKind::P256);
    Ok(Issuer::read(msp_id(name), &domain(name), &peer_folders(path, name).organization, &terms)?)
}

/// As [`issuer`], of the orderer.
pub(crate) fn orderer_issuer(path: &Path) -> Result<Issuer, NodeError> {
    let terms = Terms::starting_now(KeyKind::P256);
    Ok(Issuer::read(ORDERER_MSP, ORDERER_DOMAIN, &orderer_folders(path).organization, &terms)?)
}

/// The identity with which an orderer signs, counted from 0: of others than the first, one that is made for this start.
pub(crate) fn orderer_signer(network: &super::Network, place: usize) -> Result<Signer, NodeError> {
    if place == 0 {
        return Ok(network.orderer().orderer.clone());
    }
    Ok(orderer_issuer(network.path())?.issue(Role::Orderer, &format!("{ORDERER_NAME}{}", place + 1))?)
}

/// Reads what [`create`] wrote.
pub(super) fn read(path: &Path, config: &Config) -> Result<(Vec<Organization>, OrdererOrganization), NodeError> {
    let signer = |folder: &Path, msp_id: &str| MspDirectory::read(&folder.join("msp"))?.signer(msp_id);
    let mut organizations = Vec::new();
    for name in &config.network.organizations {
        let folders = peer_folders(path, name);
        let msp_id = msp_id(name);
        organizations.push(Organization {
            name: name.clone(),
            host: format!("{PEER_NAME}.{}", domain(name)),
            peer: signer(&folders.node, &msp_id)?,
            tls: TlsIdentity::read(&folders.node, Role::Peer)?,
            user: signer(&folders.user, &msp_id)?,
            admin: signer(&folders.admin, &msp_id)?,
            user_folder: folders.user,
            msp_id,
        });
    }
    let folders = orderer_folders(path);
    let orderer = OrdererOrganization {
        msp_id: ORDERER_MSP.into(),
        host: format!("{ORDERER_NAME}.{ORDERER_DOMAIN}"),
        orderer: signer(&folders.node, ORDERER_MSP)?,
        tls: TlsIdentity::read(&folders.node, Role::Orderer)?,
    };
    Ok((organizations, orderer))
}
