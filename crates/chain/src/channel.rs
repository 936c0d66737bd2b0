//! One channel at one peer: its ledger, as the rest of the node sees it.

use std::sync::{Arc, Mutex};

use base::rt::channel::WatchReceiver;
use base::rt::{self, CancellationToken, Task};
use base::{BlockNumber, Bytes, ChannelId, ErrorKind, TxId};
use block_transport::SourceAddresses;
use ledger::config::{CONFIG_KEY, CONFIG_NAMESPACE};
use ledger::{Block, ChannelConfig, Hash};
use replica::PrimaryRole;
use state::{Snapshot, WorldState};
use storage::Watermark;
use storage::blocks::Blocks;

use crate::Error;
use crate::commit::context::{ChainTip, CommitContext, PipelineConfig};
use crate::commit::delivery::run_delivery;
use crate::commit::pipeline::{CommitPipeline, run};
use crate::commit::recent::CommittedBlock;
use crate::commit::recent_writes::RecentWrites;
use crate::commit::replay::replay;
use crate::commit::waiters::TxStatus;
use crate::history::KeyHistory;
use ledger::Code;
use private_data::PrivateChannel;
use private_data::{CollectionPolicies, Upkeep};
use rules::access::ChannelPolicies;
use rules::definitions::LedgerDefinitions;

/// What a channel is opened over.
pub(crate) struct OpenedStores {
    /// The blocks, of which the first is stored.
    pub blocks: Arc<dyn Blocks>,
    /// The world state.
    pub state: Arc<dyn WorldState>,
    /// The earlier values of keys.
    pub history: Arc<KeyHistory>,
    /// The private data.
    pub private: Arc<PrivateChannel>,
}

/// A channel that a peer has joined. Everything that it shows is committed: durable here and applied.
pub struct Channel {
    context: Arc<CommitContext>,
    history: Arc<KeyHistory>,
    deliver_task: Mutex<Option<Task<()>>>,
}

impl Channel {
    /// Opens a channel whose genesis block is stored, replays the blocks that the state lacks, and follows the
    /// orderers. `policies` are those of the genesis block.
    pub(crate) async fn open(
        policies: Arc<ChannelPolicies>,
        stores: OpenedStores,
        settings: PipelineConfig,
        orderers: SourceAddresses,
        primary: Option<Arc<PrimaryRole>>,
    ) -> Result<Arc<Channel>, Error> {
        let OpenedStores { blocks: store, state, history, private } = stores;
        replay(store.as_ref(), state.as_ref()).await?;
        let policies = newest_policies(&policies, state.snapshot().as_ref()).await?;
        let tip = tip(store.as_ref()).await?;
        let (stop, upkeep) = (CancellationToken::new(), private.clone());
        let context = Arc::new(CommitContext::new(policies, store, state, private, settings, primary, stop));
        drop(rt::spawn(run(context.clone(), tidy_up(upkeep, context.clone()))));
        let pipeline = CommitPipeline::start(context.clone(), tip);
        let following = run_delivery(context.clone(), pipeline, tip, orderers);
        let follower = rt::spawn(run(context.clone(), async move {
            following.await;
            Ok(())
        }));
        Ok(Arc::new(Channel { context, history, deliver_task: Mutex::new(Some(follower)) }))
    }

    /// The channel's name.
    pub fn id(&self) -> &ChannelId {
        self.context.policies.channel()
    }

    /// The channel's configuration.
    pub fn config(&self) -> Arc<ChannelConfig> {
        self.policies().config().clone()
    }

    /// The channel's policies after its newest committed block.
    pub fn policies(&self) -> Arc<ChannelPolicies> {
        self.context.policies.get()
    }

    /// Number of committed blocks.
    pub fn height(&self) -> u64 {
        self.context.height()
    }

    /// Follows [`Channel::height`].
    pub fn committed(&self) -> WatchReceiver<u64> {
        self.context.committed()
    }

    /// The world state.
    pub fn state(&self) -> &Arc<dyn WorldState> {
        &self.context.state
    }

    /// The newest state that may be shown.
    ///
    /// # Errors
    /// If another compute node of the peer may have become primary: it may know of later blocks.
    pub async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        if let Some(primary) = &self.context.primary {
            primary.wait_until_held().await.map_err(state::Error::from)?;
        }
        Ok(self.context.state.snapshot())
    }

    /// The history of the channel's keys.
    pub fn history(&self) -> &Arc<KeyHistory> {
        &self.history
    }

    /// The private data of the channel that this peer has.
    pub fn private(&self) -> &Arc<PrivateChannel> {
        &self.context.private
    }

    /// The block store, which may hold blocks that are not committed yet.
    pub(crate) fn store(&self) -> &Arc<dyn Blocks> {
        &self.context.store
    }

    /// A committed block, encoded, with this peer's metadata; `None` from [`Channel::height`] on.
    ///
    /// # Errors
    /// The block store's.
    pub async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= self.height() {
            return Ok(None);
        }
        if let Some(recent) = self.context.recent.get(number) {
            return Ok(Some(recent.bytes().clone()));
        }
        Ok(self.read_stored(number).await?.map(Block::shown).transpose()?)
    }

    /// A committed block as this peer stores it.
    async fn read_stored(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= self.height() {
            return Ok(None);
        }
        Ok(self.context.store.read(BlockNumber(number)).await?)
    }

    /// The number of the committed block with this header hash.
    ///
    /// # Errors
    /// The block store's.
    pub async fn block_by_hash(&self, hash: &Hash) -> Result<Option<u64>, Error> {
        let number = self.context.store.number_by_hash(hash).await?.map(BlockNumber::get);
        Ok(number.filter(|number| *number < self.height()))
    }

    /// The number of the committed block with this transaction.
    ///
    /// # Errors
    /// The block store's.
    pub async fn block_by_tx_id(&self, tx_id: &TxId) -> Result<Option<u64>, Error> {
        Ok(self.tx_status(tx_id).await?.map(|status| status.block))
    }

    /// A committed block in decoded form, if it is one of the newest; shared by all callers.
    pub fn recent(&self, number: u64) -> Option<Arc<CommittedBlock>> {
        self.context.recent.get(number)
    }

    /// A committed block in decoded form: a recent one, or one that is decoded from the store now.
    ///
    /// # Errors
    /// If the stored block cannot be read.
    pub async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        if let Some(recent) = self.recent(number) {
            return Ok(Some(recent));
        }
        let Some(bytes) = self.read_stored(number).await? else { return Ok(None) };
        Ok(Some(Arc::new(CommittedBlock::of_stored(Block::parse(&bytes)?)?)))
    }

    /// The outcome of a transaction; `None` while it is not committed. Of several transactions with one id the first
    /// counts.
    ///
    /// # Errors
    /// The block store's.
    pub async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let place = self.context.store.find_transaction(tx_id).await?;
        let status = place.map(|place| TxStatus { code: Code(place.code), block: place.block.get() });
        Ok(status.filter(|status| status.block < self.height()))
    }

    /// Waits until a transaction is committed.
    ///
    /// Dropping the future cancels the wait.
    ///
    /// # Errors
    /// [`Error::TooManyWaiters`]; [`Error::Stopped`] when the channel ends first; the block store's.
    pub async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        // Registered before the lookup: see `commit::waiters`.
        let waiter = self.context.waiters.register(tx_id.clone());
        match self.tx_status(tx_id).await? {
            // A committed transaction is found even if no more callers may wait.
            Some(status) => Ok(status),
            None => waiter?.wait().await,
        }
    }

    /// The rows that recent blocks wrote; `None` unless [`PipelineConfig::early_abort`] is set.
    pub fn recent_writes(&self) -> Option<&RecentWrites> {
        self.context.writes.as_ref().map(|(_, recent)| recent)
    }

    /// The error that ended the channel's pipeline, if any. Committed blocks can still be read.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.context.failure()
    }

    /// Why the channel cannot commit at the moment, such as a full disk; `None` if it can.
    pub fn stalled(&self) -> Option<String> {
        self.context.stalled()
    }

    /// Completes when the channel has stopped following the orderers.
    pub async fn stopped(&self) {
        self.context.stop().cancelled().await;
    }

    /// Ends the channel in the background and reports no result.
    pub(crate) fn abandon(&self) {
        self.context.stop().cancel();
    }

    /// Finishes the blocks that were validated, persists the state and closes the block store. Returns how far the
    /// blocks have come; all of them are durable.
    ///
    /// # Errors
    /// The first error. If the store does not confirm the last blocks, it is not asked for anything more.
    pub(crate) async fn stop(&self) -> Result<Watermark, Error> {
        self.context.stop().cancel();
        let follower = self.deliver_task.lock().expect("no holder of this lock panics").take();
        if let Some(follower) = follower {
            // A follower that was aborted has nothing left to do.
            let _ = follower.await;
        }
        if let Some(failure) = self.failure().filter(|failure| failure.kind() == ErrorKind::Ambiguous) {
            let (name, reason) = (self.id().to_string(), failure.to_string());
            return Err(Error::Rejected { name, kind: ErrorKind::Ambiguous, reason });
        }
        self.context.state.persist().await?;
        let tip = self.context.store.tip();
        self.context.store.close().await?;
        Ok(Watermark { height: tip.height, block_hash: tip.header_hash, ..Watermark::default() })
    }
}

/// Keeps the private data of a channel in order until the channel stops.
async fn tidy_up(private: Arc<PrivateChannel>, context: Arc<CommitContext>) -> Result<(), Error> {
    let upkeep = Upkeep { private, blocks: context.store.clone() };
    let current = || (context.height(), context.policies.get() as Arc<dyn CollectionPolicies>);
    Ok(upkeep.run(current, context.stop().clone()).await?)
}

/// The policies under the newest configuration that the state holds, or of `genesis` if it holds none, with the definitions that the
/// state holds.
///
/// # Errors
/// The state's; [`Error::Ledger`] if its configuration cannot be read.
pub(crate) async fn newest_policies(
    genesis: &ChannelPolicies,
    snapshot: &dyn Snapshot,
) -> Result<Arc<ChannelPolicies>, Error> {
    let policies = match snapshot.get(CONFIG_NAMESPACE, CONFIG_KEY).await? {
        None => genesis.under(genesis.config().clone()),
        Some(stored) => genesis.under(Arc::new(ChannelConfig::from_state(genesis.channel(), stored.value)?)),
    };
    Ok(Arc::new(policies.defining(LedgerDefinitions::load(snapshot).await?)))
}

/// The head of a stored chain.
async fn tip(store: &dyn Blocks) -> Result<ChainTip, Error> {
    let tip = store.tip();
    let newest = tip
        .height
        .checked_sub(1)
        .ok_or_else(|| Error::Stored { block: 0, reason: "the ledger has no genesis block".to_owned() })?;
    let bytes = store.read(BlockNumber(newest)).await?.ok_or_else(|| Error::Stored {
        block: newest,
        reason: "it is the newest block and cannot be read".to_owned(),
    })?;
    let commit_hash = Block::parse(&bytes)?.metadata().commit_hash()?;
    if commit_hash.is_none() != (newest == 0) {
        return Err(Error::Stored { block: newest, reason: "every block but the first has a commit hash".to_owned() });
    }
    Ok(ChainTip { height: tip.height, hash: Some(tip.header_hash), commit_hash })
}
