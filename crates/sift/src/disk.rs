//! The copy of a group's memory that a persistent memory node keeps on disk: `docs/formats/consensus.md`.
//!
//! ```text
//!  coordinator   write verbs ───────▶ memory of the node               as at any memory node
//!                the same writes ───▶ redo log, synced ───▶ data file  one message for all writes since the last
//! ```
//!
//! The files of the *redo log* are named `journal-…`, the *data file* is named `image`.
//!
//! 1. The coordinator writes into the node's memory by verbs, and sends the same writes in messages, in the same order.
//!    The node appends the writes of a message to the redo log as one record, syncs it, and answers. Until this answer
//!    the node has acknowledged none of these writes ([`crate::coordinator`]). The node writes them to the data file,
//!    without a sync, while it syncs the next record.
//! 2. When the redo log is long, or when the node starts, the node syncs the data file and starts a new redo log. The
//!    first record of a redo log contains the owner of the region; the file gets its name only when that record is on
//!    disk. The previous redo log then becomes the *spare*, which the next redo log overwrites. Overwriting is faster
//!    than a new file: the sync does not have to record a greater length, and does not wait for the writes of other
//!    files.
//! 3. A node that starts replays the redo log over the data file, record by record, up to the first torn record. The
//!    data file then has the state as of the last complete record, and the node's memory starts with that state. The
//!    bytes after a torn record may be payload that a client chose, so they could imitate a record; they may also be
//!    records of the earlier redo log in the same file. Therefore the checksums depend on a *key* that is drawn for
//!    each redo log, is stored in its first record, and is never sent to anyone. Bytes that were written without that
//!    key fail the checksum.
//! 4. A fence is also a record, without writes. So the owner of the region survives a restart of the node, and a second
//!    coordinator of the same term cannot fence the node, not even after a restart.
//! 5. After a fence, the node sets its memory back to the content of the data file ([`NodeDisk::restore_memory`]):
//!    bytes that differ come from verbs whose message did not arrive, and no coordinator counts these verbs as
//!    acknowledged. So the next coordinator reads exactly the content of the disk.
//!
//! Why a node that restarts is like a node that was cut off. Its data file has the content that its memory had at some
//! moment, except for verbs that were never acknowledged: records are whole or absent, and contain all writes of the
//! coordinator in their order. So the node has everything that it ever acknowledged. It may keep its vote, and every
//! argument about nodes that are slow or cut off holds for it.
//!
//! Invariants:
//! * A record is on disk before any of its writes goes to the data file. So the redo log has every write that the data
//!   file loses in a crash.
//! * Data file and redo log together hold everything that the node has acknowledged, and only writes that it received.
//! * Bounded: a record ([`RECORD_BYTES_MAX`]); a redo log ([`REDO_LOG_BYTES`] plus one record). There are two redo logs
//!   at most: the current one and the spare.
//!
//! Left to others: disks that lose synced writes. A redo log that is damaged before its end is detected
//! ([`Error::Corrupt`]); a damaged data file is not.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;

use base::rt;
use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut};
use futures_util::future::join;
use rma::{Host, RegionId};
use twox_hash::XxHash3_64;
use wire::{u32_at, u64_at};

use crate::fault::{Mutant, crash_point, mutant};
use crate::{Error, Term};

/// A redo log of this size is replaced by a new one; that of a small region earlier.
const REDO_LOG_BYTES: u64 = 64 << 20;
/// The redo log of a small region holds this many times the region's bytes.
const REDO_LOG_REGIONS: u64 = 4;
/// Bytes of one record: those of one message.
const RECORD_BYTES_MAX: u64 = rma::MESSAGE_BYTES_MAX as u64;
/// Records start at multiples of this.
const UNIT_BYTES: u64 = 64;
/// Bytes of a record before its list of writes.
const HEAD_BYTES: usize = 64;
const _: () = assert!(
    HEAD_BYTES as u64 == UNIT_BYTES && CHUNK_BYTES.is_multiple_of(UNIT_BYTES),
    "pieces of a file are made of places where records may begin"
);
/// Bytes of one list element: offset and length of a write.
const WRITE_HEAD_BYTES: usize = 16;
/// The version of the files.
const FORMAT_VERSION: u32 = 2;
/// Bytes that are compared or copied at once.
const CHUNK_BYTES: u64 = 256 << 10;
const DATA_FILE: &str = "image";
const REDO_LOG_NEW: &str = "journal-new";
const REDO_LOG_RECYCLED: &str = "journal-spare";

/// The owner of a region, according to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct DurableOwner {
    pub term: Term,
    pub nonce: u64,
    /// The node has a vote.
    pub admitted: bool,
}

/// Writes of one record.
pub(crate) type RegionWrites = [(u64, Bytes)];

/// A group's files.
pub(crate) struct NodeDisk {
    directory: Directory,
    data_file: File,
    redo_log: File,
    /// The number of the redo log's file; `key` is that of its checksums.
    number: u64,
    key: u64,
    redo_log_bytes: u64,
    /// The number of the next record.
    sequence: u64,
    pub(crate) owner: DurableOwner,
    /// Writes of the last record, which are not in the data file yet.
    unwritten: Vec<(u64, Bytes)>,
    region_bytes: u64,
    /// A write failed: what the disk has is unknown until the node restarts.
    failed: bool,
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Disk { doing, reason: error.to_string() }
}

impl NodeDisk {
    /// Opens the files of a directory, or starts with an empty region. On return every replayed record is on disk.
    ///
    /// # Errors
    /// [`Error::NodeDisk`]; [`Error::Corrupt`] for files that no crash leaves; [`Error::Invalid`] for those of another
    /// size.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn open(directory: Directory, region_bytes: u64) -> Result<NodeDisk, Error> {
        let doing = failed("opening a group's files");
        let mut numbers: Vec<u64> = Vec::new();
        for name in directory.list().map_err(&doing)? {
            numbers.extend(name.strip_prefix("journal-").and_then(|number| number.parse::<u64>().ok()));
        }
        let image = directory.open_file(DATA_FILE, true).map_err(&doing)?;
        let Some(number) = numbers.iter().copied().max() else {
            // A crash may have left a data file without a redo log: nothing was acknowledged.
            image.truncate(0).map_err(&doing)?;
            image.truncate(region_bytes).map_err(&doing)?;
            return NodeDisk::start_redo_log(directory, image, 1, 1, DurableOwner::default(), region_bytes).await;
        };
        if image.len().map_err(&doing)? != region_bytes {
            return Err(Error::Invalid(format!(
                "a group's data file has {} bytes, but its region {region_bytes}: start the node with its original sizes",
                image.len().map_err(&doing)?
            )));
        }
        let journal = directory.open_file(&redo_log_name(number), false).map_err(&doing)?;
        let (holder, sequence) = replay(&journal, &image, region_bytes)?;
        let disk = NodeDisk::start_redo_log(directory, image, number + 1, sequence, holder, region_bytes).await?;
        for before in numbers {
            disk.retire(before)?;
        }
        Ok(disk)
    }

    /// Step 2.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn start_redo_log(
        directory: Directory,
        data_file: File,
        number: u64,
        sequence: u64,
        owner: DurableOwner,
        region_bytes: u64,
    ) -> Result<NodeDisk, Error> {
        let doing = failed("starting a redo log");
        if !mutant(Mutant::FollowUnsynced) {
            data_file.sync().await.map_err(&doing)?;
        }
        if directory.list().map_err(&doing)?.iter().any(|name| name == REDO_LOG_RECYCLED) {
            directory.rename(REDO_LOG_RECYCLED, REDO_LOG_NEW).map_err(&doing)?;
        }
        // Old records in it do not count, since their checksums use another key.
        let redo_log = directory.open_file(REDO_LOG_NEW, true).map_err(&doing)?;
        let key = rt::random_u64();
        let record = encode(RecordSeal::First(key), sequence, owner, &[]);
        redo_log.write_at(0, &record).map_err(&doing)?;
        redo_log.sync().await.map_err(&doing)?;
        directory.rename(REDO_LOG_NEW, &redo_log_name(number)).map_err(&doing)?;
        directory.sync().await.map_err(&doing)?;
        let (redo_log_bytes, sequence) = (record.len() as u64, sequence + 1);
        let failed = false;
        Ok(NodeDisk {
            directory,
            data_file,
            redo_log,
            number,
            key,
            redo_log_bytes,
            sequence,
            owner,
            unwritten: Vec::new(),
            region_bytes,
            failed,
        })
    }

    /// A redo log that was replaced becomes the spare. After a crash its old name may come back; the greater number
    /// counts.
    fn retire(&self, number: u64) -> Result<(), Error> {
        self.directory.rename(&redo_log_name(number), REDO_LOG_RECYCLED).map_err(failed("retiring a redo log"))
    }

    /// Whether the group was never used on this node.
    pub(crate) fn is_blank(&self) -> bool {
        self.owner == DurableOwner::default()
    }

    /// Makes a record durable: on return it is on disk. If the future is dropped, or fails, the disk accepts no more
    /// records.
    ///
    /// # Errors
    /// [`Error::Disk`]; [`Error::Corrupt`] for writes beyond the region.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn append(&mut self, owner: DurableOwner, writes: Vec<(u64, Bytes)>) -> Result<(), Error> {
        let region_bytes = self.region_bytes;
        let is_there =
            |(at, bytes): &(u64, Bytes)| at.checked_add(bytes.len() as u64).is_some_and(|until| until <= region_bytes);
        if !writes.iter().all(is_there) {
            return Err(Error::Corrupt("a write beyond the region"));
        }
        if std::mem::replace(&mut self.failed, true) {
            return Err(Error::Disk { doing: "writing a redo log", reason: "an earlier write has failed".to_owned() });
        }
        let doing = failed("writing a redo log");
        let record = encode(RecordSeal::Keyed(self.key), self.sequence, owner, &writes);
        self.redo_log.write_at(self.redo_log_bytes, &record).map_err(&doing)?;
        let syncing = async {
            match mutant(Mutant::AnswerUnsynced) {
                true => Ok(()),
                false => self.redo_log.sync().await,
            }
        };
        // Meanwhile the data file gets the writes of the previous record.
        let writing = async { write_all(&self.data_file, &self.unwritten) };
        let (synced, written) = join(syncing, writing).await;
        synced.and(written).map_err(&doing)?;
        self.unwritten = writes;
        crash_point("consensus.disk.synced").await;
        self.redo_log_bytes += record.len() as u64;
        self.sequence += 1;
        self.owner = owner;
        if self.redo_log_bytes >= REDO_LOG_BYTES.min(REDO_LOG_REGIONS * self.region_bytes) {
            self.checkpoint().await?;
        }
        self.failed = false;
        Ok(())
    }

    /// Starts the next redo log.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn checkpoint(&mut self) -> Result<(), Error> {
        self.write_data_file()?;
        let before = self.number;
        let (directory, image) = (self.directory.clone(), self.data_file.clone());
        let (number, sequence) = (self.number + 1, self.sequence);
        if mutant(Mutant::ReuseEarly) {
            self.retire(before)?;
        }
        *self = NodeDisk::start_redo_log(directory, image, number, sequence, self.owner, self.region_bytes).await?;
        crash_point("consensus.disk.followed").await;
        match mutant(Mutant::ReuseEarly) {
            true => Ok(()),
            false => self.retire(before),
        }
    }

    /// Writes the last record's writes to the data file.
    fn write_data_file(&mut self) -> Result<(), Error> {
        write_all(&self.data_file, &self.unwritten).map_err(failed("writing a data file"))?;
        self.unwritten = Vec::new();
        Ok(())
    }

    /// Loads the data file into the memory of a region that was just registered.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Rma`].
    pub(crate) async fn load(&mut self, host: &dyn Host, region: RegionId) -> Result<(), Error> {
        self.restore_memory(host, region).await.map(drop)
    }

    /// Step 5: sets the memory back to the data file. No coordinator may have access meanwhile. Returns the number of
    /// bytes that differed, counted in whole chunks.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Rma`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn restore_memory(&mut self, host: &dyn Host, region: RegionId) -> Result<u64, Error> {
        let mut different = 0;
        if self.failed {
            return Err(Error::Disk { doing: "reading a data file", reason: "an earlier write has failed".to_owned() });
        }
        self.write_data_file()?;
        for at in (0..self.region_bytes).step_by(CHUNK_BYTES as usize) {
            let length = CHUNK_BYTES.min(self.region_bytes - at) as usize;
            let ours = self.data_file.read_exact_at(at, length).map_err(failed("reading a data file"))?;
            let memory = host.load(region, at, length).map_err(Error::rma("reading a node's own memory"))?;
            if ours[..] != memory[..] {
                host.store(region, at, &ours).map_err(Error::rma("writing a node's own memory"))?;
                different += length as u64;
            }
            rt::yield_now().await;
        }
        Ok(different)
    }
}

/// Writes to a data file, adjacent writes in one call.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn write_all(data_file: &File, writes: &RegionWrites) -> io::Result<()> {
    for run in writes.chunk_by(|(at, bytes), (next, _)| at + bytes.len() as u64 == *next) {
        let parts: Vec<Bytes> = run.iter().map(|(_, bytes)| bytes.clone()).collect();
        data_file.write_vectored_at(run[0].0, &parts)?;
    }
    Ok(())
}

fn redo_log_name(number: u64) -> String {
    format!("journal-{number}")
}

/// The key of a record's checksums.
#[derive(Clone, Copy)]
enum RecordSeal {
    /// No key: the first record of a file, which only this node writes, and which holds the key of the others.
    First(u64),
    Keyed(u64),
}

impl RecordSeal {
    fn checksum(self, bytes: &[u8]) -> u64 {
        let key = match self {
            RecordSeal::Keyed(key) if !mutant(Mutant::Unkeyed) => key,
            _ => 0,
        };
        XxHash3_64::oneshot_with_seed(key, bytes)
    }
}

/// ```text
/// checksum of the rest of the head u64 | bytes u32 | version u32 | sequence u64 | term u64 | holder u64 |
/// admitted u32 | count u32 | checksum of what follows u64 | key u64
/// count × (at u64 | bytes u64) | bytes of each … | zeros to a multiple of 64
/// ```
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn encode(seal: RecordSeal, sequence: u64, owner: DurableOwner, writes: &RegionWrites) -> Bytes {
    let bytes: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
    let length = HEAD_BYTES + writes.len() * WRITE_HEAD_BYTES + bytes;
    let mut record = BytesMut::with_capacity(length.next_multiple_of(UNIT_BYTES as usize));
    record.extend_from_slice(&[0; 8]);
    record.extend_from_slice(&(length as u32).to_le_bytes());
    record.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    for word in [sequence, owner.term.0, owner.nonce] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.extend_from_slice(&u32::from(owner.admitted).to_le_bytes());
    record.extend_from_slice(&(writes.len() as u32).to_le_bytes());
    record.resize(HEAD_BYTES, 0);
    for (at, bytes) in writes {
        record.extend_from_slice(&at.to_le_bytes());
        record.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    writes.iter().for_each(|(_, bytes)| record.extend_from_slice(bytes));
    let of_body = seal.checksum(&record[HEAD_BYTES..]);
    record[48..56].copy_from_slice(&of_body.to_le_bytes());
    if let RecordSeal::First(key) = seal {
        record[56..64].copy_from_slice(&key.to_le_bytes());
    }
    let of_head = seal.checksum(&record[8..HEAD_BYTES]);
    record[..8].copy_from_slice(&of_head.to_le_bytes());
    record.resize(length.next_multiple_of(UNIT_BYTES as usize), 0);
    record.freeze()
}

/// The decoded head of a record.
#[derive(Debug)]
struct RecordHead {
    sequence: u64,
    owner: DurableOwner,
    count: usize,
    /// The checksum of the bytes after the head.
    checksum: u64,
    key: u64,
    /// Bytes without the padding.
    bytes: u64,
}

/// A record, read back.
#[derive(Debug)]
struct RedoRecord {
    head: RecordHead,
    writes: Vec<(u64, Bytes)>,
    /// Bytes in the file, with the padding.
    bytes: u64,
}

/// The head at the start of these bytes, if it is whole.
fn head(bytes: &[u8], seal: RecordSeal) -> Option<RecordHead> {
    let bytes = bytes.get(..HEAD_BYTES)?;
    if u64_at(bytes, 0) != seal.checksum(&bytes[8..]) && !mutant(Mutant::ReplayTorn) {
        return None;
    }
    let holder =
        DurableOwner { term: Term(u64_at(bytes, 24)), nonce: u64_at(bytes, 32), admitted: u32_at(bytes, 40) == 1 };
    let head = RecordHead {
        sequence: u64_at(bytes, 16),
        owner: holder,
        count: u32_at(bytes, 44) as usize,
        checksum: u64_at(bytes, 48),
        key: u64_at(bytes, 56),
        bytes: u64::from(u32_at(bytes, 8)),
    };
    let is_good = u32_at(bytes, 12) == FORMAT_VERSION && (HEAD_BYTES as u64..=RECORD_BYTES_MAX).contains(&head.bytes);
    is_good.then_some(head)
}

/// The record at an offset of a redo log of `journal_bytes`; `None` where there is no whole record.
fn read(redo_log: &File, offset: u64, redo_log_bytes: u64, seal: RecordSeal) -> io::Result<Option<RedoRecord>> {
    if redo_log_bytes.saturating_sub(offset) < HEAD_BYTES as u64 {
        return Ok(None);
    }
    let found = head(&redo_log.read_exact_at(offset, HEAD_BYTES)?, seal);
    let Some(head) = found.filter(|head| head.bytes <= redo_log_bytes.saturating_sub(offset)) else { return Ok(None) };
    let (Some(at), Some(length)) =
        (offset.checked_add(HEAD_BYTES as u64), (head.bytes as usize).checked_sub(HEAD_BYTES))
    else {
        return Ok(None);
    };
    let body = redo_log.read_exact_at(at, length)?;
    Ok(decode(head, &body, seal))
}

/// Decodes the bytes after a head.
fn decode(head: RecordHead, body: &Bytes, seal: RecordSeal) -> Option<RedoRecord> {
    if head.checksum != seal.checksum(body) && !mutant(Mutant::ReplayTorn) {
        return None;
    }
    let mut from = head.count.checked_mul(WRITE_HEAD_BYTES)?;
    let mut writes = Vec::new();
    for place in 0..head.count {
        let place = body.get(place.checked_mul(WRITE_HEAD_BYTES)?..)?.get(..WRITE_HEAD_BYTES)?;
        let until = from.checked_add(usize::try_from(u64_at(place, 8)).ok()?)?;
        if until > body.len() {
            return None;
        }
        writes.push((u64_at(place, 0), body.slice(from..until)));
        from = until;
    }
    let bytes = head.bytes.next_multiple_of(UNIT_BYTES);
    (from == body.len()).then_some(RedoRecord { head, writes, bytes })
}

/// Step 3; returns the owner of the region, and the number of the next record.
fn replay(redo_log: &File, data_file: &File, region_bytes: u64) -> Result<(DurableOwner, u64), Error> {
    let doing = failed("replaying a redo log");
    let journal_bytes = redo_log.len().map_err(&doing)?;
    let first = read(redo_log, 0, journal_bytes, RecordSeal::First(0)).map_err(&doing)?;
    let first = first.ok_or(Error::Corrupt("a redo log has no first record: its disk has lost synced writes"))?;
    let seal = RecordSeal::Keyed(first.head.key);
    let (mut holder, mut sequence, mut offset) = (first.head.owner, first.head.sequence.saturating_add(1), first.bytes);
    while let Some(record) = read(redo_log, offset, journal_bytes, seal).map_err(&doing)? {
        if record.head.sequence != sequence {
            break;
        }
        for (at, bytes) in &record.writes {
            if at.checked_add(bytes.len() as u64).is_none_or(|until| until > region_bytes) {
                return Err(Error::Corrupt("a record of a redo log writes beyond the region"));
            }
            data_file.write_at(*at, bytes).map_err(&doing)?;
        }
        (holder, sequence) = (record.head.owner, record.head.sequence.saturating_add(1));
        offset = offset.saturating_add(record.bytes);
    }
    // After a record that a crash has torn there is no later one: each record is synced before the next is started.
    for at in (offset.saturating_add(UNIT_BYTES)..journal_bytes).step_by(CHUNK_BYTES as usize) {
        let piece = redo_log.read_at(at, CHUNK_BYTES as usize).map_err(&doing)?;
        let mut heads = piece.chunks_exact(HEAD_BYTES).filter_map(|bytes| head(bytes, seal));
        if heads.any(|head| head.sequence > sequence) && !mutant(Mutant::ReplayTorn) {
            return Err(Error::Corrupt("a redo log is damaged before its end: its disk has lost synced writes"));
        }
    }
    Ok((holder, sequence))
}

#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use base::rt::simulation::{Sim, Simulation};
    use proptest::prelude::*;

    use super::*;
    use crate::fault::plant;

    const REGION: u64 = 8192;

    fn holder(term: u64) -> DurableOwner {
        DurableOwner { term: Term(term), nonce: 7, admitted: true }
    }

    #[test]
    fn records_have_the_documented_layout() {
        let writes = [(64, Bytes::from_static(b"abc")), (8, Bytes::from_static(b"d"))];
        let record = encode(RecordSeal::Keyed(9), 3, holder(5), &writes);
        let mut golden = Vec::new();
        [100_u32, 2].iter().for_each(|half| golden.extend(half.to_le_bytes()));
        [3_u64, 5, 7].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        [1_u32, 2].iter().for_each(|half| golden.extend(half.to_le_bytes()));
        [XxHash3_64::oneshot_with_seed(9, &record[64..100]), 0]
            .iter()
            .for_each(|word| golden.extend(word.to_le_bytes()));
        [64_u64, 3, 8, 1].iter().for_each(|word| golden.extend(word.to_le_bytes()));
        golden.extend(b"abcd");
        golden.resize(120, 0);
        assert_eq!(record[8..], golden);
        assert_eq!(u64_at(&record, 0), XxHash3_64::oneshot_with_seed(9, &record[8..64]), "of the rest of the head");
        let decoded = |seal| decode(head(&record, seal)?, &record.slice(64..100), seal);
        let back = decoded(RecordSeal::Keyed(9)).expect("it was just encoded");
        assert_eq!((back.head.sequence, back.head.owner, back.writes.len(), back.bytes), (3, holder(5), 2, 128));
        assert!(decoded(RecordSeal::Keyed(8)).is_none(), "with another key it is no record");
        let first = encode(RecordSeal::First(9), 1, DurableOwner::default(), &[]);
        assert_eq!(u64_at(&first, 0), XxHash3_64::oneshot(&first[8..64]), "of the first nobody knows the key yet");
        assert_eq!(head(&first, RecordSeal::First(0)).map(|head| head.key), Some(9));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), count in 0_u32..9, is_right: bool) {
            if bytes.len() >= HEAD_BYTES {
                let length = bytes.len() as u32;
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                bytes[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
                bytes[44..48].copy_from_slice(&count.to_le_bytes());
                if is_right {
                    let of_body = XxHash3_64::oneshot(&bytes[64..]);
                    bytes[48..56].copy_from_slice(&of_body.to_le_bytes());
                    let of_head = XxHash3_64::oneshot(&bytes[8..64]);
                    bytes[..8].copy_from_slice(&of_head.to_le_bytes());
                }
            }
            let bytes = Bytes::from(bytes);
            if let Some(head) = head(&bytes, RecordSeal::Keyed(0)) {
                let _ = decode(head, &bytes.slice(HEAD_BYTES..), RecordSeal::Keyed(0));
            }
        }
    }

    async fn opened() -> Result<NodeDisk, Error> {
        let directory = Directory::open("/memory/group-1").await.expect("a directory can be made");
        NodeDisk::open(directory, REGION).await
    }

    fn image(disk: &NodeDisk) -> Bytes {
        disk.data_file.read_exact_at(0, REGION as usize).expect("it is there")
    }

    /// Appends until a crash, several times. Afterwards every appended record is there, and of the unfinished one all
    /// or nothing.
    async fn append_until_crashes(sim: Sim) {
        let node = sim.node("memory");
        let mut expected = vec![vec![0; REGION as usize]];
        let mut appended = 0;
        for round in 0..5 {
            let opening = node.spawn(async move { opened().await.map(|disk| (image(&disk), disk.owner)) });
            let (found, held) = opening.await.expect("it does not crash").expect("no crash damages it");
            // Two records may leave the same data file; the owner distinguishes them.
            let which = held.term.0 as usize;
            assert!(which >= appended, "lost: record {appended} was appended, {which} is there");
            assert!(expected.get(which).is_some_and(|image| image[..] == found[..]), "torn: it is not that of {which}");
            expected.truncate(which + 1);
            let mut rng = sim.rng();
            let mut todo = Vec::new();
            for _ in 0..rng.index(9) + 1 {
                let mut next = expected.last().expect("there is one").clone();
                let mut writes = Vec::new();
                for _ in 0..rng.index(4) + 1 {
                    let at = rng.index(REGION as usize - 2000);
                    let bytes = vec![rng.below(256) as u8; 1 + rng.index(1999)];
                    next[at..at + bytes.len()].copy_from_slice(&bytes);
                    writes.push((at as u64, Bytes::from(bytes)));
                }
                expected.push(next);
                todo.push(((expected.len() - 1) as u64, writes));
            }
            let done = Arc::new(AtomicUsize::new(which));
            let count = Arc::clone(&done);
            drop(node.spawn(async move {
                let mut disk = opened().await.expect("no crash damages it");
                for (term, writes) in todo {
                    disk.append(holder(term), writes).await.expect("the disk works");
                    count.store(term as usize, Ordering::Relaxed);
                    if round % 2 == 1 && term % 3 == 0 {
                        disk.checkpoint().await.expect("the disk works");
                    }
                }
            }));
            rt::sleep(rng.duration(&(Duration::ZERO..Duration::from_millis(40)))).await;
            node.crash();
            node.restart();
            appended = done.load(Ordering::Relaxed);
        }
    }

    #[test]
    fn what_was_appended_outlives_a_power_loss_and_nothing_is_torn() {
        for seed in 0..300 {
            Simulation::new(seed).run(append_until_crashes).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
        }
    }

    #[test]
    fn planted_mistakes_are_caught() {
        for planted in [Mutant::AnswerUnsynced, Mutant::ReplayTorn, Mutant::FollowUnsynced, Mutant::ReuseEarly] {
            plant(planted);
            let caught = (0..300).find_map(|seed| Simulation::new(seed).run(append_until_crashes).err());
            plant(Mutant::None);
            let reason = caught.unwrap_or_else(|| panic!("no seed catches {planted:?}")).reason.to_string();
            println!("{planted:?}: {reason}");
        }
    }

    #[test]
    fn a_journal_that_is_damaged_before_its_end_is_found_out() {
        let outcome = Simulation::new(1).run(|sim| async move {
            let damaging = sim.node("memory").spawn(async move {
                let mut disk = opened().await.expect("nothing is there");
                for term in 1..6 {
                    disk.append(holder(term), vec![(0, Bytes::from(vec![1; 700]))]).await.expect("the disk works");
                }
                let (journal, before) = (disk.redo_log.clone(), disk.redo_log_bytes);
                drop(disk);
                journal.write_at(before - 700, &[9]).expect("the disk works");
                assert!(opened().await.is_ok(), "the last one may be torn");
                let mut disk = opened().await.expect("it was whole");
                for term in 1..6 {
                    disk.append(holder(term), vec![(0, Bytes::from(vec![1; 700]))]).await.expect("the disk works");
                }
                disk.redo_log.write_at(1000, &[9]).expect("the disk works");
                drop(disk);
                assert!(matches!(opened().await, Err(Error::Corrupt(_))));
            });
            damaging.await.expect("it does not crash");
            0
        });
        outcome.expect("all is as it should be");
    }

    /// A client writes forged records, one at each offset where a record may start; the record that holds them is torn.
    async fn forge(sim: Sim) -> u64 {
        let forging = sim.node("memory").spawn(async move {
            let mut disk = opened().await.expect("nothing is there");
            disk.append(holder(1), vec![(0, Bytes::from_static(b"before"))]).await.expect("the disk works");
            let mut value = Vec::new();
            for sequence in 10..20 {
                value.extend_from_slice(&encode(RecordSeal::Keyed(0), sequence, holder(9), &[]));
            }
            // The forged records start where records may start.
            let fill = HEAD_BYTES - WRITE_HEAD_BYTES;
            value.splice(..0, vec![0; fill]);
            let before = disk.redo_log_bytes;
            disk.append(holder(1), vec![(0, Bytes::from(value))]).await.expect("the disk works");
            disk.redo_log.write_at(before, &[0; HEAD_BYTES]).expect("the disk works");
            drop(disk);
            let disk = opened().await.unwrap_or_else(|error| panic!("report: {error}"));
            assert_eq!(disk.owner, holder(1));
        });
        forging.await.expect("it does not crash");
        1
    }

    #[test]
    fn bytes_that_a_client_chose_are_no_record() {
        plant(Mutant::Unkeyed);
        let outcome = Simulation::new(1).run(forge);
        plant(Mutant::None);
        let reason = outcome.expect_err("without a key they are").reason.to_string();
        assert!(reason.contains("report: corrupt"), "{reason}");
        Simulation::new(1).run(forge).expect("the torn record is gone, and nothing else");
    }
}
