//! Committed blocks in the form in which services return them, and the ring of the newest committed blocks.
//!
//! A committed block is decoded once and shared by all event streams, however many clients listen.

use std::sync::{Arc, OnceLock};

use base::{Bytes, TxId};
use block_transport::RecentBlocks;
use ledger::Block;
use ledger::block::derived;
use ledger::namespace::RULES;
use ledger::transaction::{ActionEvent, ActionOutcome, Transaction};

use ledger::Code;
use proto::common::HeaderType;

use super::recent_writes::WrittenRows;
use crate::Error;
use validation::verify::{VerifiedTransaction, claimed};

/// The largest number of blocks in the ring.
pub const RECENT_BLOCKS_MAX: usize = 128;
/// The largest number of encoded bytes in the ring; the newest block is always kept.
pub const RECENT_BYTES_MAX: usize = 64 << 20;

/// A committed block with the validation result of each transaction.
#[derive(Debug)]
pub struct CommittedBlock {
    block: Block,
    transactions: Vec<CommittedTransaction>,
    bytes: OnceLock<Bytes>,
    changes_policies: bool,
    written_rows: Option<WrittenRows>,
}

/// A transaction of a committed block.
#[derive(Clone, Debug)]
pub struct CommittedTransaction {
    /// The id it claims, if it claims one.
    pub tx_id: Option<TxId>,
    /// Fabric's header type.
    pub kind: i32,
    /// Its validation code.
    pub code: Code,
    /// The chaincode's answer, also of an invalid transaction if its form is right.
    pub outcome: Option<ActionOutcome>,
}

impl CommittedTransaction {
    /// The event that its chaincode set, also of an invalid transaction if its form is right.
    pub fn event(&self) -> Option<ActionEvent<'_>> {
        self.outcome.as_ref()?.event()
    }
}

impl CommittedBlock {
    /// A block as this peer stores it, with its transactions as this node verified them.
    pub fn of_verified(stored: Block, examined: Vec<VerifiedTransaction>, codes: &[Code]) -> CommittedBlock {
        let transactions = examined
            .into_iter()
            .zip(codes)
            .map(|(examined, code)| CommittedTransaction {
                tx_id: examined.tx_id,
                kind: examined.kind,
                code: *code,
                outcome: examined.outcome,
            })
            .collect();
        CommittedBlock::new(stored, transactions)
    }

    /// Drops the derived updates, and remembers only whether they include a change of definitions.
    fn new(stored: Block, transactions: Vec<CommittedTransaction>) -> CommittedBlock {
        let is_config = |one: &CommittedTransaction| one.kind == HeaderType::Config as i32 && one.code.is_valid();
        let mut derived = derived::decode(stored.metadata().derived_updates());
        let changes_policies = transactions.iter().any(is_config)
            || derived.any(|update| update.is_ok_and(|update| update.namespace == RULES));
        drop(derived);
        let block = stored.without_derived_updates();
        CommittedBlock { block, transactions, changes_policies, bytes: OnceLock::new(), written_rows: None }
    }

    /// Decodes a block as this peer stored it.
    ///
    /// # Errors
    /// If the filter does not have one code for each transaction.
    pub fn of_stored(block: Block) -> Result<CommittedBlock, Error> {
        block.check_filter()?;
        let filter = block.metadata().filter().clone();
        let transactions = block
            .envelopes()
            .zip(&filter)
            .map(|(envelope, code)| {
                let transaction = Transaction::parse(&envelope).ok();
                let (tx_id, kind) = match transaction.as_ref().map(Transaction::header) {
                    Some(header) => (Some(header.to_tx_id()).filter(|tx_id| !tx_id.is_empty()), header.kind()),
                    None => claimed(&envelope),
                };
                CommittedTransaction {
                    tx_id,
                    kind,
                    code: Code(*code),
                    outcome: transaction
                        .as_ref()
                        .and_then(|transaction| transaction.action().ok()?.outcome(transaction.header()).ok()),
                }
            })
            .collect();
        Ok(CommittedBlock::new(block, transactions))
    }

    /// The block with the rows that its valid transactions wrote, if they are known.
    pub fn with_written_rows(self, written_rows: Option<WrittenRows>) -> CommittedBlock {
        CommittedBlock { written_rows, ..self }
    }

    /// The rows that its valid transactions wrote. Only the node that committed the block knows them, as long as the block is in
    /// the ring, and only if gateways shall learn them.
    pub fn written_rows(&self) -> Option<&WrittenRows> {
        self.written_rows.as_ref()
    }

    /// The block's number.
    pub fn number(&self) -> u64 {
        self.block.number().get()
    }

    /// The block with this peer's metadata.
    pub fn block(&self) -> &Block {
        &self.block
    }

    /// Its transactions, in order.
    pub fn transactions(&self) -> &[CommittedTransaction] {
        &self.transactions
    }

    /// Whether the block has changed the channel's configuration or the definition of a contract. A block that was
    /// fetched from another node has no derived updates, so only a change of the configuration shows there.
    pub fn changes_policies(&self) -> bool {
        self.changes_policies
    }

    /// The encoded block: assembled at the first call and shared from then on.
    pub fn bytes(&self) -> &Bytes {
        self.bytes.get_or_init(|| self.block.to_bytes())
    }
}

/// The newest committed blocks.
pub struct RecentCommittedBlocks(RecentBlocks<Arc<CommittedBlock>>);

impl Default for RecentCommittedBlocks {
    fn default() -> RecentCommittedBlocks {
        RecentCommittedBlocks(RecentBlocks::new(RECENT_BLOCKS_MAX, RECENT_BYTES_MAX))
    }
}

impl RecentCommittedBlocks {
    /// Adds the block that follows the newest one.
    pub fn push(&self, block: Arc<CommittedBlock>) {
        let (number, bytes) = (block.number(), block.block.encoded().len());
        self.0.push(number, block, bytes);
    }

    /// A block that is still in the ring.
    pub fn get(&self, number: u64) -> Option<Arc<CommittedBlock>> {
        self.0.get(number)
    }

    /// A block of another node's ledger: from the ring if it is there, otherwise fetched by `read` and decoded.
    ///
    /// # Errors
    /// Those of `read`; an error if the bytes are not a block with one validation code for each transaction.
    pub async fn get_or_read(
        &self,
        number: u64,
        read: impl Future<Output = Result<Option<Bytes>, Error>>,
    ) -> Result<Option<Arc<CommittedBlock>>, Error> {
        if let Some(block) = self.get(number) {
            return Ok(Some(block));
        }
        let Some(bytes) = read.await? else { return Ok(None) };
        let block = Arc::new(CommittedBlock::of_stored(Block::parse(&bytes)?)?);
        self.0.offer(block.number(), block.clone(), block.block.encoded().len());
        Ok(Some(block))
    }
}
