//! The state that the stages of one channel share with each other and with the channel's callers.

use std::sync::Arc;

use base::rt::CancellationToken;
use base::rt::channel::{WatchReceiver, WatchSender, watch};
use ledger::Hash;
use replica::PrimaryRole;
use replica::offload::OffloadConfig;
use state::{UpdateBatch, WorldState};
use storage::blocks::Blocks;
use validation::block::ConflictCheckMode;

use super::recent::{CommittedBlock, RecentCommittedBlocks};
use super::recent_writes::{RecentWrites, RowKey, WrittenRows};
use super::waiters::TxWaiters;
use crate::fault::{ChannelFailure, StallGuard, StallReasons};
use crate::{Error, events};
use ledger::Code;
use private_data::PrivateChannel;
use rules::access::{ChannelPolicies, CurrentPolicies};

/// The settings of a channel's pipeline.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// The number of blocks after which the world state is persisted.
    pub persist_interval_blocks: u64,
    /// The largest number of blocks that a restart may have to replay; at least the interval.
    pub replay_blocks_max: u64,
    /// Whether other compute nodes of the peer verify signatures too.
    pub offload: OffloadConfig,
    /// How the transactions of a block are checked for conflicts.
    pub conflicts: ConflictCheckMode,
    /// Whether gateways learn which rows each block wrote, and answer clients whose transactions can never be valid
    /// ([`crate::early_abort`]).
    pub early_abort: bool,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        PipelineConfig {
            persist_interval_blocks: 32,
            replay_blocks_max: 64,
            offload: OffloadConfig::default(),
            conflicts: ConflictCheckMode::default(),
            early_abort: false,
        }
    }
}

/// The state that the stages of one channel share with its callers.
pub struct CommitContext {
    /// The policies after the newest committed block.
    pub policies: CurrentPolicies,
    /// The policies after the newest validated block, by which the next block is received and validated.
    pub validating: CurrentPolicies,
    /// The blocks, which may include blocks that are not committed yet.
    pub store: Arc<dyn Blocks>,
    /// The world state; a block is applied to it only once the block is durable.
    pub state: Arc<dyn WorldState>,
    /// The newest committed blocks, decoded, for callers that follow the channel.
    pub recent: RecentCommittedBlocks,
    /// The callers that wait for a transaction's commit.
    pub waiters: TxWaiters,
    /// The rows that the newest blocks wrote, and the key of their hashes, if they are noted.
    pub writes: Option<(RowKey, RecentWrites)>,
    /// The private data of the channel's transactions.
    pub private: Arc<PrivateChannel>,
    /// The settings with which the channel was opened.
    pub settings: PipelineConfig,
    /// The role of this node, where the peer has several compute nodes.
    pub primary: Option<Arc<PrimaryRole>>,
    /// Number of committed blocks.
    pub(super) height: WatchSender<u64>,
    /// Number of blocks that were validated and appended.
    pub(super) validated: WatchSender<u64>,
    failure: ChannelFailure,
    pub(super) stalls: StallReasons,
    stop: CancellationToken,
}

/// The head of the chain of blocks.
#[derive(Clone, Copy, Debug)]
pub struct ChainTip {
    /// Number of blocks.
    pub height: u64,
    /// Header hash of the last one.
    pub hash: Option<Hash>,
    /// Its commit hash.
    pub commit_hash: Option<Hash>,
}

impl CommitContext {
    /// The context of a ledger whose state is at the height of its block store.
    pub fn new(
        policies: Arc<ChannelPolicies>,
        store: Arc<dyn Blocks>,
        state: Arc<dyn WorldState>,
        private: Arc<PrivateChannel>,
        settings: PipelineConfig,
        primary: Option<Arc<PrimaryRole>>,
        stop: CancellationToken,
    ) -> CommitContext {
        assert_eq!(store.height(), state.height(), "a ledger is opened after its replay");
        let (height, _) = watch(store.height());
        let (validated, _) = watch(store.height());
        CommitContext {
            validating: CurrentPolicies::new(policies.clone()),
            policies: CurrentPolicies::new(policies),
            store,
            state,
            private,
            recent: RecentCommittedBlocks::default(),
            waiters: TxWaiters::default(),
            writes: settings.early_abort.then(|| (RowKey::random(), RecentWrites::default())),
            settings,
            primary,
            height,
            validated,
            failure: ChannelFailure::default(),
            stalls: StallReasons::default(),
            stop,
        }
    }

    /// Number of committed blocks.
    pub fn height(&self) -> u64 {
        *self.height.borrow()
    }

    /// A receiver of each new [`CommitContext::height`].
    pub fn committed(&self) -> WatchReceiver<u64> {
        self.height.subscribe()
    }

    /// The token that is cancelled when the channel has to stop.
    pub fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// The error that ended the pipeline, if one did.
    pub fn failure(&self) -> Option<Arc<Error>> {
        self.failure.get()
    }

    /// Why a stage of the pipeline cannot continue at the moment; `None` if all can.
    pub fn stalled(&self) -> Option<String> {
        self.stalls.reason()
    }

    /// Reports why the channel waits, until the returned value is dropped.
    pub(super) fn stall(&self, reason: String) -> StallGuard<'_> {
        self.stalls.start(reason)
    }

    /// Ends the channel's pipeline for good.
    pub fn fail(&self, error: Error) {
        tracing::error!(channel = %self.policies.channel(), %error, "the channel's pipeline has ended");
        self.failure.record(error);
        self.stop.cancel();
    }

    /// The rows that a block's changes write, if they are noted.
    pub(super) fn written_rows(&self, batch: &UpdateBatch) -> Option<WrittenRows> {
        self.writes.as_ref().map(|(key, _)| WrittenRows::of(key, batch))
    }

    pub(super) fn publish(&self, block: CommittedBlock, codes: &[Code], policies: Option<Arc<ChannelPolicies>>) {
        let block = Arc::new(block);
        if let Some(policies) = policies {
            self.policies.replace(policies);
        }
        self.recent.push(block.clone());
        self.height.send(block.number() + 1);
        // Later than the height, so that a caller that finds a row here also finds the block's transactions committed.
        if let (Some((_, recent)), Some(rows)) = (&self.writes, block.written_rows()) {
            recent.note(block.number(), rows);
        }
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
