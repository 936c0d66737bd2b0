//! A signing identity: a certificate and its private key.

use std::sync::Arc;

use base::MspId;
use bytes::Bytes;

use crate::certificate::{self, Certificate};
use crate::error::Error;
use crate::key::{KeyKind, PrivateKey};
use crate::msp::encode_serialized;

/// The largest private key file that we read, in bytes.
const KEY_BYTES_MAX: usize = 16 * 1024;

/// Signs in the name of one certificate. Clones share it; signing takes no lock.
#[derive(Clone)]
pub struct Signer(Arc<SignerCore>);

struct SignerCore {
    msp: MspId,
    serialized: Bytes,
    certificate: Certificate,
    certificate_pem: Bytes,
    key: PrivateKey,
}

impl Signer {
    /// Joins a certificate in PEM and its private key in PEM (PKCS#8, or SEC1 for the curves).
    ///
    /// # Errors
    /// [`Error::PrivateKey`] when the key is none we sign with or not the certificate's, and whatever the certificate
    /// fails with. Whether the organisation would accept the certificate is not checked.
    pub fn from_pem(msp: impl Into<MspId>, certificate_pem: &[u8], key_pem: &[u8]) -> Result<Signer, Error> {
        let key_pem = key_pem.get(..KEY_BYTES_MAX).unwrap_or(key_pem);
        let block = ::pem::parse(key_pem).map_err(|_| Error::PrivateKey("not PEM"))?;
        if !matches!(block.tag(), "PRIVATE KEY" | "EC PRIVATE KEY") {
            return Err(Error::PrivateKey("the PEM block is of another kind"));
        }
        Signer::new(msp.into(), certificate_pem, PrivateKey::from_der(block.contents())?)
    }

    pub(crate) fn new(msp: MspId, certificate_pem: &[u8], key: PrivateKey) -> Result<Signer, Error> {
        let certificate = Certificate::from_pem(certificate_pem)?;
        if certificate.key().kind() != key.kind() || certificate.key().as_bytes() != key.public_bytes() {
            return Err(Error::PrivateKey("it is not the certificate's"));
        }
        // Others compare and hash our identity byte for byte, so it is one clean PEM block, whatever the file held.
        let certificate_pem: Bytes = certificate::to_pem("CERTIFICATE", certificate.der()).into();
        let serialized = encode_serialized(&msp, &certificate_pem);
        Ok(Signer(Arc::new(SignerCore { msp, serialized, certificate, certificate_pem, key })))
    }

    /// The organisation.
    pub fn msp_id(&self) -> &MspId {
        &self.0.msp
    }

    /// The encoded `SerializedIdentity` that names this signer to others.
    pub fn serialized(&self) -> &Bytes {
        &self.0.serialized
    }

    /// The certificate.
    pub fn certificate(&self) -> &Certificate {
        &self.0.certificate
    }

    /// The certificate in PEM.
    pub fn certificate_pem(&self) -> &Bytes {
        &self.0.certificate_pem
    }

    /// The kind of key.
    pub fn key_kind(&self) -> KeyKind {
        self.0.key.kind()
    }

    /// Signs a message: DER ECDSA over its SHA-256 digest with low S, or Ed25519 over the message itself.
    ///
    /// Ed25519 signatures repeat; ECDSA signatures draw on the operating system's randomness, except those of a
    /// [`SeededKey`](crate::SeededKey), which a simulation brings.
    pub fn sign(&self, message: &[u8]) -> Bytes {
        self.0.key.sign(&[message])
    }

    /// Signs the message that these slices make end to end.
    pub fn sign_parts(&self, message: &[&[u8]]) -> Bytes {
        self.0.key.sign(message)
    }

    /// The private key in PEM (PKCS#8), to be written to a file that only its owner reads.
    pub(crate) fn key_pem(&self) -> Result<String, Error> {
        Ok(certificate::to_pem("PRIVATE KEY", &self.0.key.to_pkcs8()?))
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({} {:?} {:?})", self.0.msp, self.0.certificate.common_name(), self.key_kind())
    }
}
