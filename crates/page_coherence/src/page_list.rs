//! The run-length code of a list of pages: of the caller's resident pages in a call, of written pages in a reply.
//!
//! ```text
//! runs u32, then of each run two varints: gap << 1 | writable, pages - 1
//! ```
//!
//! `gap` is the number of pages between the end of the run before (page 0 for the first) and this run. A varint has seven
//! bits a byte, lowest first, the high bit set on all bytes but the last, and no needless bytes. Two neighbouring runs with
//! the same right would be one run, so a set of pages has one encoding.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::ops::Range;

use base::Bytes;
use wire::{Input, Malformed, Reader, Writer};

use crate::page::{PAGE_NUMBERS, Right};
use crate::run_map::RunMap;

/// Most runs of a list. Such a list takes at most 13 bytes a run, 832 KiB.
pub const RUNS_MAX: usize = 1 << 16;

/// Bytes of the shortest run.
const RUN_BYTES_MIN: usize = 2;

/// Pages with the right of each, in the form in which messages carry them: valid, and decoded run by run.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct PageList {
    runs: u32,
    /// The runs as they are encoded, which [`read_run`] has accepted.
    encoded: Bytes,
}

impl PageList {
    /// The list of the pages of a map, whose rights are to read or to write; `None` if it has more than [`RUNS_MAX`] runs.
    pub fn of_rights(rights: &RunMap<Right>) -> Option<PageList> {
        let runs = rights.runs();
        (runs.len() <= RUNS_MAX).then(|| PageList::encode(runs.map(|(pages, right)| (pages, right == Right::Write))))
    }

    /// A set of written pages as lists, the last of which may have no pages.
    pub(crate) fn of_written(pages: &RunMap<()>) -> Vec<PageList> {
        let runs: Vec<(Range<u64>, bool)> = pages.runs().map(|(pages, ())| (pages, true)).collect();
        let mut lists: Vec<PageList> =
            runs.chunks(RUNS_MAX).map(|runs| PageList::encode(runs.iter().cloned())).collect();
        if lists.is_empty() {
            lists.push(PageList::default());
        }
        lists
    }

    /// One list that covers a set of pages. A set of more than [`RUNS_MAX`] runs becomes the one run from the first page to the last one.
    pub(crate) fn that_covers(pages: &RunMap<()>) -> PageList {
        match pages.bounds() {
            Some(all) if pages.runs().len() > RUNS_MAX => PageList::encode(std::iter::once((all, true))),
            _ => PageList::encode(pages.runs().map(|(pages, ())| (pages, true))),
        }
    }

    #[allow(clippy::arithmetic_side_effects, reason = "the runs of a map are in order, and none is empty")]
    fn encode(runs: impl Iterator<Item = (Range<u64>, bool)>) -> PageList {
        let mut writer = Writer::new();
        let (mut count, mut end) = (0, 0);
        for (pages, is_writable) in runs {
            put_varint(&mut writer, (pages.start - end) << 1 | u64::from(is_writable));
            put_varint(&mut writer, pages.end - pages.start - 1);
            (count, end) = (count + 1, pages.end);
        }
        PageList { runs: count, encoded: writer.done() }
    }

    /// Appends the list to a message.
    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u32(self.runs).put(&self.encoded);
    }

    /// Takes a list off the front of a message. The list shares the message's memory.
    ///
    /// # Errors
    /// [`Malformed`] if the runs are not the only encoding of a list of at most [`RUNS_MAX`] runs below [`PAGE_NUMBERS`].
    pub fn read(reader: &mut Reader<Bytes>) -> Result<PageList, Malformed> {
        let runs = reader.count(RUN_BYTES_MIN, RUNS_MAX)?;
        let encoded = reader.span(|ahead| {
            let mut last = None;
            for _ in 0..runs {
                last = Some(read_run(ahead, last)?);
            }
            Ok::<(), Malformed>(())
        })?;
        Ok(PageList { runs: runs as u32, encoded })
    }

    /// The runs, in order: their pages, and the right to them.
    pub fn runs(&self) -> impl Iterator<Item = (Range<u64>, Right)> + '_ {
        let mut reader = Reader::new(&self.encoded[..]);
        let mut last = None;
        (0..self.runs).map(move |_| {
            let run = read_run(&mut reader, last.clone()).expect("the runs were checked when they were read");
            last = Some(run.clone());
            (run.0, if run.1 { Right::Write } else { Right::Read })
        })
    }

    /// Whether it has no pages.
    pub fn is_empty(&self) -> bool {
        self.runs == 0
    }

    /// Bytes that it takes in a message.
    pub fn encoded_bytes(&self) -> usize {
        self.encoded.len().saturating_add(4)
    }
}

/// Reads the run behind `last`.
fn read_run<I: Input>(
    reader: &mut Reader<I>,
    last: Option<(Range<u64>, bool)>,
) -> Result<(Range<u64>, bool), Malformed> {
    let head = read_varint(reader)?;
    let more = read_varint(reader)?;
    let (gap, is_writable) = (head >> 1, head & 1 == 1);
    let start = last.as_ref().map_or(0, |(pages, _)| pages.end).checked_add(gap);
    let end = start.and_then(|start| start.checked_add(more)?.checked_add(1));
    let (Some(start), Some(end)) = (start, end.filter(|end| *end <= PAGE_NUMBERS)) else {
        return Err(reader.malformed("a run of pages ends behind the last page"));
    };
    if gap == 0 && last.is_some_and(|(_, was_writable)| was_writable == is_writable) {
        return Err(reader.malformed("two runs of pages are one"));
    }
    Ok((start..end, is_writable))
}

fn put_varint(writer: &mut Writer, mut number: u64) {
    while number >= 0x80 {
        writer.u8(number as u8 | 0x80);
        number >>= 7;
    }
    writer.u8(number as u8);
}

fn read_varint<I: Input>(reader: &mut Reader<I>) -> Result<u64, Malformed> {
    let mut number = 0;
    // Numbers of pages have 36 bits, with the right 37: six bytes of seven bits hold them.
    for shift in (0..42).step_by(7) {
        let byte = reader.u8()?;
        number |= u64::from(byte & 0x7f).wrapping_shl(shift);
        if byte & 0x80 == 0 {
            return match byte == 0 && shift > 0 {
                true => Err(reader.malformed("a number has needless bytes")),
                false => Ok(number),
            };
        }
    }
    Err(reader.malformed("a number is too long"))
}

#[cfg(test)]
mod tests;
