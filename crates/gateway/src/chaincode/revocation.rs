//! Revoked certificates of chaincodes.
//!
//! The lists stand beside the certificates of the authorities, in the same PEM file, and are read with it.

use std::sync::Arc;

use identity::Revocations;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// Accepts the chains that another verifier accepts, unless one of their certificates is revoked.
#[derive(Debug)]
pub(super) struct UnrevokedClients {
    pub(super) verifier: Arc<dyn ClientCertVerifier>,
    pub(super) revocations: Revocations,
}

impl ClientCertVerifier for UnrevokedClients {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(own, others, now)?;
        let chain = std::iter::once(own).chain(others).map(|certificate| &certificate[..]);
        match self.revocations.check(chain) {
            Ok(()) => Ok(verified),
            Err(identity::Error::Revoked) => Err(Error::InvalidCertificate(CertificateError::Revoked)),
            Err(_) => Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
