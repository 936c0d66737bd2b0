//! Fields of several messages.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::untrusted::AllocationBudget;
use base::{BlockNumber, Bytes, Epoch, TxId, Version};
use wire::{Malformed, Reader, Writer};

use crate::blocks::TransactionList;
use crate::tables::Savepoint;

/// Memory of an id beside its text, and of its entry in a list: a shared text is preceded by two reference counts.
const TRANSACTION_BYTES: usize = size_of::<(TxId, u8)>() + 2 * size_of::<usize>() + 7;
/// Why a message is refused whose items exceed its allowance.
pub const TOO_SMALL: &str = "its items would take too much memory for its size";

/// Reads a list of transactions.
///
/// # Errors
/// Why it is malformed.
pub fn transactions(
    bytes: &[u8],
    count: u32,
    allowance: &mut AllocationBudget,
) -> Result<Vec<(TxId, u8)>, &'static str> {
    allowance.take(bytes.len(), 1).ok_or(TOO_SMALL)?;
    let mut list = Vec::with_capacity(allowance.take(count as usize, TRANSACTION_BYTES).ok_or(TOO_SMALL)?);
    for item in TransactionList::new(bytes, count) {
        let (id, code) = item.map_err(|_| "a list of transactions is malformed")?;
        list.push((TxId::new(id), code));
    }
    Ok(list)
}

/// Reads fields.
pub trait ReadFields {
    fn block(&mut self) -> Result<BlockNumber, Malformed>;
    fn epoch(&mut self) -> Result<Epoch, Malformed>;
    fn version(&mut self) -> Result<Version, Malformed>;
    fn savepoint(&mut self) -> Result<Savepoint, Malformed>;
    fn transactions(&mut self, allowance: &mut AllocationBudget) -> Result<Vec<(TxId, u8)>, Malformed>;
}

impl ReadFields for Reader<Bytes> {
    fn block(&mut self) -> Result<BlockNumber, Malformed> {
        self.u64().map(BlockNumber)
    }

    fn epoch(&mut self) -> Result<Epoch, Malformed> {
        self.u64().map(Epoch)
    }

    fn version(&mut self) -> Result<Version, Malformed> {
        Ok(Version::new(self.u64()?, self.u32()?))
    }

    fn savepoint(&mut self) -> Result<Savepoint, Malformed> {
        Ok(Savepoint { height: self.u64()?, epoch: self.epoch()?, block_hash: self.array()? })
    }

    fn transactions(&mut self, allowance: &mut AllocationBudget) -> Result<Vec<(TxId, u8)>, Malformed> {
        let count = self.u32()?;
        transactions(&self.long(usize::MAX)?, count, allowance).map_err(|what| self.malformed(what))
    }
}

/// Writes fields.
pub trait WriteFields {
    fn version(&mut self, version: Version) -> &mut Self;
    fn savepoint(&mut self, savepoint: &Savepoint) -> &mut Self;
}

impl WriteFields for Writer {
    fn version(&mut self, version: Version) -> &mut Writer {
        self.u64(version.block).u32(version.tx)
    }

    fn savepoint(&mut self, savepoint: &Savepoint) -> &mut Writer {
        self.u64(savepoint.height).u64(savepoint.epoch.get()).put(&savepoint.block_hash)
    }
}

/// A message of this kind.
pub fn message(kind: u8) -> Writer {
    let mut writer = Writer::new();
    writer.u8(kind);
    writer
}
