//! An organisation's rules of membership, as a channel's configuration defines them.
//!
//! Defining an organisation (`FabricMSPConfig`):
//! 1. Read its root and intermediate authorities. Each must be an authority, have a key identifier, and have exactly
//!    one chain.
//! 2. Read the revocation lists and the organisational units (OUs). With NodeOUs, a *marking unit* in a certificate
//!    says that its holder is a client, peer, admin or orderer. The definition may pin a marking unit to the authority
//!    that must have issued such certificates. Without NodeOUs, the definition may list *required units*, of which
//!    every member must have one.
//! 3. Read the listed administrators; each must be a valid identity. If none is listed, there must be a marking unit
//!    for administrators.
//!
//! Validating an identity, in Fabric's order so that the verdicts agree:
//! 1. Its certificate is not an authority's and has exactly one chain (module `chain`). The authority that issued the
//!    certificate has no authorities below it, because an authority issues either authorities or identities.
//! 2. No revocation list of its issuer contains it.
//! 3. With NodeOUs it has exactly one marking unit. If the unit is pinned to an authority, that authority issued the
//!    certificate. Without NodeOUs it has one of the required units, if there are any.
//!
//! The rules are those of the MSP versions 1.4.3 and 3.0, which current channels ask for. Left to others: caching
//! identities ([`crate::manager`]) and expiry ([`crate::Identity::check_expiry`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeSet;

use aws_lc_rs::digest::{self, Algorithm};
use base::MspId;
use bytes::Bytes;
use prost::Message as _;
use proto::msp::{FabricMspConfig, FabricNodeOUs, FabricOuIdentifier, MspConfig, SerializedIdentity};

use super::revocation::REVOCATION_LISTS_MAX;
use crate::certificate::{Certificate, CertificateId, RevocationList};
use crate::chain::{AUTHORITIES_MAX, Authorities, CertificateChain};
use crate::error::Error;
use crate::identity::Identity;
use crate::principal::{MemberRole, MemberRoles};
use crate::revocation::Revocations;

/// How many administrators an organisation may list.
const ADMINS_MAX: usize = 1024;
/// How many organisational units an organisation may require.
const UNITS_MAX: usize = 1024;

/// An organisation.
#[derive(Debug)]
pub struct Msp {
    id: MspId,
    authorities: Authorities,
    /// Authorities that have authorities below them.
    inner: BTreeSet<usize>,
    revocations: Vec<RevocationList>,
    node_units: Option<NodeUnits>,
    required_units: Vec<OrganizationalUnit>,
    admins: BTreeSet<CertificateId>,
    chain_hash: &'static Algorithm,
    tls_roots: Vec<Bytes>,
    tls_intermediates: Vec<Bytes>,
    all_revocations: Revocations,
}

/// An organisational unit and who must vouch for it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct OrganizationalUnit {
    name: String,
    /// The digest of a chain of authorities; nothing when any of them will do.
    certifiers: Option<Bytes>,
}

/// The units that mark the kinds of node.
#[derive(Debug, Default)]
struct NodeUnits {
    by_role: Vec<(MemberRole, OrganizationalUnit)>,
}

impl NodeUnits {
    fn of(&self, role: MemberRole) -> Option<&OrganizationalUnit> {
        self.by_role.iter().find(|(candidate, _)| *candidate == role).map(|(_, unit)| unit)
    }

    /// The marking unit of that name. Where two roles share a name, the last one's pin counts, as in Fabric.
    fn named(&self, name: &str) -> Option<&OrganizationalUnit> {
        self.by_role.iter().rev().map(|(_, unit)| unit).find(|unit| unit.name == name)
    }
}

impl Msp {
    /// Reads the definition from an encoded `FabricMSPConfig`.
    ///
    /// # Errors
    /// [`Error::MspDefinition`], and whatever its certificates fail with.
    pub fn from_config(config: &Bytes) -> Result<Msp, Error> {
        let config = FabricMspConfig::decode(config.clone()).map_err(|e| Error::MspDefinition {
            msp: MspId::from(""),
            reason: format!("not a FabricMSPConfig: {e}"),
        })?;
        Msp::from_fabric(&config)
    }

    /// Reads the definition from the value `MSP` of an organisation's configuration group.
    ///
    /// # Errors
    /// As [`Msp::from_config`]; also when the organisation is not of Fabric's X.509 kind.
    pub fn from_msp_config(config: &MspConfig) -> Result<Msp, Error> {
        const FABRIC: i32 = 0;
        if config.r#type != FABRIC {
            let reason = format!("MSP type {} is not supported", config.r#type);
            return Err(Error::MspDefinition { msp: MspId::from(""), reason });
        }
        Msp::from_config(&config.config)
    }

    /// Reads the definition.
    ///
    /// # Errors
    /// As [`Msp::from_config`].
    pub fn from_fabric(config: &FabricMspConfig) -> Result<Msp, Error> {
        let definition = MspDefinition { msp: MspId::from(config.name.as_str()) };
        definition.check(!config.name.is_empty(), "it has no name")?;
        definition.check(!config.root_certs.is_empty(), "it has no root certificate")?;
        let counts = [
            (
                config.root_certs.len().saturating_add(config.intermediate_certs.len()),
                AUTHORITIES_MAX,
                "too many authorities",
            ),
            (
                config.tls_root_certs.len().saturating_add(config.tls_intermediate_certs.len()),
                AUTHORITIES_MAX,
                "too many TLS authorities",
            ),
            (config.revocation_list.len(), REVOCATION_LISTS_MAX, "too many revocation lists"),
            (config.admins.len(), ADMINS_MAX, "too many administrators"),
            (config.organizational_unit_identifiers.len(), UNITS_MAX, "too many organisational units"),
        ];
        for (count, max, reason) in counts {
            definition.check(count <= max, reason)?;
        }
        definition.authorities(&config.tls_root_certs, &config.tls_intermediate_certs)?;
        let authorities = definition.authorities(&config.root_certs, &config.intermediate_certs)?;
        let mut msp = Msp {
            inner: definition.inner(&authorities)?,
            authorities,
            revocations: config.revocation_list.iter().map(RevocationList::parse).collect::<Result<_, _>>()?,
            node_units: None,
            required_units: Vec::new(),
            admins: BTreeSet::new(),
            chain_hash: definition.chain_hash(config)?,
            tls_roots: config.tls_root_certs.clone(),
            tls_intermediates: config.tls_intermediate_certs.clone(),
            all_revocations: Revocations::of(config)?,
            id: definition.msp.clone(),
        };
        for (_, authority) in msp.authorities.iter() {
            let chain = msp.authorities.chain(authority).map_err(|reason| definition.invalid(reason))?;
            definition.check(!msp.is_revoked(authority, &chain), "an authority is revoked")?;
        }
        for unit in &config.organizational_unit_identifiers {
            let unit = msp.unit(&definition, unit)?;
            definition.check(unit.certifiers.is_some(), "a required unit names no certificate")?;
            msp.required_units.push(unit);
        }
        if let Some(units) = config.fabric_node_ous.as_ref().filter(|units| units.enable) {
            msp.node_units = msp.node_units(&definition, units)?;
        }
        msp.define_admins(&definition, &config.admins)?;
        Ok(msp)
    }

    /// The organisation's name.
    pub fn id(&self) -> &MspId {
        &self.id
    }

    /// The authorities of its TLS certificates, in PEM.
    pub fn tls_roots(&self) -> &[Bytes] {
        &self.tls_roots
    }

    /// The intermediate authorities of its TLS certificates, in PEM.
    pub fn tls_intermediates(&self) -> &[Bytes] {
        &self.tls_intermediates
    }

    /// The certificates that its authorities, including the TLS authorities, have revoked: for verifiers of TLS certificates.
    pub fn all_revocations(&self) -> &Revocations {
        &self.all_revocations
    }

    /// Validates a `SerializedIdentity` against this organisation. Nothing is remembered: see [`crate::MspManager`].
    ///
    /// # Errors
    /// Every kind of failure that identities have, except [`Error::Expired`].
    pub fn identify(&self, serialized: &Bytes) -> Result<Identity, Error> {
        let decoded = decode_serialized(serialized)?;
        if decoded.mspid != self.id.as_str() {
            return Err(Error::UnknownMsp(decoded.mspid.into()));
        }
        self.validate(Certificate::from_pem(&decoded.id_bytes)?, serialized.clone())
    }

    pub(crate) fn validate(&self, certificate: Certificate, serialized: Bytes) -> Result<Identity, Error> {
        if certificate.is_authority() {
            return Err(Error::AuthorityAsIdentity);
        }
        let chain = self.authorities.chain(&certificate).map_err(|reason| self.foreign(reason))?;
        let issuer = chain.issuer().ok_or_else(|| self.foreign("it is its own root"))?;
        if self.inner.contains(&issuer) {
            return Err(self.foreign("its authority issues authorities only"));
        }
        if self.is_revoked(&certificate, &chain) {
            return Err(Error::Revoked);
        }
        let certifiers = self.certifiers(&chain);
        self.check_units(&certificate, &certifiers)?;
        let roles = self.roles(&certificate);
        Ok(Identity::new(self.id.clone(), serialized, certificate, roles, certifiers))
    }

    fn foreign(&self, reason: &'static str) -> Error {
        Error::ForeignChain { msp: self.id.clone(), reason }
    }

    fn is_revoked(&self, certificate: &Certificate, chain: &CertificateChain) -> bool {
        let Some(issuer) = chain.issuer() else { return false };
        let issuer = self.authorities.certificate(issuer);
        self.revocations.iter().any(|list| list.revokes(certificate, issuer))
    }

    /// The digest that names a chain of authorities.
    fn certifiers(&self, chain: &CertificateChain) -> Bytes {
        self.digest_of(&self.authorities.canonical(chain))
    }

    fn digest_of(&self, certificates: &[Bytes]) -> Bytes {
        let mut hasher = digest::Context::new(self.chain_hash);
        certificates.iter().for_each(|certificate| hasher.update(certificate));
        Bytes::copy_from_slice(hasher.finish().as_ref())
    }

    fn check_units(&self, certificate: &Certificate, certifiers: &Bytes) -> Result<(), Error> {
        let wrong = |reason| Err(Error::WrongOrganizationalUnit { msp: self.id.clone(), reason });
        let is_vouched = |unit: &OrganizationalUnit| unit.certifiers.as_ref().is_none_or(|pinned| pinned == certifiers);
        let Some(node_units) = &self.node_units else {
            let has = |unit: &OrganizationalUnit| is_vouched(unit) && certificate.units().contains(&unit.name);
            return match self.required_units.is_empty() || self.required_units.iter().any(has) {
                true => Ok(()),
                false => wrong("none of the required units"),
            };
        };
        let marks: Vec<&OrganizationalUnit> =
            certificate.units().iter().filter_map(|name| node_units.named(name)).collect();
        match marks[..] {
            [unit] if is_vouched(unit) => Ok(()),
            [_] => wrong("another authority must vouch for the unit"),
            [] => wrong("not marked as client, peer, admin or orderer"),
            _ => wrong("marked as more than one of client, peer, admin and orderer"),
        }
    }

    fn roles(&self, certificate: &Certificate) -> MemberRoles {
        let mut roles = MemberRoles::default();
        roles.insert(MemberRole::Member);
        let marks = |role| self.node_units.as_ref().and_then(|units| units.of(role));
        for role in [MemberRole::Admin, MemberRole::Client, MemberRole::Peer, MemberRole::Orderer] {
            if marks(role).is_some_and(|unit| certificate.units().contains(&unit.name)) {
                roles.insert(role);
            }
        }
        if self.admins.contains(&certificate.id()) {
            roles.insert(MemberRole::Admin);
        }
        roles
    }

    fn unit(&self, definition: &MspDefinition, unit: &FabricOuIdentifier) -> Result<OrganizationalUnit, Error> {
        let name = unit.organizational_unit_identifier.clone();
        if unit.certificate.is_empty() {
            return Ok(OrganizationalUnit { name, certifiers: None });
        }
        let certificate = Certificate::from_pem(&unit.certificate)?;
        let position = self.authorities.position(&certificate);
        let position = position.ok_or_else(|| definition.invalid("a unit names a certificate that is no authority"))?;
        let chain = self.authorities.chain(&certificate).map_err(|reason| definition.invalid(reason))?;
        let is_root = chain.issuer().is_none();
        definition.check(is_root || !self.inner.contains(&position), "a unit names an authority that issues none")?;
        let certifiers = self.digest_of(&self.authorities.canonical(&chain.below(position)));
        Ok(OrganizationalUnit { name, certifiers: Some(certifiers) })
    }

    fn node_units(&self, definition: &MspDefinition, units: &FabricNodeOUs) -> Result<Option<NodeUnits>, Error> {
        let defined = [
            (MemberRole::Client, &units.client_ou_identifier),
            (MemberRole::Peer, &units.peer_ou_identifier),
            (MemberRole::Admin, &units.admin_ou_identifier),
            (MemberRole::Orderer, &units.orderer_ou_identifier),
        ];
        let mut by_role = Vec::new();
        for (role, unit) in defined {
            if let Some(unit) = unit {
                by_role.push((role, self.unit(definition, unit)?));
            }
        }
        Ok((!by_role.is_empty()).then_some(NodeUnits { by_role }))
    }

    fn define_admins(&mut self, definition: &MspDefinition, admins: &[Bytes]) -> Result<(), Error> {
        for admin in admins {
            let certificate = Certificate::from_pem(admin)?;
            let id = certificate.id();
            let identity = self
                .validate(certificate, Bytes::new())
                .map_err(|e| definition.invalid(&format!("an administrator is not valid: {e}")))?;
            let is_marked = identity.has_role(MemberRole::Client) || identity.has_role(MemberRole::Admin);
            definition.check(self.node_units.is_none() || is_marked, "an administrator is neither client nor admin")?;
            self.admins.insert(id);
        }
        let marks_admins = self.node_units.as_ref().is_some_and(|units| units.of(MemberRole::Admin).is_some());
        definition.check(marks_admins || !self.admins.is_empty(), "nobody is administrator")
    }
}

/// An organisation whose definition is being read, for its errors.
struct MspDefinition {
    msp: MspId,
}

impl MspDefinition {
    fn invalid(&self, reason: &str) -> Error {
        Error::MspDefinition { msp: self.msp.clone(), reason: reason.to_owned() }
    }

    fn check(&self, holds: bool, reason: &str) -> Result<(), Error> {
        if holds { Ok(()) } else { Err(self.invalid(reason)) }
    }

    fn authorities(&self, roots: &[Bytes], intermediates: &[Bytes]) -> Result<Authorities, Error> {
        let read = |pems: &[Bytes]| pems.iter().map(|pem| Certificate::from_pem(pem)).collect::<Result<Vec<_>, _>>();
        let authorities = Authorities::new(read(roots)?, read(intermediates)?);
        for (_, certificate) in authorities.iter() {
            self.check(certificate.is_authority(), "an authority's certificate is not marked as one")?;
            self.check(certificate.subject_key_id().is_some(), "an authority has no subject key identifier")?;
            authorities.chain(certificate).map_err(|reason| self.invalid(&format!("authority: {reason}")))?;
        }
        Ok(authorities)
    }

    fn inner(&self, authorities: &Authorities) -> Result<BTreeSet<usize>, Error> {
        let mut inner = BTreeSet::new();
        for (_, certificate) in authorities.iter() {
            inner.extend(authorities.chain(certificate).map_err(|reason| self.invalid(reason))?.positions());
        }
        Ok(inner)
    }

    fn chain_hash(&self, config: &FabricMspConfig) -> Result<&'static Algorithm, Error> {
        let named = config.crypto_config.as_ref();
        let family = named.map_or("", |crypto| &crypto.signature_hash_family);
        self.check(matches!(family, "" | "SHA2"), "its signature hash family is not SHA2")?;
        match named.map_or("", |crypto| &crypto.identity_identifier_hash_function) {
            "" | "SHA256" => Ok(&digest::SHA256),
            "SHA384" => Ok(&digest::SHA384),
            "SHA3_256" => Ok(&digest::SHA3_256),
            "SHA3_384" => Ok(&digest::SHA3_384),
            other => Err(self.invalid(&format!("its identifier hash function {other} is unknown"))),
        }
    }
}

/// The largest serialized identity that we read, in bytes.
pub const SERIALIZED_BYTES_MAX: usize = 64 * 1024;

/// Decodes a `SerializedIdentity`, without validating what it holds.
pub(crate) fn decode_serialized(serialized: &Bytes) -> Result<SerializedIdentity, Error> {
    if serialized.len() > SERIALIZED_BYTES_MAX {
        return Err(Error::MalformedIdentity("too large"));
    }
    SerializedIdentity::decode(serialized.clone()).map_err(|_| Error::MalformedIdentity("not a SerializedIdentity"))
}

/// A `SerializedIdentity` of this organisation and certificate.
pub(crate) fn encode_serialized(msp: &str, certificate_pem: &[u8]) -> Bytes {
    let identity = SerializedIdentity { mspid: msp.to_owned(), id_bytes: Bytes::copy_from_slice(certificate_pem) };
    identity.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
