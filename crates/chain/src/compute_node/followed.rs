//! A channel at a follower: it answers from the state of the primary and from the blocks at the storage node.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::WatchReceiver;
use base::rt::{self, AbortOnDrop};
use base::{BlockNumber, Bytes, MspId, TxId};
use ledger::config::{CONFIG_KEY, CONFIG_NAMESPACE};
use ledger::namespace::{RULES, RULES_DEFINITIONS};
use ledger::{Block, Hash};
use state::{Follower, Snapshot};
use storage::blocks::{StoredBlocks, TransactionLocation};
use storage_copies::CopiedReads;

use crate::Error;
use crate::channel::newest_policies;
use crate::commit::recent::{CommittedBlock, RecentCommittedBlocks};
use crate::commit::waiters::TxStatus;
use crate::endorse::EndorsingChannel;
use crate::history::KeyHistory;
use crate::private_block::{TransactionPrivateData, private_data_of, reader};
use crate::view::ChannelView;
use ledger::Code;
use private_data::{MemberPeers, PrivateChannel, PrivateStore};
use rules::access::{ChannelPolicies, CurrentPolicies};

/// How often a follower looks for a new configuration or definition, at most.
const REFRESH_PERIOD: Duration = Duration::from_millis(100);

/// A channel that another compute node of the peer commits. Every block that it shows is durable; the primary has
/// applied it, or is about to.
pub struct FollowedChannel {
    policies: Arc<CurrentPolicies>,
    /// Whether the policies are those of a state that the node has followed.
    knows_policies: Arc<AtomicBool>,
    follower: Arc<Follower>,
    _refreshing: AbortOnDrop<()>,
    blocks: Arc<CopiedReads>,
    history: Arc<KeyHistory>,
    private: Arc<PrivateChannel>,
    recent: RecentCommittedBlocks,
}

impl FollowedChannel {
    pub(super) fn new(
        policies: Arc<CurrentPolicies>,
        follower: Follower,
        own: MspId,
        members: Arc<MemberPeers>,
        reads: CopiedReads,
    ) -> FollowedChannel {
        let [committed, transient] = reads.private();
        let private = PrivateStore::new(Arc::new(committed), Arc::new(transient));
        let private = Arc::new(PrivateChannel::new(policies.channel().clone(), own, private, members));
        let blocks = Arc::new(reads);
        let history = Arc::new(KeyHistory::new(blocks.clone(), blocks.clone()));
        let (follower, knows_policies) = (Arc::new(follower), Arc::new(AtomicBool::new(false)));
        let refreshing = refresh_policies(policies.clone(), follower.clone(), knows_policies.clone());
        FollowedChannel {
            policies,
            knows_policies,
            follower,
            _refreshing: rt::spawn(refreshing).abort_on_drop(),
            blocks,
            history,
            private,
            recent: RecentCommittedBlocks::default(),
        }
    }

    /// Whether the channel's policies are known, so that callers can be identified.
    pub(super) fn knows_policies(&self) -> bool {
        self.knows_policies.load(Ordering::Acquire)
    }

    pub(super) fn follower(&self) -> &Follower {
        &self.follower
    }

    /// A committed block as the peer stores it.
    async fn read_stored(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= ChannelView::height(self) {
            return Ok(None);
        }
        Ok(self.blocks.read(BlockNumber(number)).await?)
    }

    /// Whether the channel can answer now.
    pub fn is_live(&self) -> bool {
        self.follower.is_live()
    }
}

/// Takes over each new configuration and definition that the followed state shows, within [`REFRESH_PERIOD`]. Never ends.
async fn refresh_policies(policies: Arc<CurrentPolicies>, follower: Arc<Follower>, known: Arc<AtomicBool>) {
    let (mut heights, mut versions, genesis) = (follower.heights(), Vec::new(), policies.get());
    loop {
        let refreshed = async {
            let snapshot = follower.snapshot().await?;
            let rows = [(CONFIG_NAMESPACE, CONFIG_KEY), (RULES, RULES_DEFINITIONS)];
            let newest = snapshot.versions(&rows).await?;
            if newest != versions || !known.load(Ordering::Acquire) {
                policies.replace(newest_policies(&genesis, snapshot.as_ref()).await?);
                versions = newest;
            }
            Ok::<_, Error>(())
        };
        match refreshed.await {
            Ok(()) => {
                known.store(true, Ordering::Release);
                rt::sleep(REFRESH_PERIOD).await;
                if heights.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            Err(error) => {
                tracing::debug!(channel = %policies.channel(), %error, "the followed state does not show its configuration yet");
                rt::sleep(REFRESH_PERIOD).await;
            }
        }
    }
}

#[async_trait]
impl ChannelView for FollowedChannel {
    fn policies(&self) -> Arc<ChannelPolicies> {
        self.policies.get()
    }

    fn height(&self) -> u64 {
        *self.follower.heights().borrow()
    }

    fn committed(&self) -> WatchReceiver<u64> {
        self.follower.heights()
    }

    async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        Ok(self.read_stored(number).await?.map(Block::shown).transpose()?)
    }

    async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        self.recent.get_or_read(number, self.read_stored(number)).await
    }

    async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let place = self.blocks.find_transaction(tx_id).await?;
        let status = place.map(|place| TxStatus { code: Code(place.code), block: place.block.get() });
        Ok(status.filter(|status| status.block < ChannelView::height(self)))
    }

    async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        let mut committed = self.committed();
        loop {
            committed.borrow_and_update();
            if let Some(status) = self.tx_status(tx_id).await? {
                return Ok(status);
            }
            committed.changed().await.map_err(|_| Error::Stopped)?;
        }
    }

    async fn private_data(&self, number: u64, request: &Bytes) -> Result<Vec<TransactionPrivateData>, Error> {
        let policies = self.policies.get();
        let reader = reader(request, &policies)?;
        let Some(block) = ChannelView::committed_block(self, number).await? else { return Ok(Vec::new()) };
        private_data_of(&block, &reader, &self.private, &policies, ChannelView::height(self)).await
    }

    fn failure(&self) -> Option<Arc<Error>> {
        None
    }

    async fn stopped(&self) {
        std::future::pending().await
    }
}

#[async_trait]
impl EndorsingChannel for FollowedChannel {
    async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        Ok(self.follower.snapshot().await?)
    }

    fn history(&self) -> &Arc<KeyHistory> {
        &self.history
    }

    fn private(&self) -> &Arc<PrivateChannel> {
        &self.private
    }

    async fn find_transaction(&self, tx_id: &TxId) -> Result<Option<TransactionLocation>, Error> {
        Ok(self.blocks.find_transaction(tx_id).await?)
    }

    async fn number_by_hash(&self, hash: &Hash) -> Result<Option<BlockNumber>, Error> {
        Ok(self.blocks.number_by_hash(hash).await?)
    }
}
