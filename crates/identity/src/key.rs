//! Public and private keys of the three kinds that Fabric's clients use, and the signature scheme of each kind.
//!
//! * P-256 and P-384: ECDSA over the SHA-256 digest of the message, in DER, with low S. Fabric hashes with its MSP's
//!   hash family (SHA-256) on every curve, and so do its SDKs. A P-384 key therefore signs a SHA-256 digest here, not a
//!   SHA-384 digest.
//! * Ed25519: a signature over the message itself.
//!
//! Signatures of certificates are the exception: they follow X.509 and use the hash that their algorithm identifier
//! names. A high S is tolerated in them, because authorities outside this system make them.
//!
//! A public key is parsed once and stored in parsed form. [`crate::verifier`] verifies the signatures of messages.

use std::sync::Arc;

use aws_lc_rs::digest::{self, Digest};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair as _, ParsedPublicKey, UnparsedPublicKey,
    VerificationAlgorithm,
};
use bytes::Bytes;

use crate::der::{Curve, EcdsaSignature};
use crate::digest::Sha256;
use crate::error::Error;
use crate::event;
use crate::memo;
use crate::verifier::TabledKey;

/// The kinds of key that identities may hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KeyKind {
    /// ECDSA on NIST P-256, Fabric's default.
    P256,
    /// ECDSA on NIST P-384.
    P384,
    /// Ed25519, the only kind whose signatures are the same on every run, except for [`SeededKey`]s.
    Ed25519,
}

impl KeyKind {
    pub(crate) fn curve(self) -> Option<Curve> {
        match self {
            KeyKind::P256 => Some(Curve::P256),
            KeyKind::P384 => Some(Curve::P384),
            KeyKind::Ed25519 => None,
        }
    }

    /// How this kind of key signs messages.
    fn message_algorithm(self) -> &'static dyn VerificationAlgorithm {
        match self {
            KeyKind::P256 => &signature::ECDSA_P256_SHA256_ASN1,
            KeyKind::P384 => &signature::ECDSA_P384_SHA256_ASN1,
            KeyKind::Ed25519 => &signature::ED25519,
        }
    }

    /// The length of the key as a certificate holds it, in bytes.
    const fn point_bytes(self) -> usize {
        match self {
            KeyKind::P256 => 1 + 2 * 32,
            KeyKind::P384 => 1 + 2 * 48,
            KeyKind::Ed25519 => 32,
        }
    }
}

/// How a certificate or a revocation list is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CertificateSignature {
    EcdsaSha256,
    EcdsaSha384,
    EcdsaSha512,
    Ed25519,
}

impl CertificateSignature {
    /// The algorithm identifier in DER: a sequence of one object identifier, without parameters.
    pub(crate) const fn identifier_der(self) -> &'static [u8] {
        match self {
            CertificateSignature::EcdsaSha256 => &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
            CertificateSignature::EcdsaSha384 => &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
            CertificateSignature::EcdsaSha512 => &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4],
            CertificateSignature::Ed25519 => &[0x30, 5, 6, 3, 0x2b, 0x65, 0x70],
        }
    }
}

/// A public key, parsed and ready to verify.
#[derive(Clone)]
pub struct PublicKey {
    kind: KeyKind,
    parsed: ParsedPublicKey,
    /// Of keys on P-256.
    tabled: Option<TabledKey>,
}

impl PublicKey {
    /// Takes the key as a certificate's subjectPublicKey holds it: an uncompressed point, or 32 bytes of Ed25519.
    pub(crate) fn new(kind: KeyKind, point: &[u8]) -> Result<PublicKey, Error> {
        const UNCOMPRESSED: u8 = 4;
        let malformed = || Error::MalformedCertificate(format!("public key is not a {kind:?} key"));
        if point.len() != kind.point_bytes() || (kind != KeyKind::Ed25519 && point[0] != UNCOMPRESSED) {
            return Err(malformed());
        }
        let parsed = ParsedPublicKey::new(kind.message_algorithm(), point).map_err(|_| malformed())?;
        let tabled = if kind == KeyKind::P256 { TabledKey::new(point) } else { None };
        Ok(PublicKey { kind, parsed, tabled })
    }

    /// The kind of key.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The key as a certificate's subjectPublicKey holds it.
    pub fn as_bytes(&self) -> &[u8] {
        self.parsed.as_ref()
    }

    /// The key as [`Verifier::Tables`](crate::Verifier::Tables) uses it.
    pub(crate) fn tabled(&self) -> Option<&TabledKey> {
        self.tabled.as_ref()
    }

    /// Whether the library finds a signature of this message right.
    pub(crate) fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        self.parsed.verify_sig(message, signature).is_ok()
    }

    /// Whether the library finds a signature of a message with this digest right.
    pub(crate) fn verifies_digest(&self, digest: &Digest, signature: &[u8]) -> bool {
        self.parsed.verify_digest_sig(digest, signature).is_ok()
    }

    /// Checks the signature of a certificate or of a revocation list that this key's owner issued.
    pub(crate) fn verify_issued(
        &self,
        algorithm: CertificateSignature,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), Error> {
        use CertificateSignature as By;
        let scheme = memo::SCHEME_CERTIFICATE + algorithm as u8;
        let algorithm: &'static dyn VerificationAlgorithm = match (self.kind, algorithm) {
            (KeyKind::P256, By::EcdsaSha256) => &signature::ECDSA_P256_SHA256_ASN1,
            (KeyKind::P256, By::EcdsaSha384) => &signature::ECDSA_P256_SHA384_ASN1,
            (KeyKind::P256, By::EcdsaSha512) => &signature::ECDSA_P256_SHA512_ASN1,
            (KeyKind::P384, By::EcdsaSha256) => &signature::ECDSA_P384_SHA256_ASN1,
            (KeyKind::P384, By::EcdsaSha384) => &signature::ECDSA_P384_SHA384_ASN1,
            (KeyKind::P384, By::EcdsaSha512) => &signature::ECDSA_P384_SHA512_ASN1,
            (KeyKind::Ed25519, By::Ed25519) => &signature::ED25519,
            _ => return Err(Error::WrongSignature),
        };
        let key = UnparsedPublicKey::new(algorithm, self.as_bytes());
        let check = || key.verify(message, signature).is_ok();
        let is_right = memo::verdict(scheme, self.as_bytes(), &[message], signature, check);
        is_right.then_some(()).ok_or(Error::WrongSignature)
    }

    /// A certificate's signature by this key with its S lowered, or nothing when it already is canonical.
    pub(crate) fn canonical_issued(&self, signature: &[u8]) -> Option<Vec<u8>> {
        EcdsaSignature::parse(signature)?.lowered(self.kind.curve()?)
    }
}

impl PartialEq for PublicKey {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.as_bytes() == other.as_bytes()
    }
}

impl Eq for PublicKey {}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({:?} {})", self.kind, hex::encode(self.as_bytes()))
    }
}

/// A key on P-256 whose signatures follow from what is signed, for simulation: the library's differ from run to run.
pub trait SeededKey: Send + Sync {
    /// The uncompressed public point.
    fn point(&self) -> &[u8];

    /// Signs a SHA-256 digest: DER, with low S.
    fn sign(&self, digest: &[u8; 32]) -> Bytes;
}

/// A private key. Its bytes are never shown; its memory is wiped by the library that holds it.
pub(crate) enum PrivateKey {
    P256(EcdsaKeyPair),
    P384(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
    /// Of a simulation.
    Seeded(Arc<dyn SeededKey>),
}

impl PrivateKey {
    /// Makes a key of this kind from the operating system's randomness. Never used in simulation.
    pub(crate) fn generate(kind: KeyKind) -> Result<PrivateKey, Error> {
        let failed = |_| Error::PrivateKey("key generation failed");
        Ok(match kind {
            KeyKind::P256 => PrivateKey::P256(EcdsaKeyPair::generate(P256_SIGNING).map_err(failed)?),
            KeyKind::P384 => PrivateKey::P384(EcdsaKeyPair::generate(P384_SIGNING).map_err(failed)?),
            KeyKind::Ed25519 => PrivateKey::Ed25519(Ed25519KeyPair::generate().map_err(failed)?),
        })
    }

    /// The Ed25519 key of a seed.
    pub(crate) fn from_seed(seed: &[u8; 32]) -> Result<PrivateKey, Error> {
        Ed25519KeyPair::from_seed_unchecked(seed)
            .map(PrivateKey::Ed25519)
            .map_err(|_| Error::PrivateKey("not an Ed25519 seed"))
    }

    /// Reads PKCS#8 (any kind) or SEC1 (the curves), in DER.
    pub(crate) fn from_der(der: &[u8]) -> Result<PrivateKey, Error> {
        if let Ok(key) = EcdsaKeyPair::from_private_key_der(P256_SIGNING, der) {
            return Ok(PrivateKey::P256(key));
        }
        if let Ok(key) = EcdsaKeyPair::from_private_key_der(P384_SIGNING, der) {
            return Ok(PrivateKey::P384(key));
        }
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(der)
            .map(PrivateKey::Ed25519)
            .map_err(|_| Error::PrivateKey("neither a P-256, a P-384 nor an Ed25519 key"))
    }

    /// The key as PKCS#8 version 1 in DER, the form that Fabric's tools read.
    pub(crate) fn to_pkcs8(&self) -> Result<Vec<u8>, Error> {
        let document = match self {
            PrivateKey::P256(pair) | PrivateKey::P384(pair) => pair.to_pkcs8v1(),
            PrivateKey::Ed25519(pair) => pair.to_pkcs8v1(),
            PrivateKey::Seeded(_) => return Err(Error::PrivateKey("it is a simulation's")),
        };
        Ok(document.map_err(|_| Error::PrivateKey("cannot be exported"))?.as_ref().to_vec())
    }

    pub(crate) fn kind(&self) -> KeyKind {
        match self {
            PrivateKey::P256(_) | PrivateKey::Seeded(_) => KeyKind::P256,
            PrivateKey::P384(_) => KeyKind::P384,
            PrivateKey::Ed25519(_) => KeyKind::Ed25519,
        }
    }

    /// The public key as a certificate's subjectPublicKey holds it.
    pub(crate) fn public_bytes(&self) -> &[u8] {
        match self {
            PrivateKey::P256(pair) | PrivateKey::P384(pair) => pair.public_key().as_ref(),
            PrivateKey::Ed25519(pair) => pair.public_key().as_ref(),
            PrivateKey::Seeded(key) => key.point(),
        }
    }

    /// Signs the message that these slices make end to end, as Fabric expects messages to be signed.
    pub(crate) fn sign(&self, message: &[&[u8]]) -> Bytes {
        event::SignatureMade.add(1);
        match self {
            PrivateKey::P256(pair) => ecdsa(pair, Curve::P256, &sha256_digest(message)),
            PrivateKey::P384(pair) => ecdsa(pair, Curve::P384, &widened_sha256_digest(message)),
            PrivateKey::Seeded(key) => {
                key.sign(sha256_digest(message).as_ref().try_into().expect("a digest of SHA-256 has 32 bytes"))
            }
            PrivateKey::Ed25519(pair) => Bytes::copy_from_slice(
                match message {
                    [whole] => pair.sign(whole),
                    parts => pair.sign(&parts.concat()),
                }
                .as_ref(),
            ),
        }
    }

    /// Signs a certificate or revocation list: as [`PrivateKey::sign`], but P-384 hashes with SHA-384, as X.509 wants.
    pub(crate) fn sign_issued(&self, message: &[u8]) -> Bytes {
        match self {
            PrivateKey::P384(pair) => ecdsa(pair, Curve::P384, &digest::digest(&digest::SHA384, message)),
            PrivateKey::P256(_) | PrivateKey::Ed25519(_) | PrivateKey::Seeded(_) => self.sign(&[message]),
        }
    }
}

impl std::fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PrivateKey({:?})", self.kind())
    }
}

const P256_SIGNING: &EcdsaSigningAlgorithm = &signature::ECDSA_P256_SHA256_ASN1_SIGNING;
const P384_SIGNING: &EcdsaSigningAlgorithm = &signature::ECDSA_P384_SHA384_ASN1_SIGNING;

fn sha256_digest(message: &[&[u8]]) -> Digest {
    let mut hasher = Sha256::new();
    message.iter().for_each(|part| hasher.update(part));
    hasher.finish_digest()
}

/// The SHA-256 digest as a 48-byte number. ECDSA signs the number that the leftmost bytes of a digest spell, so leading
/// zeroes change nothing, and a library that signs 48-byte digests alone signs this one as if it had 32.
fn widened_sha256_digest(message: &[&[u8]]) -> Digest {
    let mut wide = [0u8; 48];
    wide[16..].copy_from_slice(sha256_digest(message).as_ref());
    Digest::import_less_safe(&wide, &digest::SHA384).expect("SHA-384 digests are 48 bytes long")
}

fn ecdsa(pair: &EcdsaKeyPair, curve: Curve, digest: &Digest) -> Bytes {
    let made = pair.sign_digest(digest).expect("signing with a valid key and digest does not fail");
    let parsed = EcdsaSignature::parse(made.as_ref()).expect("the library makes strict signatures");
    match parsed.lowered(curve) {
        Some(lowered) => lowered.into(),
        None => Bytes::copy_from_slice(made.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verifier::{SignatureClaim, SignatureVerifier};

    const KINDS: [KeyKind; 3] = [KeyKind::P256, KeyKind::P384, KeyKind::Ed25519];

    fn verify(key: &PublicKey, parts: &[&[u8]], signature: &[u8]) -> Result<(), Error> {
        let mut message: [&[u8]; 3] = [&[]; 3];
        message[..parts.len()].copy_from_slice(parts);
        let claim = SignatureClaim { key, message, signature };
        let by_library = SignatureVerifier::Library.verify(&claim);
        assert_eq!(SignatureVerifier::Tables.verify(&claim), by_library);
        by_library
    }

    fn pair(kind: KeyKind) -> (PrivateKey, PublicKey) {
        let private = PrivateKey::generate(kind).expect("generated");
        let public = PublicKey::new(kind, private.public_bytes()).expect("a generated key is valid");
        (private, public)
    }

    #[test]
    fn every_signature_is_canonical_and_verifies_however_the_message_is_sliced() {
        for kind in KINDS {
            let (private, public) = pair(kind);
            for round in 0..16u8 {
                let message = [round; 100];
                let signature = private.sign(&[&message[..40], &message[40..]]);
                assert_eq!(verify(&public, &[&message], &signature), Ok(()), "{kind:?}");
                assert_eq!(verify(&public, &[&message[..1], b"", &message[1..]], &signature), Ok(()), "{kind:?}");
                assert_eq!(verify(&public, &[&message[1..]], &signature), Err(Error::WrongSignature), "{kind:?}");
            }
        }
    }

    #[test]
    fn the_high_twin_of_a_signature_is_refused() {
        for (kind, curve) in [(KeyKind::P256, Curve::P256), (KeyKind::P384, Curve::P384)] {
            let (private, public) = pair(kind);
            let low = private.sign(&[b"message"]);
            let high = EcdsaSignature::parse(&low).and_then(|s| s.flipped(curve)).expect("in range");
            assert_eq!(verify(&public, &[b"message"], &high), Err(Error::HighS));
            // It is a mathematically good signature all the same: a certificate signed so is taken.
            let issued = private.sign_issued(b"certificate");
            let high = EcdsaSignature::parse(&issued).and_then(|s| s.flipped(curve)).expect("in range");
            let algorithm = match kind {
                KeyKind::P384 => CertificateSignature::EcdsaSha384,
                _ => CertificateSignature::EcdsaSha256,
            };
            assert_eq!(public.verify_issued(algorithm, b"certificate", &high), Ok(()));
            assert_eq!(public.canonical_issued(&high).as_deref(), Some(&issued[..]));
        }
    }

    #[test]
    fn p384_signs_a_sha256_digest() {
        let (private, public) = pair(KeyKind::P384);
        let signature = private.sign(&[b"message"]);
        let by = |algorithm| public.verify_issued(algorithm, b"message", &signature);
        assert_eq!(by(CertificateSignature::EcdsaSha256), Ok(()));
        assert_eq!(by(CertificateSignature::EcdsaSha384), Err(Error::WrongSignature));
    }

    #[test]
    fn private_keys_survive_pkcs8() {
        for kind in KINDS {
            let (private, public) = pair(kind);
            let again = PrivateKey::from_der(&private.to_pkcs8().expect("exported")).expect("read back");
            assert_eq!(again.kind(), kind);
            assert_eq!(verify(&public, &[b"m"], &again.sign(&[b"m"])), Ok(()));
        }
    }

    #[test]
    fn a_seed_always_signs_the_same() {
        let sign = || PrivateKey::from_seed(&[7; 32]).expect("a seed").sign(&[b"message"]);
        assert_eq!(sign(), sign());
    }

    #[test]
    fn points_of_another_form_are_refused() {
        let (private, _) = pair(KeyKind::P256);
        let point = private.public_bytes();
        let mut compressed = vec![2 + (point[64] & 1)];
        compressed.extend_from_slice(&point[1..33]);
        let mut off_curve = point.to_vec();
        off_curve[64] ^= 1;
        for bad in [&compressed[..], &off_curve, &point[..64], b""] {
            assert!(PublicKey::new(KeyKind::P256, bad).is_err());
        }
    }
}
