//! Opening a store: which blocks on disk are intact, and how the store treats damaged ones.
//!
//! 1. Every segment but the last is sealed, and was durable before the next one was created. Its header must continue
//!    the hash chain. Its index is read, or rebuilt from its records if it is missing, stale or damaged.
//! 2. The last segment is read record by record, up to the first record that is not intact. If that record begins
//!    before the durable watermark, the segment is damaged, and the store does not open. If it begins at or after the
//!    watermark, it is a torn tail, which is truncated.
//! 3. Intact records beyond the durable watermark may be in the page cache only. So their bytes are written once more,
//!    and the last segment and its name are synced, before the records count as durable.
//!
//! Records are written only once the header of their segment is durable. So a segment with a torn header holds no
//! records; if it is the last segment, it is created again. Recovery does not search for records beyond a damaged one,
//! because bytes of a payload may look like a record.

use std::io;
use std::path::{Path, PathBuf};

use base::BlockNumber;
use base::rt;
use base::rt::disk::{Directory, File};

use super::NO_PREVIOUS;
use super::files::{create_segment, index_name, parse_segment_name, segment_name};
use super::format::{
    DurableWatermark, RECORD_HEADER_BYTES, RecordHeader, SEGMENT_FIELDS_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader,
    WATERMARK_BYTES, WATERMARK_OFFSETS,
};
use super::index::{BlockIndex, ChainTip, SegmentIndex};
use crate::{Error, events};

/// Bytes that are written again at once.
const WRITE_AGAIN_BYTES: u64 = 1 << 20;

/// What opening a store found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenReport {
    /// Number of blocks, all durable.
    pub height: u64,
    /// Number of segments.
    pub segments: usize,
    /// The incomplete last record that was removed.
    pub torn_tail: Option<TornTail>,
    /// Segments whose index was missing, stale or damaged and was built again from the records.
    pub indexes_rebuilt: usize,
}

/// A record that was being written when the process or the machine stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The segment.
    pub path: PathBuf,
    /// Where the record began: the segment's length now.
    pub offset: u64,
    /// How many bytes were removed.
    pub bytes: u64,
    /// The number that the next block would have had.
    pub block: BlockNumber,
    /// Why the record is not intact.
    pub what: String,
}

/// A store's state after opening.
pub struct RecoveredStore {
    pub index: BlockIndex,
    /// The index of the last segment, to which appends are added.
    pub last: SegmentIndex,
    pub last_file: File,
    pub report: OpenReport,
}

/// # Errors
/// [`Error::Corrupt`] for damage to durable blocks; errors of the operating system.
pub async fn recover(directory: &Directory) -> Result<RecoveredStore, Error> {
    let names = directory.list().map_err(|error| Error::io("listing", directory.path(), error))?;
    let firsts: Vec<BlockNumber> = names.iter().filter_map(|name| parse_segment_name(name)).collect();
    let mut tip = ChainTip { height: 0, header_hash: NO_PREVIOUS, epoch: base::Epoch(0) };
    let mut index = BlockIndex::new(tip);
    let mut report = OpenReport::default();
    let Some((last_first, sealed)) = firsts.split_last() else {
        let file = create_segment(directory, header_after(tip)).await?;
        index.start_segment(BlockNumber(0), SEGMENT_HEADER_BYTES);
        let last = SegmentIndex::new(BlockNumber(0), SEGMENT_HEADER_BYTES, tip);
        report.segments = 1;
        return Ok(RecoveredStore { index, last, last_file: file, report });
    };
    for first in sealed {
        let segment = RecoveringSegment::open(directory, *first)?;
        let header = segment.header()?.map_err(|what| segment.corrupt(0, what))?;
        segment.check_continues(header, tip)?;
        let read = segment.read_index(directory, tip);
        let segment_index = match read {
            Ok(segment_index) => segment_index,
            Err(what) => {
                tracing::info!(segment = %segment.path.display(), %what, "building the index again");
                report.indexes_rebuilt += 1;
                let segment_index = segment.rebuild(tip)?;
                write_index(directory, &segment_index);
                segment_index
            }
        };
        tip = segment_index.tip;
        index.start_segment(*first, SEGMENT_HEADER_BYTES);
        index.extend(&segment_index, 0);
        index.seal_segment();
    }
    let segment = RecoveringSegment::open(directory, *last_first)?;
    let (last, last_file) = recover_last(directory, segment, tip, &mut report).await?;
    index.start_segment(*last_first, SEGMENT_HEADER_BYTES);
    index.extend(&last, 0);
    report.height = index.tip().height;
    report.segments = firsts.len();
    Ok(RecoveredStore { index, last, last_file, report })
}

async fn recover_last(
    directory: &Directory,
    segment: RecoveringSegment,
    tip: ChainTip,
    report: &mut OpenReport,
) -> Result<(SegmentIndex, File), Error> {
    let fresh = SegmentIndex::new(segment.first, SEGMENT_HEADER_BYTES, tip);
    let mark = segment.watermark()?;
    // A segment this short was being created, unless its mark lies beyond its header: then it was in use, and is damaged.
    let was_being_created =
        segment.bytes <= SEGMENT_HEADER_BYTES && mark.end <= SEGMENT_HEADER_BYTES && segment.first.get() == tip.height;
    let header = match segment.header()? {
        Ok(header) if segment.bytes >= SEGMENT_HEADER_BYTES => header,
        decoded if was_being_created => {
            report.torn_tail = decoded.err().map(|what| segment.torn(0, tip, what));
            let file = create_segment(directory, header_after(tip)).await?;
            return Ok((fresh, file));
        }
        Ok(_) => return Err(segment.corrupt(0, "it ends within its header".into())),
        Err(what) => return Err(segment.corrupt(0, what)),
    };
    segment.check_continues(header, tip)?;
    let (last, damage) = segment.scan(fresh)?;
    let damage = match damage {
        None if last.end < mark.end => Some("the file ends before its durable mark".to_string()),
        damage => damage,
    };
    if let Some(what) = damage {
        if last.end < mark.end {
            return Err(segment.corrupt(last.end, what));
        }
        let torn = segment.torn(last.end, last.tip, what);
        tracing::warn!(
            segment = %torn.path.display(), offset = torn.offset, bytes = torn.bytes, block = %torn.block,
            what = %torn.what, "cutting off an incomplete last record"
        );
        events::TornTailsTruncated.add(1);
        report.torn_tail = Some(torn);
        segment.file.truncate(last.end).map_err(|error| Error::io("cutting off the tail of", &segment.path, error))?;
    }
    segment.write_again(if mark.end > SEGMENT_HEADER_BYTES { mark.end } else { 0 }, last.end)?;
    segment.file.sync().await.map_err(|error| Error::io("syncing", &segment.path, error))?;
    directory.sync().await.map_err(|error| Error::io("syncing", directory.path(), error))?;
    Ok((last, segment.file))
}

fn header_after(tip: ChainTip) -> SegmentHeader {
    SegmentHeader { first: BlockNumber(tip.height), previous_hash: tip.header_hash, epoch: tip.epoch }
}

/// Writes a segment's index. It can be rebuilt, so failures are not errors and nothing is synced.
pub fn write_index(directory: &Directory, index: &SegmentIndex) {
    let name = index_name(index.first);
    let write = || -> io::Result<()> {
        let file = directory.open_file(&name, true)?;
        file.truncate(0)?;
        file.write_at(0, &index.encode())
    };
    if rt::fault_point("storage.blocks.index_missing") {
        return;
    }
    if let Err(error) = write() {
        tracing::warn!(index = %directory.path().join(&name).display(), %error, "the index was not written");
    }
}

/// A segment being opened.
struct RecoveringSegment {
    first: BlockNumber,
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl RecoveringSegment {
    fn open(directory: &Directory, first: BlockNumber) -> Result<RecoveringSegment, Error> {
        let path = directory.path().join(segment_name(first));
        let io = |error| Error::io("opening the segment", &path, error);
        let file = directory.open_file(&segment_name(first), false).map_err(io)?;
        let bytes = file.len().map_err(io)?;
        Ok(RecoveringSegment { first, path, file, bytes })
    }

    fn read(&self, offset: u64, bytes: usize) -> Result<base::Bytes, Error> {
        self.file.read_at(offset, bytes).map_err(|error| Error::io("reading", &self.path, error))
    }

    /// Writes bytes once more, unchanged. After a failed fsync the page cache still holds data that is not on disk and
    /// counts it as clean, so that another fsync would not write it.
    fn write_again(&self, from: u64, to: u64) -> Result<(), Error> {
        let mut offset = from;
        while offset < to {
            let bytes = self.read(offset, (to - offset).min(WRITE_AGAIN_BYTES) as usize)?;
            if bytes.is_empty() {
                return Err(self.corrupt(offset, "it became shorter while it was being opened".into()));
            }
            let written = self.file.write_at(offset, &bytes);
            written.map_err(|error| Error::io("writing again", &self.path, error))?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    fn header(&self) -> Result<Result<SegmentHeader, String>, Error> {
        Ok(SegmentHeader::decode(&self.read(0, SEGMENT_FIELDS_BYTES)?))
    }

    fn watermark(&self) -> Result<DurableWatermark, Error> {
        let mut newest = DurableWatermark { end: SEGMENT_HEADER_BYTES, height: self.first.get() };
        for offset in WATERMARK_OFFSETS {
            if let Some(mark) = DurableWatermark::decode(&self.read(offset, WATERMARK_BYTES)?)
                && mark.end > newest.end
            {
                newest = mark;
            }
        }
        Ok(newest)
    }

    fn check_continues(&self, header: SegmentHeader, tip: ChainTip) -> Result<(), Error> {
        if header.first != self.first {
            return Err(self.corrupt(0, format!("it begins with block {}, but its name says another", header.first)));
        }
        if header.first.get() != tip.height {
            return Err(
                self.corrupt(0, format!("it begins with block {}, after block height {}", header.first, tip.height))
            );
        }
        if header.previous_hash != tip.header_hash {
            return Err(self.corrupt(0, "it begins another chain: it does not continue the segment before it".into()));
        }
        Ok(())
    }

    fn read_index(&self, directory: &Directory, tip: ChainTip) -> Result<SegmentIndex, String> {
        let read = || -> io::Result<base::Bytes> {
            let file = directory.open_file(&index_name(self.first), false)?;
            let bytes = usize::try_from(file.len()?).map_err(io::Error::other)?;
            file.read_at(0, bytes)
        };
        let bytes = read().map_err(|error| error.to_string())?;
        let index = SegmentIndex::decode(&bytes)?;
        if index.first != self.first || index.end != self.bytes || index.tip.epoch < tip.epoch {
            return Err("the index describes another segment".into());
        }
        Ok(index)
    }

    fn rebuild(&self, tip: ChainTip) -> Result<SegmentIndex, Error> {
        let (index, damage) = self.scan(SegmentIndex::new(self.first, SEGMENT_HEADER_BYTES, tip))?;
        match damage {
            None => Ok(index),
            Some(what) => {
                let block = BlockNumber(index.tip.height);
                events::CorruptionsFound.add(1);
                Err(Error::corrupt(&self.path, index.end, Some(block), what))
            }
        }
    }

    /// Adds records to `index` while they are intact and continue the chain; also returns what is wrong if they stop before
    /// the end of the file.
    fn scan(&self, mut index: SegmentIndex) -> Result<(SegmentIndex, Option<String>), Error> {
        while index.end < self.bytes {
            if let Err(what) = self.scan_one(&mut index)? {
                return Ok((index, Some(what)));
            }
        }
        Ok((index, None))
    }

    fn scan_one(&self, index: &mut SegmentIndex) -> Result<Result<(), String>, Error> {
        let offset = index.end;
        if offset > u64::from(u32::MAX) {
            return Ok(Err("the segment is larger than its format allows".into()));
        }
        let header = match RecordHeader::decode(&self.read(offset, RECORD_HEADER_BYTES)?) {
            Ok(header) => header,
            Err(what) => return Ok(Err(what)),
        };
        let bytes = header.record_bytes().expect("the decoder checked the lengths");
        if bytes > self.bytes - offset {
            return Ok(Err(format!("the record of block {} is cut off", header.number)));
        }
        let tip = index.tip;
        if header.number.get() != tip.height || header.previous_hash != tip.header_hash || header.epoch < tip.epoch {
            return Ok(Err(format!("the record of block {} does not continue the chain here", header.number)));
        }
        let record = self.read(offset, bytes as usize)?;
        Ok(header.check_body(&record).and_then(|()| index.push_encoded(&header, &record[header.transactions_range()])))
    }

    fn torn(&self, offset: u64, tip: ChainTip, what: String) -> TornTail {
        let block = BlockNumber(tip.height);
        TornTail { path: self.path.clone(), offset, bytes: self.bytes - offset.min(self.bytes), block, what }
    }

    fn corrupt(&self, offset: u64, what: String) -> Error {
        events::CorruptionsFound.add(1);
        Error::corrupt(Path::new(&self.path), offset, None, what)
    }
}
