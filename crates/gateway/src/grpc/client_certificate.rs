//! The certificate that a client may present in TLS.
//!
//! As at Fabric's ports, the port asks for a certificate and demands none, and its issuer does not matter: clients make
//! certificates of their own. The handshake proves that the client has the certificate's key. So a signed request that
//! names the certificate's hash is worth nothing on another client's connection. Identities and rights come from the
//! signatures on requests alone.

use std::fmt;

use bytes::Bytes;
use identity::certificate::to_pem;
use identity::sha256;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// The most bytes that a client's certificates may have, because a session that may be resumed keeps them.
const CERTIFICATES_BYTES_MAX: usize = 16 << 10;

/// The certificate that a client has presented in the TLS handshake, if it has presented one.
#[derive(Clone, Debug)]
pub struct PresentedCertificate(Option<Bytes>);

impl PresentedCertificate {
    pub(crate) fn of(certificates: Option<&[CertificateDer<'_>]>) -> PresentedCertificate {
        let own = certificates.and_then(<[_]>::first);
        PresentedCertificate(own.map(|own| Bytes::copy_from_slice(own)))
    }

    /// The certificate in DER; `None` if the client has presented none.
    pub fn der(&self) -> Option<&Bytes> {
        self.0.as_ref()
    }

    /// Whether a request with this hash comes from the client: it is the hash of its certificate in DER, as SDKs send it, or in
    /// PEM, as Fabric's command `discover` does.
    pub fn is_named_by(&self, hash: &[u8]) -> bool {
        let own = |der: &Bytes| [sha256([&der[..]]), sha256([to_pem("CERTIFICATE", der).as_bytes()])];
        self.der().is_some_and(|der| own(der).iter().any(|own| own[..] == *hash))
    }
}

/// Accepts any certificate of whose key the client proves possession.
pub(crate) struct AnyClientCertificate(WebPkiSupportedAlgorithms);

impl AnyClientCertificate {
    pub(crate) fn new(provider: &CryptoProvider) -> AnyClientCertificate {
        AnyClientCertificate(provider.signature_verification_algorithms)
    }
}

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let bytes = own.len() + others.iter().map(|certificate| certificate.len()).sum::<usize>();
        if bytes > CERTIFICATES_BYTES_MAX {
            return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

impl fmt::Debug for AnyClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AnyClientCertificate")
    }
}
