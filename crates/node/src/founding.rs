//! The making of a network: authorities, certificates, block 0, and what clients need.
//!
//! 1. Found an organisation for the orderer and one for each member; issue their nodes' and users' certificates.
//! 2. Build block 0 from their definitions and the configuration.
//! 3. Write the ready-to-run client and, last, the configuration: a directory without it holds no network.
//!
//! Nothing here runs again when a network is opened; it reads its keys back from the files.

use std::path::Path;

use identity::issue::{Organization, Terms};
use identity::{KeyKind, Role};
use ledger::config::genesis::{EndorsementRule, GenesisSpec, OrganizationSpec};
use ledger::config::{BatchLimits, Capabilities, Consensus};
use prost::Message;

use crate::config::{Config, Endorsers};
use crate::error::NodeError;
use crate::layout::{self, ORDERER_DOMAIN, ORDERER_MSP, ORDERER_NAME, OrganizationNames, PEER_NAME};

/// The users of every organisation, besides its administrator.
pub const USER: &str = "User1";
const ADMIN: &str = "Admin";
/// Names of this machine that TLS certificates are good for.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Writes everything a new network consists of into a directory.
pub fn found(directory: &Path, config: &Config) -> Result<(), NodeError> {
    let terms = Terms::starting_now(KeyKind::P256);
    let orderer = found_orderer(directory, &terms)?;
    let members = (1..=config.network.organizations)
        .map(|number| found_member(directory, &OrganizationNames::of(number), &terms))
        .collect::<Result<Vec<_>, _>>()?;
    let genesis = genesis(config, orderer, members).build()?;
    write(&layout::genesis(directory), &genesis.to_bytes())
}

fn found_orderer(directory: &Path, terms: &Terms) -> Result<OrganizationSpec, NodeError> {
    let organization = Organization::found(ORDERER_MSP, ORDERER_DOMAIN, terms)?;
    organization.write(&layout::orderer_organization(directory))?;
    let home = layout::orderer_identity(directory);
    organization.write_identity(&home, &organization.issue(Role::Orderer, ORDERER_NAME)?)?;
    organization.issue_tls(Role::Orderer, ORDERER_NAME, &HOSTS)?.write(&home, Role::Orderer)?;
    let admin = layout::orderer_organization(directory).join("users").join(format!("{ADMIN}@{ORDERER_DOMAIN}"));
    organization.write_identity(&admin, &organization.issue(Role::Admin, ADMIN)?)?;
    let mut spec = spec("OrdererOrg", &organization);
    spec.endpoints = vec![layout::orderer_full_name() + ":7050"];
    Ok(spec)
}

fn found_member(directory: &Path, names: &OrganizationNames, terms: &Terms) -> Result<OrganizationSpec, NodeError> {
    let organization = Organization::found(names.msp_id.as_str(), &names.domain, terms)?;
    organization.write(&layout::organization(directory, &names.domain))?;
    let peer = layout::peer_identity(directory, names);
    organization.write_identity(&peer, &organization.issue(Role::Peer, PEER_NAME)?)?;
    organization.issue_tls(Role::Peer, PEER_NAME, &HOSTS)?.write(&peer, Role::Peer)?;
    for (role, user) in [(Role::Client, USER), (Role::Admin, ADMIN)] {
        let home = layout::user_identity(directory, names, user);
        organization.write_identity(&home, &organization.issue(role, user)?)?;
        organization.issue_tls(role, user, &[])?.write(&home, role)?;
    }
    Ok(spec(&names.msp_id, &organization))
}

fn spec(name: &str, organization: &Organization) -> OrganizationSpec {
    OrganizationSpec {
        name: name.to_owned(),
        msp_id: organization.msp_id().to_string(),
        msp: organization.definition().encode_to_vec().into(),
        anchor_peers: Vec::new(),
        endpoints: Vec::new(),
    }
}

fn genesis(config: &Config, orderer: OrganizationSpec, members: Vec<OrganizationSpec>) -> GenesisSpec {
    let endorsement = match config.network.policy {
        Endorsers::Any => EndorsementRule::Any,
        Endorsers::Majority => EndorsementRule::Majority,
        Endorsers::All => EndorsementRule::All,
    };
    GenesisSpec {
        channel: config.network.channel.clone(),
        application: members,
        orderers: vec![orderer],
        endorsement,
        batch: BatchLimits {
            messages_max: config.batch.messages,
            absolute_bytes_max: config.batch.absolute_bytes,
            preferred_bytes_max: config.batch.preferred_bytes,
            timeout: config.batch_timeout(),
        },
        consensus: Consensus { kind: "solo".to_owned(), ..Consensus::default() },
        capabilities: Capabilities::default(),
    }
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let parent = path.parent().expect("every file of a network lies in its directory");
    std::fs::create_dir_all(parent)
        .and_then(|()| std::fs::write(path, bytes))
        .map_err(|source| NodeError::File { path: path.to_path_buf(), source })
}
