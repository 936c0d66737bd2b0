//! The sections `[[chaincodes]]` and `[chaincode_port]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Ports between the peers of two organisations.
const PORT_STEP: u16 = 1000;
/// Most sections `[[chaincodes]]`.
const CHAINCODES_MAX: usize = 1024;

/// A chaincode that listens at an address and has no package.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChaincodeConfig {
    /// The contract's name.
    pub name: String,
    /// Host and port.
    pub address: String,
    /// The organisations whose peers use it; empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub organizations: Vec<String>,
    /// The id with which it registers; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package_id: Option<String>,
    /// The file with the authorities of its certificate; `None` without TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_authority: Option<PathBuf>,
    /// The file with the peer's certificate, for a chaincode that asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_certificate: Option<PathBuf>,
    /// The file with the key of that certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls_key: Option<PathBuf>,
    /// Milliseconds that an attempt to connect may take.
    #[serde(default = "dial_timeout_ms")]
    pub dial_timeout_ms: u32,
}

impl ChaincodeConfig {
    /// Whether this organisation's peer uses it.
    pub(crate) fn is_for(&self, organization: &str) -> bool {
        self.organizations.is_empty() || self.organizations.iter().any(|name| name == organization)
    }
}

/// As long as Fabric's peers wait.
fn dial_timeout_ms() -> u32 {
    3000
}

/// The port for chaincodes that connect to their peer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ChaincodePortConfig {
    /// That of the first organisation's peer; 0 for none.
    pub port: u16,
    /// The file with the authorities of chaincodes' certificates.
    pub authorities: PathBuf,
}

impl ChaincodePortConfig {
    /// The port of an organisation's peer, if there is one.
    pub(crate) fn of(&self, organization: usize) -> Option<u16> {
        (self.port != 0).then(|| self.port + organization as u16 * PORT_STEP)
    }

    pub(super) fn check(&self, organizations: usize) -> Result<(), (&'static str, String)> {
        if self.port == 0 {
            return Ok(());
        }
        let highest = usize::from(self.port) + (organizations - 1) * usize::from(PORT_STEP);
        if highest > usize::from(u16::MAX) {
            return Err((
                "chaincode_port.port",
                format!(
                    "leaves too few ports for {organizations} organisations, {PORT_STEP} apart; choose a lower port"
                ),
            ));
        }
        match self.authorities.as_os_str().is_empty() {
            true => Err((
                "chaincode_port.authorities",
                "is missing; name the file with the authorities of chaincodes' certificates, or set the port to 0"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }
}

pub(super) fn check(chaincodes: &[ChaincodeConfig]) -> Result<(), String> {
    if chaincodes.len() > CHAINCODES_MAX {
        return Err(format!("has {} sections; at most {CHAINCODES_MAX} are read", chaincodes.len()));
    }
    for (index, chaincode) in chaincodes.iter().enumerate() {
        let name = &chaincode.name;
        let has_port = chaincode
            .address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
        if !has_port {
            return Err(format!("gives {name} the address {:?}; write host:port", chaincode.address));
        }
        if chaincode.tls_certificate.is_some() != chaincode.tls_key.is_some() {
            return Err(format!("gives {name} only one of tls_certificate and tls_key; give both, or none"));
        }
        if chaincode.tls_certificate.is_some() && chaincode.tls_authority.is_none() {
            return Err(format!("gives {name} a tls_certificate, but no tls_authority"));
        }
        if chaincode.dial_timeout_ms == 0 {
            return Err(format!("gives {name} a dial_timeout_ms of 0"));
        }
        let shares = |other: &ChaincodeConfig| {
            other.organizations.is_empty()
                || chaincode.organizations.is_empty()
                || other.organizations.iter().any(|organization| chaincode.organizations.contains(organization))
        };
        if chaincodes[..index].iter().any(|other| other.name == *name && shares(other)) {
            return Err(format!("names {name} twice for one organisation"));
        }
    }
    Ok(())
}

/// The sections of these chaincodes.
pub(super) fn to_text(chaincodes: &[ChaincodeConfig]) -> String {
    let section = |chaincode| toml::to_string(chaincode).expect("a chaincode is texts and numbers");
    chaincodes.iter().map(|chaincode| format!("\n[[chaincodes]]\n{}", section(chaincode))).collect()
}
