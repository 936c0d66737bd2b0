//! A certificate authority of a network that Heddle sets up: it issues certificates and revocation lists.

use std::sync::Arc;

use bytes::Bytes;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyUsagePurpose, PublicKeyData, RevokedCertParams,
    SerialNumber, SignatureAlgorithm, SigningKey,
};
use time::OffsetDateTime;

use crate::certificate::{self, Certificate};
use crate::digest::{Hash, sha256};
use crate::error::Error;
use crate::key::{KeyKind, PrivateKey, SeededKey};

/// How long before the present a certificate begins to be valid, so that clocks may differ, in seconds.
const BACKDATED_SECONDS: i64 = 5 * 60;
/// How long a certificate is valid, in seconds: ten years, as `cryptogen` has it.
const VALID_SECONDS: i64 = 10 * 365 * 24 * 3600;
/// Validity in simulation: from 2020 to 2100, so that it holds whatever a simulated clock shows.
const SEEDED_NOT_BEFORE: i64 = 1_577_836_800;
const SEEDED_NOT_AFTER: i64 = 4_102_444_800;
/// The length of a serial number in bytes; its first bit is zero, so that it stays positive.
const SERIAL_BYTES: usize = 16;

/// How an authority makes keys and how long its certificates are valid.
#[derive(Clone)]
pub struct CertificateTerms {
    kind: KeyKind,
    not_before: i64,
    not_after: i64,
    seed: Option<Hash>,
    /// What makes a key of a seed; Ed25519 keys if there is none.
    keys: Option<SeededKeys>,
}

/// Makes the key on P-256 of a seed.
pub type SeededKeys = fn(&[u8; 32]) -> Arc<dyn SeededKey>;

impl CertificateTerms {
    /// Keys of this kind from the operating system's randomness, valid for ten years from now.
    pub fn starting_now(kind: KeyKind) -> CertificateTerms {
        let now = i64::try_from(base::rt::wall_now().seconds()).expect("clocks show less than 2^63 s");
        CertificateTerms::valid(kind, now - BACKDATED_SECONDS, now + VALID_SECONDS)
    }

    /// Keys of this kind from the operating system's randomness, with this validity in seconds since the Unix epoch.
    pub fn valid(kind: KeyKind, not_before: i64, not_after: i64) -> CertificateTerms {
        CertificateTerms { kind, not_before, not_after, seed: None, keys: None }
    }

    /// Ed25519 keys that follow from this seed and the holder's name: for simulation. Anybody who knows the seed has the keys.
    pub fn seeded(seed: [u8; 32]) -> CertificateTerms {
        CertificateTerms {
            kind: KeyKind::Ed25519,
            not_before: SEEDED_NOT_BEFORE,
            not_after: SEEDED_NOT_AFTER,
            seed: Some(seed),
            keys: None,
        }
    }

    /// As [`CertificateTerms::seeded`], with the keys on P-256 that this makes. Nothing but a simulation may do so.
    pub fn seeded_with(seed: [u8; 32], keys: SeededKeys) -> CertificateTerms {
        assert!(base::rt::is_simulation(), "only a simulation has keys whose signatures follow from a seed");
        CertificateTerms { kind: KeyKind::P256, keys: Some(keys), ..CertificateTerms::seeded(seed) }
    }

    /// The same terms with the kind of key that every TLS client knows; seeded ones stay as they are.
    pub(super) fn for_tls(&self) -> CertificateTerms {
        match self.seed {
            Some(seed) => CertificateTerms { seed: Some(sha256([&seed[..], b"tls"])), ..self.clone() },
            None => CertificateTerms { kind: KeyKind::P256, ..self.clone() },
        }
    }

    fn key(&self, name: &str) -> Result<PrivateKey, Error> {
        match &self.seed {
            Some(seed) => {
                let seed = sha256([&seed[..], b"key", name.as_bytes()]);
                match self.keys {
                    Some(keys) => Ok(PrivateKey::Seeded(keys(&seed))),
                    None => PrivateKey::from_seed(&seed),
                }
            }
            None => PrivateKey::generate(self.kind),
        }
    }

    fn serial(&self, name: &str) -> SerialNumber {
        let mut serial = [0; SERIAL_BYTES];
        match &self.seed {
            Some(seed) => serial.copy_from_slice(&sha256([&seed[..], b"serial", name.as_bytes()])[..SERIAL_BYTES]),
            None => base::rt::fill_random(&mut serial),
        }
        // Positive, and without leading zeroes that an encoding would drop.
        serial[0] = serial[0] & 0x7f | 0x40;
        SerialNumber::from_slice(&serial)
    }
}

impl std::fmt::Debug for CertificateTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let origin = if self.seed.is_some() { "seeded" } else { "random" };
        write!(f, "Terms({:?}, {origin}, {}..{})", self.kind, self.not_before, self.not_after)
    }
}

/// What a certificate is for.
#[derive(Clone, Debug)]
pub enum CertificatePurpose<'a> {
    /// An identity of a channel, marked by an organisational unit.
    Identity {
        /// The unit.
        unit: &'a str,
    },
    /// A TLS server and client.
    Tls {
        /// DNS names and IP addresses.
        hosts: &'a [String],
    },
}

/// An authority with its private key.
#[derive(Debug)]
pub struct CertificateAuthority {
    terms: CertificateTerms,
    certificate: Certificate,
    certificate_pem: Bytes,
    key: PrivateKey,
}

impl CertificateAuthority {
    /// Makes a root authority.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn root(
        common_name: &str,
        organization: &str,
        terms: &CertificateTerms,
    ) -> Result<CertificateAuthority, Error> {
        let key = terms.key(common_name)?;
        let params = authority_params(common_name, organization, terms, &key);
        let certificate = params.self_signed(&SigningKeyRef(&key)).map_err(failed)?;
        CertificateAuthority::new(terms.clone(), certificate.pem().into(), key)
    }

    /// Makes an authority below this one.
    ///
    /// # Errors
    /// [`Error::Issue`], [`Error::PrivateKey`].
    pub fn intermediate(&self, common_name: &str, organization: &str) -> Result<CertificateAuthority, Error> {
        let key = self.terms.key(common_name)?;
        let params = authority_params(common_name, organization, &self.terms, &key);
        let certificate = params.signed_by(&SigningKeyRef(&key), &self.issuer()?).map_err(failed)?;
        CertificateAuthority::new(self.terms.clone(), certificate.pem().into(), key)
    }

    pub(super) fn new(
        terms: CertificateTerms,
        certificate_pem: Bytes,
        key: PrivateKey,
    ) -> Result<CertificateAuthority, Error> {
        let certificate = Certificate::from_pem(&certificate_pem)?;
        if certificate.key().as_bytes() != key.public_bytes() {
            return Err(Error::PrivateKey("it is not the authority's"));
        }
        let certificate_pem = certificate::to_pem("CERTIFICATE", certificate.der()).into();
        Ok(CertificateAuthority { terms, certificate, certificate_pem, key })
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// The authority's certificate in PEM.
    pub fn certificate_pem(&self) -> &Bytes {
        &self.certificate_pem
    }

    pub(super) fn key_pem(&self) -> Result<String, Error> {
        Ok(certificate::to_pem("PRIVATE KEY", &self.key.to_pkcs8()?))
    }

    /// Issues a certificate in PEM for a new key.
    pub(crate) fn issue(
        &self,
        common_name: &str,
        purpose: &CertificatePurpose<'_>,
    ) -> Result<(Bytes, PrivateKey), Error> {
        let (label, hosts) = match purpose {
            CertificatePurpose::Identity { unit } => (format!("{unit} {common_name}"), Vec::new()),
            CertificatePurpose::Tls { hosts } => (format!("tls {common_name}"), distinct(hosts)),
        };
        let key = self.terms.key(&label)?;
        let mut params = CertificateParams::new(hosts).map_err(failed)?;
        fill(&mut params, &label, &self.terms);
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        match purpose {
            CertificatePurpose::Identity { unit } => {
                params.distinguished_name.push(DnType::OrganizationalUnitName, *unit);
            }
            CertificatePurpose::Tls { .. } => {
                params.key_usages.push(KeyUsagePurpose::KeyEncipherment);
                params.extended_key_usages =
                    vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            }
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        let certificate = params.signed_by(&SigningKeyRef(&key), &self.issuer()?).map_err(failed)?;
        Ok((certificate.pem().into(), key))
    }

    /// Makes the list, in PEM, of certificates that this authority revokes.
    ///
    /// # Errors
    /// [`Error::Issue`].
    pub fn revoke(&self, certificates: &[&Certificate]) -> Result<Bytes, Error> {
        let at = moment(self.terms.not_before)?;
        let revoked = certificates.iter().map(|certificate| RevokedCertParams {
            serial_number: SerialNumber::from_slice(certificate.serial()),
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: at,
            next_update: moment(self.terms.not_after)?,
            crl_number: SerialNumber::from_slice(&[1]),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: self.key_id_method(),
        };
        Ok(params.signed_by(&self.issuer()?).and_then(|list| list.pem()).map_err(failed)?.into())
    }

    /// Lets a test sign with a certificate that is no authority's.
    #[cfg(test)]
    pub(crate) fn new_for_tests(
        terms: CertificateTerms,
        certificate_pem: Bytes,
        key: PrivateKey,
    ) -> CertificateAuthority {
        CertificateAuthority::new(terms, certificate_pem, key).expect("key and certificate belong together")
    }

    /// Issues a certificate whose parameters a test has changed.
    #[cfg(test)]
    pub(crate) fn issue_with(
        &self,
        common_name: &str,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> (Bytes, PrivateKey) {
        let key = self.terms.key(common_name).expect("a key");
        let mut params = CertificateParams::default();
        fill(&mut params, common_name, &self.terms);
        params.distinguished_name.push(DnType::CommonName, common_name);
        edit(&mut params);
        let issuer = self.issuer().expect("an issuer");
        (params.signed_by(&SigningKeyRef(&key), &issuer).expect("signed").pem().into(), key)
    }

    /// Makes an authority below this one whose parameters a test has changed.
    #[cfg(test)]
    pub(crate) fn intermediate_with(
        &self,
        common_name: &str,
        edit: impl FnOnce(&mut CertificateParams),
    ) -> CertificateAuthority {
        let key = self.terms.key(common_name).expect("a key");
        let mut params = authority_params(common_name, "test", &self.terms, &key);
        edit(&mut params);
        let certificate = params.signed_by(&SigningKeyRef(&key), &self.issuer().expect("an issuer")).expect("signed");
        CertificateAuthority::new(self.terms.clone(), certificate.pem().into(), key).expect("an authority")
    }

    fn issuer(&self) -> Result<Issuer<'static, SigningKeyRef<'_>>, Error> {
        let der = self.certificate.der().to_vec().into();
        Issuer::from_ca_cert_der(&der, SigningKeyRef(&self.key)).map_err(failed)
    }

    fn key_id_method(&self) -> KeyIdMethod {
        KeyIdMethod::PreSpecified(self.certificate.subject_key_id().map(|id| id.to_vec()).unwrap_or_default())
    }
}

fn authority_params(
    common_name: &str,
    organization: &str,
    terms: &CertificateTerms,
    key: &PrivateKey,
) -> CertificateParams {
    let mut params = CertificateParams::default();
    fill(&mut params, common_name, terms);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.use_authority_key_identifier_extension = false;
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
        KeyUsagePurpose::CrlSign,
    ];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    // As cryptogen does: the digest of the public key.
    params.key_identifier_method = KeyIdMethod::PreSpecified(sha256([key.public_bytes()]).to_vec());
    params.distinguished_name.push(DnType::OrganizationName, organization);
    params.distinguished_name.push(DnType::CommonName, common_name);
    params
}

fn fill(params: &mut CertificateParams, label: &str, terms: &CertificateTerms) {
    params.distinguished_name = DistinguishedName::new();
    params.serial_number = Some(terms.serial(label));
    params.not_before = moment(terms.not_before).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    params.not_after = moment(terms.not_after).unwrap_or(OffsetDateTime::UNIX_EPOCH);
}

fn moment(seconds: i64) -> Result<OffsetDateTime, Error> {
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| Error::Issue("validity is out of range".to_owned()))
}

fn distinct(hosts: &[String]) -> Vec<String> {
    let mut seen: Vec<String> = Vec::new();
    for host in hosts {
        if !seen.contains(host) {
            seen.push(host.clone());
        }
    }
    seen
}

fn failed(error: rcgen::Error) -> Error {
    Error::Issue(error.to_string())
}

/// A private key as the certificate writer sees it. Its signatures have a low S, as Fabric's own tools make them.
struct SigningKeyRef<'a>(&'a PrivateKey);

impl PublicKeyData for SigningKeyRef<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0.public_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match self.0.kind() {
            KeyKind::P256 => &rcgen::PKCS_ECDSA_P256_SHA256,
            KeyKind::P384 => &rcgen::PKCS_ECDSA_P384_SHA384,
            KeyKind::Ed25519 => &rcgen::PKCS_ED25519,
        }
    }
}

impl SigningKey for SigningKeyRef<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.sign_issued(message).to_vec())
    }
}
