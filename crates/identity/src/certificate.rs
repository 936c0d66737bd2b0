//! X.509 certificates and revocation lists, reduced to the fields that membership needs.
//!
//! Parsing accepts a strict subset of X.509: DER without trailing bytes, version 3 or 1, keys and signatures of the
//! kinds in [`crate::key`], each extension at most once. An unknown extension is ignored if it is not critical;
//! otherwise the certificate is refused. Name constraints are refused even when not critical, because ignoring them
//! would admit certificates that their authority excluded.
//!
//! Two certificates with the same signed part count as one certificate, even if their signatures differ. Both give
//! the same rights to the same holder, and anyone can turn an ECDSA signature into a second valid one (module
//! `der`).
//!
//! Left to others: whether a certificate chains to a root (module `chain`), and what its organisational units mean
//! ([`crate::msp`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;
use x509_parser::asn1_rs::Any;
use x509_parser::asn1_rs::Tag;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension, X509Extension};
use x509_parser::oid_registry as oids;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::{CertificateRevocationList, RevokedCertificate};
use x509_parser::x509::{AlgorithmIdentifier, SubjectPublicKeyInfo, X509Name, X509Version};

use crate::der;
use crate::digest::{Hash, sha256};
use crate::error::Error;
use crate::key::{CertificateSignature, KeyKind, PublicKey};

/// The largest certificate that we parse, in bytes of DER.
pub const CERTIFICATE_BYTES_MAX: usize = 32 * 1024;
/// Elements of DER that a certificate may have whatever its size. One of Fabric's has about a hundred.
const ELEMENTS_FREE: usize = 384;
/// Bytes of the others, on average.
const ELEMENT_BYTES_MIN: usize = 64;
/// The largest entry of a revocation list that we parse.
const REVOKED_BYTES_MAX: usize = 1024;
/// The largest revocation list that we parse, in bytes of DER.
pub const REVOCATION_LIST_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Names a certificate: the digest of its signed part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateId(Hash);

impl std::fmt::Debug for CertificateId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CertificateId({})", hex::encode(&self.0[..8]))
    }
}

/// A parsed certificate. Parsing says nothing about who issued it.
#[derive(Clone, Debug)]
pub struct Certificate {
    id: CertificateId,
    der: Bytes,
    signed_part: Bytes,
    algorithm: CertificateSignature,
    signature: Bytes,
    key: PublicKey,
    serial: Vec<u8>,
    issuer: Bytes,
    subject: Bytes,
    common_name: String,
    units: Vec<String>,
    not_before: i64,
    not_after: i64,
    authority: Option<AuthorityConstraints>,
    may_sign_certificates: bool,
    usable_for_servers: bool,
    subject_key_id: Option<Bytes>,
}

/// What the basic constraints grant an authority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AuthorityConstraints {
    /// How many intermediate authorities may stand between it and a leaf.
    pub(crate) path_length: Option<u32>,
}

impl Certificate {
    /// Reads the first PEM block, which must hold a certificate.
    ///
    /// # Errors
    /// [`Error::MalformedCertificate`], [`Error::UnsupportedAlgorithm`].
    pub fn from_pem(pem: &[u8]) -> Result<Certificate, Error> {
        Certificate::from_der(pem_contents(pem, "CERTIFICATE", CERTIFICATE_BYTES_MAX)?.into())
    }

    /// Reads a certificate in DER.
    ///
    /// # Errors
    /// [`Error::MalformedCertificate`], [`Error::UnsupportedAlgorithm`].
    pub fn from_der(der: Bytes) -> Result<Certificate, Error> {
        if der.len() > CERTIFICATE_BYTES_MAX {
            return malformed("too large");
        }
        // Nobody has vouched for it yet, and the library makes a hundred bytes of an element of two.
        if has_too_many_elements(&der) {
            return malformed("more elements than any certificate has");
        }
        let (rest, parsed) = X509Certificate::from_der(&der).map_err(|e| Error::MalformedCertificate(e.to_string()))?;
        if !rest.is_empty() {
            return malformed("bytes follow the certificate");
        }
        let tbs = &parsed.tbs_certificate;
        if tbs.version != X509Version::V3 && (tbs.version != X509Version::V1 || !tbs.extensions().is_empty()) {
            return malformed("neither version 3 nor a plain version 1");
        }
        if tbs.signature != parsed.signature_algorithm {
            return malformed("its two signature algorithms differ");
        }
        let extensions = CertificateExtensions::read(tbs.extensions())?;
        let signed_part: &[u8] = tbs.as_ref();
        let certificate = Certificate {
            id: CertificateId(sha256([signed_part])),
            signed_part: der.slice_ref(signed_part),
            algorithm: signature_algorithm(&parsed.signature_algorithm)?,
            signature: der.slice_ref(&parsed.signature_value.data),
            key: public_key(tbs.public_key())?,
            serial: magnitude(tbs.raw_serial()).to_vec(),
            issuer: der.slice_ref(tbs.issuer().as_raw()),
            subject: der.slice_ref(tbs.subject().as_raw()),
            common_name: attribute_texts(tbs.subject(), &oids::OID_X509_COMMON_NAME).pop().unwrap_or_default(),
            units: attribute_texts(tbs.subject(), &oids::OID_X509_ORGANIZATIONAL_UNIT),
            not_before: tbs.validity().not_before.timestamp(),
            not_after: tbs.validity().not_after.timestamp(),
            authority: extensions.authority,
            may_sign_certificates: extensions.may_sign_certificates,
            usable_for_servers: extensions.usable_for_servers,
            subject_key_id: extensions.subject_key_id.map(|id| der.slice_ref(id)),
            der: der.clone(),
        };
        // The parser takes more than DER. What is inside the signed part its issuer has vouched for; what is around it is
        // ours to check, or one certificate would have many encodings.
        match certificate.with_signature(&certificate.signature) == certificate.der {
            true => Ok(certificate),
            false => malformed("not DER"),
        }
    }

    /// What names this certificate.
    pub fn id(&self) -> CertificateId {
        self.id
    }

    /// The certificate in DER, as it was read.
    pub fn der(&self) -> &Bytes {
        &self.der
    }

    /// The holder's public key.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }

    /// The last common name of the subject, empty when there is none.
    pub fn common_name(&self) -> &str {
        &self.common_name
    }

    /// The organisational units of the subject, in order.
    pub fn units(&self) -> &[String] {
        &self.units
    }

    /// The DNS names and IP addresses that the certificate is for. They are read each time: nobody needs them of
    /// authorities, of which an organisation may define many.
    pub fn names(&self) -> Vec<String> {
        let (_, parsed) = X509Certificate::from_der(&self.der).expect("it was parsed before");
        let names = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(alternative) => Some(&alternative.general_names),
            _ => None,
        });
        names.into_iter().flatten().filter_map(name_text).collect()
    }

    /// Start of validity, in seconds since the Unix epoch.
    pub fn not_before(&self) -> i64 {
        self.not_before
    }

    /// End of validity, in seconds since the Unix epoch; the certificate is still valid in that second.
    pub fn not_after(&self) -> i64 {
        self.not_after
    }

    /// Whether the basic constraints say that this is an authority.
    pub fn is_authority(&self) -> bool {
        self.authority.is_some()
    }

    pub(crate) fn authority(&self) -> Option<AuthorityConstraints> {
        self.authority
    }

    pub(crate) fn may_sign_certificates(&self) -> bool {
        self.may_sign_certificates
    }

    pub(crate) fn usable_for_servers(&self) -> bool {
        self.usable_for_servers
    }

    pub(crate) fn subject_key_id(&self) -> Option<&Bytes> {
        self.subject_key_id.as_ref()
    }

    /// The serial number that its issuer gave it, big-endian, without leading zeroes.
    pub fn serial(&self) -> &[u8] {
        &self.serial
    }

    pub(crate) fn subject(&self) -> &Bytes {
        &self.subject
    }

    pub(crate) fn names_as_issuer(&self, issuer: &Certificate) -> bool {
        self.issuer == issuer.subject
    }

    pub(crate) fn is_self_issued(&self) -> bool {
        self.issuer == self.subject
    }

    pub(crate) fn is_valid_at(&self, seconds: i64) -> bool {
        self.not_before <= seconds && seconds <= self.not_after
    }

    /// Whether `issuer`'s key signed this certificate. Says nothing about whether `issuer` may.
    pub(crate) fn is_signed_by(&self, issuer: &Certificate) -> bool {
        issuer.key.verify_issued(self.algorithm, &self.signed_part, &self.signature).is_ok()
    }

    /// The DER with the issuer's signature in its canonical form: what Fabric hashes when it names a chain.
    pub(crate) fn canonical_der(&self, issuer: &PublicKey) -> Bytes {
        match issuer.canonical_issued(&self.signature) {
            Some(signature) => self.with_signature(&signature),
            None => self.der.clone(),
        }
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn with_signature(&self, signature: &[u8]) -> Bytes {
        let mut bits = Vec::with_capacity(signature.len() + 4);
        der::push_element(&mut bits, 0x03, &[&[0], signature]);
        let mut whole = Vec::with_capacity(self.der.len() + 8);
        der::push_element(&mut whole, 0x30, &[&self.signed_part, self.algorithm.identifier_der(), &bits]);
        whole.into()
    }

    /// The same certificate with the other signature of the pair.
    #[cfg(test)]
    pub(crate) fn with_flipped_signature(&self, curve: der::Curve) -> Certificate {
        let flipped = der::EcdsaSignature::parse(&self.signature).and_then(|signature| signature.flipped(curve));
        Certificate::from_der(self.with_signature(&flipped.expect("in range"))).expect("still a certificate")
    }
}

/// A list of the certificates that an authority took back.
#[derive(Clone, Debug)]
pub(crate) struct RevocationList {
    signed_part: Bytes,
    algorithm: CertificateSignature,
    signature: Bytes,
    authority_key_id: Bytes,
    /// Serial numbers without leading zeroes, sorted.
    serials: Vec<Vec<u8>>,
}

impl RevocationList {
    /// Reads a list in PEM or DER.
    pub(crate) fn parse(bytes: &Bytes) -> Result<RevocationList, Error> {
        let der = match bytes.starts_with(b"-----BEGIN") {
            true => pem_contents(bytes, "X509 CRL", REVOCATION_LIST_BYTES_MAX)?.into(),
            false => bytes.clone(),
        };
        if der.len() > REVOCATION_LIST_BYTES_MAX {
            return malformed("revocation list is too large");
        }
        // The library takes 200 bytes for each revoked certificate, so it is shown the list without them.
        let (entries, others) = take_revoked(&der).ok_or_else(no_list)?;
        if others.len() > CERTIFICATE_BYTES_MAX || has_too_many_elements(&others) {
            return malformed("revocation list has more about itself than any list has");
        }
        let (rest, parsed) = CertificateRevocationList::from_der(&others)
            .map_err(|e| Error::MalformedCertificate(format!("revocation list: {e}")))?;
        if !rest.is_empty() {
            return malformed("bytes follow the revocation list");
        }
        let authority_key_id = parsed.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
            _ => None,
        });
        let Some(authority_key_id) = authority_key_id else {
            return malformed("revocation list names no authority key");
        };
        let mut serials: Vec<Vec<u8>> = Vec::with_capacity(elements(entries).count());
        let mut left = entries;
        while !left.is_empty() {
            let entry_bytes = elements(left).next().map_or(0, |(whole, _)| whole.len());
            if entry_bytes > REVOKED_BYTES_MAX {
                return malformed("revocation list has an entry that is too large");
            }
            let (others, revoked) = RevokedCertificate::from_der(left)
                .map_err(|e| Error::MalformedCertificate(format!("revocation list: {e}")))?;
            serials.push(magnitude(revoked.raw_serial()).to_vec());
            left = others;
        }
        serials.sort_unstable();
        let signed_part = elements(content(&der).ok_or_else(no_list)?).next().ok_or_else(no_list)?.0;
        Ok(RevocationList {
            signed_part: der.slice_ref(signed_part),
            algorithm: signature_algorithm(&parsed.signature_algorithm)?,
            signature: Bytes::copy_from_slice(&parsed.signature_value.data),
            authority_key_id: Bytes::copy_from_slice(authority_key_id),
            serials,
        })
    }

    /// Whether `issuer` made this list and it names `certificate`. As Fabric does, it takes lists of authorities whose
    /// key usage does not mention lists: to heed them is the safe side.
    pub(crate) fn revokes(&self, certificate: &Certificate, issuer: &Certificate) -> bool {
        // The look-up is much cheaper than the signature.
        self.names_key_of(issuer) && self.names(&certificate.serial) && self.is_signed_by(issuer)
    }

    /// Whether `issuer` made this list.
    pub(crate) fn is_of(&self, issuer: &Certificate) -> bool {
        self.names_key_of(issuer) && self.is_signed_by(issuer)
    }

    /// Whether the list has this serial number, without leading zeroes.
    pub(crate) fn names(&self, serial: &[u8]) -> bool {
        self.serials.binary_search_by(|listed| listed.as_slice().cmp(serial)).is_ok()
    }

    fn names_key_of(&self, issuer: &Certificate) -> bool {
        issuer.subject_key_id.as_ref() == Some(&self.authority_key_id)
    }

    fn is_signed_by(&self, issuer: &Certificate) -> bool {
        issuer.key.verify_issued(self.algorithm, &self.signed_part, &self.signature).is_ok()
    }
}

fn no_list() -> Error {
    Error::MalformedCertificate("it is no revocation list".to_owned())
}

/// The elements of DER that stand one behind the other, as far as they are such: each whole, and what it is.
fn elements(bytes: &[u8]) -> impl Iterator<Item = (&[u8], Any<'_>)> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let (rest, any) = Any::from_der(left).ok()?;
        let whole = left.get(..left.len().checked_sub(rest.len())?)?;
        left = rest;
        Some((whole, any))
    })
}

/// What is in the one element that the bytes are.
fn content(bytes: &[u8]) -> Option<&[u8]> {
    elements(bytes).next().filter(|(whole, _)| whole.len() == bytes.len()).map(|(_, any)| any.data)
}

/// Whether there are more elements in the bytes than in any certificate: within one another, and within octet strings, in which
/// extensions are.
fn has_too_many_elements(bytes: &[u8]) -> bool {
    let mut left = ELEMENTS_FREE.saturating_add(bytes.len() / ELEMENT_BYTES_MIN);
    let mut levels = vec![bytes];
    while let Some(level) = levels.pop() {
        for (_, any) in elements(level) {
            match left.checked_sub(1) {
                Some(fewer) => left = fewer,
                None => return true,
            }
            if any.header.is_constructed() || any.tag() == Tag::OctetString {
                levels.push(any.data.as_ref());
            }
        }
    }
    false
}

/// The revoked certificates of a revocation list, one behind the other, and the list without them. They stand in the sequence
/// behind the times.
fn take_revoked(der: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let mut outer = elements(content(der)?);
    let signed = outer.next()?.1.data;
    let mut after_a_time = false;
    let revoked = elements(signed).find(|(_, any)| {
        let found = after_a_time && any.tag() == Tag::Sequence;
        after_a_time = matches!(any.tag(), Tag::UtcTime | Tag::GeneralizedTime);
        found
    });
    let Some((whole, entries)) = revoked else { return Some((&[], der.to_vec())) };
    let entries = entries.data;
    let start = whole.as_ptr().addr().checked_sub(signed.as_ptr().addr())?;
    let (before, behind) = (signed.get(..start)?, signed.get(start.checked_add(whole.len())?..)?);
    let mut without = Vec::with_capacity(before.len().saturating_add(behind.len()).saturating_add(8));
    der::push_element(&mut without, 0x30, &[before, behind]);
    let mut list = Vec::with_capacity(der.len().saturating_sub(whole.len()).saturating_add(16));
    let parts: Vec<&[u8]> = std::iter::once(&without[..]).chain(outer.map(|(whole, ..)| whole)).take(4).collect();
    der::push_element(&mut list, 0x30, &parts);
    Some((entries, list))
}

/// The extensions that matter to us, with the meaning of their absence filled in.
struct CertificateExtensions<'a> {
    authority: Option<AuthorityConstraints>,
    may_sign_certificates: bool,
    usable_for_servers: bool,
    subject_key_id: Option<&'a [u8]>,
}

impl<'a> CertificateExtensions<'a> {
    fn read(extensions: &'a [X509Extension<'a>]) -> Result<Self, Error> {
        let mut read = CertificateExtensions {
            authority: None,
            may_sign_certificates: true,
            usable_for_servers: true,
            subject_key_id: None,
        };
        for (position, extension) in extensions.iter().enumerate() {
            if extensions[..position].iter().any(|earlier| earlier.oid == extension.oid) {
                return malformed("an extension occurs twice");
            }
            match extension.parsed_extension() {
                ParsedExtension::BasicConstraints(constraints) if constraints.ca => {
                    read.authority = Some(AuthorityConstraints { path_length: constraints.path_len_constraint });
                }
                ParsedExtension::BasicConstraints(_) => {}
                ParsedExtension::KeyUsage(usage) => {
                    read.may_sign_certificates = usage.key_cert_sign();
                }
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    // Fabric validates chains for server authentication, for any holder.
                    read.usable_for_servers = usage.any || usage.server_auth;
                }
                ParsedExtension::SubjectKeyIdentifier(id) => read.subject_key_id = Some(id.0),
                ParsedExtension::SubjectAlternativeName(_) | ParsedExtension::AuthorityKeyIdentifier(_) => {}
                ParsedExtension::NameConstraints(_) => return malformed("name constraints are not supported"),
                ParsedExtension::ParseError { .. } => return malformed("an extension cannot be parsed"),
                _ if extension.critical => return malformed("an unknown extension is critical"),
                _ => {}
            }
        }
        Ok(read)
    }
}

fn malformed<T>(reason: &str) -> Result<T, Error> {
    Err(Error::MalformedCertificate(reason.to_owned()))
}

/// The contents of the first PEM block, which must have this label.
pub(crate) fn pem_contents(text: &[u8], label: &str, bytes_max: usize) -> Result<Vec<u8>, Error> {
    // Base64 takes 4 bytes for 3, its line ends some more; there may be another block, such as a chain, behind the first.
    let text = &text[..text.len().min(bytes_max.saturating_mul(2).saturating_add(1024))];
    let block = ::pem::parse(text).map_err(|e| Error::MalformedCertificate(format!("not PEM: {e}")))?;
    if block.tag() != label {
        return malformed("the PEM block is of another kind");
    }
    Ok(block.into_contents())
}

/// An unsigned big-endian number without its leading zeroes.
pub(crate) fn magnitude(bytes: &[u8]) -> &[u8] {
    let zeroes = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeroes..]
}

fn attribute_texts(name: &X509Name<'_>, oid: &oids::Oid<'static>) -> Vec<String> {
    let mut texts: Vec<String> = name
        .iter_attributes()
        .filter(|attribute| attribute.attr_type() == oid)
        .filter_map(|attribute| attribute.as_str().ok().map(str::to_owned))
        .collect();
    // A certificate keeps them, and most have one.
    texts.shrink_to_fit();
    texts
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(address) => match <[u8; 4]>::try_from(*address) {
            Ok(v4) => Some(std::net::Ipv4Addr::from(v4).to_string()),
            Err(_) => <[u8; 16]>::try_from(*address).ok().map(|v6| std::net::Ipv6Addr::from(v6).to_string()),
        },
        _ => None,
    }
}

fn public_key(info: &SubjectPublicKeyInfo<'_>) -> Result<PublicKey, Error> {
    let algorithm = &info.algorithm;
    let curve = || algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    let kind = if algorithm.algorithm == oids::OID_KEY_TYPE_EC_PUBLIC_KEY {
        match curve() {
            Some(curve) if curve == oids::OID_EC_P256 => KeyKind::P256,
            Some(curve) if curve == oids::OID_NIST_EC_P384 => KeyKind::P384,
            other => return Err(Error::UnsupportedAlgorithm(format!("elliptic curve {other:?}"))),
        }
    } else if algorithm.algorithm == oids::OID_SIG_ED25519 && algorithm.parameters.is_none() {
        KeyKind::Ed25519
    } else {
        return Err(Error::UnsupportedAlgorithm(algorithm.algorithm.to_id_string()));
    };
    PublicKey::new(kind, &info.subject_public_key.data)
}

fn signature_algorithm(identifier: &AlgorithmIdentifier<'_>) -> Result<CertificateSignature, Error> {
    use CertificateSignature as By;
    let by = [
        (&oids::OID_SIG_ECDSA_WITH_SHA256, By::EcdsaSha256),
        (&oids::OID_SIG_ECDSA_WITH_SHA384, By::EcdsaSha384),
        (&oids::OID_SIG_ECDSA_WITH_SHA512, By::EcdsaSha512),
        (&oids::OID_SIG_ED25519, By::Ed25519),
    ];
    by.into_iter()
        .find(|(oid, _)| **oid == identifier.algorithm && absent(identifier.parameters.as_ref()))
        .map(|(_, by)| by)
        .ok_or_else(|| Error::UnsupportedAlgorithm(identifier.algorithm.to_id_string()))
}

fn absent(parameters: Option<&Any<'_>>) -> bool {
    parameters.is_none()
}

/// A PEM block as Fabric's tools write it.
pub fn to_pem(label: &str, contents: &[u8]) -> String {
    let config = ::pem::EncodeConfig::new().set_line_ending(::pem::LineEnding::LF);
    ::pem::encode_config(&::pem::Pem::new(label, contents), config)
}
