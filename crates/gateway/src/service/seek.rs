//! A signed request for blocks: what it asks, and whether it may.
//!
//! 1. Bytes that are no envelope with headers, a missing or stale timestamp, a request without start or stop, and a stop
//!    before the start are answered 400.
//! 2. A channel that is not held here, and a start beyond the next block, are answered 404.
//! 3. A signer who is no member, has expired, may not read, or did not sign, is answered 403.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use base::rt::WallTime;
use bytes::Bytes;
use chain::access::Rules;
use identity::Identity;
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, Payload, SignatureHeader, Status};
use proto::orderer::seek_info::{SeekBehavior, SeekContentType};
use proto::orderer::{SeekInfo, SeekPosition, seek_position};

use crate::rpc;

/// How far a request's clock may be from ours.
pub(super) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);

/// A request that was understood.
#[derive(Debug)]
pub(super) struct Seek {
    pub channel: String,
    payload: Bytes,
    signature: Bytes,
    creator: Bytes,
    info: Bytes,
}

/// The blocks that a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    /// The first block.
    pub next: u64,
    /// The last block.
    pub last: u64,
    /// Whether to wait for blocks that are not there yet.
    pub waits: bool,
    /// Whether transactions are left out.
    pub headers_only: bool,
}

impl Seek {
    /// Reads an envelope.
    ///
    /// # Errors
    /// `BAD_REQUEST`.
    pub(super) fn parse(envelope: Bytes, now: WallTime) -> Result<Seek, Status> {
        let bad = |_| Status::BadRequest;
        let envelope = Envelope::decode(envelope).map_err(bad)?;
        let payload = Payload::decode(envelope.payload.clone()).map_err(bad)?;
        let header = payload.header.ok_or(Status::BadRequest)?;
        let channel_header = ChannelHeader::decode(header.channel_header).map_err(bad)?;
        let signature_header = SignatureHeader::decode(header.signature_header).map_err(bad)?;
        let timestamp = channel_header.timestamp.ok_or(Status::BadRequest)?;
        if timestamp.seconds.abs_diff(now.seconds() as i64) > CLOCK_SKEW_MAX.as_secs() {
            return Err(Status::BadRequest);
        }
        Ok(Seek {
            channel: channel_header.channel_id,
            payload: envelope.payload,
            signature: envelope.signature,
            creator: signature_header.creator,
            info: payload.data,
        })
    }

    /// Reads a request, all of it. For property tests and fuzzers.
    ///
    /// # Errors
    /// What the request would be refused with, as a status of gRPC.
    pub(super) fn read(envelope: Bytes) -> Result<(), rpc::Status> {
        let range = Seek::parse(envelope, base::rt::wall_now()).and_then(|seek| seek.range(1));
        range.map(drop).map_err(|answer| rpc::Status::invalid_argument(answer.as_str_name()))
    }

    /// Who asks, once the signature was checked. Whether they may is [`Session`]'s to say.
    ///
    /// # Errors
    /// `FORBIDDEN`.
    pub(super) fn signer(&self, rules: &Rules) -> Result<Arc<Identity>, Status> {
        let identity = rules.identify(&self.creator).map_err(|_| Status::Forbidden)?;
        identity.verify(&self.payload, &self.signature).map_err(|_| Status::Forbidden)?;
        Ok(identity)
    }

    /// The blocks that are asked for, on a channel of this height.
    ///
    /// # Errors
    /// `BAD_REQUEST`, `NOT_FOUND`.
    pub(super) fn range(&self, height: u64) -> Result<Range, Status> {
        let info = SeekInfo::decode(self.info.clone()).map_err(|_| Status::BadRequest)?;
        let newest = height.saturating_sub(1);
        let position = |position: &Option<SeekPosition>| position.as_ref().and_then(|position| position.r#type);
        let start = match position(&info.start).ok_or(Status::BadRequest)? {
            seek_position::Type::Oldest(_) => 0,
            seek_position::Type::Newest(_) => newest,
            seek_position::Type::NextCommit(_) => height,
            seek_position::Type::Specified(specified) => specified.number,
        };
        let last = match position(&info.stop).ok_or(Status::BadRequest)? {
            seek_position::Type::Oldest(_) => start,
            seek_position::Type::Newest(_) => newest.max(start),
            seek_position::Type::NextCommit(_) => height,
            seek_position::Type::Specified(specified) => specified.number,
        };
        if start > height {
            return Err(Status::NotFound);
        }
        if last < start {
            return Err(Status::BadRequest);
        }
        Ok(Range {
            next: start,
            last,
            waits: info.behavior == SeekBehavior::BlockUntilReady as i32,
            headers_only: info.content_type == SeekContentType::HeaderWithSig as i32,
        })
    }
}
