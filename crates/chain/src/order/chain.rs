//! One channel at an orderer: its queue, its blocks, its log.
//!
//! What orders is the channel's engine, an [`OrderedLog`] of encoded blocks at their numbers; it keeps them in the
//! [`ChainJournal`], and says who leads and which blocks may be shown. Two tasks stand before and behind it:
//!
//! 1. **Cut**: while this orderer leads it takes envelopes from the queue, as many at once as there are, and offers them to the
//!    cutter, which cuts at the channel's limits, and earlier when [`Pace`] says so; builds and signs each block that is cut, behind
//!    the last one that its log has, and appends it. While it does not lead it turns envelopes away, with the name of whoever does.
//! 2. **Show**: the engine says which blocks are safe. From then on peers get them; and whoever waits for an envelope of them is told: that it
//!    is durable, when the block at that number is the one that this orderer built; that it is to be sent again, when it is another's;
//!    that nobody knows, when that does not show within [`RESOLVE_MAX`].
//!
//! A third task [notes](storage::watermark) how far the log has come, at most once a second.
//!
//! The first error of either, or of the engine, ends the channel here: a block that cannot be stored is not skipped.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::rt::channel::{OneshotSender, Receiver, Sender, TrySendError, WatchReceiver, bounded, oneshot};
use base::rt::sync::{Permit, Semaphore};
use base::rt::{self, Instant, Stop, Task};
use base::{BlockNumber, Bytes};
use consensus::Term;
use consensus::ordered::{Journal as _, OrderedLog, Role};
use futures_util::future::{Either, join_all, select};
use identity::Signer;
use ledger::block::OrdererMetadata;
use ledger::{Block, Hash};
use storage::WatermarkFile;
use storage::blocks::BlockStore;

use super::cutter::{Batch, Cutter, Limits};
use super::filter::{Message, check};
use super::journal::{ChainJournal, Engines};
use super::pace::Pace;
use super::{Acknowledge, BLOCK_BYTES_MAX, BroadcastError, Cutting, Settings};
use crate::access::Rules;
use crate::fault::{Failure, run_stage};
use crate::stores::NOTE_PERIOD;
use crate::{Error, events};

/// Envelopes taken from the queue at once.
const TAKE_MAX: usize = 256;
/// How long whoever waits for an envelope may be kept waiting once its block was handed to the engine.
pub const RESOLVE_MAX: Duration = Duration::from_secs(10);
/// How long a channel that stops waits for its last blocks to be safe.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Blocks that are not safe, of this reign and earlier ones; of more than that the oldest are given up.
const BUILT_MAX: usize = 256;
/// What the engine's entry has beside the envelopes: headers, signature, certificate.
const BLOCK_OVERHEAD_BYTES: usize = 64 << 10;

/// One channel's order.
pub struct Chain {
    rules: Arc<Rules>,
    journal: Arc<ChainJournal>,
    log: Arc<dyn OrderedLog>,
    safe: WatchReceiver<u64>,
    role: WatchReceiver<Role>,
    settings: Settings,
    block_bytes_max: u32,
    queue: Sender<Queued>,
    /// Bytes that may still join the queue.
    room: Semaphore,
    built: Mutex<VecDeque<Built>>,
    failure: Failure,
    stop: Stop,
    tasks: Mutex<Vec<Task<()>>>,
    showing: Mutex<Option<Task<()>>>,
    /// Where it is noted how far the log has come.
    watermark: Option<WatermarkFile>,
}

type Answer = OneshotSender<Result<(), BroadcastError>>;

struct Queued {
    message: Message,
    answer: Option<Answer>,
    /// Given back once the envelope has left the queue.
    _room: Permit,
}

/// A block that was handed to the engine.
struct Built {
    number: u64,
    bytes: Bytes,
    answers: Vec<Answer>,
    cut: Instant,
}

impl Chain {
    /// Goes on behind the last block of the log, which has at least its genesis block.
    ///
    /// # Errors
    /// If the last block cannot be read, or the engine cannot start.
    pub(super) async fn start(
        rules: Arc<Rules>,
        journal: Arc<ChainJournal>,
        engines: &dyn Engines,
        signer: Signer,
        settings: Settings,
        watermark: Option<WatermarkFile>,
    ) -> Result<Arc<Chain>, Error> {
        assert!(journal.height() > 0, "a chain starts behind its genesis block");
        let log = engines.open(rules.channel().as_str(), journal.clone()).await?;
        let (queue, queued) = bounded(settings.queue_messages_max);
        // Envelopes are longer in a block than their limits count, by their framing.
        let entry_bytes = log.entry_bytes_max().saturating_sub(BLOCK_OVERHEAD_BYTES) / 16 * 15;
        let chain = Arc::new(Chain {
            rules,
            journal,
            safe: log.safe(),
            role: log.role(),
            log,
            room: Semaphore::new(settings.queue_bytes_max as usize),
            settings,
            block_bytes_max: BLOCK_BYTES_MAX.min(u32::try_from(entry_bytes).unwrap_or(u32::MAX)),
            queue,
            built: Mutex::default(),
            failure: Failure::default(),
            stop: Stop::new(),
            tasks: Mutex::default(),
            showing: Mutex::default(),
            watermark,
        });
        let cut = Cut { chain: chain.clone(), signer, answers: VecDeque::new() };
        let tasks = vec![
            rt::spawn(run(chain.clone(), cut.run(queued))),
            rt::spawn(run(chain.clone(), watch_engine(chain.clone()))),
            rt::spawn(note(chain.clone())),
        ];
        *chain.tasks.lock().expect("no holder of this lock panics") = tasks;
        let showing = rt::spawn(run(chain.clone(), show(chain.clone())));
        *chain.showing.lock().expect("no holder of this lock panics") = Some(showing);
        Ok(chain)
    }

    /// The channel's rules.
    pub fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// The organisations that may have its blocks: those of the channel, and of its orderers.
    pub fn members(&self) -> impl Iterator<Item = String> {
        let config = self.rules.config();
        config.application().iter().chain(config.orderers()).map(|organization| organization.msp_id.to_string())
    }

    /// Whether an organisation may have its blocks.
    pub fn has_member(&self, organization: &str) -> bool {
        self.members().any(|member| member == organization)
    }

    /// The log.
    pub fn store(&self) -> BlockStore {
        self.journal.store()
    }

    /// Number of blocks that are safe and may be shown.
    pub fn height(&self) -> u64 {
        *self.safe.borrow()
    }

    /// Follows [`Chain::height`].
    pub fn durable(&self) -> WatchReceiver<u64> {
        self.safe.clone()
    }

    /// Whether this orderer leads, or who does.
    pub fn role(&self) -> WatchReceiver<Role> {
        self.role.clone()
    }

    /// A block that may be shown, encoded.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn block(&self, number: u64) -> Result<Option<Bytes>, Error> {
        match number < self.height() {
            true => self.journal.block(number),
            false => Ok(None),
        }
    }

    pub(super) async fn broadcast(&self, envelope: Bytes) -> Result<(), BroadcastError> {
        if let Role::Following { leader } = *self.role.borrow()
            && !self.stop.is_stopped()
        {
            return Err(BroadcastError::NotLeading { leader });
        }
        let message = match check(envelope, &self.rules, self.block_bytes_max, rt::wall_now()) {
            Ok(message) => message,
            Err(error) => {
                events::MessagesRefused.add(1);
                return Err(error);
            }
        };
        let (answer, answered) = match self.settings.acknowledge {
            Acknowledge::Queued => (None, None),
            Acknowledge::Durable => {
                let (sender, receiver) = oneshot();
                (Some(sender), Some(receiver))
            }
        };
        if self.settings.queue_wait_max.is_zero() {
            let _room = self.room.try_acquire_many(self.room_of(&message)).ok_or_else(overloaded)?;
            match self.queue.try_send(Queued { message, answer, _room }) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => return Err(BroadcastError::Stopped),
                Err(TrySendError::Full(_)) => return Err(overloaded()),
            }
        } else {
            match rt::timeout(self.settings.queue_wait_max, self.enqueue(message, answer)).await {
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

    async fn enqueue(&self, message: Message, answer: Option<Answer>) -> Result<(), BroadcastError> {
        let bytes = self.room_of(&message);
        let _room = match self.room.try_acquire_many(bytes) {
            Some(room) => room,
            None => {
                let room = self.stop.or_stopped(self.room.acquire_many(bytes)).await;
                room.ok_or(BroadcastError::Stopped)?
            }
        };
        self.queue.send(Queued { message, answer, _room }).await.map_err(|_| BroadcastError::Stopped)
    }

    /// What a message takes of [`Chain::room`]. One that is larger than all of it waits until it is alone.
    fn room_of(&self, message: &Message) -> u32 {
        u32::try_from(message.envelope.len()).unwrap_or(u32::MAX).min(self.settings.queue_bytes_max)
    }

    fn not_leading(&self) -> BroadcastError {
        match *self.role.borrow() {
            Role::Following { leader } => BroadcastError::NotLeading { leader },
            Role::Leading { .. } => BroadcastError::NotLeading { leader: None },
        }
    }

    fn built(&self) -> std::sync::MutexGuard<'_, VecDeque<Built>> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that ended ordering, if one did. What is durable can still be read.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.get()
    }

    /// What ordering waits for, while it cannot go on: room on its disk, say.
    pub fn stalled(&self) -> Option<String> {
        self.journal.stalls.reason()
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
        self.journal.stop();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no holder of this lock panics"));
        // What cuts may wait for room that nobody makes any more.
        let mut ended = pin!(join_all(tasks));
        let in_time = rt::timeout(DRAIN_MAX, &mut ended).await.is_ok();
        let last = self.built().back().map(|built| built.number);
        if let (true, Some(last), None) = (in_time, last, self.failure()) {
            let mut safe = self.durable();
            let (mut drained, mut ended) = (pin!(safe.wait_for(|safe| *safe > last)), pin!(self.log.ended()));
            if rt::timeout(DRAIN_MAX, select(&mut drained, &mut ended)).await.is_err() {
                tracing::warn!(channel = %self.rules.channel(), last, "the last blocks are not safe; others go on with them");
            }
        }
        self.log.stop().await;
        if !in_time {
            // Tasks that were aborted have nothing left to do.
            let _ = ended.await;
        }
        let showing = self.showing.lock().expect("no holder of this lock panics").take();
        if let Some(showing) = showing {
            let _ = showing.await;
        }
        if let Some(watermark) = &self.watermark {
            self.journal.note_watermark(watermark, self.height()).await;
        }
        if let Err(error) = self.store().close().await {
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
        chain.journal.stop();
    };
    run_stage(stage, failed).await;
}

/// Notes how far the log has come, until the channel is to stop.
async fn note(chain: Arc<Chain>) {
    let Some(watermark) = &chain.watermark else { return };
    let mut safe = chain.durable();
    loop {
        let shown = *safe.borrow_and_update();
        chain.journal.note_watermark(watermark, shown).await;
        let further = async {
            rt::sleep(NOTE_PERIOD).await;
            safe.changed().await.is_ok()
        };
        if chain.stop.or_stopped(further).await != Some(true) {
            return;
        }
    }
}

/// Ends the channel with its engine.
async fn watch_engine(chain: Arc<Chain>) -> Result<(), Error> {
    match chain.stop.or_stopped(chain.log.ended()).await {
        None => Ok(()),
        // The log's own words say more than the engine's.
        Some(error) => Err(chain.journal.failure.take().unwrap_or(Error::Consensus(error))),
    }
}

/// Stage 1.
struct Cut {
    chain: Arc<Chain>,
    signer: Signer,
    /// Of envelopes that wait in the cutter, in order; empty unless durability is acknowledged.
    answers: VecDeque<Option<Answer>>,
}

/// What this orderer builds on.
struct Reign {
    term: Term,
    number: u64,
    previous: Hash,
    pace: Pace,
}

/// That this orderer leads, counted while it lives: whatever ends the lead, its task's end included, ends the count.
struct Lead;

impl Lead {
    fn begin() -> Lead {
        events::LeadsBegun.add(1);
        events::OrderersLeading.add(1);
        Lead
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        events::OrderersLeading.add(-1);
    }
}

impl Cut {
    async fn run(mut self, mut queue: Receiver<Queued>) -> Result<(), Error> {
        let mut role = self.chain.role();
        let mut over = None;
        loop {
            let Some((term, next)) = self.wait_to_lead(&mut role, over, &mut queue).await else {
                return self.refuse_all(queue).await;
            };
            over = Some(term);
            let before = self.chain.journal.block(next - 1)?;
            let before = before.ok_or_else(|| Error::Stored { block: next - 1, reason: "it is missing".to_owned() })?;
            let reign = Reign { term, number: next, previous: Block::parse(&before)?.hash(), pace: Pace::default() };
            let lead = Lead::begin();
            if self.reign(reign, &mut queue).await? {
                return Ok(());
            }
            drop(lead);
            tracing::info!(channel = %self.chain.rules.channel(), %term, "this orderer does not lead any more");
            // None of these is in any block.
            let error = self.chain.not_leading();
            self.answers.drain(..).flatten().for_each(|answer| drop(answer.send(Err(error.clone()))));
        }
    }

    /// Turns envelopes away until this orderer leads; `None` when it is to stop. It leads also where it is to stop by then: what was
    /// taken in meanwhile is cut.
    async fn wait_to_lead(
        &self,
        role: &mut WatchReceiver<Role>,
        over: Option<Term>,
        queue: &mut Receiver<Queued>,
    ) -> Option<(Term, u64)> {
        let mut stopped = false;
        loop {
            match *role.borrow_and_update() {
                Role::Leading { term, next } if Some(term) > over => return Some((term, next)),
                _ if stopped => return None,
                _ => {}
            }
            let (mut changed, mut next) = (pin!(role.changed()), pin!(queue.recv()));
            match self.chain.stop.or_stopped(select(&mut changed, &mut next)).await {
                Some(Either::Left((Ok(()), _))) => {}
                Some(Either::Left((Err(_), _)) | Either::Right((None, _))) => return None,
                Some(Either::Right((Some(Queued { answer, .. }), _))) => {
                    if let Some(answer) = answer {
                        // Whoever has gone does not want to know.
                        let _ = answer.send(Err(self.chain.not_leading()));
                    }
                }
                None => stopped = true,
            }
        }
    }

    async fn refuse_all(self, mut queue: Receiver<Queued>) -> Result<(), Error> {
        queue.close();
        while let Some(Queued { answer, .. }) = queue.recv().await {
            if let Some(answer) = answer {
                let _ = answer.send(Err(BroadcastError::Stopped));
            }
        }
        Ok(())
    }

    /// Cuts blocks while this orderer leads; whether it is to stop.
    async fn reign(&mut self, mut reign: Reign, queue: &mut Receiver<Queued>) -> Result<bool, Error> {
        let batch = self.chain.rules.config().batch();
        let mut cutter = Cutter::new(Limits {
            messages_max: batch.messages_max.max(1),
            preferred_bytes_max: batch.preferred_bytes_max.min(self.chain.block_bytes_max),
            timeout: batch.timeout,
        });
        let stop = self.chain.stop.clone();
        let mut role = self.chain.role();
        let mut safe = self.chain.durable();
        let mut taken = Vec::with_capacity(TAKE_MAX);
        loop {
            let term = reign.term;
            let take = stop.or_stopped(queue.recv_many(&mut taken, TAKE_MAX));
            let lost = role.wait_for(|role| role.term() != Some(term));
            // Where the engine has ended, others see it.
            let awaits_safe = self.cuts_early() && reign.pace.is_busy();
            let grown = async {
                if !awaits_safe || safe.changed().await.is_err() {
                    std::future::pending().await
                }
            };
            let due = self.due(&reign, &cutter).map_or(Duration::MAX, |due| due - rt::now());
            let count = match rt::timeout(due, select(pin!(take), select(pin!(lost), pin!(grown)))).await {
                Ok(Either::Left((count, _))) => Some(count),
                Ok(Either::Right((Either::Left(_), _))) => return Ok(stop.is_stopped()),
                Ok(Either::Right((Either::Right(((), _)), _))) | Err(_) => None,
            };
            reign.pace.safe(*safe.borrow_and_update(), rt::now());
            if let Some(count) = count {
                if !self.offer(&mut reign, &mut cutter, taken.drain(..)).await? {
                    return Ok(false);
                }
                if count.is_none_or(|count| count == 0) {
                    // Stopping: nobody is told that what waits was lost, so it is not. Received until nobody is left who was
                    // given room: such a sender may still be putting its envelope there, and the queue be empty just now.
                    queue.close();
                    while let Some(queued) = queue.recv().await {
                        self.offer(&mut reign, &mut cutter, std::iter::once(queued)).await?;
                    }
                    self.append(&mut reign, cutter.cut()).await?;
                    return Ok(true);
                }
            }
            let is_due = self.due(&reign, &cutter).is_some_and(|due| due <= rt::now());
            if is_due && !self.append(&mut reign, cutter.cut()).await? {
                return Ok(false);
            }
        }
    }

    fn cuts_early(&self) -> bool {
        self.chain.settings.cutting == Cutting::Idle
    }

    /// When the messages that wait are cut, as far as is known by now; nothing if none wait.
    fn due(&self, reign: &Reign, cutter: &Cutter) -> Option<Instant> {
        let deadline = cutter.deadline()?;
        let early = if self.cuts_early() { reign.pace.due() } else { None };
        Some(early.map_or(deadline, |early| early.min(deadline)))
    }

    /// Gives envelopes to the cutter; whether this orderer still leads.
    async fn offer(
        &mut self,
        reign: &mut Reign,
        cutter: &mut Cutter,
        taken: impl Iterator<Item = Queued>,
    ) -> Result<bool, Error> {
        let now = rt::now();
        let mut leads = true;
        for Queued { message, answer, .. } in taken {
            self.answers.push_back(answer);
            if leads {
                for batch in cutter.offer(message.envelope, message.bytes, now) {
                    leads = leads && self.append(reign, batch).await?;
                }
            }
        }
        Ok(leads)
    }

    /// Builds a block and hands it to the engine; whether this orderer still leads.
    async fn append(&mut self, reign: &mut Reign, batch: Option<Batch>) -> Result<bool, Error> {
        let Some(batch) = batch else { return Ok(true) };
        let cut = rt::now();
        let block = Block::build(BlockNumber(reign.number), Some(reign.previous), &batch.envelopes);
        let block = block.sign(&self.signer, &OrdererMetadata { last_config: 0, consenter: Bytes::new() });
        let answers = self.answers.drain(..batch.envelopes.len()).flatten().collect();
        // One piece for all peers, copied once.
        let bytes = block.to_bytes();
        {
            // Before it is handed over: it may be safe before that returns.
            let mut built = self.chain.built();
            built.push_back(Built { number: reign.number, bytes: bytes.clone(), answers, cut });
            if built.len() > BUILT_MAX {
                built.pop_front();
            }
        }
        match self.chain.log.append(reign.term, reign.number, bytes).await {
            Ok(()) => {
                reign.pace.cut(reign.number, cut);
                reign.number += 1;
                reign.previous = block.hash();
                Ok(true)
            }
            Err(consensus::Error::Fenced(_)) => Ok(false),
            // Why it has ended, it says itself.
            Err(consensus::Error::Closed | consensus::Error::Journal(_)) => Err(Error::Stopped),
            Err(error) => Err(error.into()),
        }
    }
}

/// Stage 2.
async fn show(chain: Arc<Chain>) -> Result<(), Error> {
    let mut safe = chain.durable();
    let mut shown = *safe.borrow_and_update();
    loop {
        let more = {
            let oldest = chain.built().front().map(|built| built.cut);
            let patience = oldest.map_or(RESOLVE_MAX, |cut| cut + RESOLVE_MAX - rt::now());
            let (more, ended) = (safe.changed(), chain.log.ended());
            match rt::timeout(patience, select(pin!(more), pin!(ended))).await {
                Ok(Either::Left((more, _))) => more.is_ok(),
                // What became safe until then is told below.
                Ok(Either::Right(_)) => false,
                Err(_) => true,
            }
        };
        let now = *safe.borrow_and_update();
        events::BlocksOrdered.add(now.saturating_sub(shown));
        shown = now.max(shown);
        chain.tell(now)?;
        if !more {
            // Whoever still waits is told that nobody knows.
            chain.built().clear();
            return Ok(());
        }
    }
}

impl Chain {
    /// Tells those whose blocks are decided.
    fn tell(&self, safe: u64) -> Result<(), Error> {
        loop {
            let built = {
                let mut all = self.built();
                let is_due = |built: &Built| built.number < safe || built.cut.elapsed() >= RESOLVE_MAX;
                // Not the first alone: what an earlier reign left may be decided later than what this one has built.
                match all.iter().position(is_due).and_then(|at| all.remove(at)) {
                    Some(built) => built,
                    None => return Ok(()),
                }
            };
            let Built { number, bytes, answers, cut } = built;
            let is_it = || -> Result<bool, Error> {
                let is_it = self.journal.block(number)?.as_ref() == Some(&bytes);
                Ok(is_it || rt::fault_point("chain.order.mutant.answers_late"))
            };
            let outcome = match number < safe {
                false => Err(BroadcastError::Ambiguous),
                true if is_it()? => {
                    events::OrderTime.record_since(cut);
                    Ok(())
                }
                true => Err(self.not_leading()),
            };
            for answer in answers {
                // A caller that has gone no longer wants to know.
                let _ = answer.send(outcome.clone());
            }
        }
    }
}
