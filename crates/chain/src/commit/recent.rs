//! Committed blocks as services show them, and the ring of the newest ones.
//!
//! A committed block is decoded once and shared by every event stream, however many clients listen.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

use base::{Bytes, TxId};
use ledger::Block;
use ledger::transaction::{Event, Outcome, Transaction};

use crate::Error;
use crate::validate::Code;
use crate::validate::examine::{Examined, claimed};

/// Blocks that the ring holds at most.
pub const RECENT_BLOCKS_MAX: usize = 128;
/// Encoded bytes of blocks that the ring holds at most; the newest block is always held.
pub const RECENT_BYTES_MAX: usize = 64 << 20;

/// A committed block with what was decided about it.
#[derive(Debug)]
pub struct CommittedBlock {
    block: Block,
    transactions: Vec<CommittedTransaction>,
    bytes: OnceLock<Bytes>,
}

/// A transaction of a committed block.
#[derive(Clone, Debug)]
pub struct CommittedTransaction {
    /// The id it claims, if it claims one.
    pub tx_id: Option<TxId>,
    /// Fabric's header type.
    pub kind: i32,
    /// Whether it took effect.
    pub code: Code,
    /// What its chaincode answered, as far as it can be read; also of invalid transactions.
    pub outcome: Option<Outcome>,
}

impl CommittedTransaction {
    /// The event that its chaincode set, as far as it can be read; also of invalid transactions.
    pub fn event(&self) -> Option<Event<'_>> {
        self.outcome.as_ref()?.event()
    }
}

impl CommittedBlock {
    pub(crate) fn of_examined(block: Block, examined: Vec<Examined>, codes: &[Code]) -> CommittedBlock {
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
        CommittedBlock { block, transactions, bytes: OnceLock::new() }
    }

    /// Decodes a block as this peer stored it.
    ///
    /// # Errors
    /// If the filter has not one code for each transaction.
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
        Ok(CommittedBlock { block, transactions, bytes: OnceLock::new() })
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

    /// The encoded block. Put together at the first call and shared from then on.
    pub fn bytes(&self) -> &Bytes {
        self.bytes.get_or_init(|| self.block.to_bytes())
    }
}

/// The newest committed blocks.
#[derive(Default)]
pub struct Recent {
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    blocks: VecDeque<Arc<CommittedBlock>>,
    bytes: usize,
}

impl Recent {
    /// Adds the block that follows the newest one.
    pub fn push(&self, block: Arc<CommittedBlock>) {
        let mut ring = self.lock();
        if let Some(newest) = ring.blocks.back() {
            assert_eq!(newest.number() + 1, block.number(), "blocks are published in order");
        }
        ring.push(block);
    }

    /// Adds a block of somebody else's ledger, which may be asked for in any order: one that follows the newest is added, a
    /// later one begins the ring anew, an earlier one is passed over.
    pub fn offer(&self, block: Arc<CommittedBlock>) {
        let mut ring = self.lock();
        let next = ring.blocks.back().map(|newest| newest.number() + 1);
        if next.is_some_and(|next| block.number() < next) {
            return;
        }
        if next != Some(block.number()) {
            *ring = Ring::default();
        }
        ring.push(block);
    }

    /// A block that is still in the ring.
    pub fn get(&self, number: u64) -> Option<Arc<CommittedBlock>> {
        let ring = self.lock();
        let first = ring.blocks.front()?.number();
        let index = usize::try_from(number.checked_sub(first)?).ok()?;
        ring.blocks.get(index).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ring> {
        self.ring.lock().expect("no holder of this lock panics")
    }
}

impl Ring {
    fn push(&mut self, block: Arc<CommittedBlock>) {
        self.bytes += block.block.encoded().len();
        self.blocks.push_back(block);
        while self.blocks.len() > 1 && (self.blocks.len() > RECENT_BLOCKS_MAX || self.bytes > RECENT_BYTES_MAX) {
            let oldest = self.blocks.pop_front().expect("the ring holds more than one block");
            self.bytes -= oldest.block.encoded().len();
        }
    }
}
