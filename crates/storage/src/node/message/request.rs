//! Requests, each encoded beside its decoder.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::rt::net::GatherList;
use base::untrusted::AllocationBudget;
use base::{BlockNumber, Bytes, Epoch, TxId};
use wire::{Malformed, Reader};

use super::fields::{ReadFields, TOO_SMALL, message, transactions};
use super::lists::{KeyList, TxIdList, read_ids, read_key, read_keys};
use crate::blocks::{NewBlock, encode_transactions};
use crate::node::CHANNEL_BYTES_MAX;
use crate::node::view::{Installation, ViewId};
use crate::tables::NAMESPACE_BYTES_MAX;

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
    /// A request for private rows, which [`crate::node::private_message`] decodes.
    Private(Bytes),
    /// Which blocks wrote a key.
    History {
        below: BlockNumber,
        limit: u32,
        namespace: String,
        key: Bytes,
    },
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
            7 => Request::FindTransactions(read_ids(&mut fields)?),
            8 => Request::Tags(fields.u8()?),
            16 => Request::Rows { through: fields.block()?, keys: read_keys(&mut fields)? },
            17 => Request::Versions { through: fields.block()?, keys: read_keys(&mut fields)? },
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
