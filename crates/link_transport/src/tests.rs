use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use base::admission::Principal;
use base::rt::channel::Closed;
use base::rt::net::{
    self, BACKLOG_LINKS_MAX, BoxFuture, Link, LinkAcceptor, Listener, Parties, TransportListener, UNFINISHED_BYTES_MAX,
};
use base::rt::production;
use base::{Bytes, BytesMut};
use identity::deny::{Denial, DeniedCertificate};
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{Certificate, DenyList, KeyKind, MemberRole};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;

use super::accept::UNAUTHENTICATED_MAX;
use super::frames::{DecodedFrame, FRAME_BYTES_MAX, decode, establish};
use super::socket::{UNANSWERED_MAX, dial};
use super::{LinkTlsIdentity, OrganizationRoots, TcpTransport, TlsTransport};

/// Held by tests that change this process's deny list.
static DENYING: Mutex<()> = Mutex::new(());
/// Generous: the test measures nothing, and only a hanging test must fail.
const LINK_TIMEOUT: Duration = Duration::from_secs(60);

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("keys can be made");
        Authority(CertifiedIssuer::self_signed(params, key).expect("it is a valid authority"))
    }

    /// A certificate as Heddle and `cryptogen` issue it to a node.
    fn member(&self) -> LinkTlsIdentity {
        self.issue("peer0.org1", &["peer0.org1", "127.0.0.1"], None)
    }

    fn issue(&self, common_name: &str, hosts: &[&str], unit: Option<&str>) -> LinkTlsIdentity {
        let key = KeyPair::generate().expect("keys can be made");
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("these are valid names");
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        if let Some(unit) = unit {
            params.distinguished_name.push(DnType::OrganizationalUnitName, unit);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &self.0).expect("it can be signed");
        LinkTlsIdentity { certificate_pem: certificate.pem().into_bytes(), key_pem: key.serialize_pem().into_bytes() }
    }

    fn organisation(&self, name: &str) -> OrganizationRoots {
        OrganizationRoots { name: name.to_owned(), roots_pem: self.0.pem().into_bytes() }
    }
}

/// Registers TCP and TLS under schemes of the test, then checks a claim over each.
fn over_each<F: Future<Output = ()>>(test: &str, claim: impl Fn(Listener, Link, Link) -> F) {
    let (one, two) = (Authority::new(), Authority::new());
    let trusted = [one.organisation("one"), two.organisation("two")];
    let tls = TlsTransport::new(&one.member(), &trusted).expect("the settings are valid");
    for (scheme, transport) in [
        (format!("tcp-{test}"), Arc::new(TcpTransport) as Arc<dyn net::Transport>),
        (format!("tls-{test}"), Arc::new(tls)),
    ] {
        net::register(&scheme, transport);
        production::run(async {
            let all = async {
                let mut listener = net::listen(&format!("{scheme}:127.0.0.1:0")).await.expect("a port is free");
                let near = net::connect(listener.address()).await.expect("it listens");
                let far = listener.accept().await.expect("it was connected to");
                claim(listener, near, far).await;
            };
            base::rt::timeout(LINK_TIMEOUT, all).await.expect("nothing hangs");
        });
    }
}

fn message(length: usize, seed: usize) -> Bytes {
    (0..length).map(|at| (at.wrapping_mul(31) ^ seed) as u8).collect()
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    over_each("order", |_listener, near, mut far| async move {
        let sizes: Vec<usize> =
            (0..2000).map(|n| n % 37 * (n % 11)).chain([40 << 20, 0, 1, 3 << 20, 65536, 8]).collect();
        let sent = sizes.clone();
        let sending = base::rt::spawn(async move {
            for (seed, length) in sent.into_iter().enumerate() {
                near.send(message(length, seed)).await.expect("the other side receives");
            }
            near
        });
        for (seed, length) in sizes.into_iter().enumerate() {
            let received = far.receive().await.expect("it was sent");
            assert!(received == message(length, seed), "message {seed} of {length} bytes is another");
        }
        let near = sending.await.expect("nothing aborts it");
        drop(near);
        assert_eq!(far.receive().await, Err(Closed));
    });
}

#[test]
fn what_was_sent_before_a_link_was_dropped_arrives() {
    over_each("drop", |_listener, near, mut far| async move {
        // The other direction has bytes in flight that will never be received: they must not destroy the sent messages.
        far.send(message(1 << 20, 1)).await.expect("there is room");
        for seed in 0..100 {
            near.send(message(50_000, seed)).await.expect("the other side receives");
        }
        drop(near);
        for seed in 0..100 {
            assert!(far.receive().await.expect("it was sent") == message(50_000, seed));
        }
        assert_eq!(far.receive().await, Err(Closed));
    });
}

#[test]
fn each_half_closes_by_itself() {
    over_each("half", |_listener, near, far| async move {
        let (to_far, mut at_near) = near.split();
        let (to_near, mut at_far) = far.split();
        drop(to_far);
        assert_eq!(at_far.receive().await, Err(Closed));
        to_near.send(message(10, 1)).await.expect("this direction is open");
        assert_eq!(at_near.receive().await, Ok(message(10, 1)));
        drop(to_near);
        assert_eq!(at_near.receive().await, Err(Closed));
    });
}

#[test]
fn a_sender_learns_that_the_receiver_was_dropped() {
    over_each("stop", |_listener, near, far| async move {
        let (to_far, mut at_near) = near.split();
        let (to_near, at_far) = far.split();
        drop(at_far);
        // The stop frame travels behind the messages that the other side sent before it.
        to_near.send(message(10, 1)).await.expect("this direction is open");
        assert_eq!(at_near.receive().await, Ok(message(10, 1)));
        drop(to_near);
        assert_eq!(at_near.receive().await, Err(Closed));
        assert_eq!(to_far.send(message(1, 1)).await, Err(Closed));
    });
}

#[test]
fn the_other_side_is_known_by_its_organisation() {
    let (one, two) = (Authority::new(), Authority::new());
    let trusted = [one.organisation("one"), two.organisation("two")];
    let transport = |identity| Arc::new(TlsTransport::new(&identity, &trusted).expect("the settings are valid"));
    net::register("tls-of-one", transport(one.member()));
    net::register("tls-of-two", transport(two.member()));
    production::run(async {
        let mut listener = net::listen("tls-of-one:127.0.0.1:0").await.expect("a port is free");
        let address = listener.address().replace("tls-of-one", "tls-of-two");
        let near = net::connect(&address).await.expect("both are trusted");
        let far = listener.accept().await.expect("it was connected to");
        assert_eq!((near.peer(), far.peer()), (Some("one"), Some("two")));
    });
}

#[test]
fn certificates_of_others_are_refused_on_both_sides() {
    let (one, stranger) = (Authority::new(), Authority::new());
    let of_one = TlsTransport::new(&one.member(), &[one.organisation("one")]).expect("the settings are valid");
    // It trusts the server; the server does not trust it.
    let client = TlsTransport::new(&stranger.member(), &[one.organisation("one")]).expect("the settings are valid");
    // The server trusts it; it does not trust the server.
    let doubter = TlsTransport::new(&one.member(), &[stranger.organisation("x")]).expect("the settings are valid");
    net::register("tls-refusing", Arc::new(of_one));
    net::register("tls-stranger", Arc::new(client));
    net::register("tls-doubter", Arc::new(doubter));
    production::run(async {
        let mut listener = net::listen("tls-refusing:127.0.0.1:0").await.expect("a port is free");
        for scheme in ["tls-stranger", "tls-doubter"] {
            let address = listener.address().replace("tls-refusing", scheme);
            let refused = base::rt::timeout(LINK_TIMEOUT, net::connect(&address)).await.expect("nothing hangs");
            assert!(refused.is_err(), "{scheme} got a link");
        }
        // The next accepted link is a trusted one, so neither of the others was accepted.
        let near = net::connect(listener.address()).await.expect("it is trusted");
        near.send(message(3, 3)).await.expect("there is room");
        let mut far = listener.accept().await.expect("it was connected to");
        assert_eq!(far.receive().await, Ok(message(3, 3)));
    });
}

/// Regression: an ordinary user's TLS certificate, meant for client ports, opened the orderer's block port and read
/// every block from the genesis block on.
#[test]
fn certificates_of_users_get_no_link_on_either_side() {
    let authority = Authority::new();
    let trusted = [authority.organisation("one")];
    let transport =
        |identity: &LinkTlsIdentity| Arc::new(TlsTransport::new(identity, &trusted).expect("they are valid"));
    let users = [
        authority.issue("User1@org1.example.com", &[], None),
        authority.issue("User1@org1.example.com", &["127.0.0.1"], None),
        authority.issue("user1", &["user1", "127.0.0.1"], Some("client")),
        authority.issue("admin", &["admin", "127.0.0.1"], Some("admin")),
    ];
    let nodes = [authority.member(), authority.issue("peer-7", &["127.0.0.1"], Some("peer"))];
    net::register("tls-nodes", transport(&authority.member()));
    production::run(async {
        let mut listener = net::listen("tls-nodes:127.0.0.1:0").await.expect("a port is free");
        let place = listener.address().split_once(':').expect("it has a scheme").1.to_owned();
        for user in &users {
            net::register("tls-user", transport(user));
            // The server rejects after the client's part of the handshake, which is the last part.
            if let Ok(mut link) = net::connect(&format!("tls-user:{place}")).await {
                let ended = base::rt::timeout(LINK_TIMEOUT, link.receive()).await.expect("nothing hangs");
                assert_eq!(ended, Err(Closed));
            }
            let as_host = net::listen("tls-user:127.0.0.1:0").await.expect("a port is free");
            let address = as_host.address().replace("tls-user", "tls-nodes");
            let error = net::connect(&address).await.expect_err("a user is no host of links");
            assert!(matches!(error.kind(), std::io::ErrorKind::PermissionDenied), "{error}");
        }
        for node in &nodes {
            net::register("tls-user", transport(node));
            let near = net::connect(&format!("tls-user:{place}")).await.expect("it is a node");
            near.send(message(3, 3)).await.expect("there is room");
            // The accepted link belongs to the node: no user's link came before it.
            assert_eq!(listener.accept().await.expect("it was connected to").receive().await, Ok(message(3, 3)));
        }
    });
}

/// All identities name `localhost`: a member organisation on the path could answer in the orderer's place and
/// acknowledge envelopes that it dropped.
#[test]
fn connecting_to_an_organisation_refuses_another_one() {
    let (one, two) = (Authority::new(), Authority::new());
    let trusted = [one.organisation("one"), two.organisation("two")];
    let transport = |identity| Arc::new(TlsTransport::new(&identity, &trusted).expect("the settings are valid"));
    net::register("tls-expected", transport(one.member()));
    production::run(async {
        let listener = net::listen("tls-expected:127.0.0.1:0").await.expect("a port is free");
        let refused = net::connect_to(listener.address(), &Parties::of(["two"])).await.expect_err("it is one");
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied, "{refused}");
        net::connect_to(listener.address(), &Parties::of(["one"])).await.expect("it is one");
    });
}

/// Regression: silent sockets held the 64 handshake permits and kept renewing them, so nobody else got a link.
#[test]
fn silent_sockets_do_not_keep_anybody_from_a_link() {
    over_each("silent", |mut listener, _near, _far| async move {
        let place = listener.address().split_once(':').expect("it has a scheme").1.to_owned();
        let mut silent = Vec::new();
        for _ in 0..UNAUTHENTICATED_MAX + 100 {
            silent.push(tokio::net::TcpStream::connect(&place).await.expect("it listens"));
        }
        // A partial hello followed by silence, too.
        for socket in &mut silent {
            let _ = socket.write_all(&[22, 3, 1]).await;
        }
        let near = base::rt::timeout(Duration::from_secs(1), net::connect(listener.address())).await;
        let near = near.expect("the newest has a place at once").expect("it is trusted");
        near.send(message(3, 3)).await.expect("there is room");
        let mut far = listener.accept().await.expect("it was connected to");
        assert_eq!(far.receive().await, Ok(message(3, 3)));
    });
}

/// Regression: links that were never accepted kept their handshake permits, so the listener stopped accepting.
#[test]
fn links_that_nobody_accepts_are_closed_and_the_listener_goes_on() {
    over_each("backlog", |mut listener, _near, _far| async move {
        let mut waiting = Vec::new();
        for _ in 0..BACKLOG_LINKS_MAX {
            waiting.push(net::connect(listener.address()).await.expect("it listens"));
        }
        // A handshake ends later at the listener than here, so any of the links may be the one that finds the backlog
        // full.
        waiting.push(net::connect(listener.address()).await.expect("it listens"));
        let closed = std::future::poll_fn(|cx| {
            let closed = waiting.iter_mut().find_map(|link| match pin!(link.receive()).poll(cx) {
                Poll::Ready(received) => Some(received),
                Poll::Pending => None,
            });
            closed.map_or(Poll::Pending, Poll::Ready)
        });
        assert_eq!(base::rt::timeout(LINK_TIMEOUT, closed).await, Ok(Err(Closed)));
        for _ in 0..BACKLOG_LINKS_MAX {
            drop(listener.accept().await.expect("they wait"));
        }
        let near = net::connect(listener.address()).await.expect("it listens");
        near.send(message(3, 3)).await.expect("there is room");
        let mut far = listener.accept().await.expect("it was connected to");
        assert_eq!(far.receive().await, Ok(message(3, 3)));
    });
}

#[test]
fn bytes_that_are_no_link_cost_a_connection_and_nothing_else() {
    net::register("tcp-hostile", Arc::new(TcpTransport));
    production::run(async {
        let mut listener = net::listen("tcp-hostile:127.0.0.1:0").await.expect("a port is free");
        let place = listener.address().split_once(':').expect("it has a scheme").1.to_owned();
        let dial = || async { tokio::net::TcpStream::connect(&place).await.expect("it listens") };
        for preface in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"HDLLINK\x02"] {
            let mut socket = dial().await;
            socket.write_all(preface).await.expect("it listens");
            // The connection ends or is reset: either way there is no link.
            let mut answer = Vec::new();
            let _ = base::rt::timeout(LINK_TIMEOUT, socket.read_to_end(&mut answer)).await.expect("it is cut");
        }
        for frame in [[0xff; 8], [0, 0, 0, 0x80, 0, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 9, 0, 0, 0]] {
            let mut socket = dial().await;
            socket.write_all(b"HDLLINK\x01").await.expect("it listens");
            socket.write_all(&frame).await.expect("it listens");
            let mut link = listener.accept().await.expect("the preface is right");
            assert_eq!(link.receive().await, Err(Closed), "{frame:?}");
        }
    });
}

#[test]
fn frames_have_the_documented_layout() {
    let mut golden = BytesMut::from(&[3, 0, 0, 0, 0, 0, 0, 0, 7, 8, 9, 0, 0, 0, 0, 1, 0, 0, 0, 5][..]);
    assert_eq!(decode(&mut golden).expect("it is a frame"), DecodedFrame::Message(Bytes::from_static(&[7, 8, 9])));
    assert_eq!(decode(&mut golden).expect("it is a frame"), DecodedFrame::Stop);
    assert!(matches!(decode(&mut golden), Ok(DecodedFrame::Incomplete(_))));
}

#[test]
fn a_claimed_length_reserves_little_before_its_bytes_come() {
    let mut buffer = BytesMut::from(&(FRAME_BYTES_MAX as u32).to_le_bytes()[..]);
    buffer.extend_from_slice(&[0; 4]);
    let Ok(DecodedFrame::Incomplete(room)) = decode(&mut buffer) else { panic!("no byte of it is there") };
    assert!(room <= 1 << 20);
    let mut buffer = BytesMut::from(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes()[..]);
    buffer.extend_from_slice(&[0; 4]);
    assert!(decode(&mut buffer).is_err());
}

/// Regression: a host lost power while blocks were in flight to it. It sent no reset, and since data was in flight the
/// kernel sent no keepalive probes: the link seemed alive for a quarter of an hour.
#[test]
fn sockets_give_up_a_host_that_falls_silent_while_bytes_are_under_way() {
    use rustix::net::sockopt;
    production::run(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        let socket = dial(&address).await.expect("it listens");
        assert_eq!(
            u128::from(sockopt::tcp_user_timeout(&socket).expect("it can be asked")),
            UNANSWERED_MAX.as_millis()
        );
        assert!(sockopt::socket_keepalive(&socket).expect("it can be asked"));
    });
}

/// Regression: a lost key opened every link until its certificate expired: the channel's revocation lists applied only
/// to identities.
#[test]
fn revoked_and_denied_certificates_get_no_link_in_either_direction() {
    let organization =
        IssuingOrganization::create("A", "a.example.com", &CertificateTerms::starting_now(KeyKind::P256))
            .expect("founded");
    let member = |name: &str| {
        let issued = organization.issue_tls(MemberRole::Peer, name, &["127.0.0.1"]).expect("issued");
        let certificate = Certificate::from_pem(&issued.certificate_pem).expect("a certificate");
        let (certificate_pem, key_pem) = (issued.certificate_pem.to_vec(), issued.key_pem.to_vec());
        (LinkTlsIdentity { certificate_pem, key_pem }, certificate)
    };
    let ((good, _), (lost, lost_certificate), (denied, denied_certificate)) =
        (member("good"), member("lost"), member("denied"));
    let authority = organization.tls_authority();
    let list = authority.revoke(&[&lost_certificate]).expect("a list");
    let roots_pem = [&authority.certificate_pem()[..], &list].concat();
    let strict = [OrganizationRoots { name: "a".to_owned(), roots_pem }];
    let denial = Denial {
        holder: DeniedCertificate::Fingerprint(identity::sha256([&denied_certificate.der()[..]])),
        reason: "lost".to_owned(),
        until: None,
    };
    let _alone = DENYING.lock().expect("no test panics with it");
    // The process's own list; it names no other test's certificate.
    DenyList::of_process().replace(vec![denial]);
    let transport = |identity: &LinkTlsIdentity| TlsTransport::new(identity, &strict).expect("the settings are valid");
    for (name, identity) in [("good", &good), ("lost", &lost), ("denied", &denied)] {
        net::register(&format!("tls-revoked-{name}"), Arc::new(transport(identity)));
    }
    production::run(async {
        let all = async {
            let mut listener = net::listen("tls-revoked-good:127.0.0.1:0").await.expect("a port is free");
            let port = listener.address().rsplit(':').next().expect("it has a port").to_owned();
            for refused in ["lost", "denied"] {
                // A TLS client may finish before the server has checked its certificate.
                if let Ok(link) = net::connect(&format!("tls-revoked-{refused}:127.0.0.1:{port}")).await {
                    let _ = link.send(Bytes::copy_from_slice(refused.as_bytes())).await;
                }
            }
            let near = net::connect(listener.address()).await.expect("it listens");
            near.send(Bytes::from_static(b"good")).await.expect("it is served");
            let mut far = listener.accept().await.expect("it was connected to");
            assert_eq!(far.receive().await.as_deref(), Ok(&b"good"[..]), "nobody else got a link");
            for refused in ["lost", "denied"] {
                let listener =
                    net::listen(&format!("tls-revoked-{refused}:127.0.0.1:0")).await.expect("a port is free");
                let port = listener.address().rsplit(':').next().expect("it has a port").to_owned();
                let error = net::connect(&format!("tls-revoked-good:127.0.0.1:{port}")).await.err();
                let kind = error.expect("it must not be served by them").kind();
                assert_eq!(kind, std::io::ErrorKind::PermissionDenied, "{refused}");
            }
        };
        base::rt::timeout(LINK_TIMEOUT, all).await.expect("nothing hangs");
    });
    DenyList::of_process().replace(Vec::new());
}

/// Regression: a thief of a node's key kept its open links, and read every block until it hung up.
#[test]
fn an_open_link_ends_when_its_certificate_is_denied() {
    let organization =
        IssuingOrganization::create("A", "a.example.com", &CertificateTerms::starting_now(KeyKind::P256))
            .expect("founded");
    let roots_pem = organization.tls_authority().certificate_pem().to_vec();
    let trusted = [OrganizationRoots { name: "a".to_owned(), roots_pem }];
    let mut fingerprints = Vec::new();
    for name in ["server", "good", "stolen"] {
        let issued = organization.issue_tls(MemberRole::Peer, name, &["127.0.0.1"]).expect("issued");
        let certificate = Certificate::from_pem(&issued.certificate_pem).expect("a certificate");
        fingerprints.push(identity::sha256([&certificate.der()[..]]));
        let (certificate_pem, key_pem) = (issued.certificate_pem.to_vec(), issued.key_pem.to_vec());
        let transport = TlsTransport::new(&LinkTlsIdentity { certificate_pem, key_pem }, &trusted);
        net::register(&format!("tls-open-{name}"), Arc::new(transport.expect("the settings are valid")));
    }
    let _alone = DENYING.lock().expect("no test panics with it");
    production::run(async {
        let all = async {
            let mut listener = net::listen("tls-open-server:127.0.0.1:0").await.expect("a port is free");
            let port = listener.address().rsplit(':').next().expect("it has a port").to_owned();
            let mut open = async |name: &str| {
                let near = net::connect(&format!("tls-open-{name}:127.0.0.1:{port}")).await.expect("it is served");
                near.send(Bytes::from_static(b"hello")).await.expect("it is served");
                let mut far = listener.accept().await.expect("it was connected to");
                assert_eq!(far.receive().await.as_deref(), Ok(&b"hello"[..]));
                (near, far)
            };
            let (good_near, mut good_far) = open("good").await;
            let (_near, mut far) = open("stolen").await;
            let (_silent_near, silent_far) = open("stolen").await;
            let denial = Denial {
                holder: DeniedCertificate::Fingerprint(fingerprints[2]),
                reason: "lost".to_owned(),
                until: None,
            };
            let deny = async {
                base::rt::yield_now().await;
                DenyList::of_process().replace(vec![denial]);
            };
            // A side that waits for a message is woken.
            let (received, ()) = tokio::join!(far.receive(), deny);
            assert!(received.is_err(), "{received:?}");
            // A side that only sends is refused eventually: earlier messages are in a queue.
            while silent_far.send(Bytes::from_static(b"block")).await.is_ok() {
                base::rt::yield_now().await;
            }
            good_near.send(Bytes::from_static(b"still here")).await.expect("others go on");
            assert_eq!(good_far.receive().await.as_deref(), Ok(&b"still here"[..]));
        };
        base::rt::timeout(LINK_TIMEOUT, all).await.expect("nothing hangs");
    });
    DenyList::of_process().replace(Vec::new());
}

/// A medium whose links the test makes.
struct Staged(Mutex<Option<mpsc::UnboundedReceiver<Link>>>);

struct StagedListener(mpsc::UnboundedReceiver<Link>);

impl net::Transport for Staged {
    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, std::io::Result<Box<dyn TransportListener>>> {
        let links = self.0.lock().expect("nobody panics with it").take().expect("it is listened to once");
        Box::pin(async { Ok(Box::new(StagedListener(links)) as Box<dyn TransportListener>) })
    }

    fn connect<'a>(&'a self, _: &'a str) -> BoxFuture<'a, std::io::Result<Link>> {
        Box::pin(async { Err(std::io::ErrorKind::ConnectionRefused.into()) })
    }
}

impl TransportListener for StagedListener {
    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Link, Closed>> {
        self.0.poll_recv(cx).map(|link| link.ok_or(Closed))
    }

    fn address(&self) -> String {
        "here".to_owned()
    }
}

const MIB: usize = 1 << 20;

/// The raw end of an organisation's link, and the link as the door admits it.
async fn let_in(
    links: &mpsc::UnboundedSender<Link>,
    door: &mut LinkAcceptor,
    organisation: &str,
) -> (DuplexStream, Link) {
    let (mut near, far) = tokio::io::duplex(MIB);
    near.write_all(b"HDLLINK\x01").await.expect("there is room");
    let (reader, writer) = tokio::io::split(far);
    let link = establish(reader, writer, Some(Principal::new(organisation, organisation))).await;
    links.send(link.expect("the preface is there")).expect("the listener is there");
    (near, door.accept().await.expect("it listens").0)
}

async fn begin(near: &mut DuplexStream, announced: usize, sent: usize) {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&u32::try_from(announced).expect("it is short").to_le_bytes());
    near.write_all(&header).await.expect("the link is there");
    let piece = vec![7; MIB];
    for _ in 0..sent / MIB {
        // The link may end meanwhile; its other end reports that.
        if near.write_all(&piece).await.is_err() {
            break;
        }
    }
}

/// Regression: a member with a node's certificate opened eight links and left a message unfinished on each: they held
/// 198 MiB for as long as it liked.
#[test]
fn unfinished_messages_of_an_organisation_stay_within_its_budget() {
    let (links, staged) = mpsc::unbounded_channel();
    net::register("staged", Arc::new(Staged(Mutex::new(Some(staged)))));
    production::run(async {
        let all = async {
            let mut door =
                LinkAcceptor::open("staged:here", &Parties::of(["one", "two"]), 64).await.expect("it listens");
            let (mut first, mut first_far) = let_in(&links, &mut door, "one").await;
            let (mut second, mut second_far) = let_in(&links, &mut door, "one").await;
            let (mut other, mut other_far) = let_in(&links, &mut door, "two").await;
            let first_message = base::rt::spawn(async move { first_far.receive().await });
            begin(&mut first, 100 * MIB, 80 * MIB).await;
            const { assert!(UNFINISHED_BYTES_MAX < (80 + 78) << 20) };
            // The task that serves a link drops it when it has ended, which ends the writing of its other end.
            let refused = async move { second_far.receive().await };
            let (refused, ()) = tokio::join!(refused, begin(&mut second, 100 * MIB, 80 * MIB));
            assert_eq!(refused, Err(Closed), "two such messages are more than the organisation may have");
            let (whole, ()) = tokio::join!(other_far.receive(), begin(&mut other, 100 * MIB, 100 * MIB));
            assert_eq!(whole.map(|message| message.len()), Ok(100 * MIB), "another organisation has its own budget");
            first.write_all(&vec![7; 20 * MIB]).await.expect("the first link is still there");
            let whole = first_message.await.expect("it does not panic");
            assert_eq!(whole.map(|message| message.len()), Ok(100 * MIB), "what was covered arrives");
        };
        base::rt::timeout(LINK_TIMEOUT, all).await.expect("nothing hangs");
    });
}
