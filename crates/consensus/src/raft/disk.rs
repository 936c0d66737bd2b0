//! The durable log and the snapshots of one node: `docs/formats/raft.md`.
//!
//! ```text
//! log-<number>         records, one behind the other, at multiples of 8
//! snapshot-<index>     the newest snapshot; there under this name only when it is whole and durable
//!
//! record   0 checksum of the head | 8 checksum of the body | 16 sequence | 24 durable | 32 body u32 | 36 kind u8, version u8, 0 u16 |
//!          40 body
//!          body of a batch:   term | vote | commit | entries u32 | 0 u32 | entries
//!          body of a restart: term | vote | commit | index | term of the snapshot's point
//!          body of a begin:   term | vote | commit | group | node
//! snapshot 0 checksum | 8 magic | 16 group | 24 key | 32 the snapshot as in messages
//! ```
//!
//! 1. What the crate wants to be stored at one time becomes one record, and is written at once to the page cache. A sync
//!    makes all records before it durable; while one runs, others are written for the next (group fsync).
//! 2. A segment that is long enough is followed by another, which begins with what is not in entries: term and vote.
//! 3. Segments whose entries a snapshot has are removed, oldest first.
//! 4. After a crash records are read in order. They end at the first that is not whole: a torn tail. Each record says up to
//!    which one all were durable when it was written. If the whole head of a record behind the tear tells of a durable one that is
//!    torn, this is no tear but damage, and the node refuses to start. What is behind a tear is cut off.
//! 5. Behind a tear may lie any bytes of entries, which clients chose. So checksums of records are made with a *key*: a number that is
//!    drawn for the directory, stands in all its snapshots, and is told to nobody. Bytes that somebody chose without it are no record.
//!
//! Invariants: what a later record calls durable is read back, or an error; a record never takes effect in part.
//!
//! Left to others: damage of the last records, of which no later one says that they were durable. It looks like a torn tail.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::BufMut as _;
use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut, rt};
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use storage::DataDirectory;
use twox_hash::XxHash3_64;

use super::codec::{self, ENTRIES_MAX, Reader};
use super::entries::Entries;
use super::fault::{Mutant, mutant};
use crate::Error;

const HEAD_BYTES: usize = 40;
const VERSION: u8 = 2;
const KIND_BATCH: u8 = 1;
const KIND_RESTART: u8 = 2;
const KIND_BEGIN: u8 = 3;
const MAGIC: u64 = u64::from_le_bytes(*b"HdlRftS2");
/// Where a snapshot's own bytes begin.
const SNAPSHOT_HEAD_BYTES: usize = 32;
/// Bytes after which a segment is followed by another.
const SEGMENT_BYTES: u64 = 64 << 20;

/// A part of the log.
struct Segment {
    number: u64,
    file: File,
    bytes: u64,
    /// The greatest index in it or before it.
    last: u64,
}

/// Where a node's snapshots go. Whoever has one has the directory.
#[derive(Clone)]
pub(super) struct Snapshots {
    owned: DataDirectory,
    group: u64,
    key: u64,
}

/// See the module.
pub(super) struct DiskLog {
    snapshots: Snapshots,
    node: u64,
    segment_bytes: u64,
    segments: Vec<Segment>,
    sequence: u64,
    /// Records up to this one are durable.
    durable: u64,
    /// Files with something to be synced, and whether names are.
    dirty: Vec<File>,
    names: bool,
}

/// What is to be made durable, and up to which record that makes everything so.
pub(super) struct Syncing {
    files: Vec<File>,
    directory: Option<Directory>,
    sequence: u64,
}

impl Syncing {
    /// Makes it durable; gives the last record that is.
    pub async fn run(self) -> Result<u64, Error> {
        for file in &self.files {
            file.sync().await.map_err(journal("syncing the Raft log"))?;
        }
        if let Some(directory) = &self.directory {
            directory.sync().await.map_err(journal("syncing the Raft log's directory"))?;
        }
        Ok(self.sequence)
    }
}

fn journal(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Journal(format!("{doing}: {error}"))
}

/// What a record says of itself.
struct Head {
    body_checksum: u64,
    sequence: u64,
    durable: u64,
    body: usize,
    kind: u8,
}

/// A record that was read.
struct Record {
    head: Head,
    body: Bytes,
    /// With what fills it up.
    bytes: u64,
}

fn log_name(number: u64) -> String {
    format!("log-{number:016x}")
}

fn snapshot_name(index: u64) -> String {
    format!("snapshot-{index:016x}")
}

fn number_of(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

fn checksum(key: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(if mutant(Mutant::Unkeyed) { 0 } else { key }, bytes)
}

/// The whole head at an offset, if there is one.
fn head_at(bytes: &Bytes, offset: usize, key: u64) -> Option<Head> {
    let mut head = Reader(bytes.get(offset..)?.get(..HEAD_BYTES).map(|head| bytes.slice_ref(head))?);
    let sum = head.u64().ok()?;
    let is_whole = mutant(Mutant::KeepTorn) || checksum(key, &head.0) == sum;
    let (body_checksum, sequence, durable) = (head.u64().ok()?, head.u64().ok()?, head.u64().ok()?);
    let body = head.u32().ok()? as usize;
    let (kind, version) = (head.u8().ok()?, head.u8().ok()?);
    (is_whole && version == VERSION).then_some(Head { body_checksum, sequence, durable, body, kind })
}

/// The whole record at an offset, if there is one.
fn record_at(bytes: &Bytes, offset: usize, key: u64) -> Option<Record> {
    let head = head_at(bytes, offset, key)?;
    let until = HEAD_BYTES.checked_add(head.body)?;
    let length = until.checked_next_multiple_of(8)?;
    let record = bytes.get(offset..offset.checked_add(length)?).map(|record| bytes.slice_ref(record))?;
    let body = record.slice(HEAD_BYTES..until);
    let is_whole = mutant(Mutant::KeepTorn) || checksum(key, &body) == head.body_checksum;
    is_whole.then_some(Record { head, body, bytes: length as u64 })
}

impl Snapshots {
    fn directory(&self) -> &Directory {
        self.owned.directory()
    }

    /// Writes a snapshot under its name; durable on return. Those before it stay until [`DiskLog::remove_old`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub async fn save(&self, snapshot: &Snapshot) -> Result<(), Error> {
        let index = snapshot.get_metadata().index;
        let mut bytes = BytesMut::with_capacity(snapshot.data.len() + 1024);
        for word in [0, MAGIC, self.group, self.key] {
            bytes.put_u64_le(word);
        }
        debug_assert_eq!(bytes.len(), SNAPSHOT_HEAD_BYTES);
        codec::put_snapshot(&mut bytes, snapshot);
        let checksum = XxHash3_64::oneshot(&bytes[8..]);
        bytes[..8].copy_from_slice(&checksum.to_le_bytes());
        let (made, name) = (format!("making-{index:016x}"), snapshot_name(index));
        let failed = journal("writing a snapshot");
        let file = self.directory().open_file(&made, true).map_err(&failed)?;
        file.truncate(0).map_err(&failed)?;
        file.write_at(0, &bytes).map_err(&failed)?;
        if !mutant(Mutant::SnapshotUnsynced) {
            file.sync().await.map_err(&failed)?;
        }
        self.directory().rename(&made, &name).map_err(&failed)?;
        if !mutant(Mutant::SnapshotUnsynced) {
            self.directory().sync().await.map_err(&failed)?;
        }
        Ok(())
    }

    /// Reads one, and from now on has its key.
    fn read(&mut self, index: u64) -> Result<Snapshot, Error> {
        let damaged = Error::Corrupt("a snapshot of the Raft log is damaged");
        let file = self.directory().open_file(&snapshot_name(index), false).map_err(journal("opening a snapshot"))?;
        let length = file.len().map_err(journal("reading a snapshot"))? as usize;
        let bytes = file.read_exact_at(0, length).map_err(journal("reading a snapshot"))?;
        let mut reader = Reader(bytes.clone());
        let checksum = reader.u64()?;
        if XxHash3_64::oneshot(&bytes[8..]) != checksum || reader.u64()? != MAGIC {
            return Err(damaged);
        }
        if reader.u64()? != self.group {
            return Err(Error::Invalid("the directory holds another group's Raft log".to_owned()));
        }
        self.key = reader.u64()?;
        let snapshot = codec::snapshot(&mut reader)?;
        if snapshot.get_metadata().index != index {
            return Err(damaged);
        }
        Ok(snapshot)
    }
}

impl DiskLog {
    /// Opens what a directory has, and gives the log that it holds with the newest snapshot; nothing where it is blank.
    /// What is behind a tear is gone, durably, on return.
    pub async fn open(
        owned: DataDirectory,
        group: u64,
        node: u64,
        segment_bytes: Option<u64>,
    ) -> Result<(DiskLog, Option<(Entries, Snapshot)>), Error> {
        let segment_bytes = segment_bytes.unwrap_or(SEGMENT_BYTES);
        let mut log = DiskLog {
            snapshots: Snapshots { owned, group, key: rt::random_u64() },
            node,
            segment_bytes,
            segments: Vec::new(),
            sequence: 0,
            durable: 0,
            dirty: Vec::new(),
            names: false,
        };
        let names = log.directory().list().map_err(journal("listing the Raft log"))?;
        let newest = names.iter().filter_map(|name| number_of(name, "snapshot-")).max();
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number_of(name, "log-")).collect();
        numbers.sort_unstable();
        let Some(newest) = newest else {
            // The first snapshot is durable before there is a log.
            return match numbers.is_empty() {
                true => Ok((log, None)),
                false => Err(Error::Corrupt("a Raft log without its snapshot")),
            };
        };
        let snapshot = log.snapshots.read(newest)?;
        let metadata = snapshot.get_metadata();
        let (index, term, members) = (metadata.index, metadata.term, metadata.get_conf_state().clone());
        let entries = log.replay(&numbers, index, term, members).await?;
        log.remove_old(newest).await?;
        Ok((log, Some((entries, snapshot))))
    }

    /// Reads all records, and cuts off what is torn.
    async fn replay(&mut self, numbers: &[u64], index: u64, term: u64, members: ConfState) -> Result<Entries, Error> {
        let damaged = Error::Corrupt("the Raft log is damaged: a record is not whole that was durable");
        // The log begins where its oldest segment does; the snapshot is put in its place at the end.
        let mut entries: Option<Entries> = None;
        let mut hard = HardState::default();
        let mut torn = None;
        // Records that a later one calls durable, and what each segment has behind them.
        let (mut durable, mut read) = (0, Vec::new());
        for (at, number) in numbers.iter().enumerate() {
            let file =
                self.directory().open_file(&log_name(*number), false).map_err(journal("opening the Raft log"))?;
            let length = file.len().map_err(journal("reading the Raft log"))? as usize;
            let bytes = file.read_exact_at(0, length).map_err(journal("reading the Raft log"))?;
            let mut offset = 0;
            if torn.is_none() {
                while let Some(record) = record_at(&bytes, offset, self.snapshots.key) {
                    if self.sequence != 0 && Some(record.head.sequence) != self.sequence.checked_add(1) {
                        break;
                    }
                    self.take(&record, &mut entries, &mut hard)?;
                    self.sequence = record.head.sequence;
                    durable = record.head.durable;
                    offset = offset.saturating_add(record.bytes as usize);
                }
                let last = entries.as_ref().map_or(0, Entries::last);
                if offset > 0 || at == 0 {
                    self.segments.push(Segment { number: *number, file: file.clone(), bytes: offset as u64, last });
                    read.push((file.clone(), bytes.slice(..offset), self.sequence));
                }
            }
            if offset > 0 && offset >= length {
                continue;
            }
            // A tear is right only if nothing behind it tells that what is torn was durable.
            torn.get_or_insert(self.sequence);
            let mut behind = (offset..length).step_by(8).filter_map(|at| head_at(&bytes, at, self.snapshots.key));
            if !mutant(Mutant::KeepTorn) && behind.any(|head| head.durable > self.sequence) {
                return Err(damaged);
            }
            if offset == 0 && at > 0 {
                self.directory().remove(&log_name(*number)).map_err(journal("removing a torn segment"))?;
                self.names = true;
            } else {
                file.truncate(offset as u64).map_err(journal("cutting a torn record off"))?;
                file.sync().await.map_err(journal("cutting a torn record off"))?;
            }
        }
        // The names too: a segment that came back without one would be missed later.
        self.directory().sync().await.map_err(journal("syncing the Raft log's directory"))?;
        for (file, bytes, sequence) in read {
            // What was read may be in memory alone, and after a sync that failed it may stay there whatever is synced.
            if sequence > durable {
                file.write_at(0, &bytes).map_err(journal("writing the Raft log again"))?;
                file.sync().await.map_err(journal("syncing the Raft log"))?;
            }
        }
        self.names = false;
        self.durable = self.sequence;
        let mut entries = entries.unwrap_or_else(|| Entries::at(index, term, ConfState::default()));
        entries.members = members;
        if entries.base().0 > index {
            return Err(Error::Corrupt("the Raft log begins behind its snapshot"));
        }
        let begins_anew = entries.restart(index, term);
        // A commit that was stored may be of entries that were not.
        hard.commit = hard.commit.clamp(index, entries.last());
        hard.term = hard.term.max(term);
        entries.hard = hard;
        if begins_anew && !self.segments.is_empty() {
            // The node ended between a snapshot that it was sent and the record of it.
            self.restart(&entries.hard, index, term)?;
            let durable = self.syncing_all().run().await?;
            self.synced(durable);
        }
        Ok(entries)
    }

    fn take(&self, record: &Record, entries: &mut Option<Entries>, hard: &mut HardState) -> Result<(), Error> {
        let mut body = Reader(record.body.clone());
        (hard.term, hard.vote, hard.commit) = (body.u64()?, body.u64()?, body.u64()?);
        match record.head.kind {
            KIND_BEGIN => {
                if (body.u64()?, body.u64()?) != (self.snapshots.group, self.node) {
                    return Err(Error::Invalid("the directory holds another node's Raft log".to_owned()));
                }
            }
            KIND_RESTART => {
                let (index, term) = (body.u64()?, body.u64()?);
                match entries {
                    Some(entries) => {
                        entries.restart(index, term);
                    }
                    None => *entries = Some(Entries::at(index, term, ConfState::default())),
                }
            }
            KIND_BATCH => {
                let count = body.count(ENTRIES_MAX)?;
                body.u32()?;
                // The count is only claimed.
                let mut read = Vec::with_capacity(count.min(body.0.len() / codec::ENTRY_HEAD_BYTES));
                for _ in 0..count {
                    read.push(codec::entry(&mut body)?);
                }
                let Some(first) = read.first() else { return Ok(()) };
                // The term of the entry before the oldest is that of the snapshot, or of nobody's interest.
                let before =
                    first.index.checked_sub(1).ok_or(Error::Corrupt("an entry of the Raft log has number 0"))?;
                let entries = entries.get_or_insert_with(|| Entries::at(before, 0, ConfState::default()));
                if !entries.append(&read) {
                    return Err(Error::Corrupt("entries of the Raft log do not follow one another"));
                }
            }
            _ => return Err(Error::Corrupt("a record of the Raft log is of no kind that is known")),
        }
        Ok(())
    }

    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    fn directory(&self) -> &Directory {
        self.snapshots.directory()
    }

    /// Removes what a durable snapshot has made useless.
    pub async fn remove_old(&mut self, index: u64) -> Result<(), Error> {
        let failed = journal("removing old parts of the Raft log");
        // The last one is written on. One after the other, so that a crash leaves no hole.
        while self.segments.len() > 1 && self.segments[0].last <= index {
            let gone = self.segments.remove(0);
            self.directory().remove(&log_name(gone.number)).map_err(&failed)?;
            self.directory().sync().await.map_err(&failed)?;
        }
        for name in self.directory().list().map_err(&failed)? {
            let is_old = number_of(&name, "snapshot-").is_some_and(|other| other < index);
            if is_old || number_of(&name, "making-").is_some_and(|other| other <= index) {
                self.directory().remove(&name).map_err(&failed)?;
            }
        }
        Ok(())
    }

    /// Writes what the crate wants to be stored. Durable after the next [`DiskLog::syncing`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn append(&mut self, hard: &HardState, entries: &[Entry]) -> Result<(), Error> {
        self.make_room(hard)?;
        let length: usize = entries.iter().map(|entry| codec::ENTRY_HEAD_BYTES + entry.data.len()).sum();
        let mut record = self.begin_record(KIND_BATCH, hard, 8 + length);
        record.put_u32_le(entries.len() as u32);
        record.put_u32_le(0);
        entries.iter().for_each(|entry| codec::put_entry(&mut record, entry));
        let last = entries.last().map_or(0, |entry| entry.index);
        self.write(record, last)
    }

    /// Writes that the log begins anew behind a snapshot's point.
    pub fn restart(&mut self, hard: &HardState, index: u64, term: u64) -> Result<(), Error> {
        self.make_room(hard)?;
        let mut record = self.begin_record(KIND_RESTART, hard, 16);
        record.put_u64_le(index);
        record.put_u64_le(term);
        self.write(record, index)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn begin_record(&self, kind: u8, hard: &HardState, bytes: usize) -> BytesMut {
        let mut record = BytesMut::with_capacity(HEAD_BYTES + 24 + bytes + 8);
        // Checksums, which are known when it is whole.
        record.put_slice(&[0; 16]);
        record.put_u64_le(self.sequence + 1);
        record.put_u64_le(self.durable);
        record.put_u32_le(0);
        record.put_slice(&[kind, VERSION, 0, 0]);
        record.put_u64_le(hard.term);
        record.put_u64_le(hard.vote);
        record.put_u64_le(hard.commit);
        record
    }

    /// A segment to write to.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn make_room(&mut self, hard: &HardState) -> Result<(), Error> {
        if self.segments.last().is_some_and(|segment| segment.bytes < self.segment_bytes) {
            return Ok(());
        }
        let number = self.segments.last().map_or(1, |segment| segment.number + 1);
        let last = self.segments.last().map_or(0, |segment| segment.last);
        let file = self.directory().open_file(&log_name(number), true).map_err(journal("making a segment"))?;
        file.truncate(0).map_err(journal("making a segment"))?;
        self.segments.push(Segment { number, file, bytes: 0, last });
        self.names = true;
        let mut record = self.begin_record(KIND_BEGIN, hard, 16);
        record.put_u64_le(self.snapshots.group);
        record.put_u64_le(self.node);
        self.write(record, 0)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn write(&mut self, mut record: BytesMut, last: u64) -> Result<(), Error> {
        let body = u32::try_from(record.len() - HEAD_BYTES).expect("a batch's size is bounded by its entries");
        record[32..36].copy_from_slice(&body.to_le_bytes());
        let of_body = checksum(self.snapshots.key, &record[HEAD_BYTES..]);
        record[8..16].copy_from_slice(&of_body.to_le_bytes());
        let of_head = checksum(self.snapshots.key, &record[8..HEAD_BYTES]);
        record[..8].copy_from_slice(&of_head.to_le_bytes());
        record.resize(record.len().next_multiple_of(8), 0);
        let segment = self.segments.last_mut().expect("there is room");
        segment.file.write_at(segment.bytes, &record).map_err(journal("writing the Raft log"))?;
        if segment.bytes == 0 || self.dirty.is_empty() {
            self.dirty.push(segment.file.clone());
        }
        segment.bytes += record.len() as u64;
        segment.last = segment.last.max(last);
        self.sequence += 1;
        Ok(())
    }

    /// What is to be made durable now.
    pub fn syncing(&mut self) -> Syncing {
        let directory = std::mem::take(&mut self.names).then(|| self.directory().clone());
        Syncing { files: std::mem::take(&mut self.dirty), directory, sequence: self.sequence }
    }

    /// As [`DiskLog::syncing`], whatever other syncs are under way.
    pub fn syncing_all(&mut self) -> Syncing {
        self.dirty.clear();
        self.names = false;
        let files = self.segments.iter().map(|segment| segment.file.clone()).collect();
        Syncing { files, directory: Some(self.directory().clone()), sequence: self.sequence }
    }

    /// A sync has returned.
    pub fn synced(&mut self, sequence: u64) {
        self.durable = self.durable.max(sequence);
    }
}

#[doc(hidden)]
pub mod fuzz;

#[cfg(test)]
mod tests {
    use base::rt::simulation::{Sim, Simulation};

    use super::*;
    use crate::owned::own;
    use crate::raft::engine::first_snapshot;
    use crate::raft::fault::plant;

    type Opened = Result<(DiskLog, Option<(Entries, Snapshot)>), Error>;

    async fn opened() -> Opened {
        let directory = Directory::open("/raft").await.expect("a directory can be made");
        DiskLog::open(own(directory).await.expect("nobody else has it"), 7, 1, None).await
    }

    fn entry(index: u64, data: impl Into<Bytes>) -> Entry {
        Entry { index, term: 1, data: data.into(), ..Entry::default() }
    }

    /// A log with two entries, the second of which has this data; gives where its record begins.
    async fn two_entries(data: Vec<u8>) -> u64 {
        let (mut log, _) = opened().await.expect("nothing is there");
        log.snapshots().save(&first_snapshot(&[], &[])).await.expect("the disk works");
        let hard = HardState::default();
        let mut begins = 0;
        for entry in [entry(1, &b"before"[..]), entry(2, data)] {
            begins = log.segments.last().map_or(0, |segment| segment.bytes);
            log.append(&hard, &[entry]).expect("the disk works");
            let durable = log.syncing().run().await.expect("the disk works");
            log.synced(durable);
        }
        begins
    }

    async fn write(at: u64, bytes: &[u8]) {
        let directory = Directory::open("/raft").await.expect("it is there");
        directory.open_file(&log_name(1), false).expect("it is there").write_at(at, bytes).expect("the disk works");
    }

    /// A client proposes what it takes for records; the record that holds them is torn.
    async fn forge(sim: Sim) -> u64 {
        let forging = sim.node("n1").spawn(async move {
            let mut head = BytesMut::new();
            head.put_u64_le(XxHash3_64::oneshot(&[]));
            head.put_u64_le(1 << 20);
            head.put_u64_le(1 << 20);
            head.put_u32_le(0);
            head.put_slice(&[KIND_BATCH, VERSION, 0, 0]);
            let mut record = XxHash3_64::oneshot(&head).to_le_bytes().to_vec();
            record.extend_from_slice(&head);
            let begins = two_entries(record.repeat(5)).await;
            write(begins, &[0; HEAD_BYTES]).await;
            let (_, found) = opened().await.unwrap_or_else(|error| panic!("report: {error}"));
            let (entries, _) = found.expect("it has a snapshot");
            assert_eq!(entries.last(), 1, "the torn record is gone, and nothing else");
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
        Simulation::new(1).run(forge).expect("a torn tail is cut off");
    }

    #[test]
    fn damage_before_what_is_durable_is_no_torn_tail() {
        let damaged = |sim: Sim| async move {
            let damaging = sim.node("n1").spawn(async move {
                let begins = two_entries(b"behind".to_vec()).await;
                write(begins - 8, &[0xff; 4]).await;
                assert!(matches!(opened().await, Err(Error::Corrupt(_))), "the second record says that it was durable");
            });
            damaging.await.expect("it does not crash");
            1
        };
        Simulation::new(1).run(damaged).expect("it is found out");
    }
}
