//! Streams to chaincodes, both ways round, over real sockets and TLS.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::rt::CancellationToken;
use bytes::{Bytes, BytesMut};
use contract::model::{ModelInvocation, ModelLedger};
use contract::shim::{ChaincodeConnector as _, ChaincodeService};
use contract::{ContractRegistry, StubError};
use gateway::chaincode::{ChaincodeDialer, ChaincodeListener, ChaincodeRegistrar, DialConfig, tls_for_chaincodes};
use gateway::grpc::client::{ClientIdentity, ClientTls, ConnectTarget, GrpcConnection, RequestStream, ResponseStream};
use gateway::grpc::connection::ConnectionConfig;
use gateway::grpc::message::{PREFIX_BYTES, frame};
use gateway::grpc::{GrpcCode, GrpcStatus};
use gateway::server::{self, PortLimits};
use identity::issue::{CertificateTerms, IssuingOrganization, TlsIdentity};
use identity::{Certificate, KeyKind, MemberRole};
use prost::Message as _;
use proto::protos::chaincode_message::Type;
use proto::protos::{ChaincodeId, ChaincodeMessage, Response};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use tokio::io::{AsyncRead, AsyncWrite};

/// Its label is the common name of the certificate that [`certified`] makes for `assets`.
const PACKAGE: &str = "assets.chaincodes.example.com:ab";

fn authority() -> IssuingOrganization {
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    IssuingOrganization::create("ChaincodesMSP", "chaincodes.example.com", &terms).expect("keys")
}

fn certified(authority: &IssuingOrganization, name: &str) -> TlsIdentity {
    authority.issue_tls(MemberRole::Peer, name, &["localhost", "127.0.0.1"]).expect("a certificate")
}

fn identity_of(tls: &TlsIdentity) -> ClientIdentity {
    ClientIdentity { certificate_pem: tls.certificate_pem.to_vec(), key_pem: tls.key_pem.to_vec() }
}

fn registration(package_id: &str) -> ChaincodeMessage {
    let id = ChaincodeId { name: package_id.to_owned(), ..ChaincodeId::default() };
    ChaincodeMessage {
        r#type: Type::Register.into(),
        payload: id.encode_to_vec().into(),
        ..ChaincodeMessage::default()
    }
}

/// The answer to a call.
fn completed(call: &ChaincodeMessage) -> ChaincodeMessage {
    let response = Response { status: 200, payload: Bytes::from_static(b"done"), ..Response::default() };
    ChaincodeMessage {
        r#type: Type::Completed.into(),
        payload: response.encode_to_vec().into(),
        txid: call.txid.clone(),
        channel_id: call.channel_id.clone(),
        ..ChaincodeMessage::default()
    }
}

/// Runs a call of the service.
async fn execute(service: &Arc<ChaincodeService>) -> Result<Bytes, StubError> {
    let mut registry = ContractRegistry::empty();
    registry.register("assets", service.clone()).expect("the name is free");
    let call = ModelInvocation { tx_id: "tx1".to_owned(), ..ModelInvocation::new::<&str>("assets", "move", &[]) };
    ModelLedger::new(registry).execute(&call).await.map(|effects| effects.response.payload)
}

struct OnePackage(Arc<ChaincodeService>);

impl ChaincodeRegistrar for OnePackage {
    fn service(&self, package_id: &str) -> Option<Arc<ChaincodeService>> {
        (package_id == PACKAGE).then(|| self.0.clone())
    }
}

/// A port for chaincodes.
struct Port {
    address: SocketAddr,
    roots_pem: Vec<u8>,
    service: Arc<ChaincodeService>,
    stop: CancellationToken,
}

impl Port {
    async fn open(authorities: &IssuingOrganization) -> Port {
        Port::trusting(&certified(authorities, "any").authority_pem).await
    }

    /// Trusts the authorities in this file, which may hold revocation lists, too.
    async fn trusting(roots: &[u8]) -> Port {
        let own = certified(&authority(), "peer");
        let tls = tls_for_chaincodes(&own.certificate_pem, &own.key_pem, roots).expect("certificates");
        let service = Arc::new(ChaincodeService::awaited("assets", Some(PACKAGE)));
        let listener = server::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let stop = CancellationToken::new();
        let port = ChaincodeListener::new(Arc::new(OnePackage(service.clone())));
        let (settings, limits) = (ConnectionConfig::default(), PortLimits::default());
        tokio::spawn(server::serve(listener, Some(tls), port, settings, limits, stop.clone()));
        Port { address, roots_pem: own.authority_pem.to_vec(), service, stop }
    }

    /// Registers, and returns the stream.
    async fn register(
        &self,
        identity: Option<&ClientIdentity>,
        package_id: &str,
    ) -> Result<(GrpcConnection, RequestStream, ResponseStream), GrpcStatus> {
        let tls = Some(ClientTls { roots_pem: self.roots_pem.clone(), server_name: "localhost".to_owned() });
        let target = ConnectTarget { address: self.address.to_string(), tls };
        let connected = GrpcConnection::connect_as(&target, identity, Duration::from_secs(5)).await;
        let connection = connected.map_err(|error| GrpcStatus::new(GrpcCode::Unauthenticated, error.to_string()))?;
        let (mut requests, mut responses) = connection.open("/protos.ChaincodeSupport/Register", None).await?;
        requests.send(&registration(package_id)).await?;
        for expected in [Type::Registered, Type::Ready] {
            let answer: Option<ChaincodeMessage> = responses.next().await?;
            assert_eq!(answer.expect("the peer answers").r#type(), expected);
        }
        Ok((connection, requests, responses))
    }
}

#[tokio::test]
async fn a_chaincode_registers_with_a_certificate_and_serves_calls() {
    let authorities = authority();
    let port = Port::open(&authorities).await;
    let chaincode = identity_of(&certified(&authorities, "assets"));
    assert!(execute(&port.service).await.expect_err("none is there").to_string().contains("not connected"));
    let (_connection, mut requests, mut responses) =
        port.register(Some(&chaincode), PACKAGE).await.unwrap_or_else(|status| panic!("{status}"));
    let serving = async {
        let call: ChaincodeMessage = responses.next().await.expect("the stream lives").expect("a call");
        assert_eq!((call.r#type(), call.txid.as_str()), (Type::Transaction, "tx1"));
        requests.send(&completed(&call)).await.expect("the stream lives");
    };
    let (answered, ()) = tokio::join!(execute(&port.service), serving);
    assert_eq!(answered.expect("the chaincode serves"), "done");

    // A chaincode that has restarted takes the place of its former stream. Regression: the former stream stayed open.
    let (_connection, _requests, _responses) =
        port.register(Some(&chaincode), PACKAGE).await.unwrap_or_else(|status| panic!("{status}"));
    let ended = responses.next::<ChaincodeMessage>().await.expect_err("its place is taken");
    assert_eq!(ended.code, GrpcCode::Unavailable, "{ended}");
    assert!(ended.to_string().contains("another chaincode has registered"), "{ended}");
    assert!(port.service.is_connected().await);
    port.stop.cancel();
}

#[tokio::test]
async fn strangers_and_unknown_packages_do_not_register() {
    let authorities = authority();
    let port = Port::open(&authorities).await;
    let stranger = identity_of(&certified(&authority(), "assets"));
    for identity in [None, Some(&stranger)] {
        assert!(port.register(identity, PACKAGE).await.is_err(), "no certificate of the authority");
    }
    let chaincode = identity_of(&certified(&authorities, "assets"));
    let refused = port.register(Some(&chaincode), "assets.chaincodes.example.com:cd").await.err();
    let refused = refused.expect("it is not installed");
    assert!(refused.code == GrpcCode::FailedPrecondition && refused.to_string().contains("com:cd"), "{refused}");
    assert!(!port.service.is_connected().await);
    port.stop.cancel();
}

#[tokio::test]
async fn a_chaincode_registers_as_no_package_but_that_of_its_certificate() {
    let authorities = authority();
    let port = Port::open(&authorities).await;
    let assets = identity_of(&certified(&authorities, "assets"));
    let (connection, mut requests, mut responses) =
        port.register(Some(&assets), PACKAGE).await.unwrap_or_else(|status| panic!("{status}"));
    // Another chaincode of the same authority would take the place of the stream, as one that has restarted does.
    for name in ["other", "assets.chaincodes.example.com", "ab", "asset"] {
        let other = identity_of(&certified(&authorities, name));
        let refused = port.register(Some(&other), PACKAGE).await.err().expect("its certificate is for another package");
        assert_eq!(refused.code, GrpcCode::PermissionDenied, "{name:?}: {refused}");
        assert!(refused.to_string().contains("common name is the package's label or hash"), "{refused}");
    }
    for package_id in ["other:ab", "assets.chaincodes.example.com", ":", ":ab", "com:ab"] {
        let refused =
            port.register(Some(&assets), package_id).await.err().expect("its certificate is for another package");
        let is_own = package_id == "assets.chaincodes.example.com";
        let expected = if is_own { GrpcCode::FailedPrecondition } else { GrpcCode::PermissionDenied };
        assert_eq!(refused.code, expected, "{package_id:?}: {refused}");
    }
    let serving = async {
        let call: ChaincodeMessage = responses.next().await.expect("the stream lives").expect("a call");
        requests.send(&completed(&call)).await.expect("the stream lives");
    };
    let (answered, ()) = tokio::join!(execute(&port.service), serving);
    assert_eq!(answered.expect("the first chaincode serves"), "done");
    drop(connection);
    port.stop.cancel();
}

/// A chaincode that listens, answers one call of each stream, and speaks first, as shims do.
async fn listening_chaincode(identity: Option<&TlsIdentity>) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let acceptor = identity.map(|identity| {
        let chain = CertificateDer::pem_slice_iter(&identity.certificate_pem).collect::<Result<Vec<_>, _>>();
        let key = PrivateKeyDer::from_pem_slice(&identity.key_pem).expect("a key");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = builder.expect("versions").with_no_client_auth().with_single_cert(chain.expect("PEM"), key);
        let mut config = config.expect("the key is the certificate's");
        config.alpn_protocols = vec![b"h2".to_vec()];
        tokio_rustls::TlsAcceptor::from(Arc::new(config))
    });
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.expect("descriptors are left");
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                match acceptor {
                    None => answer_one_call(socket).await,
                    Some(acceptor) => answer_one_call(acceptor.accept(socket).await.ok()?).await,
                }
            });
        }
    });
    address
}

async fn answer_one_call(socket: impl AsyncRead + AsyncWrite + Unpin) -> Option<()> {
    let mut connection = h2::server::handshake(socket).await.ok()?;
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        assert_eq!(request.uri().path(), "/protos.Chaincode/Connect");
        tokio::spawn(async move {
            let mut answers = respond.send_response(http::Response::new(()), false).ok()?;
            answers.send_data(frame(&registration(PACKAGE)), false).ok()?;
            let (mut body, mut received) = (request.into_body(), BytesMut::new());
            loop {
                let chunk = body.data().await?.ok()?;
                received.extend_from_slice(&chunk);
                while let Some(length) = received.get(1..PREFIX_BYTES) {
                    let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
                    let Some(message) = received.get(PREFIX_BYTES..PREFIX_BYTES + length) else { break };
                    let message = ChaincodeMessage::decode(message).expect("a message");
                    let _ = received.split_to(PREFIX_BYTES + length);
                    if message.r#type() == Type::Transaction {
                        answers.send_data(frame(&completed(&message)), true).ok()?;
                        return Some(());
                    }
                }
            }
        });
    }
    None
}

fn dialer(address: SocketAddr, roots_pem: Option<Vec<u8>>) -> ChaincodeDialer {
    let dial_timeout = Duration::from_millis(500);
    ChaincodeDialer::new(DialConfig { address: address.to_string(), dial_timeout, roots_pem, identity: None })
}

#[tokio::test]
async fn a_peer_connects_to_a_chaincode_that_listens_and_again_after_its_stream_ended() {
    let address = listening_chaincode(None).await;
    let service = Arc::new(ChaincodeService::dialed("assets", Some(PACKAGE), Box::new(dialer(address, None))));
    for _ in 0..3 {
        assert_eq!(execute(&service).await.expect("the chaincode serves"), "done");
        while service.is_connected().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let other =
        ChaincodeService::dialed("assets", Some("assets.chaincodes.example.com:cd"), Box::new(dialer(address, None)));
    let refused = execute(&Arc::new(other)).await.expect_err("it runs another package").to_string();
    assert!(refused.contains("registered as") && refused.contains("chaincodes.example.com:cd"), "{refused}");
}

#[tokio::test]
async fn a_dialer_gives_up_where_no_chaincode_proves_itself() {
    // Nothing listens; something listens and says nothing; something listens and has no TLS.
    let unused = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = unused.local_addr().expect("it is bound");
    drop(unused);
    assert!(dialer(address, None).connect().await.is_err());
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, roots_pem) =
        (silent.local_addr().expect("it is bound"), certified(&authority(), "any").authority_pem.to_vec());
    let start = Instant::now();
    assert!(dialer(address, Some(roots_pem.clone())).connect().await.is_err());
    assert!(start.elapsed() < Duration::from_secs(30), "the dial has a time limit");
    assert!(dialer(listening_chaincode(None).await, Some(roots_pem)).connect().await.is_err());
}

/// The authority's certificate and the list of the certificates that it has revoked, in one file.
fn with_list(authority: &IssuingOrganization, revoked: &[&TlsIdentity]) -> Vec<u8> {
    let certificates: Vec<Certificate> =
        revoked.iter().map(|tls| Certificate::from_pem(&tls.certificate_pem).expect("a certificate")).collect();
    let list = authority.tls_authority().revoke(&certificates.iter().collect::<Vec<_>>()).expect("a list");
    [&authority.tls_authority().certificate_pem()[..], &list].concat()
}

/// The story: a list beside the authorities' certificates was ignored, so the holder of a stolen key served a contract's calls
/// until its certificate expired.
#[tokio::test]
async fn a_revoked_chaincode_is_refused_both_ways_round() {
    let authorities = authority();
    let (stolen, good) = (certified(&authorities, "assets"), certified(&authorities, "assets"));
    let file = with_list(&authorities, &[&stolen]);
    let port = Port::trusting(&file).await;
    assert!(port.register(Some(&identity_of(&stolen)), PACKAGE).await.is_err(), "its certificate is revoked");
    assert!(!port.service.is_connected().await);
    let registered = port.register(Some(&identity_of(&good)), PACKAGE).await;
    let _streams = registered.unwrap_or_else(|status| panic!("{status}"));
    port.stop.cancel();

    let address = listening_chaincode(Some(&stolen)).await;
    let error = dialer(address, Some(file.clone())).connect().await.err().expect("its certificate is revoked");
    assert!(error.contains("revoked"), "{error}");
    dialer(address, Some(authorities.tls_authority().certificate_pem().to_vec())).connect().await.expect("no list");
    let address = listening_chaincode(Some(&good)).await;
    dialer(address, Some(file)).connect().await.expect("its certificate is not on the list");

    // A list that cannot be read is no reason to go on without it.
    let own = certified(&authority(), "peer");
    let garbage = b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    let file = [&authorities.tls_authority().certificate_pem()[..], garbage].concat();
    tls_for_chaincodes(&own.certificate_pem, &own.key_pem, &file).expect_err("the list is malformed");
    assert!(dialer(address, Some(file)).connect().await.is_err());
}
