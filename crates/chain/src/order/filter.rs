//! What an orderer looks at before it takes an envelope: Fabric's filters, in its order.
//!
//! 1. The envelope has a payload with headers, for a channel held here.
//! 2. It is no configuration message: reconfiguration is not offered.
//! 3. Its creator's certificate has not expired, and this orderer's operator does not deny it.
//! 4. It is not larger than the channel allows, nor than any block may be, and it is exactly a payload and a signature: what
//!    else it held would be in the block without being counted, and peers refuse such blocks.
//! 5. Its creator is a member that may write to the channel, and signed it.
//!
//! An orderer does not look into transactions; whether they are valid is the peers' to say.

use base::Bytes;
use base::rt::WallTime;
use ledger::Transaction;
use ledger::transaction::is_exact;
use proto::common::{HeaderType, Status};

use super::BroadcastError;
use crate::access::Rules;

/// An envelope that passed.
#[derive(Clone, Debug)]
pub struct Message {
    /// The encoded envelope.
    pub envelope: Bytes,
    /// Its size as limits count it: payload and signature.
    pub bytes: usize,
}

/// Checks an envelope for one channel, whose blocks hold at most so many bytes of envelopes.
///
/// # Errors
/// [`BroadcastError::Rejected`].
pub fn check(envelope: Bytes, rules: &Rules, block_bytes_max: u32, now: WallTime) -> Result<Message, BroadcastError> {
    let bad = |reason: String| BroadcastError::Rejected { status: Status::BadRequest, reason };
    let transaction = Transaction::decode(&envelope).map_err(|invalid| bad(invalid.reason.to_owned()))?;
    if transaction.payload().is_empty() {
        return Err(bad("message payload is empty".to_owned()));
    }
    let header = transaction.header();
    if header.channel() != rules.channel().as_str() {
        return Err(BroadcastError::Rejected {
            status: Status::NotFound,
            reason: format!("channel {} is not known here", header.channel()),
        });
    }
    let kind = HeaderType::try_from(header.kind());
    if matches!(kind, Ok(HeaderType::Config | HeaderType::ConfigUpdate | HeaderType::OrdererTransaction)) {
        return Err(bad("configuration messages are not accepted".to_owned()));
    }
    let forbidden = |reason: &str| BroadcastError::Rejected { status: Status::Forbidden, reason: reason.to_owned() };
    let creator = rules
        .identify(&header.creator())
        .map_err(|error| forbidden(&format!("the creator is no member of the channel: {error}")))?;
    creator.check_expiry(now).map_err(|_| bad("message creator identity expired".to_owned()))?;
    rules
        .check_denied(&creator, now)
        .map_err(|error| forbidden(&format!("the creator is not served here: {error}")))?;
    let bytes = transaction.payload().len() + transaction.signature().len();
    let bytes_max = rules.config().batch().absolute_bytes_max.min(block_bytes_max) as usize;
    if bytes > bytes_max {
        return Err(bad(format!("message payload is {bytes} bytes and exceeds maximum allowed {bytes_max} bytes")));
    }
    // One without a signature is refused below, as Fabric does.
    if !transaction.signature().is_empty() && !is_exact(&envelope) {
        return Err(bad("message is not exactly a payload and a signature".to_owned()));
    }
    creator
        .verify(transaction.payload(), transaction.signature())
        .map_err(|_| forbidden("the creator's signature is not valid"))?;
    if !rules.may_order(&creator) {
        return Err(forbidden("the creator may not write to the channel"));
    }
    Ok(Message { envelope, bytes })
}
