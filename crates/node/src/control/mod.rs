//! The control socket of a compute node or an orderer: an operator queries and changes the memory of a running peer, or
//! the membership of an ordering group.
//!
//! 1. A compute node listens at `control.socket` in its folder, `DIR/nodes/compute-ORG`, also when the whole network
//!    runs in one process. An orderer on Raft listens too, if it is a separate process ([`orderers`]). The folder has
//!    mode 0700 and the socket 0600, and the caller must be the same user or root: a process that can open the socket may
//!    operate the process.
//! 2. A caller writes one [`ControlRequest`] as a line of JSON and reads one [`ControlResponse`] as a line of JSON.
//!    Then the connection ends.
//! 3. A new budget is first written durably to [`budget::BUDGET_FILE`] in the same folder, and then takes effect. If
//!    it is lower than before, the peer returns excess sections in the background. A caller can poll the report until
//!    that is done.
//!
//! Bounds: a request has at most [`REQUEST_BYTES_MAX`] bytes and takes at most [`REQUEST_TIMEOUT`]; a reply has at most
//! [`RESPONSE_BYTES_MAX`] bytes; at most [`CONNECTIONS_MAX`] connections are open at a time.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

pub(crate) mod budget;
mod orderers;
mod report;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::CancellationToken;
use base::rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::network::NodeError;
use crate::roles::compute::ComputeInstance;

pub(crate) use orderers::OrdererControl;
pub use orderers::{OrdererReport, OrderersReport, orderer_of};
pub use report::{ComputeReport, DonorMemoryReport, FailoverSampleReport, HitRate, MemoryReport};

/// The socket's name in the folder of a compute node or an orderer.
pub const SOCKET: &str = "control.socket";
/// Maximum size of a request in bytes: more than the longest address of an orderer takes.
pub const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Maximum size of a reply in bytes.
const RESPONSE_BYTES_MAX: u64 = 1 << 20;
/// Maximum of concurrent connections; one more is closed.
const CONNECTIONS_MAX: usize = 16;
/// Time limit for reading a request, answering it, and writing the reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause after `accept` fails.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// Report how the peer uses its remote memory.
    Memory {},
    /// Report the node's role in its peer.
    Node {},
    /// Set the peer's budget of remote memory.
    SetMemory {
        /// The budget in bytes.
        bytes: u64,
    },
    /// Report the members of an orderer's group.
    Orderers {},
    /// Take one step towards making an orderer a voting member.
    AdmitOrderer {
        /// Its number.
        number: u64,
        /// Where it answers the others.
        address: String,
    },
    /// Remove an orderer from the group.
    RemoveOrderer {
        /// Its number.
        number: u64,
    },
    /// Hand leadership to another orderer.
    HandOver {},
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlResponse {
    /// How the peer uses its memory now.
    Memory(Box<MemoryReport>),
    /// The node's role.
    Node(ComputeReport),
    /// The state of the orderer's group.
    Orderers(Box<OrderersReport>),
    /// This orderer does not lead; nothing was done.
    NotLeading {
        /// The leader, as far as this orderer knows.
        leader: Option<u64>,
        /// The leader's address for the other orderers.
        address: Option<String>,
    },
    /// Another change is in progress; nothing was done.
    Busy {},
    /// The change may or may not have taken effect.
    Ambiguous {
        /// One line.
        message: String,
    },
    /// The request was rejected: why, and what to do.
    Refused {
        /// One line.
        message: String,
    },
}

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

/// A role that answers requests at a control socket.
#[async_trait]
pub(crate) trait ControlHandler: Send + Sync + 'static {
    /// Answers one request.
    async fn handle(&self, request: ControlRequest) -> ControlResponse;
}

#[async_trait]
impl ControlHandler for ComputeInstance {
    async fn handle(&self, request: ControlRequest) -> ControlResponse {
        match request {
            ControlRequest::Memory {} => memory(self.memory_report().await),
            ControlRequest::SetMemory { bytes } => memory(self.set_memory(bytes).await),
            ControlRequest::Node {} => ControlResponse::Node(self.report()),
            _ => rejected("this is a compute node; ask an orderer for that".to_owned()),
        }
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

/// A path to the socket that is short enough for the system, however long the folder's path is. It is valid while the
/// returned directory is open.
fn socket_path(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let directory = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()));
    Ok((directory, path))
}

/// Listens in the folder of a compute node or an orderer, and creates the folder if it is missing.
///
/// # Errors
/// [`NodeError::File`].
pub(crate) fn start(
    folder: &Path,
    operated: Arc<dyn ControlHandler>,
    stop: CancellationToken,
) -> Result<JoinHandle<()>, NodeError> {
    let socket = folder.join(SOCKET);
    let failed = || NodeError::file("listening at", &socket);
    base::durable::create_folder(folder).map_err(NodeError::file("creating", folder))?;
    let (directory, path) = socket_path(folder).map_err(failed())?;
    // Bind in a folder that only this user can enter, set the mode, then move the socket to its name. It replaces a
    // socket that an earlier process left; this process holds the lock, so the earlier one has ended.
    let hidden = path.with_file_name(format!("{SOCKET}.new"));
    let _ = std::fs::remove_dir_all(&hidden);
    std::fs::DirBuilder::new().mode(0o700).create(&hidden).map_err(failed())?;
    let bound = hidden.join(SOCKET);
    let listener = UnixListener::bind(&bound).map_err(failed())?;
    std::fs::set_permissions(&bound, std::fs::Permissions::from_mode(0o600)).map_err(failed())?;
    base::durable::rename(&bound, &path).map_err(failed())?;
    std::fs::remove_dir(&hidden).map_err(failed())?;
    Ok(tokio::spawn(async move {
        serve(listener, operated, stop).await;
        let _ = std::fs::remove_file(&path);
        drop(directory);
    }))
}

async fn serve(listener: UnixListener, operated: Arc<dyn ControlHandler>, stop: CancellationToken) {
    let connections = Semaphore::new(CONNECTIONS_MAX);
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(permit) = connections.try_acquire() else { continue };
        let operated = Arc::clone(&operated);
        tokio::spawn(async move {
            let _permit = permit;
            // A caller that is too slow or has gone gets no answer.
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(socket, operated.as_ref())).await;
        });
    }
}

async fn answer(mut socket: UnixStream, operated: &dyn ControlHandler) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let caller = socket.peer_cred()?.uid();
    let reply = match caller == own || caller == 0 {
        false => rejected(format!("user {caller} may not operate this process, which user {own} runs")),
        true => {
            let mut line = String::new();
            BufReader::new((&mut socket).take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
            match serde_json::from_str(&line) {
                Ok(request) => operated.handle(request).await,
                Err(error) => rejected(format!("this is not a request: {error}; run the same release of both")),
            }
        }
    };
    let line = serde_json::to_string(&reply).expect("a reply has a JSON form") + "\n";
    socket.write_all(line.as_bytes()).await
}

fn memory(report: Result<MemoryReport, String>) -> ControlResponse {
    report.map_or_else(rejected, |report| ControlResponse::Memory(Box::new(report)))
}

fn rejected(message: String) -> ControlResponse {
    ControlResponse::Refused { message }
}
