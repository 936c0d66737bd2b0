//! Keys, certificates and the genesis block.
//!
//! All files lie where Fabric's `cryptogen` would put them, so that Fabric's tools find them. Only their owner can read
//! the keys.

use std::path::{Path, PathBuf};

use base::Bytes;
use identity::issue::{CertificateTerms, IssuingOrganization as Issuer, MspDirectory, TlsIdentity};
use identity::{KeyKind, MemberRole, Signer};
use ledger::Block;
use ledger::config::genesis::{GenesisSpec, OrganizationSpec};
use ledger::config::{Capabilities, ConsensusConfig};
use prost::Message as _;

use super::NodeError;
use crate::config::HeddleConfig;

const ORDERER_MSP: &str = "OrdererMSP";
pub(crate) const ORDERER_DOMAIN: &str = "example.com";
pub(super) const ORDERER_NAME: &str = "orderer";
pub(crate) const PEER_NAME: &str = "peer0";
const USER_NAME: &str = "User1";
pub(crate) const ADMIN_NAME: &str = "Admin";
/// Ports that the genesis block names where the configuration leaves the choice to the system.
const NOMINAL_PEER_PORT: u16 = 7051;
const NOMINAL_ORDERER_PORT: u16 = 7050;

/// An organisation with a peer.
#[derive(Debug)]
pub(crate) struct OrganizationMaterial {
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
pub(crate) struct OrdererMaterial {
    /// Such as `OrdererMSP`.
    pub msp_id: String,
    /// Such as `orderer.example.com`.
    pub host: String,
    pub orderer: Signer,
    pub tls: TlsIdentity,
}

struct OrganizationFolders {
    organization: PathBuf,
    node: PathBuf,
    user: PathBuf,
    admin: PathBuf,
}

/// The MSP ID of an organisation.
pub(crate) fn msp_id(name: &str) -> String {
    format!("{name}MSP")
}

fn domain(name: &str) -> String {
    format!("{}.example.com", name.to_ascii_lowercase())
}

fn peer_folders(path: &Path, name: &str) -> OrganizationFolders {
    let domain = domain(name);
    let organization = path.join("organizations/peerOrganizations").join(&domain);
    OrganizationFolders {
        node: organization.join("peers").join(format!("{PEER_NAME}.{domain}")),
        user: organization.join("users").join(format!("{USER_NAME}@{domain}")),
        admin: organization.join("users").join(format!("{ADMIN_NAME}@{domain}")),
        organization,
    }
}

fn orderer_folders(path: &Path) -> OrganizationFolders {
    let organization = path.join("organizations/ordererOrganizations").join(ORDERER_DOMAIN);
    OrganizationFolders {
        node: organization.join("orderers").join(format!("{ORDERER_NAME}.{ORDERER_DOMAIN}")),
        user: organization.join("users").join(format!("{USER_NAME}@{ORDERER_DOMAIN}")),
        admin: organization.join("users").join(format!("{ADMIN_NAME}@{ORDERER_DOMAIN}")),
        organization,
    }
}

/// Makes all keys and certificates, writes them, and returns the genesis block.
pub(super) fn create(path: &Path, config: &HeddleConfig) -> Result<Block, NodeError> {
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    let host = config.ports.host.to_string();
    let mut hosts = vec!["localhost", "127.0.0.1", "::1"];
    if !config.ports.host.is_loopback() && !config.ports.host.is_unspecified() {
        hosts.push(&host);
    }

    let mut application = Vec::new();
    for (index, name) in config.network.organizations.iter().enumerate() {
        let issuer = Issuer::create(msp_id(name), &domain(name), &terms)?;
        let folders = peer_folders(path, name);
        issuer.write(&folders.organization)?;
        issuer.write_identity(&folders.node, &issuer.issue(MemberRole::Peer, PEER_NAME)?)?;
        issuer.issue_tls(MemberRole::Peer, PEER_NAME, &hosts)?.write(&folders.node, MemberRole::Peer)?;
        issuer.write_identity(&folders.user, &issuer.issue(MemberRole::Client, USER_NAME)?)?;
        issuer.issue_tls(MemberRole::Client, USER_NAME, &[])?.write(&folders.user, MemberRole::Client)?;
        issuer.write_identity(&folders.admin, &issuer.issue(MemberRole::Admin, ADMIN_NAME)?)?;
        issuer.issue_tls(MemberRole::Admin, ADMIN_NAME, &[])?.write(&folders.admin, MemberRole::Admin)?;
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

    let issuer = Issuer::create(ORDERER_MSP, ORDERER_DOMAIN, &terms)?;
    let folders = orderer_folders(path);
    issuer.write(&folders.organization)?;
    issuer.write_identity(&folders.node, &issuer.issue(MemberRole::Orderer, ORDERER_NAME)?)?;
    issuer.issue_tls(MemberRole::Orderer, ORDERER_NAME, &hosts)?.write(&folders.node, MemberRole::Orderer)?;
    issuer.write_identity(&folders.admin, &issuer.issue(MemberRole::Admin, ADMIN_NAME)?)?;
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
        consensus: ConsensusConfig { kind: "solo".into(), metadata: Bytes::new(), maintenance: false },
        capabilities: Capabilities::newest(),
    };
    Ok(genesis.build()?)
}

/// An organisation with its authorities' keys, to issue more certificates.
pub(crate) fn issuer(path: &Path, name: &str) -> Result<Issuer, NodeError> {
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    Ok(Issuer::read(msp_id(name), &domain(name), &peer_folders(path, name).organization, &terms)?)
}

/// As [`issuer`], for the orderer's organisation.
pub(crate) fn orderer_issuer(path: &Path) -> Result<Issuer, NodeError> {
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    Ok(Issuer::read(ORDERER_MSP, ORDERER_DOMAIN, &orderer_folders(path).organization, &terms)?)
}

/// Reads what [`create`] wrote.
pub(super) fn read(
    path: &Path,
    config: &HeddleConfig,
) -> Result<(Vec<OrganizationMaterial>, OrdererMaterial), NodeError> {
    let signer = |folder: &Path, msp_id: &str| MspDirectory::read(&folder.join("msp"))?.signer(msp_id);
    let mut organizations = Vec::new();
    for name in &config.network.organizations {
        let folders = peer_folders(path, name);
        let msp_id = msp_id(name);
        organizations.push(OrganizationMaterial {
            name: name.clone(),
            host: format!("{PEER_NAME}.{}", domain(name)),
            peer: signer(&folders.node, &msp_id)?,
            tls: TlsIdentity::read(&folders.node, MemberRole::Peer)?,
            user: signer(&folders.user, &msp_id)?,
            admin: signer(&folders.admin, &msp_id)?,
            user_folder: folders.user,
            msp_id,
        });
    }
    let folders = orderer_folders(path);
    let orderer = OrdererMaterial {
        msp_id: ORDERER_MSP.into(),
        host: format!("{ORDERER_NAME}.{ORDERER_DOMAIN}"),
        orderer: signer(&folders.node, ORDERER_MSP)?,
        tls: TlsIdentity::read(&folders.node, MemberRole::Orderer)?,
    };
    Ok((organizations, orderer))
}
