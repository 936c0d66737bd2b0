//! The bytes of frames; see [`super`].

use bytes::{BufMut, Bytes, BytesMut};

use super::{BODY_BYTES_MAX, Body, REFUSAL_BYTES_MAX, Refusal};
use crate::ErrorKind;

/// Bytes before the body.
pub const HEADER_BYTES: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Request = 1,
    Reply = 2,
    Refusal = 3,
    Notice = 4,
}

/// A frame to be sent.
#[derive(Debug)]
pub struct Outgoing {
    pub kind: Kind,
    pub number: u64,
    pub body: Body,
}

/// A frame that was received.
#[derive(Debug, PartialEq, Eq)]
pub struct Incoming {
    pub kind: Kind,
    pub number: u64,
    pub body: Bytes,
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame: {0}")]
pub struct Malformed(pub &'static str);

impl Outgoing {
    /// Length of the encoded frame.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len()
    }

    /// Appends the frame.
    pub fn encode(&self, message: &mut BytesMut) {
        let length = self.body.len();
        assert!(length <= BODY_BYTES_MAX, "lengths are checked where bodies come in");
        message.put_u8(self.kind as u8);
        message.put_bytes(0, 3);
        message.put_u32_le(length as u32);
        message.put_u64_le(self.number);
        self.body.parts().iter().for_each(|part| message.put_slice(part));
    }
}

/// Takes the next frame off a message; the body shares the message's memory. `None` at its end.
pub fn next(message: &mut Bytes) -> Result<Option<Incoming>, Malformed> {
    if message.is_empty() {
        return Ok(None);
    }
    let header = message.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed("cut off in the header"))?.0;
    let [kind, a, b, c, l0, l1, l2, l3, number @ ..] = *header;
    let kind = match kind {
        1 => Kind::Request,
        2 => Kind::Reply,
        3 => Kind::Refusal,
        4 => Kind::Notice,
        _ => return Err(Malformed("unknown kind")),
    };
    if [a, b, c] != [0; 3] {
        return Err(Malformed("reserved bytes are not 0"));
    }
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > BODY_BYTES_MAX {
        return Err(Malformed("a body above the limit"));
    }
    if message.len() - HEADER_BYTES < length {
        return Err(Malformed("cut off in the body"));
    }
    let body = message.split_to(HEADER_BYTES + length).slice(HEADER_BYTES..);
    Ok(Some(Incoming { kind, number: u64::from_le_bytes(number), body }))
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Retry,
    ErrorKind::Fenced,
    ErrorKind::Ambiguous,
    ErrorKind::Rejected,
    ErrorKind::Corrupt,
    ErrorKind::Closed,
];

/// The body of a refusal: 1 to 6 for the kinds in the order of [`KINDS`], then the text.
pub fn encode_refusal(refusal: &Refusal) -> Body {
    let kind = KINDS.iter().position(|kind| *kind == refusal.kind).expect("the list has all kinds");
    let mut bytes = Vec::with_capacity(1 + refusal.text.len());
    bytes.push(kind as u8 + 1);
    bytes.extend_from_slice(refusal.text.as_bytes());
    bytes.into()
}

/// Reads the body of a refusal. Text that is none is shown as far as it is some.
pub fn decode_refusal(body: &[u8]) -> Result<Refusal, Malformed> {
    let (kind, text) = body.split_first().ok_or(Malformed("an empty refusal"))?;
    let kind = usize::from(*kind).checked_sub(1).and_then(|kind| KINDS.get(kind)).ok_or(Malformed("unknown error"))?;
    let text = &text[..text.len().min(REFUSAL_BYTES_MAX)];
    Ok(Refusal::new(*kind, String::from_utf8_lossy(text)))
}
