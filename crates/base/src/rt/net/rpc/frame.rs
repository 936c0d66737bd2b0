//! Encodes and decodes frames: requests, replies, rejections and notices. [`super`] shows their bytes.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::{BufMut, Bytes, BytesMut};

use super::{BODY_BYTES_MAX, REJECTION_BYTES_MAX, Rejection};
use crate::ErrorKind;
use crate::rt::net::GatherList;

/// Bytes before the body.
pub const HEADER_BYTES: usize = 16;
/// Parts of a body with at least this many bytes are not copied; below that, one more part costs the link as much as a copy.
const UNCOPIED_BYTES_MIN: usize = 4 << 10;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RpcFrameKind {
    Request = 1,
    Response = 2,
    Rejection = 3,
    Notification = 4,
}

/// A frame to send.
#[derive(Debug)]
pub struct OutgoingFrame {
    pub kind: RpcFrameKind,
    pub number: u64,
    pub body: GatherList,
}

/// A frame that was received.
#[derive(Debug, PartialEq, Eq)]
pub struct IncomingFrame {
    pub kind: RpcFrameKind,
    pub number: u64,
    pub body: GatherList,
}

/// The bytes form no valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame: {0}")]
pub struct Malformed(pub &'static str);

impl OutgoingFrame {
    /// Length of the encoded frame.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Bytes of the encoded frame that are copied.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn copied_bytes(&self) -> usize {
        let short = self.body.as_slice().iter().map(Bytes::len).filter(|bytes| *bytes < UNCOPIED_BYTES_MIN);
        HEADER_BYTES + short.sum::<usize>()
    }

    /// Appends the frame to the copied bytes. A long part is not copied: it ends the current part of the message and
    /// becomes a separate part.
    fn encode(&self, parts: &mut Vec<Bytes>, copied: &mut BytesMut) {
        let length = self.body.len();
        assert!(length <= BODY_BYTES_MAX, "lengths are checked where bodies come in");
        copied.put_u8(self.kind as u8);
        copied.put_bytes(0, 3);
        copied.put_u32_le(length as u32);
        copied.put_u64_le(self.number);
        for part in self.body.as_slice() {
            if part.len() < UNCOPIED_BYTES_MIN {
                copied.put_slice(part);
            } else {
                if !copied.is_empty() {
                    parts.push(copied.split().freeze());
                }
                parts.push(part.clone());
            }
        }
    }
}

/// Frames as one message.
pub fn message(frames: &[OutgoingFrame]) -> GatherList {
    let mut parts = Vec::new();
    let mut copied = BytesMut::with_capacity(frames.iter().map(OutgoingFrame::copied_bytes).sum());
    frames.iter().for_each(|frame| frame.encode(&mut parts, &mut copied));
    if parts.is_empty() {
        return copied.freeze().into();
    }
    if !copied.is_empty() {
        parts.push(copied.freeze());
    }
    parts.into()
}

/// Takes the next frame off a message; the body shares the message's memory. `None` at the end of the message.
pub fn next(message: &mut GatherList) -> Result<Option<IncomingFrame>, Malformed> {
    if message.is_empty() {
        return Ok(None);
    }
    if message.len() < HEADER_BYTES {
        return Err(Malformed("cut off in the header"));
    }
    let header = message.split_to(HEADER_BYTES).concat();
    let [kind, a, b, c, l0, l1, l2, l3, number @ ..] =
        *header.first_chunk::<HEADER_BYTES>().expect("as many were taken");
    let kind = match kind {
        1 => RpcFrameKind::Request,
        2 => RpcFrameKind::Response,
        3 => RpcFrameKind::Rejection,
        4 => RpcFrameKind::Notification,
        _ => return Err(Malformed("unknown kind")),
    };
    if [a, b, c] != [0; 3] {
        return Err(Malformed("reserved bytes are not 0"));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > BODY_BYTES_MAX {
        return Err(Malformed("a body above the limit"));
    }
    if message.len() < length {
        return Err(Malformed("cut off in the body"));
    }
    let body = message.split_to(length);
    Ok(Some(IncomingFrame { kind, number: u64::from_le_bytes(number), body }))
}

/// The body of a refusal: the number of its kind plus 1, then the text.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub fn encode_rejection(refusal: &Rejection) -> GatherList {
    let mut bytes = Vec::with_capacity(1 + refusal.text.len());
    bytes.push(refusal.kind.number() + 1);
    bytes.extend_from_slice(refusal.text.as_bytes());
    bytes.into()
}

/// Decodes the body of a refusal. Invalid UTF-8 in the text is replaced.
pub fn decode_rejection(body: &[u8]) -> Result<Rejection, Malformed> {
    let (kind, text) = body.split_first().ok_or(Malformed("an empty refusal"))?;
    let kind = u64::from(*kind).checked_sub(1).and_then(ErrorKind::of_number).ok_or(Malformed("unknown error"))?;
    let text = &text[..text.len().min(REJECTION_BYTES_MAX)];
    Ok(Rejection::new(kind, String::from_utf8_lossy(text)))
}
