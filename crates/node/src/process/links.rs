//! The transports of a process, by the schemes of addresses, and who may link to which of its ports.
//!
//! A process may answer several parties: a compute node its organisation's gateways, and its peer's other compute nodes. A
//! gateway faces the Internet and a compute node's port for the others decides which transactions are valid, so that a
//! token must open the one door that it is for. Each port has its own tokens ([`register`]); the roles check the proven name
//! once more where they serve a link ([`base::rt::net::Parties`]).

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::net::{BoxFuture, Link, Listen, Transport};
use identity::issue::TlsIdentity;
use identity::{DenyList, Revocations};
use ledger::{Block, ChannelConfig};
use rma::links::RmaLinks;
use rma::shm::Shm;
use rma::tcp::{Denials, Tcp, TcpOptions, TcpTls};
use rma::{Credential, Endpoint, Error, Fabric, Host, HostOptions, Token, Tokens};

use super::file::{GENESIS, Secret, TRUST};
use crate::network::NodeError;
use crate::services::{Services, Watched};
use crate::transport::{self, Organisation, TlsTransport};

const SHM: &str = "shm";
const TCP: &str = "tcp";

/// The providers of remote memory access, told apart by the schemes of addresses.
pub(crate) struct Fabrics {
    shm: Watched,
    tcp: Watched,
}

impl Fabrics {
    /// With this TLS below the frames of tcp, if any. A host that fails ends the process.
    pub(crate) fn new(tls: Option<TcpTls>, services: &Services) -> Fabrics {
        let tcp = Tcp::new(TcpOptions { tls, ..TcpOptions::default() });
        let watched = |fabric| Watched::new(fabric, services.clone());
        Fabrics { shm: watched(Arc::new(Shm::default())), tcp: watched(Arc::new(tcp)) }
    }

    fn of<'a>(&self, address: &'a str) -> Result<(&dyn Fabric, &'a str), Error> {
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
impl Fabric for Fabrics {
    async fn connect(&self, address: &str, credential: &Credential) -> Result<Endpoint, Error> {
        let (fabric, rest) = self.of(address)?;
        fabric.connect(rest, credential).await
    }

    async fn host(&self, address: &str, options: HostOptions) -> Result<Arc<dyn Host>, Error> {
        let (fabric, rest) = self.of(address)?;
        fabric.host(rest, options).await
    }

    fn provider(&self) -> &'static str {
        "shm and tcp"
    }
}

/// Who may link to one address of this process.
pub(crate) struct Port {
    /// The address.
    pub address: String,
    /// Names and tokens.
    pub accepted: Accepted,
}

/// Names and tokens.
pub(crate) enum Accepted {
    /// Each with its own.
    Named(BTreeMap<String, Secret>),
    /// Whoever bears the one token of a group, of which there may be more one day.
    Group(Secret),
}

impl Port {
    /// A port for processes that each have a token of their own.
    pub(crate) fn named(address: &str, accepted: &BTreeMap<String, Secret>) -> Port {
        Port { address: address.to_owned(), accepted: Accepted::Named(accepted.clone()) }
    }
}

impl Accepted {
    fn tokens(self) -> Tokens {
        match self {
            Accepted::Named(named) => Arc::new(move |name| named.get(name).map(Secret::token)),
            Accepted::Group(shared) => Arc::new(move |_| Some(shared.token())),
        }
    }
}

/// Makes links within the organisation known: this process proves itself with `own`, and each of its ports lets in those
/// that it is for and nobody else; one that fails ends the process. There is no listening at other addresses.
pub(crate) fn register(name: &str, own: Option<&Secret>, tls: Option<&TcpTls>, ports: Vec<Port>, services: &Services) {
    // Who only answers connects to nobody; its own token opens no door.
    let token = own.map_or_else(Token::random, Secret::token);
    let credential = Credential { name: name.to_owned(), token };
    // Links wait for long: whoever waits sleeps at once.
    let tcp = Tcp::new(TcpOptions { spin: Duration::ZERO, tls: tls.cloned(), ..TcpOptions::default() });
    let tokens = ports.into_iter().map(|port| (port.address, port.accepted.tokens()));
    let tokens: Arc<BTreeMap<String, Tokens>> = Arc::new(tokens.collect());
    let fabrics: [(&'static str, Arc<dyn Fabric>); 2] = [(SHM, Arc::new(Shm::default())), (TCP, Arc::new(tcp))];
    for (scheme, fabric) in fabrics {
        let fabric = Arc::new(Watched::new(fabric, services.clone()));
        let links = OwnLinks { scheme, fabric, credential: credential.clone(), tokens: Arc::clone(&tokens) };
        base::rt::net::register(scheme, Arc::new(links));
    }
}

/// What the organisations of the channel took back by its configuration, where the process has that.
fn revocations(folder: &Path) -> Result<Revocations, NodeError> {
    let path = folder.join(GENESIS);
    if !path.exists() {
        return Ok(Revocations::default());
    }
    let bytes = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
    let config = ChannelConfig::from_block(&Block::parse(&bytes.into())?)?;
    Ok(config.msps().msps().fold(Revocations::default(), |all, msp| all.and(msp.all_revocations().clone())))
}

/// Links over one provider. Each address that is listened at has tokens of its own: a name that is known at one of them is a
/// stranger at the others.
struct OwnLinks {
    scheme: &'static str,
    fabric: Arc<dyn Fabric>,
    credential: Credential,
    /// By address, with its scheme.
    tokens: Arc<BTreeMap<String, Tokens>>,
}

impl OwnLinks {
    fn with(&self, tokens: Tokens) -> RmaLinks {
        RmaLinks::new(Arc::clone(&self.fabric), self.credential.clone(), tokens)
    }
}

impl Transport for OwnLinks {
    fn listen<'a>(&'a self, rest: &'a str) -> BoxFuture<'a, io::Result<Box<dyn Listen>>> {
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
pub(crate) fn trusted(folder: &Path) -> Result<Vec<Organisation>, NodeError> {
    let trust = folder.join(TRUST);
    let mut organisations = Vec::new();
    for entry in std::fs::read_dir(&trust).map_err(NodeError::file("reading", &trust))?.flatten() {
        let path = entry.path();
        // What a loss of power left of a file that was being written.
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        let roots_pem = std::fs::read(&path).map_err(NodeError::file("reading", &path))?;
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        organisations.push(Organisation { name, roots_pem });
    }
    Ok(organisations)
}

/// TLS below remote memory access and links over tcp: this process shows `identity` and trusts the authorities below
/// `folder`, but no certificate that these or the channel revoked, nor one that its operator denies. Who is who the tokens tell,
/// which are bound to the session.
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
    let denials = Arc::new(TurnedAway { revoked, denied });
    TcpTls::with_denials(&identity.certificate_pem, &identity.key_pem, &roots, denials)
        .map_err(|source| NodeError::Fabric { who: "the certificate for links over tcp".to_owned(), source })
}

/// Certificates that get no connection over tcp.
struct TurnedAway {
    revoked: Revocations,
    denied: DenyList,
}

impl Denials for TurnedAway {
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

/// Makes links between organisations known: this process shows `identity` and trusts the authorities below `folder`.
pub(crate) fn register_tls(folder: &Path, identity: &TlsIdentity) -> Result<(), NodeError> {
    let organisations = trusted(folder)?;
    let own = transport::TlsIdentity {
        certificate_pem: identity.certificate_pem.to_vec(),
        key_pem: identity.key_pem.to_vec(),
    };
    let tls = TlsTransport::new(&own, &organisations).map_err(NodeError::LinkTls)?.revoking(&revocations(folder)?);
    base::rt::net::register(transport::TLS_SCHEME, Arc::new(tls));
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::rt::net::{self, Door, Parties};
    use base::rt::production;
    use identity::deny::{Denial, Denied};
    use identity::issue::{Organization, Terms};
    use identity::{Certificate, KeyKind, Role};
    use rma::{NodeId, Rights};

    use super::*;
    use crate::plan::bind_free;

    /// Generous: nothing is measured, a test that hangs is to fail.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn address(scheme: &str) -> String {
        let held = bind_free([127, 0, 0, 1].into()).expect("a port is free");
        format!("{scheme}:{}", held.local_addr().expect("it is bound"))
    }

    /// As a process of this name registers its links, under a scheme of the test's own.
    fn register_as(scheme: &'static str, name: &str, own: &Secret, ports: Vec<Port>) {
        let tokens = ports.into_iter().map(|port| (port.address, port.accepted.tokens())).collect();
        let credential = Credential { name: name.to_owned(), token: own.token() };
        let links = OwnLinks { scheme, fabric: Arc::new(Tcp::default()), credential, tokens: Arc::new(tokens) };
        net::register(scheme, Arc::new(links));
    }

    /// A gateway faces the Internet. With its token one joined the port at which a compute node's peers follow the state and judge
    /// transactions: 24 of 36 forged ones became valid. Both ports took the tokens that either was for.
    #[test]
    fn a_token_opens_the_port_that_it_is_for_and_no_other() {
        let (gateway, sibling) = (Secret::random(), Secret::random());
        let (own, among, closed) = (address("tcp-server"), address("tcp-server"), address("tcp-server"));
        let named = |name: &str, token: &Secret| BTreeMap::from([(name.to_owned(), token.clone())]);
        let ports = vec![
            Port::named(&own, &named("gateway-org1", &gateway)),
            Port::named(&among, &named("compute-org1-2", &sibling)),
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

    /// Whoever had taken a node's key kept what it had open at a memory node, and could connect anew: only links over TLS asked the
    /// operator's list.
    #[test]
    fn a_denied_or_revoked_certificate_has_no_connection_to_a_memory_node() {
        let organization =
            Organization::found("A", "a.example.com", &Terms::starting_now(KeyKind::P256)).expect("it is founded");
        let authority = organization.tls_authority();
        let issue = |name: &str| organization.issue_tls(Role::Peer, name, &["127.0.0.1"]).expect("it is issued");
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
            Tcp::new(TcpOptions { tls: Some(tls), ..TcpOptions::default() })
        };
        let deny = |list: &DenyList, tls: &TlsIdentity| {
            let holder = Denied::Fingerprint(identity::sha256([&certificate(tls).der()[..]]));
            list.replace(vec![Denial { holder, reason: "lost".to_owned(), until: None }]);
        };
        production::run(async {
            let all = async {
                let (at_host, at_owner, nobodys) = (DenyList::default(), DenyList::default(), DenyList::default());
                let token = Secret::random().token();
                let credential = Credential { name: "owner".to_owned(), token: token.clone() };
                let options = HostOptions { node: NodeId(1), tokens: Arc::new(move |_| Some(token.clone())) };
                let host = denying(&memory, &at_host).host("127.0.0.1:0", options).await.expect("a port is free");
                let region = host.register("test", 4096).await.expect("there is memory");
                let capability = host.grant(region, Rights::ALL, "owner").expect("the region is there");
                let address = host.address();
                let connect = |tls: &TlsIdentity, denied: &DenyList| {
                    let (fabric, address, credential) = (denying(tls, denied), address.clone(), credential.clone());
                    async move { fabric.connect(&address, &credential).await }
                };
                let good_near = connect(&good, &at_owner).await.expect("it is welcome");
                let _good_far = host.accept().await.expect("it was connected to");
                let near = connect(&stolen, &nobodys).await.expect("nobody denies it yet");
                let far = host.accept().await.expect("it was connected to");
                assert_eq!(near.fetch_add(&capability, 0, 1).await, Ok(0));
                let revoked = connect(&lost, &nobodys).await.expect_err("it was revoked");
                assert!(revoked.to_string().contains("Revoked"), "{revoked}");

                // Both sides wait for messages, and nothing else moves on this connection.
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
            base::rt::timeout(PATIENCE, all).await.expect("nothing hangs");
        });
    }

    /// The second belt: where a transport lets somebody in whom the listener is not for, the link is not served.
    #[test]
    fn a_link_of_somebody_else_is_not_served() {
        let token = Secret::random();
        let port = address("tcp-group");
        register_as(
            "tcp-group",
            "orderer-1",
            &token,
            vec![Port { address: port.clone(), accepted: Accepted::Group(token.clone()) }],
        );
        production::run(async {
            let mut door = Door::open(&port, &Parties::of(["orderer-2"]), 8).await.expect("it is free");
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
