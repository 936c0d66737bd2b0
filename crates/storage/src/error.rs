//! The error of this crate.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::{BlockNumber, Epoch, ErrorKind};

/// Why storage could not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The disk has no room. What was asked did not take effect.
    #[error("the disk is full (ENOSPC) {doing} {}: free space and try again", path.display())]
    DiskFull { doing: &'static str, path: PathBuf },
    /// The operating system refused.
    #[error("{doing} {}: {source}{}", path.display(), advice(source))]
    Io { doing: &'static str, path: PathBuf, source: Arc<io::Error> },
    /// Bytes on disk are not what was written.
    #[error("{0}")]
    Corrupt(Box<Corruption>),
    /// A stored block whose writes cannot be read.
    #[error("block {block} cannot be made into rows: {reason}")]
    Unreadable { block: BlockNumber, reason: String },
    /// Tables that do not belong to the blocks beside them.
    #[error("tables and blocks do not belong together: {reason}")]
    Mismatched { reason: String },
    /// Data that is older than what it was known to be.
    #[error(
        "{found}: an earlier copy of the data was put back, or the data was lost. Stop, and put the newest copy back, whole. Where \
         there is none, and what is gone may be given up, remove {} and start again", record.display()
    )]
    RolledBack { found: String, record: PathBuf },
    /// A block that is not the next one.
    #[error("block {given} does not follow: the store is at height {height}")]
    OutOfOrder { given: BlockNumber, height: u64 },
    /// A block whose previous hash is not the hash of the newest block stored.
    #[error("block {given} names a previous block that is not block {} as stored here", given.get().saturating_sub(1))]
    WrongPrevious { given: BlockNumber },
    /// A write by an owner that a newer one has replaced.
    #[error("written under epoch {given}, but epoch {newest} has written already")]
    Fenced { given: Epoch, newest: Epoch },
    /// More than the format or a named limit allows.
    #[error("{what}: {given} is above the limit of {max}")]
    TooLarge { what: &'static str, given: u64, max: u64 },
    /// A batch or a read that contradicts itself.
    #[error("{0}")]
    Invalid(&'static str),
    /// A read at a height whose rows may have been pruned.
    #[error("block {through} is below the oldest readable one, {oldest}; read at a newer height")]
    TooOld { through: BlockNumber, oldest: BlockNumber },
    /// The history of a channel does not reach as far as it is asked yet.
    #[error("the history of channel {channel} is being made: {why}; ask again")]
    HistoryBehind { channel: Box<str>, why: Box<str> },
    /// The directory was written by another version of this program, or by another program.
    #[error("{} {found}; {advice}", path.display())]
    Version { path: PathBuf, found: String, advice: &'static str },
    /// Another process uses the directory.
    #[error("{} is in use by another process: stop it, or choose another directory", path.display())]
    Locked { path: PathBuf },
    /// An earlier write or fsync failed, so that it is unknown what is on disk.
    #[error("closed after a failure ({reason}); open it again to find out what is on disk")]
    Broken { reason: Arc<str> },
    /// A storage node answered with an error, or could not be asked.
    #[error("storage node {node}: {text}")]
    Remote { node: Arc<str>, kind: ErrorKind, text: String },
    /// The engine behind the tables failed.
    #[error("table engine, {doing}: {source}")]
    Engine { doing: &'static str, source: Arc<fjall::Error> },
}

/// Where damage was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// The file.
    pub path: PathBuf,
    /// The byte of the file where the damaged structure begins.
    pub offset: u64,
    /// The block that cannot be read, where it is known.
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
    /// What the caller is to do.
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

    /// An error of the operating system while `doing` something with `path`; a full disk is named as such.
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

    /// An error of the open table engine while `doing` something. After a failed write it takes no more of them, so a full
    /// disk, too, asks for opening again.
    pub(crate) fn engine(doing: &'static str, path: &Path, source: fjall::Error) -> Error {
        if engine_io(&source).is_some_and(is_disk_full) {
            let reason = format!("the disk is full (ENOSPC) {doing} {}: free space", path.display());
            return Error::Broken { reason: reason.into() };
        }
        Error::Engine { doing, source: Arc::new(source) }
    }
}

/// What an operator is to do about an error of the operating system, as the end of its message.
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ": free space and try again",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            ": this user must be able to write there; see to that, or choose another directory"
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
