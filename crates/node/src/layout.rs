//! Where a network's files are below its directory.
//!
//! ```text
//! VERSION, LOCK                the format's version, and the lock of the process that runs the network
//! heddle.toml                  the configuration that the network was made with or last opened with
//! endpoints.json               what listens where; written anew at every start
//! channel.block                block 0 of the channel
//! organizations/peerOrganizations/org1.example.com/     authorities, peers, users, as Fabric's cryptogen lays them out
//! organizations/ordererOrganizations/example.com/
//! profiles/connection-org1.json                         connection profiles
//! client/                                               a client that is ready to run
//! peers/org1/, orderer/                                 ledgers and states
//! ```

use std::path::{Path, PathBuf};

/// The one orderer's organisation.
pub const ORDERER_MSP: &str = "OrdererMSP";
/// The domain of the orderer's organisation.
pub const ORDERER_DOMAIN: &str = "example.com";
/// The orderer's name in its domain.
pub const ORDERER_NAME: &str = "orderer";
/// The peer's name in its organisation's domain.
pub const PEER_NAME: &str = "peer0";

/// An organisation's names, by its number from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrganizationNames {
    /// `org1`
    pub name: String,
    /// `Org1MSP`
    pub msp_id: String,
    /// `org1.example.com`
    pub domain: String,
    /// `peer0.org1.example.com`
    pub peer: String,
}

impl OrganizationNames {
    pub fn of(number: usize) -> OrganizationNames {
        let domain = format!("org{number}.{ORDERER_DOMAIN}");
        OrganizationNames {
            name: format!("org{number}"),
            msp_id: format!("Org{number}MSP"),
            peer: format!("{PEER_NAME}.{domain}"),
            domain,
        }
    }
}

/// The orderer's full name, which its certificates carry.
pub fn orderer_full_name() -> String {
    format!("{ORDERER_NAME}.{ORDERER_DOMAIN}")
}

/// The configuration that the network remembers.
pub fn config(directory: &Path) -> PathBuf {
    directory.join("heddle.toml")
}

/// What listens where.
pub fn endpoints(directory: &Path) -> PathBuf {
    directory.join("endpoints.json")
}

/// Block 0.
pub fn genesis(directory: &Path) -> PathBuf {
    directory.join("channel.block")
}

/// The folder of one organisation's authorities, peers and users.
pub fn organization(directory: &Path, domain: &str) -> PathBuf {
    directory.join("organizations/peerOrganizations").join(domain)
}

/// The folder of the orderer's organisation.
pub fn orderer_organization(directory: &Path) -> PathBuf {
    directory.join("organizations/ordererOrganizations").join(ORDERER_DOMAIN)
}

/// A peer's certificates.
pub fn peer_identity(directory: &Path, names: &OrganizationNames) -> PathBuf {
    organization(directory, &names.domain).join("peers").join(&names.peer)
}

/// A user's certificates.
pub fn user_identity(directory: &Path, names: &OrganizationNames, user: &str) -> PathBuf {
    organization(directory, &names.domain).join("users").join(format!("{user}@{}", names.domain))
}

/// The orderer's certificates.
pub fn orderer_identity(directory: &Path) -> PathBuf {
    orderer_organization(directory).join("orderers").join(orderer_full_name())
}

/// A connection profile.
pub fn profile(directory: &Path, name: &str) -> PathBuf {
    directory.join("profiles").join(format!("connection-{name}.json"))
}

/// The ready-to-run client.
pub fn client(directory: &Path) -> PathBuf {
    directory.join("client")
}

/// A peer's ledger and state, relative to the network's directory.
pub fn peer_data(name: &str) -> String {
    format!("peers/{name}")
}

/// A peer's ledger and state.
pub fn peer_directory(directory: &Path, name: &str) -> PathBuf {
    directory.join(peer_data(name))
}

/// The orderer's blocks.
pub fn orderer_directory(directory: &Path) -> PathBuf {
    directory.join("orderer")
}
