//! Reads a signed request for blocks. This module and [`super::deliver`] refuse a request in these cases:
//!
//! 1. With 400: bytes that are not an envelope with headers; a missing or stale timestamp; a missing start or stop; a
//!    stop before the start.
//! 2. With 404: an unknown channel; a start beyond the next block.
//! 3. With 403: a wrong signature; a signer who is not a member, has an expired certificate or may not read.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::sync::Arc;
use std::time::Duration;

use base::rt::WallTime;
use bytes::Bytes;
use identity::Identity;
use prost::Message as _;
use proto::common::{ChannelHeader, Envelope, Payload, SignatureHeader, Status};
use proto::orderer::seek_info::{SeekBehavior, SeekContentType};
use proto::orderer::{SeekInfo, SeekPosition, seek_position};
use rules::access::ChannelPolicies;

use crate::grpc;

/// How far a request's timestamp may be from the local clock.
pub(super) const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);

/// A decoded request.
#[derive(Debug)]
pub(super) struct SeekRequest {
    pub channel: String,
    payload: Bytes,
    signature: Bytes,
    creator: Bytes,
    info: Bytes,
}

/// The blocks that a request asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockRange {
    /// The first block.
    pub next: u64,
    /// The last block.
    pub last: u64,
    /// Whether to wait for future blocks.
    pub waits: bool,
    /// Whether transactions are left out.
    pub headers_only: bool,
}

impl SeekRequest {
    /// Reads an envelope.
    ///
    /// # Errors
    /// `BAD_REQUEST`.
    pub(super) fn parse(envelope: Bytes, now: WallTime) -> Result<SeekRequest, Status> {
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
        Ok(SeekRequest {
            channel: channel_header.channel_id,
            payload: envelope.payload,
            signature: envelope.signature,
            creator: signature_header.creator,
            info: payload.data,
        })
    }

    /// Reads a request in full. For property tests and fuzzers.
    ///
    /// # Errors
    /// The refusal of the request, as a gRPC status.
    pub(super) fn read(envelope: Bytes) -> Result<(), grpc::GrpcStatus> {
        let range = SeekRequest::parse(envelope, base::rt::wall_now()).and_then(|seek| seek.range(1));
        range.map(drop).map_err(|answer| grpc::GrpcStatus::invalid_argument(answer.as_str_name()))
    }

    /// The signer, once the signature was checked. The module `deliver` decides whether the signer may read.
    ///
    /// # Errors
    /// `FORBIDDEN`.
    pub(super) fn signer(&self, rules: &ChannelPolicies) -> Result<Arc<Identity>, Status> {
        let identity = rules.identify(&self.creator).map_err(|_| Status::Forbidden)?;
        identity.verify(&self.payload, &self.signature).map_err(|_| Status::Forbidden)?;
        Ok(identity)
    }

    /// The requested blocks, on a channel of this height.
    ///
    /// # Errors
    /// `BAD_REQUEST`, `NOT_FOUND`.
    pub(super) fn range(&self, height: u64) -> Result<BlockRange, Status> {
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
        Ok(BlockRange {
            next: start,
            last,
            waits: info.behavior == SeekBehavior::BlockUntilReady as i32,
            headers_only: info.content_type == SeekContentType::HeaderWithSig as i32,
        })
    }
}
