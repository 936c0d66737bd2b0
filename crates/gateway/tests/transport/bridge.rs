//! A chaincode that connects, and peers that connect to it, with a bridge between them.

use gateway::chaincode::ChaincodeBridge;
use gateway::grpc::client::{RequestStream, ResponseStream};

use super::*;

/// One side's open call.
struct Side {
    requests: RequestStream,
    responses: ResponseStream,
    _connection: GrpcConnection,
}

impl Side {
    async fn open(address: SocketAddr, method: &'static str) -> Side {
        let target = ConnectTarget { address: address.to_string(), tls: None };
        let connection = GrpcConnection::connect(&target).await.expect("a bridge");
        let (requests, responses) = connection.open(method, None).await.expect("a stream");
        Side { requests, responses, _connection: connection }
    }

    async fn chaincode(address: SocketAddr) -> Side {
        Side::open(address, "/protos.ChaincodeSupport/Register").await
    }

    async fn peer(address: SocketAddr) -> Side {
        Side::open(address, "/protos.Chaincode/Connect").await
    }

    async fn send(&mut self, text: &'static str) {
        self.requests.send_framed(prefixed(text.as_bytes())).await.expect("an open stream");
    }

    async fn expect(&mut self, text: &str) {
        let received = self.responses.next_bytes().await.expect("an open stream");
        assert_eq!(received.as_deref(), Some(text.as_bytes()));
    }

    async fn expect_status(&mut self, code: GrpcCode) {
        let status = self.responses.next_bytes().await.expect_err("the call ends");
        assert_eq!(status.code, code, "{status}");
    }
}

/// A bridge, and the address for peers.
async fn bridge() -> (ChaincodeBridge, SocketAddr) {
    let bridge = ChaincodeBridge::open().await.expect("a free port");
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = free.local_addr().expect("an address");
    drop(free);
    bridge.open_to_peers(address).await.expect("a free port");
    (bridge, address)
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_peer_gets_a_chaincode_of_its_own_and_both_end_together() {
    let (bridge, peers) = bridge().await;
    let mut first = Side::chaincode(bridge.address()).await;
    first.send("register 1").await;
    until(|| bridge.has_registered()).await;
    assert_eq!((bridge.streams(), bridge.calls()), (1, 0));

    let mut one = Side::peer(peers).await;
    one.expect("register 1").await;
    assert_eq!(bridge.calls(), 1);
    one.send("registered").await;
    first.expect("registered").await;

    // This peer waits until a chaincode has started for it.
    let mut other = Side::peer(peers).await;
    until(|| bridge.calls() == 2).await;
    let mut second = Side::chaincode(bridge.address()).await;
    second.send("register 2").await;
    other.expect("register 2").await;
    other.send("ready").await;
    second.expect("ready").await;

    drop(first);
    one.expect_status(GrpcCode::Unavailable).await;
    drop(other);
    second.expect_status(GrpcCode::Unavailable).await;
    until(|| (bridge.streams(), bridge.calls()) == (0, 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_gets_no_chaincode_that_has_ended_and_a_chaincode_no_peer_that_has_gone() {
    let (bridge, peers) = bridge().await;
    let mut ended = Side::chaincode(bridge.address()).await;
    ended.send("register 1").await;
    until(|| bridge.streams() == 1).await;
    drop(ended);
    until(|| bridge.streams() == 0).await;
    let gone = Side::peer(peers).await;
    until(|| bridge.calls() == 1).await;
    drop(gone);
    until(|| bridge.calls() == 0).await;

    let mut chaincode = Side::chaincode(bridge.address()).await;
    chaincode.send("register 2").await;
    let mut peer = Side::peer(peers).await;
    peer.expect("register 2").await;
    drop(bridge);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_chaincodes_and_of_peers_are_bounded() {
    let (bridge, peers) = bridge().await;
    let mut held = Vec::new();
    for _ in 0..16 {
        let mut chaincode = Side::chaincode(bridge.address()).await;
        chaincode.send("register").await;
        held.push(chaincode);
        held.push(Side::peer(peers).await);
    }
    until(|| (bridge.streams(), bridge.calls()) == (16, 16)).await;
    Side::peer(peers).await.expect_status(GrpcCode::ResourceExhausted).await;
    let mut chaincode = Side::chaincode(bridge.address()).await;
    chaincode.send("register").await;
    chaincode.expect_status(GrpcCode::ResourceExhausted).await;
}
