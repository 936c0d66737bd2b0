//! The durable log and the snapshots of one node: `docs/formats/raft.md`.
//!
//! ```text
//! log-<number> a segment: records, one after the other, at multiples of 8
//! snapshot-<index>     the newest snapshot; it has this name only once it is complete and durable
//!
//! record   0 checksum of the head | 8 checksum of the body | 16 sequence | 24 durable | 32 body u32 |
//!          36 kind u8, version u8, 0 u16 | 40 body
//!          body of a batch:   term | vote | commit | entries u32 | 0 u32 | entries
//!          body of a restart: term | vote | commit | index | term of the snapshot's point
//!          body of a begin:   term | vote | commit | group | node
//! snapshot 0 checksum | 8 magic | 16 group | 24 key | 32 the snapshot as in messages
//! ```
//!
//! 1. Everything that the `raft` crate asks to store at one time becomes one record, which is written to the page cache
//!    at once. A sync makes all records durable that were written before it started; a record that is written while a
//!    sync runs waits for the next sync (group fsync).
//! 2. When a segment has reached its length, the next one is started. It begins with the state that is not in entries:
//!    term and vote.
//! 3. Segments whose entries a snapshot covers are removed, oldest first.
//! 4. After a crash the records are read in order, up to the first incomplete record. Normally the torn tail starts
//!    there, and everything from there on is truncated. But every record head also states up to which record the log
//!    was durable when the head was written. If an intact head further on states that the incomplete record was
//!    durable, the log is damaged, and the node refuses to start.
//! 5. The bytes after an incomplete record may be payload that a client chose, so they could imitate a record.
//!    Therefore the checksums of records depend on a *key*: a random number of the directory, which is stored in all
//!    its snapshots and is never sent to anyone. Bytes that were chosen without knowledge of the key fail the checksum.
//!
//! Invariants: if a later record head states that a record was durable, that record is read back, or opening fails; a
//! record takes effect as a whole or not at all.
//!
//! Left to others: damage of the last records, of which no later head states that they were durable. Such damage looks
//! like a torn tail.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::bytes::BufMut as _;
use base::rt::disk::{Directory, File};
use base::{Bytes, BytesMut, rt};
use raft_rs::eraftpb::{ConfState, Entry, HardState, Snapshot};
use storage::DataDirectory;
use twox_hash::XxHash3_64;
use wire::Reader;

use super::codec::{self, ENTRIES_MAX};
use super::entries::RaftEntries;
use super::fault::{Mutant, mutant};
use crate::Error;

const HEAD_BYTES: usize = 40;
const FORMAT_VERSION: u8 = 2;
const KIND_BATCH: u8 = 1;
const KIND_RESTART: u8 = 2;
const KIND_BEGIN: u8 = 3;
const MAGIC: u64 = u64::from_le_bytes(*b"HdlRftS2");
/// The offset of the snapshot's own bytes.
const SNAPSHOT_HEAD_BYTES: usize = 32;
/// Bytes after which a segment is followed by another.
const SEGMENT_BYTES: u64 = 64 << 20;

/// A file of the log.
struct LogSegment {
    number: u64,
    file: File,
    bytes: u64,
    /// The greatest index in this segment or an earlier one.
    last: u64,
}

/// The snapshots of a node. A clone keeps the directory locked.
#[derive(Clone)]
pub(super) struct SnapshotStore {
    owned: DataDirectory,
    group: u64,
    key: u64,
}

/// See the module.
pub(super) struct DiskLog {
    snapshots: SnapshotStore,
    node: u64,
    segment_bytes: u64,
    segments: Vec<LogSegment>,
    sequence: u64,
    /// Records up to this one are durable.
    durable: u64,
    /// Files that must be synced, and whether the directory's names must be.
    dirty: Vec<File>,
    names: bool,
}

/// The files to sync, and the last record that is durable afterwards.
pub(super) struct LogSync {
    files: Vec<File>,
    directory: Option<Directory>,
    sequence: u64,
}

impl LogSync {
    /// Syncs the files; returns the last record that is durable.
    pub async fn run(self) -> Result<u64, Error> {
        for file in &self.files {
            file.sync().await.map_err(log_error("syncing the Raft log"))?;
        }
        if let Some(directory) = &self.directory {
            directory.sync().await.map_err(log_error("syncing the Raft log's directory"))?;
        }
        Ok(self.sequence)
    }
}

fn log_error(doing: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::LogStore(format!("{doing}: {error}"))
}

/// The head of a record.
struct RecordHead {
    body_checksum: u64,
    sequence: u64,
    durable: u64,
    body: usize,
    kind: u8,
}

/// A record that was read.
struct LogRecord {
    head: RecordHead,
    body: Bytes,
    /// Bytes with padding.
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

/// The complete head at an offset, if there is one.
fn head_at(bytes: &Bytes, offset: usize, key: u64) -> Option<RecordHead> {
    let mut head = Reader::new(bytes.get(offset..)?.get(..HEAD_BYTES)?);
    let sum = head.u64().ok()?;
    let is_whole = mutant(Mutant::KeepTorn) || checksum(key, head.peek()) == sum;
    let (body_checksum, sequence, durable) = (head.u64().ok()?, head.u64().ok()?, head.u64().ok()?);
    let body = head.u32().ok()? as usize;
    let (kind, version) = (head.u8().ok()?, head.u8().ok()?);
    (is_whole && version == FORMAT_VERSION).then_some(RecordHead { body_checksum, sequence, durable, body, kind })
}

/// The complete record at an offset, if there is one.
fn record_at(bytes: &Bytes, offset: usize, key: u64) -> Option<LogRecord> {
    let head = head_at(bytes, offset, key)?;
    let until = HEAD_BYTES.checked_add(head.body)?;
    let length = until.checked_next_multiple_of(8)?;
    let record = bytes.get(offset..offset.checked_add(length)?).map(|record| bytes.slice_ref(record))?;
    let body = record.slice(HEAD_BYTES..until);
    let is_whole = mutant(Mutant::KeepTorn) || checksum(key, &body) == head.body_checksum;
    is_whole.then_some(LogRecord { head, body, bytes: length as u64 })
}

impl SnapshotStore {
    fn directory(&self) -> &Directory {
        self.owned.directory()
    }

    /// Writes a snapshot under its name; durable on return. Earlier snapshots stay until [`DiskLog::remove_old`].
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
        let failed = log_error("writing a snapshot");
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

    /// Reads a snapshot, and uses its key from now on.
    fn read(&mut self, index: u64) -> Result<Snapshot, Error> {
        let damaged = Error::Corrupt("a snapshot of the Raft log is damaged");
        let file = self.directory().open_file(&snapshot_name(index), false).map_err(log_error("opening a snapshot"))?;
        let length = file.len().map_err(log_error("reading a snapshot"))? as usize;
        let bytes = file.read_exact_at(0, length).map_err(log_error("reading a snapshot"))?;
        let mut reader = Reader::new(bytes.clone());
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
    /// Opens a directory, and returns the log that it holds with the newest snapshot; `None` where it is blank. On return
    /// the torn tail is durably removed.
    pub async fn open(
        owned: DataDirectory,
        group: u64,
        node: u64,
        segment_bytes: Option<u64>,
    ) -> Result<(DiskLog, Option<(RaftEntries, Snapshot)>), Error> {
        let segment_bytes = segment_bytes.unwrap_or(SEGMENT_BYTES);
        let mut log = DiskLog {
            snapshots: SnapshotStore { owned, group, key: rt::random_u64() },
            node,
            segment_bytes,
            segments: Vec::new(),
            sequence: 0,
            durable: 0,
            dirty: Vec::new(),
            names: false,
        };
        let names = log.directory().list().map_err(log_error("listing the Raft log"))?;
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

    /// Reads all records, and truncates torn ones.
    async fn replay(
        &mut self,
        numbers: &[u64],
        index: u64,
        term: u64,
        members: ConfState,
    ) -> Result<RaftEntries, Error> {
        let damaged = Error::Corrupt("the Raft log is damaged: a record that was durable is not complete");
        // The log starts where its oldest segment does; the snapshot's point is set at the end.
        let mut entries: Option<RaftEntries> = None;
        let mut hard = HardState::default();
        let mut torn = None;
        // The last record that a later one calls durable, and each segment's complete records.
        let (mut durable, mut read) = (0, Vec::new());
        for (at, number) in numbers.iter().enumerate() {
            let file =
                self.directory().open_file(&log_name(*number), false).map_err(log_error("opening the Raft log"))?;
            let length = file.len().map_err(log_error("reading the Raft log"))? as usize;
            let bytes = file.read_exact_at(0, length).map_err(log_error("reading the Raft log"))?;
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
                let last = entries.as_ref().map_or(0, RaftEntries::last);
                if offset > 0 || at == 0 {
                    self.segments.push(LogSegment { number: *number, file: file.clone(), bytes: offset as u64, last });
                    read.push((file.clone(), bytes.slice(..offset), self.sequence));
                }
            }
            if offset > 0 && offset >= length {
                continue;
            }
            // It is a torn tail only if no later head states that a torn record was durable.
            torn.get_or_insert(self.sequence);
            let mut behind = (offset..length).step_by(8).filter_map(|at| head_at(&bytes, at, self.snapshots.key));
            if !mutant(Mutant::KeepTorn) && behind.any(|head| head.durable > self.sequence) {
                return Err(damaged);
            }
            if offset == 0 && at > 0 {
                self.directory().remove(&log_name(*number)).map_err(log_error("removing a torn segment"))?;
                self.names = true;
            } else {
                file.truncate(offset as u64).map_err(log_error("cutting a torn record off"))?;
                file.sync().await.map_err(log_error("cutting a torn record off"))?;
            }
        }
        // The names too: a segment that exists without a durable name would be missed later.
        self.directory().sync().await.map_err(log_error("syncing the Raft log's directory"))?;
        for (file, bytes, sequence) in read {
            // The bytes that were read may be in memory alone, and after a failed sync they may stay there, whatever is synced.
            if sequence > durable {
                file.write_at(0, &bytes).map_err(log_error("writing the Raft log again"))?;
                file.sync().await.map_err(log_error("syncing the Raft log"))?;
            }
        }
        self.names = false;
        self.durable = self.sequence;
        let mut entries = entries.unwrap_or_else(|| RaftEntries::at(index, term, ConfState::default()));
        entries.members = members;
        if entries.base().0 > index {
            return Err(Error::Corrupt(
                "the Raft log starts behind its snapshot: the entries between them are missing",
            ));
        }
        let restarts = entries.restart(index, term);
        // A stored commit index may be that of entries that were not stored.
        hard.commit = hard.commit.clamp(index, entries.last());
        hard.term = hard.term.max(term);
        entries.hard = hard;
        if restarts && !self.segments.is_empty() {
            // The node ended between the snapshot that it installed and the record of it.
            self.restart(&entries.hard, index, term)?;
            let durable = self.syncing_all().run().await?;
            self.synced(durable);
        }
        Ok(entries)
    }

    fn take(&self, record: &LogRecord, entries: &mut Option<RaftEntries>, hard: &mut HardState) -> Result<(), Error> {
        let mut body = Reader::new(record.body.clone());
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
                    None => *entries = Some(RaftEntries::at(index, term, ConfState::default())),
                }
            }
            KIND_BATCH => {
                let count = body.count(codec::ENTRY_HEAD_BYTES, ENTRIES_MAX)?;
                body.u32()?;
                let mut read = Vec::with_capacity(count);
                for _ in 0..count {
                    read.push(codec::entry(&mut body)?);
                }
                let Some(first) = read.first() else { return Ok(()) };
                // The term of the entry before the oldest is that of the snapshot, or is never needed.
                let before =
                    first.index.checked_sub(1).ok_or(Error::Corrupt("an entry of the Raft log has number 0"))?;
                let entries = entries.get_or_insert_with(|| RaftEntries::at(before, 0, ConfState::default()));
                if !entries.append(&read) {
                    return Err(Error::Corrupt("entries of the Raft log do not follow one another"));
                }
            }
            _ => return Err(Error::Corrupt("a record of the Raft log is of an unknown kind")),
        }
        Ok(())
    }

    pub fn snapshots(&self) -> &SnapshotStore {
        &self.snapshots
    }

    fn directory(&self) -> &Directory {
        self.snapshots.directory()
    }

    /// Removes the files that a durable snapshot has made obsolete.
    pub async fn remove_old(&mut self, index: u64) -> Result<(), Error> {
        let failed = log_error("removing old parts of the Raft log");
        // The last segment is still written. They are removed one after the other, so that a crash leaves no hole.
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

    /// Writes the state and the entries that the crate asks to store. Durable after the next [`DiskLog::syncing`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn append(&mut self, hard: &HardState, entries: &[Entry]) -> Result<(), Error> {
        self.ensure_segment(hard)?;
        let length: usize = entries.iter().map(|entry| codec::ENTRY_HEAD_BYTES + entry.data.len()).sum();
        let mut record = self.begin_record(KIND_BATCH, hard, 8 + length);
        record.put_u32_le(entries.len() as u32);
        record.put_u32_le(0);
        entries.iter().for_each(|entry| codec::put_entry(&mut record, entry));
        let last = entries.last().map_or(0, |entry| entry.index);
        self.write(record, last)
    }

    /// Records that the log restarts behind a snapshot's point.
    pub fn restart(&mut self, hard: &HardState, index: u64, term: u64) -> Result<(), Error> {
        self.ensure_segment(hard)?;
        let mut record = self.begin_record(KIND_RESTART, hard, 16);
        record.put_u64_le(index);
        record.put_u64_le(term);
        self.write(record, index)
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn begin_record(&self, kind: u8, hard: &HardState, bytes: usize) -> BytesMut {
        let mut record = BytesMut::with_capacity(HEAD_BYTES + 24 + bytes + 8);
        // The checksums are filled in when the record is complete.
        record.put_slice(&[0; 16]);
        record.put_u64_le(self.sequence + 1);
        record.put_u64_le(self.durable);
        record.put_u32_le(0);
        record.put_slice(&[kind, FORMAT_VERSION, 0, 0]);
        record.put_u64_le(hard.term);
        record.put_u64_le(hard.vote);
        record.put_u64_le(hard.commit);
        record
    }

    /// Ensures that there is a segment with space.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn ensure_segment(&mut self, hard: &HardState) -> Result<(), Error> {
        if self.segments.last().is_some_and(|segment| segment.bytes < self.segment_bytes) {
            return Ok(());
        }
        let number = self.segments.last().map_or(1, |segment| segment.number + 1);
        let last = self.segments.last().map_or(0, |segment| segment.last);
        let file = self.directory().open_file(&log_name(number), true).map_err(log_error("making a segment"))?;
        file.truncate(0).map_err(log_error("making a segment"))?;
        self.segments.push(LogSegment { number, file, bytes: 0, last });
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
        segment.file.write_at(segment.bytes, &record).map_err(log_error("writing the Raft log"))?;
        if segment.bytes == 0 || self.dirty.is_empty() {
            self.dirty.push(segment.file.clone());
        }
        segment.bytes += record.len() as u64;
        segment.last = segment.last.max(last);
        self.sequence += 1;
        Ok(())
    }

    /// The files that must be synced now.
    pub fn syncing(&mut self) -> LogSync {
        let directory = std::mem::take(&mut self.names).then(|| self.directory().clone());
        LogSync { files: std::mem::take(&mut self.dirty), directory, sequence: self.sequence }
    }

    /// As [`DiskLog::syncing`], regardless of syncs in flight.
    pub fn syncing_all(&mut self) -> LogSync {
        self.dirty.clear();
        self.names = false;
        let files = self.segments.iter().map(|segment| segment.file.clone()).collect();
        LogSync { files, directory: Some(self.directory().clone()), sequence: self.sequence }
    }

    /// Records that a sync has returned.
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
    use crate::engine::first_snapshot;
    use crate::fault::plant;

    type Opened = Result<(DiskLog, Option<(RaftEntries, Snapshot)>), Error>;

    async fn opened() -> Opened {
        let directory = Directory::open("/raft").await.expect("a directory can be made");
        DiskLog::open(DataDirectory::lock(directory).await.expect("nobody else has it"), 7, 1, None).await
    }

    fn entry(index: u64, data: impl Into<Bytes>) -> Entry {
        Entry { index, term: 1, data: data.into(), ..Entry::default() }
    }

    /// A log with two entries, the second of which has this data; returns where its record starts.
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

    /// A client proposes bytes that look like records; the record that holds them is torn.
    async fn forge(sim: Sim) -> u64 {
        let forging = sim.node("n1").spawn(async move {
            let mut head = BytesMut::new();
            head.put_u64_le(XxHash3_64::oneshot(&[]));
            head.put_u64_le(1 << 20);
            head.put_u64_le(1 << 20);
            head.put_u32_le(0);
            head.put_slice(&[KIND_BATCH, FORMAT_VERSION, 0, 0]);
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
