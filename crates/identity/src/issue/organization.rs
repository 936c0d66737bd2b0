//! An organisation that issues certificates: its authorities, and the folders that Fabric's tools expect.

use base::MspId;
use bytes::Bytes;
use proto::msp::{FabricCryptoConfig, FabricMspConfig, FabricNodeOUs, FabricOuIdentifier};

use super::authority::{CertificateAuthority, CertificatePurpose, CertificateTerms};
use crate::error::Error;
use crate::msp::Msp;
use crate::principal::MemberRole;
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
pub struct IssuingOrganization {
    pub(super) msp: MspId,
    pub(super) domain: String,
    pub(super) authority: CertificateAuthority,
    pub(super) tls_authority: CertificateAuthority,
}

impl IssuingOrganization {
    /// Founds an organisation: `Org1MSP` with the domain `org1.example.com`, say.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn create(msp: impl Into<MspId>, domain: &str, terms: &CertificateTerms) -> Result<IssuingOrganization, Error> {
        Ok(IssuingOrganization {
            msp: msp.into(),
            domain: domain.to_owned(),
            authority: CertificateAuthority::root(&format!("ca.{domain}"), domain, terms)?,
            tls_authority: CertificateAuthority::root(&format!("tlsca.{domain}"), domain, &terms.for_tls())?,
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
    pub fn authority(&self) -> &CertificateAuthority {
        &self.authority
    }

    /// The authority of its TLS certificates.
    pub fn tls_authority(&self) -> &CertificateAuthority {
        &self.tls_authority
    }

    /// The full name of a node (`peer0` → `peer0.org1.example.com`) or user (`Admin` → `Admin@org1.example.com`).
    pub fn full_name(&self, role: MemberRole, name: &str) -> String {
        match role {
            MemberRole::Peer | MemberRole::Orderer => format!("{name}.{}", self.domain),
            MemberRole::Admin | MemberRole::Client | MemberRole::Member => format!("{name}@{}", self.domain),
        }
    }

    /// Issues an identity with a role, under its full name.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`]; a plain member cannot be issued, since NodeOUs want a mark.
    pub fn issue(&self, role: MemberRole, name: &str) -> Result<Signer, Error> {
        if role == MemberRole::Member {
            return Err(Error::Issue("an identity must be client, peer, admin or orderer".to_owned()));
        }
        let full_name = self.full_name(role, name);
        let (certificate, key) =
            self.authority.issue(&full_name, &CertificatePurpose::Identity { unit: role.as_str() })?;
        Signer::new(self.msp.clone(), &certificate, key)
    }

    /// Issues a TLS certificate for a node or user: for its full name, its short name and these other names and
    /// addresses, as server and as client.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn issue_tls(&self, role: MemberRole, name: &str, hosts: &[&str]) -> Result<TlsIdentity, Error> {
        let full_name = self.full_name(role, name);
        let own = if full_name.contains('@') { vec![] } else { vec![full_name.as_str(), name] };
        let hosts: Vec<String> = own.iter().chain(hosts).map(|host| (*host).to_owned()).collect();
        let (certificate, key) = self.tls_authority.issue(&full_name, &CertificatePurpose::Tls { hosts: &hosts })?;
        Ok(TlsIdentity {
            certificate_pem: certificate,
            key_pem: crate::certificate::to_pem("PRIVATE KEY", &key.to_pkcs8()?).into(),
            authority_pem: self.tls_authority.certificate_pem().clone(),
        })
    }

    /// The organisation's definition, as a channel's configuration holds it.
    pub fn definition(&self) -> FabricMspConfig {
        let authority = self.authority.certificate_pem();
        let unit = |role: MemberRole| {
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
                client_ou_identifier: unit(MemberRole::Client),
                peer_ou_identifier: unit(MemberRole::Peer),
                admin_ou_identifier: unit(MemberRole::Admin),
                orderer_ou_identifier: unit(MemberRole::Orderer),
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
