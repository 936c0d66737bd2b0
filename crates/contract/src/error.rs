//! The errors of contracts and of the stub they run on.
//!
//! There are two kinds:
//! * An *application error* is the contract's deterministic answer. The client gets a response with a status of at
//!   least 400, and every endorser gives the same response.
//! * A *state error* says that this peer failed to run the contract: its state is no longer available, it was fenced,
//!   or it is stopping. The client gets an error of the endorser instead, and may retry here or at another peer.

use base::ErrorKind;

use crate::ContractResponse;

/// Why [`Contract::invoke`](crate::Contract::invoke) did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ContractError {
    /// The contract's own answer. `status` is Fabric's response status: 400 to 499 for a refusal, 500 for an error.
    #[error("{message}")]
    Application {
        /// At least 400.
        status: i32,
        /// What the client reads.
        message: String,
    },
    /// What the contract asked of its stub failed.
    #[error(transparent)]
    Stub(#[from] StubError),
}

impl ContractError {
    /// An application error with status 500, which is what Fabric's contract libraries answer.
    pub fn application(message: impl Into<String>) -> Self {
        Self::Application { status: ContractResponse::ERROR, message: message.into() }
    }

    /// What the caller of the contract should do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Application { .. } => ErrorKind::Rejected,
            Self::Stub(error) => error.kind(),
        }
    }

    /// The response that the client gets, for errors that are an answer: the contract's own, and requests that the stub
    /// refused deterministically (a bad key, an unsupported feature).
    ///
    /// # Errors
    /// The stub's error, when the execution itself failed and says nothing about the transaction.
    pub fn into_response(self) -> Result<ContractResponse, StubError> {
        match self {
            Self::Application { status, message } => Ok(ContractResponse::failure(status, message)),
            Self::Stub(error) if error.kind() == ErrorKind::Rejected => {
                Ok(ContractResponse::failure(ContractResponse::ERROR, error.to_string()))
            }
            Self::Stub(error) => Err(error),
        }
    }
}

/// Why a [`Stub`](crate::ContractStub) did not do what the contract asked.
///
/// Every variant but `State` is deterministic: each endorser refuses the same request in the same words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StubError {
    /// A state key, or a part of a composite key, that no ledger accepts.
    #[error("invalid state key: {0}")]
    InvalidKey(String),
    /// The event's name is empty.
    #[error("invalid event: {0}")]
    InvalidEvent(String),
    /// A private collection cannot be used: it does not exist, the client is no member, or the peer lacks the value.
    #[error("{0}")]
    Collection(String),
    /// A transaction must either write, or query by pages or in private collections, but not both.
    #[error("{0}")]
    ReadOnly(String),
    /// A feature that the channel's state or the contract's runtime does not offer.
    #[error("{0} is not supported on this channel")]
    Unsupported(&'static str),
    /// A query handle that was never opened, or was closed.
    #[error("query {0} is not open")]
    UnknownQuery(u64),
    /// `invoke_contract` named a contract that is not on the channel.
    #[error("contract {0} is not known on this channel")]
    UnknownContract(String),
    /// The peer's organisation has not approved the contract's definition, so the peer does not run it.
    #[error(
        "chaincode definition for '{contract}' at sequence {sequence} on channel '{channel}' has not yet been approved by this org"
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
        "chaincode definition for '{contract}' exists, but chaincode is not installed: install package {package} at this peer"
    )]
    NotInstalled {
        /// The contract.
        contract: String,
        /// The package.
        package: String,
    },
    /// The contract must be initialised first, or must not be initialised by this call.
    #[error("invalid invocation: {0}")]
    InvalidInvocation(String),
    /// A call to another contract was refused.
    #[error("{0}")]
    CallRefused(String),
    /// A named maximum of the transaction was passed: open queries, writes, bytes, call depth.
    #[error("{what} of one transaction may be at most {max}")]
    LimitExceeded {
        /// What was counted.
        what: &'static str,
        /// The maximum.
        max: u64,
    },
    /// The state below could not serve. Not an answer to the application.
    #[error("world state: {message}")]
    State {
        /// What the endorser should do; never `Rejected`.
        kind: ErrorKind,
        /// The cause, for the log.
        message: String,
    },
}

impl StubError {
    /// What the caller should do about it. `Rejected` for every deterministic refusal.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::State { kind, .. } => *kind,
            _ => ErrorKind::Rejected,
        }
    }
}
