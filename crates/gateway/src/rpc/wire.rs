//! Finds fields in protobuf messages without decoding them.
//!
//! Signatures cover bytes as they were received, and chain takes whole inner messages as bytes. A field is a slice of
//! the message that it stands in.

use bytes::{Buf as _, Bytes};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Bytes that are not a protobuf message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a protobuf message")]
pub struct Malformed;

/// Calls `visit` with the number and the bytes of each length-delimited field; skips fields of other types.
///
/// # Errors
/// [`Malformed`], also when a group occurs (which no message of Fabric has).
pub fn for_each_field(message: &Bytes, mut visit: impl FnMut(u32, Bytes)) -> Result<(), Malformed> {
    let mut rest = message.clone();
    while rest.has_remaining() {
        let (number, wire_type) = decode_key(&mut rest).map_err(|_| Malformed)?;
        match wire_type {
            WireType::LengthDelimited => {
                let length =
                    usize::try_from(decode_varint(&mut rest).map_err(|_| Malformed)?).map_err(|_| Malformed)?;
                if length > rest.len() {
                    return Err(Malformed);
                }
                visit(number, rest.split_to(length));
            }
            WireType::Varint => {
                decode_varint(&mut rest).map_err(|_| Malformed)?;
            }
            WireType::SixtyFourBit if rest.len() >= 8 => rest.advance(8),
            WireType::ThirtyTwoBit if rest.len() >= 4 => rest.advance(4),
            _ => return Err(Malformed),
        }
    }
    Ok(())
}

/// The last field of that number, as protobuf has it; `None` when there is none.
///
/// # Errors
/// [`Malformed`].
pub fn field(message: &Bytes, number: u32) -> Result<Option<Bytes>, Malformed> {
    let mut found = None;
    for_each_field(message, |at, bytes| {
        if at == number {
            found = Some(bytes);
        }
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message as _;

    #[test]
    fn fields_are_found_as_they_were_sent() {
        let inner = proto::common::Envelope { payload: Bytes::from_static(b"p"), signature: Bytes::from_static(b"s") };
        let request = proto::gateway::SubmitRequest {
            transaction_id: "t".into(),
            channel_id: "c".into(),
            prepared_transaction: Some(inner.clone()),
        };
        let bytes = Bytes::from(request.encode_to_vec());
        assert_eq!(field(&bytes, 3), Ok(Some(Bytes::from(inner.encode_to_vec()))));
        assert_eq!(field(&bytes, 2), Ok(Some(Bytes::from_static(b"c"))));
        assert_eq!(field(&bytes, 4), Ok(None));
    }

    #[test]
    fn cut_messages_are_malformed() {
        let bytes = Bytes::from_static(&[0x1a, 5, 1, 2]);
        assert_eq!(field(&bytes, 3), Err(Malformed));
        assert_eq!(field(&Bytes::from_static(&[0x0b]), 1), Err(Malformed));
        assert_eq!(field(&Bytes::from_static(&[0xff; 11]), 1), Err(Malformed));
    }
}
