//! The stages behind the connection to the orderer: examine, judge, finish. See [`super`] for the steps.
//!
//! The world state's savepoint is moved by a task of its own, every [`Settings::persist_interval_blocks`]; a peer that
//! restarts replays what came after it. If the savepoint falls [`Settings::replay_blocks_max`] behind, the last stage
//! waits for it.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::channel::{Receiver, Sender, WatchReceiver, WatchSender, bounded, watch};
use base::rt::{self, AbortOnDrop, Instant, Stop, Task};
use base::{BlockNumber, Bytes, ErrorKind, TxId};
use futures_util::future::{Either, select};
use ledger::{Block, Hash};
use state::{Durable, UpdateBatch, WorldState};
use storage::blocks::{Blocks, NO_PREVIOUS, NewBlock};

use super::recent::{CommittedBlock, Recent};
use super::waiters::Waiters;
use crate::access::Rules;
use crate::fault::{Failure, Patience, Stalled, Stalls, hold_up, run_stage};
use crate::validate::Code;
use crate::validate::block::{Verdict, judge};
use crate::validate::borrow::{Borrowing, Chunk};
use crate::validate::examine::{Examined, examine};
use crate::validate::view::View;
use crate::{Error, events};

/// Blocks that wait to be judged while their transactions are examined.
pub const EXAMINED_AHEAD_MAX: usize = 3;
/// Blocks that wait to be durable and applied.
pub const JUDGED_AHEAD_MAX: usize = 8;
/// How long a channel that stops waits until what it has appended is durable.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);
/// Transactions that one task examines: about a millisecond of signatures.
pub const EXAMINE_CHUNK_TRANSACTIONS: usize = 16;

/// How a channel's pipeline behaves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Blocks after which the world state is persisted.
    pub persist_interval_blocks: u64,
    /// Blocks that a restart may have to replay; at least the interval.
    pub replay_blocks_max: u64,
    /// Whether other compute nodes of the peer verify signatures too.
    pub borrowing: Borrowing,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { persist_interval_blocks: 32, replay_blocks_max: 64, borrowing: Borrowing::default() }
    }
}

/// What the stages of one channel and its readers share.
pub struct Ledger {
    pub rules: Arc<Rules>,
    pub store: Arc<dyn Blocks>,
    pub state: Arc<dyn WorldState>,
    pub recent: Recent,
    pub waiters: Waiters,
    pub settings: Settings,
    /// Number of committed blocks.
    height: WatchSender<u64>,
    failure: Failure,
    stalls: Stalls,
    stop: Stop,
}

/// Where the chain of blocks stands.
#[derive(Clone, Copy, Debug)]
pub struct Tip {
    /// Number of blocks.
    pub height: u64,
    /// Header hash of the last one.
    pub hash: Option<Hash>,
    /// Its commit hash.
    pub commit_hash: Option<Hash>,
}

impl Ledger {
    /// A ledger whose state is at the height of its block store.
    pub fn new(
        rules: Arc<Rules>,
        store: Arc<dyn Blocks>,
        state: Arc<dyn WorldState>,
        settings: Settings,
        stop: Stop,
    ) -> Ledger {
        assert_eq!(store.height(), state.height(), "a ledger is opened after its replay");
        let (height, _) = watch(store.height());
        Ledger {
            rules,
            store,
            state,
            recent: Recent::default(),
            waiters: Waiters::default(),
            settings,
            height,
            failure: Failure::default(),
            stalls: Stalls::default(),
            stop,
        }
    }

    /// Number of committed blocks.
    pub fn height(&self) -> u64 {
        *self.height.borrow()
    }

    /// Follows [`Ledger::height`].
    pub fn committed(&self) -> WatchReceiver<u64> {
        self.height.subscribe()
    }

    /// Ends when the channel is to stop.
    pub fn stop(&self) -> &Stop {
        &self.stop
    }

    /// The error that ended the pipeline, if one did.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.get()
    }

    /// What a stage of the pipeline waits for, while one cannot go on.
    pub fn stalled(&self) -> Option<String> {
        self.stalls.reason()
    }

    /// Says what the channel waits for, as long as what is given lives.
    pub(super) fn stall(&self, reason: String) -> Stalled<'_> {
        self.stalls.begin(reason)
    }

    /// Ends the channel's pipeline for good.
    pub fn fail(&self, error: Error) {
        tracing::error!(channel = %self.rules.channel(), %error, "the channel's pipeline has ended");
        self.failure.note(error);
        self.stop.stop();
    }

    fn publish(&self, block: CommittedBlock, codes: &[Code]) {
        let block = Arc::new(block);
        self.recent.push(block.clone());
        self.height.send(block.number() + 1);
        self.waiters.publish(&block);
        events::BlocksCommitted.add(1);
        count(codes);
    }
}

fn count(codes: &[Code]) {
    let (mut valid, mut conflicted, mut phantom, mut unendorsed, mut duplicate, mut malformed) = (0, 0, 0, 0, 0, 0);
    for code in codes {
        *match *code {
            Code::VALID => &mut valid,
            Code::MVCC_READ_CONFLICT => &mut conflicted,
            Code::PHANTOM_READ_CONFLICT => &mut phantom,
            Code::ENDORSEMENT_POLICY_FAILURE => &mut unendorsed,
            Code::DUPLICATE_TXID => &mut duplicate,
            _ => &mut malformed,
        } += 1;
    }
    for (event, count) in [
        (&events::TransactionsValid, valid),
        (&events::TransactionsConflicted, conflicted),
        (&events::TransactionsPhantom, phantom),
        (&events::TransactionsUnendorsed, unendorsed),
        (&events::TransactionsDuplicate, duplicate),
        (&events::TransactionsMalformed, malformed),
    ] {
        if count > 0 {
            event.add(count);
        }
    }
}

/// A block whose transactions are being examined.
struct Examining {
    block: Block,
    received: Instant,
    chunks: Vec<AbortOnDrop<Vec<Examined>>>,
}

/// A block that was judged and appended.
struct Judged {
    block: CommittedBlock,
    codes: Vec<Code>,
    batch: Arc<UpdateBatch>,
    received: Instant,
    appended: Instant,
}

/// The running stages of one channel.
pub struct Pipeline {
    ledger: Arc<Ledger>,
    examined: Sender<Examining>,
    stages: Vec<Task<()>>,
}

impl Pipeline {
    /// Starts the stages behind a ledger that stands at `tip`.
    pub fn start(ledger: Arc<Ledger>, tip: Tip) -> Pipeline {
        let (examined, to_judge) = bounded(EXAMINED_AHEAD_MAX);
        let (judged, to_finish) = bounded(JUDGED_AHEAD_MAX);
        let stages = vec![
            rt::spawn(run(ledger.clone(), judge_blocks(ledger.clone(), tip, to_judge, judged))),
            rt::spawn(run(ledger.clone(), finish_blocks(ledger.clone(), to_finish))),
            rt::spawn(run(ledger.clone(), persist_state(ledger.clone()))),
        ];
        Pipeline { ledger, examined, stages }
    }

    /// Takes the next block, verified and in order. Waits while the stages are full.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn offer(&self, block: Block) -> Result<(), Error> {
        let chunks = examine_chunks(&block, &self.ledger);
        let examining = Examining { block, received: rt::now(), chunks };
        let sent = self.ledger.stop.or_stopped(self.examined.send(examining)).await;
        sent.ok_or(Error::Stopped)?.map_err(|_| Error::Stopped)
    }

    /// Ends the stages and waits for them. Blocks that were judged are finished; others are received again later.
    pub async fn stop(self) {
        self.ledger.stop.stop();
        drop(self.examined);
        for stage in self.stages {
            // A stage that was aborted has nothing left to do.
            let _ = stage.await;
        }
        self.ledger.waiters.close();
    }
}

/// Runs a part of a channel; if it fails, the channel does.
pub(crate) async fn run(ledger: Arc<Ledger>, stage: impl Future<Output = Result<(), Error>>) {
    let failed = |error| {
        ledger.fail(error);
        ledger.waiters.close();
    };
    run_stage(stage, failed).await;
}

fn examine_chunks(block: &Block, ledger: &Ledger) -> Vec<AbortOnDrop<Vec<Examined>>> {
    let mut chunks = Vec::with_capacity(block.len().div_ceil(EXAMINE_CHUNK_TRANSACTIONS));
    let mut start = 0;
    while start < block.len() {
        let end = (start + EXAMINE_CHUNK_TRANSACTIONS).min(block.len());
        let (block, rules, borrowing) = (block.clone(), ledger.rules.clone(), ledger.settings.borrowing.clone());
        let place = borrowing.place(&*ledger.state, (start..end).map(|index| block.envelope(index).len()));
        let chunk = async move {
            let envelopes = (start..end).map(|index| block.envelope(index));
            let Some(place) = place else {
                return examine(envelopes, &rules);
            };
            let (envelopes, block) = (envelopes.collect(), block.number().get());
            let chunk = Chunk { rules: *rules.digest(), block, first: start as u32, envelopes };
            borrowing.examine(place, &chunk, &rules).await
        };
        chunks.push(rt::spawn(chunk).abort_on_drop());
        start = end;
    }
    chunks
}

/// Stage 3.
async fn judge_blocks(
    ledger: Arc<Ledger>,
    mut tip: Tip,
    mut to_judge: Receiver<Examining>,
    judged: Sender<Judged>,
) -> Result<(), Error> {
    let mut pending = Pending::new();
    while let Some(Some(examining)) = ledger.stop.or_stopped(to_judge.recv()).await {
        let Examining { block, received, chunks } = examining;
        let number = block.number().get();
        assert_eq!(number, tip.height, "blocks were received in order");
        let mut examined = Vec::with_capacity(block.len());
        for chunk in chunks {
            examined.extend(chunk.await.map_err(|_| Error::Stopped)?);
        }
        events::ExamineTime.record_since(received);

        let started = rt::now();
        let Some(verdict) = judge_now(&ledger, &examined, &tip, &mut pending).await? else { return Ok(()) };
        events::ResolveTime.record_since(started);

        let Verdict { codes, mut batch, commit_hash } = verdict;
        let block = with_verdict(&block, &codes, &commit_hash);
        batch.set_block_hash(block.hash());
        hold_up("chain.commit.judged").await;
        let transactions = transactions(&examined, &codes);
        let appended = append(ledger.store.as_ref(), &block, &transactions, ledger.stop(), &ledger.stalls).await;
        match appended {
            Err(Error::Stopped) => return Ok(()),
            other => other?,
        }
        tip = Tip { height: number + 1, hash: Some(block.hash()), commit_hash: Some(commit_hash) };
        let batch = Arc::new(batch);
        pending.push_back((number, batch.clone()));
        let block = CommittedBlock::of_examined(block, examined, &codes);
        let judged_block = Judged { block, codes, batch, received, appended: rt::now() };
        if judged.send(judged_block).await.is_err() {
            return Err(Error::Stopped);
        }
    }
    Ok(())
}

/// Batches of blocks that the state has not applied yet, as far as stage 3 knows, oldest first.
type Pending = VecDeque<(u64, Arc<UpdateBatch>)>;

/// Judges the next block; nothing if the channel stopped meanwhile. The state may have moved on too far from the view that
/// is being read: then it is judged again, from a newer one.
async fn judge_now(
    ledger: &Ledger,
    examined: &[Examined],
    tip: &Tip,
    pending: &mut Pending,
) -> Result<Option<Verdict>, Error> {
    let mut patience = Patience::new();
    loop {
        let snapshot = ledger.state.snapshot();
        let applied = snapshot.height();
        pending.retain(|(number, _)| *number >= applied);
        let view = View::new(snapshot, pending.iter().map(|(_, batch)| batch.clone()).collect());
        match judge(tip.height, examined, ledger.store.as_ref(), &view, tip.commit_hash.as_ref()).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(channel = %ledger.rules.channel(), block = tip.height, %error, "judging a block again");
                if ledger.stop.or_stopped(patience.wait()).await.is_none() {
                    return Ok(None);
                }
            }
            verdict => return verdict.map(Some),
        }
    }
}

fn with_verdict(block: &Block, codes: &[Code], commit_hash: &Hash) -> Block {
    let mut metadata = block.metadata().clone();
    metadata.set_filter(codes.iter().map(|code| code.0).collect::<Vec<_>>().into());
    metadata.set_commit_hash(commit_hash);
    block.with_metadata(metadata)
}

fn transactions(examined: &[Examined], codes: &[Code]) -> Vec<(TxId, u8)> {
    let id = |examined: &Examined| examined.tx_id.clone().unwrap_or_else(|| TxId::from(""));
    examined.iter().zip(codes).map(|(examined, code)| (id(examined), code.0)).collect()
}

/// Appends a block without making it durable. While the disk is full, or a store elsewhere has no room, it waits for space.
///
/// # Errors
/// [`Error::Stopped`] if the stop came before the space; the block store's.
pub(crate) async fn append(
    store: &dyn Blocks,
    block: &Block,
    transactions: &[(TxId, u8)],
    stop: &Stop,
    stalls: &Stalls,
) -> Result<(), Error> {
    let (mut patience, mut stalled) = (Patience::new(), None);
    loop {
        // Looked at first: what can be appended is, also once the channel stops.
        let appending = pin!(append_block(store, block, transactions));
        let Either::Left((appended, _)) = select(appending, pin!(stop.stopped())).await else {
            return Err(Error::Stopped);
        };
        match appended {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(block = block.number().get(), %error, "a block cannot be stored yet");
                stalled.get_or_insert_with(|| stalls.begin(format!("a block cannot be stored yet: {error}")));
                stop.or_stopped(patience.wait()).await.ok_or(Error::Stopped)?;
            }
            outcome => return outcome,
        }
    }
}

/// Appends a block without making it durable.
pub(crate) async fn append_block(store: &dyn Blocks, block: &Block, transactions: &[(TxId, u8)]) -> Result<(), Error> {
    let parts: [Bytes; 3] = block.parts();
    let new = NewBlock {
        number: BlockNumber(block.number().get()),
        header_hash: block.hash(),
        previous_hash: block.header().previous_hash.unwrap_or(NO_PREVIOUS),
        // A store of this process has no reigns: it goes on under the last that wrote it. One elsewhere puts its own in.
        epoch: store.tip().epoch,
        parts: &parts,
        transactions,
    };
    Ok(store.append(new).await?)
}

/// Makes durable what was appended. A store elsewhere may be away for long: a channel that stops waits for it no longer than
/// [`STOP_TIME_MAX`].
async fn sync(ledger: &Ledger) -> Result<u64, storage::Error> {
    let mut syncing = pin!(ledger.store.sync());
    if let Some(synced) = ledger.stop.or_stopped(syncing.as_mut()).await {
        return synced;
    }
    rt::timeout(STOP_TIME_MAX, syncing).await.unwrap_or_else(|_| {
        let text = format!("the last blocks were not durable within {} s of the stop", STOP_TIME_MAX.as_secs());
        let node = ledger.rules.channel().as_str().into();
        Err(storage::Error::Remote { node, kind: ErrorKind::Ambiguous, text })
    })
}

/// Stage 4.
async fn finish_blocks(ledger: Arc<Ledger>, mut to_finish: Receiver<Judged>) -> Result<(), Error> {
    let mut waiting = Vec::with_capacity(JUDGED_AHEAD_MAX);
    loop {
        // Ends when the stage before has ended: what it appended is finished also when the channel stops.
        if to_finish.recv_many(&mut waiting, JUDGED_AHEAD_MAX).await == 0 {
            return Ok(());
        }
        let last = waiting.last().expect("at least one was received").block.number();
        let appended: Vec<Instant> = waiting.iter().map(|judged| judged.appended).collect();
        let durable_at = OnceLock::new();
        let durable = async {
            hold_up("chain.commit.appended").await;
            let durable = sync(&ledger).await?;
            assert!(durable > last, "what was appended before a sync is durable after it");
            appended.iter().for_each(|appended| events::DurableTime.record_since(*appended));
            hold_up("chain.commit.durable").await;
            durable_at.get_or_init(rt::now);
            Ok(())
        };
        // The first block's own, since they become durable together.
        let mut durable: Option<Durable<'_>> = Some(Box::pin(durable));
        for judged in waiting.drain(..) {
            let Judged { block, codes, batch, received, .. } = judged;
            // The stage before may still look at the batch; the copy shares keys and values.
            let batch = Arc::try_unwrap(batch).unwrap_or_else(|shared| (*shared).clone());
            if ledger.state.wants_persist() {
                persist(&ledger).await?;
            }
            let started = rt::now();
            match durable.take() {
                Some(durable) => ledger.state.apply_when(block.number(), batch, durable).await?,
                None => ledger.state.apply(block.number(), batch).await?,
            }
            hold_up("chain.commit.applied").await;
            events::ApplyTime.record_since(durable_at.get().map_or(started, |durable| started.max(*durable)));
            ledger.publish(block, &codes);
            events::CommitTime.record_since(received);
        }
        // A storage node makes rows of what is durable, which may be more than what is applied here.
        if ledger.height().saturating_sub(ledger.state.savepoint()) >= ledger.settings.replay_blocks_max {
            persist(&ledger).await?;
        }
    }
}

/// Persists the state. While the disk is full it waits for space; a stop ends the wait, since nothing is lost by it.
async fn persist(ledger: &Ledger) -> Result<(), Error> {
    let (mut patience, mut stalled) = (Patience::new(), None);
    loop {
        match ledger.state.persist().await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(channel = %ledger.rules.channel(), %error, "the state cannot be persisted yet");
                stalled
                    .get_or_insert_with(|| ledger.stalls.begin(format!("the state cannot be persisted yet: {error}")));
                if ledger.stop.or_stopped(patience.wait()).await.is_none() {
                    return Ok(());
                }
            }
            outcome => return Ok(outcome.map(drop)?),
        }
    }
}

/// Moves the savepoint of the state.
async fn persist_state(ledger: Arc<Ledger>) -> Result<(), Error> {
    let mut committed = ledger.committed();
    loop {
        let due = ledger.state.savepoint() + ledger.settings.persist_interval_blocks;
        match ledger.stop.or_stopped(committed.wait_for(|height| *height >= due)).await {
            Some(Ok(_)) => persist(&ledger).await?,
            _ => return Ok(()),
        };
    }
}
