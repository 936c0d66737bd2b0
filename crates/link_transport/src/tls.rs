//! Mutual TLS: both sides present certificates that configured organisations have issued to nodes.
//!
//! Issuer and key usage do not tell a node's certificate from a user's: an organisation's TLS authority also issues
//! certificates to users, for client ports, and Fabric's tools make these valid as server certificates. So the subject
//! decides ([`is_of_node`]):
//!
//! * With the unit "client", "admin" or "user" the certificate belongs to a user, whatever its other units are.
//! * Otherwise, with the unit "peer" or "orderer" it belongs to a node.
//! * Without any of these units, as in certificates that `cryptogen` and `heddle` issue, it belongs to a node if the
//!   common name is also one of its DNS names.
//!
//! A link ends when the operator denies the certificate of its other side ([`DeniableHalf`]).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use base::admission::Principal;
use base::rt::net::{BoxFuture, Link, Transport, TransportListener};
use identity::{DenyList, Revocations};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{AcceptLoop, CONNECT_TIME_MAX, HELLO_TIME_MAX, dial, frames, within};

/// A trusted organisation, and the certificates in which its members' chains end.
#[derive(Clone, Debug)]
pub struct OrganizationRoots {
    /// The name of a link's peer.
    pub name: String,
    /// One or more certificates, and their revocation lists if there are any.
    pub roots_pem: Vec<u8>,
}

/// The certificate that this process presents, as a client and as a server.
#[derive(Clone)]
pub struct LinkTlsIdentity {
    /// Its certificate, and intermediate ones if there are any.
    pub certificate_pem: Vec<u8>,
    /// PKCS#8.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for LinkTlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity(…)")
    }
}

/// A certificate, key or root that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the TLS settings of links cannot be used: {0}")]
pub struct LinkTlsError(String);

/// Links over mutual TLS.
#[derive(Clone)]
pub struct TlsTransport {
    connector: TlsConnector,
    server: Arc<rustls::ServerConfig>,
    trusted: Arc<[TrustedOrganization]>,
}

#[derive(Clone)]
struct TrustedOrganization {
    name: String,
    /// Revocations by its authorities, from the lists beside their certificates.
    revocations: Revocations,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

impl TlsTransport {
    /// Presents `identity`, and trusts the certificates of these organisations.
    ///
    /// # Errors
    /// A PEM cannot be parsed, the key does not fit the certificate, or no organisation is given.
    pub fn new(identity: &LinkTlsIdentity, organisations: &[OrganizationRoots]) -> Result<TlsTransport, LinkTlsError> {
        let wrong = |error: &dyn std::fmt::Display| LinkTlsError(error.to_string());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut all = RootCertStore::empty();
        let mut trusted = Vec::new();
        for organisation in organisations {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(&organisation.roots_pem) {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate.clone()).map_err(|error| wrong(&error))?;
                all.add(certificate).map_err(|error| wrong(&error))?;
            }
            let roots = Arc::new(roots);
            let servers = WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| LinkTlsError(format!("organisation {}: {error}", organisation.name)))?;
            let clients = client_verifier(roots, &provider)?;
            let revocations = Revocations::of_pem(&organisation.roots_pem).map_err(|error| {
                LinkTlsError(format!("revocation lists of organisation {}: {error}", organisation.name))
            })?;
            trusted.push(TrustedOrganization { name: organisation.name.clone(), revocations, clients, servers });
        }
        let chain = || {
            CertificateDer::pem_slice_iter(&identity.certificate_pem)
                .collect::<Result<Vec<_>, _>>()
                .map_err(|error| wrong(&error))
        };
        let key = || PrivateKeyDer::from_pem_slice(&identity.key_pem).map_err(|error| wrong(&error));
        let all = Arc::new(all);
        let client = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .with_root_certificates(Arc::clone(&all))
            .with_client_auth_cert(chain()?, key()?)
            .map_err(|error| wrong(&error))?;
        let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?
            .with_client_cert_verifier(client_verifier(all, &provider)?)
            .with_single_cert(chain()?, key()?)
            .map_err(|error| wrong(&error))?;
        Ok(TlsTransport {
            connector: TlsConnector::from(Arc::new(client)),
            server: Arc::new(server),
            trusted: trusted.into(),
        })
    }
}

impl TlsTransport {
    /// Also rejects certificates on these revocation lists, of any organisation: the lists of a channel's
    /// configuration.
    #[must_use]
    pub fn revoking(self, lists: &Revocations) -> TlsTransport {
        let all = self.trusted.iter().map(|organisation| TrustedOrganization {
            revocations: organisation.revocations.clone().and(lists.clone()),
            ..organisation.clone()
        });
        TlsTransport { trusted: all.collect(), ..self }
    }
}

fn client_verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, LinkTlsError> {
    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| LinkTlsError(error.to_string()))
}

/// The principal of a chain that the handshake has accepted. Finds the organisation that accepts it, and checks that
/// the certificate is a node's, that its organisation has not revoked it, and that this process's operator does not
/// deny it.
fn principal(
    trusted: &[TrustedOrganization],
    chain: Option<&[CertificateDer<'_>]>,
    accepts: impl Fn(&TrustedOrganization, &CertificateDer<'_>, &[CertificateDer<'_>]) -> bool,
) -> io::Result<Principal> {
    let stranger = |reason| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let (end, intermediates) = chain.and_then(<[_]>::split_first).ok_or_else(|| stranger("there is no certificate"))?;
    let found = trusted.iter().find(|organisation| accepts(organisation, end, intermediates));
    let found = found.ok_or_else(|| stranger("the certificate belongs to no known organisation"))?;
    if !is_of_node(end) {
        return Err(stranger("the certificate is a user's; links are between peers and orderers"));
    }
    let chain = || chain.into_iter().flatten().map(|certificate| &certificate[..]);
    found
        .revocations
        .check(chain())
        .and_then(|()| DenyList::of_process().check_chain(chain(), base::rt::wall_now()))
        .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
    let digest = identity::hex::encode(identity::sha256([end.as_ref()]));
    Ok(Principal::new(&found.name, &digest))
}

/// Whether an organisation issued this certificate to one of its nodes, and not to a user.
fn is_of_node(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return false };
    let subject = certificate.subject();
    let units = || subject.iter_organizational_unit().filter_map(|unit| unit.as_str().ok());
    if units().any(|unit| matches!(unit, "client" | "admin" | "user")) {
        return false;
    }
    if units().any(|unit| matches!(unit, "peer" | "orderer")) {
        return true;
    }
    let names = certificate.subject_alternative_name().ok().flatten();
    let is_host = |wanted: &str| {
        let mut names = names.iter().flat_map(|names| &names.value.general_names);
        names.any(|name| matches!(name, GeneralName::DNSName(name) if name.eq_ignore_ascii_case(wanted)))
    };
    subject.iter_common_name().filter_map(|name| name.as_str().ok()).any(is_host)
}

/// Maps a failed handshake to the caller's error.
fn rejected(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(io::ErrorKind::PermissionDenied, error),
        _ => error,
    }
}

async fn accept(
    server: Arc<rustls::ServerConfig>,
    trusted: Arc<[TrustedOrganization]>,
    socket: TcpStream,
) -> io::Result<Link> {
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket);
    let begun = within(HELLO_TIME_MAX, hello).await?;
    let stream = begun.into_stream(server).await.map_err(rejected)?;
    let now = UnixTime::now();
    let peer = principal(&trusted, stream.get_ref().1.peer_certificates(), |organisation, end, intermediates| {
        organisation.clients.verify_client_cert(end, intermediates, now).is_ok()
    })?;
    establish(stream, peer).await
}

/// Makes a link that ends when the operator denies the other side.
async fn establish<S>(stream: S, peer: Principal) -> io::Result<Link>
where
    S: AsyncRead + AsyncWrite + PresentedChain + Send + Sync + 'static,
{
    let chain: Arc<[Vec<u8>]> =
        stream.presented_chain().into_iter().flatten().map(|certificate| certificate.to_vec()).collect();
    let (reader, writer) = tokio::io::split(stream);
    frames::establish(DeniableHalf::new(reader, &chain), DeniableHalf::new(writer, &chain), Some(peer)).await
}

/// A TLS stream whose other side has presented a chain of certificates.
trait PresentedChain {
    fn presented_chain(&self) -> Option<&[CertificateDer<'static>]>;
}

impl PresentedChain for tokio_rustls::server::TlsStream<TcpStream> {
    fn presented_chain(&self) -> Option<&[CertificateDer<'static>]> {
        self.get_ref().1.peer_certificates()
    }
}

impl PresentedChain for tokio_rustls::client::TlsStream<TcpStream> {
    fn presented_chain(&self) -> Option<&[CertificateDer<'static>]> {
        self.get_ref().1.peer_certificates()
    }
}

/// One half of a connection, which fails as soon as this process's deny list names a certificate of the other side. A
/// denial wakes a reading half that waits for bytes. A writing half finds out at its next write; the reading half
/// reports the denial in any case.
struct DeniableHalf<T> {
    half: T,
    /// `None` once it has completed. The mutex only makes the future `Sync`; it is never locked.
    denied: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl<T> DeniableHalf<T> {
    fn new(half: T, chain: &Arc<[Vec<u8>]>) -> DeniableHalf<T> {
        let denied = DenyList::of_process().denies_chain(Arc::clone(chain));
        DeniableHalf { half, denied: Mutex::new(Some(Box::pin(denied))) }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let waiting = self.denied.get_mut().expect("no holder of this lock panics, as there is none");
        if let Some(denied) = waiting
            && denied.as_mut().poll(cx).is_pending()
        {
            return Ok(());
        }
        *waiting = None;
        Err(io::Error::new(io::ErrorKind::PermissionDenied, identity::Error::Denied))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for DeniableHalf<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.half).poll_read(cx, into)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for DeniableHalf<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.half).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.half).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.half.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.half).poll_shutdown(cx)
    }
}

impl Transport for TlsTransport {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        Box::pin(async move {
            let (server, trusted) = (Arc::clone(&self.server), Arc::clone(&self.trusted));
            let shake = move |socket| accept(Arc::clone(&server), Arc::clone(&trusted), socket);
            Ok(Box::new(AcceptLoop::start(rest, shake).await?) as Box<dyn TransportListener>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(within(CONNECT_TIME_MAX, async move {
            let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = self.connector.connect(name.clone(), dial(rest).await?).await.map_err(rejected)?;
            let now = UnixTime::now();
            let chain = stream.get_ref().1.peer_certificates();
            let peer = principal(&self.trusted, chain, |organisation, end, intermediates| {
                organisation.servers.verify_server_cert(end, intermediates, &name, &[], now).is_ok()
            })?;
            establish(stream, peer).await
        }))
    }
}
