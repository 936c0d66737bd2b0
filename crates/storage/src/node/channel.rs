//! One channel at a storage node: its blocks, its rows, and who may write them.
//!
//! Writes of an epoch pass the **gate**, in which they hold one place while they check their epoch and take effect. An
//! opening takes all places, so that no write is half done when the epoch changes and none of an older one begins after.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use base::rt::channel::{OneshotReceiver, OneshotSender, Receiver, Sender, bounded, oneshot};
use base::rt::disk::Directory;
use base::rt::net::Parts;
use base::rt::sync::{Mutex as AsyncMutex, Semaphore};
use base::rt::{self, Stop, Task};
use base::{BlockNumber, Epoch, ErrorKind};

use super::message::{Append, Opened, Role};
use super::server::{EngineFailure, NodeOptions};
use super::{
    APPENDS_TOGETHER_MAX, APPENDS_WAITING_MAX, BEHIND_BLOCKS_MAX, Backoff, MATERIALIZE_BLOCKS, MATERIALIZE_BYTES,
    epoch, hold_up,
};
use crate::blocks::{BlockStore, NewBlock};
use crate::state_store::StateStore;
use crate::tables::Savepoint;
use crate::{Error, History, LocalHistory, LocalStateStore, events, lock};

/// Places of the gate: writes that may take effect side by side.
const GATE_PLACES: u32 = 64;

/// Names the link that may append; 0 is no link.
pub type Appender = u64;

/// One channel; see [the module](self).
pub struct Channel {
    name: String,
    epochs: Directory,
    blocks: BlockStore,
    state: LocalStateStore,
    history: LocalHistory,
    engine: Arc<EngineFailure>,
    gate: Semaphore,
    /// Changed only by whoever has the whole gate.
    epoch: AtomicU64,
    /// The newest appending link. Changed only by whoever has the whole gate.
    appender: AtomicU64,
    appends: Sender<Queued>,
    /// Numbers and bytes of the blocks that were appended here and not made into rows yet, oldest first.
    behind: Mutex<VecDeque<(u64, u64)>>,
    /// Why the channel takes no further writes: it is to be opened again.
    failure: OnceLock<Error>,
    /// Stopped once there is a failure.
    failed: Stop,
    stop: Stop,
    tasks: Mutex<Vec<Task<()>>>,
    pruning: AsyncMutex<()>,
}

struct Queued {
    block: Append,
    appender: Appender,
    answer: OneshotSender<Result<u64, Error>>,
}

/// A block that waits to be durable.
struct Appended {
    number: BlockNumber,
    header_hash: [u8; 32],
    payload: Parts,
    answer: OneshotSender<Result<u64, Error>>,
}

impl Channel {
    /// Opens a channel, empty where there is none, and starts its tasks.
    ///
    /// # Errors
    /// [`Error::Mismatched`] and [`Error::Corrupt`] for damage; errors of the operating system and the engine.
    pub async fn open(options: &NodeOptions, engine: &Arc<EngineFailure>, name: &str) -> Result<Arc<Channel>, Error> {
        let blocks = options.data.subdirectory(super::server::BLOCKS).await?;
        let epochs = options.data.subdirectory(super::server::EPOCHS).await?;
        let path = blocks.path().join(name);
        let directory = blocks.subdirectory(name).await.map_err(|error| Error::io("opening", &path, error))?;
        let opened = BlockStore::open(directory, options.sync.clone(), options.blocks.clone()).await?;
        let (blocks, report) = opened;
        if let Some(torn) = &report.torn_tail {
            tracing::warn!(channel = name, ?torn, "cut an incomplete block off the store");
        }
        let tables = engine.note(options.tables.tables(name).await)?;
        let state = LocalStateStore::open(Arc::new(blocks.clone()), tables, options.materializer.clone()).await?;
        let (index, materializer) = (Arc::clone(&options.tables), Arc::clone(&options.materializer));
        let history = LocalHistory::new(name, Arc::new(blocks.clone()), index, materializer);
        let newest = epoch::read(&epochs, name)?.max(blocks.tip().epoch);
        state.set_epoch(newest);
        let (appends, queue) = bounded(APPENDS_WAITING_MAX);
        let channel = Arc::new(Channel {
            name: name.to_owned(),
            epochs,
            blocks,
            state,
            history,
            engine: Arc::clone(engine),
            gate: Semaphore::new(GATE_PLACES as usize),
            epoch: AtomicU64::new(newest.get()),
            appender: AtomicU64::new(0),
            appends,
            behind: Mutex::default(),
            failure: OnceLock::new(),
            failed: Stop::new(),
            stop: Stop::new(),
            tasks: Mutex::default(),
            pruning: AsyncMutex::new(()),
        });
        let tasks =
            vec![rt::spawn(append_blocks(channel.clone(), queue)), rt::spawn(materialize_blocks(channel.clone()))];
        *lock(&channel.tasks) = tasks;
        Ok(channel)
    }

    /// Step 2 of the node: lets a client in.
    ///
    /// # Errors
    /// [`Error::Fenced`] under an epoch that is not the newest; errors of the operating system.
    pub async fn admit(&self, role: Role, given: Epoch, link: Appender) -> Result<Opened, Error> {
        self.check_whole()?;
        if role != Role::Reader {
            let _whole_gate = self.gate.acquire_many(GATE_PLACES).await;
            self.check_epoch(given)?;
            if given > self.epoch() {
                self.advance(given).await?;
            }
            if role == Role::Appender {
                self.appender.store(link, Ordering::Release);
            }
            // What an earlier primary appended is the new one's too, so it must not be lost after it was answered.
            self.note(self.blocks.sync().await)?;
            return Ok(self.opened());
        }
        Ok(self.opened())
    }

    /// Step 0 of the node: an epoch that nobody else has; where `newest` is named, only if no later one has begun.
    ///
    /// # Errors
    /// [`Error::Fenced`] when one has; errors of the operating system: the epoch may have begun all the same.
    pub async fn begin(&self, newest: Option<Epoch>) -> Result<Epoch, Error> {
        self.check_whole()?;
        let _whole_gate = self.gate.acquire_many(GATE_PLACES).await;
        if let Some(given) = newest
            && given != self.epoch()
        {
            return Err(Error::Fenced { given, newest: self.epoch() });
        }
        let next = self.epoch().get().checked_add(1).ok_or(Error::Invalid("there are no epochs left"))?;
        self.advance(Epoch(next)).await?;
        Ok(Epoch(next))
    }

    /// Begins a later epoch. Whoever calls has the whole gate.
    async fn advance(&self, to: Epoch) -> Result<(), Error> {
        epoch::write(&self.epochs, &self.name, to).await?;
        hold_up("storage.node.epoch_written").await;
        self.epoch.store(to.get(), Ordering::Release);
        self.state.set_epoch(to);
        events::EpochsBegun.add(1);
        Ok(())
    }

    fn opened(&self) -> Opened {
        Opened { durable: self.blocks.durable_height(), tip: self.blocks.tip(), savepoint: self.state.savepoint() }
    }

    /// Queues an append; the answer comes once the block is durable, or will not be.
    ///
    /// # Errors
    /// The answer at once, when there is no room.
    pub fn append(&self, block: Append, appender: Appender) -> Result<OneshotReceiver<Result<u64, Error>>, Error> {
        self.check_whole()?;
        let (answer, answered) = oneshot();
        let queued = Queued { block, appender, answer };
        self.appends.try_send(queued).map(|()| answered).map_err(|error| match error.is_full() {
            true => self.remote(ErrorKind::Retry, "too many appends wait"),
            false => self.remote(ErrorKind::Closed, "the channel has been closed"),
        })
    }

    /// Materialises for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`StateStore::materialize`].
    pub async fn materialize(&self, given: Epoch, height: u64) -> Result<Savepoint, Error> {
        self.check_whole()?;
        {
            let _place = self.gate.acquire().await;
            self.check_epoch(given)?;
        }
        // Rows are those of the blocks, whoever asked; a newer primary that comes meanwhile finds them made.
        self.materialize_to(height).await
    }

    /// Prunes for a primary.
    ///
    /// # Errors
    /// [`Error::Fenced`]; as [`StateStore::prune`].
    pub async fn prune(self: Arc<Self>, given: Epoch, oldest: BlockNumber) -> Result<(), Error> {
        self.check_whole()?;
        // In a task of its own: when the link ends, the place in the gate is kept until the pruning has.
        let task = rt::spawn(async move {
            let _one_at_a_time = self.pruning.lock().await;
            let _place = self.gate.acquire().await;
            self.check_epoch(given)?;
            hold_up("storage.node.pruning").await;
            self.note(self.engine.note(self.state.prune(oldest).await))
        });
        task.await.unwrap_or(Err(Error::Invalid("the node stopped before it had pruned")))
    }

    /// Confirms that a primary has no successor yet.
    ///
    /// # Errors
    /// [`Error::Fenced`].
    pub fn confirm(&self, given: Epoch) -> Result<(), Error> {
        self.check_whole()?;
        self.check_epoch(given)
    }

    /// Which blocks wrote a key.
    ///
    /// # Errors
    /// As [`History::blocks_of`].
    pub async fn history(
        &self,
        namespace: &str,
        key: &[u8],
        below: BlockNumber,
        limit: usize,
    ) -> Result<Vec<BlockNumber>, Error> {
        self.check_whole()?;
        self.engine.note(self.history.blocks_of(namespace, key, below, limit).await)
    }

    /// The blocks.
    pub fn blocks(&self) -> &BlockStore {
        &self.blocks
    }

    /// The rows.
    pub fn state(&self) -> &LocalStateStore {
        &self.state
    }

    /// Whether the channel takes writes; one that does not is to be opened again.
    pub fn is_whole(&self) -> bool {
        self.failure.get().is_none()
    }

    /// Whether it has been asked to end: it may be open a second time then, and what it has is out of date.
    pub fn has_ended(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Completes when it is asked to end.
    pub async fn ended(&self) {
        self.stop.stopped().await;
    }

    /// Ends the tasks, after what has begun.
    pub async fn end(&self) {
        self.stop.stop();
        let tasks = std::mem::take(&mut *lock(&self.tasks));
        for task in tasks {
            // One that was aborted has nothing left to do.
            let _ = task.await;
        }
    }

    /// Ends the tasks, makes all blocks into rows and everything durable.
    ///
    /// # Errors
    /// Those of materialising and closing.
    pub async fn close(&self) -> Result<(), Error> {
        self.end().await;
        self.check_whole()?;
        self.blocks.sync().await?;
        self.materialize_to(u64::MAX).await?;
        self.blocks.close().await
    }

    async fn materialize_to(&self, height: u64) -> Result<Savepoint, Error> {
        let before = self.state.savepoint().height;
        let started = rt::now();
        let savepoint = self.note(self.engine.note(self.state.materialize(height).await))?;
        if savepoint.height > before {
            events::BlocksMaterialized.add(savepoint.height - before);
            events::MaterializeTime.record_since(started);
        }
        let mut behind = lock(&self.behind);
        while behind.front().is_some_and(|(number, _)| *number < savepoint.height) {
            behind.pop_front();
        }
        drop(behind);
        Ok(savepoint)
    }

    fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    fn check_epoch(&self, given: Epoch) -> Result<(), Error> {
        let newest = self.epoch();
        if given < newest {
            events::WritesFenced.add(1);
            return Err(Error::Fenced { given, newest });
        }
        Ok(())
    }

    /// Refuses an append that does not come from the newest primary's newest link. To be asked within the gate.
    fn check_appender(&self, queued: &Queued) -> Result<(), Error> {
        // The planted mistake of the simulation: an older primary that was paused writes on.
        if rt::fault_point("storage.node.mutant.append_unfenced") {
            return Ok(());
        }
        self.check_epoch(queued.block.epoch)?;
        if queued.block.epoch > self.epoch() {
            return Err(Error::Invalid("an append under an epoch that was never opened"));
        }
        match queued.appender == self.appender.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(self.remote(ErrorKind::Closed, "a later link of the same primary appends")),
        }
    }

    fn check_whole(&self) -> Result<(), Error> {
        self.failure.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Notes an error after which the channel is to be opened again.
    fn note<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &outcome
            && matches!(error.kind(), ErrorKind::Closed | ErrorKind::Ambiguous | ErrorKind::Corrupt)
        {
            tracing::error!(channel = self.name, %error, "the channel takes no further writes");
            self.fail(error.clone());
        }
        outcome
    }

    /// Takes no further writes. Those that wait for room are refused at once.
    fn fail(&self, error: Error) {
        self.failure.get_or_init(|| error);
        self.failed.stop();
    }

    fn remote(&self, kind: ErrorKind, text: &str) -> Error {
        Error::Remote { node: self.name.as_str().into(), kind, text: text.to_owned() }
    }

    /// Blocks that may be appended before the savepoint must move.
    fn room(&self) -> usize {
        let behind = self.blocks.height().saturating_sub(self.state.savepoint().height);
        BEHIND_BLOCKS_MAX.saturating_sub(behind) as usize
    }

    /// Whether so many durable blocks, or so many bytes of them, wait that they are to be made into rows.
    fn is_due(&self) -> bool {
        let waiting = self.state.savepoint().height..self.blocks.durable_height();
        let bytes = || {
            let behind = lock(&self.behind);
            behind.iter().filter(|(number, _)| waiting.contains(number)).map(|(_, bytes)| bytes).sum::<u64>()
        };
        waiting.end.saturating_sub(waiting.start) >= MATERIALIZE_BLOCKS || bytes() >= MATERIALIZE_BYTES
    }

    /// Appends blocks in order; answers those that were not, and gives the others to be answered.
    async fn append_some(&self, queued: &mut Vec<Queued>) -> Vec<Appended> {
        let _place = self.gate.acquire().await;
        let mut appended = Vec::with_capacity(queued.len());
        for queued in queued.drain(..) {
            let allowed = self.check_whole().and_then(|()| self.check_appender(&queued));
            let Queued { block, answer, .. } = queued;
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
                    self.note(self.blocks.append(new).await)
                }
            };
            match outcome {
                Ok(()) => {
                    lock(&self.behind).push_back((block.number.get(), block.payload.len() as u64));
                    let Append { number, header_hash, payload, .. } = block;
                    appended.push(Appended { number, header_hash, payload, answer });
                }
                // A caller that has gone no longer wants to know.
                Err(error) => drop(answer.send(Err(error))),
            }
        }
        appended
    }
}

/// Step 3 of the node, until the channel ends.
async fn append_blocks(channel: Arc<Channel>, mut queue: Receiver<Queued>) {
    let mut savepoints = channel.state.subscribe_savepoint();
    let mut queued = Vec::with_capacity(APPENDS_TOGETHER_MAX);
    loop {
        let mut room = channel.room();
        while room == 0 && channel.is_whole() {
            events::AppendsHeldBack.add(1);
            match channel.stop.or_stopped(channel.failed.or_stopped(savepoints.changed())).await {
                Some(Some(Ok(()))) => room = channel.room(),
                // What waits is refused.
                Some(None) => {}
                _ => return,
            }
        }
        let limit = room.clamp(1, APPENDS_TOGETHER_MAX);
        match channel.stop.or_stopped(queue.recv_many(&mut queued, limit)).await {
            None | Some(0) => return,
            Some(_) => {}
        }
        hold_up("storage.node.append_received").await;
        let appended = channel.append_some(&mut queued).await;
        if appended.is_empty() {
            continue;
        }
        hold_up("storage.node.appended").await;
        let synced = channel.note(channel.blocks.sync().await);
        hold_up("storage.node.durable").await;
        for Appended { number, header_hash, payload, answer } in appended {
            // A caller that has gone no longer wants to know.
            drop(answer.send(synced.clone()));
            if synced.is_ok() {
                channel.state.prepare(number, header_hash, &payload);
            }
        }
    }
}

/// Step 4 of the node, until the channel ends.
async fn materialize_blocks(channel: Arc<Channel>) {
    let mut durable = channel.blocks.subscribe_durable();
    let mut backoff = Backoff::new();
    loop {
        while channel.is_due() && !channel.stop.is_stopped() {
            hold_up("storage.node.materializing").await;
            let target = channel.state.ripe();
            // Never broken off half way: whoever ends the channel waits for it.
            match channel.materialize_to(target).await {
                Ok(_) => backoff = Backoff::new(),
                Err(error) if error.kind() == ErrorKind::Retry => {
                    tracing::warn!(channel = channel.name, %error, "blocks cannot be made into rows yet");
                    if channel.stop.or_stopped(backoff.wait()).await.is_none() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::error!(channel = channel.name, %error, "blocks cannot be made into rows");
                    channel.fail(error);
                    return;
                }
            }
            hold_up("storage.node.materialized").await;
        }
        if !matches!(channel.stop.or_stopped(durable.changed()).await, Some(Ok(()))) {
            return;
        }
    }
}
