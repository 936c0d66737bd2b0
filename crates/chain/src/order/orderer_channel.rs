//! One channel at an orderer: its queue, its blocks, its log.
//!
//! The channel's ordering engine is an [`OrderedLog`] of encoded blocks by number. It keeps the blocks in the
//! [`ChannelLogStore`], and reports which orderer is the leader and which blocks are committed. Two tasks use it:
//!
//! 1. **Cut**: while this orderer is the leader, the task takes envelopes from the queue, up to `TAKE_MAX` at once, and
//!    offers them to the block cutter. The cutter cuts at the channel's limits, and earlier when [`CutPacer`] allows
//!    it. The task builds each block on the last block of the log, signs it, and appends it through the engine. An
//!    envelope that was checked under another configuration than the leader's is checked again. When the task takes a
//!    configuration, it first cuts the envelopes that wait. Then it puts the configuration alone into a block, and
//!    replaces the limits of the cutter. If [`BroadcastConfig::reorder`] is set, the task changes the order of a block's
//!    transactions so that more of them are valid ([`predictor`](super::predictor)). While this orderer is not the leader, the task rejects envelopes with the name
//!    of the leader.
//! 2. **Deliver**: the engine's commit index says which blocks are committed, and only these are sent to peers. When a
//!    block is committed, the task compares it with the block that this orderer built under the same number, and then
//!    answers the callers whose envelopes are in that block. If the blocks are equal, the envelopes are durable. If
//!    they differ, the callers must send the envelopes again. If no block of that number is committed within
//!    [`ACKNOWLEDGE_TIMEOUT`], the outcome is ambiguous. A committed configuration decides from then on who may submit
//!    envelopes and read blocks.
//!
//! A third task advances the channel's [watermark](storage::watermark) to the height of the log, at most once a second.
//!
//! The first error of a task or of the engine ends the channel at this orderer: a block that cannot be stored is not
//! skipped.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use base::rt::channel::{OneshotSender, Receiver, Sender, TrySendError, WatchReceiver, bounded, oneshot};
use base::rt::sync::{Semaphore, SemaphorePermit};
use base::rt::{self, CancellationToken, Instant, Task};
use base::{BlockNumber, Bytes, ChannelId, Term};
use block_transport::ChannelBlocks;
use futures_util::future::{Either, join_all, select};
use identity::Signer;
use ledger::block::OrdererMetadata;
use ledger::{Block, Hash};
use ordered_log::{Leadership, LogStore as _, OrderedLog};
use rules::access::ChannelPolicies;
use storage::WatermarkFile;
use storage::blocks::BlockStore;

use super::config::ConfigInForce;
use super::cutter::{Cutter, CutterLimits, EnvelopeBatch};
use super::filter::{CheckedEnvelope, ConfigChange, EnvelopeFilter};
use super::log_store::{ChannelLogStore, OrderingEngines};
use super::pacer::CutPacer;
use super::predictor::{Arrangement, Predictor};
use super::reorder::TransactionFootprint;
use super::{AcknowledgeMode, BLOCK_BYTES_MAX, BroadcastConfig, BroadcastError, CuttingMode};
use crate::fault::{ChannelFailure, run_stage};
use crate::stores::WATERMARK_PERIOD;
use crate::{Error, events};

/// The largest number of envelopes that are taken from the queue at once.
const TAKE_MAX: usize = 256;
/// How long a caller may wait for its envelope after the block was handed to the engine.
pub const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a stopping channel waits for its last blocks to be committed.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The largest number of uncommitted blocks, of this term and earlier ones, whose callers wait. Callers of the oldest
/// blocks beyond it get `Ambiguous`.
const UNCOMMITTED_MAX: usize = 256;
/// The part of the engine's entry besides the envelopes: headers, signature, certificate.
const BLOCK_OVERHEAD_BYTES: usize = 64 << 10;

/// The ordering of one channel.
pub struct OrdererChannel {
    channel: ChannelId,
    /// The committed configuration.
    config: RwLock<ConfigInForce>,
    signer: Signer,
    log_store: Arc<ChannelLogStore>,
    log: Arc<dyn OrderedLog>,
    commit_index: WatchReceiver<u64>,
    role: WatchReceiver<Leadership>,
    settings: BroadcastConfig,
    block_bytes_max: u32,
    queue: Sender<QueuedEnvelope>,
    /// Bytes of envelopes that the queue can still take.
    queue_bytes: Semaphore,
    uncommitted: Mutex<VecDeque<UncommittedBlock>>,
    failure: ChannelFailure,
    stop: CancellationToken,
    tasks: Mutex<Vec<Task<()>>>,
    acknowledging: Mutex<Option<Task<()>>>,
    /// The durable note of how far the log has come.
    watermark: Option<WatermarkFile>,
}

type ResponseSender = OneshotSender<Result<(), BroadcastError>>;

struct QueuedEnvelope {
    message: CheckedEnvelope,
    /// Empty unless transactions change places.
    footprint: TransactionFootprint,
    answer: Option<ResponseSender>,
    /// Returned when the envelope has left the queue.
    _queue_bytes: SemaphorePermit,
}

/// A block that was handed to the engine.
struct UncommittedBlock {
    number: u64,
    bytes: Bytes,
    answers: Vec<ResponseSender>,
    cut: Instant,
}

impl OrdererChannel {
    /// Continues after the last block of the log, which has at least its genesis block. `genesis` are the policies of that
    /// block.
    ///
    /// # Errors
    /// If a block cannot be read, or the engine cannot start.
    pub(super) async fn start(
        genesis: Arc<ChannelPolicies>,
        log_store: Arc<ChannelLogStore>,
        engines: &dyn OrderingEngines,
        signer: Signer,
        settings: BroadcastConfig,
        watermark: Option<WatermarkFile>,
    ) -> Result<Arc<OrdererChannel>, Error> {
        assert!(log_store.height() > 0, "a chain starts behind its genesis block");
        let channel = genesis.channel().clone();
        let log = engines.open(channel.as_str(), log_store.clone()).await?;
        let commit_index = log.deliverable();
        let committed = (*commit_index.borrow()).max(1);
        let genesis = ConfigInForce { block: 0, policies: genesis };
        let config = ConfigInForce::after(&log_store, committed, &genesis)?;
        let (queue, queued) = bounded(settings.queue_messages_max);
        // In a block, envelopes are longer than their limits count, because of their framing.
        let entry_bytes = log.entry_bytes_max().saturating_sub(BLOCK_OVERHEAD_BYTES) / 16 * 15;
        let chain = Arc::new(OrdererChannel {
            channel,
            config: RwLock::new(config),
            signer,
            log_store,
            commit_index,
            role: log.leadership(),
            log,
            queue_bytes: Semaphore::new(settings.queue_bytes_max as usize),
            settings,
            block_bytes_max: BLOCK_BYTES_MAX.min(u32::try_from(entry_bytes).unwrap_or(u32::MAX)),
            queue,
            uncommitted: Mutex::default(),
            failure: ChannelFailure::default(),
            stop: CancellationToken::new(),
            tasks: Mutex::default(),
            acknowledging: Mutex::default(),
            watermark,
        });
        let cut = CuttingStage { channel: chain.clone(), answers: VecDeque::new(), footprints: Vec::new() };
        let tasks = vec![
            rt::spawn(run(chain.clone(), cut.run(queued))),
            rt::spawn(run(chain.clone(), watch_engine(chain.clone()))),
            rt::spawn(save_watermark(chain.clone())),
        ];
        *chain.tasks.lock().expect("no holder of this lock panics") = tasks;
        let showing = rt::spawn(run(chain.clone(), acknowledge_committed(chain.clone())));
        *chain.acknowledging.lock().expect("no holder of this lock panics") = Some(showing);
        Ok(chain)
    }

    /// The policies of the committed configuration.
    pub fn policies(&self) -> Arc<ChannelPolicies> {
        self.config().policies
    }

    /// The organisations that may receive its blocks: those of the channel, and those of its orderers.
    pub fn members(&self) -> Vec<String> {
        let policies = self.policies();
        let (peers, orderers) = (policies.config().application(), policies.config().orderers());
        peers.iter().chain(orderers).map(|organization| organization.msp_id.to_string()).collect()
    }

    fn config(&self) -> ConfigInForce {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the configuration into force that is committed at this height, if it is a new one.
    fn commit_config(&self, height: u64) -> Result<(), Error> {
        let current = self.config();
        let committed = ConfigInForce::after(&self.log_store, height.max(1), &current)?;
        if committed.block != current.block {
            tracing::info!(channel = %self.channel, block = committed.block, "a new configuration is in force");
            *self.config.write().unwrap_or_else(PoisonError::into_inner) = committed;
        }
        Ok(())
    }

    fn filter<'a>(&'a self, policies: &'a ChannelPolicies) -> EnvelopeFilter<'a> {
        EnvelopeFilter { policies, block_bytes_max: self.block_bytes_max, signer: &self.signer }
    }

    /// The log.
    pub fn store(&self) -> BlockStore {
        self.log_store.store()
    }

    /// Number of blocks that are committed and may be shown.
    pub fn height(&self) -> u64 {
        *self.commit_index.borrow()
    }

    /// Follows [`OrdererChannel::height`].
    pub fn deliverable(&self) -> WatchReceiver<u64> {
        self.commit_index.clone()
    }

    /// Whether this orderer is the leader, or which one is.
    pub fn role(&self) -> WatchReceiver<Leadership> {
        self.role.clone()
    }

    /// A block that may be shown, encoded.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        match number < self.height() {
            true => self.log_store.block(number),
            false => Ok(None),
        }
    }

    pub(super) async fn broadcast(&self, envelope: Bytes) -> Result<(), BroadcastError> {
        if let Leadership::Following { leader } = *self.role.borrow()
            && !self.stop.is_cancelled()
        {
            return Err(BroadcastError::NotLeading { leader });
        }
        let message = match self.filter(&self.policies()).check(envelope, rt::wall_now()) {
            Ok(message) => message,
            Err(error) => {
                events::MessagesRejected.add(1);
                return Err(error);
            }
        };
        // In the caller's task: callers run on all cores, and one task cuts the blocks.
        let footprint = match self.settings.reorder && message.change.is_none() {
            true => TransactionFootprint::of(&message.envelope),
            false => TransactionFootprint::default(),
        };
        let (answer, answered) = match self.settings.acknowledge {
            AcknowledgeMode::Queued => (None, None),
            AcknowledgeMode::Durable => {
                let (sender, receiver) = oneshot();
                (Some(sender), Some(receiver))
            }
        };
        if self.settings.queue_wait_max.is_zero() {
            let _room = self.queue_bytes.try_acquire_many(self.queue_bytes_of(&message)).ok_or_else(overloaded)?;
            match self.queue.try_send(QueuedEnvelope { message, footprint, answer, _queue_bytes: _room }) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Err(BroadcastError::Stopped),
                Err(TrySendError::Full(_)) => return Err(overloaded()),
            }
        } else {
            match rt::timeout(self.settings.queue_wait_max, self.enqueue(message, footprint, answer)).await {
                Ok(Ok(())) => {}
                Ok(Err(stopped)) => return Err(stopped),
                Err(_) => return Err(overloaded()),
            }
        }
        events::MessagesOrdered.add(1);
        match answered {
            Some(answered) => answered.await.unwrap_or(Err(BroadcastError::Ambiguous)),
            None => Ok(()),
        }
    }

    async fn enqueue(
        &self,
        message: CheckedEnvelope,
        footprint: TransactionFootprint,
        answer: Option<ResponseSender>,
    ) -> Result<(), BroadcastError> {
        let bytes = self.queue_bytes_of(&message);
        let _room = match self.queue_bytes.try_acquire_many(bytes) {
            Some(room) => room,
            None => {
                let room = self.stop.run_until_cancelled(self.queue_bytes.acquire_many(bytes)).await;
                room.ok_or(BroadcastError::Stopped)?
            }
        };
        self.queue
            .send(QueuedEnvelope { message, footprint, answer, _queue_bytes: _room })
            .await
            .map_err(|_| BroadcastError::Stopped)
    }

    /// The part of [`OrdererChannel::room`] that a message takes. A message larger than the whole waits until it is alone.
    fn queue_bytes_of(&self, message: &CheckedEnvelope) -> u32 {
        u32::try_from(message.envelope.len()).unwrap_or(u32::MAX).min(self.settings.queue_bytes_max)
    }

    fn not_leading(&self) -> BroadcastError {
        match *self.role.borrow() {
            Leadership::Following { leader } => BroadcastError::NotLeading { leader },
            Leadership::Leading { .. } => BroadcastError::NotLeading { leader: None },
        }
    }

    fn uncommitted(&self) -> std::sync::MutexGuard<'_, VecDeque<UncommittedBlock>> {
        self.uncommitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that ended ordering, if any. Durable blocks can still be read.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.get()
    }

    /// Why ordering cannot continue at the moment, such as a full disk; `None` if it can.
    pub fn stalled(&self) -> Option<String> {
        self.log_store.stalls.reason()
    }

    /// Resolves when the channel takes no more envelopes.
    pub async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Stopped when the channel is to stop.
    /// Cuts the envelopes that wait, makes their blocks durable, and ends.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.log_store.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        // The block cutter may wait for log space that nobody frees any more.
        let mut ended = pin!(join_all(tasks));
        let in_time = rt::timeout(DRAIN_MAX, &mut ended).await.is_ok();
        let last = self.uncommitted().back().map(|built| built.number);
        if let (true, Some(last), None) = (in_time, last, self.failure()) {
            let mut commit_index = self.deliverable();
            let (mut drained, mut ended) = (pin!(commit_index.wait_for(|safe| *safe > last)), pin!(self.log.ended()));
            if rt::timeout(DRAIN_MAX, select(&mut drained, &mut ended)).await.is_err() {
                tracing::warn!(channel = %self.channel, last, "the last blocks are not safe; others go on with them");
            }
        }
        self.log.stop().await;
        if !in_time {
            // A task that was aborted has nothing left to do.
            let _ = ended.await;
        }
        let showing = self.acknowledging.lock().expect("no holder of this lock panics").take();
        if let Some(showing) = showing {
            let _ = showing.await;
        }
        if let Some(watermark) = &self.watermark {
            self.log_store.raise_watermark(watermark, self.height()).await;
        }
        if let Err(error) = self.store().close().await {
            tracing::warn!(channel = %self.channel, %error, "closing the orderer's log");
        }
    }
}

impl ChannelBlocks for OrdererChannel {
    fn is_member(&self, organization: &str) -> bool {
        self.members().iter().any(|member| member == organization)
    }

    fn deliverable(&self) -> WatchReceiver<u64> {
        OrdererChannel::deliverable(self)
    }

    fn may_lag(&self) -> bool {
        matches!(*self.role.borrow(), Leadership::Following { .. })
    }

    fn block(&self, number: u64) -> Result<Option<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(OrdererChannel::block(self, number)?)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stop
    }
}

fn overloaded() -> BroadcastError {
    events::MessagesOverloaded.add(1);
    BroadcastError::Overloaded
}

async fn run(chain: Arc<OrdererChannel>, stage: impl Future<Output = Result<(), Error>>) {
    let failed = |error| {
        tracing::error!(channel = %chain.channel, %error, "ordering has ended");
        chain.failure.record(error);
        chain.stop.cancel();
        chain.log_store.stop();
    };
    run_stage(stage, failed).await;
}

/// Notes how far the log has come, until the channel is to stop.
async fn save_watermark(chain: Arc<OrdererChannel>) {
    let Some(watermark) = &chain.watermark else { return };
    let mut safe = chain.deliverable();
    loop {
        let shown = *safe.borrow_and_update();
        chain.log_store.raise_watermark(watermark, shown).await;
        let further = async {
            rt::sleep(WATERMARK_PERIOD).await;
            safe.changed().await.is_ok()
        };
        if chain.stop.run_until_cancelled(further).await != Some(true) {
            return;
        }
    }
}

/// Ends the channel when its engine ends.
async fn watch_engine(chain: Arc<OrdererChannel>) -> Result<(), Error> {
    match chain.stop.run_until_cancelled(chain.log.ended()).await {
        None => Ok(()),
        // The log's own error says more than the engine's.
        Some(error) => Err(chain.log_store.failure.take().unwrap_or(Error::Consensus(error))),
    }
}

/// Stage 1.
struct CuttingStage {
    channel: Arc<OrdererChannel>,
    /// The callers of the envelopes that wait in the cutter, in order; empty unless durability is acknowledged.
    answers: VecDeque<Option<ResponseSender>>,
    /// The footprints of the envelopes that wait in the cutter, in order; empty unless transactions change places.
    footprints: Vec<TransactionFootprint>,
}

/// One term of this orderer as leader, and the block on which it builds.
struct LeaderTerm {
    term: Term,
    number: u64,
    previous: Hash,
    /// The configuration after the last block.
    config: ConfigInForce,
    pace: CutPacer,
    predictor: Predictor,
}

/// Counts this orderer as a leader while the value lives: however the term ends, even with its task, the count ends
/// with it.
struct LeadershipGuard;

impl LeadershipGuard {
    fn start() -> LeadershipGuard {
        events::LeadershipsStarted.add(1);
        events::OrderersLeading.add(1);
        LeadershipGuard
    }
}

impl Drop for LeadershipGuard {
    fn drop(&mut self) {
        events::OrderersLeading.add(-1);
    }
}

impl CuttingStage {
    async fn run(mut self, mut queue: Receiver<QueuedEnvelope>) -> Result<(), Error> {
        let mut role = self.channel.role();
        let mut over = None;
        loop {
            let Some((term, next)) = self.wait_for_leadership(&mut role, over, &mut queue).await else {
                return self.reject_all(queue).await;
            };
            over = Some(term);
            let before = self.channel.log_store.block(next - 1)?;
            let before = before.ok_or_else(|| Error::Stored { block: next - 1, reason: "it is missing".to_owned() })?;
            let previous = Block::parse(&before)?.hash();
            let committed = self.channel.config();
            let config = match rt::fault_point("chain.order.mutant.committed_config") {
                false => ConfigInForce::after(&self.channel.log_store, next, &committed)?,
                true => committed,
            };
            let leadership = LeaderTerm {
                term,
                number: next,
                previous,
                config,
                pace: CutPacer::default(),
                predictor: Predictor::default(),
            };
            let guard = LeadershipGuard::start();
            if self.run_term(leadership, &mut queue).await? {
                return Ok(());
            }
            drop(guard);
            tracing::info!(channel = %self.channel.channel, %term, "this orderer does not lead any more");
            // No block contains any of these envelopes.
            let error = self.channel.not_leading();
            self.answers.drain(..).flatten().for_each(|answer| drop(answer.send(Err(error.clone()))));
            self.footprints.clear();
        }
    }

    /// Rejects envelopes until this orderer is the leader; `None` when it is to stop. If it has become the leader by
    /// the time that it is to stop, it still serves that term, so that the envelopes that it accepted meanwhile are
    /// cut.
    async fn wait_for_leadership(
        &self,
        role: &mut WatchReceiver<Leadership>,
        over: Option<Term>,
        queue: &mut Receiver<QueuedEnvelope>,
    ) -> Option<(Term, u64)> {
        let mut stopped = false;
        loop {
            match *role.borrow_and_update() {
                Leadership::Leading { term, next } if Some(term) > over => return Some((term, next)),
                _ if stopped => return None,
                _ => {}
            }
            let (mut changed, mut next) = (pin!(role.changed()), pin!(queue.recv()));
            match self.channel.stop.run_until_cancelled(select(&mut changed, &mut next)).await {
                Some(Either::Left((Ok(()), _))) => {}
                Some(Either::Left((Err(_), _)) | Either::Right((None, _))) => return None,
                Some(Either::Right((Some(QueuedEnvelope { answer, .. }), _))) => {
                    if let Some(answer) = answer {
                        // A caller that has gone does not want the answer.
                        let _ = answer.send(Err(self.channel.not_leading()));
                    }
                }
                None => stopped = true,
            }
        }
    }

    async fn reject_all(self, mut queue: Receiver<QueuedEnvelope>) -> Result<(), Error> {
        queue.close();
        while let Some(QueuedEnvelope { answer, .. }) = queue.recv().await {
            if let Some(answer) = answer {
                let _ = answer.send(Err(BroadcastError::Stopped));
            }
        }
        Ok(())
    }

    /// Cuts blocks while this orderer is the leader. Returns whether it is to stop.
    async fn run_term(
        &mut self,
        mut leadership: LeaderTerm,
        queue: &mut Receiver<QueuedEnvelope>,
    ) -> Result<bool, Error> {
        let mut cutter = Cutter::new(self.limits(&leadership));
        let stop = self.channel.stop.clone();
        let mut role = self.channel.role();
        let mut safe = self.channel.deliverable();
        let mut taken = Vec::with_capacity(TAKE_MAX);
        loop {
            let term = leadership.term;
            let take = stop.run_until_cancelled(queue.recv_many(&mut taken, TAKE_MAX));
            let lost = role.wait_for(|role| role.term() != Some(term));
            // Never completes if the engine has ended: `watch_engine` handles that.
            let awaits_commit = self.cuts_early() && leadership.pace.is_busy();
            let grown = async {
                if !awaits_commit || safe.changed().await.is_err() {
                    std::future::pending().await
                }
            };
            let due = self.due(&leadership, &cutter).map_or(Duration::MAX, |due| due - rt::now());
            let count = match rt::timeout(due, select(pin!(take), select(pin!(lost), pin!(grown)))).await {
                Ok(Either::Left((count, _))) => Some(count),
                Ok(Either::Right((Either::Left(_), _))) => return Ok(stop.is_cancelled()),
                Ok(Either::Right((Either::Right(((), _)), _))) | Err(_) => None,
            };
            leadership.pace.committed(*safe.borrow_and_update(), rt::now());
            if let Some(count) = count {
                if !self.offer(&mut leadership, &mut cutter, taken.drain(..)).await? {
                    return Ok(false);
                }
                if count.is_none_or(|count| count == 0) {
                    // Stopping: no caller was told that its waiting envelope is lost, so all of them are cut. Receive
                    // until no sender holds a permit of the queue: such a sender may still be adding its envelope,
                    // although the queue is empty at this moment.
                    queue.close();
                    while let Some(queued) = queue.recv().await {
                        self.offer(&mut leadership, &mut cutter, std::iter::once(queued)).await?;
                    }
                    self.append(&mut leadership, cutter.cut(), None).await?;
                    return Ok(true);
                }
            }
            let is_due = self.due(&leadership, &cutter).is_some_and(|due| due <= rt::now());
            if is_due && !self.append(&mut leadership, cutter.cut(), None).await? {
                return Ok(false);
            }
        }
    }

    fn limits(&self, leadership: &LeaderTerm) -> CutterLimits {
        let batch = leadership.config.policies.config().batch();
        CutterLimits {
            messages_max: batch.messages_max.max(1),
            preferred_bytes_max: batch.preferred_bytes_max.min(self.channel.block_bytes_max),
            timeout: batch.timeout,
        }
    }

    fn cuts_early(&self) -> bool {
        self.channel.settings.cutting == CuttingMode::Idle
    }

    /// When the waiting messages will be cut, as far as is known now; `None` if no message waits.
    fn due(&self, leadership: &LeaderTerm, cutter: &Cutter) -> Option<Instant> {
        let deadline = cutter.deadline()?;
        let early = if self.cuts_early() { leadership.pace.due() } else { None };
        Some(early.map_or(deadline, |early| early.min(deadline)))
    }

    /// Gives envelopes to the cutter. Returns whether this orderer is still the leader.
    async fn offer(
        &mut self,
        leadership: &mut LeaderTerm,
        cutter: &mut Cutter,
        taken: impl Iterator<Item = QueuedEnvelope>,
    ) -> Result<bool, Error> {
        let now = rt::now();
        let mut leads = true;
        let reorders = self.channel.settings.reorder;
        for QueuedEnvelope { message, footprint, answer, .. } in taken {
            if !leads {
                self.answers.push_back(answer);
                continue;
            }
            let checked = self.channel.filter(&leadership.config.policies).check_again(message, rt::wall_now());
            let CheckedEnvelope { envelope, bytes, change, .. } = match checked {
                Ok(checked) => checked,
                Err(error) => {
                    events::MessagesRejected.add(1);
                    tracing::debug!(channel = %self.channel.channel, %error, "dropped an envelope that was queued");
                    // A caller that has gone does not want the answer.
                    answer.into_iter().for_each(|answer| drop(answer.send(Err(error.clone()))));
                    continue;
                }
            };
            let Some(change) = change else {
                self.answers.push_back(answer);
                if reorders {
                    self.footprints.push(footprint);
                }
                for batch in cutter.offer(envelope, bytes, now) {
                    leads = leads && self.append(leadership, batch, None).await?;
                }
                continue;
            };
            leads = self.append(leadership, cutter.cut(), None).await?;
            self.answers.push_back(answer);
            let alone = EnvelopeBatch { envelopes: vec![envelope] };
            leads = leads && self.append(leadership, Some(alone), Some(change)).await?;
            cutter.set_limits(self.limits(leadership));
        }
        Ok(leads)
    }

    /// Builds a block and hands it to the engine. If the block holds a configuration, `change` is it. Returns whether this
    /// orderer is still the leader.
    async fn append(
        &mut self,
        leadership: &mut LeaderTerm,
        batch: Option<EnvelopeBatch>,
        change: Option<ConfigChange>,
    ) -> Result<bool, Error> {
        let Some(mut batch) = batch else { return Ok(true) };
        let cut = rt::now();
        if change.is_none() {
            self.reorder(leadership, &mut batch);
        }
        let block = Block::build(BlockNumber(leadership.number), Some(leadership.previous), &batch.envelopes);
        if let Some(ConfigChange { policies, .. }) = change {
            leadership.config = ConfigInForce { block: leadership.number, policies };
        }
        let metadata = OrdererMetadata { last_config: leadership.config.block, consenter: Bytes::new() };
        let block = block.sign(&self.channel.signer, &metadata);
        let answers = self.answers.drain(..batch.envelopes.len()).flatten().collect();
        // One buffer that all peers share, copied once.
        let bytes = block.to_bytes();
        {
            // Before the block is handed over: it may be committed before the call returns.
            let mut built = self.channel.uncommitted();
            built.push_back(UncommittedBlock { number: leadership.number, bytes: bytes.clone(), answers, cut });
            if built.len() > UNCOMMITTED_MAX {
                built.pop_front();
            }
        }
        match self.channel.log.append(leadership.term, leadership.number, bytes).await {
            Ok(()) => {
                leadership.pace.cut(leadership.number, cut);
                leadership.number += 1;
                leadership.previous = block.hash();
                Ok(true)
            }
            Err(ordered_log::Error::Fenced(_)) => Ok(false),
            // `watch_engine` reports why the engine has ended.
            Err(ordered_log::Error::Closed | ordered_log::Error::LogStore(_)) => Err(Error::Stopped),
            Err(error) => Err(error.into()),
        }
    }
}

impl CuttingStage {
    /// Changes the order of a batch of transactions so that more of them are valid. All callers of a block get the same
    /// answer, so theirs need no order.
    fn reorder(&mut self, leadership: &mut LeaderTerm, batch: &mut EnvelopeBatch) {
        if !self.channel.settings.reorder {
            return;
        }
        let footprints: Vec<TransactionFootprint> = self.footprints.drain(..batch.envelopes.len()).collect();
        let arranged = leadership.predictor.arrange(leadership.number, &footprints);
        let Some(Arrangement { order, gain }) = arranged else { return };
        events::BlocksReordered.add(1);
        events::ConflictsAvoided.add(gain as u64);
        let envelopes = order.iter().map(|position| batch.envelopes[*position as usize].clone()).collect();
        batch.envelopes = envelopes;
        if rt::fault_point("chain.order.mutant.reorder_loses") {
            let first = batch.envelopes[0].clone();
            batch.envelopes.pop();
            batch.envelopes.push(first);
        }
    }
}

/// Stage 2.
async fn acknowledge_committed(chain: Arc<OrdererChannel>) -> Result<(), Error> {
    let mut safe = chain.deliverable();
    let mut shown = *safe.borrow_and_update();
    // Blocks may have been committed since the channel was started.
    chain.commit_config(shown)?;
    loop {
        let more = {
            let oldest = chain.uncommitted().front().map(|built| built.cut);
            let timeout = oldest.map_or(ACKNOWLEDGE_TIMEOUT, |cut| cut + ACKNOWLEDGE_TIMEOUT - rt::now());
            let (more, ended) = (safe.changed(), chain.log.ended());
            match rt::timeout(timeout, select(pin!(more), pin!(ended))).await {
                Ok(Either::Left((more, _))) => more.is_ok(),
                // Blocks that were committed until then are acknowledged below.
                Ok(Either::Right(_)) => false,
                Err(_) => true,
            }
        };
        let now = *safe.borrow_and_update();
        events::BlocksOrdered.add(now.saturating_sub(shown));
        shown = now.max(shown);
        // First, so that a caller whose update is acknowledged finds it in force.
        chain.commit_config(now)?;
        chain.acknowledge(now)?;
        if !more {
            // Callers that still wait get `Ambiguous`.
            chain.uncommitted().clear();
            return Ok(());
        }
    }
}

impl OrdererChannel {
    /// Answers the callers whose blocks are decided.
    fn acknowledge(&self, commit_index: u64) -> Result<(), Error> {
        loop {
            let built = {
                let mut all = self.uncommitted();
                let is_due = |built: &UncommittedBlock| {
                    built.number < commit_index || built.cut.elapsed() >= ACKNOWLEDGE_TIMEOUT
                };
                // Not only the first one: a block of an earlier term may be decided later than a block of this term.
                match all.iter().position(is_due).and_then(|at| all.remove(at)) {
                    Some(built) => built,
                    None => return Ok(()),
                }
            };
            let UncommittedBlock { number, bytes, answers, cut } = built;
            let is_it = || -> Result<bool, Error> {
                let is_it = self.log_store.block(number)?.as_ref() == Some(&bytes);
                Ok(is_it || rt::fault_point("chain.order.mutant.answers_late"))
            };
            let outcome = match number < commit_index {
                false => Err(BroadcastError::Ambiguous),
                true if is_it()? => {
                    events::OrderTime.record_since(cut);
                    Ok(())
                }
                true => Err(self.not_leading()),
            };
            for answer in answers {
                // A caller that has gone does not want the answer.
                let _ = answer.send(outcome.clone());
            }
        }
    }
}
