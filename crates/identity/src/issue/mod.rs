//! Authorities and certificates for networks that Heddle itself sets up.
//!
//! An [`Organization`] has an authority for identities and one for TLS, as `cryptogen` makes them. It issues identities
//! marked as peer, orderer, admin or client by their organisational unit (NodeOUs), and TLS certificates for hosts; its
//! definition goes into a channel's configuration. [`directory`] writes all of that to the files Fabric's tools expect
//! and reads them back.
//!
//! Keys come from the operating system's randomness, or, for simulation, from a seed: then they are Ed25519 keys, or
//! keys on P-256 that the simulation makes, derived from the seed and the holder's name, validity is fixed, and the same names give the same bytes on every run, in
//! whatever order they are issued.
//!
//! Left to others: where networks live and which nodes they have.

mod authority;
pub mod directory;

use base::MspId;
use bytes::Bytes;
use proto::msp::{FabricCryptoConfig, FabricMspConfig, FabricNodeOUs, FabricOuIdentifier};

pub use authority::{Authority, Purpose, SeededKeys, Terms};
pub use directory::MspDirectory;

use crate::error::Error;
use crate::msp::Msp;
use crate::principal::Role;
use crate::signer::Signer;

/// A TLS certificate and its key.
#[derive(Clone)]
pub struct TlsIdentity {
    /// The certificate in PEM.
    pub certificate_pem: Bytes,
    /// Its private key in PEM (PKCS#8). Secret.
    pub key_pem: Bytes,
    /// The authority's certificate in PEM: what the other side must trust.
    pub authority_pem: Bytes,
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity") // The key is a secret.
    }
}

/// An organisation with the keys of its authorities.
#[derive(Debug)]
pub struct Organization {
    msp: MspId,
    domain: String,
    authority: Authority,
    tls_authority: Authority,
}

impl Organization {
    /// Founds an organisation: `Org1MSP` with the domain `org1.example.com`, say.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn found(msp: impl Into<MspId>, domain: &str, terms: &Terms) -> Result<Organization, Error> {
        Ok(Organization {
            msp: msp.into(),
            domain: domain.to_owned(),
            authority: Authority::root(&format!("ca.{domain}"), domain, terms)?,
            tls_authority: Authority::root(&format!("tlsca.{domain}"), domain, &terms.for_tls())?,
        })
    }

    /// The organisation's name in channels.
    pub fn msp_id(&self) -> &MspId {
        &self.msp
    }

    /// The domain of its nodes.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The authority of its identities.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// The authority of its TLS certificates.
    pub fn tls_authority(&self) -> &Authority {
        &self.tls_authority
    }

    /// The full name of a node (`peer0` → `peer0.org1.example.com`) or user (`Admin` → `Admin@org1.example.com`).
    pub fn full_name(&self, role: Role, name: &str) -> String {
        match role {
            Role::Peer | Role::Orderer => format!("{name}.{}", self.domain),
            Role::Admin | Role::Client | Role::Member => format!("{name}@{}", self.domain),
        }
    }

    /// Issues an identity with a role, under its full name.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`]; a plain member cannot be issued, since NodeOUs want a mark.
    pub fn issue(&self, role: Role, name: &str) -> Result<Signer, Error> {
        if role == Role::Member {
            return Err(Error::Issue("an identity must be client, peer, admin or orderer".to_owned()));
        }
        let full_name = self.full_name(role, name);
        let (certificate, key) = self.authority.issue(&full_name, &Purpose::Identity { unit: role.as_str() })?;
        Signer::new(self.msp.clone(), &certificate, key)
    }

    /// Issues a TLS certificate for a node or user: for its full name, its short name and these other names and
    /// addresses, as server and as client.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn issue_tls(&self, role: Role, name: &str, hosts: &[&str]) -> Result<TlsIdentity, Error> {
        let full_name = self.full_name(role, name);
        let own = if full_name.contains('@') { vec![] } else { vec![full_name.as_str(), name] };
        let hosts: Vec<String> = own.iter().chain(hosts).map(|host| (*host).to_owned()).collect();
        let (certificate, key) = self.tls_authority.issue(&full_name, &Purpose::Tls { hosts: &hosts })?;
        Ok(TlsIdentity {
            certificate_pem: certificate,
            key_pem: crate::certificate::to_pem("PRIVATE KEY", &key.to_pkcs8()?).into(),
            authority_pem: self.tls_authority.certificate_pem().clone(),
        })
    }

    /// The organisation's definition, as a channel's configuration holds it.
    pub fn definition(&self) -> FabricMspConfig {
        let authority = self.authority.certificate_pem();
        let unit = |role: Role| {
            Some(FabricOuIdentifier {
                certificate: authority.clone(),
                organizational_unit_identifier: role.as_str().to_owned(),
            })
        };
        FabricMspConfig {
            name: self.msp.to_string(),
            root_certs: vec![authority.clone()],
            crypto_config: Some(crypto_config()),
            tls_root_certs: vec![self.tls_authority.certificate_pem().clone()],
            fabric_node_ous: Some(FabricNodeOUs {
                enable: true,
                client_ou_identifier: unit(Role::Client),
                peer_ou_identifier: unit(Role::Peer),
                admin_ou_identifier: unit(Role::Admin),
                orderer_ou_identifier: unit(Role::Orderer),
            }),
            ..FabricMspConfig::default()
        }
    }

    /// The organisation as its members see it.
    ///
    /// # Errors
    /// None that a founded organisation has; those of [`Msp::from_fabric`] for one that was read from files.
    pub fn membership(&self) -> Result<Msp, Error> {
        Msp::from_fabric(&self.definition())
    }
}

/// The hashes Fabric uses when nothing else is said.
pub(crate) fn crypto_config() -> FabricCryptoConfig {
    FabricCryptoConfig {
        signature_hash_family: "SHA2".to_owned(),
        identity_identifier_hash_function: "SHA256".to_owned(),
    }
}

#[cfg(test)]
mod tests;
