//! Validation codes: one byte per transaction in a block's filter, numbered as in Fabric.

use std::fmt;

/// Why a transaction is valid or not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u8);

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal;)*) => {
        impl Code {
            $($(#[$doc])* pub const $name: Code = Code($number);)*

            /// Fabric's name of the code.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($number => stringify!($name),)*
                    _ => "UNKNOWN",
                }
            }
        }
    };
}

codes! {
    /// The transaction takes effect.
    VALID = 0;
    /// The envelope is empty.
    NIL_ENVELOPE = 1;
    /// The payload cannot be decoded.
    BAD_PAYLOAD = 2;
    /// A header is missing, cannot be decoded, or is not allowed.
    BAD_COMMON_HEADER = 3;
    /// The creator is no member of the channel, or has not signed the transaction.
    BAD_CREATOR_SIGNATURE = 4;
    /// The body is not that of an endorsed transaction, or does not belong to the proposal in the header.
    INVALID_ENDORSER_TRANSACTION = 5;
    /// A configuration that is not alone in its block.
    INVALID_CONFIG_TRANSACTION = 6;
    /// A block holds no transaction of this type.
    UNSUPPORTED_TX_PAYLOAD = 7;
    /// The transaction's id is not the hash of nonce and creator.
    BAD_PROPOSAL_TXID = 8;
    /// An earlier transaction of the channel has the same id.
    DUPLICATE_TXID = 9;
    /// The endorsements do not satisfy an endorsement policy.
    ENDORSEMENT_POLICY_FAILURE = 10;
    /// A key that the transaction read has changed since then.
    MVCC_READ_CONFLICT = 11;
    /// The results of a range that the transaction read have changed since then.
    PHANTOM_READ_CONFLICT = 12;
    /// Fabric knows no transaction of this type.
    UNKNOWN_TX_TYPE = 13;
    /// The transaction names another channel.
    TARGET_CHAIN_NOT_FOUND = 14;
    /// Fabric could not encode the transaction again.
    MARSHAL_TX_ERROR = 15;
    /// The transaction has no action.
    NIL_TXACTION = 16;
    /// The contract's definition has expired.
    EXPIRED_CHAINCODE = 17;
    /// The endorsers ran another version of the contract than the channel defines.
    CHAINCODE_VERSION_CONFLICT = 18;
    /// The extension of the channel header, which names the contract, cannot be decoded.
    BAD_HEADER_EXTENSION = 19;
    /// The channel header cannot be decoded.
    BAD_CHANNEL_HEADER = 20;
    /// The endorsed result cannot be decoded, or is empty.
    BAD_RESPONSE_PAYLOAD = 21;
    /// The read-write set cannot be decoded.
    BAD_RWSET = 22;
    /// The transaction writes where a contract may not write.
    ILLEGAL_WRITESET = 23;
    /// The read-write set holds a key or a name that no state can hold.
    INVALID_WRITESET = 24;
    /// The result names no contract, or the channel does not define the contract.
    INVALID_CHAINCODE = 25;
    /// The transaction is not validated yet.
    NOT_VALIDATED = 254;
    /// The transaction is invalid for a reason that no other code names.
    INVALID_OTHER_REASON = 255;
}

impl Code {
    /// Whether the transaction takes effect.
    pub const fn is_valid(self) -> bool {
        self.0 == Code::VALID.0
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, self.name())
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
