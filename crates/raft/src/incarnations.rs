//! Detects members that have lost their log: a node's votes and confirmations count only as long as it has the log in
//! which it recorded them.
//!
//! Suppose that a node's directory was emptied or replaced by a blank one. The node could vote a second time in a term,
//! and would no longer have entries that it had confirmed, so committed entries could be lost. Therefore:
//!
//! 1. A node that finds its directory blank draws an *incarnation*, a random number, and writes it to disk before it
//!    sends anything. The hello of each link contains the sender's incarnation.
//! 2. The receiver of a hello records the sender's incarnation on disk before it accepts anything from the link. So
//!    every vote and confirmation that counts is from a sender whose incarnation is recorded.
//! 3. If the incarnation in a hello differs from the one that is recorded for the sender's number, the receiver answers
//!    with a rejection and accepts nothing from the link. The rejected node ends with [`Error::Disowned`]. It must be
//!    removed, and a new node added under another number.
//!
//! A log of an earlier release has no incarnation; the node draws one when it opens such a log. A node without a
//! directory has the incarnation 0, which is not recorded.
//!
//! Two cases are not detected, and are left to others. A member that never heard of a node before the node lost its log
//! takes the node for a new one. An older copy of a log, such as a backup, has the same incarnation as the newer log.
//!
//! ```text
//! incarnations  checksum u64 | magic u64 | own u64 | count u32 | 0 u32 | number u64, incarnation u64 of each member
//! ```
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;

use base::bytes::BufMut as _;
use base::rt;
use base::rt::disk::Directory;
use base::rt::sync::Mutex;
use base::{Bytes, BytesMut};
use storage::DataDirectory;
use twox_hash::XxHash3_64;
use wire::Reader;

use super::fault::{Mutant, mutant};
use crate::Error;

const FILE: &str = "incarnations";
const TEMPORARY_FILE: &str = "making-incarnations";
const MAGIC: u64 = u64::from_le_bytes(*b"HdlRftI1");
const HEAD_BYTES: usize = 32;
/// Members that are remembered, including removed ones; a link of one more is rejected.
const KNOWN_MAX: usize = 4096;
const DAMAGED: Error = Error::Corrupt("the incarnations of a Raft group's members are damaged");

/// The incarnations that one node knows.
pub(super) struct Incarnations {
    own: u64,
    directory: Option<DataDirectory>,
    known: Mutex<BTreeMap<u64, u64>>,
}

fn log_error(error: std::io::Error) -> Error {
    Error::LogStore(format!("keeping the incarnations of a Raft group's members: {error}"))
}

impl Incarnations {
    /// For a node without a directory.
    pub fn volatile() -> Incarnations {
        Incarnations { own: 0, directory: None, known: Mutex::default() }
    }

    /// The incarnations of a directory. Where the log is blank, or of an earlier release, this node draws its own, which is
    /// durable on return.
    pub async fn open(kept: DataDirectory, is_blank: bool) -> Result<Incarnations, Error> {
        let names = kept.directory().list().map_err(log_error)?;
        let found = match !is_blank && names.iter().any(|name| name == FILE) {
            true => Some(read(kept.directory())?),
            false => None,
        };
        let is_new = found.is_none();
        let (own, noted) = found.unwrap_or_else(|| (rt::random_u64().max(1), BTreeMap::new()));
        let incarnations = Incarnations { own, directory: Some(kept), known: Mutex::new(noted) };
        if is_new {
            incarnations.write(&BTreeMap::new()).await?;
        }
        Ok(incarnations)
    }

    /// The incarnation of this node.
    pub fn own(&self) -> u64 {
        self.own
    }

    /// Whether a member has the incarnation that is recorded under its number, or none is recorded: then it is recorded,
    /// durably on return.
    ///
    /// # Errors
    /// [`Error::LogStore`]; [`Error::Busy`] with too many members.
    pub async fn is_known(&self, member: u64, incarnation: u64) -> Result<bool, Error> {
        let mut noted = self.known.lock().await;
        if let Some(known) = noted.get(&member) {
            return Ok(*known == incarnation || mutant(Mutant::BlankVotes));
        }
        if incarnation == 0 {
            return Ok(true);
        }
        if noted.len() >= KNOWN_MAX {
            return Err(Error::Busy);
        }
        let mut more = noted.clone();
        more.insert(member, incarnation);
        self.write(&more).await?;
        *noted = more;
        Ok(true)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn write(&self, noted: &BTreeMap<u64, u64>) -> Result<(), Error> {
        let Some(kept) = &self.directory else { return Ok(()) };
        let mut bytes = BytesMut::with_capacity(HEAD_BYTES + 16 * noted.len());
        for word in [0, MAGIC, self.own] {
            bytes.put_u64_le(word);
        }
        bytes.put_u32_le(u32::try_from(noted.len()).expect("they are bounded"));
        bytes.put_u32_le(0);
        for (member, incarnation) in noted {
            bytes.put_u64_le(*member);
            bytes.put_u64_le(*incarnation);
        }
        let checksum = XxHash3_64::oneshot(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        let file = kept.directory().open_file(TEMPORARY_FILE, true).map_err(log_error)?;
        file.truncate(0).map_err(log_error)?;
        file.write_at(0, &bytes).map_err(log_error)?;
        file.sync().await.map_err(log_error)?;
        kept.directory().rename(TEMPORARY_FILE, FILE).map_err(log_error)?;
        kept.directory().sync().await.map_err(log_error)
    }
}

fn read(directory: &Directory) -> Result<(u64, BTreeMap<u64, u64>), Error> {
    let file = directory.open_file(FILE, false).map_err(log_error)?;
    let length = file.len().map_err(log_error)? as usize;
    if !(HEAD_BYTES..=HEAD_BYTES + 16 * KNOWN_MAX).contains(&length) {
        return Err(DAMAGED);
    }
    decode(file.read_exact_at(0, length).map_err(log_error)?)
}

fn decode(bytes: Bytes) -> Result<(u64, BTreeMap<u64, u64>), Error> {
    let sum = bytes.get(8..).map(XxHash3_64::oneshot);
    let mut reader = Reader::new(bytes);
    if Some(reader.u64()?) != sum || reader.u64()? != MAGIC {
        return Err(DAMAGED);
    }
    let own = reader.u64()?;
    let (count, _) = (reader.u32()? as usize, reader.u32()?);
    let mut noted = BTreeMap::new();
    for _ in 0..count.min(KNOWN_MAX) {
        noted.insert(reader.u64()?, reader.u64()?);
    }
    reader.end()?;
    Ok((own, noted))
}

#[cfg(test)]
mod tests {
    use base::rt::simulation::Simulation;

    use super::*;

    #[test]
    fn incarnations_are_kept_and_a_blank_directory_has_another() {
        let scenario = |_| async {
            let own =
                async || DataDirectory::lock(Directory::open("/raft").await.expect("a directory")).await.expect("free");
            let first = Incarnations::open(own().await, true).await.expect("it is blank");
            let number = first.own();
            assert!(number != 0);
            assert_eq!(first.is_known(2, 7).await, Ok(true));
            assert_eq!(first.is_known(3, 0).await, Ok(true));
            drop(first);
            let again = Incarnations::open(own().await, false).await.expect("it is whole");
            assert_eq!(again.own(), number);
            assert_eq!(again.is_known(2, 7).await, Ok(true));
            assert_eq!(again.is_known(2, 8).await, Ok(false));
            assert_eq!(again.is_known(2, 0).await, Ok(false));
            assert_eq!(again.is_known(3, 9).await, Ok(true));
            drop(again);
            let blank = Incarnations::open(own().await, true).await.expect("its log is gone");
            assert_ne!(blank.own(), number);
            1
        };
        Simulation::new(1).run(scenario).expect("it holds");
    }

    #[test]
    fn damaged_incarnations_are_refused() {
        let scenario = |_| async {
            let directory = Directory::open("/raft").await.expect("a directory");
            let own = DataDirectory::lock(directory.clone()).await.expect("it is free");
            let known = Incarnations::open(own, true).await.expect("it is blank");
            assert_eq!(known.is_known(2, 7).await, Ok(true));
            drop(known);
            let file = directory.open_file(FILE, false).expect("it is there");
            let bytes = file.read_exact_at(0, HEAD_BYTES + 16).expect("one member is noted");
            for at in 0..bytes.len() {
                let mut damaged = BytesMut::from(&bytes[..]);
                damaged[at] ^= 1;
                assert_eq!(decode(damaged.freeze()), Err(DAMAGED), "byte {at}");
                assert!(decode(bytes.slice(..at)).is_err(), "{at} bytes");
            }
            1
        };
        Simulation::new(1).run(scenario).expect("it holds");
    }
}
