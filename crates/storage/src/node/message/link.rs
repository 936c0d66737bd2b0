//! The hello of a link, the node's answer, and what the node sends unasked.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::{Bytes, Epoch};
use wire::hello;
use wire::{Malformed, Reader, VersionRange, Writer};

use super::fields::{ReadFields, WriteFields, message};
use crate::blocks::ChainTip;
use crate::node::{CHANNEL_BYTES_MAX, TOKEN_BYTES_MAX};
use crate::tables::Savepoint;

/// The versions of the messages that this program speaks.
pub const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(2);
const PURPOSE: [u8; 8] = *b"HEDDLEST";

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

/// What a node sends without being asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification {
    Durable(u64),
    Savepoint(Savepoint),
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
