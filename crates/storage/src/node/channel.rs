//! One channel at a storage node: its blocks, its rows, and which epoch may write them.
//!
//! The **epoch guard** is a set of permits. An append or a pruning holds one permit while it checks its epoch and takes
//! effect, and the node takes all permits before it changes the epoch. So no write is half done when the epoch changes,
//! and no write of an older epoch begins afterwards. A materialisation holds a permit only for the check. It may finish
//! under a newer epoch, because its rows depend on the blocks alone.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::rt::channel::{OneshotReceiver, OneshotSender, Receiver, Sender, bounded, oneshot};
use base::rt::disk::Directory;
use base::rt::net::GatherList;
use base::rt::sync::{Mutex as AsyncMutex, Semaphore};
use base::rt::{self, CancellationToken, Task};
use base::{BlockNumber, Epoch, ErrorKind};

use super::config::StorageNodeConfig;
use super::engine_failure::EngineFailure;
use super::epoch::EpochRecord;
use super::message::{AppendRequest, LinkPurpose, Welcome};
use super::private_message::CopiedWrite;
use super::view::RegisteredView;
use super::{
    APPENDS_TOGETHER_MAX, APPENDS_WAITING_MAX, MATERIALIZE_BLOCKS, MATERIALIZE_BYTES, SAVEPOINT_LAG_BLOCKS_MAX, epoch,
    hold_up, retry_backoff,
};
use crate::blocks::{BlockStore, NewBlock};
use crate::private::{LocalPrivateRows, PrivateRow, PrivateRows as _, PrivateTable};
use crate::state_store::StateStore;
use crate::tables::Savepoint;
use crate::{Error, History, HistoryQuery, LocalHistory, LocalStateStore, events, lock};

/// Permits of the epoch guard: writes that may take effect at the same time.
pub(super) const EPOCH_GUARD_PERMITS: u32 = 64;

/// Identifies the link that may append; 0 is no link.
pub type AppenderLink = u64;

/// One channel; see [the module](self).
pub struct StoredChannel {
    pub(super) name: String,
    pub(super) epochs: Directory,
    blocks: BlockStore,
    state: LocalStateStore,
    history: LocalHistory,
    private: LocalPrivateRows,
    transient: LocalPrivateRows,
    pub(super) engine: Arc<EngineFailure>,
    pub(super) epoch_guard: Semaphore,
    /// Changed only while holding all permits of the epoch guard.
    epoch: AtomicU64,
    /// The newest appending link. Changed only while holding all permits of the epoch guard.
    appender: AtomicU64,
    /// The newest view. Changed only while holding all permits of the epoch guard.
    pub(super) registered: Mutex<RegisteredView>,
    appends: Sender<QueuedAppend>,
    /// Numbers and bytes of the blocks that were appended here and are not materialised yet, oldest first.
    unmaterialized: Mutex<VecDeque<(u64, u64)>>,
    /// Why the channel takes no further writes; it must be opened again.
    failure: OnceLock<Error>,
    /// Stopped once there is a failure.
    failed: CancellationToken,
    stop: CancellationToken,
    tasks: Mutex<Vec<Task<()>>>,
    pruning: AsyncMutex<()>,
}

struct QueuedAppend {
    block: AppendRequest,
    appender: AppenderLink,
    response: OneshotSender<Result<u64, Error>>,
}

/// A block that waits to be durable.
struct AppendedBlock {
    number: BlockNumber,
    header_hash: [u8; 32],
    payload: GatherList,
    response: OneshotSender<Result<u64, Error>>,
}

impl StoredChannel {
    /// Opens a channel, creates it if it does not exist, and starts its tasks.
    ///
    /// # Errors
    /// [`Error::Mismatched`] and [`Error::Corrupt`] for damage; errors of the operating system and the engine.
    pub async fn open(
        options: &StorageNodeConfig,
        engine: &Arc<EngineFailure>,
        name: &str,
    ) -> Result<Arc<StoredChannel>, Error> {
        let epochs = options.data.subdirectory(super::config::EPOCHS).await?;
        let record = super::reset::complete(options, &epochs, name).await?;
        let blocks = options.data.subdirectory(super::config::BLOCKS).await?;
        let path = blocks.path().join(name);
        let directory = blocks.subdirectory(name).await.map_err(|error| Error::io("opening", &path, error))?;
        let opened = BlockStore::open(directory, options.sync.clone(), options.blocks.clone()).await?;
        let (blocks, report) = opened;
        if let Some(torn) = &report.torn_tail {
            tracing::warn!(channel = name, ?torn, "cut an incomplete block off the store");
        }
        let tables = engine.record(options.tables.tables(name).await)?;
        let state = LocalStateStore::open(Arc::new(blocks.clone()), tables, options.materializer.clone()).await?;
        let (index, materializer) = (Arc::clone(&options.tables), Arc::clone(&options.materializer));
        let history = LocalHistory::new(name, Arc::new(blocks.clone()), index, materializer);
        let height = blocks.durable_height();
        let private = |table| LocalPrivateRows::open(options.tables.as_ref(), name, table, height);
        let (private, transient) = (private(PrivateTable::Committed).await, private(PrivateTable::Transient).await);
        let newest = record.epoch.max(blocks.tip().epoch);
        state.set_epoch(newest);
        let (appends, queue) = bounded(APPENDS_WAITING_MAX);
        let channel = Arc::new(StoredChannel {
            name: name.to_owned(),
            epochs,
            blocks,
            state,
            history,
            private: engine.record(private)?,
            transient: engine.record(transient)?,
            engine: Arc::clone(engine),
            epoch_guard: Semaphore::new(EPOCH_GUARD_PERMITS as usize),
            epoch: AtomicU64::new(newest.get()),
            appender: AtomicU64::new(0),
            registered: Mutex::new(record.registered),
            appends,
            unmaterialized: Mutex::default(),
            failure: OnceLock::new(),
            failed: CancellationToken::new(),
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
            pruning: AsyncMutex::new(()),
        });
        let tasks =
            vec![rt::spawn(append_blocks(channel.clone(), queue)), rt::spawn(materialize_blocks(channel.clone()))];
        *lock(&channel.tasks) = tasks;
        Ok(channel)
    }

    /// Step 2 of the node: admits a client.
    ///
    /// # Errors
    /// [`Error::Fenced`] under an epoch that is not the newest; errors of the operating system.
    pub async fn admit(&self, purpose: LinkPurpose, given: Epoch, link: AppenderLink) -> Result<Welcome, Error> {
        self.check_writable()?;
        if purpose != LinkPurpose::Reader {
            let _whole_gate = self.epoch_guard.acquire_many(EPOCH_GUARD_PERMITS).await;
            self.check_epoch(given)?;
            if given > self.epoch() {
                self.check_given_elsewhere()?;
                self.advance(given).await?;
            }
            if purpose == LinkPurpose::Appender {
                self.appender.store(link, Ordering::Release);
            }
            // The new primary builds on the blocks of an earlier one, so they must be durable before it is answered.
            self.record_failure(self.blocks.sync().await)?;
            return Ok(self.welcome());
        }
        Ok(self.welcome())
    }

    /// Step 0 of the node: begins an epoch that is given to no other caller. If `newest` is named, only if no later one has
    /// begun.
    ///
    /// # Errors
    /// [`Error::Fenced`] if a later epoch has begun; errors of the operating system: the epoch may have begun nevertheless.
    pub async fn begin(&self, newest: Option<Epoch>) -> Result<Epoch, Error> {
        self.check_writable()?;
        let _whole_gate = self.epoch_guard.acquire_many(EPOCH_GUARD_PERMITS).await;
        self.complete_advance().await?;
        self.check_alone()?;
        if let Some(given) = newest
            && given != self.epoch()
        {
            return Err(Error::Fenced { given, newest: self.epoch() });
        }
        let next = self.epoch().get().checked_add(1).ok_or(Error::Invalid("there are no epochs left"))?;
        self.advance(Epoch(next)).await?;
        Ok(Epoch(next))
    }

    /// Completes an advance that ended after the file was written: its caller has gone, or the disk reported an error. Candidates
    /// learn the newest epoch from the file, and would be refused until it counts here too. The caller holds all permits of
    /// the epoch guard.
    pub(super) async fn complete_advance(&self) -> Result<(), Error> {
        let written = epoch::read(&self.epochs, &self.name)?;
        let is_known = written.registered == *lock(&self.registered);
        if written.epoch > self.epoch() || !is_known {
            let epoch = written.epoch.max(self.epoch());
            self.record(EpochRecord { epoch, ..written }).await?;
        }
        Ok(())
    }

    /// Begins a later epoch. The caller holds all permits of the epoch guard.
    pub(super) async fn advance(&self, to: Epoch) -> Result<(), Error> {
        let registered = lock(&self.registered).clone();
        self.record(EpochRecord { epoch: to, registered, ..EpochRecord::default() }).await?;
        events::EpochsStarted.add(1);
        Ok(())
    }

    /// Makes an epoch and a view durable, and has them count. The caller holds all permits of the epoch guard.
    pub(super) async fn record(&self, record: EpochRecord) -> Result<(), Error> {
        epoch::write(&self.epochs, &self.name, &record).await?;
        hold_up("storage.node.epoch_written").await;
        self.epoch.store(record.epoch.get(), Ordering::Release);
        *lock(&self.registered) = record.registered;
        self.state.set_epoch(record.epoch);
        Ok(())
    }

    fn welcome(&self) -> Welcome {
        Welcome { durable: self.blocks.durable_height(), tip: self.blocks.tip(), savepoint: self.state.savepoint() }
    }

    /// Queues an append; the answer arrives once the block is durable, or cannot become durable.
    ///
    /// # Errors
    /// The refusal, at once, if the queue is full.
    pub fn append(
        &self,
        block: AppendRequest,
        appender: AppenderLink,
    ) -> Result<OneshotReceiver<Result<u64, Error>>, Error> {
        self.check_writable()?;
        let (response, answered) = oneshot();
        let queued = QueuedAppend { block, appender, response };
        self.appends.try_send(queued).map(|()| answered).map_err(|error| match error.is_full() {
            true => self.remote(ErrorKind::Retry, "too many appends wait; try again later"),
            false => self.remote(ErrorKind::Closed, "the channel has been closed"),
        })
    }

    /// Materialises for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`StateStore::materialize`].
    pub async fn materialize(&self, given: Epoch, height: u64) -> Result<Savepoint, Error> {
        self.check_writable()?;
        {
            let _place = self.epoch_guard.acquire().await;
            self.check_writable()?;
            self.check_epoch(given)?;
        }
        // The rows depend on the blocks alone, not on the primary that asked; a newer primary that arrives meanwhile finds
        // them written.
        self.materialize_to(height).await
    }

    /// Prunes for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`StateStore::prune`].
    pub async fn prune(self: Arc<Self>, given: Epoch, oldest: BlockNumber) -> Result<(), Error> {
        self.check_writable()?;
        // In a separate task: if the link ends, the permit of the epoch guard is held until the pruning has ended.
        let task = rt::spawn(async move {
            let _one_at_a_time = self.pruning.lock().await;
            let _place = self.epoch_guard.acquire().await;
            self.check_writable()?;
            self.check_epoch(given)?;
            hold_up("storage.node.pruning").await;
            self.record_failure(self.engine.record(self.state.prune(oldest).await))
        });
        task.await.unwrap_or(Err(Error::Invalid("the node stopped before the pruning ended")))
    }

    /// The private rows.
    pub fn private(&self, table: PrivateTable) -> &LocalPrivateRows {
        match table {
            PrivateTable::Committed => &self.private,
            PrivateTable::Transient => &self.transient,
        }
    }

    /// Writes private rows: committed ones for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`crate::private::PrivateRows::write`].
    pub async fn write_private(
        self: &Arc<Self>,
        table: PrivateTable,
        given: Epoch,
        copied: Option<CopiedWrite>,
        rows: Vec<PrivateRow>,
    ) -> Result<(), Error> {
        self.check_writable()?;
        let (channel, epoch) = (Arc::clone(self), if table == PrivateTable::Committed { given } else { Epoch(0) });
        // In a separate task: if the link ends, the permit of the epoch guard is held until the writing has ended.
        let task = rt::spawn(async move {
            let _place = channel.epoch_guard.acquire().await;
            if table == PrivateTable::Committed {
                channel.check_epoch(given)?;
            }
            channel.check_copied(table, copied)?;
            let number = copied.map(|copied| copied.number);
            channel.record_failure(channel.engine.record(channel.private(table).write_under(epoch, number, rows).await))
        });
        task.await.unwrap_or(Err(Error::Invalid("the node stopped before the writing ended")))
    }

    /// Prunes private rows for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`crate::private::PrivateRows::prune`].
    pub async fn prune_private(&self, table: PrivateTable, given: Epoch, oldest: BlockNumber) -> Result<bool, Error> {
        let _place = self.epoch_guard.acquire().await;
        self.check_writable()?;
        self.check_epoch(given)?;
        self.engine.record(self.private(table).prune(oldest).await)
    }

    /// Confirms that no newer primary has replaced this one.
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn confirm(&self, given: Epoch) -> Result<(), Error> {
        self.check_writable()?;
        self.check_epoch(given)
    }

    /// Which blocks wrote a key.
    ///
    /// # Errors
    /// As [`History::blocks_of`].
    pub async fn history(&self, query: HistoryQuery<'_>) -> Result<Vec<BlockNumber>, Error> {
        self.check_writable()?;
        self.engine.record(self.history.blocks_of(query).await)
    }

    /// The blocks.
    pub fn blocks(&self) -> &BlockStore {
        &self.blocks
    }

    /// The rows.
    pub fn state(&self) -> &LocalStateStore {
        &self.state
    }

    /// Whether the channel takes writes; one that does not must be opened again.
    pub fn is_writable(&self) -> bool {
        self.failure.get().is_none()
    }

    /// Whether the channel was asked to end: the node may then have opened it a second time, and this object's data is out
    /// of date.
    pub fn has_ended(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Completes when the channel is asked to end.
    pub async fn ended(&self) {
        self.stop.cancelled().await;
    }

    /// Ends the tasks, after the work that has begun.
    pub async fn end(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            // An aborted task has nothing left to do.
            let _ = task.await;
        }
    }

    /// Ends the tasks, materialises all blocks and makes everything durable.
    ///
    /// # Errors
    /// Those of materialising and closing.
    pub async fn close(&self) -> Result<(), Error> {
        self.end().await;
        self.check_writable()?;
        self.blocks.sync().await?;
        self.materialize_to(u64::MAX).await?;
        self.blocks.close().await
    }

    pub(super) async fn materialize_to(&self, height: u64) -> Result<Savepoint, Error> {
        let before = self.state.savepoint().height;
        let started = rt::now();
        let savepoint = self.record_failure(self.engine.record(self.state.materialize(height).await))?;
        if savepoint.height > before {
            events::BlocksMaterialized.add(savepoint.height - before);
            events::MaterializeTime.record_since(started);
        }
        let mut behind = lock(&self.unmaterialized);
        while behind.front().is_some_and(|(number, _)| *number < savepoint.height) {
            behind.pop_front();
        }
        drop(behind);
        Ok(savepoint)
    }

    pub(super) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    pub(super) fn check_epoch(&self, given: Epoch) -> Result<(), Error> {
        let newest = self.epoch();
        if given < newest {
            events::WritesFenced.add(1);
            return Err(Error::Fenced { given, newest });
        }
        Ok(())
    }

    /// Refuses an append that does not come from the newest primary's newest link. The caller holds a permit of the epoch
    /// guard.
    fn check_appender(&self, queued: &QueuedAppend) -> Result<(), Error> {
        // The mutant of the simulation: an older primary that was paused continues to write.
        if rt::fault_point("storage.node.mutant.append_unfenced") {
            return Ok(());
        }
        // A copy that is being built gets blocks of earlier primaries.
        if !lock(&self.registered).is_learner() {
            self.check_epoch(queued.block.epoch)?;
        }
        if queued.block.epoch > self.epoch() {
            return Err(Error::Invalid("the append names an epoch under which the channel was never opened"));
        }
        match queued.appender == self.appender.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.remote(ErrorKind::Closed, "a later link of the same primary has taken over the appends")),
        }
    }

    pub(super) fn check_writable(&self) -> Result<(), Error> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Notes an error after which the channel must be opened again.
    pub(super) fn record_failure<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && matches!(error.kind(), ErrorKind::Closed | ErrorKind::Ambiguous | ErrorKind::Corrupt)
        {
            tracing::error!(channel = self.name, %error, "the channel takes no further writes");
            self.fail(error.clone());
        }
        outcome
    }

    /// Takes no further writes. Appends that wait for the savepoint are refused at once.
    pub(super) fn fail(&self, error: Error) {
        self.failure.get_or_init(|| error);
        self.failed.cancel();
    }

    pub(super) fn remote(&self, kind: ErrorKind, text: &str) -> Error {
        Error::Remote { node: self.name.as_str().into(), kind, text: text.to_owned() }
    }

    /// Blocks that may be appended before the savepoint must move.
    fn append_capacity(&self) -> usize {
        let behind = self.blocks.height().saturating_sub(self.state.savepoint().height);
        SAVEPOINT_LAG_BLOCKS_MAX.saturating_sub(behind) as usize
    }

    /// Whether enough durable blocks, or bytes of them, wait to be materialised.
    fn is_due(&self) -> bool {
        let waiting = self.state.savepoint().height..self.blocks.durable_height();
        let bytes = || {
            let behind = lock(&self.unmaterialized);
            behind.iter().filter(|(number, _)| waiting.contains(number)).map(|(_, bytes)| bytes).sum::<u64>()
        };
        waiting.end.saturating_sub(waiting.start) >= MATERIALIZE_BLOCKS || bytes() >= MATERIALIZE_BYTES
    }

    /// Appends blocks in order; answers those that were refused, and returns the others, to be answered once durable.
    async fn append_some(&self, queued: &mut Vec<QueuedAppend>) -> Vec<AppendedBlock> {
        let _place = self.epoch_guard.acquire().await;
        let mut appended = Vec::with_capacity(queued.len());
        for queued in queued.drain(..) {
            let allowed = self.check_writable().and_then(|()| self.check_appender(&queued));
            let QueuedAppend { block, response, .. } = queued;
            let outcome = match allowed {
                Err(error) => Err(error),
                Ok(()) => {
                    let new = NewBlock {
                        number: block.number,
                        header_hash: block.header_hash,
                        previous_hash: block.previous_hash,
                        epoch: block.epoch,
                        parts: block.payload.as_slice(),
                        transactions: &block.transactions,
                    };
                    self.record_failure(self.blocks.append(new).await)
                }
            };
            match outcome {
                Ok(()) => {
                    lock(&self.unmaterialized).push_back((block.number.get(), block.payload.len() as u64));
                    let AppendRequest { number, header_hash, payload, .. } = block;
                    appended.push(AppendedBlock { number, header_hash, payload, response });
                }
                // A caller that has gone does not need the answer.
                Err(error) => drop(response.send(Err(error))),
            }
        }
        appended
    }
}

/// Step 3 of the node, until the channel ends.
async fn append_blocks(channel: Arc<StoredChannel>, mut queue: Receiver<QueuedAppend>) {
    let mut savepoints = channel.state.subscribe_savepoint();
    let mut queued = Vec::with_capacity(APPENDS_TOGETHER_MAX);
    loop {
        let mut room = channel.append_capacity();
        while room == 0 && channel.is_writable() {
            events::AppendsHeldBack.add(1);
            match channel.stop.run_until_cancelled(channel.failed.run_until_cancelled(savepoints.changed())).await {
                Some(Some(Ok(()))) => room = channel.append_capacity(),
                // The waiting appends are refused.
                Some(None) => {}
                _ => return,
            }
        }
        let limit = room.clamp(1, APPENDS_TOGETHER_MAX);
        match channel.stop.run_until_cancelled(queue.recv_many(&mut queued, limit)).await {
            None | Some(0) => return,
            Some(_) => {}
        }
        hold_up("storage.node.append_received").await;
        let appended = channel.append_some(&mut queued).await;
        if appended.is_empty() {
            continue;
        }
        hold_up("storage.node.appended").await;
        let synced = channel.record_failure(channel.blocks.sync().await);
        hold_up("storage.node.durable").await;
        for AppendedBlock { number, header_hash, payload, response } in appended {
            // A caller that has gone does not need the answer.
            drop(response.send(synced.clone()));
            if synced.is_ok() {
                channel.state.prepare(number, header_hash, &payload);
            }
        }
    }
}

/// Step 4 of the node, until the channel ends.
async fn materialize_blocks(channel: Arc<StoredChannel>) {
    let mut durable = channel.blocks.subscribe_durable();
    let mut backoff = retry_backoff();
    loop {
        while channel.is_due() && !channel.stop.is_cancelled() {
            hold_up("storage.node.materializing").await;
            let target = channel.state.prepared_height();
            // Never interrupted: ending the channel waits for it.
            match channel.materialize_to(target).await {
                Ok(_) => backoff.reset(),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tracing::warn!(channel = channel.name, %error, "blocks cannot be materialised yet");
                    if channel.stop.run_until_cancelled(backoff.wait()).await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(channel = channel.name, %error, "blocks cannot be materialised");
                    channel.fail(error);
                    return;
                }
            }
            hold_up("storage.node.materialized").await;
        }
        if !matches!(channel.stop.run_until_cancelled(durable.changed()).await, Some(Ok(()))) {
            return;
        }
    }
}
