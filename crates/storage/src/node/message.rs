//! The bodies of requests, answers and notices; see `docs/formats/storage-messages.md`.
//!
//! They travel as frames of [`base::rt::net::call`]. Integers are little-endian. Decoders take hostile bytes and return
//! [`Malformed`]; counts are checked against the bytes that are there before memory is taken for them. Lists of a request
//! ([`Keys`], [`Ids`]) stay in its bytes, and an answer to a list is read into a list that whoever asked has made.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::net::Parts;
use base::untrusted::Allowance;
use base::{BlockNumber, Bytes, BytesMut, Epoch, TxId, TxIndex, Version};

use super::{CHANNEL_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::blocks::{NewBlock, StoredBlock, Tip, TransactionPlace, Transactions, encode_transactions};
use crate::state_store::KEYS_MAX;
use crate::tables::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, RangeEntry, RangePage, Row, Savepoint};

/// The version of the messages.
pub const VERSION: u32 = 2;
/// What the first request of a link begins with, whatever its version.
const MAGIC: [u8; 8] = *b"HEDDLEST";
/// Bytes of a transaction id that are looked for.
const ID_BYTES_MAX: usize = 64 << 10;
/// Transaction ids in one question.
pub const IDS_MAX: usize = 1 << 20;

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message between storage nodes and their clients: {0}")]
pub struct Malformed(pub &'static str);

const CUT_OFF: Malformed = Malformed("it is cut off");

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Reads.
    Reader,
    /// Appends, for the primary. A later link of this role under the same epoch takes the place of an earlier one.
    Appender,
    /// Reads, and materialises and prunes for the primary.
    Materializer,
}

/// The first request of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version: u32,
    pub role: Role,
    pub epoch: Epoch,
    pub token: Bytes,
    /// Empty to ask for the names of channels only.
    pub channel: String,
}

/// The answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub tip: Tip,
    pub durable: u64,
    pub savepoint: Savepoint,
}

/// The first byte of a request to append.
const APPEND: u8 = 1;
/// Bytes of such a request before the list of transactions: what it is, number, epoch, two hashes, and how many transactions
/// there are in how many bytes.
const APPEND_HEAD_BYTES: usize = 1 + 8 + 8 + 32 + 32 + 4 + 4;

/// A block on its way to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Append {
    pub number: BlockNumber,
    pub epoch: Epoch,
    pub header_hash: [u8; 32],
    pub previous_hash: [u8; 32],
    pub transactions: Vec<(TxId, u8)>,
    pub payload: Parts,
}

/// Pairs of namespace and key, in the bytes in which they travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    count: u32,
    /// Their form was checked.
    encoded: Bytes,
}

/// Transaction ids, in the bytes in which they travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    count: u32,
    /// Their form was checked.
    encoded: Bytes,
}

/// The form of a list was checked when its message was read.
const CHECKED: &str = "the form was checked when the message was read";

impl Keys {
    /// These pairs, the lengths of which the caller has checked.
    pub fn new(keys: &[(&str, &[u8])]) -> Keys {
        let mut writer = Writer::default();
        keys.iter().for_each(|(namespace, key)| {
            writer.text(namespace).long(key);
        });
        Keys { count: keys.len() as u32, encoded: writer.done() }
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = &self.encoded[..];
        (0..self.count).map(move |_| Keys::next(&mut rest).expect(CHECKED))
    }

    fn next<'a>(rest: &mut &'a [u8]) -> Result<(&'a str, &'a [u8]), Malformed> {
        let length = usize::from(u16::from_le_bytes(front(rest)?));
        if length > NAMESPACE_BYTES_MAX {
            return Err(Malformed("a text is too long"));
        }
        let namespace = std::str::from_utf8(split(rest, length)?).map_err(|_| Malformed("a text is no UTF-8"))?;
        Ok((namespace, long(rest, KEY_BYTES_MAX)?))
    }
}

impl Ids {
    /// These ids, the lengths of which the caller has checked.
    pub fn new(ids: &[TxId]) -> Ids {
        let mut writer = Writer::default();
        writer.0.reserve(ids.iter().map(|id| id.len().saturating_add(4)).sum());
        ids.iter().for_each(|id| {
            writer.long(id.as_str().as_bytes());
        });
        Ids { count: ids.len() as u32, encoded: writer.done() }
    }

    /// The ids in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = &self.encoded[..];
        (0..self.count).map(move |_| Ids::next(&mut rest).expect(CHECKED))
    }

    fn next<'a>(rest: &mut &'a [u8]) -> Result<&'a str, Malformed> {
        std::str::from_utf8(long(rest, ID_BYTES_MAX)?).map_err(|_| Malformed("an id is no UTF-8"))
    }
}

/// The first bytes, which are taken off.
fn split<'a>(rest: &mut &'a [u8], count: usize) -> Result<&'a [u8], Malformed> {
    let (first, others) = rest.split_at_checked(count).ok_or(CUT_OFF)?;
    *rest = others;
    Ok(first)
}

fn front<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], Malformed> {
    let (first, others) = rest.split_first_chunk::<N>().ok_or(CUT_OFF)?;
    *rest = others;
    Ok(*first)
}

/// Bytes with their length in 4 bytes.
fn long<'a>(rest: &mut &'a [u8], max: usize) -> Result<&'a [u8], Malformed> {
    let length = u32::from_le_bytes(front(rest)?) as usize;
    if length > max {
        return Err(Malformed("bytes are too many"));
    }
    split(rest, length)
}

/// What may be asked on an open link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Append(Append),
    /// Sync everything, the durable mark included.
    Close,
    Read(BlockNumber),
    Page {
        from: BlockNumber,
        limit: u32,
    },
    Transactions(BlockNumber),
    NumberByHash([u8; 32]),
    FindTransactions(Ids),
    /// The tags of all transaction ids of a shard of fingerprints.
    Tags(u8),
    Rows {
        through: BlockNumber,
        keys: Keys,
    },
    Versions {
        through: BlockNumber,
        keys: Keys,
    },
    Range {
        through: BlockNumber,
        limit: u32,
        namespace: String,
        start: Bytes,
        end: Bytes,
    },
    Namespaces,
    Materialize {
        epoch: Epoch,
        height: u64,
    },
    Prune {
        epoch: Epoch,
        oldest: BlockNumber,
    },
    /// Whether this is the newest epoch.
    Confirm {
        epoch: Epoch,
    },
    Channels,
    /// The newest epoch of a channel.
    Epoch(String),
    /// A new epoch for a channel.
    Begin(String),
    /// A new epoch for a channel, if no later one than this has begun.
    BeginAfter {
        newest: Epoch,
        channel: String,
    },
    /// Which blocks wrote a key.
    History {
        below: BlockNumber,
        limit: u32,
        namespace: String,
        key: Bytes,
    },
}

/// What a node says unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Durable(u64),
    Savepoint(Savepoint),
}

/// Takes fields off the front of a message; slices share its memory.
struct Fields(Bytes);

impl Fields {
    fn bytes(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if self.0.len() < count {
            return Err(CUT_OFF);
        }
        Ok(self.0.split_to(count))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let array = *self.0.first_chunk::<N>().ok_or(CUT_OFF)?;
        self.0 = self.0.slice(N..);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn block(&mut self) -> Result<BlockNumber, Malformed> {
        self.u64().map(BlockNumber)
    }

    fn epoch(&mut self) -> Result<Epoch, Malformed> {
        self.u64().map(Epoch)
    }

    /// A short text: its length in 2 bytes, then UTF-8.
    fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > max {
            return Err(Malformed("a text is too long"));
        }
        String::from_utf8(self.bytes(length)?.to_vec()).map_err(|_| Malformed("a text is no UTF-8"))
    }

    /// Bytes with their length in 4 bytes.
    fn long(&mut self, max: usize) -> Result<Bytes, Malformed> {
        let length = self.u32()? as usize;
        if length > max {
            return Err(Malformed("bytes are too many"));
        }
        self.bytes(length)
    }

    /// A number of things that take `least` bytes each, at least.
    fn count(&mut self, least: usize, max: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > max || count.saturating_mul(least) > self.0.len() {
            return Err(Malformed("more things than bytes"));
        }
        Ok(count)
    }

    fn transactions(&mut self, allowance: &mut Allowance) -> Result<Vec<(TxId, u8)>, Malformed> {
        let count = self.u32()?;
        transactions(&self.long(usize::MAX)?, count, allowance)
    }

    fn version(&mut self) -> Result<Version, Malformed> {
        Ok(Version::new(self.u64()?, self.u32()?))
    }

    fn savepoint(&mut self) -> Result<Savepoint, Malformed> {
        Ok(Savepoint { height: self.u64()?, epoch: self.epoch()?, block_hash: self.array()? })
    }

    fn keys(&mut self) -> Result<Keys, Malformed> {
        let count = self.count(6, KEYS_MAX)?;
        let encoded = self.checked(count, |rest| Keys::next(rest).map(|_| ()))?;
        Ok(Keys { count: count as u32, encoded })
    }

    fn ids(&mut self) -> Result<Ids, Malformed> {
        let count = self.count(4, IDS_MAX)?;
        let encoded = self.checked(count, |rest| Ids::next(rest).map(|_| ()))?;
        Ok(Ids { count: count as u32, encoded })
    }

    /// The bytes of so many things, each of which is walked over.
    fn checked(
        &mut self,
        count: usize,
        walk: impl Fn(&mut &[u8]) -> Result<(), Malformed>,
    ) -> Result<Bytes, Malformed> {
        let mut rest = &self.0[..];
        for _ in 0..count {
            walk(&mut rest)?;
        }
        let bytes = self.0.len().saturating_sub(rest.len());
        self.bytes(bytes)
    }

    /// What is left of a message that must be at its end.
    fn end<T>(self, value: T) -> Result<T, Malformed> {
        match self.0.is_empty() {
            true => Ok(value),
            false => Err(Malformed("it is too long")),
        }
    }
}

/// Writes fields one after another.
#[derive(Default)]
struct Writer(BytesMut);

impl Writer {
    fn op(op: u8) -> Writer {
        let mut writer = Writer::default();
        writer.put(&[op]);
        writer
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Writer {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(&mut self, number: u32) -> &mut Writer {
        self.put(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> &mut Writer {
        self.put(&number.to_le_bytes())
    }

    /// Texts that do not fit are refused where they come in.
    fn text(&mut self, text: &str) -> &mut Writer {
        assert!(text.len() <= usize::from(u16::MAX), "short texts are checked before they are sent");
        self.put(&(text.len() as u16).to_le_bytes()).put(text.as_bytes())
    }

    fn long(&mut self, bytes: &[u8]) -> &mut Writer {
        self.u32(bytes.len() as u32).put(bytes)
    }

    fn version(&mut self, version: Version) -> &mut Writer {
        self.u64(version.block).u32(version.tx)
    }

    fn savepoint(&mut self, savepoint: &Savepoint) -> &mut Writer {
        self.u64(savepoint.height).u64(savepoint.epoch.get()).put(&savepoint.block_hash)
    }

    fn done(&mut self) -> Bytes {
        std::mem::take(&mut self.0).freeze()
    }
}

impl Hello {
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        let role = match self.role {
            Role::Reader => 0,
            Role::Appender => 1,
            Role::Materializer => 2,
        };
        writer.put(&MAGIC).u32(self.version).put(&[role]).u64(self.epoch.get());
        writer.put(&(self.token.len() as u16).to_le_bytes()).put(&self.token);
        writer.text(&self.channel).done()
    }

    /// The version, and the rest where that is ours.
    pub fn decode(bytes: Bytes) -> Result<(u32, Option<Hello>), Malformed> {
        let mut fields = Fields(bytes);
        if fields.array()? != MAGIC {
            return Err(Malformed("it does not begin as a link does"));
        }
        let version = fields.u32()?;
        if version != VERSION {
            return Ok((version, None));
        }
        let role = match fields.u8()? {
            0 => Role::Reader,
            1 => Role::Appender,
            2 => Role::Materializer,
            _ => return Err(Malformed("unknown role")),
        };
        let epoch = fields.epoch()?;
        let token = usize::from(fields.u16()?);
        if token > TOKEN_BYTES_MAX {
            return Err(Malformed("the token is too long"));
        }
        let token = fields.bytes(token)?;
        let channel = fields.text(CHANNEL_BYTES_MAX)?;
        fields.end((version, Some(Hello { version, role, epoch, token, channel })))
    }
}

impl Opened {
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::default();
        writer.u64(self.tip.height).put(&self.tip.header_hash).u64(self.tip.epoch.get());
        writer.u64(self.durable).savepoint(&self.savepoint).done()
    }

    pub fn decode(bytes: Bytes) -> Result<Opened, Malformed> {
        let mut fields = Fields(bytes);
        let tip = Tip { height: fields.u64()?, header_hash: fields.array()?, epoch: fields.epoch()? };
        let opened = Opened { tip, durable: fields.u64()?, savepoint: fields.savepoint()? };
        fields.end(opened)
    }
}

impl Notice {
    pub fn encode(&self) -> Bytes {
        match self {
            Notice::Durable(height) => Writer::op(1).u64(*height).done(),
            Notice::Savepoint(savepoint) => Writer::op(2).savepoint(savepoint).done(),
        }
    }

    pub fn decode(bytes: Bytes) -> Result<Notice, Malformed> {
        let mut fields = Fields(bytes);
        let notice = match fields.u8()? {
            1 => Notice::Durable(fields.u64()?),
            2 => Notice::Savepoint(fields.savepoint()?),
            _ => return Err(Malformed("unknown notice")),
        };
        fields.end(notice)
    }
}

/// Bytes of an id in memory beside its text, and of its place in a list: two counts stand before a text that is shared.
const TRANSACTION_BYTES: usize = size_of::<(TxId, u8)>() + 2 * size_of::<usize>() + 7;
const TOO_SMALL: Malformed = Malformed("it is of things that are too many for their size");

fn transactions(bytes: &[u8], count: u32, allowance: &mut Allowance) -> Result<Vec<(TxId, u8)>, Malformed> {
    allowance.take(bytes.len(), 1).ok_or(TOO_SMALL)?;
    let mut list = Vec::with_capacity(allowance.take(count as usize, TRANSACTION_BYTES).ok_or(TOO_SMALL)?);
    for item in Transactions::new(bytes, count) {
        let (id, code) = item.map_err(|_| Malformed("a list of transactions is not one"))?;
        list.push((TxId::new(id), code));
    }
    Ok(list)
}

impl Append {
    /// The payload stays in the parts in which it came.
    fn decode(mut message: Parts) -> Result<Append, Malformed> {
        let mut allowance = Allowance::authenticated(message.len());
        let head = message.split_to(message.len().min(APPEND_HEAD_BYTES));
        let mut fields = Fields(head.concat());
        fields.u8()?;
        let (number, epoch) = (fields.block()?, fields.epoch()?);
        let (header_hash, previous_hash) = (fields.array()?, fields.array()?);
        let (count, bytes) = (fields.u32()?, fields.u32()? as usize);
        if message.len() < bytes {
            return Err(CUT_OFF);
        }
        // In several parts, it is put together.
        allowance.take(bytes, 1).ok_or(TOO_SMALL)?;
        let list = message.split_to(bytes).concat();
        let transactions = transactions(&list, count, &mut allowance)?;
        Ok(Append { number, epoch, header_hash, previous_hash, transactions, payload: message })
    }
}

/// An append, from the block itself: its bytes are not copied here.
pub fn append(block: &NewBlock<'_>) -> Parts {
    let transactions = encode_transactions(block.transactions);
    let mut writer = Writer::op(APPEND);
    writer.u64(block.number.get()).u64(block.epoch.get()).put(&block.header_hash).put(&block.previous_hash);
    let head = writer.u32(block.transactions.len() as u32).u32(transactions.len() as u32).done();
    let mut parts = Vec::with_capacity(block.parts.len().saturating_add(2));
    parts.extend([head, transactions]);
    parts.extend_from_slice(block.parts);
    parts.into()
}

/// Questions about rows, from borrowed keys.
pub fn rows(through: BlockNumber, keys: &[(&str, &[u8])], versions_only: bool) -> Bytes {
    of_keys(through, &Keys::new(keys), versions_only)
}

fn of_keys(through: BlockNumber, keys: &Keys, versions_only: bool) -> Bytes {
    let mut writer = Writer::op(if versions_only { 17 } else { 16 });
    writer.0.reserve(keys.encoded.len().saturating_add(12));
    writer.u64(through.get()).u32(keys.count).put(&keys.encoded).done()
}

fn of_ids(ids: &Ids) -> Bytes {
    let mut writer = Writer::op(7);
    writer.0.reserve(ids.encoded.len().saturating_add(4));
    writer.u32(ids.count).put(&ids.encoded).done()
}

fn named(op: u8, channel: &str) -> Bytes {
    let mut writer = Writer::op(op);
    writer.text(channel);
    writer.done()
}

/// A question for transactions, from borrowed ids.
pub fn find_transactions(ids: &[TxId]) -> Bytes {
    of_ids(&Ids::new(ids))
}

/// A question for a range.
pub fn range(through: BlockNumber, limit: u32, namespace: &str, start: &[u8], end: &[u8]) -> Bytes {
    Writer::op(18).u64(through.get()).u32(limit).text(namespace).long(start).long(end).done()
}

/// A question for a history.
pub fn history(below: BlockNumber, limit: u32, namespace: &str, key: &[u8]) -> Bytes {
    Writer::op(25).u64(below.get()).u32(limit).text(namespace).long(key).done()
}

impl Request {
    /// The request's bytes.
    pub fn encode(&self) -> Parts {
        let bytes = match self {
            Request::Append(block) => {
                return append(&NewBlock {
                    number: block.number,
                    header_hash: block.header_hash,
                    previous_hash: block.previous_hash,
                    epoch: block.epoch,
                    parts: block.payload.as_slice(),
                    transactions: &block.transactions,
                });
            }
            Request::Close => Writer::op(2).done(),
            Request::Read(number) => Writer::op(3).u64(number.get()).done(),
            Request::Page { from, limit } => Writer::op(4).u64(from.get()).u32(*limit).done(),
            Request::Transactions(number) => Writer::op(5).u64(number.get()).done(),
            Request::NumberByHash(hash) => Writer::op(6).put(hash).done(),
            Request::FindTransactions(ids) => of_ids(ids),
            Request::Tags(shard) => Writer::op(8).put(&[*shard]).done(),
            Request::Rows { through, keys } => of_keys(*through, keys, false),
            Request::Versions { through, keys } => of_keys(*through, keys, true),
            Request::Range { through, limit, namespace, start, end } => range(*through, *limit, namespace, start, end),
            Request::Namespaces => Writer::op(19).done(),
            Request::Materialize { epoch, height } => Writer::op(20).u64(epoch.get()).u64(*height).done(),
            Request::Prune { epoch, oldest } => Writer::op(21).u64(epoch.get()).u64(oldest.get()).done(),
            Request::Confirm { epoch } => Writer::op(26).u64(epoch.get()).done(),
            Request::Channels => Writer::op(22).done(),
            Request::Epoch(channel) => named(23, channel),
            Request::Begin(channel) => named(24, channel),
            Request::BeginAfter { newest, channel } => Writer::op(27).u64(newest.get()).text(channel).done(),
            Request::History { below, limit, namespace, key } => history(*below, *limit, namespace, key),
        };
        bytes.into()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: impl Into<Parts>) -> Result<Request, Malformed> {
        let message = message.into();
        if message.first() == Some(APPEND) {
            return Append::decode(message).map(Request::Append);
        }
        let mut fields = Fields(message.concat());
        let request = match fields.u8()? {
            2 => Request::Close,
            3 => Request::Read(fields.block()?),
            4 => Request::Page { from: fields.block()?, limit: fields.u32()? },
            5 => Request::Transactions(fields.block()?),
            6 => Request::NumberByHash(fields.array()?),
            7 => Request::FindTransactions(fields.ids()?),
            8 => Request::Tags(fields.u8()?),
            16 => Request::Rows { through: fields.block()?, keys: fields.keys()? },
            17 => Request::Versions { through: fields.block()?, keys: fields.keys()? },
            18 => {
                let (through, limit) = (fields.block()?, fields.u32()?);
                let namespace = fields.text(NAMESPACE_BYTES_MAX)?;
                let (start, end) = (fields.long(2 * KEY_BYTES_MAX)?, fields.long(2 * KEY_BYTES_MAX)?);
                Request::Range { through, limit, namespace, start, end }
            }
            19 => Request::Namespaces,
            20 => Request::Materialize { epoch: fields.epoch()?, height: fields.u64()? },
            21 => Request::Prune { epoch: fields.epoch()?, oldest: fields.block()? },
            22 => Request::Channels,
            26 => Request::Confirm { epoch: fields.epoch()? },
            23 => Request::Epoch(fields.text(CHANNEL_BYTES_MAX)?),
            24 => Request::Begin(fields.text(CHANNEL_BYTES_MAX)?),
            27 => Request::BeginAfter { newest: fields.epoch()?, channel: fields.text(CHANNEL_BYTES_MAX)? },
            25 => {
                let (below, limit) = (fields.block()?, fields.u32()?);
                let (namespace, key) = (fields.text(NAMESPACE_BYTES_MAX)?, fields.long(KEY_BYTES_MAX)?);
                Request::History { below, limit, namespace, key }
            }
            _ => return Err(Malformed("unknown request")),
        };
        fields.end(request)
    }
}

/// Bytes of a version.
const VERSION_BYTES: usize = 12;
/// A page's entry takes no more memory than four times what it takes in a message.
const _: () = assert!(size_of::<RangeEntry>() <= 4 * (VERSION_BYTES + 4 + 4));

/// Answers, each with its reader.
pub mod answer {
    use super::*;

    pub fn number(number: u64) -> Parts {
        Writer::default().u64(number).done().into()
    }

    pub fn read_number(bytes: Bytes) -> Result<u64, Malformed> {
        let mut fields = Fields(bytes);
        let number = fields.u64()?;
        fields.end(number)
    }

    /// Nothing is no bytes.
    pub fn maybe_number(number: Option<u64>) -> Parts {
        number.map_or_else(Parts::default, answer::number)
    }

    pub fn read_maybe_number(bytes: Bytes) -> Result<Option<u64>, Malformed> {
        if bytes.is_empty() { Ok(None) } else { read_number(bytes).map(Some) }
    }

    pub fn numbers(numbers: &[BlockNumber]) -> Parts {
        let mut writer = Writer::default();
        writer.u32(numbers.len() as u32);
        numbers.iter().for_each(|number| {
            writer.u64(number.get());
        });
        writer.done().into()
    }

    pub fn read_numbers(bytes: Bytes, max: usize) -> Result<Vec<BlockNumber>, Malformed> {
        let mut fields = Fields(bytes);
        let count = fields.count(8, max)?;
        let mut numbers = Vec::with_capacity(count);
        for _ in 0..count {
            numbers.push(fields.block()?);
        }
        fields.end(numbers)
    }

    /// Nothing is no bytes, a block's bytes come after a 1.
    pub fn maybe_block(block: Option<Bytes>) -> Parts {
        block.map_or_else(Parts::default, |block| vec![Bytes::from_static(&[1]), block].into())
    }

    pub fn read_maybe_block(bytes: Bytes) -> Result<Option<Bytes>, Malformed> {
        match bytes.first() {
            None => Ok(None),
            Some(1) => Ok(Some(bytes.slice(1..))),
            Some(_) => Err(Malformed("neither a block nor none")),
        }
    }

    pub fn blocks(blocks: &[StoredBlock]) -> Parts {
        let mut parts = Vec::with_capacity(blocks.len().saturating_mul(2));
        for block in blocks {
            let transactions = encode_transactions(&block.transactions);
            let mut writer = Writer::default();
            writer.u64(block.number.get()).u64(block.epoch.get());
            writer.put(&block.header_hash).put(&block.previous_hash);
            writer.u32(block.transactions.len() as u32).long(&transactions);
            parts.push(writer.u32(block.payload.len() as u32).done());
            parts.push(block.payload.clone());
        }
        parts.into()
    }

    /// At most so many blocks.
    pub fn read_blocks(bytes: Bytes, count_max: usize) -> Result<Vec<StoredBlock>, Malformed> {
        let mut allowance = Allowance::authenticated(bytes.len());
        let mut fields = Fields(bytes);
        let mut blocks = Vec::new();
        while !fields.0.is_empty() {
            if blocks.len() == count_max {
                return Err(Malformed("more blocks than were asked for"));
            }
            let (number, epoch) = (fields.block()?, fields.epoch()?);
            let (header_hash, previous_hash) = (fields.array()?, fields.array()?);
            let transactions = fields.transactions(&mut allowance)?;
            let payload = fields.long(usize::MAX)?;
            blocks.push(StoredBlock { number, header_hash, previous_hash, epoch, payload, transactions });
        }
        Ok(blocks)
    }

    pub fn maybe_transactions(list: Option<Vec<(TxId, u8)>>) -> Parts {
        let Some(list) = list else { return Parts::default() };
        Writer::default().u32(list.len() as u32).long(&encode_transactions(&list)).done().into()
    }

    pub fn read_maybe_transactions(bytes: Bytes) -> Result<Option<Vec<(TxId, u8)>>, Malformed> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let mut allowance = Allowance::authenticated(bytes.len());
        let mut fields = Fields(bytes);
        let list = fields.transactions(&mut allowance)?;
        fields.end(Some(list))
    }

    /// An answer that is written while what it tells of is found.
    #[derive(Default)]
    pub struct Answering(Writer);

    impl Answering {
        /// Where a transaction stands.
        pub fn place(&mut self, place: Option<TransactionPlace>) {
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
        pub fn done(mut self) -> Parts {
            self.0.done().into()
        }
    }

    /// Reads so many places, and appends them to the list of whoever has asked, which has room.
    pub fn read_places(bytes: Bytes, count: usize, into: &mut Vec<Option<TransactionPlace>>) -> Result<(), Malformed> {
        let mut fields = Fields(bytes);
        for _ in 0..count {
            into.push(match fields.u8()? {
                0 => None,
                1 => {
                    Some(TransactionPlace { block: fields.block()?, index: TxIndex(fields.u32()?), code: fields.u8()? })
                }
                _ => return Err(Malformed("neither a place nor none")),
            });
        }
        fields.end(())
    }

    pub fn tags(tags: &[u32]) -> Parts {
        let mut writer = Writer(BytesMut::with_capacity(tags.len().saturating_mul(4)));
        tags.iter().for_each(|tag| {
            writer.u32(*tag);
        });
        writer.done().into()
    }

    pub fn read_tags(bytes: &Bytes) -> Result<impl Iterator<Item = u32>, Malformed> {
        let (tags, rest) = bytes.as_chunks::<4>();
        match rest.is_empty() {
            true => Ok(tags.iter().map(|tag| u32::from_le_bytes(*tag))),
            false => Err(CUT_OFF),
        }
    }

    /// Reads rows for the first of `count_max` keys that were asked, one at least, and appends them to the list of whoever has
    /// asked, which has room: the client asks again for those that are missing.
    pub fn read_rows(bytes: Bytes, count_max: usize, into: &mut Vec<Option<Row>>) -> Result<(), Malformed> {
        const ANOTHER: Malformed = Malformed("another number of rows than was asked for");
        let mut fields = Fields(bytes);
        let mut room = count_max;
        while !fields.0.is_empty() {
            room = room.checked_sub(1).ok_or(ANOTHER)?;
            into.push(match fields.u8()? {
                0 => None,
                1 => Some(Row { version: fields.version()?, value: None }),
                2 => Some(Row { version: fields.version()?, value: Some(fields.long(usize::MAX)?) }),
                _ => return Err(Malformed("neither a row nor none")),
            });
        }
        if room == count_max && count_max > 0 { Err(ANOTHER) } else { Ok(()) }
    }

    /// Reads so many versions, and appends them to the list of whoever has asked, which has room.
    pub fn read_versions(bytes: Bytes, count: usize, into: &mut Vec<Option<(Version, bool)>>) -> Result<(), Malformed> {
        let mut fields = Fields(bytes);
        for _ in 0..count {
            into.push(match fields.u8()? {
                0 => None,
                live @ 1..=2 => Some((fields.version()?, live == 2)),
                _ => return Err(Malformed("neither a version nor none")),
            });
        }
        fields.end(())
    }

    pub fn page(page: &RangePage) -> Parts {
        let mut writer = Writer::default();
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
        let mut fields = Fields(bytes);
        let next = match fields.u8()? {
            0 => None,
            1 => Some(fields.long(usize::MAX)?),
            _ => return Err(Malformed("a page has a next key or none")),
        };
        // Counted before there is room for any.
        let (mut walk, mut count) = (&fields.0[..], 0_usize);
        while !walk.is_empty() {
            split(&mut walk, VERSION_BYTES)?;
            long(&mut walk, usize::MAX)?;
            long(&mut walk, usize::MAX)?;
            count = count.saturating_add(1);
        }
        let mut entries = Vec::with_capacity(count);
        while !fields.0.is_empty() {
            let version = fields.version()?;
            entries.push(RangeEntry { key: fields.long(usize::MAX)?, value: fields.long(usize::MAX)?, version });
        }
        Ok(RangePage { entries, next })
    }

    pub fn names(names: &[String]) -> Parts {
        let mut writer = Writer::default();
        names.iter().for_each(|name| {
            writer.text(name);
        });
        writer.done().into()
    }

    pub fn read_names(bytes: Bytes) -> Result<Vec<String>, Malformed> {
        let mut allowance = Allowance::authenticated(bytes.len());
        let (mut walk, mut count) = (&bytes[..], 0_usize);
        while !walk.is_empty() {
            let length = u16::from_le_bytes(front(&mut walk)?);
            split(&mut walk, usize::from(length))?;
            count = count.saturating_add(1);
        }
        allowance.take(bytes.len(), 1).ok_or(TOO_SMALL)?;
        let mut names = Vec::with_capacity(allowance.take(count, size_of::<String>()).ok_or(TOO_SMALL)?);
        let mut fields = Fields(bytes);
        while !fields.0.is_empty() {
            names.push(fields.text(usize::from(u16::MAX))?);
        }
        Ok(names)
    }

    pub fn savepoint(savepoint: &Savepoint) -> Parts {
        Writer::default().savepoint(savepoint).done().into()
    }

    pub fn read_savepoint(bytes: Bytes) -> Result<Savepoint, Malformed> {
        let mut fields = Fields(bytes);
        let savepoint = fields.savepoint()?;
        fields.end(savepoint)
    }
}
