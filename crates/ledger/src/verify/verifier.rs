//! Verifies a channel's blocks one after the other.

use std::sync::Arc;

use base::{BlockNumber, Bytes, ErrorKind, TxIndex};
use proto::protos::TxValidationCode as Code;

use crate::block::Block;
use crate::config::ChannelConfig;
use crate::error::Error;
use crate::hash::{Hash, ShortHash};
use crate::materialize;
use crate::rwset::ReadWriteSet;
use crate::transaction::{InvalidTransaction, Transaction, code_byte};

/// What to check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyConfig {
    /// Whether the blocks were validated by a peer, so that they carry filters and commit hashes. An orderer's do not.
    pub validated: bool,
    /// Whether to verify the creators' signatures: most of the cost of a peer's ledger.
    pub creators: bool,
}

impl Default for VerifyConfig {
    /// Everything that a peer's ledger has.
    fn default() -> Self {
        VerifyConfig { validated: true, creators: true }
    }
}

/// What was checked.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LedgerReport {
    /// Blocks, thus the ledger's height.
    pub blocks: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Transactions that are marked valid.
    pub valid: u64,
    /// Configurations that came into force, the first included.
    pub configurations: u64,
    /// Bytes of the encoded blocks.
    pub bytes: u64,
    /// Commit hashes that could not be computed from their block alone.
    pub commit_hashes_unchecked: u64,
    /// The newest block's hash.
    pub block_hash: Option<Hash>,
    /// The newest block's commit hash.
    pub commit_hash: Option<Hash>,
}

/// The first fault of a ledger.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ledger is not sound at block {block}: {cause}")]
pub struct VerifyError {
    /// The block at which the check ended. All blocks before it passed.
    pub block: BlockNumber,
    /// What is wrong.
    pub cause: Error,
}

impl VerifyError {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }
}

/// Checks the blocks of one ledger in order.
pub struct LedgerVerifier {
    options: VerifyConfig,
    config: Option<Arc<ChannelConfig>>,
    last_config: u64,
    report: LedgerReport,
}

impl LedgerVerifier {
    /// A verifier that expects block 0.
    pub fn new(options: VerifyConfig) -> LedgerVerifier {
        LedgerVerifier { options, config: None, last_config: 0, report: LedgerReport::default() }
    }

    /// What was checked so far.
    pub fn report(&self) -> &LedgerReport {
        &self.report
    }

    /// The configuration in force after the blocks so far; `None` before block 0.
    pub fn config(&self) -> Option<&Arc<ChannelConfig>> {
        self.config.as_ref()
    }

    /// Checks the next block. After an error the verifier is of no further use.
    ///
    /// # Errors
    /// The first fault found.
    pub fn check(&mut self, block: &Block) -> Result<(), Error> {
        block.check_follows(self.report.blocks, self.report.block_hash.as_ref())?;
        block.check_data_hash()?;
        let config = match &self.config {
            None => Arc::new(ChannelConfig::from_block(block)?),
            Some(config) => {
                block.verify_signatures(config)?;
                config.clone()
            }
        };
        let new_config = self.check_transactions(block, &config)?;
        if new_config.is_some() {
            self.last_config = block.number().get();
        }
        if block.orderer_metadata()?.last_config != self.last_config {
            let reason = format!(
                "its orderers name block {} as the newest configuration, which is block {}",
                block.orderer_metadata()?.last_config,
                self.last_config
            );
            return Err(Error::config(format!("block {}", block.number()), reason));
        }
        self.report.configurations += u64::from(self.config.is_none() || new_config.is_some());
        self.config = Some(new_config.unwrap_or(config));
        self.report.blocks += 1;
        self.report.transactions += block.len() as u64;
        self.report.bytes += block.encoded().len() as u64;
        self.report.block_hash = Some(block.hash());
        Ok(())
    }

    /// Checks the transactions and the commit hash. Returns the configuration that the block brings into force.
    fn check_transactions(
        &mut self,
        block: &Block,
        config: &ChannelConfig,
    ) -> Result<Option<Arc<ChannelConfig>>, Error> {
        let mut new_config = None;
        if self.options.validated {
            block.check_filter()?;
        }
        let mut depends_on_state = false;
        for (index, envelope) in block.envelopes().enumerate() {
            let at = |reason: String| Error::Transaction {
                block: block.number(),
                index: TxIndex(u32::try_from(index).expect("a block has fewer envelopes")),
                reason,
            };
            if block.number().get() == 0 {
                // The genesis block was read as a configuration already; nobody signed it.
                self.report.valid += 1;
                continue;
            }
            if self.options.validated && block.metadata().filter()[index] != code_byte(Code::Valid) {
                continue;
            }
            let checked = check_valid(&envelope, config, self.options);
            if !self.options.validated {
                // An orderer stores what was submitted, valid or not; only a configuration concerns it.
                let is_config = block.len() == 1 && checked.as_ref().is_ok_and(Transaction::is_config);
                if is_config {
                    new_config = Some(Arc::new(config.successor(&envelope)?));
                }
                continue;
            }
            self.report.valid += 1;
            let transaction = checked.map_err(|invalid| at(format!("it is marked valid, but {invalid}")))?;
            if transaction.is_config() {
                if block.len() != 1 {
                    return Err(at("it is a configuration, and not alone in its block".to_owned()));
                }
                new_config = Some(Arc::new(config.successor(&envelope)?));
                continue;
            }
            let results = transaction
                .action()
                .and_then(|action| action.outcome(transaction.header()))
                .and_then(|outcome| outcome.check(transaction.header()).map(|_| outcome.results()))
                .map_err(|invalid| at(format!("it is marked valid, but {invalid}")))?;
            let set = ReadWriteSet::decode(results).map_err(|error| at(format!("it is marked valid, but {error}")))?;
            depends_on_state |= set.may_depend_on_state();
        }
        if self.options.validated && block.number().get() > 0 {
            self.check_commit_hash(block, depends_on_state)?;
        }
        Ok(new_config)
    }

    /// `depends_on_state` says whether the block's changes may follow from the state before it as well. If so, and the peer that
    /// validated the block did not note them, the commit hash cannot be checked: Fabric's peers do not.
    fn check_commit_hash(&mut self, block: &Block, depends_on_state: bool) -> Result<(), Error> {
        let recorded = block.metadata().commit_hash()?.ok_or(Error::Missing { what: "the commit hash" })?;
        let computed = materialize::commit_hash(block, self.report.commit_hash.as_ref())?;
        if computed != recorded {
            if !depends_on_state || !block.metadata().derived_updates().is_empty() {
                return Err(Error::CommitHash {
                    block: block.number(),
                    expected: ShortHash(&computed).to_string(),
                    found: ShortHash(&recorded).to_string(),
                });
            }
            self.report.commit_hashes_unchecked += 1;
        }
        self.report.commit_hash = Some(recorded);
        Ok(())
    }
}

/// The checks of a transaction's envelope that need no state, in the order of validation.
pub(super) fn check_valid(
    envelope: &Bytes,
    config: &ChannelConfig,
    options: VerifyConfig,
) -> Result<Transaction, InvalidTransaction> {
    let transaction = Transaction::parse(envelope)?;
    if options.creators {
        let wrong = |reason| InvalidTransaction::new(Code::BadCreatorSignature, reason);
        let creator = config
            .msps()
            .identify(&transaction.header().creator())
            .map_err(|_| wrong("its creator is no member of the channel"))?;
        creator
            .verify(transaction.payload(), transaction.signature())
            .map_err(|_| wrong("its creator did not sign it"))?;
    }
    transaction.check_type()?;
    if transaction.is_endorser_transaction() {
        transaction.header().check_tx_id()?;
    }
    transaction.header().check_channel(config.channel())?;
    Ok(transaction)
}

#[cfg(test)]
mod tests;
