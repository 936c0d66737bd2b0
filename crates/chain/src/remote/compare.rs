//! Checks whether the peers of a channel reach the same verdicts.
//!
//! Each block's commit hash covers its verdicts and all earlier commit hashes. So two peers agree on everything up to a
//! block if they agree on its commit hash. A gateway process has links to its own peer and to peers of other organisations,
//! and compares its own peer with each of them:
//!
//! 1. Every [`COMPARE_PERIOD`] it asks the other peer for the commit hash of the newest block that both have.
//! 2. It reads its own peer's commit hash of the same block. If the two differ, it reports the difference: in the log,
//!    once; in [`CommitHashesDiverged`](crate::events::CommitHashesDiverged); and, for health checks, in
//!    [`CommitHashComparison::divergence`].
//!
//! The comparison has no other effect: only an operator can find out which of the two peers is wrong, and another
//! organisation's answer may be false.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use base::rt;
use ledger::Hash;

use super::RemotePeer;
use crate::view::{ChannelView, PeerView};
use crate::{Error, events};

/// How often two peers are compared.
pub const COMPARE_PERIOD: Duration = Duration::from_secs(5);

/// The comparison of the own peer with one other peer.
pub struct CommitHashComparison {
    /// The organisation of the other peer.
    whose: String,
    other: Arc<RemotePeer>,
    /// By channel.
    divergences: Mutex<BTreeMap<String, String>>,
}

impl CommitHashComparison {
    /// Compares with the peer of this organisation.
    pub fn new(whose: impl Into<String>, other: Arc<RemotePeer>) -> CommitHashComparison {
        CommitHashComparison { whose: whose.into(), other, divergences: Mutex::default() }
    }

    /// The difference, until the two peers are found to agree again.
    pub fn divergence(&self) -> Option<String> {
        self.by_channel().values().next().cloned()
    }

    /// Compares periodically, until the future is dropped.
    pub async fn run(&self, own: Arc<dyn PeerView>) {
        loop {
            rt::sleep(COMPARE_PERIOD).await;
            for channel in own.channels() {
                if let Err(error) = self.compare(channel.as_ref()).await {
                    // Either peer may be away, or run a release that does not answer for commit hashes.
                    tracing::debug!(whose = self.whose, %error, "commit hashes cannot be compared now");
                }
            }
        }
    }

    /// Compares once.
    ///
    /// # Errors
    /// If one of the two cannot be asked.
    pub async fn compare(&self, own: &dyn ChannelView) -> Result<(), Error> {
        let Some(newest) = own.height().checked_sub(1) else { return Ok(()) };
        let name = own.policies().channel().to_string();
        let Some((number, theirs)) = self.other.commit_hash(&name, newest).await? else { return Ok(()) };
        let Some(block) = own.committed_block(number).await? else { return Ok(()) };
        match block.block().metadata().commit_hash()? {
            Some(ours) if ours != theirs => self.record_divergence(&name, number, &ours, &theirs),
            // The commit hash chains over all earlier blocks, so the two histories agree up to this block.
            Some(_) => drop(self.by_channel().remove(&name)),
            None => {}
        }
        Ok(())
    }

    fn by_channel(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.divergences.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record_divergence(&self, channel: &str, block: u64, ours: &Hash, theirs: &Hash) {
        let mut parted = self.by_channel();
        if parted.contains_key(channel) {
            return;
        }
        let whose = &self.whose;
        let (ours, theirs) = (identity::hex::encode(ours), identity::hex::encode(theirs));
        tracing::error!(channel, whose, block, ours, theirs, "another peer has come to other verdicts");
        events::CommitHashesDiverged.add(1);
        let text = format!(
            "the peer of {whose} has commit hash {theirs} at block {block} of channel {channel}, this organisation's peer {ours}: they \
             judged a transaction up to there differently. Compare the policies of contracts that the ledger does not define, \
             and verify both ledgers (`heddle ledger verify`)"
        );
        parted.insert(channel.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use base::rt::disk::Directory;
    use base::rt::net::Parties;
    use base::rt::{CancellationToken, production};
    use storage::tables::ModelEngine;

    use super::*;
    use crate::Peer;
    use crate::remote::{PeerTarget, RemotePeerConfig, ServiceScope, serve_peer};
    use crate::support::{CHANNEL, Consortium, ConsortiumConfig, directory, orderer, peer, peer_options, submit};
    use ledger::Code;
    use ledger::lifecycle::ContractDefinition;
    use rules::definitions::ContractDefinitions;

    /// Regression: the operator of one peer had configured another policy for a contract. The peers reached different
    /// verdicts on one transaction, which went unnoticed until someone compared the ledgers.
    #[test]
    fn peers_that_judged_by_other_policies_are_told_apart() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        production::run(async {
            let root = Directory::open(scratch.path()).await.expect("it exists");
            let terms = ConsortiumConfig::seeded(2, ledger::config::EndorsementRule::Any);
            let consortium = Consortium::create(terms);
            let orderer = orderer(&consortium, &root).await;
            let own = peer(&consortium, &root, 0).await;
            let other = {
                let tables = ModelEngine::open(directory(&root, "tables1").await).await.expect("the engine opens");
                let both = identity::policy::parse("AND('Org1MSP.peer', 'Org2MSP.peer')").expect("a policy");
                let endorsement = identity::policy::of_signature(both);
                let definition = ContractDefinition::first("1.0", &endorsement);
                let definitions: ContractDefinitions = [("smallbank".to_owned(), definition)].into_iter().collect();
                let options = peer_options(&consortium, &root, 1, tables).await;
                let peer = Peer::open(crate::PeerSetup { definitions, ..options }).await.expect("the peer opens");
                peer.join(&consortium.genesis).await.expect("the peer joins");
                peer
            };
            let stop = CancellationToken::new();
            let compared = async |peer: &Arc<Peer>, address: &str| {
                let parties = Parties::anyone();
                let serving = serve_peer(peer.clone(), ServiceScope::Others, address, &parties, stop.clone()).await;
                drop(serving.expect("the address is free"));
                let remote = RemotePeer::new(RemotePeerConfig {
                    name: "another peer".to_owned(),
                    target: PeerTarget::Node(address.to_owned()),
                    parties,
                    definitions: ContractDefinitions::new(),
                });
                remote.reached().await;
                CommitHashComparison::new("Org2MSP", Arc::new(remote))
            };
            let parts = compared(&other, "compare-other").await;
            let stays = compared(&own, "compare-own").await;
            let channel = own.channel(CHANNEL).expect("it was joined");
            let compare = async |comparison: &CommitHashComparison| {
                comparison.compare(channel.as_ref()).await.expect("both answer");
                comparison.divergence()
            };
            assert_eq!(compare(&parts).await, None, "both have the first block alone");

            let client = consortium.client();
            let args = ["alice", "Alice", "10", "20"];
            let endorsed_once = submit(&client, &[&own], &orderer, "smallbank", "create_account", &args).await;
            let code = async |peer: &Arc<Peer>| {
                let channel = peer.channel(CHANNEL).expect("it was joined");
                channel.wait_committed(&endorsed_once).await.expect("the channel runs").code
            };
            assert_eq!(code(&own).await, Code::VALID);
            assert_eq!(code(&other).await, Code::ENDORSEMENT_POLICY_FAILURE);
            let counted = events::CommitHashesDiverged.value();
            let text = compare(&parts).await.expect("their verdicts differ");
            assert!(text.contains("the peer of Org2MSP") && text.contains("at block 1 of channel"), "{text}");
            assert_eq!(events::CommitHashesDiverged.value(), counted + 1);
            assert_eq!(compare(&parts).await, Some(text), "it stays, and is counted once");
            assert_eq!(events::CommitHashesDiverged.value(), counted + 1);
            assert_eq!(compare(&stays).await, None);
            stop.cancel();
            own.stop().await.expect("the disk works");
            other.stop().await.expect("the disk works");
            orderer.stop().await;
        });
    }
}
