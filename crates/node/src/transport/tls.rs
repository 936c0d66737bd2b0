//! Mutual TLS: both sides show certificates that configured organisations have given to nodes.
//!
//! The TLS authority of an organisation gives certificates to its users as well, for the ports of clients, and Fabric's
//! tools let them serve as a server's. A certificate is a node's ([`is_of_node`]) when its subject has the unit "peer" or
//! "orderer"; one that has no unit of a role, as `cryptogen` and `heddle` issue them, is a node's when it is issued for
//! the host that its subject's common name is.
//!
//! A link ends when the operator denies a certificate of its other side ([`UntilDenied`]).

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use base::admission::Principal;
use base::rt::net::{BoxFuture, Link, Listen, Transport};
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

use super::{Accepting, CONNECT_TIME_MAX, HELLO_TIME_MAX, dial, frames, within};

/// Whom to trust: an organisation and the certificates that its members' chains end in.
#[derive(Clone, Debug)]
pub struct Organisation {
    /// What a link's peer is called.
    pub name: String,
    /// One or several certificates, and their revocation lists if there are any.
    pub roots_pem: Vec<u8>,
}

/// What this process shows of itself, as a client and as a server.
#[derive(Clone)]
pub struct TlsIdentity {
    /// Its certificate, and intermediate ones if there are any.
    pub certificate_pem: Vec<u8>,
    /// PKCS#8.
    pub key_pem: Vec<u8>,
}

impl std::fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsIdentity(…)")
    }
}

/// A certificate, key or root that is of no use.
#[derive(Debug, thiserror::Error)]
#[error("the TLS settings of links are of no use: {0}")]
pub struct TlsError(String);

/// Links over mutual TLS.
#[derive(Clone)]
pub struct TlsTransport {
    connector: TlsConnector,
    server: Arc<rustls::ServerConfig>,
    trusted: Arc<[Trusted]>,
}

#[derive(Clone)]
struct Trusted {
    name: String,
    /// What its authorities took back, by the lists beside them.
    revocations: Revocations,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

impl TlsTransport {
    /// Shows `identity`, and trusts the certificates of these organisations.
    ///
    /// # Errors
    /// When a PEM cannot be read, the key does not fit the certificate, or no organisation is given.
    pub fn new(identity: &TlsIdentity, organisations: &[Organisation]) -> Result<TlsTransport, TlsError> {
        let wrong = |error: &dyn std::fmt::Display| TlsError(error.to_string());
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
                .map_err(|error| TlsError(format!("organisation {}: {error}", organisation.name)))?;
            let clients = client_verifier(roots, &provider)?;
            let revocations = Revocations::of_pem(&organisation.roots_pem).map_err(|error| {
                TlsError(format!("revocation lists of organisation {}: {error}", organisation.name))
            })?;
            trusted.push(Trusted { name: organisation.name.clone(), revocations, clients, servers });
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
    /// Refuses in addition what these lists take back, of whichever organisation: those of a channel's configuration.
    #[must_use]
    pub fn revoking(self, lists: &Revocations) -> TlsTransport {
        let all = self.trusted.iter().map(|organisation| Trusted {
            revocations: organisation.revocations.clone().and(lists.clone()),
            ..organisation.clone()
        });
        TlsTransport { trusted: all.collect(), ..self }
    }
}

fn client_verifier(
    roots: Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| TlsError(error.to_string()))
}

/// Whose chain this is. The handshake has accepted it already; this finds out for whose sake, that it is a node's, and that
/// neither its organisation has revoked it since nor this process's operator denies it.
fn principal(
    trusted: &[Trusted],
    chain: Option<&[CertificateDer<'_>]>,
    accepts: impl Fn(&Trusted, &CertificateDer<'_>, &[CertificateDer<'_>]) -> bool,
) -> io::Result<Principal> {
    let stranger = |reason| io::Error::new(io::ErrorKind::PermissionDenied, reason);
    let (end, intermediates) = chain.and_then(<[_]>::split_first).ok_or_else(|| stranger("there is no certificate"))?;
    let found = trusted.iter().find(|organisation| accepts(organisation, end, intermediates));
    let found = found.ok_or_else(|| stranger("the certificate is of no known organisation"))?;
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

/// Whether an organisation has given this certificate to a node of its, and not to a user.
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

/// What a failed handshake means to the caller.
fn refused(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => io::Error::new(io::ErrorKind::PermissionDenied, error),
        _ => error,
    }
}

async fn accept(server: Arc<rustls::ServerConfig>, trusted: Arc<[Trusted]>, socket: TcpStream) -> io::Result<Link> {
    let hello = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), socket);
    let begun = within(HELLO_TIME_MAX, hello).await?;
    let stream = begun.into_stream(server).await.map_err(refused)?;
    let now = UnixTime::now();
    let peer = principal(&trusted, stream.get_ref().1.peer_certificates(), |organisation, end, intermediates| {
        organisation.clients.verify_client_cert(end, intermediates, now).is_ok()
    })?;
    establish(stream, peer).await
}

/// A link that ends when the operator denies the other side.
async fn establish<S>(stream: S, peer: Principal) -> io::Result<Link>
where
    S: AsyncRead + AsyncWrite + Shown + Send + Sync + 'static,
{
    let chain: Arc<[Vec<u8>]> = stream.shown().into_iter().flatten().map(|certificate| certificate.to_vec()).collect();
    let (reader, writer) = tokio::io::split(stream);
    frames::establish(UntilDenied::new(reader, &chain), UntilDenied::new(writer, &chain), Some(peer)).await
}

/// A stream over TLS, whose other side has shown a chain of certificates.
trait Shown {
    fn shown(&self) -> Option<&[CertificateDer<'static>]>;
}

impl Shown for tokio_rustls::server::TlsStream<TcpStream> {
    fn shown(&self) -> Option<&[CertificateDer<'static>]> {
        self.get_ref().1.peer_certificates()
    }
}

impl Shown for tokio_rustls::client::TlsStream<TcpStream> {
    fn shown(&self) -> Option<&[CertificateDer<'static>]> {
        self.get_ref().1.peer_certificates()
    }
}

/// One half of a connection, which fails from when this process's deny list names a certificate of the other side. Who waits
/// for bytes is told of a denial; who writes finds out with the next write, and is told by the reading half in any case.
struct UntilDenied<T> {
    half: T,
    /// Nothing once it has completed. A future is not `Sync`; nobody locks this.
    denied: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl<T> UntilDenied<T> {
    fn new(half: T, chain: &Arc<[Vec<u8>]>) -> UntilDenied<T> {
        let denied = DenyList::of_process().denies_chain(Arc::clone(chain));
        UntilDenied { half, denied: Mutex::new(Some(Box::pin(denied))) }
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

impl<R: AsyncRead + Unpin> AsyncRead for UntilDenied<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.half).poll_read(cx, into)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for UntilDenied<W> {
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
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listen>>> {
        Box::pin(async move {
            let (server, trusted) = (Arc::clone(&self.server), Arc::clone(&self.trusted));
            let shake = move |socket| accept(Arc::clone(&server), Arc::clone(&trusted), socket);
            Ok(Box::new(Accepting::start(rest, shake).await?) as Box<dyn Listen>)
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(within(CONNECT_TIME_MAX, async move {
            let host = rest.rsplit_once(':').map_or(rest, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let name = ServerName::try_from(host.to_owned())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let stream = self.connector.connect(name.clone(), dial(rest).await?).await.map_err(refused)?;
            let now = UnixTime::now();
            let chain = stream.get_ref().1.peer_certificates();
            let peer = principal(&self.trusted, chain, |organisation, end, intermediates| {
                organisation.servers.verify_server_cert(end, intermediates, &name, &[], now).is_ok()
            })?;
            establish(stream, peer).await
        }))
    }
}
