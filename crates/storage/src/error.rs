//! The errors of storage: of the operating system, of the engine, of refused requests and of damaged data.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{BlockNumber, Epoch, ErrorKind};

/// Why a storage operation failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The disk is full. The operation had no effect.
    #[error("the disk is full (ENOSPC) {doing} {}: free space and try again", path.display())]
    DiskFull {
        /// The operation, as a participle: "appending to".
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
    },
    /// The operating system reported an error.
    #[error("{doing} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// The operation, as a participle: "appending to".
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        source: Arc<io::Error>,
    },
    /// Bytes on disk differ from the bytes that were written.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// A stored block whose writes cannot be read.
    #[error("block {block} cannot be materialised: {reason}")]
    Unreadable {
        /// The number of the block.
        block: BlockNumber,
        /// What is wrong with its bytes.
        reason: String,
    },
    /// Tables that were not made from the blocks beside them.
    #[error("tables and blocks do not belong together: {reason}")]
    Mismatched {
        /// How they differ, and the remedy.
        reason: String,
    },
    /// Data that is older than data that this process has recorded.
    #[error(
        "{found}: an earlier copy of the data was put back, or the data was lost. Stop, and restore the newest copy \
         completely. If there is none, and the lost data may be given up, remove {} and start again", record.display()
    )]
    RolledBack {
        /// The difference between the data and the record.
        found: String,
        /// The file that records how far the data had come.
        record: PathBuf,
    },
    /// A block that is not the next one.
    #[error("block {given} is not the next block: the store is at height {height}")]
    OutOfOrder {
        /// The number of the block.
        given: BlockNumber,
        /// The number that the next block must have.
        height: u64,
    },
    /// A block whose previous hash is not the hash of the newest block stored.
    #[error("block {given} names a previous block that is not block {} as stored here", given.get().saturating_sub(1))]
    WrongPrevious {
        /// The number of the block.
        given: BlockNumber,
    },
    /// A write under an epoch that a newer one has replaced.
    #[error("epoch {given} is fenced: epoch {newest} has begun")]
    Fenced {
        /// The epoch of the write.
        given: Epoch,
        /// The epoch that has begun.
        newest: Epoch,
    },
    /// More than the format or a named limit allows.
    #[error("{what}: {given} is above the limit of {max}")]
    TooLarge {
        /// The limited quantity with its unit: "bytes of a key".
        what: &'static str,
        /// Its value, in that unit.
        given: u64,
        /// The largest value that is allowed.
        max: u64,
    },
    /// A batch or a read with contradictory arguments.
    #[error("{0}")]
    Invalid(&'static str),
    /// A read at a height whose rows may have been pruned.
    #[error("block {through} is below the oldest readable one, {oldest}; read at a newer height")]
    TooOld {
        /// The block at which the caller reads.
        through: BlockNumber,
        /// The oldest block at which it may read.
        oldest: BlockNumber,
    },
    /// The history of a channel is still being built up to the requested height.
    #[error("the history of channel {channel} is being made: {why}; ask again")]
    HistoryBehind {
        /// The name of the channel.
        channel: Box<str>,
        /// How far it has come, or what it waits for.
        why: Box<str>,
    },
    /// The directory was written by another version of this program, or by another program.
    #[error("{} {found}; {advice}", path.display())]
    Version {
        /// The directory of the data or of the tables.
        path: PathBuf,
        /// What is there, as a predicate: "has data format 2".
        found: String,
        /// The remedy.
        advice: &'static str,
    },
    /// Another process uses the directory.
    #[error("{} is in use by another process: stop it, or choose another directory", path.display())]
    Locked {
        /// The directory that the process uses.
        path: PathBuf,
    },
    /// An earlier write or fsync failed, so that the contents of the disk are unknown.
    #[error("closed after a failure ({reason}); open it again to find out what is on disk")]
    Broken {
        /// The earlier failure.
        reason: Arc<str>,
    },
    /// A storage node answered with an error, or could not be reached.
    #[error("storage node {node}: {text}")]
    Remote {
        /// The address or the name of the storage node.
        node: Arc<str>,
        /// The kind of its error.
        kind: ErrorKind,
        /// The text of its error.
        text: String,
    },
    /// The engine behind the tables failed.
    #[error("table engine, {doing}: {source}")]
    Engine {
        /// The operation, as a participle: "writing rows".
        doing: &'static str,
        /// The error of the engine.
        source: Arc<fjall::Error>,
    },
}

/// Where damage was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The file.
    pub path: PathBuf,
    /// The byte of the file where the damaged structure begins.
    pub offset: u64,
    /// The block that cannot be read, if it is known.
    pub block: Option<BlockNumber>,
    /// What is wrong with it.
    pub what: String,
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at byte {}", self.path.display(), self.offset)?;
        if let Some(block) = self.block {
            write!(f, " (block {block})")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl Error {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::DiskFull { .. } | Error::Locked { .. } | Error::TooOld { .. } | Error::HistoryBehind { .. } => {
                ErrorKind::Retry
            }
            Error::Io { source, .. } => ErrorKind::of_io(source),
            Error::Corrupt(_) | Error::Unreadable { .. } | Error::Mismatched { .. } | Error::RolledBack { .. } => {
                ErrorKind::Corrupt
            }
            Error::OutOfOrder { .. }
            | Error::WrongPrevious { .. }
            | Error::TooLarge { .. }
            | Error::Invalid(_)
            | Error::Version { .. } => ErrorKind::Rejected,
            Error::Fenced { .. } => ErrorKind::Fenced,
            Error::Broken { .. } => ErrorKind::Closed,
            Error::Remote { kind, .. } => *kind,
            Error::Engine { source, .. } => engine_kind(source),
        }
    }

    /// An error of the operating system while `doing` something with `path`; a full disk becomes an error kind of its own.
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Error {
        if is_disk_full(&source) {
            return Error::DiskFull { doing, path: path.to_path_buf() };
        }
        Error::Io { doing, path: path.to_path_buf(), source: Arc::new(source) }
    }

    pub(crate) fn corrupt(path: &Path, offset: u64, block: Option<BlockNumber>, what: impl Into<String>) -> Error {
        Error::Corrupt(Box::new(Corruption { path: path.to_path_buf(), offset, block, what: what.into() }))
    }

    /// An error of the table engine while opening.
    pub(crate) fn engine_opening(path: &Path, source: fjall::Error) -> Error {
        match source {
            fjall::Error::Locked => Error::Locked { path: path.to_path_buf() },
            source if engine_io(&source).is_some_and(is_disk_full) => {
                Error::DiskFull { doing: "opening", path: path.to_path_buf() }
            }
            source => Error::Engine { doing: "opening", source: Arc::new(source) },
        }
    }

    /// An error of the open table engine while `doing` something. After a failed write the engine takes no further writes,
    /// so even a full disk requires that it is opened again.
    pub(crate) fn engine(doing: &'static str, path: &Path, source: fjall::Error) -> Error {
        if engine_io(&source).is_some_and(is_disk_full) {
            let reason = format!("the disk is full (ENOSPC) {doing} {}: free space", path.display());
            return Error::Broken { reason: reason.into() };
        }
        Error::Engine { doing, source: Arc::new(source) }
    }
}

/// The advice to an operator about an error of the operating system, as the end of its message.
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free space and try again",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            ": this user must be able to write there; grant it the right, or choose another directory"
        }
        _ => "",
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn engine_io(error: &fjall::Error) -> Option<&io::Error> {
    match error {
        fjall::Error::Io(io) | fjall::Error::Storage(fjall::LsmError::Io(io)) => Some(io),
        _ => None,
    }
}

fn engine_kind(error: &fjall::Error) -> ErrorKind {
    if let Some(io) = engine_io(error) {
        return ErrorKind::of_io(io);
    }
    match error {
        fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted => ErrorKind::Closed,
        fjall::Error::Locked => ErrorKind::Retry,
        fjall::Error::InvalidVersion(_) => ErrorKind::Rejected,
        _ => ErrorKind::Corrupt,
    }
}
