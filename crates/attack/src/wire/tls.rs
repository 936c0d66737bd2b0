//! TLS of a client that trusts any server and presents any given certificate.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct ClientIdentity {
    pub certificate_pem: Vec<u8>,
    pub key_pem: Vec<u8>,
}

impl ClientIdentity {
    /// Reads `NAME.crt` and `NAME.key` from a folder.
    ///
    /// # Errors
    /// The files do not exist.
    pub fn read(folder: &Path, name: &str) -> io::Result<ClientIdentity> {
        let read = |suffix: &str| std::fs::read(folder.join(format!("{name}.{suffix}")));
        Ok(ClientIdentity { certificate_pem: read("crt")?, key_pem: read("key")? })
    }
}

/// TLS 1.3 or 1.2 that offers these protocols (ALPN), with a certificate if one is given.
///
/// # Errors
/// The certificate or its key is unusable.
pub fn config(identity: Option<&ClientIdentity>, protocols: &[&str]) -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AcceptAnyServer));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(&identity.certificate_pem).collect::<Result<Vec<_>, _>>();
            let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain.map_err(io::Error::other)?, key).map_err(io::Error::other)?
        }
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    // So that each connection costs the server a full handshake.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// Establishes a session over a connection.
///
/// # Errors
/// The server refuses. Over TLS 1.3 it may refuse a certificate only after this.
pub async fn connect(config: &Arc<ClientConfig>, socket: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    TlsConnector::from(Arc::clone(config)).connect(server_name(), socket).await
}

/// The first bytes of a handshake.
///
/// # Errors
/// None are known.
pub fn client_hello(config: &Arc<ClientConfig>) -> io::Result<Vec<u8>> {
    let session = rustls::ClientConnection::new(Arc::clone(config), server_name());
    let mut hello = Vec::new();
    session.map_err(io::Error::other)?.write_tls(&mut hello)?;
    Ok(hello)
}

fn server_name() -> ServerName<'static> {
    ServerName::try_from("localhost").expect("a name of a host")
}

/// Trusts every server: an attacker does not care which server it attacks.
#[derive(Debug)]
struct AcceptAnyServer;

impl ServerCertVerifier for AcceptAnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256, SignatureScheme::ECDSA_NISTP384_SHA384, SignatureScheme::ED25519]
    }
}
