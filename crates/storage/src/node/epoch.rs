//! The file in which a storage node keeps the newest epoch of a channel, and the newest view of its copies.
//!
//! ```text
//! offset  bytes  (little-endian)
//!  0       8     "HEDDLEEP"
//!  8       4     version of the format: 1 if the channel has no view, else 2
//! 12       4     0
//! 16       8     epoch
//! version 2 goes on:
//! 24       1     what is being removed: 0 nothing, 1 private rows, 2 everything
//! 25       8     number of the view
//! 33       8     epoch in which the view was made
//! 41       1     number of copies
//! 42       …     of each: 0, or 1 for a learner (1), length of its name (2), name
//!  …       1     the place of this node among them; 255 if it is none
//! both end with:
//!  …       8     XXH3 of all bytes before
//! ```
//!
//! A new epoch or view is written to a second file, synced, and renamed over the first; then the directory is synced. After a
//! crash the file holds the old or the new one. A damaged file is an error. If it counted as missing, an older
//! primary could write again.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::disk::Directory;
use base::{Bytes, Epoch};
use wire::{Reader, Writer};

use super::view::{CopyReset, RegisteredView};
use crate::Error;
use crate::blocks::{check_seal, seal};

/// The version of a file without a view.
pub const FORMAT_VERSION: u32 = 1;
/// The version of a file with a view.
pub const VIEW_FORMAT_VERSION: u32 = 2;
const MAGIC: [u8; 8] = *b"HEDDLEEP";
const SEAL_BYTES: usize = 8;
/// The longest file.
const BYTES_MAX: usize = 1024;

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochRecord {
    /// The newest epoch.
    pub epoch: Epoch,
    /// The newest view.
    pub registered: RegisteredView,
    /// What the node was removing from its copy when it wrote this.
    pub reset: CopyReset,
}

impl EpochRecord {
    fn has_view(&self) -> bool {
        self.registered.view.id.number > 0
    }
}

/// The bytes of the file.
pub fn encode(record: &EpochRecord) -> Vec<u8> {
    let mut writer = Writer::new();
    let version = if record.has_view() { VIEW_FORMAT_VERSION } else { FORMAT_VERSION };
    writer.put(&MAGIC).u32(version).zeros(4).u64(record.epoch.get());
    if record.has_view() {
        writer.u8(record.reset.code());
        record.registered.put(&mut writer);
    }
    let mut bytes = writer.zeros(SEAL_BYTES).done().to_vec();
    seal(&mut bytes);
    bytes
}

/// Reads the bytes of the file.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<EpochRecord, String> {
    let Some(length) = bytes.len().checked_sub(SEAL_BYTES).filter(|_| bytes.len() <= BYTES_MAX) else {
        return Err(format!("an epoch file does not have {} bytes", bytes.len()));
    };
    check_seal(bytes, "epoch")?;
    let not_one = |_| "it is not an epoch file of version 1 or 2".to_owned();
    let mut fields = Reader::new(Bytes::copy_from_slice(&bytes[..length]));
    fields.expect(&MAGIC, "not an epoch file").map_err(not_one)?;
    let version = fields.u32().map_err(not_one)?;
    fields.zeros(4).map_err(not_one)?;
    let epoch = Epoch(fields.u64().map_err(not_one)?);
    let mut record = EpochRecord { epoch, ..EpochRecord::default() };
    if version == VIEW_FORMAT_VERSION {
        let code = fields.u8().map_err(not_one)?;
        record.reset = CopyReset::of_code(code).ok_or("it removes what this program does not know")?;
        record.registered = RegisteredView::read(&mut fields).map_err(not_one)?;
    }
    fields.end().map_err(not_one)?;
    match version {
        FORMAT_VERSION => Ok(record),
        VIEW_FORMAT_VERSION if record.has_view() => Ok(record),
        _ => Err("it is not an epoch file of version 1 or 2".to_owned()),
    }
}

/// What a channel's file says; nothing if there is no file.
///
/// # Errors
/// [`Error::Corrupt`]; errors of the operating system.
pub fn read(directory: &Directory, channel: &str) -> Result<EpochRecord, Error> {
    let path = directory.path().join(channel);
    let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
    if !names.iter().any(|name| name == channel) {
        return Ok(EpochRecord::default());
    }
    let file = directory.open_file(channel, false).map_err(|error| Error::io("opening", &path, error))?;
    let bytes = file.read_at(0, BYTES_MAX.saturating_add(1)).map_err(|error| Error::io("reading", &path, error))?;
    decode(&bytes).map_err(|what| Error::corrupt(&path, 0, None, what))
}

/// Replaces a channel's file. Durable on return.
///
/// # Errors
/// Errors of the operating system; the file then holds the old or the new contents.
pub async fn write(directory: &Directory, channel: &str, record: &EpochRecord) -> Result<(), Error> {
    let path = directory.path().join(channel);
    let io = |doing| {
        let path = path.clone();
        move |error| Error::io(doing, &path, error)
    };
    // No channel's name has a tilde.
    let new = format!("{channel}~new");
    let file = directory.open_file(&new, true).map_err(io("writing"))?;
    file.truncate(0).map_err(io("writing"))?;
    file.write_at(0, &encode(record)).map_err(io("writing"))?;
    file.sync().await.map_err(io("syncing"))?;
    directory.rename(&new, channel).map_err(io("renaming"))?;
    directory.sync().await.map_err(io("syncing the directory of"))
}
