//! How an operator asks a running peer about its memory and changes it, and orderers about their group: a socket in the folder of a
//! compute node or an orderer.
//!
//! 1. A compute node listens at `control.socket` in its folder, `DIR/nodes/compute-ORG`, also where the whole network is one
//!    process; so does an orderer on Raft that is a process of its own ([`orderers`]). The folder has mode 0700 and the socket 0600, and whoever connects must be the same user, or root: to be able
//!    to open it is to be the operator, on this machine.
//! 2. A caller writes one [`Request`] as a line of JSON and reads one [`Reply`], a line too. Then the connection ends.
//! 3. A new budget is first written to [`budget::FILE`] in the same folder, durably, and then takes effect. Sections above a
//!    lower one are given back in the background; whoever wants to wait asks again until they are.
//!
//! Bounds: [`REQUEST_BYTES_MAX`] of a request and [`REPLY_BYTES_MAX`] of a reply, [`CONNECTIONS_MAX`] at a time, [`REQUEST_MAX`] for
//! a request.
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
use base::rt::Stop;
use base::rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use crate::network::NodeError;
use crate::roles::compute::Compute;

pub(crate) use orderers::Orderer;
pub use orderers::{OrdererReport, OrderersReport, orderer_of};
pub use report::{ComputeReport, FirstBlockReport, HitRate, MemoryReport, NodeMemory};

/// The socket's name in the folder of a compute node or an orderer.
pub const SOCKET: &str = "control.socket";
/// Bytes of a request: more than the longest address of an orderer takes.
pub const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a reply.
const REPLY_BYTES_MAX: u64 = 1 << 20;
/// Connections at once; one more is closed.
const CONNECTIONS_MAX: usize = 16;
/// How long a request may take to arrive, to be answered, and its answer to leave.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// A pause after `accept` failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// How the peer's remote memory is used.
    Memory {},
    /// What it is to its peer.
    Node {},
    /// That it shall have so many bytes of it from now on.
    SetMemory {
        /// How many.
        bytes: u64,
    },
    /// The members of an orderer's group.
    Orderers {},
    /// One step towards making an orderer a member with a vote.
    AdmitOrderer {
        /// Its number.
        number: u64,
        /// Where it answers the others.
        address: String,
    },
    /// That an orderer is to be a member no more.
    RemoveOrderer {
        /// Its number.
        number: u64,
    },
    /// That another orderer is to lead.
    HandOver {},
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// How it is used now.
    Memory(Box<MemoryReport>),
    /// What it is.
    Node(ComputeReport),
    /// How the group of an orderer is.
    Orderers(Box<OrderersReport>),
    /// Another orderer leads, or none; nothing was done.
    NotLeading {
        /// Which one, as far as this one knows.
        leader: Option<u64>,
        /// Where it answers the others.
        address: Option<String>,
    },
    /// Something else is being done; nothing was done.
    Busy {},
    /// It was done, or not.
    Ambiguous {
        /// A line.
        message: String,
    },
    /// Why not, and what to do.
    Refused {
        /// A line.
        message: String,
    },
}

/// Why a process could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens.
    #[error(
        "the process of {} does not answer: {source}; see that it runs, and that this is its folder",
        folder.display()
    )]
    Absent {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It answers something else.
    #[error("the process of {} does not answer as this program expects: {reason}; run the same release of both", folder.display())]
    Strange {
        /// Its folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
    /// It refuses.
    #[error("{0}")]
    Refused(String),
    /// Another orderer leads, or none; nothing was done.
    #[error("this orderer does not lead its group{}", .leader.map_or_else(String::new, |leader| format!(": {} does", orderer_of(leader))))]
    NotLeading {
        /// Which one, as far as it knows.
        leader: Option<u64>,
        /// Where it answers the others.
        address: Option<String>,
    },
    /// Something else is being done; nothing was done.
    #[error("another change of the members is under way, or the leader has just been elected; try again")]
    Busy,
    /// It was done, or not.
    #[error("{0}; `heddle orderer members` tells how things are")]
    Ambiguous(String),
}

/// Asks the compute node of a folder for its memory, or to have another budget.
///
/// # Errors
/// [`ControlError`].
pub async fn ask(folder: &Path, request: &Request) -> Result<MemoryReport, ControlError> {
    match reply(folder, request).await? {
        Reply::Memory(report) => Ok(*report),
        other => Err(strange(folder, format!("{other:?}"))),
    }
}

/// Asks the compute node of a folder what it is.
///
/// # Errors
/// [`ControlError`].
pub async fn ask_node(folder: &Path) -> Result<ComputeReport, ControlError> {
    match reply(folder, &Request::Node {}).await? {
        Reply::Node(report) => Ok(report),
        other => Err(strange(folder, format!("{other:?}"))),
    }
}

/// Asks the orderer of a folder, or has it do something.
///
/// # Errors
/// [`ControlError`].
pub async fn ask_orderer(folder: &Path, request: &Request) -> Result<OrderersReport, ControlError> {
    match reply(folder, request).await? {
        Reply::Orderers(report) => Ok(*report),
        Reply::NotLeading { leader, address } => Err(ControlError::NotLeading { leader, address }),
        Reply::Busy {} => Err(ControlError::Busy),
        Reply::Ambiguous { message } => Err(ControlError::Ambiguous(message)),
        other => Err(strange(folder, format!("{other:?}"))),
    }
}

/// What can be asked in this way.
#[async_trait]
pub(crate) trait Operated: Send + Sync + 'static {
    /// What it answers.
    async fn answer(&self, request: Request) -> Reply;
}

#[async_trait]
impl Operated for Compute {
    async fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Memory {} => memory(self.memory_report().await),
            Request::SetMemory { bytes } => memory(self.set_memory(bytes).await),
            Request::Node {} => Reply::Node(self.report()),
            _ => refused("this is a compute node; ask an orderer for that".to_owned()),
        }
    }
}

fn strange(folder: &Path, reason: String) -> ControlError {
    ControlError::Strange { folder: folder.to_path_buf(), reason }
}

/// What it answers, unless it refuses.
async fn reply(folder: &Path, request: &Request) -> Result<Reply, ControlError> {
    let absent = |source| ControlError::Absent { folder: folder.to_path_buf(), source };
    let asking = async {
        let (directory, path) = reach(folder).map_err(absent)?;
        let mut socket = UnixStream::connect(path).await.map_err(absent)?;
        drop(directory);
        let line = serde_json::to_string(request).expect("a request has a JSON form") + "\n";
        socket.write_all(line.as_bytes()).await.map_err(absent)?;
        let mut answer = String::new();
        BufReader::new(socket.take(REPLY_BYTES_MAX)).read_line(&mut answer).await.map_err(absent)?;
        match serde_json::from_str(&answer) {
            Ok(Reply::Refused { message }) => Err(ControlError::Refused(message)),
            Ok(reply) => Ok(reply),
            Err(_) if answer.is_empty() => Err(absent(std::io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(strange(folder, error.to_string())),
        }
    };
    let late = || absent(std::io::Error::new(std::io::ErrorKind::TimedOut, "it took too long"));
    tokio::time::timeout(REQUEST_MAX, asking).await.unwrap_or_else(|_| Err(late()))
}

/// A way to the socket that is short enough for the system, whatever the folder's path: as long as the directory is open.
fn reach(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let directory = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()));
    Ok((directory, path))
}

/// Begins to answer in the folder of a compute node or an orderer, made where it is missing.
///
/// # Errors
/// [`NodeError::File`].
pub(crate) fn start(folder: &Path, operated: Arc<dyn Operated>, stop: Stop) -> Result<JoinHandle<()>, NodeError> {
    let socket = folder.join(SOCKET);
    let failed = || NodeError::file("listening at", &socket);
    base::durable::create_folder(folder).map_err(NodeError::file("creating", folder))?;
    let (directory, path) = reach(folder).map_err(failed())?;
    // Bound where nobody else can look, and moved once its mode is set. In place of one that an earlier process left, whose
    // end its lock has shown.
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

async fn serve(listener: UnixListener, operated: Arc<dyn Operated>, stop: Stop) {
    let connections = Semaphore::new(CONNECTIONS_MAX);
    while let Some(accepted) = stop.or_stopped(listener.accept()).await {
        let Ok((socket, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let Some(permit) = connections.try_acquire() else { continue };
        let operated = Arc::clone(&operated);
        tokio::spawn(async move {
            let _permit = permit;
            // A caller that is too slow or has gone gets no answer.
            let _ = tokio::time::timeout(REQUEST_MAX, answer(socket, operated.as_ref())).await;
        });
    }
}

async fn answer(mut socket: UnixStream, operated: &dyn Operated) -> std::io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    let caller = socket.peer_cred()?.uid();
    let reply = match caller == own || caller == 0 {
        false => refused(format!("user {caller} may not operate this process, which user {own} runs")),
        true => {
            let mut line = String::new();
            BufReader::new((&mut socket).take(REQUEST_BYTES_MAX)).read_line(&mut line).await?;
            match serde_json::from_str(&line) {
                Ok(request) => operated.answer(request).await,
                Err(error) => refused(format!("this is no request: {error}; run the same release of both")),
            }
        }
    };
    let line = serde_json::to_string(&reply).expect("a reply has a JSON form") + "\n";
    socket.write_all(line.as_bytes()).await
}

fn memory(report: Result<MemoryReport, String>) -> Reply {
    report.map_or_else(refused, |report| Reply::Memory(Box::new(report)))
}

fn refused(message: String) -> Reply {
    Reply::Refused { message }
}
