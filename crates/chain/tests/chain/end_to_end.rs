//! From a proposal to a committed transaction, in one process.

use crate::support::*;
use base::rt::disk::Directory;
use base::rt::production;
use chain::endorse::Endorse;
use ledger::Code;
use ledger::config::EndorsementRule;

#[test]
fn a_transaction_travels_from_proposal_to_every_peers_state() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    production::run(async {
        let root = Directory::open(scratch.path()).await.expect("it exists");
        let consortium = Consortium::create(ConsortiumConfig::seeded(2, EndorsementRule::All));
        let orderer = orderer(&consortium, &root).await;
        let peers = [peer(&consortium, &root, 0).await, peer(&consortium, &root, 1).await];
        let client = consortium.client();
        let both = [&peers[0], &peers[1]];

        let args = ["alice", "Alice", "100", "200"];
        let create = submit(&client, &both, &orderer, "smallbank", "create_account", &args).await;
        for peer in &peers {
            let channel = peer.channel(CHANNEL).expect("it was joined");
            let status = channel.wait_committed(&create).await.expect("the channel runs");
            assert_eq!((status.code, status.block), (Code::VALID, 1));
        }
        let pay = submit(&client, &both, &orderer, "smallbank", "deposit_checking", &["5", "alice"]).await;
        let mut digests = Vec::new();
        for peer in &peers {
            let channel = peer.channel(CHANNEL).expect("it was joined");
            assert_eq!(channel.wait_committed(&pay).await.expect("the channel runs").code, Code::VALID);
            digests.push(channel.state().digest().await.expect("the state reads"));
        }
        assert_eq!(digests[0], digests[1]);
        let query = client.proposal("smallbank", "query", &["alice"]);
        let answer = peers[0].evaluate(query.bytes).await.expect("the proposal is in order");
        assert_eq!(answer.status, 200, "{}", answer.message);
        for peer in peers {
            peer.stop().await.expect("the peer stops");
        }
        orderer.stop().await;
    });
}
