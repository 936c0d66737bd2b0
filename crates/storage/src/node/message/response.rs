//! Answers, each with its reader.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::net::GatherList;
use base::untrusted::AllocationBudget;
use base::{BlockNumber, Bytes, TxId, TxIndex, Version};
use wire::{Malformed, Reader, Writer};

use super::fields::{ReadFields, TOO_SMALL, WriteFields};
use crate::blocks::{StoredBlock, TransactionLocation, encode_transactions};
use crate::tables::{RangeEntry, RangePage, Row, Savepoint};

/// Bytes of a version.
const VERSION_BYTES: usize = 12;
/// An entry of a page takes at most four times as much memory as bytes in a message.
const _: () = assert!(size_of::<RangeEntry>() <= 4 * (VERSION_BYTES + 4 + 4));

pub fn number(number: u64) -> GatherList {
    Writer::new().u64(number).done().into()
}

pub fn read_number(bytes: Bytes) -> Result<u64, Malformed> {
    let mut fields = Reader::new(bytes);
    let number = fields.u64()?;
    fields.end().map(|()| number)
}

/// `None` is encoded as no bytes.
pub fn maybe_number(number: Option<u64>) -> GatherList {
    number.map_or_else(GatherList::default, self::number)
}

pub fn read_maybe_number(bytes: Bytes) -> Result<Option<u64>, Malformed> {
    if bytes.is_empty() { Ok(None) } else { read_number(bytes).map(Some) }
}

pub fn numbers(numbers: &[BlockNumber]) -> GatherList {
    let mut writer = Writer::new();
    writer.u32(numbers.len() as u32);
    numbers.iter().for_each(|number| {
        writer.u64(number.get());
    });
    writer.done().into()
}

pub fn read_numbers(bytes: Bytes, max: usize) -> Result<Vec<BlockNumber>, Malformed> {
    let mut fields = Reader::new(bytes);
    let count = fields.count(8, max)?;
    let mut numbers = Vec::with_capacity(count);
    for _ in 0..count {
        numbers.push(fields.block()?);
    }
    fields.end().map(|()| numbers)
}

/// `None` is encoded as no bytes; a block's bytes follow a 1.
pub fn maybe_block(block: Option<Bytes>) -> GatherList {
    block.map_or_else(GatherList::default, |block| vec![Bytes::from_static(&[1]), block].into())
}

pub fn read_maybe_block(bytes: Bytes) -> Result<Option<Bytes>, Malformed> {
    match bytes.first() {
        None => Ok(None),
        Some(1) => Ok(Some(bytes.slice(1..))),
        Some(_) => Err(Malformed { what: "it is neither a block nor `none`", at: 0 }),
    }
}

pub fn blocks(blocks: &[StoredBlock]) -> GatherList {
    let mut parts = Vec::with_capacity(blocks.len().saturating_mul(2));
    for block in blocks {
        let transactions = encode_transactions(&block.transactions);
        let mut writer = Writer::new();
        writer.u64(block.number.get()).u64(block.epoch.get());
        writer.put(&block.header_hash).put(&block.previous_hash);
        writer.u32(block.transactions.len() as u32).long(&transactions);
        parts.push(writer.u32(block.payload.len() as u32).done());
        parts.push(block.payload.clone());
    }
    parts.into()
}

/// Reads at most `count_max` blocks.
pub fn read_blocks(bytes: Bytes, count_max: usize) -> Result<Vec<StoredBlock>, Malformed> {
    let mut allowance = AllocationBudget::authenticated(bytes.len());
    let mut fields = Reader::new(bytes);
    let mut blocks = Vec::new();
    while !fields.is_empty() {
        if blocks.len() == count_max {
            return Err(fields.malformed("it holds more blocks than the client asked for"));
        }
        let (number, epoch) = (fields.block()?, fields.epoch()?);
        let (header_hash, previous_hash) = (fields.array()?, fields.array()?);
        let transactions = fields.transactions(&mut allowance)?;
        let payload = fields.long(usize::MAX)?;
        blocks.push(StoredBlock { number, header_hash, previous_hash, epoch, payload, transactions });
    }
    Ok(blocks)
}

pub fn maybe_transactions(list: Option<Vec<(TxId, u8)>>) -> GatherList {
    let Some(list) = list else { return GatherList::default() };
    Writer::new().u32(list.len() as u32).long(&encode_transactions(&list)).done().into()
}

pub fn read_maybe_transactions(bytes: Bytes) -> Result<Option<Vec<(TxId, u8)>>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut allowance = AllocationBudget::authenticated(bytes.len());
    let mut fields = Reader::new(bytes);
    let list = fields.transactions(&mut allowance)?;
    fields.end().map(|()| Some(list))
}

/// Builds an answer item by item, while the items are found.
#[derive(Default)]
pub struct ResponseWriter(Writer);

impl ResponseWriter {
    /// The place of a transaction.
    pub fn place(&mut self, place: Option<TransactionLocation>) {
        match place {
            None => self.0.put(&[0]),
            Some(place) => self.0.put(&[1]).u64(place.block.get()).u32(place.index.get()).put(&[place.code]),
        };
    }

    /// A row.
    pub fn row(&mut self, row: Option<&Row>) {
        match row {
            None => self.0.put(&[0]),
            Some(Row { version, value: None }) => self.0.put(&[1]).version(*version),
            Some(Row { version, value: Some(value) }) => self.0.put(&[2]).version(*version).long(value),
        };
    }

    /// A version, and whether the key is live.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn version(&mut self, version: Option<(Version, bool)>) {
        match version {
            None => self.0.put(&[0]),
            Some((version, live)) => self.0.put(&[1 + u8::from(live)]).version(version),
        };
    }

    /// The answer.
    pub fn done(mut self) -> GatherList {
        self.0.done().into()
    }
}

/// Reads `count` places and appends them to `into`, in which the caller has reserved space.
pub fn read_places(bytes: Bytes, count: usize, into: &mut Vec<Option<TransactionLocation>>) -> Result<(), Malformed> {
    let mut fields = Reader::new(bytes);
    for _ in 0..count {
        into.push(match fields.u8()? {
            0 => None,
            1 => {
                Some(TransactionLocation { block: fields.block()?, index: TxIndex(fields.u32()?), code: fields.u8()? })
            }
            _ => return Err(fields.malformed("an item is neither a place nor `none`")),
        });
    }
    fields.end()
}

pub fn tags(tags: &[u32]) -> GatherList {
    let mut writer = Writer::with_capacity(tags.len().saturating_mul(4));
    tags.iter().for_each(|tag| {
        writer.u32(*tag);
    });
    writer.done().into()
}

pub fn read_tags(bytes: &Bytes) -> Result<impl Iterator<Item = u32>, Malformed> {
    let (tags, rest) = bytes.as_chunks::<4>();
    match rest.is_empty() {
        true => Ok(tags.iter().map(|tag| u32::from_le_bytes(*tag))),
        false => Err(Malformed { what: "a tag is cut off", at: bytes.len() }),
    }
}

/// Reads rows for the first of the `count_max` keys that the caller asked for, at least one, and appends them to
/// `into`, in which the caller has reserved space. The client asks again for the missing ones.
pub fn read_rows(bytes: Bytes, count_max: usize, into: &mut Vec<Option<Row>>) -> Result<(), Malformed> {
    const ANOTHER: &str = "it holds another number of rows than the client asked for";
    let mut fields = Reader::new(bytes);
    let mut room = count_max;
    while !fields.is_empty() {
        room = room.checked_sub(1).ok_or_else(|| fields.malformed(ANOTHER))?;
        into.push(match fields.u8()? {
            0 => None,
            1 => Some(Row { version: fields.version()?, value: None }),
            2 => Some(Row { version: fields.version()?, value: Some(fields.long(usize::MAX)?) }),
            _ => return Err(fields.malformed("an item is neither a row nor `none`")),
        });
    }
    if room == count_max && count_max > 0 { Err(fields.malformed(ANOTHER)) } else { Ok(()) }
}

/// Reads `count` versions and appends them to `into`, in which the caller has reserved space.
pub fn read_versions(bytes: Bytes, count: usize, into: &mut Vec<Option<(Version, bool)>>) -> Result<(), Malformed> {
    let mut fields = Reader::new(bytes);
    for _ in 0..count {
        into.push(match fields.u8()? {
            0 => None,
            live @ 1..=2 => Some((fields.version()?, live == 2)),
            _ => return Err(fields.malformed("an item is neither a version nor `none`")),
        });
    }
    fields.end()
}

pub fn page(page: &RangePage) -> GatherList {
    let mut writer = Writer::new();
    match &page.next {
        None => writer.put(&[0]),
        Some(next) => writer.put(&[1]).long(next),
    };
    for RangeEntry { key, value, version } in &page.entries {
        writer.version(*version).long(key).long(value);
    }
    writer.done().into()
}

pub fn read_page(bytes: Bytes) -> Result<RangePage, Malformed> {
    let mut fields = Reader::new(bytes);
    let next = match fields.u8()? {
        0 => None,
        1 => Some(fields.long(usize::MAX)?),
        _ => return Err(fields.malformed("a page's next key is malformed")),
    };
    // Counted before memory is allocated for the entries.
    let (mut walk, mut count) = (Reader::new(fields.peek()), 0_usize);
    while !walk.is_empty() {
        walk.bytes(VERSION_BYTES)?;
        walk.long(usize::MAX)?;
        walk.long(usize::MAX)?;
        count = count.saturating_add(1);
    }
    let mut entries = Vec::with_capacity(count);
    while !fields.is_empty() {
        let version = fields.version()?;
        entries.push(RangeEntry { key: fields.long(usize::MAX)?, value: fields.long(usize::MAX)?, version });
    }
    Ok(RangePage { entries, next })
}

pub fn names(names: &[String]) -> GatherList {
    let mut writer = Writer::new();
    names.iter().for_each(|name| {
        writer.text(name);
    });
    writer.done().into()
}

pub fn read_names(bytes: Bytes) -> Result<Vec<String>, Malformed> {
    let mut allowance = AllocationBudget::authenticated(bytes.len());
    let (mut walk, mut count) = (Reader::new(&bytes[..]), 0_usize);
    while !walk.is_empty() {
        walk.short(usize::MAX)?;
        count = count.saturating_add(1);
    }
    let too_small = || Malformed { what: TOO_SMALL, at: 0 };
    allowance.take(bytes.len(), 1).ok_or_else(too_small)?;
    let mut names = Vec::with_capacity(allowance.take(count, size_of::<String>()).ok_or_else(too_small)?);
    let mut fields = Reader::new(bytes);
    while !fields.is_empty() {
        names.push(fields.text(usize::from(u16::MAX))?);
    }
    Ok(names)
}

pub fn savepoint(savepoint: &Savepoint) -> GatherList {
    Writer::new().savepoint(savepoint).done().into()
}

pub fn read_savepoint(bytes: Bytes) -> Result<Savepoint, Malformed> {
    let mut fields = Reader::new(bytes);
    let savepoint = fields.savepoint()?;
    fields.end().map(|()| savepoint)
}
