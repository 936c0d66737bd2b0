//! The requests and responses on a control socket, and their limits.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::control::orderers_report::OrderersReport;
use crate::control::report::{ComputeReport, MemoryReport};
use crate::control::storage_report::StorageReport;

/// The socket's name in the folder of a compute node or an orderer.
pub const SOCKET: &str = "control.socket";
/// Maximum size of a request in bytes: more than the longest address of an orderer takes.
pub const REQUEST_BYTES_MAX: u64 = 16 << 10;
/// Maximum size of a reply in bytes.
pub(super) const RESPONSE_BYTES_MAX: u64 = 1 << 20;

/// Time limit for reading a request, answering it, and writing the reply.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

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
    /// Have the peer vacate a memory node, or use it again.
    SetMemoryNode {
        /// The memory node's address.
        address: String,
        /// Whether the peer is to take no memory from it, and to move away what it has there.
        vacated: bool,
    },
    /// Have the peer use a memory node that its settings do not name.
    AddMemoryNode {
        /// The memory node's `node.toml`, which names its address and the peer's token there.
        file: PathBuf,
    },
    /// Have the peer forget a memory node that was added, and has been vacated.
    RemoveMemoryNode {
        /// The memory node's address.
        address: String,
    },
    /// Report the copies of the peer's blocks and tables.
    Storage {},
    /// Have a copy be built at a storage node.
    AddStorageCopy {
        /// The storage node's name.
        name: String,
    },
    /// Leave the copy of a storage node out.
    DropStorageCopy {
        /// The storage node's name.
        name: String,
    },
    /// Have the copy of one storage node count alone, though another one may have more: no compute node is the primary, and the
    /// other storage node is lost for good.
    ForceStorageCopy {
        /// The storage node's name.
        name: String,
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
    /// The copies of the peer's blocks and tables.
    Storage(Box<StorageReport>),
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

/// A path to the socket that is short enough for the system, however long the folder's path is. It is valid while the
/// returned directory is open.
pub(super) fn socket_path(folder: &Path) -> std::io::Result<(File, PathBuf)> {
    let directory = File::open(folder)?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", directory.as_raw_fd()));
    Ok((directory, path))
}
