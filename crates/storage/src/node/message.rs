//! The bodies of requests, answers and notifications; see `docs/formats/storage-messages.md`.
//!
//! Messages travel as frames of [`base::rt::net::rpc`]. Integers are little-endian. Bytes may be hostile: decoders
//! return [`Malformed`], and check counts against the bytes present before they allocate memory. The node reads a
//! request's list of keys or ids in place ([`KeyList`], [`TxIdList`]). The client decodes the answers into a list in
//! which it has reserved space for each key or id of its request.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::net::GatherList;
use base::untrusted::AllocationBudget;
use base::{BlockNumber, Bytes, Epoch, TxId, TxIndex, Version};
use wire::hello;
use wire::{Input, Malformed, Reader, VersionRange, Writer};

use super::view::{Installation, ViewId};
use super::{CHANNEL_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::blocks::{ChainTip, NewBlock, StoredBlock, TransactionList, TransactionLocation, encode_transactions};
use crate::state_store::KEYS_MAX;
use crate::tables::{KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, RangeEntry, RangePage, Row, Savepoint, is_row_key};

/// The versions of the messages that this program speaks.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(2);
const PURPOSE: [u8; 8] = *b"HEDDLEST";
/// The longest transaction id that a request may look up.
const ID_BYTES_MAX: usize = 64 << 10;
/// Transaction ids in one request.
pub const IDS_MAX: usize = 1 << 20;

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkPurpose {
    /// Reads.
    Reader,
    /// Appends, for the primary. A later link of this role under the same epoch replaces an earlier one.
    Appender,
    /// Reads, and materialises and prunes for the primary.
    Materializer,
}

/// The first request of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub versions: VersionRange,
    pub purpose: LinkPurpose,
    pub epoch: Epoch,
    pub token: Bytes,
    /// Empty on a link that only asks for the names of channels or about epochs.
    pub channel: String,
}

/// The answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    pub tip: ChainTip,
    pub durable: u64,
    pub savepoint: Savepoint,
}

/// The first byte of a request to append.
const APPEND: u8 = 1;
/// Bytes of such a request before the list of transactions: its kind, number, epoch, two hashes, and the count and bytes of
/// the transactions.
const APPEND_HEAD_BYTES: usize = 1 + 8 + 8 + 32 + 32 + 4 + 4;

/// A block on its way to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendRequest {
    pub number: BlockNumber,
    pub epoch: Epoch,
    pub header_hash: [u8; 32],
    pub previous_hash: [u8; 32],
    pub transactions: Vec<(TxId, u8)>,
    pub payload: GatherList,
}

/// Pairs of namespace and key, as encoded in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyList {
    count: u32,
    /// Validated when the message was decoded.
    encoded: Bytes,
}

/// Transaction ids, as encoded in the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxIdList {
    count: u32,
    /// Validated when the message was decoded.
    encoded: Bytes,
}

/// The list was validated when its message was decoded.
const CHECKED: &str = "the form was checked when the message was read";

impl KeyList {
    /// Encodes pairs whose lengths the caller has checked.
    pub fn new(keys: &[(&str, &[u8])]) -> KeyList {
        let mut writer = Writer::new();
        keys.iter().for_each(|(namespace, key)| {
            writer.text(namespace).long(key);
        });
        KeyList { count: keys.len() as u32, encoded: writer.done() }
    }

    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut rest = Reader::new(&self.encoded[..]);
        (0..self.count).map(move |_| KeyList::next(&mut rest).expect(CHECKED))
    }

    /// Appends the list to a message.
    pub fn put(&self, writer: &mut Writer) {
        writer.u32(self.count).put(&self.encoded);
    }

    fn next<'a>(reader: &mut Reader<&'a [u8]>) -> Result<(&'a str, &'a [u8]), Malformed> {
        Ok((reader.str(NAMESPACE_BYTES_MAX)?, read_key(reader)?))
    }
}

impl TxIdList {
    /// Encodes ids whose lengths the caller has checked.
    pub fn new(ids: &[TxId]) -> TxIdList {
        let mut writer = Writer::new();
        writer.reserve(ids.iter().map(|id| id.len().saturating_add(4)).sum());
        ids.iter().for_each(|id| {
            writer.long(id.as_str().as_bytes());
        });
        TxIdList { count: ids.len() as u32, encoded: writer.done() }
    }

    /// The ids in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let mut rest = Reader::new(&self.encoded[..]);
        (0..self.count).map(move |_| TxIdList::next(&mut rest).expect(CHECKED))
    }

    fn next<'a>(reader: &mut Reader<&'a [u8]>) -> Result<&'a str, Malformed> {
        std::str::from_utf8(reader.long(ID_BYTES_MAX)?).map_err(|_| reader.malformed("an id is not UTF-8"))
    }
}

/// The requests on an open link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Append(AppendRequest),
    /// Sync everything, the durable watermark included.
    Close,
    Read(BlockNumber),
    Page {
        from: BlockNumber,
        limit: u32,
    },
    Transactions(BlockNumber),
    NumberByHash([u8; 32]),
    FindTransactions(TxIdList),
    /// The tags of all transaction ids in one shard of the fingerprints.
    Tags(u8),
    Rows {
        through: BlockNumber,
        keys: KeyList,
    },
    Versions {
        through: BlockNumber,
        keys: KeyList,
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
    /// Whether the epoch is the newest one.
    Confirm {
        epoch: Epoch,
    },
    Channels,
    /// The newest epoch of a channel.
    Epoch(String),
    /// Begin a new epoch for a channel.
    Begin(String),
    /// Begin a new epoch for a channel, if none later than `newest` has begun.
    BeginAfter {
        newest: Epoch,
        channel: String,
    },
    /// What the node has of its copy of a channel.
    CopyStatus(String),
    /// Begin this epoch of a channel, if the node has no newer view than this one.
    BeginIn {
        epoch: Epoch,
        newest: ViewId,
        channel: String,
    },
    /// Take over a view.
    Install {
        installation: Installation,
        channel: String,
    },
    /// Whether this is the newest view.
    CheckView(ViewId),
    /// A request for private rows, which [`super::private_message`] decodes.
    Private(Bytes),
    /// Which blocks wrote a key.
    History {
        below: BlockNumber,
        limit: u32,
        namespace: String,
        key: Bytes,
    },
}

/// What a node sends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    Durable(u64),
    Savepoint(Savepoint),
}

/// Fields of several messages.
trait ReadFields {
    fn block(&mut self) -> Result<BlockNumber, Malformed>;
    fn epoch(&mut self) -> Result<Epoch, Malformed>;
    fn version(&mut self) -> Result<Version, Malformed>;
    fn savepoint(&mut self) -> Result<Savepoint, Malformed>;
    fn transactions(&mut self, allowance: &mut AllocationBudget) -> Result<Vec<(TxId, u8)>, Malformed>;
    fn keys(&mut self) -> Result<KeyList, Malformed>;
    fn ids(&mut self) -> Result<TxIdList, Malformed>;
}

impl ReadFields for Reader<Bytes> {
    fn block(&mut self) -> Result<BlockNumber, Malformed> {
        self.u64().map(BlockNumber)
    }

    fn epoch(&mut self) -> Result<Epoch, Malformed> {
        self.u64().map(Epoch)
    }

    fn version(&mut self) -> Result<Version, Malformed> {
        Ok(Version::new(self.u64()?, self.u32()?))
    }

    fn savepoint(&mut self) -> Result<Savepoint, Malformed> {
        Ok(Savepoint { height: self.u64()?, epoch: self.epoch()?, block_hash: self.array()? })
    }

    fn transactions(&mut self, allowance: &mut AllocationBudget) -> Result<Vec<(TxId, u8)>, Malformed> {
        let count = self.u32()?;
        transactions(&self.long(usize::MAX)?, count, allowance).map_err(|what| self.malformed(what))
    }

    fn keys(&mut self) -> Result<KeyList, Malformed> {
        let count = self.count(6, KEYS_MAX)?;
        let encoded = self.span(|ahead| (0..count).try_for_each(|_| KeyList::next(ahead).map(drop)))?;
        Ok(KeyList { count: count as u32, encoded })
    }

    fn ids(&mut self) -> Result<TxIdList, Malformed> {
        let count = self.count(4, IDS_MAX)?;
        let encoded = self.span(|ahead| (0..count).try_for_each(|_| TxIdList::next(ahead).map(drop)))?;
        Ok(TxIdList { count: count as u32, encoded })
    }
}

/// Reads a key that a row may have.
///
/// # Errors
/// [`Malformed`].
pub fn read_key<I: Input>(fields: &mut Reader<I>) -> Result<I, Malformed> {
    let key = fields.long(KEY_BYTES_MAX)?;
    match is_row_key(key.as_ref()) {
        true => Ok(key),
        false => Err(fields.malformed("a key is too long")),
    }
}

/// Reads the keys of a request.
///
/// # Errors
/// [`Malformed`].
pub fn read_keys(fields: &mut Reader<Bytes>) -> Result<KeyList, Malformed> {
    fields.keys()
}

trait WriteFields {
    fn version(&mut self, version: Version) -> &mut Self;
    fn savepoint(&mut self, savepoint: &Savepoint) -> &mut Self;
}

impl WriteFields for Writer {
    fn version(&mut self, version: Version) -> &mut Writer {
        self.u64(version.block).u32(version.tx)
    }

    fn savepoint(&mut self, savepoint: &Savepoint) -> &mut Writer {
        self.u64(savepoint.height).u64(savepoint.epoch.get()).put(&savepoint.block_hash)
    }
}

/// A message of this kind.
fn message(kind: u8) -> Writer {
    let mut writer = Writer::new();
    writer.u8(kind);
    writer
}

impl Hello {
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        let role = match self.purpose {
            LinkPurpose::Reader => 0,
            LinkPurpose::Appender => 1,
            LinkPurpose::Materializer => 2,
        };
        writer.put(&hello::Hello { purpose: PURPOSE, versions: self.versions }.encode());
        writer.u8(role).u64(self.epoch.get()).short(&self.token).text(&self.channel).done()
    }

    /// The request, or the versions that the client speaks, if this program speaks none of them: then the rest is of no
    /// known format.
    pub fn decode(bytes: Bytes) -> Result<Result<Hello, VersionRange>, Malformed> {
        let mut fields = Reader::new(bytes);
        let hello::Hello { versions, .. } = hello::Hello::read(&mut fields, PURPOSE)?;
        if PROTOCOL_VERSIONS.choose(versions).is_err() {
            return Ok(Err(versions));
        }
        let purpose = match fields.u8()? {
            0 => LinkPurpose::Reader,
            1 => LinkPurpose::Appender,
            2 => LinkPurpose::Materializer,
            _ => return Err(fields.malformed("unknown role")),
        };
        let (epoch, token) = (fields.epoch()?, fields.short(TOKEN_BYTES_MAX)?);
        let channel = fields.text(CHANNEL_BYTES_MAX)?;
        fields.end().map(|()| Ok(Hello { versions, purpose, epoch, token, channel }))
    }
}

impl Welcome {
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u64(self.tip.height).put(&self.tip.header_hash).u64(self.tip.epoch.get());
        writer.u64(self.durable).savepoint(&self.savepoint).done()
    }

    pub fn decode(bytes: Bytes) -> Result<Welcome, Malformed> {
        let mut fields = Reader::new(bytes);
        let tip = ChainTip { height: fields.u64()?, header_hash: fields.array()?, epoch: fields.epoch()? };
        let opened = Welcome { tip, durable: fields.u64()?, savepoint: fields.savepoint()? };
        fields.end().map(|()| opened)
    }
}

impl Notification {
    pub fn encode(&self) -> Bytes {
        match self {
            Notification::Durable(height) => message(1).u64(*height).done(),
            Notification::Savepoint(savepoint) => message(2).savepoint(savepoint).done(),
        }
    }

    pub fn decode(bytes: Bytes) -> Result<Notification, Malformed> {
        let mut fields = Reader::new(bytes);
        let notice = match fields.u8()? {
            1 => Notification::Durable(fields.u64()?),
            2 => Notification::Savepoint(fields.savepoint()?),
            _ => return Err(fields.malformed("unknown notice")),
        };
        fields.end().map(|()| notice)
    }
}

/// Memory of an id beside its text, and of its entry in a list: a shared text is preceded by two reference counts.
const TRANSACTION_BYTES: usize = size_of::<(TxId, u8)>() + 2 * size_of::<usize>() + 7;
const TOO_SMALL: &str = "its items would take too much memory for its size";

fn transactions(bytes: &[u8], count: u32, allowance: &mut AllocationBudget) -> Result<Vec<(TxId, u8)>, &'static str> {
    allowance.take(bytes.len(), 1).ok_or(TOO_SMALL)?;
    let mut list = Vec::with_capacity(allowance.take(count as usize, TRANSACTION_BYTES).ok_or(TOO_SMALL)?);
    for item in TransactionList::new(bytes, count) {
        let (id, code) = item.map_err(|_| "a list of transactions is malformed")?;
        list.push((TxId::new(id), code));
    }
    Ok(list)
}

impl AppendRequest {
    /// The payload stays in the parts in which it arrived.
    fn decode(mut message: GatherList) -> Result<AppendRequest, Malformed> {
        let mut allowance = AllocationBudget::authenticated(message.len());
        let head = message.split_to(message.len().min(APPEND_HEAD_BYTES));
        let mut fields = Reader::new(head.concat());
        fields.u8()?;
        let (number, epoch) = (fields.block()?, fields.epoch()?);
        let (header_hash, previous_hash) = (fields.array()?, fields.array()?);
        let (count, bytes) = (fields.u32()?, fields.u32()? as usize);
        if message.len() < bytes {
            return Err(fields.malformed("the list of transactions is cut off"));
        }
        // If the list arrived in several parts, it is copied into one.
        allowance.take(bytes, 1).ok_or_else(|| fields.malformed(TOO_SMALL))?;
        let list = message.split_to(bytes).concat();
        let transactions = transactions(&list, count, &mut allowance).map_err(|what| fields.malformed(what))?;
        Ok(AppendRequest { number, epoch, header_hash, previous_hash, transactions, payload: message })
    }
}

/// Encodes an append directly from the block, without copying its bytes.
pub fn append(block: &NewBlock<'_>) -> GatherList {
    let transactions = encode_transactions(block.transactions);
    let mut writer = message(APPEND);
    writer.u64(block.number.get()).u64(block.epoch.get()).put(&block.header_hash).put(&block.previous_hash);
    let head = writer.u32(block.transactions.len() as u32).u32(transactions.len() as u32).done();
    let mut parts = Vec::with_capacity(block.parts.len().saturating_add(2));
    parts.extend([head, transactions]);
    parts.extend_from_slice(block.parts);
    parts.into()
}

/// Encodes a request for rows from borrowed keys.
pub fn rows(through: BlockNumber, keys: &[(&str, &[u8])], versions_only: bool) -> Bytes {
    of_keys(through, &KeyList::new(keys), versions_only)
}

fn of_keys(through: BlockNumber, keys: &KeyList, versions_only: bool) -> Bytes {
    let mut writer = message(if versions_only { 17 } else { 16 });
    writer.reserve(keys.encoded.len().saturating_add(12));
    writer.u64(through.get()).u32(keys.count).put(&keys.encoded).done()
}

fn of_ids(ids: &TxIdList) -> Bytes {
    let mut writer = message(7);
    writer.reserve(ids.encoded.len().saturating_add(4));
    writer.u32(ids.count).put(&ids.encoded).done()
}

fn named(op: u8, channel: &str) -> Bytes {
    let mut writer = message(op);
    writer.text(channel);
    writer.done()
}

/// Encodes a request for transactions from borrowed ids.
pub fn find_transactions(ids: &[TxId]) -> Bytes {
    of_ids(&TxIdList::new(ids))
}

/// Encodes a request for a range.
pub fn range(through: BlockNumber, limit: u32, namespace: &str, start: &[u8], end: &[u8]) -> Bytes {
    message(18).u64(through.get()).u32(limit).text(namespace).long(start).long(end).done()
}

/// Encodes a request for a history.
pub fn history(below: BlockNumber, limit: u32, namespace: &str, key: &[u8]) -> Bytes {
    message(25).u64(below.get()).u32(limit).text(namespace).long(key).done()
}

impl Request {
    /// The request's bytes.
    pub fn encode(&self) -> GatherList {
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
            Request::Close => message(2).done(),
            Request::Read(number) => message(3).u64(number.get()).done(),
            Request::Page { from, limit } => message(4).u64(from.get()).u32(*limit).done(),
            Request::Transactions(number) => message(5).u64(number.get()).done(),
            Request::NumberByHash(hash) => message(6).put(hash).done(),
            Request::FindTransactions(ids) => of_ids(ids),
            Request::Tags(shard) => message(8).put(&[*shard]).done(),
            Request::Rows { through, keys } => of_keys(*through, keys, false),
            Request::Versions { through, keys } => of_keys(*through, keys, true),
            Request::Range { through, limit, namespace, start, end } => range(*through, *limit, namespace, start, end),
            Request::Namespaces => message(19).done(),
            Request::Materialize { epoch, height } => message(20).u64(epoch.get()).u64(*height).done(),
            Request::Prune { epoch, oldest } => message(21).u64(epoch.get()).u64(oldest.get()).done(),
            Request::Confirm { epoch } => message(26).u64(epoch.get()).done(),
            Request::Channels => message(22).done(),
            Request::Epoch(channel) => named(23, channel),
            Request::Begin(channel) => named(24, channel),
            Request::BeginAfter { newest, channel } => message(27).u64(newest.get()).text(channel).done(),
            Request::CopyStatus(channel) => named(29, channel),
            Request::BeginIn { epoch, newest, channel } => {
                message(30).u64(epoch.get()).u64(newest.number).u64(newest.epoch.get()).text(channel).done()
            }
            Request::Install { installation, channel } => {
                let mut writer = message(31);
                installation.put(&mut writer);
                writer.text(channel).done()
            }
            Request::CheckView(view) => message(32).u64(view.number).u64(view.epoch.get()).done(),
            Request::Private(body) => message(28).put(body).done(),
            Request::History { below, limit, namespace, key } => history(*below, *limit, namespace, key),
        };
        bytes.into()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(message: impl Into<GatherList>) -> Result<Request, Malformed> {
        let message = message.into();
        if message.first() == Some(APPEND) {
            return AppendRequest::decode(message).map(Request::Append);
        }
        let mut fields = Reader::new(message.concat());
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
                let (start, end) = (read_key(&mut fields)?, read_key(&mut fields)?);
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
                let (namespace, key) = (fields.text(NAMESPACE_BYTES_MAX)?, read_key(&mut fields)?);
                Request::History { below, limit, namespace, key }
            }
            29 => Request::CopyStatus(fields.text(CHANNEL_BYTES_MAX)?),
            30 => Request::BeginIn {
                epoch: fields.epoch()?,
                newest: ViewId { number: fields.u64()?, epoch: fields.epoch()? },
                channel: fields.text(CHANNEL_BYTES_MAX)?,
            },
            31 => Request::Install {
                installation: Installation::read(&mut fields)?,
                channel: fields.text(CHANNEL_BYTES_MAX)?,
            },
            32 => Request::CheckView(ViewId { number: fields.u64()?, epoch: fields.epoch()? }),
            28 => return Ok(Request::Private(fields.rest())),
            _ => return Err(fields.malformed("unknown request")),
        };
        fields.end().map(|()| request)
    }
}

/// Bytes of a version.
const VERSION_BYTES: usize = 12;
/// An entry of a page takes at most four times as much memory as bytes in a message.
const _: () = assert!(size_of::<RangeEntry>() <= 4 * (VERSION_BYTES + 4 + 4));

/// Answers, each with its reader.
pub mod response {
    use super::*;

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
        number.map_or_else(GatherList::default, response::number)
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
    pub fn read_places(
        bytes: Bytes,
        count: usize,
        into: &mut Vec<Option<TransactionLocation>>,
    ) -> Result<(), Malformed> {
        let mut fields = Reader::new(bytes);
        for _ in 0..count {
            into.push(match fields.u8()? {
                0 => None,
                1 => Some(TransactionLocation {
                    block: fields.block()?,
                    index: TxIndex(fields.u32()?),
                    code: fields.u8()?,
                }),
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
}
