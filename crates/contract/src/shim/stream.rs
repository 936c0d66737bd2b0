//! The stream between a peer and a chaincode, as the layers above provide it.

use async_trait::async_trait;
use base::{Bytes, ErrorKind};

/// Bytes of the largest message, either way: Fabric's bound.
pub const MESSAGE_BYTES_MAX: usize = 100 << 20;

/// The receiving half of a stream.
#[async_trait]
pub trait MessageReceiver: Send {
    /// The next encoded `ChaincodeMessage`; `None` once the other side has ended the stream. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// Why the stream broke.
    async fn receive(&mut self) -> Result<Option<Bytes>, String>;
}

/// The sending half of a stream. Dropping it ends the stream.
#[async_trait]
pub trait MessageSender: Send {
    /// Sends one encoded `ChaincodeMessage`, as fast as the other side takes it. If the future is dropped, half a message may
    /// have been sent; the stream must then be dropped too.
    ///
    /// # Errors
    /// Why the stream broke.
    async fn send(&mut self, message: Bytes) -> Result<(), String>;
}

/// Both halves of a stream.
pub struct ChaincodeStream {
    /// What the chaincode sends.
    pub receiver: Box<dyn MessageReceiver>,
    /// What the peer sends.
    pub sender: Box<dyn MessageSender>,
}

/// Opens streams to one chaincode.
#[async_trait]
pub trait ChaincodeConnector: Send + Sync {
    /// Opens a stream. Called when a call needs one and there is none. Dropping the future gives the attempt up.
    ///
    /// # Errors
    /// Why there is none, for the log and for the client.
    async fn connect(&self) -> Result<ChaincodeStream, String>;
}

/// Why a stream to a chaincode is not usable, or does not become usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShimError {
    /// There is no connection, or it ended.
    #[error("chaincode {chaincode} is not connected: {cause}")]
    Disconnected {
        /// The chaincode.
        chaincode: String,
        /// Why.
        cause: String,
    },
    /// Something else answered, or the chaincode runs another package.
    #[error("{0}")]
    Refused(String),
}

impl ShimError {
    /// What the caller should do about it.
    pub fn kind(&self) -> ErrorKind {
        match self {
            ShimError::Disconnected { .. } => ErrorKind::Retry,
            ShimError::Refused(_) => ErrorKind::Rejected,
        }
    }
}
