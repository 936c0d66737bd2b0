//! Sends a request to a process over its control socket.

use std::path::{Path, PathBuf};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;

use crate::control::orderers_report::{OrderersReport, orderer_of};
use crate::control::protocol::{ControlRequest, ControlResponse, REQUEST_TIMEOUT, RESPONSE_BYTES_MAX, socket_path};
use crate::control::report::{ComputeReport, MemoryReport};
use crate::control::storage_report::StorageReport;

/// Why a process could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens.
    #[error(
        "the process of {} does not answer: {source}; see that it runs, and that this is its folder",
        folder.display()
    )]
    Unreachable {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The process sent an unexpected reply.
    #[error("the process of {} does not answer as this program expects: {reason}; run the same release of both", folder.display())]
    UnexpectedResponse {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// The process rejected the request.
    #[error("{0}")]
    Rejected(String),
    /// This orderer does not lead; nothing was done.
    #[error("this orderer does not lead its group{}", .leader.map_or_else(String::new, |leader| format!(": {} does", orderer_of(leader))))]
    NotLeading {
        /// The leader, as far as this orderer knows.
        leader: Option<u64>,
        /// The leader's address for the other orderers.
        address: Option<String>,
    },
    /// Another change is in progress; nothing was done.
    #[error("another change of the members is under way, or the leader has just been elected; try again")]
    Busy,
    /// The change may or may not have taken effect.
    #[error("{0}; `heddle orderer members` shows the current members")]
    Ambiguous(String),
}

/// Asks the compute node of a folder for its memory report, or sets another budget.
///
/// # Errors
/// [`ControlError`].
pub async fn request_memory(folder: &Path, request: &ControlRequest) -> Result<MemoryReport, ControlError> {
    match exchange(folder, request).await? {
        ControlResponse::Memory(report) => Ok(*report),
        other => Err(unexpected_response(folder, format!("{other:?}"))),
    }
}

/// Asks the compute node of a folder for the copies of its peer's blocks and tables, or changes them.
///
/// # Errors
/// [`ControlError`].
pub async fn request_storage(folder: &Path, request: &ControlRequest) -> Result<StorageReport, ControlError> {
    match exchange(folder, request).await? {
        ControlResponse::Storage(report) => Ok(*report),
        other => Err(unexpected_response(folder, format!("{other:?}"))),
    }
}

/// Asks the compute node of a folder for its role.
///
/// # Errors
/// [`ControlError`].
pub async fn request_node(folder: &Path) -> Result<ComputeReport, ControlError> {
    match exchange(folder, &ControlRequest::Node {}).await? {
        ControlResponse::Node(report) => Ok(report),
        other => Err(unexpected_response(folder, format!("{other:?}"))),
    }
}

/// Asks the orderer of a folder for a report, or for a change.
///
/// # Errors
/// [`ControlError`].
pub async fn request_orderer(folder: &Path, request: &ControlRequest) -> Result<OrderersReport, ControlError> {
    match exchange(folder, request).await? {
        ControlResponse::Orderers(report) => Ok(*report),
        ControlResponse::NotLeading { leader, address } => Err(ControlError::NotLeading { leader, address }),
        ControlResponse::Busy {} => Err(ControlError::Busy),
        ControlResponse::Ambiguous { message } => Err(ControlError::Ambiguous(message)),
        other => Err(unexpected_response(folder, format!("{other:?}"))),
    }
}

fn unexpected_response(folder: &Path, reason: String) -> ControlError {
    ControlError::UnexpectedResponse { folder: folder.to_path_buf(), reason }
}

/// The reply; a rejection becomes an error.
async fn exchange(folder: &Path, request: &ControlRequest) -> Result<ControlResponse, ControlError> {
    let absent = |source| ControlError::Unreachable { folder: folder.to_path_buf(), source };
    let asking = async {
        let (directory, path) = socket_path(folder).map_err(absent)?;
        let mut socket = UnixStream::connect(path).await.map_err(absent)?;
        drop(directory);
        let line = serde_json::to_string(request).expect("a request has a JSON form") + "\n";
        socket.write_all(line.as_bytes()).await.map_err(absent)?;
        let mut answer = String::new();
        BufReader::new(socket.take(RESPONSE_BYTES_MAX)).read_line(&mut answer).await.map_err(absent)?;
        match serde_json::from_str(&answer) {
            Ok(ControlResponse::Refused { message }) => Err(ControlError::Rejected(message)),
            Ok(reply) => Ok(reply),
            Err(_) if answer.is_empty() => Err(absent(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(unexpected_response(folder, error.to_string())),
        }
    };
    let late = || absent(std::io::Error::new(std::io::ErrorKind::TimedOut, "it did not answer in time"));
    tokio::time::timeout(REQUEST_TIMEOUT, asking).await.unwrap_or_else(|_| Err(late()))
}
