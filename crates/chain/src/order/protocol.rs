//! What a peer and an orderer say to each other over a link.
//!
//! 1. The peer sends one request: which channel, from which block on.
//! 2. The orderer answers with a refusal and ends the link, or with blocks in order, each one message, without end. While
//!    there is no block to send it sends a sign of life every [`KEEPALIVE`]; a peer that hears nothing for
//!    [`SILENCE_MAX`] asks elsewhere, and so does one that hears nothing else for as long and knows of other orderers.
//! 3. The peer says of each block that it has taken it. The orderer sends at most [`WINDOW_BLOCKS`] beyond those.
//!
//! ```text
//! request   version:u8 = 1 | channel length:u16 le | channel | from:u64 le
//! taken     1
//! block     an encoded Block, whose first byte is never 0
//! refusal   0 | 0 | reason, as text
//! alive     0 | 1
//! ```
//!
//! All of these bytes may be hostile to the other side, and are read into errors. The page `docs/formats/block-links.md`
//! says the same to other implementations.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::time::Duration;

use base::Bytes;

/// How often an idle orderer shows that it lives.
pub const KEEPALIVE: Duration = Duration::from_secs(5);
/// How long a peer listens to silence.
pub const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Blocks that are on their way to a peer that has not taken them yet.
pub const WINDOW_BLOCKS: usize = 8;
/// What a peer says of a block that it has taken.
pub const TAKEN: &[u8] = &[1];
/// Bytes of a channel's name.
pub const CHANNEL_BYTES_MAX: usize = 249;
/// Bytes of a refusal that a peer looks at.
const REASON_BYTES_MAX: usize = 1024;

const VERSION: u8 = 1;

/// Which blocks a peer wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub channel: String,
    /// The first block.
    pub from: u64,
}

/// What an orderer sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// An encoded block, not looked at yet.
    Block(Bytes),
    /// Nothing more will come, and why.
    Refusal(String),
    /// Nothing new.
    Alive,
}

/// Bytes that are no message of this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of the block protocol: {0}")]
pub struct Malformed(&'static str);

impl Request {
    /// The request's bytes.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn encode(&self) -> Bytes {
        assert!(self.channel.len() <= CHANNEL_BYTES_MAX, "channel names are checked when a channel is joined");
        let mut bytes = Vec::with_capacity(11 + self.channel.len());
        bytes.push(VERSION);
        bytes.extend_from_slice(&(self.channel.len() as u16).to_le_bytes());
        bytes.extend_from_slice(self.channel.as_bytes());
        bytes.extend_from_slice(&self.from.to_le_bytes());
        bytes.into()
    }

    /// Reads a request.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let (&[version, low, high], rest) = bytes.split_first_chunk().ok_or(Malformed("too short"))?;
        if version != VERSION {
            return Err(Malformed("another version"));
        }
        let length = usize::from(u16::from_le_bytes([low, high]));
        if length > CHANNEL_BYTES_MAX || rest.len() != length + 8 {
            return Err(Malformed("the length is not that of its channel and block number"));
        }
        let (channel, from) = rest.split_at(length);
        let channel = std::str::from_utf8(channel).map_err(|_| Malformed("the channel is not text"))?;
        let from = from.try_into().map_err(|_| Malformed("too short"))?;
        Ok(Request { channel: channel.to_owned(), from: u64::from_le_bytes(from) })
    }
}

impl Reply {
    /// The reply's bytes.
    pub fn encode(self) -> Bytes {
        match self {
            Reply::Block(bytes) => bytes,
            Reply::Alive => Bytes::from_static(&[0, 1]),
            Reply::Refusal(reason) => [&[0, 0], reason.as_bytes()].concat().into(),
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(bytes: Bytes) -> Result<Reply, Malformed> {
        match bytes.as_ref() {
            [] => Err(Malformed("empty")),
            [0, 1] => Ok(Reply::Alive),
            [0, 0, reason @ ..] => {
                let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
                Ok(Reply::Refusal(String::from_utf8_lossy(reason).into_owned()))
            }
            [0, ..] => Err(Malformed("an unknown kind")),
            _ => Ok(Reply::Block(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_have_the_documented_layout() {
        let request = Request { channel: "ab".into(), from: 0x0102 };
        assert_eq!(request.encode()[..], [1, 2, 0, b'a', b'b', 2, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn replies_come_back() {
        for reply in [Reply::Alive, Reply::Refusal("no".into()), Reply::Block(Bytes::from_static(&[10, 0]))] {
            assert_eq!(Reply::decode(reply.clone().encode()), Ok(reply));
        }
        assert!(Reply::decode(Bytes::from_static(&[0, 7])).is_err());
        assert!(Reply::decode(Bytes::new()).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_that_encodes_to_them_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(&request.encode()[..], &bytes[..]);
            }
        }
    }
}
