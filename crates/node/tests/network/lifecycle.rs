//! The life of a whole network in this process, used through gRPC.

use std::time::{Duration, Instant};

use base::Bytes;
use gateway::client::{GatewayClient, GrpcCode, GrpcConnection};
use gateway::grpc::client::ClientIdentity;
use identity::issue::{CertificateTerms, IssuingOrganization};
use identity::{KeyKind, MemberRole, sha256};
use node::config::{HeddleConfig, organization_names};
use node::{Network, NodeError, RunningNetwork};
use prost::Message as _;
use proto::discovery::query::Query as Kind;
use proto::discovery::query_result::Result as Found;
use proto::discovery::{AuthInfo, ConfigQuery, Query, Request, Response, SignedRequest};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

fn config(organizations: usize) -> HeddleConfig {
    let mut config = HeddleConfig::default();
    config.network.organizations = organization_names(organizations);
    config.ports.gateway = 0;
    config.ports.orderer = 0;
    config.ports.metrics = 0;
    config.batch.timeout_ms = 20;
    config
}

async fn client(running: &RunningNetwork, organization: usize) -> GatewayClient {
    let connection = GrpcConnection::connect(&running.gateway(organization)).await.expect("a gateway that listens");
    GatewayClient::new(connection, running.user(organization))
}

fn args(args: &[&str]) -> Vec<Bytes> {
    args.iter().map(|arg| Bytes::copy_from_slice(arg.as_bytes())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_goes_from_proposal_to_every_peer_and_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let begin = Instant::now();
    let network = Network::create(folder.path(), &config(3)).await.expect("a network");
    let running = network.run().await.expect("a network that runs");
    println!("ready after {:?}", begin.elapsed());
    let mut block = 0;
    for (organization, id) in ["a1", "a2", "a3"].into_iter().enumerate() {
        let client = client(&running, organization).await;
        let created =
            client.transact("mychannel", "basic", "CreateAsset", &args(&[id, "blue", "5", "Ada", "300"])).await;
        let created = created.unwrap_or_else(|status| panic!("{status}"));
        assert!(created.commit.is_valid(), "{created:?}");
        block = block.max(created.commit.block);
    }
    for organization in 0..3 {
        let client = client(&running, organization).await;
        let channel = running
            .peer(organization)
            .expect("a peer with one compute node")
            .channel("mychannel")
            .expect("a channel that was joined");
        channel.committed().wait_for(|height| *height > block).await.expect("a channel that goes on");
        let proposal = client.proposal("mychannel", "basic", "ReadAsset", &args(&["a2"])).sign();
        let asset = client.evaluate(&proposal).await.unwrap_or_else(|status| panic!("{status}"));
        assert!(asset.starts_with(b"{"), "{asset:?}");
    }
    running.stop().await.expect("a stop without errors");

    let network = Network::open(folder.path()).await.expect("the same network");
    let running = network.run().await.expect("a network that runs");
    let client = client(&running, 1).await;
    let proposal = client.proposal("mychannel", "basic", "ReadAsset", &args(&["a3"])).sign();
    let asset = client.evaluate(&proposal).await.unwrap_or_else(|status| panic!("{status}"));
    assert!(asset.starts_with(b"{"), "{asset:?}");
    let again = client.transact("mychannel", "basic", "TransferAsset", &args(&["a3", "Grace"])).await;
    assert!(again.unwrap_or_else(|status| panic!("{status}")).commit.is_valid());
    running.stop().await.expect("a stop without errors");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_is_created_once_and_used_by_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    assert!(matches!(Network::open(folder.path()).await, Err(NodeError::Absent(_))));
    let network = Network::create(folder.path(), &config(1)).await.expect("a network");
    assert!(matches!(Network::open(folder.path()).await, Err(NodeError::Storage(storage::Error::Locked { .. }))));
    drop(network);
    assert!(matches!(Network::create(folder.path(), &config(1)).await, Err(NodeError::Exists(_))));
    let error = Network::open_with(folder.path(), &config(2)).await.expect_err("another network").to_string();
    assert!(error.contains("network.organizations"), "{error}");
    std::fs::write(folder.path().join("VERSION"), "heddle 99\n").expect("a file");
    let error = Network::open(folder.path()).await.expect_err("another version").to_string();
    assert!(error.contains("99"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_readable_by_their_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a temporary directory");
    drop(Network::create(folder.path(), &config(2)).await.expect("a network"));
    let (mut folders, mut keys) = (vec![folder.path().to_path_buf()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let entry = entry.expect("an entry");
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let name = entry.file_name().into_string().expect("a name");
            if name == "priv_sk" || name.ends_with(".key") {
                keys += 1;
                let mode = entry.metadata().expect("a file").permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{}", entry.path().display());
            }
        }
    }
    // For each of two organisations: two authorities, a peer, a user and an administrator, the last three with TLS; the
    // orderer's organisation has one user less.
    assert_eq!(keys, 2 * 8 + 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_named() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut config = config(1);
    config.ports.orderer = taken.local_addr().expect("an address").port();
    let network = Network::create(folder.path(), &config).await.expect("a network");
    let error = network.run().await.expect_err("a port that is taken").to_string();
    assert!(error.contains("ports.orderer") && error.contains(&config.ports.orderer.to_string()), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_without_tls_works_too() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = HeddleConfig { tls: false, ..config(2) };
    let running = Network::create(folder.path(), &config).await.expect("a network").run().await.expect("it runs");
    let client = client(&running, 1).await;
    let created = client.transact("mychannel", "basic", "CreateAsset", &args(&["a", "blue", "5", "Ada", "300"])).await;
    assert!(created.unwrap_or_else(|status| panic!("{status}")).commit.is_valid());
    let client = client.with_deadline(Some(Duration::from_millis(200)));
    let status = client.commit_status("mychannel", "unknown").await.expect_err("no such transaction");
    assert_eq!(status.code, GrpcCode::DeadlineExceeded);
    running.stop().await.expect("a stop without errors");
}

/// The ports of the orderers that a gateway's discovery names.
async fn discovered_orderer_ports(running: &RunningNetwork) -> Vec<u32> {
    let own = IssuingOrganization::create("AnyMSP", "any.example.com", &CertificateTerms::starting_now(KeyKind::P256));
    let own = own.expect("an authority").issue_tls(MemberRole::Client, "any", &[]).expect("a certificate");
    let der = CertificateDer::from_pem_slice(&own.certificate_pem).expect("a certificate");
    let identity = ClientIdentity { certificate_pem: own.certificate_pem.to_vec(), key_pem: own.key_pem.to_vec() };
    let connected = GrpcConnection::connect_as(&running.gateway(0), Some(&identity), Duration::from_secs(10)).await;
    let signer = running.user(0);
    let authentication = AuthInfo {
        client_identity: signer.serialized().clone(),
        client_tls_cert_hash: Bytes::copy_from_slice(&sha256([&der[..]])),
    };
    let query = Query { channel: "mychannel".to_owned(), query: Some(Kind::ConfigQuery(ConfigQuery {})) };
    let request = Request { authentication: Some(authentication), queries: vec![query] };
    let payload = Bytes::from(request.encode_to_vec());
    let signature = signer.sign(&payload);
    let request = SignedRequest { payload, signature };
    let connection = connected.expect("a gateway that listens");
    let response: Response = connection
        .unary("/discovery.Discovery/Discover", &request, None)
        .await
        .unwrap_or_else(|status| panic!("{status}"));
    let Some(Some(Found::ConfigResult(config))) = response.results.into_iter().next().map(|result| result.result)
    else {
        panic!("no configuration")
    };
    config.orderers["OrdererMSP"].endpoint.iter().map(|endpoint| endpoint.port).collect()
}

/// The story: with `ports.orderer = 0` the channel's configuration names a port that nobody listens at, and so did discovery.
#[tokio::test(flavor = "multi_thread")]
async fn discovery_names_the_port_at_which_the_orderer_listens() {
    let port = |running: &RunningNetwork| {
        let target = running.orderer_target().address;
        target.rsplit_once(':').expect("an address has a port").1.parse::<u32>().expect("a number")
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let network = Network::create(folder.path(), &config(1)).await.expect("a network");
    let running = network.run().await.expect("a network that runs");
    assert_eq!(discovered_orderer_ports(&running).await, [port(&running)]);
    running.stop().await.expect("a stop without errors");

    // After a restart it is another one.
    let running = Network::open(folder.path()).await.expect("the same network").run().await.expect("it runs");
    assert_eq!(discovered_orderer_ports(&running).await, [port(&running)]);
    running.stop().await.expect("a stop without errors");
}
