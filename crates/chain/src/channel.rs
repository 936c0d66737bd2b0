//! One channel at one peer: its ledger as others see it.

use std::sync::{Arc, Mutex};

use base::rt::channel::WatchReceiver;
use base::rt::{self, Stop, Task};
use base::{BlockNumber, Bytes, ChannelId, ErrorKind, TxId};
use ledger::{Block, ChannelConfig, Hash};
use state::{Snapshot, WorldState};
use storage::Watermark;
use storage::blocks::Blocks;

use crate::Error;
use crate::access::Rules;
use crate::commit::deliver::{BlockSources, follow};
use crate::commit::pipeline::{Ledger, Pipeline, Settings, Tip, run};
use crate::commit::recent::CommittedBlock;
use crate::commit::replay::replay;
use crate::commit::waiters::TxStatus;
use crate::history::KeyHistory;
use crate::succession::Office;
use crate::validate::Code;

/// A channel that a peer has joined. Whatever it shows is committed: durable here and applied.
pub struct Channel {
    ledger: Arc<Ledger>,
    history: Arc<KeyHistory>,
    follower: Mutex<Option<Task<()>>>,
    office: Option<Arc<Office>>,
}

impl Channel {
    /// Opens a channel whose genesis block is stored, replays what the state misses, and follows the orderers.
    pub(crate) async fn open(
        rules: Arc<Rules>,
        store: Arc<dyn Blocks>,
        state: Arc<dyn WorldState>,
        history: Arc<KeyHistory>,
        settings: Settings,
        orderers: BlockSources,
        office: Option<Arc<Office>>,
    ) -> Result<Arc<Channel>, Error> {
        replay(store.as_ref(), state.as_ref()).await?;
        let tip = tip(store.as_ref()).await?;
        let ledger = Arc::new(Ledger::new(rules, store, state, settings, Stop::new()));
        let pipeline = Pipeline::start(ledger.clone(), tip);
        let following = follow(ledger.clone(), pipeline, tip, orderers);
        let follower = rt::spawn(run(ledger.clone(), async move {
            following.await;
            Ok(())
        }));
        Ok(Arc::new(Channel { ledger, history, follower: Mutex::new(Some(follower)), office }))
    }

    /// The channel's name.
    pub fn id(&self) -> &ChannelId {
        self.ledger.rules.channel()
    }

    /// The channel's configuration.
    pub fn config(&self) -> &Arc<ChannelConfig> {
        self.ledger.rules.config()
    }

    /// Who may do what.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.ledger.rules
    }

    /// Number of committed blocks.
    pub fn height(&self) -> u64 {
        self.ledger.height()
    }

    /// Follows [`Channel::height`].
    pub fn committed(&self) -> WatchReceiver<u64> {
        self.ledger.committed()
    }

    /// The world state.
    pub fn state(&self) -> &Arc<dyn WorldState> {
        &self.ledger.state
    }

    /// The newest state that may be shown.
    ///
    /// # Errors
    /// Where this compute node may have been succeeded: another one of the peer may know of later blocks.
    pub async fn snapshot(&self) -> Result<Arc<dyn Snapshot>, Error> {
        if let Some(office) = &self.office {
            office.held().await?;
        }
        Ok(self.ledger.state.snapshot())
    }

    /// What its keys held.
    pub fn history(&self) -> &Arc<KeyHistory> {
        &self.history
    }

    /// The block store, which may hold blocks that are not committed yet.
    pub(crate) fn store(&self) -> &Arc<dyn Blocks> {
        &self.ledger.store
    }

    /// A committed block, encoded, with this peer's metadata; nothing from [`Channel::height`] on.
    ///
    /// # Errors
    /// The block store's.
    pub async fn read_block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= self.height() {
            return Ok(None);
        }
        if let Some(recent) = self.ledger.recent.get(number) {
            return Ok(Some(recent.bytes().clone()));
        }
        Ok(self.ledger.store.read(BlockNumber(number)).await?)
    }

    /// The number of the committed block with this header hash.
    ///
    /// # Errors
    /// The block store's.
    pub async fn block_by_hash(&self, hash: &Hash) -> Result<Option<u64>, Error> {
        let number = self.ledger.store.number_by_hash(hash).await?.map(BlockNumber::get);
        Ok(number.filter(|number| *number < self.height()))
    }

    /// The number of the committed block with this transaction.
    ///
    /// # Errors
    /// The block store's.
    pub async fn block_by_tx_id(&self, tx_id: &TxId) -> Result<Option<u64>, Error> {
        Ok(self.tx_status(tx_id).await?.map(|status| status.block))
    }

    /// A committed block in decoded form, if it is one of the newest; shared by all who ask.
    pub fn recent(&self, number: u64) -> Option<Arc<CommittedBlock>> {
        self.ledger.recent.get(number)
    }

    /// A committed block in decoded form: a recent one, or one decoded anew from the store.
    ///
    /// # Errors
    /// If the stored block cannot be read.
    pub async fn committed_block(&self, number: u64) -> Result<Option<Arc<CommittedBlock>>, Error> {
        if let Some(recent) = self.recent(number) {
            return Ok(Some(recent));
        }
        let Some(bytes) = self.read_block(number).await? else { return Ok(None) };
        Ok(Some(Arc::new(CommittedBlock::of_stored(Block::parse(&bytes)?)?)))
    }

    /// What became of a transaction; nothing while it is not committed. Of several with one id the first counts.
    ///
    /// # Errors
    /// The block store's.
    pub async fn tx_status(&self, tx_id: &TxId) -> Result<Option<TxStatus>, Error> {
        let place = self.ledger.store.find_transaction(tx_id).await?;
        let status = place.map(|place| TxStatus { code: Code(place.code), block: place.block.get() });
        Ok(status.filter(|status| status.block < self.height()))
    }

    /// Waits until a transaction is committed.
    ///
    /// Dropping the future gives the wait up.
    ///
    /// # Errors
    /// [`Error::TooManyWaiters`]; [`Error::Stopped`] when the channel ends first; the block store's.
    pub async fn wait_committed(&self, tx_id: &TxId) -> Result<TxStatus, Error> {
        // Registered before looking: see `commit::waiters`.
        let waiter = self.ledger.waiters.register(tx_id.clone());
        match self.tx_status(tx_id).await? {
            // What is committed is known also where nobody may wait.
            Some(status) => Ok(status),
            None => waiter?.wait().await,
        }
    }

    /// The error that ended the channel's pipeline, if one did. What is committed can still be read.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.ledger.failure()
    }

    /// What the channel waits for, while it cannot commit: room on its disk, say.
    pub fn stalled(&self) -> Option<String> {
        self.ledger.stalled()
    }

    /// Resolves when the channel has stopped following the orderers.
    pub async fn stopped(&self) {
        self.ledger.stop().stopped().await;
    }

    /// Has the channel end in the background, without a word of how.
    pub(crate) fn abandon(&self) {
        self.ledger.stop().stop();
    }

    /// Finishes the blocks that were judged, persists the state and closes the block store. Says how far the blocks have come, all
    /// of which are durable.
    ///
    /// # Errors
    /// The first; nothing more is asked then of a store that does not say whether it has the last blocks.
    pub(crate) async fn stop(&self) -> Result<Watermark, Error> {
        self.ledger.stop().stop();
        let follower = self.follower.lock().expect("no holder of this lock panics").take();
        if let Some(follower) = follower {
            // A follower that was aborted has nothing left to do.
            let _ = follower.await;
        }
        if let Some(failure) = self.failure().filter(|failure| failure.kind() == ErrorKind::Ambiguous) {
            let (name, reason) = (self.id().to_string(), failure.to_string());
            return Err(Error::Refused { name, kind: ErrorKind::Ambiguous, reason });
        }
        self.ledger.state.persist().await?;
        let tip = self.ledger.store.tip();
        self.ledger.store.close().await?;
        Ok(Watermark { height: tip.height, block_hash: tip.header_hash, ..Watermark::default() })
    }
}

/// Where a stored chain stands.
async fn tip(store: &dyn Blocks) -> Result<Tip, Error> {
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
    Ok(Tip { height: tip.height, hash: Some(tip.header_hash), commit_hash })
}
