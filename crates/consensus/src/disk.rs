//! What a persistent memory node keeps of a group on its disk: `docs/formats/consensus.md`.
//!
//! ```text
//!  coordinator   write verbs ───────▶ memory of the node            as at any memory node
//!                the same writes ───▶ journal, synced ───▶ image    one message for all since the last
//! ```
//!
//! 1. The coordinator writes into the node's memory by verbs, and sends the same writes in messages, in the same order. The node
//!    appends those of a message to the *journal* as one record, syncs it, and answers. Nothing counts as acknowledged by this
//!    node before ([`crate::coordinator`]). The writes go to the *image*, which is not synced, while the next record is.
//! 2. When the journal is long, or the node begins, the image is synced and a new journal begun. Its first record says whose the
//!    region is; the file gets its name only when that record is on disk. The journal before becomes the *spare* afterwards, over which
//!    the next one is written: a sync of bytes that only replace others has no file to lengthen, and waits for nobody else's writes.
//! 3. A node that begins replays the journal over the image, record by record, until one is torn. What it then has is what its
//!    last record left; its memory begins as that. Behind a tear may lie any bytes of writes, which clients chose. So checksums are made
//!    with a *key* that is drawn for each journal, stands in its first record, and is told to nobody: bytes that somebody chose
//!    without it are no record, and neither are those of the journal that the file was before.
//! 4. A fence is a record too, without writes: who holds the region survives the node, so that no two coordinators of one term
//!    can have the same node, before and after its end.
//! 5. Behind a fence, memory that is beyond the image is set back to it ([`Disk::set_back`]): verbs that arrived and whose
//!    message did not. Nobody counts on those. So the next coordinator reads what the disk has.
//!
//! Why a node that comes back is as one that was cut off. Its image is what its memory was at some moment, but for verbs that
//! were never acknowledged: records are whole or not there, and have all that the coordinator wrote, in its order. It has all that
//! it has ever acknowledged. So it may keep its vote, and every argument about nodes that are slow or cut off holds for it.
//!
//! Invariants:
//! * A record is on disk before any of its writes goes to the image, so that whatever part of an image a crash keeps, the journal
//!   has the rest.
//! * Image and journal together are what the node has acknowledged, and nothing that it has not been told.
//! * Bounded: the journal ([`JOURNAL_BYTES`] and one record), of which there are two, and a record ([`RECORD_BYTES_MAX`]).
//!
//! Left to others: disks that lose what they have synced. A journal that is damaged before its end is found out
//! ([`Error::Corrupt`]); an image that is damaged is not.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::io;

use base::rt;
use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut};
use futures_util::future::join;
use rma::{Host, RegionId};
use twox_hash::XxHash3_64;

use crate::fault::{Mutant, crash_point, mutant};
use crate::layout::{half, word};
use crate::{Error, Term};

/// A journal of so many bytes is followed by a new one; that of a small region earlier.
const JOURNAL_BYTES: u64 = 64 << 20;
/// Regions that a small one's journal has room for.
const JOURNAL_REGIONS: u64 = 4;
/// Bytes of one record: those of a message.
const RECORD_BYTES_MAX: u64 = rma::MESSAGE_BYTES_MAX as u64;
/// Records begin at multiples of this.
const UNIT_BYTES: u64 = 64;
/// Bytes before a record's places.
const HEAD_BYTES: usize = 64;
const _: () = assert!(
    HEAD_BYTES as u64 == UNIT_BYTES && PIECE_BYTES.is_multiple_of(UNIT_BYTES),
    "pieces of a file are made of places where records may begin"
);
/// Bytes of a place: where, how many.
const PLACE_BYTES: usize = 16;
/// The version of the files.
const VERSION: u32 = 2;
/// Bytes that are compared or copied at once.
const PIECE_BYTES: u64 = 256 << 10;
const IMAGE: &str = "image";
const NEW: &str = "journal-new";
const SPARE: &str = "journal-spare";

/// Who has a region, as far as the disk knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Holder {
    pub term: Term,
    pub holder: u64,
    /// The node has a vote.
    pub admitted: bool,
}

/// Writes of one record.
pub(crate) type Writes = [(u64, Bytes)];

/// A group's files.
pub(crate) struct Disk {
    directory: Directory,
    image: File,
    journal: File,
    /// Of the journal's file, and of its checksums.
    number: u64,
    key: u64,
    journal_bytes: u64,
    /// Of the next record.
    sequence: u64,
    pub(crate) holder: Holder,
    /// Of the last record, and not in the image yet.
    unwritten: Vec<(u64, Bytes)>,
    region_bytes: u64,
    /// Something failed: nobody knows what the disk has, until the node begins anew.
    failed: bool,
}

fn failed(doing: &'static str) -> impl Fn(io::Error) -> Error {
    move |error| Error::Disk { doing, reason: error.to_string() }
}

impl Disk {
    /// Opens what a directory has, or begins with nothing. On return all that was replayed is on disk.
    ///
    /// # Errors
    /// [`Error::Disk`]; [`Error::Corrupt`] for files that no crash leaves; [`Error::Invalid`] for those of another size.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn open(directory: Directory, region_bytes: u64) -> Result<Disk, Error> {
        let doing = failed("opening a group's files");
        let mut numbers: Vec<u64> = Vec::new();
        for name in directory.list().map_err(&doing)? {
            numbers.extend(name.strip_prefix("journal-").and_then(|number| number.parse::<u64>().ok()));
        }
        let image = directory.open_file(IMAGE, true).map_err(&doing)?;
        let Some(number) = numbers.iter().copied().max() else {
            // A crash may have left an image without a journal: nothing was acknowledged.
            image.truncate(0).map_err(&doing)?;
            image.truncate(region_bytes).map_err(&doing)?;
            return Disk::begin(directory, image, 1, 1, Holder::default(), region_bytes).await;
        };
        if image.len().map_err(&doing)? != region_bytes {
            return Err(Error::Invalid(format!(
                "a group's image of {} bytes where its region has {region_bytes}: the node was made for other sizes",
                image.len().map_err(&doing)?
            )));
        }
        let journal = directory.open_file(&name_of(number), false).map_err(&doing)?;
        let (holder, sequence) = replay(&journal, &image, region_bytes)?;
        let disk = Disk::begin(directory, image, number + 1, sequence, holder, region_bytes).await?;
        for before in numbers {
            disk.retire(before)?;
        }
        Ok(disk)
    }

    /// Step 2.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn begin(
        directory: Directory,
        image: File,
        number: u64,
        sequence: u64,
        holder: Holder,
        region_bytes: u64,
    ) -> Result<Disk, Error> {
        let doing = failed("beginning a journal");
        if !mutant(Mutant::FollowUnsynced) {
            image.sync().await.map_err(&doing)?;
        }
        if directory.list().map_err(&doing)?.iter().any(|name| name == SPARE) {
            directory.rename(SPARE, NEW).map_err(&doing)?;
        }
        // Whatever it is full of, it is of another key.
        let journal = directory.open_file(NEW, true).map_err(&doing)?;
        let key = rt::random_u64();
        let record = encode(Seal::First(key), sequence, holder, &[]);
        journal.write_at(0, &record).map_err(&doing)?;
        journal.sync().await.map_err(&doing)?;
        directory.rename(NEW, &name_of(number)).map_err(&doing)?;
        directory.sync().await.map_err(&doing)?;
        let (journal_bytes, sequence) = (record.len() as u64, sequence + 1);
        let failed = false;
        Ok(Disk {
            directory,
            image,
            journal,
            number,
            key,
            journal_bytes,
            sequence,
            holder,
            unwritten: Vec::new(),
            region_bytes,
            failed,
        })
    }

    /// A journal that another has followed is the spare. Its name may come back in a crash; the greater number counts.
    fn retire(&self, number: u64) -> Result<(), Error> {
        self.directory.rename(&name_of(number), SPARE).map_err(failed("giving up a journal"))
    }

    /// Whether the group was ever used here.
    pub(crate) fn is_blank(&self) -> bool {
        self.holder == Holder::default()
    }

    /// Makes a record durable: on return it is on disk. When the future is dropped, or fails, the disk takes no more.
    ///
    /// # Errors
    /// [`Error::Disk`]; [`Error::Corrupt`] for writes beyond the region.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn append(&mut self, holder: Holder, writes: Vec<(u64, Bytes)>) -> Result<(), Error> {
        let region_bytes = self.region_bytes;
        let is_there =
            |(at, bytes): &(u64, Bytes)| at.checked_add(bytes.len() as u64).is_some_and(|until| until <= region_bytes);
        if !writes.iter().all(is_there) {
            return Err(Error::Corrupt("a write beyond the region"));
        }
        if std::mem::replace(&mut self.failed, true) {
            return Err(Error::Disk { doing: "writing a journal", reason: "an earlier write has failed".to_owned() });
        }
        let doing = failed("writing a journal");
        let record = encode(Seal::Keyed(self.key), self.sequence, holder, &writes);
        self.journal.write_at(self.journal_bytes, &record).map_err(&doing)?;
        let syncing = async {
            match mutant(Mutant::AnswerUnsynced) {
                true => Ok(()),
                false => self.journal.sync().await,
            }
        };
        // What the image gets meanwhile is of the record before.
        let writing = async { write_all(&self.image, &self.unwritten) };
        let (synced, written) = join(syncing, writing).await;
        synced.and(written).map_err(&doing)?;
        self.unwritten = writes;
        crash_point("consensus.disk.synced").await;
        self.journal_bytes += record.len() as u64;
        self.sequence += 1;
        self.holder = holder;
        if self.journal_bytes >= JOURNAL_BYTES.min(JOURNAL_REGIONS * self.region_bytes) {
            self.follow().await?;
        }
        self.failed = false;
        Ok(())
    }

    /// Another journal takes over.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    async fn follow(&mut self) -> Result<(), Error> {
        self.write_image()?;
        let before = self.number;
        let (directory, image) = (self.directory.clone(), self.image.clone());
        let (number, sequence) = (self.number + 1, self.sequence);
        if mutant(Mutant::ReuseEarly) {
            self.retire(before)?;
        }
        *self = Disk::begin(directory, image, number, sequence, self.holder, self.region_bytes).await?;
        crash_point("consensus.disk.followed").await;
        match mutant(Mutant::ReuseEarly) {
            true => Ok(()),
            false => self.retire(before),
        }
    }

    /// Has the image be what the last record left.
    fn write_image(&mut self) -> Result<(), Error> {
        write_all(&self.image, &self.unwritten).map_err(failed("writing an image"))?;
        self.unwritten = Vec::new();
        Ok(())
    }

    /// Writes the image into the memory of a region that was just registered.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Rma`].
    pub(crate) async fn load(&mut self, host: &dyn Host, region: RegionId) -> Result<(), Error> {
        self.set_back(host, region).await.map(drop)
    }

    /// Step 5: makes the memory what the image is. Nobody may reach it meanwhile. Gives the bytes that differed, in pieces.
    ///
    /// # Errors
    /// [`Error::Disk`], [`Error::Rma`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(crate) async fn set_back(&mut self, host: &dyn Host, region: RegionId) -> Result<u64, Error> {
        let mut different = 0;
        if self.failed {
            return Err(Error::Disk { doing: "reading an image", reason: "an earlier write has failed".to_owned() });
        }
        self.write_image()?;
        for at in (0..self.region_bytes).step_by(PIECE_BYTES as usize) {
            let length = PIECE_BYTES.min(self.region_bytes - at) as usize;
            let ours = self.image.read_exact_at(at, length).map_err(failed("reading an image"))?;
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

/// Writes to an image, what is adjacent at once.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn write_all(image: &File, writes: &Writes) -> io::Result<()> {
    for run in writes.chunk_by(|(at, bytes), (next, _)| at + bytes.len() as u64 == *next) {
        let parts: Vec<Bytes> = run.iter().map(|(_, bytes)| bytes.clone()).collect();
        image.write_vectored_at(run[0].0, &parts)?;
    }
    Ok(())
}

fn name_of(number: u64) -> String {
    format!("journal-{number}")
}

/// What the checksums of a record are made with.
#[derive(Clone, Copy)]
enum Seal {
    /// Nothing: it is the first of its file, where nobody but this node writes, and tells the key of the others.
    First(u64),
    Keyed(u64),
}

impl Seal {
    fn checksum(self, bytes: &[u8]) -> u64 {
        let key = match self {
            Seal::Keyed(key) if !mutant(Mutant::Unkeyed) => key,
            _ => 0,
        };
        XxHash3_64::oneshot_with_seed(key, bytes)
    }
}

/// ```text
/// checksum of the rest of the head u64 | bytes u32 | version u32 | sequence u64 | term u64 | holder u64 | admitted u32 | count u32 |
/// checksum of what follows u64 | key u64
/// count × (at u64 | bytes u64) | bytes of each … | zeros to a multiple of 64
/// ```
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
fn encode(seal: Seal, sequence: u64, holder: Holder, writes: &Writes) -> Bytes {
    let bytes: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
    let length = HEAD_BYTES + writes.len() * PLACE_BYTES + bytes;
    let mut record = BytesMut::with_capacity(length.next_multiple_of(UNIT_BYTES as usize));
    record.extend_from_slice(&[0; 8]);
    record.extend_from_slice(&(length as u32).to_le_bytes());
    record.extend_from_slice(&VERSION.to_le_bytes());
    for word in [sequence, holder.term.0, holder.holder] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.extend_from_slice(&u32::from(holder.admitted).to_le_bytes());
    record.extend_from_slice(&(writes.len() as u32).to_le_bytes());
    record.resize(HEAD_BYTES, 0);
    for (at, bytes) in writes {
        record.extend_from_slice(&at.to_le_bytes());
        record.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    writes.iter().for_each(|(_, bytes)| record.extend_from_slice(bytes));
    let of_body = seal.checksum(&record[HEAD_BYTES..]);
    record[48..56].copy_from_slice(&of_body.to_le_bytes());
    if let Seal::First(key) = seal {
        record[56..64].copy_from_slice(&key.to_le_bytes());
    }
    let of_head = seal.checksum(&record[8..HEAD_BYTES]);
    record[..8].copy_from_slice(&of_head.to_le_bytes());
    record.resize(length.next_multiple_of(UNIT_BYTES as usize), 0);
    record.freeze()
}

/// What a record says of itself.
#[derive(Debug)]
struct Head {
    sequence: u64,
    holder: Holder,
    count: usize,
    /// Of what follows.
    checksum: u64,
    key: u64,
    /// Without what fills it up.
    bytes: u64,
}

/// A record, read back.
#[derive(Debug)]
struct Record {
    head: Head,
    writes: Vec<(u64, Bytes)>,
    /// Of the file, with what fills it up.
    bytes: u64,
}

/// The head that these bytes begin with, if it is whole.
fn head(bytes: &[u8], seal: Seal) -> Option<Head> {
    let bytes = bytes.get(..HEAD_BYTES)?;
    if word(bytes, 0) != seal.checksum(&bytes[8..]) && !mutant(Mutant::ReplayTorn) {
        return None;
    }
    let holder = Holder { term: Term(word(bytes, 24)), holder: word(bytes, 32), admitted: half(bytes, 40) == 1 };
    let head = Head {
        sequence: word(bytes, 16),
        holder,
        count: half(bytes, 44) as usize,
        checksum: word(bytes, 48),
        key: word(bytes, 56),
        bytes: u64::from(half(bytes, 8)),
    };
    let is_good = half(bytes, 12) == VERSION && (HEAD_BYTES as u64..=RECORD_BYTES_MAX).contains(&head.bytes);
    is_good.then_some(head)
}

/// The record at an offset of a journal of so many bytes; `None` where there is none whole.
fn read(journal: &File, offset: u64, journal_bytes: u64, seal: Seal) -> io::Result<Option<Record>> {
    if journal_bytes.saturating_sub(offset) < HEAD_BYTES as u64 {
        return Ok(None);
    }
    let found = head(&journal.read_exact_at(offset, HEAD_BYTES)?, seal);
    let Some(head) = found.filter(|head| head.bytes <= journal_bytes.saturating_sub(offset)) else { return Ok(None) };
    let (Some(at), Some(length)) =
        (offset.checked_add(HEAD_BYTES as u64), (head.bytes as usize).checked_sub(HEAD_BYTES))
    else {
        return Ok(None);
    };
    let body = journal.read_exact_at(at, length)?;
    Ok(decode(head, &body, seal))
}

/// What follows a head.
fn decode(head: Head, body: &Bytes, seal: Seal) -> Option<Record> {
    if head.checksum != seal.checksum(body) && !mutant(Mutant::ReplayTorn) {
        return None;
    }
    let mut from = head.count.checked_mul(PLACE_BYTES)?;
    let mut writes = Vec::new();
    for place in 0..head.count {
        let place = body.get(place.checked_mul(PLACE_BYTES)?..)?.get(..PLACE_BYTES)?;
        let until = from.checked_add(usize::try_from(word(place, 8)).ok()?)?;
        if until > body.len() {
            return None;
        }
        writes.push((word(place, 0), body.slice(from..until)));
        from = until;
    }
    let bytes = head.bytes.next_multiple_of(UNIT_BYTES);
    (from == body.len()).then_some(Record { head, writes, bytes })
}

/// Step 3; gives whose the region is, and the number of the next record.
fn replay(journal: &File, image: &File, region_bytes: u64) -> Result<(Holder, u64), Error> {
    let doing = failed("replaying a journal");
    let journal_bytes = journal.len().map_err(&doing)?;
    let first = read(journal, 0, journal_bytes, Seal::First(0)).map_err(&doing)?;
    let first = first.ok_or(Error::Corrupt("a journal without a beginning: its disk has lost what was synced"))?;
    let seal = Seal::Keyed(first.head.key);
    let (mut holder, mut sequence, mut offset) =
        (first.head.holder, first.head.sequence.saturating_add(1), first.bytes);
    while let Some(record) = read(journal, offset, journal_bytes, seal).map_err(&doing)? {
        if record.head.sequence != sequence {
            break;
        }
        for (at, bytes) in &record.writes {
            if at.checked_add(bytes.len() as u64).is_none_or(|until| until > region_bytes) {
                return Err(Error::Corrupt("a record of a journal that writes beyond the region"));
            }
            image.write_at(*at, bytes).map_err(&doing)?;
        }
        (holder, sequence) = (record.head.holder, record.head.sequence.saturating_add(1));
        offset = offset.saturating_add(record.bytes);
    }
    // Behind a record that a crash has torn there is none that was begun later: each is synced before the next.
    for at in (offset.saturating_add(UNIT_BYTES)..journal_bytes).step_by(PIECE_BYTES as usize) {
        let piece = journal.read_at(at, PIECE_BYTES as usize).map_err(&doing)?;
        let mut heads = piece.chunks_exact(HEAD_BYTES).filter_map(|bytes| head(bytes, seal));
        if heads.any(|head| head.sequence > sequence) && !mutant(Mutant::ReplayTorn) {
            return Err(Error::Corrupt("a journal that is damaged before its end: its disk has lost what was synced"));
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

    fn holder(term: u64) -> Holder {
        Holder { term: Term(term), holder: 7, admitted: true }
    }

    #[test]
    fn records_have_the_documented_layout() {
        let writes = [(64, Bytes::from_static(b"abc")), (8, Bytes::from_static(b"d"))];
        let record = encode(Seal::Keyed(9), 3, holder(5), &writes);
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
        assert_eq!(word(&record, 0), XxHash3_64::oneshot_with_seed(9, &record[8..64]), "of the rest of the head");
        let decoded = |seal| decode(head(&record, seal)?, &record.slice(64..100), seal);
        let back = decoded(Seal::Keyed(9)).expect("it was just encoded");
        assert_eq!((back.head.sequence, back.head.holder, back.writes.len(), back.bytes), (3, holder(5), 2, 128));
        assert!(decoded(Seal::Keyed(8)).is_none(), "with another key it is no record");
        let first = encode(Seal::First(9), 1, Holder::default(), &[]);
        assert_eq!(word(&first, 0), XxHash3_64::oneshot(&first[8..64]), "of the first nobody knows the key yet");
        assert_eq!(head(&first, Seal::First(0)).map(|head| head.key), Some(9));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), count in 0_u32..9, is_right: bool) {
            if bytes.len() >= HEAD_BYTES {
                let length = bytes.len() as u32;
                bytes[8..12].copy_from_slice(&length.to_le_bytes());
                bytes[12..16].copy_from_slice(&VERSION.to_le_bytes());
                bytes[44..48].copy_from_slice(&count.to_le_bytes());
                if is_right {
                    let of_body = XxHash3_64::oneshot(&bytes[64..]);
                    bytes[48..56].copy_from_slice(&of_body.to_le_bytes());
                    let of_head = XxHash3_64::oneshot(&bytes[8..64]);
                    bytes[..8].copy_from_slice(&of_head.to_le_bytes());
                }
            }
            let bytes = Bytes::from(bytes);
            if let Some(head) = head(&bytes, Seal::Keyed(0)) {
                let _ = decode(head, &bytes.slice(HEAD_BYTES..), Seal::Keyed(0));
            }
        }
    }

    async fn opened() -> Result<Disk, Error> {
        let directory = Directory::open("/memory/group-1").await.expect("a directory can be made");
        Disk::open(directory, REGION).await
    }

    fn image(disk: &Disk) -> Bytes {
        disk.image.read_exact_at(0, REGION as usize).expect("it is there")
    }

    /// Appends until a crash, several times. What was appended is there afterwards, and of the rest one record or nothing.
    async fn append_until_crashes(sim: Sim) {
        let node = sim.node("memory");
        let mut expected = vec![vec![0; REGION as usize]];
        let mut appended = 0;
        for round in 0..5 {
            let opening = node.spawn(async move { opened().await.map(|disk| (image(&disk), disk.holder)) });
            let (found, held) = opening.await.expect("it does not crash").expect("no crash damages it");
            // Two records may leave the same image; whose it is tells them apart.
            let which = held.term.0 as usize;
            assert!(which >= appended, "lost: record {appended} was appended, {which} is there");
            assert!(expected.get(which).is_some_and(|image| image[..] == found[..]), "torn: it is not that of {which}");
            expected.truncate(which + 1);
            let mut chance = sim.chance();
            let mut todo = Vec::new();
            for _ in 0..chance.index(9) + 1 {
                let mut next = expected.last().expect("there is one").clone();
                let mut writes = Vec::new();
                for _ in 0..chance.index(4) + 1 {
                    let at = chance.index(REGION as usize - 2000);
                    let bytes = vec![chance.below(256) as u8; 1 + chance.index(1999)];
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
                        disk.follow().await.expect("the disk works");
                    }
                }
            }));
            rt::sleep(chance.duration(&(Duration::ZERO..Duration::from_millis(40)))).await;
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
                let (journal, before) = (disk.journal.clone(), disk.journal_bytes);
                drop(disk);
                journal.write_at(before - 700, &[9]).expect("the disk works");
                assert!(opened().await.is_ok(), "the last one may be torn");
                let mut disk = opened().await.expect("it was whole");
                for term in 1..6 {
                    disk.append(holder(term), vec![(0, Bytes::from(vec![1; 700]))]).await.expect("the disk works");
                }
                disk.journal.write_at(1000, &[9]).expect("the disk works");
                drop(disk);
                assert!(matches!(opened().await, Err(Error::Corrupt(_))));
            });
            damaging.await.expect("it does not crash");
            0
        });
        outcome.expect("all is as it should be");
    }

    /// A client writes what it takes for records, one at each place where one may begin; the record that holds them is torn.
    async fn forge(sim: Sim) -> u64 {
        let forging = sim.node("memory").spawn(async move {
            let mut disk = opened().await.expect("nothing is there");
            disk.append(holder(1), vec![(0, Bytes::from_static(b"before"))]).await.expect("the disk works");
            let mut value = Vec::new();
            for sequence in 10..20 {
                value.extend_from_slice(&encode(Seal::Keyed(0), sequence, holder(9), &[]));
            }
            // So that they lie where records may begin.
            let fill = HEAD_BYTES - PLACE_BYTES;
            value.splice(..0, vec![0; fill]);
            let before = disk.journal_bytes;
            disk.append(holder(1), vec![(0, Bytes::from(value))]).await.expect("the disk works");
            disk.journal.write_at(before, &[0; HEAD_BYTES]).expect("the disk works");
            drop(disk);
            let disk = opened().await.unwrap_or_else(|error| panic!("report: {error}"));
            assert_eq!(disk.holder, holder(1));
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
