//! The stages after the connection to the orderer: verify, validate, commit. See [`super`] for the steps.
//!
//! A separate task moves the world state's savepoint every
//! [`PipelineConfig::persist_interval_blocks`](super::context::PipelineConfig::persist_interval_blocks) blocks. A
//! restarted peer replays the blocks after its savepoint. If these are
//! [`PipelineConfig::replay_blocks_max`](super::context::PipelineConfig::replay_blocks_max) blocks or more, the last
//! stage waits until the state is persisted.

use std::collections::{BTreeSet, VecDeque};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{CancellationToken, Instant, Task};
use base::{BlockNumber, Bytes, ErrorKind, TxId, rt};
use futures_util::future::{Either, select};
use ledger::Code;
use ledger::lifecycle::{LIFECYCLE, defined_contract};
use ledger::{Block, Hash, Transaction};
use private_data::BlockTransaction;
use rules::access::ChannelPolicies;
use state::{Durable, UpdateBatch};
use storage::blocks::{Blocks, NO_PREVIOUS, NewBlock};

use super::context::{ChainTip, CommitContext};
use super::recent::CommittedBlock;
use super::replay::{derived_updates, stored_updates};
use super::verifying::{VerifyingTransactions, verified};
use crate::fault::{StallReasons, hold_up, retry_backoff, run_stage};
use crate::{Error, events};
use validation::block::{BlockRules, BlockVerdict, validate_block};
use validation::known_rows::KnownRows;
use validation::verify::VerifiedTransaction;
use validation::view::BlockStateView;

/// The largest number of blocks that wait for stage 3 while their transactions are verified.
pub const VERIFIED_AHEAD_MAX: usize = 3;
/// The largest number of blocks that wait to become durable and applied.
pub const VALIDATED_AHEAD_MAX: usize = 8;
/// How long a stopping channel waits until the blocks that it appended are durable.
const STOP_TIME_MAX: Duration = Duration::from_secs(10);

/// A block whose transactions are being verified.
struct VerifyingBlock {
    block: Block,
    received: Instant,
    transactions: VerifyingTransactions,
}

/// A block that was validated and appended.
struct ValidatedBlock {
    block: CommittedBlock,
    codes: Vec<Code>,
    batch: Arc<UpdateBatch>,
    /// The policies that the block brings into force, if it changes the configuration or a definition.
    policies: Option<Arc<ChannelPolicies>>,
    received: Instant,
    appended: Instant,
}

/// The running stages of one channel.
pub struct CommitPipeline {
    context: Arc<CommitContext>,
    verifying: Sender<VerifyingBlock>,
    stages: Vec<Task<()>>,
}

impl CommitPipeline {
    /// Starts the stages of a ledger whose newest block is `tip`.
    pub fn start(context: Arc<CommitContext>, tip: ChainTip) -> CommitPipeline {
        let (examined, to_validate) = bounded(VERIFIED_AHEAD_MAX);
        let (judged, to_finish) = bounded(VALIDATED_AHEAD_MAX);
        let stages = vec![
            rt::spawn(run(context.clone(), validate_blocks(context.clone(), tip, to_validate, judged))),
            rt::spawn(run(context.clone(), finish_blocks(context.clone(), to_finish))),
            rt::spawn(run(context.clone(), persist_state(context.clone()))),
        ];
        CommitPipeline { context, verifying: examined, stages }
    }

    /// Accepts the next block, which stage 1 has checked. Waits while the stages are full; after a configuration block,
    /// waits until that block is validated and appended.
    ///
    /// # Errors
    /// [`Error::Stopped`].
    pub async fn offer(&self, block: Block) -> Result<(), Error> {
        let (number, may_change_policies) = (block.number().get(), holds_config(&block));
        let transactions = VerifyingTransactions::start(&block, &self.context);
        let verifying = VerifyingBlock { block, received: rt::now(), transactions };
        let sent = self.context.stop().run_until_cancelled(self.verifying.send(verifying)).await;
        sent.ok_or(Error::Stopped)?.map_err(|_| Error::Stopped)?;
        if may_change_policies {
            let mut validated = self.context.validated.subscribe();
            let validated = validated.wait_for(|height| *height > number);
            let waited = self.context.stop().run_until_cancelled(validated).await;
            waited.ok_or(Error::Stopped)?.map_err(|_| Error::Stopped)?;
        }
        Ok(())
    }

    /// Ends the stages and waits for them. Appended blocks are committed; the others are received again after a
    /// restart.
    pub async fn stop(self) {
        self.context.stop().cancel();
        drop(self.verifying);
        for stage in self.stages {
            // A task that was aborted has nothing left to do.
            let _ = stage.await;
        }
        self.context.waiters.close();
    }
}

/// Runs a part of a channel. If it fails, the channel fails.
pub(crate) async fn run(context: Arc<CommitContext>, stage: impl Future<Output = Result<(), Error>>) {
    let failed = |error| {
        context.fail(error);
        context.waiters.close();
    };
    run_stage(stage, failed).await;
}

/// Whether the block holds one configuration and nothing else.
fn holds_config(block: &Block) -> bool {
    block.len() == 1 && Transaction::decode(&block.envelope(0)).is_ok_and(|transaction| transaction.is_config())
}

/// The policies under the configuration that a validated block brings into force; `None` if it does not change the
/// configuration.
///
/// # Errors
/// [`Error::Configuration`] if no authorised update leads from the configuration in force to the block's. The channel
/// cannot continue.
fn next_config(
    context: &CommitContext,
    block: &Block,
    examined: &[VerifiedTransaction],
    codes: &[Code],
) -> Result<Option<ChannelPolicies>, Error> {
    match (examined, codes) {
        ([only], [code]) if code.is_valid() && only.is_config() => {}
        _ => return Ok(None),
    }
    let current = context.validating.get();
    let config = current.config().successor(&block.envelope(0));
    let config = config.map_err(|cause| Error::Configuration { block: block.number().get(), cause })?;
    Ok(Some(current.under(Arc::new(config))))
}

/// Stage 3.
async fn validate_blocks(
    context: Arc<CommitContext>,
    mut tip: ChainTip,
    mut to_validate: Receiver<VerifyingBlock>,
    judged: Sender<ValidatedBlock>,
) -> Result<(), Error> {
    let (mut pending, mut known) = (PendingBatches::new(), KnownRows::default());
    while let Some(Some(verifying)) = context.stop().run_until_cancelled(to_validate.recv()).await {
        let VerifyingBlock { block, received, transactions: verifying } = verifying;
        let number = block.number().get();
        assert_eq!(number, tip.height, "blocks were received in order");
        let mut examined = verified(&block, verifying, &context).await?;
        events::VerifyTime.record_since(received);

        let started = rt::now();
        let verdict = validate_next(&context, &block, &mut examined, &tip, &mut pending, &mut known).await?;
        let Some(verdict) = verdict else { return Ok(()) };
        events::ConflictCheckTime.record_since(started);

        let BlockVerdict { codes, mut batch, is_derived, commit_hash } = verdict;
        let mut policies = next_config(&context, &block, &examined, &codes)?;
        let block = with_verdict(&block, &codes, &commit_hash);
        if policies.is_some() {
            // Beside its configuration, the block may remove hashes that expire with it.
            for (namespace, key, update) in stored_updates(&block)?.iter() {
                batch.put(namespace, key.clone(), update.value.clone(), update.version);
            }
        }
        batch.set_block_hash(block.hash());
        let stored = match is_derived {
            true => with_derived_updates(&block, &batch)?,
            false => block.clone(),
        };
        hold_up("chain.commit.validated").await;
        let transactions = transactions(&examined, &codes);
        match keep_private_data(&context, number, &examined, &codes).await {
            Err(Error::Stopped) => return Ok(()),
            other => other?,
        }
        let appended = append(context.store.as_ref(), &stored, &transactions, context.stop(), &context.stalls).await;
        match appended {
            Err(Error::Stopped) => return Ok(()),
            other => other?,
        }
        tip = ChainTip { height: number + 1, hash: Some(block.hash()), commit_hash: Some(commit_hash) };
        known.learn(&batch);
        let batch = Arc::new(batch);
        pending.push_back((number, batch.clone()));
        if policies.is_none() && batch.namespaces().any(|name| **name == *LIFECYCLE) {
            let Some(changed) = next_definitions(&context, number, &batch, &mut pending).await? else { return Ok(()) };
            policies = changed;
        }
        let policies = policies.map(Arc::new);
        if let Some(policies) = &policies
            && !rt::fault_point("chain.commit.mutant.keeps_config")
        {
            context.validating.replace(policies.clone());
        }
        context.validated.send(tip.height);
        let block = CommittedBlock::of_verified(stored, examined, &codes);
        let judged_block = ValidatedBlock { block, codes, batch, policies, received, appended: rt::now() };
        if judged.send(judged_block).await.is_err() {
            return Err(Error::Stopped);
        }
    }
    Ok(())
}

/// The batches of blocks that the state had not applied when stage 3 last looked; oldest first.
type PendingBatches = VecDeque<(u64, Arc<UpdateBatch>)>;

/// The state after all blocks that were validated.
fn newest_view(context: &CommitContext, pending: &mut PendingBatches) -> BlockStateView {
    let snapshot = context.state.snapshot();
    let applied = snapshot.height();
    pending.retain(|(number, _)| *number >= applied);
    BlockStateView::new(snapshot, pending.iter().map(|(_, batch)| batch.clone()).collect())
}

/// Validates the next block; `None` if the channel stopped meanwhile. If the state can no longer serve the view, it
/// validates the block again from a newer view.
async fn validate_next(
    context: &CommitContext,
    block: &Block,
    examined: &mut [VerifiedTransaction],
    tip: &ChainTip,
    pending: &mut PendingBatches,
    known: &mut KnownRows,
) -> Result<Option<BlockVerdict>, Error> {
    let (mut backoff, policies) = (retry_backoff(), context.validating.get());
    loop {
        let view = newest_view(context, pending);
        let rules = BlockRules {
            policies: &policies,
            committed: context.store.as_ref(),
            view: &view,
            previous_commit_hash: tip.commit_hash.as_ref(),
            mode: context.settings.conflicts,
        };
        match validate_block(block, examined, &rules, known).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(channel = %context.policies.channel(), block = tip.height, %error, "validating a block again");
                if context.stop().run_until_cancelled(backoff.wait()).await.is_none() {
                    return Ok(None);
                }
            }
            verdict => return Ok(Some(verdict?)),
        }
    }
}

/// The policies with the definitions that a block changes; the block is the last of `pending`. The inner `None` means
/// that it changes no definition, the outer `None` that the channel stopped meanwhile.
async fn next_definitions(
    context: &CommitContext,
    number: u64,
    batch: &UpdateBatch,
    pending: &mut PendingBatches,
) -> Result<Option<Option<ChannelPolicies>>, Error> {
    let (mut backoff, current) = (retry_backoff(), context.validating.get());
    // The rows of one contract need not be adjacent.
    let changed: BTreeSet<&str> = batch.range(LIFECYCLE, "", "").filter_map(|(key, _)| defined_contract(key)).collect();
    if changed.is_empty() {
        return Ok(Some(None));
    }
    loop {
        let view = newest_view(context, pending);
        let mut definitions = current.on_ledger().clone();
        match definitions.reload_all(changed.iter().copied(), &view).await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(channel = %context.policies.channel(), block = number, %error, "reading definitions again");
                if context.stop().run_until_cancelled(backoff.wait()).await.is_none() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error.into()),
            Ok(()) => return Ok(Some(Some(current.defining(definitions)))),
        }
    }
}

/// The block as it is stored, with its derived updates in the metadata.
fn with_derived_updates(block: &Block, batch: &UpdateBatch) -> Result<Block, Error> {
    let derived = derived_updates(&stored_updates(block)?, batch);
    if derived.is_empty() || rt::fault_point("chain.commit.mutant.forgets_updates") {
        return Ok(block.clone());
    }
    let mut metadata = block.metadata().clone();
    metadata.set_derived_updates(derived);
    Ok(block.with_metadata(metadata))
}

fn with_verdict(block: &Block, codes: &[Code], commit_hash: &Hash) -> Block {
    let mut metadata = block.metadata().clone();
    metadata.set_filter(codes.iter().map(|code| code.0).collect::<Vec<_>>().into());
    metadata.set_commit_hash(commit_hash);
    // Derived updates in a received block are not this peer's own.
    metadata.set_derived_updates(Bytes::new());
    block.with_metadata(metadata)
}

/// How much later than the block a planted mistake writes private data.
const EARLY_APPEND: Duration = Duration::from_millis(300);

/// Stores the private data of a block's transactions, durably, before the block is appended. While the tables cannot be written, it
/// waits.
///
/// # Errors
/// [`Error::Stopped`] if the stop came first; the tables'.
async fn keep_private_data(
    context: &CommitContext,
    block: u64,
    examined: &[VerifiedTransaction],
    codes: &[Code],
) -> Result<(), Error> {
    let has_collections = |transaction: &VerifiedTransaction| {
        transaction.set.namespaces.iter().any(|namespace| namespace.collections > 0)
    };
    if !examined.iter().any(has_collections) {
        return Ok(());
    }
    let (mut backoff, mut stalled) = (retry_backoff(), None);
    loop {
        let kept = async {
            let policies = context.validating.get();
            let transactions = (0_u32..).zip(examined.iter().zip(codes)).filter_map(|(position, (examined, code))| {
                let (tx_id, set) = (examined.tx_id.as_ref()?, &examined.set);
                Some(BlockTransaction { position, tx_id, set, is_valid: code.is_valid() })
            });
            let rows = context.private.collect(block, transactions, &*policies).await?;
            if rows.is_empty() {
                return Ok(());
            }
            if rt::fault_point("chain.commit.mutant.early_append") {
                let private = context.private.clone();
                drop(rt::spawn(async move {
                    rt::sleep(EARLY_APPEND).await;
                    private.write(rows).await
                }));
                return Ok(());
            }
            context.private.write(rows).await?;
            hold_up("chain.commit.private_written").await;
            Ok::<_, private_data::Error>(())
        };
        match context.stop().run_until_cancelled(kept).await.ok_or(Error::Stopped)? {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(block, %error, "the private data of a block cannot be stored yet");
                let reason = || context.stalls.start(format!("private data cannot be stored yet: {error}"));
                stalled.get_or_insert_with(reason);
                context.stop().run_until_cancelled(backoff.wait()).await.ok_or(Error::Stopped)?;
            }
            outcome => return Ok(outcome?),
        }
    }
}

fn transactions(examined: &[VerifiedTransaction], codes: &[Code]) -> Vec<(TxId, u8)> {
    examined.iter().zip(codes).map(|(examined, code)| (examined.indexed_tx_id.clone(), code.0)).collect()
}

/// Appends a block without making it durable. While the disk is full, or a remote store has no space, it waits for
/// space.
///
/// # Errors
/// [`Error::Stopped`] if the stop came before the space; the block store's.
pub(crate) async fn append(
    store: &dyn Blocks,
    block: &Block,
    transactions: &[(TxId, u8)],
    stop: &CancellationToken,
    stalls: &StallReasons,
) -> Result<(), Error> {
    let (mut backoff, mut stalled) = (retry_backoff(), None);
    loop {
        // The append is polled first: a block that can be appended is appended, even after the channel was stopped.
        let appending = pin!(append_block(store, block, transactions));
        let Either::Left((appended, _)) = select(appending, pin!(stop.cancelled())).await else {
            return Err(Error::Stopped);
        };
        match appended {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(block = block.number().get(), %error, "a block cannot be stored yet");
                stalled.get_or_insert_with(|| stalls.start(format!("a block cannot be stored yet: {error}")));
                stop.run_until_cancelled(backoff.wait()).await.ok_or(Error::Stopped)?;
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
        // A local store has no epochs and keeps the last one written. A remote store fills in its own.
        epoch: store.tip().epoch,
        parts: &parts,
        transactions,
    };
    Ok(store.append(new).await?)
}

/// Makes the appended blocks durable. A remote store may be away for long: a stopping channel waits for it no longer
/// than [`STOP_TIME_MAX`].
async fn sync(context: &CommitContext) -> Result<u64, storage::Error> {
    let mut syncing = pin!(context.store.sync());
    if let Some(synced) = context.stop().run_until_cancelled(syncing.as_mut()).await {
        return synced;
    }
    rt::timeout(STOP_TIME_MAX, syncing).await.unwrap_or_else(|_| {
        let text = format!("the last blocks were not durable within {} s of the stop", STOP_TIME_MAX.as_secs());
        let node = context.policies.channel().as_str().into();
        Err(storage::Error::Remote { node, kind: ErrorKind::Ambiguous, text })
    })
}

/// Stage 4.
async fn finish_blocks(context: Arc<CommitContext>, mut to_finish: Receiver<ValidatedBlock>) -> Result<(), Error> {
    let mut waiting = Vec::with_capacity(VALIDATED_AHEAD_MAX);
    loop {
        // The loop ends after stage 3 has ended, so the blocks that it appended are committed even if the channel
        // stops.
        if to_finish.recv_many(&mut waiting, VALIDATED_AHEAD_MAX).await == 0 {
            return Ok(());
        }
        let last = waiting.last().expect("at least one was received").block.number();
        let appended: Vec<Instant> = waiting.iter().map(|judged| judged.appended).collect();
        let durable_at = OnceLock::new();
        let durable = async {
            hold_up("chain.commit.appended").await;
            let durable = sync(&context).await?;
            assert!(durable > last, "what was appended before a sync is durable after it");
            appended.iter().for_each(|appended| events::DurableTime.record_since(*appended));
            hold_up("chain.commit.durable").await;
            durable_at.get_or_init(rt::now);
            Ok(())
        };
        // Given to the first block only, since all these blocks become durable together.
        let mut durable: Option<Durable<'_>> = Some(Box::pin(durable));
        for judged in waiting.drain(..) {
            let ValidatedBlock { block, codes, batch, policies, received, .. } = judged;
            // Stage 3 may still use the batch; the copy shares keys and values.
            let batch = Arc::try_unwrap(batch).unwrap_or_else(|shared| (*shared).clone());
            if context.state.wants_persist() {
                persist(&context).await?;
            }
            let block = block.with_written_rows(context.written_rows(&batch));
            let started = rt::now();
            match durable.take() {
                Some(durable) => context.state.apply_when(block.number(), batch, durable).await?,
                None => context.state.apply(block.number(), batch).await?,
            }
            hold_up("chain.commit.applied").await;
            events::ApplyTime.record_since(durable_at.get().map_or(started, |durable| started.max(*durable)));
            context.publish(block, &codes, policies);
            events::CommitTime.record_since(received);
        }
        // A storage node materialises durable blocks, which may be more than were applied here.
        if context.height().saturating_sub(context.state.savepoint()) >= context.settings.replay_blocks_max {
            persist(&context).await?;
        }
    }
}

/// Persists the state. While the disk is full it waits for space. A stop ends the wait and loses nothing, because the
/// blocks are durable.
async fn persist(context: &CommitContext) -> Result<(), Error> {
    let (mut backoff, mut stalled) = (retry_backoff(), None);
    loop {
        match context.state.persist().await {
            Err(error) if error.kind() == ErrorKind::Retry => {
                tracing::warn!(channel = %context.policies.channel(), %error, "the state cannot be persisted yet");
                stalled
                    .get_or_insert_with(|| context.stalls.start(format!("the state cannot be persisted yet: {error}")));
                if context.stop().run_until_cancelled(backoff.wait()).await.is_none() {
                    return Ok(());
                }
            }
            outcome => return Ok(outcome.map(drop)?),
        }
    }
}

/// Moves the savepoint of the state.
async fn persist_state(context: Arc<CommitContext>) -> Result<(), Error> {
    let mut committed = context.committed();
    loop {
        let due = context.state.savepoint() + context.settings.persist_interval_blocks;
        match context.stop().run_until_cancelled(committed.wait_for(|height| *height >= due)).await {
            Some(Ok(_)) => persist(&context).await?,
            _ => return Ok(()),
        };
    }
}
