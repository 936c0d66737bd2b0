//! Transactions that want the same keys: order within a block, and answers before a transaction is ordered.

use std::sync::Arc;
use std::time::Duration;

use base::Bytes;
use base::rt::disk::Directory;
use base::rt::net::Parties;
use base::rt::{self, CancellationToken, production};
use chain::commit::recent_writes::OutdatedRead;
use chain::early_abort::outdated_read;
use chain::endorse::Endorse;
use chain::order::{Broadcast, CuttingMode, Orderer};
use chain::peer::Peer;
use chain::remote::{PeerTarget, RemotePeer, RemotePeerConfig, ServiceScope, serve_peer};
use chain::view::PeerView;
use ledger::Code;
use ledger::config::EndorsementRule;
use ledger::rwset::ReadVersion;
use rules::definitions::ContractDefinitions;
use storage::tables::ModelEngine;

use crate::support::*;

/// One organisation whose blocks have two transactions, both options on.
struct ContendedNetwork {
    consortium: Consortium,
    orderer: Arc<Orderer>,
    peer: Arc<Peer>,
    /// The same peer, as a gateway in another process sees it.
    gateway: RemotePeer,
    stop_links: CancellationToken,
}

impl ContendedNetwork {
    async fn start(root: &Directory) -> ContendedNetwork {
        let mut setup = ConsortiumConfig::seeded(1, EndorsementRule::All);
        (setup.batch.messages_max, setup.batch.timeout) = (2, Duration::from_secs(600));
        let consortium = Consortium::create(setup);
        let mut options = orderer_options(&consortium, root).await;
        (options.settings.reorder, options.settings.cutting) = (true, CuttingMode::Limits);
        let orderer = Orderer::open(options).await.expect("the orderer opens");
        orderer.join(&consortium.genesis).await.expect("the orderer joins");
        orderer.serve(&orderer_address(root)).await.expect("the address is free");
        let engine = ModelEngine::open(directory(root, "tables").await).await.expect("the engine opens");
        let mut options = peer_options(&consortium, root, 0, engine).await;
        options.settings.commit.early_abort = true;
        let peer = Peer::open(options).await.expect("the peer opens");
        peer.join(&consortium.genesis).await.expect("the peer joins");
        let (anyone, stop_links, address) = (Parties::anyone(), CancellationToken::new(), root.path().join("links"));
        let address = format!("links of {}", address.display());
        let serving = serve_peer(peer.clone(), ServiceScope::Own, &address, &anyone, stop_links.clone()).await;
        drop(serving.expect("the address is free"));
        let gateway = RemotePeer::new(RemotePeerConfig {
            name: "peer".to_owned(),
            target: PeerTarget::Node(address),
            parties: anyone,
            definitions: ContractDefinitions::new(),
        });
        rt::timeout(Duration::from_secs(20), gateway.reached()).await.expect("the peer serves");
        ContendedNetwork { consortium, orderer, peer, gateway, stop_links }
    }

    async fn endorse(&self, client: &Client, function: &str, args: &[&str]) -> (SignedTestProposal, Bytes) {
        let proposal = client.proposal("smallbank", function, args);
        let response = self.peer.process(proposal.bytes.clone()).await.expect("the proposal is in order");
        let envelope = client.envelope(&proposal, &[response]);
        (proposal, envelope)
    }

    /// Orders two transactions, which become one block; returns the code of each.
    async fn commit(&self, transactions: [&(SignedTestProposal, Bytes); 2]) -> Vec<Code> {
        let channel = self.peer.channel(CHANNEL).expect("it was joined");
        let mut codes = Vec::new();
        for (_, envelope) in transactions {
            self.orderer.broadcast(CHANNEL, envelope.clone()).await.expect("the orderer takes it");
        }
        for (proposal, _) in transactions {
            codes.push(channel.wait_committed(&proposal.tx_id).await.expect("the channel runs").code);
        }
        codes
    }

    async fn outdated(&self, envelope: &Bytes) -> Option<OutdatedRead> {
        outdated_read(&*self.peer.channel(CHANNEL).expect("it was joined"), envelope).await
    }

    async fn outdated_at_gateway(&self, envelope: &Bytes) -> Option<OutdatedRead> {
        outdated_read(&*self.gateway.channel(CHANNEL)?, envelope).await
    }

    async fn stop(self) {
        self.stop_links.cancel();
        self.peer.stop().await.expect("the peer stops");
        self.orderer.stop().await;
    }
}

fn in_network<F: Future<Output = ()>>(test: impl FnOnce(ContendedNetwork) -> F) {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let root = Directory::open(scratch.path()).await.expect("it exists");
        test(ContendedNetwork::start(&root).await).await;
    });
}

#[test]
fn a_reader_goes_before_the_writer_that_arrived_first() {
    in_network(async |network: ContendedNetwork| {
        let client = network.consortium.client();
        let ann = network.endorse(&client, "create_account", &["ann", "Ann", "100", "200"]).await;
        let bob = network.endorse(&client, "create_account", &["bob", "Bob", "100", "200"]).await;
        assert_eq!(network.commit([&ann, &bob]).await, [Code::VALID, Code::VALID]);
        let writer = network.endorse(&client, "deposit_checking", &["5", "ann"]).await;
        let reader = network.endorse(&client, "query", &["ann"]).await;
        assert_eq!(network.commit([&writer, &reader]).await, [Code::VALID, Code::VALID]);
        let channel = network.peer.channel(CHANNEL).expect("it was joined");
        let block = channel.committed_block(2).await.expect("it reads").expect("it is committed");
        let ids: Vec<_> = block.transactions().iter().filter_map(|transaction| transaction.tx_id.clone()).collect();
        assert_eq!(ids, [reader.0.tx_id, writer.0.tx_id]);
        network.stop().await;
    });
}

#[test]
fn only_transactions_that_can_never_be_valid_are_aborted_early() {
    in_network(async |network: ContendedNetwork| {
        let client = network.consortium.client();
        let ann = network.endorse(&client, "create_account", &["ann", "Ann", "100", "200"]).await;
        let bob = network.endorse(&client, "create_account", &["bob", "Bob", "100", "200"]).await;
        // It found the account missing, which may become true again.
        let again = network.endorse(&client, "create_account", &["ann", "Ann", "1", "2"]).await;
        network.commit([&ann, &bob]).await;
        let late = network.endorse(&client, "deposit_checking", &["7", "ann"]).await;
        let (one, two) = (network.endorse(&client, "deposit_checking", &["5", "ann"]).await, &again);
        assert_eq!(network.outdated(&late.1).await, None, "nothing has changed yet");
        assert_eq!(network.commit([&one, two]).await, [Code::VALID, Code::MVCC_READ_CONFLICT]);
        let (seen, newest) = (ReadVersion { block: 1, transaction: 0 }, ReadVersion { block: 2, transaction: 0 });
        let expected = OutdatedRead { contract: "smallbank".to_owned(), seen, newest };
        assert_eq!(network.outdated(&late.1).await, Some(expected));
        // A gateway in another process learns it with the notice of the block.
        let gateway = async {
            while network.outdated_at_gateway(&late.1).await.is_none() {
                rt::sleep(Duration::from_millis(5)).await;
            }
        };
        rt::timeout(Duration::from_secs(20), gateway).await.expect("the gateway learns the rows");
        assert_eq!(network.outdated_at_gateway(&one.1).await, None);
        // Endorsed again, it is up to date.
        let fresh = network.endorse(&client, "deposit_checking", &["7", "ann"]).await;
        assert_eq!(network.outdated(&fresh.1).await, None);
        // Its own write is the newer version.
        assert_eq!(network.outdated(&one.1).await, None);
        let missing = network.endorse(&client, "create_account", &["eve", "Eve", "1", "2"]).await;
        assert_eq!(network.outdated(&missing.1).await, None);
        // Strangers, and members who use another one's name, learn nothing.
        let mut forged = late.1.to_vec();
        let last = forged.len() - 1;
        forged[last] ^= 1;
        assert_eq!(network.outdated(&forged.into()).await, None);
        let stranger = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All)).clients.swap_remove(1);
        let stranger = Client { signer: stranger };
        let mut foreign = late.0.clone();
        let nonce = Bytes::from_static(b"a nonce of twenty-four b");
        foreign.header = stranger
            .shaped(ProposalOverrides { nonce: nonce.to_vec(), ..Default::default() }, "smallbank", "query", &["ann"])
            .header;
        let response = network.peer.process(late.0.bytes.clone()).await;
        assert!(response.is_ok(), "the peer signs it once more");
        let foreign = stranger.envelope(&foreign, &[response.expect("just checked")]);
        assert_eq!(network.outdated(&foreign).await, None);
        for bytes in [&b""[..], b"\x0a\x00", b"no envelope"] {
            assert_eq!(network.outdated(&Bytes::copy_from_slice(bytes)).await, None);
        }
        network.stop().await;
    });
}
