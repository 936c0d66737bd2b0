//! The file in which a storage node keeps the newest epoch of a channel.
//!
//! ```text
//! offset  bytes  (little-endian)
//!  0       8     "HEDDLEEP"
//!  8       4     version of the format, 1
//! 12       4     0
//! 16       8     epoch
//! 24       8     XXH3 of bytes 0 to 23
//! ```
//!
//! A new epoch is written to a second file, synced, and renamed over the first; then the directory is synced. After a
//! crash the file holds the old or the new epoch. A damaged file is an error. If it counted as missing, an older
//! primary could write again.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Epoch;
use base::rt::disk::Directory;

use crate::Error;
use crate::blocks::{check_seal, sealed};

/// The version of the format.
pub const FORMAT_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"HEDDLEEP";
const BYTES: usize = 32;

/// The bytes of the file.
pub fn encode(epoch: Epoch) -> [u8; BYTES] {
    sealed(|writer| {
        writer.put(&MAGIC).u32(FORMAT_VERSION).zeros(4).u64(epoch.get());
    })
}

/// Reads the bytes of the file.
///
/// # Errors
/// What is wrong with them.
pub fn decode(bytes: &[u8]) -> Result<Epoch, String> {
    if bytes.len() != BYTES {
        return Err(format!("an epoch file has {BYTES} bytes, this one {}", bytes.len()));
    }
    check_seal(bytes, "epoch")?;
    if bytes[..8] != MAGIC || bytes[8..12] != FORMAT_VERSION.to_le_bytes() {
        return Err("it is not an epoch file of version 1".to_owned());
    }
    Ok(Epoch(wire::u64_at(bytes, 16)))
}

/// The epoch in a channel's file; 0 if there is no file.
///
/// # Errors
/// [`Error::Corrupt`]; errors of the operating system.
pub fn read(directory: &Directory, channel: &str) -> Result<Epoch, Error> {
    let path = directory.path().join(channel);
    let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
    if !names.iter().any(|name| name == channel) {
        return Ok(Epoch(0));
    }
    let file = directory.open_file(channel, false).map_err(|error| Error::io("opening", &path, error))?;
    let bytes = file.read_at(0, BYTES + 1).map_err(|error| Error::io("reading", &path, error))?;
    decode(&bytes).map_err(|what| Error::corrupt(&path, 0, None, what))
}

/// Replaces a channel's epoch. Durable on return.
///
/// # Errors
/// Errors of the operating system; the file then holds the old or the new epoch.
pub async fn write(directory: &Directory, channel: &str, epoch: Epoch) -> Result<(), Error> {
    let path = directory.path().join(channel);
    let io = |doing| {
        let path = path.clone();
        move |error| Error::io(doing, &path, error)
    };
    // No channel's name has a tilde.
    let new = format!("{channel}~new");
    let file = directory.open_file(&new, true).map_err(io("writing"))?;
    file.truncate(0).map_err(io("writing"))?;
    file.write_at(0, &encode(epoch)).map_err(io("writing"))?;
    file.sync().await.map_err(io("syncing"))?;
    directory.rename(&new, channel).map_err(io("renaming"))?;
    directory.sync().await.map_err(io("syncing the directory of"))
}
