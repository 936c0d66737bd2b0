//! The transports of a process by address scheme, and the parties that each of its ports admits.
//!
//! A process may serve several parties: a compute node serves its organisation's gateways and the other compute nodes
//! of its peer. These ports differ in their risk: a gateway faces the Internet, whereas callers of the port for compute
//! nodes take part in validation. A token, the secret with which a caller proves its name, must open only the port for
//! which it was issued. Each port has its own tokens ([`register`]), and the roles check the authenticated name again
//! when they serve a link ([`base::rt::net::Parties`]).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::{BoxFuture, Link, Transport, TransportListener};
use identity::issue::TlsIdentity;
use identity::{DenyList, Revocations};
use ledger::{Block, ChannelConfig};
use rma::links::RmaTransport;
use rma::shm::ShmProvider;
use rma::tcp::{Denials, TcpConfig, TcpProvider, TcpTls};
use rma::{Credential, Endpoint, Error, Host, HostConfig, Provider, Token, TokenLookup};

use super::file::{GENESIS, TRUST};
use super::sections::{JoiningFile, Secret};
use crate::network::NodeError;
use crate::services::{Services, WatchedProvider};
use link_transport::{LinkTlsIdentity, OrganizationRoots, TLS_SCHEME, TlsTransport};

const SHM: &str = "shm";
const TCP: &str = "tcp";

/// The providers of remote memory access, selected by address scheme.
pub(crate) struct SchemeProviders {
    shm: WatchedProvider,
    tcp: WatchedProvider,
}

impl SchemeProviders {
    /// Providers with this TLS below tcp, if any. A host that fails ends the process.
    pub(crate) fn new(tls: Option<TcpTls>, services: &Services) -> SchemeProviders {
        let tcp = TcpProvider::new(TcpConfig { tls, ..TcpConfig::default() });
        let watched = |provider| WatchedProvider::new(provider, services.clone());
        SchemeProviders { shm: watched(Arc::new(ShmProvider::default())), tcp: watched(Arc::new(tcp)) }
    }

    fn route<'a>(&self, address: &'a str) -> Result<(&dyn Provider, &'a str), Error> {
        match address.split_once(':') {
            Some((SHM, rest)) => Ok((&self.shm, rest)),
            // A host within this process.
            Some(("local", _)) => Ok((&self.shm, address)),
            Some((TCP, rest)) => Ok((&self.tcp, rest)),
            _ => {
                let reason = "its scheme is neither shm nor tcp".to_owned();
                Err(Error::Unreachable { address: address.to_owned(), reason })
            }
        }
    }
}

#[async_trait]
impl Provider for SchemeProviders {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (provider, rest) = self.route(address)?;
        provider.connect(rest, credential).await
    }

    async fn host(&self, address: &str, options: HostConfig) -> Result<Arc<dyn Host>, Error> {
        let (provider, rest) = self.route(address)?;
        provider.host(rest, options).await
    }

    fn name(&self) -> &'static str {
        "shm and tcp"
    }
}

/// The parties that may link to one address of this process.
pub(crate) struct LinkPort {
    /// The address.
    pub address: String,
    /// Names and tokens.
    pub accepted: AcceptedTokens,
}

/// Names and tokens.
pub(crate) enum AcceptedTokens {
    /// Each name has its own token; one that is not listed has the token that `joining` makes of it.
    Named(BTreeMap<String, Secret>, Option<JoiningFile>),
    /// One token for a group, whose members may grow.
    SharedToken(Secret),
}

impl LinkPort {
    /// A port for processes that each have their own token.
    pub(crate) fn named(address: &str, accepted: &BTreeMap<String, Secret>) -> LinkPort {
        LinkPort::joined(address, accepted, None)
    }

    /// As [`LinkPort::named`], and for processes that may join later.
    pub(crate) fn joined(
        address: &str,
        accepted: &BTreeMap<String, Secret>,
        joining: Option<&JoiningFile>,
    ) -> LinkPort {
        let accepted = AcceptedTokens::Named(accepted.clone(), joining.cloned());
        LinkPort { address: address.to_owned(), accepted }
    }
}

impl AcceptedTokens {
    fn tokens(self) -> TokenLookup {
        match self {
            AcceptedTokens::Named(named, joining) => Arc::new(move |name| match (named.get(name), &joining) {
                (Some(own), _) => Some(own.token()),
                (None, Some(joining)) if name.starts_with(&joining.prefix) => {
                    Some(joining.secret.of_process(name).token())
                }
                (None, _) => None,
            }),
            AcceptedTokens::SharedToken(shared) => Arc::new(move |_| Some(shared.token())),
        }
    }
}

/// Registers the transports for links within the organisation. This process authenticates with `own`; each of its ports
/// admits only its own parties, and a port that fails ends the process. The process cannot listen at other addresses.
pub(crate) fn register(
    name: &str,
    own: Option<&Secret>,
    tls: Option<&TcpTls>,
    ports: Vec<LinkPort>,
    services: &Services,
) {
    // A process that only answers never connects; its random token opens no port.
    let token = own.map_or_else(Token::random, Secret::token);
    let credential = Credential { name: name.to_owned(), token };
    // Links wait for long, so a waiting side sleeps at once instead of spinning.
    let tcp = TcpProvider::new(TcpConfig { spin: Duration::ZERO, tls: tls.cloned(), ..TcpConfig::default() });
    let tokens = ports.into_iter().map(|port| (port.address, port.accepted.tokens()));
    let tokens: Arc<BTreeMap<String, TokenLookup>> = Arc::new(tokens.collect());
    let fabrics: [(&'static str, Arc<dyn Provider>); 2] =
        [(SHM, Arc::new(ShmProvider::default())), (TCP, Arc::new(tcp))];
    for (scheme, provider) in fabrics {
        let provider = Arc::new(WatchedProvider::new(provider, services.clone()));
        let links = TokenLinks { scheme, provider, credential: credential.clone(), tokens: Arc::clone(&tokens) };
        base::rt::net::register(scheme, Arc::new(links));
    }
}

/// The revocations in the channel's configuration, if the process has a genesis block.
fn revocations(folder: &Path) -> Result<Revocations, NodeError> {
    let path = folder.join(GENESIS);
    if !path.exists() {
        return Ok(Revocations::default());
    }
    let bytes = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
    let config = ChannelConfig::from_block(&Block::parse(&bytes.into())?)?;
    Ok(config.msps().msps().fold(Revocations::default(), |all, msp| all.and(msp.all_revocations().clone())))
}

/// Links over one provider. Each listening address has its own tokens: a name that is known at one address is unknown
/// at the others.
struct TokenLinks {
    scheme: &'static str,
    provider: Arc<dyn Provider>,
    credential: Credential,
    /// Tokens by address, with its scheme.
    tokens: Arc<BTreeMap<String, TokenLookup>>,
}

impl TokenLinks {
    fn with(&self, tokens: TokenLookup) -> RmaTransport {
        RmaTransport::new(Arc::clone(&self.provider), self.credential.clone(), tokens)
    }
}

impl Transport for TokenLinks {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn TransportListener>>> {
        let tokens = self.tokens.get(&format!("{}:{rest}", self.scheme)).cloned();
        Box::pin(async move {
            let unknown = || {
                let reason = format!("nobody has a token for {}:{rest} at this process", self.scheme);
                io::Error::new(io::ErrorKind::PermissionDenied, reason)
            };
            self.with(tokens.ok_or_else(unknown)?).listen(rest).await
        })
    }

    fn connect<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Link>> {
        Box::pin(async move { self.with(Arc::new(|_| None)).connect(rest).await })
    }
}

/// The organisations whose TLS authorities are below a process's folder.
pub(crate) fn trusted(folder: &Path) -> Result<Vec<OrganizationRoots>, NodeError> {
    let trust = folder.join(TRUST);
    let mut organisations = Vec::new();
    for entry in std::fs::read_dir(&trust).map_err(NodeError::file("reading", &trust))?.flatten() {
        let path = entry.path();
        // A leftover of a file that was being written when power failed.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        organisations.push(OrganizationRoots { name, roots_pem });
    }
    Ok(organisations)
}

/// TLS below remote memory access and links over tcp. This process presents `identity` and trusts the authorities below
/// `folder`, except for certificates that they or the channel revoked or that its operator denies. The tokens, which
/// are bound to the TLS session, authenticate the names.
pub(crate) fn tcp_tls(folder: &Path, identity: &TlsIdentity) -> Result<TcpTls, NodeError> {
    tcp_tls_denying(folder, identity, DenyList::of_process())
}

fn tcp_tls_denying(folder: &Path, identity: &TlsIdentity, denied: DenyList) -> Result<TcpTls, NodeError> {
    let mut roots = Vec::new();
    let mut revoked = revocations(folder)?;
    for organisation in trusted(folder)? {
        revoked = revoked.and(Revocations::of_pem(&organisation.roots_pem)?);
        roots.extend(organisation.roots_pem);
    }
    let denials = Arc::new(CertificateDenials { revoked, denied });
    TcpTls::with_denials(&identity.certificate_pem, &identity.key_pem, &roots, denials)
        .map_err(|source| NodeError::Provider { who: "the certificate for links over tcp".to_owned(), source })
}

/// Certificates that are refused over tcp.
struct CertificateDenials {
    revoked: Revocations,
    denied: DenyList,
}

impl Denials for CertificateDenials {
    fn denies(&self, chain: &[&[u8]]) -> bool {
        let chain = || chain.iter().copied();
        self.revoked.check(chain()).and_then(|()| self.denied.check_chain(chain(), base::rt::wall_now())).is_err()
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let mut changes = self.denied.changes();
        Box::pin(async move {
            if changes.changed().await.is_err() {
                // The list cannot change any more.
                std::future::pending::<()>().await;
            }
        })
    }
}

/// Registers the transport for links between organisations: this process presents `identity` and trusts the authorities
/// below `folder`.
pub(crate) fn register_tls(folder: &Path, identity: &TlsIdentity) -> Result<(), NodeError> {
    let organisations = trusted(folder)?;
    let own =
        LinkTlsIdentity { certificate_pem: identity.certificate_pem.to_vec(), key_pem: identity.key_pem.to_vec() };
    let tls = TlsTransport::new(&own, &organisations).map_err(NodeError::LinkTls)?.revoking(&revocations(folder)?);
    base::rt::net::register(TLS_SCHEME, Arc::new(tls));
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::rt::net::{self, LinkAcceptor, Parties};
    use base::rt::production;
    use identity::deny::{Denial, DeniedCertificate};
    use identity::issue::{CertificateTerms, IssuingOrganization};
    use identity::{Certificate, KeyKind, MemberRole};
    use rma::{NodeId, Rights};

    use super::*;
    use crate::free_ports::bind_free;

    /// Generous: the test measures nothing, and only a hanging test must fail.
    const LINK_TIMEOUT: Duration = Duration::from_secs(60);

    fn address(scheme: &str) -> String {
        let held = bind_free([127, 0, 0, 1].into()).expect("a port is free");
        format!("{scheme}:{}", held.local_addr().expect("it is bound"))
    }

    /// Registers links as a process of this name does, under a scheme of the test.
    fn register_as(scheme: &'static str, name: &str, own: &Secret, ports: Vec<LinkPort>) {
        let tokens = ports.into_iter().map(|port| (port.address, port.accepted.tokens())).collect();
        let credential = Credential { name: name.to_owned(), token: own.token() };
        let links =
            TokenLinks { scheme, provider: Arc::new(TcpProvider::default()), credential, tokens: Arc::new(tokens) };
        net::register(scheme, Arc::new(links));
    }

    /// Regression: a gateway faces the Internet. With a gateway's token an attacker joined the port at which a compute
    /// node's followers read the state and verify transactions: 24 of 36 forged transactions became valid. Both ports
    /// accepted the tokens of either port.
    #[test]
    fn a_token_opens_the_port_that_it_is_for_and_no_other() {
        let (gateway, sibling) = (Secret::random(), Secret::random());
        let (own, among, closed) = (address("tcp-server"), address("tcp-server"), address("tcp-server"));
        let named = |name: &str, token: &Secret| BTreeMap::from([(name.to_owned(), token.clone())]);
        let ports = vec![
            LinkPort::named(&own, &named("gateway-org1", &gateway)),
            LinkPort::named(&among, &named("compute-org1-2", &sibling)),
        ];
        register_as("tcp-server", "compute-org1", &Secret::random(), ports);
        register_as("tcp-gateway", "gateway-org1", &gateway, Vec::new());
        register_as("tcp-sibling", "compute-org1-2", &sibling, Vec::new());
        register_as("tcp-renamed", "compute-org1-2", &gateway, Vec::new());
        production::run(async {
            let mut own_port = net::listen(&own).await.expect("it is free");
            let mut among_port = net::listen(&among).await.expect("it is free");
            for (scheme, address, is_welcome) in [
                ("tcp-gateway", &own, true),
                ("tcp-gateway", &among, false),
                ("tcp-sibling", &own, false),
                ("tcp-sibling", &among, true),
                ("tcp-renamed", &among, false),
            ] {
                let linked = net::connect(&address.replace("tcp-server", scheme)).await;
                assert_eq!(linked.is_ok(), is_welcome, "{scheme} at {address}");
                if let Err(error) = linked {
                    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
                }
            }
            assert_eq!(own_port.accept().await.expect("one was welcome").peer(), Some("gateway-org1"));
            assert_eq!(among_port.accept().await.expect("one was welcome").peer(), Some("compute-org1-2"));
            let error = net::listen(&closed).await.expect_err("nobody has a token for it");
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        });
    }

    /// Regression: a thief of a node's key kept its open connections at a memory node, and could open new ones: only
    /// links over TLS consulted the deny list.
    #[test]
    fn a_denied_or_revoked_certificate_has_no_connection_to_a_memory_node() {
        let organization =
            IssuingOrganization::create("A", "a.example.com", &CertificateTerms::starting_now(KeyKind::P256))
                .expect("it is founded");
        let authority = organization.tls_authority();
        let issue = |name: &str| organization.issue_tls(MemberRole::Peer, name, &["127.0.0.1"]).expect("it is issued");
        let certificate =
            |tls: &TlsIdentity| Certificate::from_pem(&tls.certificate_pem).expect("it was made just now");
        let [memory, good, stolen, lost] = ["memory", "good", "stolen", "lost"].map(issue);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let list = authority.revoke(&[&certificate(&lost)]).expect("a list");
        std::fs::create_dir(folder.path().join(TRUST)).expect("a folder");
        let trusted = [&authority.certificate_pem()[..], &list].concat();
        std::fs::write(folder.path().join(TRUST).join("A.pem"), trusted).expect("a file");
        let denying = |tls: &TlsIdentity, denied: &DenyList| {
            let tls = tcp_tls_denying(folder.path(), tls, denied.clone()).expect("the settings are valid");
            TcpProvider::new(TcpConfig { tls: Some(tls), ..TcpConfig::default() })
        };
        let deny = |list: &DenyList, tls: &TlsIdentity| {
            let holder = DeniedCertificate::Fingerprint(identity::sha256([&certificate(tls).der()[..]]));
            list.replace(vec![Denial { holder, reason: "lost".to_owned(), until: None }]);
        };
        production::run(async {
            let all = async {
                let (at_host, at_owner, nobodys) = (DenyList::default(), DenyList::default(), DenyList::default());
                let token = Secret::random().token();
                let credential = Credential { name: "owner".to_owned(), token: token.clone() };
                let options = HostConfig { node: NodeId(1), tokens: Arc::new(move |_| Some(token.clone())) };
                let host = denying(&memory, &at_host).host("127.0.0.1:0", options).await.expect("a port is free");
                let region = host.register("test", 4096).await.expect("there is memory");
                let capability = host.grant(region, Rights::ALL, "owner").expect("the region is there");
                let address = host.address();
                let connect = |tls: &TlsIdentity, denied: &DenyList| {
                    let (provider, address, credential) = (denying(tls, denied), address.clone(), credential.clone());
                    async move { provider.connect(&address, &credential).await }
                };
                let good_near = connect(&good, &at_owner).await.expect("it is welcome");
                let _good_far = host.accept().await.expect("it was connected to");
                let near = connect(&stolen, &nobodys).await.expect("nobody denies it yet");
                let far = host.accept().await.expect("it was connected to");
                assert_eq!(near.fetch_add(&capability, 0, 1).await, Ok(0));
                let revoked = connect(&lost, &nobodys).await.expect_err("it was revoked");
                assert!(revoked.to_string().contains("Revoked"), "{revoked}");

                // Both sides wait for messages, and the connection carries no other traffic.
                let waiting = async { tokio::join!(near.receive(), far.receive()) };
                let denied = async {
                    base::rt::yield_now().await;
                    deny(&at_host, &stolen);
                };
                let (ended, ()) = tokio::join!(waiting, denied);
                assert_eq!(ended, (Err(Error::Closed), Err(Error::Closed)));
                assert_eq!(near.fetch_add(&capability, 0, 1).await, Err(Error::Closed));
                let refused = connect(&stolen, &nobodys).await.expect_err("it is denied");
                assert!(refused.to_string().contains("Revoked"), "{refused}");
                assert_eq!(good_near.fetch_add(&capability, 0, 1).await, Ok(1), "others go on");

                // An owner denies a memory node.
                let waiting = good_near.receive();
                let denied = async {
                    base::rt::yield_now().await;
                    deny(&at_owner, &memory);
                };
                let (ended, ()) = tokio::join!(waiting, denied);
                assert_eq!(ended, Err(Error::Closed));
                connect(&good, &at_owner).await.expect_err("it is denied");
                connect(&good, &nobodys).await.expect("another owner does not deny it");
            };
            base::rt::timeout(LINK_TIMEOUT, all).await.expect("nothing hangs");
        });
    }

    /// The token of a node that joins is made of its name: it opens the ports for it under that name alone, and a name of
    /// another kind has none.
    #[test]
    fn a_node_that_joins_proves_its_own_name() {
        let joining = JoiningFile { prefix: "compute-org1-".to_owned(), secret: Secret::random() };
        let (listed, port) = (Secret::random(), address("tcp-joined"));
        let named = BTreeMap::from([("compute-org1-2".to_owned(), listed.clone())]);
        let ports = vec![LinkPort::joined(&port, &named, Some(&joining))];
        register_as("tcp-joined", "compute-org1", &Secret::random(), ports);
        let own = |name: &str| joining.secret.of_process(name);
        let cases = [
            ("compute-org1-7", own("compute-org1-7"), true),
            ("compute-org1-8", own("compute-org1-7"), false),
            ("compute-org1-2", own("compute-org1-2"), false),
            ("compute-org1-2", listed, true),
            ("gateway-org1", own("gateway-org1"), false),
            ("compute-org1-7", joining.secret.clone(), false),
        ];
        production::run(async {
            let mut door = net::listen(&port).await.expect("it is free");
            for (number, (name, token, is_welcome)) in cases.into_iter().enumerate() {
                let scheme: &'static str = ["tcp-j0", "tcp-j1", "tcp-j2", "tcp-j3", "tcp-j4", "tcp-j5"][number];
                register_as(scheme, name, &token, Vec::new());
                let linked = net::connect(&port.replace("tcp-joined", scheme)).await;
                assert_eq!(linked.is_ok(), is_welcome, "{name}");
                if is_welcome {
                    assert_eq!(door.accept().await.expect("one was welcome").peer(), Some(name));
                }
            }
        });
        let parties = Parties::of(named.keys()).and_later(&joining.prefix, 63);
        assert!(parties.contains("compute-org1-7") && parties.contains("compute-org1-2"));
        assert!(!parties.contains("compute-org1-") && !parties.contains("gateway-org1"));
        assert_eq!(parties.count(), Some(64));
    }

    /// The second line of defence: if a transport admits a party for which the listener is not meant, the link is not
    /// served.
    #[test]
    fn a_link_of_somebody_else_is_not_served() {
        let token = Secret::random();
        let port = address("tcp-group");
        register_as(
            "tcp-group",
            "orderer-1",
            &token,
            vec![LinkPort { address: port.clone(), accepted: AcceptedTokens::SharedToken(token.clone()) }],
        );
        production::run(async {
            let mut door = LinkAcceptor::open(&port, &Parties::of(["orderer-2"]), 8).await.expect("it is free");
            let mut refused = net::connect(&port).await.expect("the transport lets it in");
            register_as("tcp-other", "orderer-2", &token, Vec::new());
            let near = net::connect(&port.replace("tcp-group", "tcp-other")).await.expect("it is let in");
            let (far, _place) = door.accept().await.expect("it was connected to");
            assert_eq!(far.peer(), Some("orderer-2"));
            assert!(refused.receive().await.is_err(), "the other link has ended");
            drop(near);
        });
    }
}
