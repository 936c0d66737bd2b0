//! Revocation of TLS certificates, which are not channel identities.
//!
//! [`crate::Msp`] applies revocation lists to the identities that sign. TLS stacks verify chains by themselves, so
//! their verifiers call [`Revocations::check`] after they have accepted a chain:
//!
//! 1. [`Revocations::of`] reads an organisation's definition. It keeps each list that one of the organisation's
//!    authorities signed, whether the authority issues TLS certificates or identities. The list must name the
//!    authority's key, and its signature must verify under that key. Any other list is ignored, as in Fabric.
//! 2. [`Revocations::check`] looks up each certificate of the chain, leaf first, by its issuer's name and its serial
//!    number. Two authorities may have the same name; then the issuer's key that the certificate names decides whose
//!    list applies.
//!
//! Invariants: a list applies only to certificates of its own authority. A chain is refused if any of its certificates
//! is revoked or cannot be read. Without lists, a chain is accepted unread. No clock is read: a list past its next
//! update still applies.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;
use proto::msp::FabricMspConfig;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer as _;

use crate::certificate::{CERTIFICATE_BYTES_MAX, Certificate, RevocationList, magnitude};
use crate::chain::AUTHORITIES_MAX;
use crate::error::Error;

/// How many revocation lists an organisation may define.
pub(crate) const REVOCATION_LISTS_MAX: usize = 64;

const CERTIFICATE_LABEL: &str = "CERTIFICATE";
const LIST_LABEL: &str = "X509 CRL";

/// The certificates that the authorities of one or several organisations have revoked. By default there are none.
#[derive(Clone, Default, Debug)]
pub struct Revocations {
    lists: Vec<IssuedRevocations>,
}

/// A list whose signature was checked, and the authority that made it.
#[derive(Clone, Debug)]
struct IssuedRevocations {
    list: RevocationList,
    issuer_name: Bytes,
    issuer_key: Option<Bytes>,
}

impl Revocations {
    /// The certificates that an organisation's authorities have revoked, by its definition in a channel's configuration.
    ///
    /// # Errors
    /// [`Error::MalformedCertificate`] and [`Error::UnsupportedAlgorithm`] for a list or an authority that cannot be read;
    /// [`Error::MspDefinition`] for too many of them.
    pub fn of(definition: &FabricMspConfig) -> Result<Revocations, Error> {
        let too_many =
            |reason: &str| Error::MspDefinition { msp: definition.name.as_str().into(), reason: reason.to_owned() };
        if definition.revocation_list.len() > REVOCATION_LISTS_MAX {
            return Err(too_many("too many revocation lists"));
        }
        if definition.revocation_list.is_empty() {
            return Ok(Revocations::default());
        }
        let identities = definition.root_certs.iter().chain(&definition.intermediate_certs);
        let tls = definition.tls_root_certs.iter().chain(&definition.tls_intermediate_certs);
        let pems: Vec<&Bytes> = identities.chain(tls).collect();
        if pems.len() > 2 * AUTHORITIES_MAX {
            return Err(too_many("too many authorities"));
        }
        let authorities = pems.into_iter().map(|pem| Certificate::from_pem(pem)).collect::<Result<Vec<_>, _>>()?;
        Revocations::new(&authorities, &definition.revocation_list)
    }

    /// The certificates that these authorities have revoked by these lists, in PEM or DER.
    ///
    /// # Errors
    /// [`Error::MalformedCertificate`] and [`Error::UnsupportedAlgorithm`] for a list that cannot be read.
    pub fn new(authorities: &[Certificate], lists: &[Bytes]) -> Result<Revocations, Error> {
        let mut issued: Vec<IssuedRevocations> = Vec::new();
        for list in lists {
            let list = RevocationList::parse(list)?;
            let Some(authority) = authorities.iter().find(|authority| list.is_of(authority)) else { continue };
            let (issuer_name, issuer_key) = (authority.subject().clone(), authority.subject_key_id().cloned());
            issued.push(IssuedRevocations { list, issuer_name, issuer_key });
        }
        Ok(Revocations { lists: issued })
    }

    /// Reads a file of PEM blocks: its certificates are authorities, and its lists are the lists of these authorities.
    /// Blocks of other kinds are ignored.
    ///
    /// # Errors
    /// As [`Revocations::new`]; where the file holds no list, its certificates are not read.
    pub fn of_pem(pem: &[u8]) -> Result<Revocations, Error> {
        let blocks =
            ::pem::parse_many(pem).map_err(|error| Error::MalformedCertificate(format!("not PEM: {error}")))?;
        let of_kind = |label: &'static str| {
            let blocks = blocks.iter().filter(move |block| block.tag() == label);
            blocks.map(|block| Bytes::copy_from_slice(block.contents()))
        };
        let lists: Vec<Bytes> = of_kind(LIST_LABEL).take(REVOCATION_LISTS_MAX + 1).collect();
        match lists.len() {
            0 => return Ok(Revocations::default()),
            1..=REVOCATION_LISTS_MAX => {}
            _ => return Err(Error::MalformedCertificate("too many revocation lists".to_owned())),
        }
        let authorities = of_kind(CERTIFICATE_LABEL).take(AUTHORITIES_MAX).map(Certificate::from_der);
        Revocations::new(&authorities.collect::<Result<Vec<_>, _>>()?, &lists)
    }

    /// The revocations of `self` and of `other` together.
    #[must_use]
    pub fn and(mut self, other: Revocations) -> Revocations {
        self.lists.extend(other.lists);
        self
    }

    /// Whether there are no lists.
    pub fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    /// Refuses a chain of certificates (DER, the leaf first) if one of them was revoked.
    ///
    /// The caller has verified the chain; this function does not verify it.
    ///
    /// # Errors
    /// [`Error::Revoked`]; [`Error::MalformedCertificate`] for one that cannot be read.
    pub fn check<'a>(&self, chain: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Error> {
        if self.is_empty() {
            return Ok(());
        }
        for certificate in chain {
            self.check_one(certificate)?;
        }
        Ok(())
    }

    fn check_one(&self, der: &[u8]) -> Result<(), Error> {
        let malformed = |reason: String| Error::MalformedCertificate(reason);
        if der.len() > CERTIFICATE_BYTES_MAX {
            return Err(malformed("too large".to_owned()));
        }
        // Not `Certificate`: TLS stacks take keys and extensions that identities may not have.
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
        let key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
            _ => None,
        });
        let serial = magnitude(parsed.tbs_certificate.raw_serial());
        let revokes = |issued: &IssuedRevocations| {
            let is_of_that_key = match (key_id, &issued.issuer_key) {
                (Some(named), Some(key)) => named == &key[..],
                _ => true,
            };
            issued.issuer_name == parsed.issuer().as_raw() && is_of_that_key && issued.list.names(serial)
        };
        if self.lists.iter().any(revokes) { Err(Error::Revoked) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::issue::{CertificateAuthority, CertificateTerms, IssuingOrganization};
    use crate::principal::MemberRole;

    fn organization(seed: u8) -> IssuingOrganization {
        IssuingOrganization::create("A", "a.example.com", &CertificateTerms::seeded([seed; 32])).expect("founded")
    }

    fn tls(organization: &IssuingOrganization, name: &str) -> Certificate {
        let issued = organization.issue_tls(MemberRole::Client, name, &[]).expect("issued");
        Certificate::from_pem(&issued.certificate_pem).expect("a certificate")
    }

    fn check(revocations: &Revocations, chain: &[&Certificate]) -> Result<(), Error> {
        revocations.check(chain.iter().map(|certificate| &certificate.der()[..]))
    }

    fn listed(by: &CertificateAuthority, certificates: &[&Certificate]) -> Bytes {
        by.revoke(certificates).expect("a list")
    }

    #[test]
    fn a_listed_tls_certificate_is_refused_and_its_neighbour_is_not() {
        let organization = organization(1);
        let (kept, lost) = (tls(&organization, "kept"), tls(&organization, "lost"));
        let mut definition = organization.definition();
        assert!(Revocations::of(&definition).expect("in order").is_empty());
        definition.revocation_list = vec![listed(organization.tls_authority(), &[&lost])];
        let revocations = Revocations::of(&definition).expect("in order");
        assert_eq!(check(&revocations, &[&kept, organization.tls_authority().certificate()]), Ok(()));
        assert_eq!(check(&revocations, &[&lost]), Err(Error::Revoked));
        // An authority below a root can be taken back too, and with it whatever it issued.
        assert_eq!(check(&revocations, &[&kept, &lost]), Err(Error::Revoked), "anywhere in the chain");
        assert_eq!(check(&Revocations::default(), &[&lost]), Ok(()), "no list says so");
        assert!(matches!(revocations.check([&b"no certificate"[..]]), Err(Error::MalformedCertificate(_))));
    }

    #[test]
    fn a_list_counts_for_the_certificates_of_its_own_authority_alone() {
        let (organization, impostor) = (organization(1), organization(2));
        let (own, other) = (tls(&organization, "x"), tls(&impostor, "x"));
        let authorities = [organization.tls_authority().certificate().clone()];
        // Of the same name, by another key.
        let forged = listed(impostor.tls_authority(), &[&own]);
        assert!(Revocations::new(&authorities, &[forged]).expect("readable").is_empty());
        // The signature of a list is changed.
        let good = listed(organization.tls_authority(), &[&own, &other]);
        let mut broken = crate::certificate::pem_contents(&good, LIST_LABEL, 4096).expect("PEM");
        *broken.last_mut().expect("not empty") ^= 1;
        assert!(Revocations::new(&authorities, &[broken.into()]).expect("readable").is_empty());
        // A namesake's certificate with a listed serial number names another key.
        let revocations = Revocations::new(&authorities, &[good]).expect("in order");
        assert_eq!(check(&revocations, &[&own]), Err(Error::Revoked));
        assert_eq!(check(&revocations, &[&other]), Ok(()));
        // The authority of identities takes no TLS certificate back.
        let by_another = listed(organization.authority(), &[&own]);
        let mut definition = organization.definition();
        definition.revocation_list = vec![by_another];
        assert_eq!(check(&Revocations::of(&definition).expect("in order"), &[&own]), Ok(()));
    }

    #[test]
    fn a_file_of_trusted_authorities_may_hold_their_lists() {
        let organization = organization(1);
        let (kept, lost) = (tls(&organization, "kept"), tls(&organization, "lost"));
        let authority = organization.tls_authority();
        let pem = [&authority.certificate_pem()[..], &listed(authority, &[&lost])].concat();
        let revocations = Revocations::of_pem(&pem).expect("in order");
        assert_eq!((check(&revocations, &[&kept]), check(&revocations, &[&lost])), (Ok(()), Err(Error::Revoked)));
        assert!(Revocations::of_pem(authority.certificate_pem()).expect("in order").is_empty());
        let both = Revocations::default().and(revocations);
        assert_eq!(check(&both, &[&lost]), Err(Error::Revoked));
    }
}
