//! A watermark per channel: the epoch and height that the channel's data has reached, recorded in a file apart from the
//! data.
//!
//! If a data directory was emptied, or replaced by an earlier copy, its content alone does not show the loss. A process
//! that continues from it breaks its promises: an orderer would cut different blocks at numbers that it has already
//! delivered, and a storage node would give out the same epoch twice. The watermark, in a separate folder, reveals the
//! loss:
//!
//! 1. [`WatermarkFile::open`] reads the watermark; at the first start there is none. A process opens one
//!    [`WatermarkFile`] per channel.
//! 2. Before the owner of the data changes anything, it compares the data with [`WatermarkFile::current`]. If the data
//!    is older, the owner refuses to start, now and every further time, with [`Error::RolledBack`].
//! 3. While it runs, the owner advances the watermark ([`WatermarkFile::advance`]), always after the data is durable.
//!    So the watermark is never ahead of the data.
//!
//! The watermark cannot reveal two losses: that of data written after the last watermark, and a rollback of the whole
//! host, which includes the watermark.
//!
//! ```text
//! offset  bytes  (little-endian)
//!  0       8     "HEDDLEWM"
//!  8       4     version of the format, 1
//! 12       4     0
//! 16       8     epoch
//! 24       8     height
//! 32      32     header hash of the last block below the height
//! 64       8     XXH3 of bytes 0 to 63
//! ```
//!
//! A watermark is written to a second file, synced, and renamed over the first; then the directory is synced.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt;
use std::path::PathBuf;

use base::Epoch;
use base::rt::disk::Directory;
use base::rt::sync::Mutex;
use wire::u64_at;

use crate::blocks::{check_seal, sealed};
use crate::{Error, events};

/// The folder of these files in the folder of a process.
pub const WATERMARKS: &str = "watermarks";
/// The version of the format.
const FORMAT_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"HEDDLEWM";
const BYTES: usize = 72;

/// The epoch and the height that a channel's data has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    /// The newest epoch that has begun; 0 if there are no epochs.
    pub epoch: Epoch,
    /// The number of durable blocks.
    pub height: u64,
    /// Header hash of the last of them; zeroes if there is none.
    pub block_hash: [u8; 32],
}

/// The watermark of one channel.
pub struct WatermarkFile {
    directory: Directory,
    channel: String,
    /// The contents of the file.
    recorded: Mutex<Watermark>,
}

impl Watermark {
    /// The bytes of the file.
    pub fn encode(&self) -> [u8; BYTES] {
        sealed(|writer| {
            writer.put(&MAGIC).u32(FORMAT_VERSION).zeros(4);
            writer.u64(self.epoch.get()).u64(self.height).put(&self.block_hash);
        })
    }

    /// Reads the bytes of the file.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn decode(bytes: &[u8]) -> Result<Watermark, String> {
        let bytes: &[u8; BYTES] =
            bytes.try_into().map_err(|_| format!("a watermark has {BYTES} bytes, this one {}", bytes.len()))?;
        check_seal(bytes, "watermark")?;
        if bytes[..8] != MAGIC || bytes[8..12] != FORMAT_VERSION.to_le_bytes() || bytes[12..16] != [0; 4] {
            return Err("it is not a watermark file of version 1".to_owned());
        }
        let block_hash = *bytes[32..].first_chunk().expect("the length was checked");
        Ok(Watermark { epoch: Epoch(u64_at(bytes, 16)), height: u64_at(bytes, 24), block_hash })
    }
}

impl WatermarkFile {
    /// Reads the watermark of a channel.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged watermark, which is never treated as missing; errors of the operating system.
    pub fn open(directory: Directory, channel: &str) -> Result<WatermarkFile, Error> {
        let path = directory.path().join(channel);
        let noted = match is_there(&directory, channel)? {
            false => Watermark::default(),
            true => {
                let file = directory.open_file(channel, false).map_err(|error| Error::io("opening", &path, error))?;
                let bytes = file.read_at(0, BYTES + 1).map_err(|error| Error::io("reading", &path, error))?;
                Watermark::decode(&bytes).map_err(|what| Error::corrupt(&path, 0, None, what))?
            }
        };
        Ok(WatermarkFile { directory, channel: channel.to_owned(), recorded: Mutex::new(noted) })
    }

    /// Removes the watermark of a channel whose data may go back from now on, as that of a volatile log does. Durable on
    /// return.
    ///
    /// # Errors
    /// Errors of the operating system.
    pub async fn remove(directory: &Directory, channel: &str) -> Result<(), Error> {
        let io = |error| Error::io("removing", &directory.path().join(channel), error);
        if is_there(directory, channel)? {
            directory.remove(channel).map_err(io)?;
            directory.sync().await.map_err(io)?;
        }
        Ok(())
    }

    /// The last recorded watermark, of this process or an earlier one; all zeroes if there is none.
    pub async fn current(&self) -> Watermark {
        *self.recorded.lock().await
    }

    /// The path of the file.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.channel)
    }

    /// The error for data that is older than the watermark.
    pub fn rolled_back(&self, found: impl Into<String>) -> Error {
        Error::RolledBack { found: found.into(), record: self.path() }
    }

    /// Records how far the channel has come, if that is further than the recorded watermark. Durable on return.
    ///
    /// # Errors
    /// Errors of the operating system; the file then holds the old or the new watermark.
    pub async fn advance(&self, now: Watermark) -> Result<(), Error> {
        let mut noted = self.recorded.lock().await;
        let mut next = *noted;
        next.epoch = next.epoch.max(now.epoch);
        if now.height > next.height {
            (next.height, next.block_hash) = (now.height, now.block_hash);
        }
        if next == *noted {
            return Ok(());
        }
        self.write(&next).await?;
        *noted = next;
        Ok(())
    }

    /// Reports that a watermark could not be recorded. The process continues: a later one may succeed.
    pub fn report_missed(&self, error: &dyn fmt::Display) {
        events::WatermarksMissed.add(1);
        tracing::warn!(note = %self.path().display(), %error, "the channel's watermark could not be recorded");
    }

    async fn write(&self, watermark: &Watermark) -> Result<(), Error> {
        let path = self.path();
        let io = |doing| {
            let path = path.clone();
            move |error| Error::io(doing, &path, error)
        };
        // No channel's name has a tilde.
        let new = format!("{}~new", self.channel);
        let file = self.directory.open_file(&new, true).map_err(io("writing"))?;
        file.truncate(0).map_err(io("writing"))?;
        file.write_at(0, &watermark.encode()).map_err(io("writing"))?;
        file.sync().await.map_err(io("syncing"))?;
        self.directory.rename(&new, &self.channel).map_err(io("renaming"))?;
        self.directory.sync().await.map_err(io("syncing the directory of"))
    }
}

fn is_there(directory: &Directory, channel: &str) -> Result<bool, Error> {
    let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
    Ok(names.iter().any(|name| name == channel))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;
    use base::rt::production;

    use super::*;

    fn watermark(epoch: u64, height: u64) -> Watermark {
        Watermark { epoch: Epoch(epoch), height, block_hash: [height as u8; 32] }
    }

    #[test]
    fn a_watermark_has_the_documented_layout() {
        let bytes = watermark(3, 5).encode();
        assert_eq!(&bytes[..16], b"HEDDLEWM\x01\0\0\0\0\0\0\0");
        assert_eq!((bytes[16], bytes[24], bytes[32], bytes[63]), (3, 5, 5, 5));
        assert_eq!(Watermark::decode(&bytes), Ok(watermark(3, 5)));
        for at in 0..BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert!(Watermark::decode(&damaged).is_err(), "byte {at}");
        }
        assert!(Watermark::decode(&bytes[1..]).is_err());
    }

    #[test]
    fn a_note_only_rises_and_is_found_again() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        production::run(async {
            let directory = Directory::open(scratch.path()).await.expect("it exists");
            let open = || WatermarkFile::open(directory.clone(), "alpha");
            let file = open().expect("there is none yet");
            assert_eq!(file.current().await, Watermark::default());
            for now in [watermark(2, 10), watermark(1, 11), watermark(3, 4)] {
                file.advance(now).await.expect("the disk works");
            }
            let highest = Watermark { epoch: Epoch(3), ..watermark(0, 11) };
            assert_eq!((file.current().await, open().expect("it is whole").current().await), (highest, highest));
            let error = file.rolled_back("it has less");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains(&*file.path().to_string_lossy()), "{error}");
            base::durable::write(&file.path(), b"garbage", base::durable::FileAccess::Owner).expect("the disk works");
            assert_eq!(open().err().map(|error| error.kind()), Some(ErrorKind::Corrupt));
            for _ in 0..2 {
                WatermarkFile::remove(&directory, "alpha").await.expect("the disk works");
                assert_eq!(open().expect("there is none any more").current().await, Watermark::default());
            }
        });
    }
}
