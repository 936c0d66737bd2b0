//! Which log each member has: what a node promised counts only for as long as it has the log in which it noted the promise.
//!
//! A node whose directory was emptied, or replaced by a blank one, would vote again and confirm entries again as if it had never
//! done so, and what a majority had with its help would be lost. So:
//!
//! 1. A node draws an *incarnation*, a random number, when it finds its directory blank, and has it on disk before it says anything.
//!    It is part of the hello of each link.
//! 2. Who is greeted notes the incarnation of the greeting member, on disk, before it takes anything from the link: no vote and no
//!    confirmation counts before its sender's incarnation is noted.
//! 3. A greeting under a noted number with another incarnation is answered with a refusal, and nothing of its link is taken. Who is
//!    refused ends with [`Error::Disowned`]: it is to be removed, and another one added under another number.
//!
//! A log of an earlier release has no incarnation yet: it draws one when it is opened. A node without a directory has the incarnation
//! 0, which is not noted.
//!
//! Left to others: a member that has never heard of the one whose log was lost takes it for new; and an older copy of a log has the
//! incarnation of the newer one.
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

use super::codec::Reader;
use super::fault::{Mutant, mutant};
use crate::Error;

const FILE: &str = "incarnations";
const MAKING: &str = "making-incarnations";
const MAGIC: u64 = u64::from_le_bytes(*b"HdlRftI1");
const HEAD_BYTES: usize = 32;
/// Members that are remembered, those included that were removed; a link of one more is not taken.
const NOTED_MAX: usize = 4096;
const DAMAGED: Error = Error::Corrupt("the incarnations of a Raft group's members are damaged");

/// What one node knows of them.
pub(super) struct Incarnations {
    own: u64,
    kept: Option<DataDirectory>,
    noted: Mutex<BTreeMap<u64, u64>>,
}

fn journal(error: std::io::Error) -> Error {
    Error::Journal(format!("keeping the incarnations of a Raft group's members: {error}"))
}

impl Incarnations {
    /// Of a node without a directory.
    pub fn volatile() -> Incarnations {
        Incarnations { own: 0, kept: None, noted: Mutex::default() }
    }

    /// Those of a directory. Where the log is blank, or of an earlier release, this node draws its own, which is durable on return.
    pub async fn open(kept: DataDirectory, is_blank: bool) -> Result<Incarnations, Error> {
        let names = kept.directory().list().map_err(journal)?;
        let found = match !is_blank && names.iter().any(|name| name == FILE) {
            true => Some(read(kept.directory())?),
            false => None,
        };
        let is_new = found.is_none();
        let (own, noted) = found.unwrap_or_else(|| (rt::random_u64().max(1), BTreeMap::new()));
        let incarnations = Incarnations { own, kept: Some(kept), noted: Mutex::new(noted) };
        if is_new {
            incarnations.write(&BTreeMap::new()).await?;
        }
        Ok(incarnations)
    }

    /// This node's own.
    pub fn own(&self) -> u64 {
        self.own
    }

    /// Whether a member is the one that was heard of under its number, or the first; the first is noted durably on return.
    ///
    /// # Errors
    /// [`Error::Journal`]; [`Error::Busy`] with too many members.
    pub async fn is_known(&self, member: u64, incarnation: u64) -> Result<bool, Error> {
        let mut noted = self.noted.lock().await;
        if let Some(known) = noted.get(&member) {
            return Ok(*known == incarnation || mutant(Mutant::BlankVotes));
        }
        if incarnation == 0 {
            return Ok(true);
        }
        if noted.len() >= NOTED_MAX {
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
        let Some(kept) = &self.kept else { return Ok(()) };
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
        let file = kept.directory().open_file(MAKING, true).map_err(journal)?;
        file.truncate(0).map_err(journal)?;
        file.write_at(0, &bytes).map_err(journal)?;
        file.sync().await.map_err(journal)?;
        kept.directory().rename(MAKING, FILE).map_err(journal)?;
        kept.directory().sync().await.map_err(journal)
    }
}

fn read(directory: &Directory) -> Result<(u64, BTreeMap<u64, u64>), Error> {
    let file = directory.open_file(FILE, false).map_err(journal)?;
    let length = file.len().map_err(journal)? as usize;
    if !(HEAD_BYTES..=HEAD_BYTES + 16 * NOTED_MAX).contains(&length) {
        return Err(DAMAGED);
    }
    decode(file.read_exact_at(0, length).map_err(journal)?)
}

fn decode(bytes: Bytes) -> Result<(u64, BTreeMap<u64, u64>), Error> {
    let sum = bytes.get(8..).map(XxHash3_64::oneshot);
    let mut reader = Reader(bytes);
    if Some(reader.u64()?) != sum || reader.u64()? != MAGIC {
        return Err(DAMAGED);
    }
    let own = reader.u64()?;
    let (count, _) = (reader.u32()? as usize, reader.u32()?);
    let mut noted = BTreeMap::new();
    for _ in 0..count.min(NOTED_MAX) {
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
                async || crate::owned::own(Directory::open("/raft").await.expect("a directory")).await.expect("free");
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
            let own = crate::owned::own(directory.clone()).await.expect("it is free");
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
