//! Errors of blocks, configurations and stored ledgers.

use base::ErrorKind;
use base::{BlockNumber, TxIndex};

use crate::wire::WireError;

/// Why bytes were refused or a check failed. Every variant names what is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Bytes are not the protobuf message they should be.
    #[error("malformed {what}: {cause}")]
    Malformed {
        /// The message.
        what: &'static str,
        /// What is wrong with its bytes.
        cause: WireError,
    },
    /// Bytes are not the protobuf message they should be.
    #[error("malformed {what}: {cause}")]
    Undecodable {
        /// The message.
        what: String,
        /// What the decoder said.
        cause: String,
    },
    /// A block carries a field that its hash and signatures would not cover.
    #[error("{what} has the unknown field {field}")]
    UnknownField {
        /// The message.
        what: &'static str,
        /// The field's number.
        field: u32,
    },
    /// A part that must be there is missing.
    #[error("{what} is missing")]
    Missing {
        /// The part.
        what: &'static str,
    },
    /// A hash has a length other than 32 bytes.
    #[error("block {block}: the {what} has {length} bytes, not 32")]
    HashLength {
        /// Which hash.
        what: &'static str,
        /// The block.
        block: u64,
        /// How many bytes it has.
        length: usize,
    },
    /// Block 0 names a block before it.
    #[error("block 0 has a previous hash")]
    GenesisPrevious,
    /// More of something than the format allows.
    #[error("{what}: {count} is above the limit of {limit}")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A block does not have the number that follows the block before it.
    #[error("block {found} where block {expected} was expected")]
    Number {
        /// The number that follows.
        expected: BlockNumber,
        /// The block's number.
        found: BlockNumber,
    },
    /// A block's previous hash is not the hash of the block before it.
    #[error("block {block}: its previous hash {found} is not the hash {expected} of the block before it")]
    PreviousHash {
        /// The block.
        block: BlockNumber,
        /// First bytes of the hash of the block before.
        expected: String,
        /// First bytes of the hash in the header.
        found: String,
    },
    /// The envelopes do not hash to the data hash in the header.
    #[error("block {block}: its transactions hash to {found}, its header says {expected}")]
    DataHash {
        /// The block.
        block: BlockNumber,
        /// First bytes of the hash in the header.
        expected: String,
        /// First bytes of the computed hash.
        found: String,
    },
    /// An envelope is not exactly a payload and a signature, so that the data hash does not say where it ends.
    #[error("block {block}, transaction {index}: it is not exactly a payload and a signature")]
    Envelope {
        /// The block.
        block: BlockNumber,
        /// The envelope's position.
        index: TxIndex,
    },
    /// The transactions filter has not one code for each transaction.
    #[error("block {block}: its filter has {codes} codes for {transactions} transactions")]
    FilterLength {
        /// The block.
        block: BlockNumber,
        /// Codes in the filter.
        codes: usize,
        /// Transactions in the block.
        transactions: usize,
    },
    /// The orderers' signatures do not satisfy the channel's policy.
    #[error("block {block}: the orderers' signatures do not satisfy the channel's block validation policy: {cause}")]
    OrdererSignatures {
        /// The block.
        block: BlockNumber,
        /// What the policy said.
        cause: String,
    },
    /// The recorded commit hash is not the one that the block's writes give.
    #[error("block {block}: its commit hash is {found}, its writes give {expected}")]
    CommitHash {
        /// The block.
        block: BlockNumber,
        /// First bytes of the computed hash.
        expected: String,
        /// First bytes of the recorded hash.
        found: String,
    },
    /// A transaction that is marked valid is not what a valid transaction must be.
    #[error("block {block}, transaction {index}: {reason}")]
    Transaction {
        /// The block.
        block: BlockNumber,
        /// Its position.
        index: TxIndex,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration that cannot be used.
    #[error("configuration: {path}: {reason}")]
    Config {
        /// The place in the configuration tree, such as `/Channel/Orderer/BatchSize`.
        path: String,
        /// What is wrong there.
        reason: String,
    },
    /// A capability that this software does not have is required.
    #[error("configuration: {path}: the capability {name} is required and not supported")]
    Capability {
        /// The group that requires it.
        path: &'static str,
        /// Its name.
        name: String,
    },
    /// The block store failed.
    #[error("reading the ledger: {cause}")]
    Store {
        /// What the store said.
        cause: String,
        /// The store's own kind.
        kind: ErrorKind,
    },
}

impl Error {
    /// What the caller is to do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Config { .. } | Error::Capability { .. } => ErrorKind::Rejected,
            Error::Store { kind, .. } => *kind,
            // Bytes that came from elsewhere are not what they must be.
            _ => ErrorKind::Corrupt,
        }
    }

    pub(crate) fn config(path: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Config { path: path.into(), reason: reason.into() }
    }
}
