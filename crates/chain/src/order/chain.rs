//! One channel at an orderer: its queue, its blocks, its log.
//!
//! Two tasks, so that cutting goes on while the disk works:
//!
//! 1. **Cut**: takes envelopes from the queue, as many at once as there are, and offers them to the cutter; builds, signs
//!    and appends each block that is cut; hands it to the next stage.
//! 2. **Sync**: takes all blocks that were appended meanwhile, makes them durable with one fsync, and shows them: they
//!    join the ring of recent blocks, the durable height moves, and who waits for them is told.
//!
//! The first error of either ends the channel here: a block that cannot be stored is not skipped.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use base::rt::channel::{
    OneshotSender, Receiver, Sender, TrySendError, WatchReceiver, WatchSender, bounded, oneshot, watch,
};
use base::rt::sync::{Permit, Semaphore};
use base::rt::{self, Instant, Stop, Task};
use base::{BlockNumber, Bytes};
use identity::Signer;
use ledger::block::OrdererMetadata;
use ledger::{Block, Hash};
use storage::blocks::BlockStore;

use super::cutter::{Batch, Cutter, Limits};
use super::filter::{Message, check};
use super::{Acknowledge, BLOCK_BYTES_MAX, BroadcastError, Settings};
use crate::access::Rules;
use crate::commit::pipeline::append;
use crate::fault::{Failure, Stalls, hold_up, run_stage};
use crate::{Error, events};

/// Blocks that wait to be durable.
const APPENDED_AHEAD_MAX: usize = 8;
/// Envelopes taken from the queue at once.
const TAKE_MAX: usize = 256;
/// Blocks that the ring holds at most.
const RECENT_BLOCKS_MAX: usize = 64;
/// Encoded bytes of blocks that the ring holds at most; the newest block is always held.
const RECENT_BYTES_MAX: usize = 64 << 20;

/// One channel's order.
pub struct Chain {
    rules: Arc<Rules>,
    store: BlockStore,
    settings: Settings,
    queue: Sender<Queued>,
    /// Bytes that may still join the queue.
    room: Semaphore,
    /// Number of durable blocks.
    durable: WatchSender<u64>,
    recent: Mutex<VecDeque<(u64, Bytes)>>,
    failure: Failure,
    stalls: Stalls,
    stop: Stop,
    tasks: Mutex<Vec<Task<()>>>,
}

struct Queued {
    message: Message,
    acknowledge: Option<OneshotSender<()>>,
    /// Given back once the envelope has left the queue.
    _room: Permit,
}

struct Appended {
    number: u64,
    bytes: Bytes,
    acknowledge: Vec<OneshotSender<()>>,
    cut: Instant,
}

impl Chain {
    /// Goes on behind the last block of the log, which has at least its genesis block.
    ///
    /// # Errors
    /// If the last block cannot be read.
    pub(super) fn start(
        rules: Arc<Rules>,
        store: BlockStore,
        signer: Signer,
        settings: Settings,
    ) -> Result<Arc<Chain>, Error> {
        let tip = store.tip();
        assert!(tip.height > 0, "a chain starts behind its genesis block");
        let (queue, queued) = bounded(settings.queue_messages_max);
        let (durable, _) = watch(tip.height);
        let chain = Arc::new(Chain {
            rules,
            store,
            room: Semaphore::new(settings.queue_bytes_max as usize),
            settings,
            queue,
            durable,
            recent: Mutex::default(),
            failure: Failure::default(),
            stalls: Stalls::default(),
            stop: Stop::new(),
            tasks: Mutex::default(),
        });
        let (appended, to_sync) = bounded(APPENDED_AHEAD_MAX);
        let cut = Cut {
            chain: chain.clone(),
            signer,
            number: tip.height,
            previous: tip.header_hash,
            appended,
            acknowledge: VecDeque::new(),
        };
        let tasks = vec![
            rt::spawn(run(chain.clone(), cut.run(queued))),
            rt::spawn(run(chain.clone(), sync_blocks(chain.clone(), to_sync))),
        ];
        *chain.tasks.lock().expect("no holder of this lock panics") = tasks;
        Ok(chain)
    }

    /// The channel's rules.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The log.
    pub fn store(&self) -> &BlockStore {
        &self.store
    }

    /// Number of blocks that are durable and may be shown.
    pub fn height(&self) -> u64 {
        *self.durable.borrow()
    }

    /// Follows [`Chain::height`].
    pub fn durable(&self) -> WatchReceiver<u64> {
        self.durable.subscribe()
    }

    /// A durable block, encoded.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        if number >= self.height() {
            return Ok(None);
        }
        {
            let recent = self.recent.lock().expect("no holder of this lock panics");
            if let Some((first, _)) = recent.front()
                && let Some(index) = number.checked_sub(*first)
                && let Some((_, bytes)) = recent.get(index as usize)
            {
                return Ok(Some(bytes.clone()));
            }
        }
        Ok(self.store.read(BlockNumber(number))?)
    }

    pub(super) async fn broadcast(&self, envelope: Bytes) -> Result<(), BroadcastError> {
        let message = match check(envelope, &self.rules, rt::wall_now()) {
            Ok(message) => message,
            Err(error) => {
                events::MessagesRefused.add(1);
                return Err(error);
            }
        };
        let (acknowledge, acknowledged) = match self.settings.acknowledge {
            Acknowledge::Queued => (None, None),
            Acknowledge::Durable => {
                let (sender, receiver) = oneshot();
                (Some(sender), Some(receiver))
            }
        };
        if self.settings.queue_wait_max.is_zero() {
            let _room = self.room.try_acquire_many(self.room_of(&message)).ok_or_else(overloaded)?;
            match self.queue.try_send(Queued { message, acknowledge, _room }) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Err(BroadcastError::Stopped),
                Err(TrySendError::Full(_)) => return Err(overloaded()),
            }
        } else {
            match rt::timeout(self.settings.queue_wait_max, self.enqueue(message, acknowledge)).await {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => return Err(stopped),
                Err(_) => return Err(overloaded()),
            }
        }
        events::MessagesOrdered.add(1);
        match acknowledged {
            Some(acknowledged) => acknowledged.await.map_err(|_| BroadcastError::Ambiguous),
            None => Ok(()),
        }
    }

    async fn enqueue(&self, message: Message, acknowledge: Option<OneshotSender<()>>) -> Result<(), BroadcastError> {
        let bytes = self.room_of(&message);
        let _room = match self.room.try_acquire_many(bytes) {
            Some(room) => room,
            None => {
                let room = self.stop.or_stopped(self.room.acquire_many(bytes)).await;
                room.ok_or(BroadcastError::Stopped)?
            }
        };
        self.queue.send(Queued { message, acknowledge, _room }).await.map_err(|_| BroadcastError::Stopped)
    }

    /// What a message takes of [`Chain::room`]. One that is larger than all of it waits until it is alone.
    fn room_of(&self, message: &Message) -> u32 {
        u32::try_from(message.envelope.len()).unwrap_or(u32::MAX).min(self.settings.queue_bytes_max)
    }

    fn show(&self, number: u64, bytes: Bytes) {
        let mut recent = self.recent.lock().expect("no holder of this lock panics");
        recent.push_back((number, bytes));
        let mut held: usize = recent.iter().map(|(_, bytes)| bytes.len()).sum();
        while recent.len() > 1 && (recent.len() > RECENT_BLOCKS_MAX || held > RECENT_BYTES_MAX) {
            let (_, oldest) = recent.pop_front().expect("the ring holds more than one block");
            held -= oldest.len();
        }
    }

    /// The error that ended ordering, if one did. What is durable can still be read.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.get()
    }

    /// What ordering waits for, while it cannot go on: room on its disk, say.
    pub fn stalled(&self) -> Option<String> {
        self.stalls.reason()
    }

    /// Resolves when the channel takes no more envelopes.
    pub async fn stopped(&self) {
        self.stop.stopped().await;
    }

    /// Ends when the channel is to stop.
    pub(super) fn stopping(&self) -> &Stop {
        &self.stop
    }

    /// Cuts what waits, makes it durable, and ends.
    pub(super) async fn stop(&self) {
        self.stop.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        for task in tasks {
            // A task that was aborted has nothing left to do.
            let _ = task.await;
        }
        if let Err(error) = self.store.close().await {
            tracing::warn!(channel = %self.rules.channel(), %error, "closing the orderer's log");
        }
    }
}

fn overloaded() -> BroadcastError {
    events::MessagesOverloaded.add(1);
    BroadcastError::Overloaded
}

async fn run(chain: Arc<Chain>, stage: impl Future<Output = Result<(), Error>>) {
    let failed = |error| {
        tracing::error!(channel = %chain.rules.channel(), %error, "ordering has ended");
        chain.failure.note(error);
        chain.stop.stop();
    };
    run_stage(stage, failed).await;
}

/// Stage 1.
struct Cut {
    chain: Arc<Chain>,
    signer: Signer,
    number: u64,
    previous: Hash,
    appended: Sender<Appended>,
    /// Of envelopes that wait in the cutter, in order; empty unless durability is acknowledged.
    acknowledge: VecDeque<Option<OneshotSender<()>>>,
}

impl Cut {
    async fn run(mut self, mut queue: Receiver<Queued>) -> Result<(), Error> {
        let batch = self.chain.rules.config().batch();
        let mut cutter = Cutter::new(Limits {
            messages_max: batch.messages_max.max(1),
            preferred_bytes_max: batch.preferred_bytes_max.min(BLOCK_BYTES_MAX),
            timeout: batch.timeout,
        });
        let stop = self.chain.stop.clone();
        let mut taken = Vec::with_capacity(TAKE_MAX);
        loop {
            let take = stop.or_stopped(queue.recv_many(&mut taken, TAKE_MAX));
            let count = match cutter.deadline() {
                None => take.await,
                Some(deadline) => match rt::timeout(deadline - rt::now(), take).await {
                    Ok(count) => count,
                    Err(_) => {
                        self.append(cutter.cut()).await?;
                        continue;
                    }
                },
            };
            let now = rt::now();
            for Queued { message, acknowledge, .. } in taken.drain(..) {
                self.acknowledge.push_back(acknowledge);
                for batch in cutter.offer(message.envelope, message.bytes, now) {
                    self.append(batch).await?;
                }
            }
            if count.is_none_or(|count| count == 0) {
                // Stopping: nobody is told that what waits was lost, so it is not. Received until nobody is left who was
                // given room: such a sender may still be putting its envelope there, and the queue be empty just now.
                queue.close();
                while let Some(Queued { message, acknowledge, .. }) = queue.recv().await {
                    self.acknowledge.push_back(acknowledge);
                    for batch in cutter.offer(message.envelope, message.bytes, now) {
                        self.append(batch).await?;
                    }
                }
                return self.append(cutter.cut()).await;
            }
            if cutter.deadline().is_some_and(|deadline| deadline <= now) {
                self.append(cutter.cut()).await?;
            }
        }
    }

    async fn append(&mut self, batch: Option<Batch>) -> Result<(), Error> {
        let Some(batch) = batch else { return Ok(()) };
        let cut = rt::now();
        let block = Block::build(BlockNumber(self.number), Some(self.previous), &batch.envelopes);
        let block = block.sign(&self.signer, &OrdererMetadata { last_config: 0, consenter: Bytes::new() });
        append(&self.chain.store, &block, &[], &self.chain.stop, &self.chain.stalls).await?;
        let acknowledge = self.acknowledge.drain(..batch.envelopes.len()).flatten().collect();
        // One piece for all peers, copied once.
        let appended = Appended { number: self.number, bytes: block.to_bytes(), acknowledge, cut };
        self.number += 1;
        self.previous = block.hash();
        self.appended.send(appended).await.map_err(|_| Error::Stopped)
    }
}

/// Stage 2.
async fn sync_blocks(chain: Arc<Chain>, mut to_sync: Receiver<Appended>) -> Result<(), Error> {
    let mut waiting = Vec::with_capacity(APPENDED_AHEAD_MAX);
    while to_sync.recv_many(&mut waiting, APPENDED_AHEAD_MAX).await > 0 {
        hold_up("chain.order.appended").await;
        chain.store.sync().await?;
        hold_up("chain.order.durable").await;
        for Appended { number, bytes, acknowledge, cut } in waiting.drain(..) {
            chain.show(number, bytes);
            chain.durable.send(number + 1);
            for sender in acknowledge {
                // A caller that has gone no longer wants to know.
                let _ = sender.send(());
            }
            events::BlocksOrdered.add(1);
            events::OrderTime.record_since(cut);
        }
    }
    Ok(())
}
