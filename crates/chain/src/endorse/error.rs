//! Why a proposal is not endorsed.

use std::time::Duration;

use base::{ErrorKind, TxId};
use contract::ContractResponse;
use ledger::proposal::ProposalError;
use proto::protos::{ProposalResponse, Response};

/// Why a proposal did not run to an answer.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndorseError {
    /// The bytes are not a proposal.
    #[error("{0}")]
    Malformed(String),
    /// The proposal is not permitted: its format, creator, signature or rights.
    #[error("error validating proposal: {0}")]
    Invalid(String),
    /// The channel's policies do not allow the creator to propose.
    #[error("{0}")]
    Denied(String),
    /// The creator's certificate has expired, or the proposal's time is too far from this peer's.
    #[error("{0}")]
    Expired(String),
    /// The channel does not exist at this peer.
    #[error("channel '{0}' not found")]
    UnknownChannel(String),
    /// The channel has no such contract, or this peer cannot run it.
    #[error(
        "make sure the chaincode {name} has been successfully defined on channel {channel} and try again: chaincode {name} \
         not found"
    )]
    UnknownChaincode {
        /// The contract.
        name: String,
        /// The channel.
        channel: String,
    },
    /// The peer's organisation has not approved the contract's definition.
    #[error(
        "make sure the chaincode {contract} has been successfully defined on channel {channel} and try again: chaincode definition \
         for '{contract}' at sequence {sequence} on channel '{channel}' has not yet been approved by this org"
    )]
    NotApproved {
        /// The contract.
        contract: String,
        /// The number of its definition.
        sequence: i64,
        /// The channel.
        channel: String,
    },
    /// The peer's organisation has approved a package that is not installed at this peer.
    #[error(
        "make sure the chaincode {contract} has been successfully defined on channel {channel} and try again: chaincode definition \
         for '{contract}' exists, but chaincode is not installed: install package {package} at this peer"
    )]
    NotInstalled {
        /// The contract.
        contract: String,
        /// The channel.
        channel: String,
        /// The package.
        package: String,
    },
    /// The transaction is on the ledger already.
    #[error("duplicate transaction found [{0}]")]
    Duplicate(TxId),
    /// Too many proposals are running and waiting, or this one has waited too long.
    #[error("too many proposals are running and waiting; back off and retry")]
    Overloaded,
    /// The contract took too long.
    #[error("the contract did not finish within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The contract was called in a way that its definition does not allow.
    #[error("error in simulation: {0}")]
    InvalidInvocation(String),
    /// The state could not serve.
    #[error("error in simulation: {message}")]
    State {
        /// What the caller should do; never `Rejected`.
        kind: ErrorKind,
        /// The cause.
        message: String,
    },
    /// The channel's pipeline has failed: the peer's state of the channel becomes stale, so no proposal runs on it.
    #[error("channel {channel} has stopped at this peer and waits for its operator: {cause}")]
    ChannelStopped {
        /// The channel.
        channel: String,
        /// The error that ended it.
        cause: String,
    },
    /// The peer is stopping.
    #[error("the peer is stopping")]
    Stopped,
}

impl EndorseError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            EndorseError::Overloaded | EndorseError::TimedOut(_) => ErrorKind::Retry,
            EndorseError::State { kind, .. } => *kind,
            EndorseError::ChannelStopped { .. } | EndorseError::Stopped => ErrorKind::Closed,
            _ => ErrorKind::Rejected,
        }
    }

    /// The answer of the endorser's service for a proposal that failed while it ran. `None` if the proposal was rejected
    /// before it ran, or the peer cannot serve: then the call itself ends with an error.
    pub fn response(&self) -> Option<ProposalResponse> {
        let ran = matches!(
            self,
            EndorseError::UnknownChannel(_)
                | EndorseError::UnknownChaincode { .. }
                | EndorseError::NotApproved { .. }
                | EndorseError::NotInstalled { .. }
                | EndorseError::InvalidInvocation(_)
                | EndorseError::TimedOut(_)
                | EndorseError::State { .. }
        );
        let response =
            || Response { status: ContractResponse::ERROR, message: self.to_string(), ..Response::default() };
        ran.then(|| ProposalResponse { response: Some(response()), ..ProposalResponse::default() })
    }
}

impl From<ProposalError> for EndorseError {
    fn from(error: ProposalError) -> EndorseError {
        match error {
            ProposalError::Malformed(reason) => EndorseError::Malformed(reason),
            ProposalError::Invalid(reason) => EndorseError::Invalid(reason),
        }
    }
}
