//! Mutual TLS below the provider's frames.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

use crate::Error;

/// Certificates for connections in both directions. Each side must show one that ends in one of the roots.
#[derive(Clone)]
pub struct TcpTls {
    client: Arc<rustls::ClientConfig>,
    server: Arc<rustls::ServerConfig>,
}

impl std::fmt::Debug for TcpTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TcpTls(…)")
    }
}

/// The library's, with the fastest cipher first: memory is read at gigabytes a second.
fn provider() -> rustls::crypto::CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let fastest = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != fastest);
    provider
}

impl TcpTls {
    /// From PEM: our certificate chain, its PKCS#8 key, and the certificates that the other side's chain must end in. A
    /// host's certificate must name the host as it is written in its address.
    ///
    /// # Errors
    /// [`Error::Refused`] when they cannot be read, or the key does not fit the certificate.
    pub fn new(certificate_pem: &[u8], key_pem: &[u8], roots_pem: &[u8]) -> Result<TcpTls, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Refused(format!("the TLS settings are of no use: {error}"));
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
        let verifier =
            rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| wrong(&error))?;
        let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| wrong(&error))?;
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| wrong(&error))?;
        // Sessions are not resumed: nobody connects so often, and each proves its certificate.
        server.send_tls13_tickets = 0;
        Ok(TcpTls { client: Arc::new(client), server: Arc::new(server) })
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

    /// A session with whoever connected.
    pub(super) fn server(&self) -> Result<rustls::Connection, rustls::Error> {
        Ok(rustls::ServerConnection::new(Arc::clone(&self.server))?.into())
    }
}
