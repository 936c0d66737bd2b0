//! The checks that an orderer makes before it accepts an envelope: Fabric's filters, in Fabric's order.
//!
//! 1. The envelope has a payload with headers, for a channel of this orderer.
//! 2. It is a transaction or a configuration update. The orderers alone make envelopes of type CONFIG. While the channel is
//!    in maintenance mode, only configuration updates are accepted.
//! 3. Its creator is a member of the channel, the creator's certificate has not expired, and this orderer's operator does
//!    not deny the certificate.
//! 4. The envelope is at most as large as the channel and a block allow. It is exactly a payload and a signature: other
//!    fields would be in the block without being counted, and peers reject such blocks.
//! 5. Its creator signed it and may write to the channel. In maintenance mode the creator must be allowed to write to the
//!    orderers.
//! 6. An update is permitted by the configuration in force ([`ledger::ChannelConfig::propose_update`]) and follows the
//!    rules for the consensus type. The orderer makes the next configuration, signs it, and checks the envelope that holds
//!    it by rules 4 and 5. The result takes the place of the update.
//!
//! An orderer does not read transactions; the peers decide whether they are valid.
//!
//! The verdict belongs to one configuration. If the configuration has changed before the envelope enters a block, the
//! leader checks the envelope again ([`EnvelopeFilter::check_again`]).

use std::sync::Arc;

use base::Bytes;
use base::rt::{self, WallTime};
use identity::Signer;
use ledger::transaction::is_exact;
use ledger::{ChannelConfig, Transaction};
use proto::common::{HeaderType, Status};
use rules::access::ChannelPolicies;

use super::BroadcastError;

/// An envelope that passed the checks.
#[derive(Clone, Debug)]
pub struct CheckedEnvelope {
    /// The encoded envelope.
    pub envelope: Bytes,
    /// Its size as the limits count it: payload and signature.
    pub bytes: usize,
    /// The sequence number of the configuration under which it was checked.
    pub sequence: u64,
    /// If the envelope is of type CONFIG: what it changes.
    pub change: Option<ConfigChange>,
}

/// A change of the channel's configuration.
#[derive(Clone, Debug)]
pub struct ConfigChange {
    /// The envelope of type CONFIG_UPDATE that asked for it.
    pub update: Bytes,
    /// The policies of the next configuration.
    pub policies: Arc<ChannelPolicies>,
}

/// Checks envelopes for one channel under one configuration.
#[derive(Clone, Copy, Debug)]
pub struct EnvelopeFilter<'a> {
    /// The policies of the configuration.
    pub policies: &'a ChannelPolicies,
    /// The most bytes of envelopes in a block.
    pub block_bytes_max: u32,
    /// Signs configurations.
    pub signer: &'a Signer,
}

impl EnvelopeFilter<'_> {
    /// Checks an envelope from a client.
    ///
    /// # Errors
    /// [`BroadcastError::Rejected`].
    pub fn check(&self, envelope: Bytes, now: WallTime) -> Result<CheckedEnvelope, BroadcastError> {
        let transaction = Transaction::decode(&envelope).map_err(|invalid| bad(invalid.reason.to_owned()))?;
        if transaction.payload().is_empty() {
            return Err(bad("message payload is empty".to_owned()));
        }
        let header = transaction.header();
        if header.channel() != self.policies.channel().as_str() {
            return Err(rejected(Status::NotFound, format!("channel {} is not known here", header.channel())));
        }
        let is_update = match HeaderType::try_from(header.kind()) {
            Ok(HeaderType::Config) => {
                return Err(bad("message is of type that cannot be processed directly".to_owned()));
            }
            Ok(HeaderType::OrdererTransaction) => {
                return Err(bad("message is of type that is no longer supported".to_owned()));
            }
            kind => kind == Ok(HeaderType::ConfigUpdate),
        };
        if !is_update && self.policies.config().consensus().maintenance {
            let reason = "normal transactions are rejected: maintenance mode".to_owned();
            return Err(rejected(Status::ServiceUnavailable, reason));
        }
        let bytes = self.check_sender(&envelope, &transaction, now)?;
        if is_update {
            return self.make_config(envelope, now);
        }
        Ok(CheckedEnvelope { envelope, bytes, sequence: self.policies.config().sequence(), change: None })
    }

    /// Checks an envelope that passed these checks under another configuration.
    ///
    /// # Errors
    /// [`BroadcastError::Rejected`].
    pub fn check_again(&self, checked: CheckedEnvelope, now: WallTime) -> Result<CheckedEnvelope, BroadcastError> {
        match checked {
            checked if checked.sequence == self.policies.config().sequence() => Ok(checked),
            checked if rt::fault_point("chain.order.mutant.unchecked") => Ok(checked),
            CheckedEnvelope { change: Some(change), .. } => self.check(change.update, now),
            CheckedEnvelope { envelope, .. } => self.check(envelope, now),
        }
    }

    /// Rules 3 to 5. Returns the envelope's size as the limits count it.
    fn check_sender(
        &self,
        envelope: &Bytes,
        transaction: &Transaction,
        now: WallTime,
    ) -> Result<usize, BroadcastError> {
        let forbidden = |reason: &str| rejected(Status::Forbidden, reason.to_owned());
        let policies = self.policies;
        let creator = policies
            .identify(&transaction.header().creator())
            .map_err(|error| forbidden(&format!("the creator is no member of the channel: {error}")))?;
        creator.check_expiry(now).map_err(|_| bad("broadcast client identity expired".to_owned()))?;
        policies
            .check_denied(&creator, now)
            .map_err(|error| forbidden(&format!("the creator is not served here: {error}")))?;
        let bytes = transaction.payload().len() + transaction.signature().len();
        let bytes_max = policies.config().batch().absolute_bytes_max.min(self.block_bytes_max) as usize;
        if bytes > bytes_max {
            return Err(bad(format!("message payload is {bytes} bytes and exceeds maximum allowed {bytes_max} bytes")));
        }
        // An envelope without a signature is rejected below, as in Fabric.
        if !transaction.signature().is_empty() && !is_exact(envelope) {
            return Err(bad("message is not exactly a payload and a signature".to_owned()));
        }
        creator
            .verify(transaction.payload(), transaction.signature())
            .map_err(|_| forbidden("the creator's signature is not valid"))?;
        if !policies.may_order(&creator) {
            return Err(forbidden("the creator may not write to the channel"));
        }
        Ok(bytes)
    }

    /// Rule 6: the next configuration, in an envelope of this orderer.
    fn make_config(&self, update: Bytes, now: WallTime) -> Result<CheckedEnvelope, BroadcastError> {
        let current = self.policies.config();
        let channel = current.channel();
        let refused = |error: &dyn std::fmt::Display| {
            bad(format!("error applying config update to existing channel '{channel}': {error}"))
        };
        let content = current.propose_update(&update).map_err(|error| refused(&error))?;
        let envelope = ledger::config::sign_config(channel.as_str(), &content, self.signer);
        let next = ChannelConfig::from_envelope(&envelope).map_err(|error| refused(&error))?;
        check_consensus(current, &next).map_err(|reason| refused(&reason))?;
        let policies = self.policies.under(Arc::new(next));
        let signer = policies.identify(self.signer.serialized());
        let can_sign_blocks = signer.is_ok_and(|signer| {
            policies.config().block_validation_policy().evaluate_identities(std::slice::from_ref(&signer)).is_ok()
        });
        if !can_sign_blocks {
            return Err(refused(&"this orderer could not sign blocks under it; submit the update to another orderer"));
        }
        let transaction = Transaction::decode(&envelope).map_err(|invalid| bad(invalid.reason.to_owned()))?;
        let bytes = self.check_sender(&envelope, &transaction, now)?;
        let change = Some(ConfigChange { update, policies: Arc::new(policies) });
        Ok(CheckedEnvelope { envelope, bytes, sequence: current.sequence(), change })
    }
}

/// Fabric's rules for the consensus type: a channel enters and leaves maintenance mode by a change of nothing else. The
/// type itself stays: which engine orders the channel is decided where its orderers are started.
fn check_consensus(current: &ChannelConfig, next: &ChannelConfig) -> Result<(), String> {
    let (now, then) = (current.consensus(), next.consensus());
    if now.kind != then.kind {
        return Err(format!("the consensus type {} cannot be changed to {}", now.kind, then.kind));
    }
    if now.maintenance == then.maintenance {
        return Ok(());
    }
    match current.differs_only_in_consensus_state(next) {
        Ok(true) => Ok(()),
        Ok(false) => Err("an update that enters or leaves maintenance mode changes nothing else".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn rejected(status: Status, reason: String) -> BroadcastError {
    BroadcastError::Rejected { status, reason }
}

fn bad(reason: String) -> BroadcastError {
    rejected(Status::BadRequest, reason)
}
