//! Whether the peers of a channel come to the same verdicts.
//!
//! Each block's commit hash covers its verdicts and all commit hashes before it, so that two peers agree on everything up to a block if
//! they agree on its commit hash. A gateway process has links to its own peer and to those of other organisations, and compares them:
//!
//! 1. Every [`COMPARE_PERIOD`] it asks the other peer for the commit hash of the newest block that both have.
//! 2. It reads the own peer's commit hash of the same block. Where the two differ it says so: in the log, once; in
//!    [`CommitHashesParted`](crate::events::CommitHashesParted); and in [`Comparison::parted`], for health.
//!
//! Nothing else follows: which of the two is wrong only an operator can find out, and what another organisation says may be false.

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

/// One other peer, as it compares with the own one.
pub struct Comparison {
    /// Whose peer it is.
    whose: String,
    other: Arc<RemotePeer>,
    /// By channel.
    parted: Mutex<BTreeMap<String, String>>,
}

impl Comparison {
    /// Compares with the peer of this organisation.
    pub fn new(whose: impl Into<String>, other: Arc<RemotePeer>) -> Comparison {
        Comparison { whose: whose.into(), other, parted: Mutex::default() }
    }

    /// What differs, if something does, until the two are found to agree again.
    pub fn parted(&self) -> Option<String> {
        self.by_channel().values().next().cloned()
    }

    /// Compares again and again, until the future is dropped.
    pub async fn run(&self, own: Arc<dyn PeerView>) {
        loop {
            rt::sleep(COMPARE_PERIOD).await;
            for channel in own.channels() {
                if let Err(error) = self.compare(channel.as_ref()).await {
                    // Either peer may be away, or be of a release that is not asked for hashes.
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
        let name = own.rules().channel().to_string();
        let Some((number, theirs)) = self.other.commit_hash(&name, newest).await? else { return Ok(()) };
        let Some(block) = own.committed_block(number).await? else { return Ok(()) };
        match block.block().metadata().commit_hash()? {
            Some(ours) if ours != theirs => self.note(&name, number, &ours, &theirs),
            // The commit hash chains over all earlier blocks, so the two histories differ.
            Some(_) => drop(self.by_channel().remove(&name)),
            None => {}
        }
        Ok(())
    }

    fn by_channel(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.parted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, channel: &str, block: u64, ours: &Hash, theirs: &Hash) {
        let mut parted = self.by_channel();
        if parted.contains_key(channel) {
            return;
        }
        let whose = &self.whose;
        let (ours, theirs) = (identity::hex::encode(ours), identity::hex::encode(theirs));
        tracing::error!(channel, whose, block, ours, theirs, "another peer has come to other verdicts");
        events::CommitHashesParted.add(1);
        let text = format!(
            "the peer of {whose} has commit hash {theirs} at block {block} of channel {channel}, this organisation's peer {ours}: they \
             judged a transaction up to there differently. Compare their contracts' policies, and verify both ledgers (`heddle ledger \
             verify`)"
        );
        parted.insert(channel.to_owned(), text);
    }
}

#[cfg(test)]
mod tests {
    use base::rt::disk::Directory;
    use base::rt::net::Parties;
    use base::rt::{Stop, production};
    use storage::tables::ModelEngine;

    use super::*;
    use crate::Peer;
    use crate::access::{Definition, Definitions};
    use crate::remote::{RemotePeerOptions, Scope, serve_peer};
    use crate::support::{CHANNEL, Consortium, Terms_, directory, orderer, peer, peer_options, submit};
    use crate::validate::Code;

    /// The operator of one peer had another policy for a contract in its file: the peers judged one transaction differently, and
    /// nobody noticed until somebody compared the ledgers.
    #[test]
    fn peers_that_judged_by_other_policies_are_told_apart() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        production::run(async {
            let root = Directory::open(scratch.path()).await.expect("it exists");
            let terms = Terms_::seeded(2, ledger::config::EndorsementRule::Any);
            let consortium = Consortium::found(terms);
            let orderer = orderer(&consortium, &root).await;
            let own = peer(&consortium, &root, 0).await;
            let other = {
                let tables = ModelEngine::open(directory(&root, "tables1").await).await.expect("the engine opens");
                let both = identity::policy::parse("AND('Org1MSP.peer', 'Org2MSP.peer')").expect("a policy");
                let endorsement = identity::policy::of_signature(both);
                let definition = Definition { endorsement, ..Definition::default() };
                let definitions: Definitions = [("smallbank".to_owned(), definition)].into_iter().collect();
                let options = peer_options(&consortium, &root, 1, tables).await;
                let peer = Peer::open(crate::PeerOptions { definitions, ..options }).await.expect("the peer opens");
                peer.join(&consortium.genesis).await.expect("the peer joins");
                peer
            };
            let stop = Stop::new();
            let compared = async |peer: &Arc<Peer>, address: &str| {
                let parties = Parties::anyone();
                let serving = serve_peer(peer.clone(), Scope::Others, address, &parties, stop.clone()).await;
                drop(serving.expect("the address is free"));
                let remote = RemotePeer::new(RemotePeerOptions {
                    name: "another peer".to_owned(),
                    addresses: vec![address.to_owned()],
                    parties,
                    definitions: Definitions::new(),
                });
                remote.reached().await;
                Comparison::new("Org2MSP", Arc::new(remote))
            };
            let parts = compared(&other, "compare-other").await;
            let stays = compared(&own, "compare-own").await;
            let channel = own.channel(CHANNEL).expect("it was joined");
            let compare = async |comparison: &Comparison| {
                comparison.compare(channel.as_ref()).await.expect("both answer");
                comparison.parted()
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
            let counted = events::CommitHashesParted.value();
            let text = compare(&parts).await.expect("their verdicts differ");
            assert!(text.contains("the peer of Org2MSP") && text.contains("at block 1 of channel"), "{text}");
            assert_eq!(events::CommitHashesParted.value(), counted + 1);
            assert_eq!(compare(&parts).await, Some(text), "it stays, and is counted once");
            assert_eq!(events::CommitHashesParted.value(), counted + 1);
            assert_eq!(compare(&stays).await, None);
            stop.stop();
            own.stop().await.expect("the disk works");
            other.stop().await.expect("the disk works");
            orderer.stop().await;
        });
    }
}
