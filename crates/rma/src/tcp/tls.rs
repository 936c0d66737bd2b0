//! Mutual TLS below the provider's frames.
//!
//! 1. Each end verifies the other's certificate chain, and asks [`Denials`] about it before the handshake is complete.
//! 2. When the set of denied certificates may have changed, each end asks again about the chains of its open
//!    connections. In a host the progress thread asks for all connections, in a client one task per connection asks. A
//!    connection whose chain is now denied ends.
//!
//! The caller decides which certificates are denied.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, SignatureScheme};

use crate::Error;

/// Certificates that are rejected although their chains are valid, because they were revoked or denied.
pub trait Denials: Send + Sync {
    /// Whether any certificate of a chain in DER, the holder's first, is denied now. The call must not block: a host makes it
    /// between serving other connections.
    fn denies(&self, chain: &[&[u8]]) -> bool;

    /// Completes when [`Denials::denies`] may answer differently from when this was called.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// Denies no certificate.
struct NoDenials;

impl Denials for NoDenials {
    fn denies(&self, _: &[&[u8]]) -> bool {
        false
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(std::future::pending())
    }
}

/// Certificates for connections in both directions. Each end must present a chain that ends in one of the roots.
#[derive(Clone)]
pub struct TcpTls {
    client: Arc<rustls::ClientConfig>,
    server: Arc<rustls::ServerConfig>,
    denials: Arc<dyn Denials>,
}

impl fmt::Debug for TcpTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TcpTls(…)")
    }
}

/// The library's provider, with the fastest cipher first: memory is read at gigabytes a second.
fn provider() -> rustls::crypto::CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let fastest = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != fastest);
    provider
}

impl TcpTls {
    /// From PEM: our certificate chain, its PKCS#8 key, and the roots that the other end's chain must lead to. A host's
    /// certificate must contain the host's name as it is written in its address.
    ///
    /// # Errors
    /// [`Error::Rejected`] when they cannot be read, or the key does not match the certificate.
    pub fn new(certificate_pem: &[u8], key_pem: &[u8], roots_pem: &[u8]) -> Result<TcpTls, Error> {
        TcpTls::with_denials(certificate_pem, key_pem, roots_pem, Arc::new(NoDenials))
    }

    /// As [`TcpTls::new`]. A certificate that `denials` denies gets no connection, and its open connections end.
    ///
    /// # Errors
    /// As [`TcpTls::new`].
    pub fn with_denials(
        certificate_pem: &[u8],
        key_pem: &[u8],
        roots_pem: &[u8],
        denials: Arc<dyn Denials>,
    ) -> Result<TcpTls, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Rejected(format!("the TLS settings are invalid: {error}"));
        let provider = Arc::new(provider());
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(roots_pem) {
            roots.add(certificate.map_err(|error| wrong(&error))?).map_err(|error| wrong(&error))?;
        }
        let roots = Arc::new(roots);
        let chain = CertificateDer::pem_slice_iter(certificate_pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| wrong(&error))?;
        let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| wrong(&error))?;
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(&error))?;
        let clients = Arc::new(DenialVerifier { chains: clients, denials: Arc::clone(&denials) });
        let servers = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(&error))?;
        let servers: Arc<dyn ServerCertVerifier> = servers;
        let servers = Arc::new(DenialVerifier { chains: servers, denials: Arc::clone(&denials) });
        let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .dangerous()
            .with_custom_certificate_verifier(servers)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| wrong(&error))?;
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(|error| wrong(&error))?;
        // Sessions are not resumed: connections are rare, and each must prove its certificate.
        server.send_tls13_tickets = 0;
        Ok(TcpTls { client: Arc::new(client), server: Arc::new(server), denials })
    }

    /// The certificates that are denied.
    pub(super) fn denials(&self) -> &Arc<dyn Denials> {
        &self.denials
    }

    /// A session with the host at "host:port".
    pub(super) fn client(&self, address: &str) -> Result<rustls::Connection, Error> {
        let unreachable = |reason: String| Error::Unreachable { address: address.to_owned(), reason };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unreachable(error.to_string()))?;
        let session = rustls::ClientConnection::new(Arc::clone(&self.client), name);
        Ok(session.map_err(|error| unreachable(error.to_string()))?.into())
    }

    /// A session with a client.
    pub(super) fn server(&self) -> Result<rustls::Connection, rustls::Error> {
        Ok(rustls::ServerConnection::new(Arc::clone(&self.server))?.into())
    }
}

/// Verifies chains as the library does, and asks `denials` about the valid ones.
struct DenialVerifier<V: ?Sized> {
    denials: Arc<dyn Denials>,
    chains: Arc<V>,
}

impl<V: ?Sized> DenialVerifier<V> {
    fn check(&self, end: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let chain: Vec<&[u8]> = std::iter::once(end).chain(intermediates).map(|one| &one[..]).collect();
        match self.denials.denies(&chain) {
            false => Ok(()),
            true => Err(CertificateError::Revoked.into()),
        }
    }
}

impl<V: ?Sized> fmt::Debug for DenialVerifier<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checked(…)")
    }
}

impl ServerCertVerifier for DenialVerifier<dyn ServerCertVerifier> {
    fn verify_server_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.chains.verify_server_cert(end, intermediates, name, ocsp, now)?;
        self.check(end, intermediates).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

impl ClientCertVerifier for DenialVerifier<dyn ClientCertVerifier> {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chains.verify_client_cert(end, intermediates, now)?;
        self.check(end, intermediates).map(|()| verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}
