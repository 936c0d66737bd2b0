//! The checks that an orderer makes before it accepts an envelope: Fabric's filters, in Fabric's order.
//!
//! 1. The envelope has a payload with headers, for a channel of this orderer.
//! 2. It is no configuration message: reconfiguration is not offered.
//! 3. Its creator is a member of the channel, the creator's certificate has not expired, and this orderer's operator does
//!    not deny the certificate.
//! 4. The envelope is at most as large as the channel and a block allow. It is exactly a payload and a signature: other
//!    fields would be in the block without being counted, and peers reject such blocks.
//! 5. Its creator signed it and may write to the channel.
//!
//! An orderer does not read transactions; the peers decide whether they are valid.

use base::Bytes;
use base::rt::WallTime;
use ledger::Transaction;
use ledger::transaction::is_exact;
use proto::common::{HeaderType, Status};

use super::BroadcastError;
use crate::access::ChannelPolicies;

/// An envelope that passed the checks.
#[derive(Clone, Debug)]
pub struct CheckedEnvelope {
    /// The encoded envelope.
    pub envelope: Bytes,
    /// Its size as the limits count it: payload and signature.
    pub bytes: usize,
}

/// Checks an envelope for one channel, whose blocks hold at most `block_bytes_max` bytes of envelopes.
///
/// # Errors
/// [`BroadcastError::Rejected`].
pub fn check_envelope(
    envelope: Bytes,
    policies: &ChannelPolicies,
    block_bytes_max: u32,
    now: WallTime,
) -> Result<CheckedEnvelope, BroadcastError> {
    let bad = |reason: String| BroadcastError::Rejected { status: Status::BadRequest, reason };
    let transaction = Transaction::decode(&envelope).map_err(|invalid| bad(invalid.reason.to_owned()))?;
    if transaction.payload().is_empty() {
        return Err(bad("message payload is empty".to_owned()));
    }
    let header = transaction.header();
    if header.channel() != policies.channel().as_str() {
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
    let creator = policies
        .identify(&header.creator())
        .map_err(|error| forbidden(&format!("the creator is no member of the channel: {error}")))?;
    creator.check_expiry(now).map_err(|_| bad("message creator identity expired".to_owned()))?;
    policies
        .check_denied(&creator, now)
        .map_err(|error| forbidden(&format!("the creator is not served here: {error}")))?;
    let bytes = transaction.payload().len() + transaction.signature().len();
    let bytes_max = policies.config().batch().absolute_bytes_max.min(block_bytes_max) as usize;
    if bytes > bytes_max {
        return Err(bad(format!("message payload is {bytes} bytes and exceeds maximum allowed {bytes_max} bytes")));
    }
    // An envelope without a signature is rejected below, as in Fabric.
    if !transaction.signature().is_empty() && !is_exact(&envelope) {
        return Err(bad("message is not exactly a payload and a signature".to_owned()));
    }
    creator
        .verify(transaction.payload(), transaction.signature())
        .map_err(|_| forbidden("the creator's signature is not valid"))?;
    if !policies.may_order(&creator) {
        return Err(forbidden("the creator may not write to the channel"));
    }
    Ok(CheckedEnvelope { envelope, bytes })
}
