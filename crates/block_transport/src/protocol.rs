//! The block protocol between a peer and an orderer, over a link.
//!
//! 1. The peer sends one request: the channel, and the number of the first block.
//! 2. The orderer answers with a rejection and ends the link, or sends blocks in order, one per message, without end.
//!    While there is no block to send, it sends a keepalive every [`KEEPALIVE`]. A peer that receives nothing for
//!    [`SILENCE_MAX`] turns to another orderer. A peer that knows other orderers also leaves an orderer that sends only
//!    keepalives for that long.
//! 3. The peer acknowledges each block that it has taken. The orderer sends at most [`WINDOW_BLOCKS`] unacknowledged
//!    blocks. It answers any other message with a rejection.
//!
//! ```text
//! request       version:u8 = 1 | channel length:u16 le | channel | from:u64 le
//! acknowledged  1
//! block         an encoded Block, whose first byte is never 0
//! rejection     0 | 0 | reason, as text
//! keepalive     0 | 1
//! ```
//!
//! Either side may send hostile bytes; malformed bytes decode into an error. The page `docs/formats/block-links.md`
//! describes the protocol for other implementations.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Duration;

use base::Bytes;
use wire::{Malformed, Reader, VersionRange, Writer};

/// How often an idle orderer sends a keepalive.
pub const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long a peer waits without receiving anything.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);
/// The most blocks that an orderer sends beyond those that the peer has acknowledged.
pub const WINDOW_BLOCKS: usize = 8;
/// A peer's acknowledgement of one block.
pub const BLOCK_ACKNOWLEDGED: &[u8] = &[1];
/// The largest length of a channel's name in bytes.
pub const CHANNEL_BYTES_MAX: usize = 249;
/// The largest number of bytes of a rejection's reason that a peer reads.
const REASON_BYTES_MAX: usize = 1024;

/// The versions of a request that an orderer reads; a byte of the request, which has no answer.
const PROTOCOL_VERSIONS: VersionRange = VersionRange::only(1);

/// The blocks that a peer asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverRequest {
    /// The channel's name, at most [`CHANNEL_BYTES_MAX`] bytes.
    pub channel: String,
    /// The first block.
    pub from: u64,
}

/// What an orderer sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliverResponse {
    /// An encoded block, not checked yet.
    Block(Bytes),
    /// The reason why no block will come.
    Rejection(String),
    /// A keepalive.
    Keepalive,
}

impl DeliverRequest {
    /// The request's bytes.
    pub fn encode(&self) -> Bytes {
        assert!(self.channel.len() <= CHANNEL_BYTES_MAX, "channel names are checked when a channel is joined");
        Writer::new().u8(PROTOCOL_VERSIONS.newest() as u8).text(&self.channel).u64(self.from).done()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<DeliverRequest, Malformed> {
        let mut reader = Reader::new(bytes);
        if !PROTOCOL_VERSIONS.contains(reader.u8()?.into()) {
            return Err(Malformed { what: "the version is not supported", at: 0 });
        }
        let request = DeliverRequest { channel: reader.text(CHANNEL_BYTES_MAX)?, from: reader.u64()? };
        reader.end()?;
        Ok(request)
    }
}

impl DeliverResponse {
    /// The reply's bytes.
    pub fn encode(self) -> Bytes {
        match self {
            DeliverResponse::Block(bytes) => bytes,
            DeliverResponse::Keepalive => Bytes::from_static(&[0, 1]),
            DeliverResponse::Rejection(reason) => [&[0, 0], reason.as_bytes()].concat().into(),
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<DeliverResponse, Malformed> {
        match bytes.as_ref() {
            [] => Err(Malformed { what: "an empty message", at: 0 }),
            [0, 1] => Ok(DeliverResponse::Keepalive),
            [0, 0, reason @ ..] => {
                let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
                Ok(DeliverResponse::Rejection(String::from_utf8_lossy(reason).into_owned()))
            }
            [0, ..] => Err(Malformed { what: "an unknown kind", at: 1 }),
            _ => Ok(DeliverResponse::Block(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_have_the_documented_layout() {
        let request = DeliverRequest { channel: "ab".into(), from: 0x0102 };
        assert_eq!(request.encode()[..], [1, 2, 0, b'a', b'b', 2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn replies_come_back() {
        for reply in [
            DeliverResponse::Keepalive,
            DeliverResponse::Rejection("no".into()),
            DeliverResponse::Block(Bytes::from_static(&[10, 0])),
        ] {
            assert_eq!(DeliverResponse::decode(reply.clone().encode()), Ok(reply));
        }
        assert!(DeliverResponse::decode(Bytes::from_static(&[0, 7])).is_err());
        assert!(DeliverResponse::decode(Bytes::new()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_that_encodes_to_them_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(request) = DeliverRequest::decode(&bytes) {
                prop_assert_eq!(&request.encode()[..], &bytes[..]);
            }
        }
    }
}
