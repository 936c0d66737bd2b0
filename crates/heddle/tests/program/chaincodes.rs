//! Tests chaincodes outside of the peers in networks whose roles are separate processes.

use std::path::Path;
use std::time::{Duration, Instant};

use contract::packages::{ChaincodePackage, package_of_dialer, package_of_service};
use gateway::client::{ClientTls, ConnectTarget, GatewayClient, GrpcCode};
use gateway::grpc::client::ClientIdentity;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole};
use node::ProcessRole;
use rustix::process::Signal;

use crate::support::chaincode::{
    Call, Definition, FOLLOW_TIMEOUT, ListeningChaincode, TestChaincode, administrators, call, client, follows,
    install, listener, port,
};
use crate::support::processes::{back, processes, send};
use crate::support::{Network, patiently};

/// A client learns sooner than this that its call has failed; the calls would hang for as long as they may.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Compute nodes of a peer.
const NODES: usize = 2;

/// Repeats a query until each of the peer's compute nodes has a stream to the chaincode: the gateway takes turns.
async fn all_nodes_connect(client: &GatewayClient, call: &Call<'_>, expected: &str, chaincode: &TestChaincode) {
    let start = Instant::now();
    while chaincode.streams() < NODES {
        all_nodes_answer(client, call, expected).await;
        assert!(start.elapsed() < FOLLOW_TIMEOUT, "a compute node does not call the chaincode");
    }
    assert_eq!(chaincode.streams(), NODES);
}

/// Repeats a query until it has succeeded so often in a row that each of the peer's compute nodes has answered it: the gateway
/// takes turns. A node that follows another one learns of a definition a little later.
async fn all_nodes_answer(client: &GatewayClient, call: &Call<'_>, expected: &str) {
    let (start, mut answered) = (Instant::now(), 0);
    while answered < 6 {
        match patiently(async || call.evaluate(client).await).await {
            Ok(found) => {
                assert_eq!(found, expected);
                answered += 1;
            }
            Err(status) => {
                assert!(start.elapsed() < FOLLOW_TIMEOUT, "{status}");
                answered = 0;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compute_nodes_in_processes_of_their_own_run_every_kind_of_chaincode() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let terms = CertificateTerms::starting_now(KeyKind::P256);
    let issuer = IssuingOrganization::create("ChaincodesMSP", "chaincodes.example.com", &terms).expect("keys");
    let tls = issuer.issue_tls(MemberRole::Peer, "dialer", &["localhost"]).expect("a certificate");
    let (config, authorities) = (dir.with_extension("toml"), dir.with_extension("pem"));
    std::fs::write(&authorities, &tls.authority_pem).expect("it can be written");
    let (configured, _hangs) = TestChaincode::new("configured");
    let (socket, address) = listener();
    let _configured = ListeningChaincode::start(configured.clone(), socket);
    let (first, second) = (port(200), port(201));
    let text = format!(
        "[contracts]\nbasic = {{}}\nconfigured = {{}}\n\n[chaincode_port]\nport = {first}\nauthorities = {authorities:?}\n\n\
         [[chaincodes]]\nname = \"configured\"\naddress = \"{address}\"\n"
    );
    std::fs::write(&config, text).expect("it can be written");
    let config = config.display().to_string();
    let arguments = ["--orgs", "1", "--compute-nodes", "2", "--isolate", "--config", &config];
    let network = Network::start(&dir, &arguments);
    let admins = administrators(&dir).await;
    let user = client(&dir, 1).await;

    // A service that the configuration names.
    call("configured", &["Put", "car", "Ada"]).submit(&user).await.unwrap_or_else(|status| panic!("{status}"));
    all_nodes_connect(&user, &call("configured", &["Get", "car"]), "Ada", &configured).await;

    // An installed package with an address.
    let (socket, address) = listener();
    let package = package_of_service("assets_1.0", &address.to_string());
    let id = ChaincodePackage::parse(&package).expect("a package").id;
    let (assets, _hangs) = TestChaincode::new(&id);
    let _assets = ListeningChaincode::start(assets.clone(), socket);
    let installed = install(&admins[0], package.clone()).await.expect("a package");
    assert_eq!(installed.package_id, id);
    for _ in 0..2 {
        let again = install(&admins[0], package.clone()).await.expect_err("both compute nodes know it");
        assert!(again.contains("already successfully installed"), "{again}");
    }
    let definition = Definition {
        channel: "mychannel",
        name: "assets",
        package: &id,
        policy: "OR('Org1MSP.peer')",
        collection: None,
    };
    definition.bring(&admins).await;
    follows(&user, &call("assets", &["Put", "car", "Bob"])).await;
    all_nodes_connect(&user, &call("assets", &["Get", "car"]), "Bob", &assets).await;

    // An installed package whose chaincode connects, to each of the compute nodes. Its label is the name of the certificate.
    let package = package_of_dialer("dialer.chaincodes.example.com");
    let id = ChaincodePackage::parse(&package).expect("a package").id;
    Definition { name: "dialer", package: &id, ..definition }.bring(&admins).await;
    let start = Instant::now();
    loop {
        let missing = call("dialer", &["Get", "car"]).evaluate(&user).await.expect_err("it is not installed");
        assert_eq!(missing.code, GrpcCode::FailedPrecondition, "a retry would not help: {missing}");
        if missing.to_string().contains("chaincode is not installed: install package dialer.chaincodes.example.com:") {
            break;
        }
        assert!(start.elapsed() < FOLLOW_TIMEOUT, "{missing}");
    }
    install(&admins[0], package).await.expect("a package");
    let (dialer, _hangs) = TestChaincode::new(&id);
    let identity = ClientIdentity { certificate_pem: tls.certificate_pem.to_vec(), key_pem: tls.key_pem.to_vec() };
    let authority = dir.join("organizations/peerOrganizations/org1.example.com/tlsca/tlsca.org1.example.com-cert.pem");
    let roots_pem = std::fs::read(&authority).unwrap_or_else(|error| panic!("{}: {error}", authority.display()));
    let mut dialing = tokio::task::JoinSet::new();
    for port in [first, second] {
        let (dialer, identity) = (dialer.clone(), identity.clone());
        let tls = Some(ClientTls { roots_pem: roots_pem.clone(), server_name: "localhost".to_owned() });
        let target = ConnectTarget { address: format!("127.0.0.1:{port}"), tls };
        dialing.spawn(async move {
            // The other compute node finds the package a little later, and a restarted one opens its port later.
            loop {
                let ended = dialer.dial(&target, &identity).await;
                println!("the stream to {} ended: {ended:?}", target.address);
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
    }
    follows(&user, &call("dialer", &["Put", "car", "Eve"])).await;
    all_nodes_answer(&user, &call("dialer", &["Get", "car"]), "Eve").await;

    // Packages are installed for good.
    let killed: Vec<_> = processes(&dir).into_iter().filter(|process| process.role == ProcessRole::Compute).collect();
    killed.iter().for_each(|process| send(process.process, Signal::KILL));
    for process in &killed {
        back(&dir, process).await;
    }
    all_nodes_answer(&user, &call("assets", &["Get", "car"]), "Bob").await;
    all_nodes_answer(&user, &call("dialer", &["Get", "car"]), "Eve").await;
    dialing.shutdown().await;
    network.down();
}

/// A network of one organisation whose configuration names one chaincode.
fn with_one_chaincode(folder: &Path, address: std::net::SocketAddr) -> Network {
    let dir = folder.join("network");
    let config = dir.with_extension("toml");
    let sections =
        format!("[contracts]\nassets = {{}}\n\n[[chaincodes]]\nname = \"assets\"\naddress = \"{address}\"\n");
    std::fs::write(&config, sections).expect("it can be written");
    Network::start(&dir, &["--orgs", "1", "--isolate", "--config", &config.display().to_string()])
}

/// Ends a process in the middle of a call, which `end` does. The client learns it at once, and its next try succeeds.
async fn fails_at_once_and_then_succeeds(
    client: &GatewayClient,
    hangs: &mut tokio::sync::mpsc::UnboundedReceiver<String>,
    key: &str,
    end: impl Future<Output = ()>,
) {
    let hanging = ["Hang", key, "Ada"];
    let hanging = call("assets", &hanging);
    let calling = async {
        let outcome = hanging.submit(client).await;
        (outcome.expect_err("its call has ended"), Instant::now())
    };
    let ending = async {
        assert_eq!(hangs.recv().await.as_deref(), Some(key));
        let begun = Instant::now();
        end.await;
        begun
    };
    let ((status, failed), ended) = tokio::join!(calling, ending);
    println!("{:?} after the end: {status}", failed.saturating_duration_since(ended));
    assert!(failed.saturating_duration_since(ended) < AT_ONCE, "{status}");
    assert!(matches!(status.code, GrpcCode::Unavailable | GrpcCode::Aborted), "{status}");
    follows(client, &call("assets", &["Put", key, "Bob"])).await;
    let found = patiently(async || call("assets", &["Get", key]).evaluate(client).await).await;
    assert_eq!(found.unwrap_or_else(|status| panic!("{status}")), "Bob");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chaincode_or_an_endorser_that_is_killed_in_the_middle_of_a_call_fails_it_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("network");
    let (socket, address) = listener();
    let (chaincode, mut hangs) = TestChaincode::new("assets");
    let running = ListeningChaincode::start(chaincode.clone(), socket);
    let network = with_one_chaincode(folder.path(), address);
    let user = client(&dir, 1).await;

    let mut restarted = None;
    fails_at_once_and_then_succeeds(&user, &mut hangs, "chaincode", async {
        running.kill();
        // It comes back at its address.
        let socket = loop {
            match std::net::TcpListener::bind(address) {
                Ok(socket) => break socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        restarted = Some(ListeningChaincode::start(chaincode.clone(), socket));
    })
    .await;

    let endorser = processes(&dir).into_iter().find(|process| process.role == ProcessRole::Compute).expect("it runs");
    fails_at_once_and_then_succeeds(&user, &mut hangs, "endorser", async {
        send(endorser.process, Signal::KILL);
    })
    .await;
    back(&dir, &endorser).await;
    drop(restarted);
    network.down();
}
