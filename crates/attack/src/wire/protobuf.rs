//! Protocol Buffers: just enough to write a message and to find its fields.

/// A message under construction.
#[derive(Clone, Default)]
pub struct ProtobufMessage(Vec<u8>);

impl ProtobufMessage {
    /// An empty message.
    pub fn new() -> ProtobufMessage {
        ProtobufMessage::default()
    }

    /// Appends bytes, a text or a message. Unlike other encoders, this one also writes empty ones.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> ProtobufMessage {
        let value = value.as_ref();
        put_varint(&mut self.0, u64::from(field) << 3 | 2);
        put_varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a number.
    pub fn number(mut self, field: u32, value: u64) -> ProtobufMessage {
        put_varint(&mut self.0, u64::from(field) << 3);
        put_varint(&mut self.0, value);
        self
    }

    /// Appends the head of a field whose bytes follow later.
    pub fn head(mut self, field: u32, length: u64) -> ProtobufMessage {
        put_varint(&mut self.0, u64::from(field) << 3 | 2);
        put_varint(&mut self.0, length);
        self
    }

    /// The message's bytes.
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

impl AsRef<[u8]> for ProtobufMessage {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// The first field of this number that holds bytes.
pub fn field(mut message: &[u8], wanted: u64) -> Option<&[u8]> {
    while let Some((number, value)) = next(&mut message) {
        if number == wanted
            && let FieldValue::Bytes(bytes) = value
        {
            return Some(bytes);
        }
    }
    None
}

/// The first field of this number that holds an integer; 0 if there is none.
pub fn number(mut message: &[u8], wanted: u64) -> u64 {
    while let Some((number, value)) = next(&mut message) {
        if number == wanted
            && let FieldValue::Number(value) = value
        {
            return value;
        }
    }
    0
}

enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Other,
}

fn next<'a>(message: &mut &'a [u8]) -> Option<(u64, FieldValue<'a>)> {
    let key = take_varint(message)?;
    let value = match key & 7 {
        0 => FieldValue::Number(take_varint(message)?),
        2 => {
            let length = usize::try_from(take_varint(message)?).ok()?;
            FieldValue::Bytes(take(message, length)?)
        }
        1 => take(message, 8).map(|_| FieldValue::Other)?,
        5 => take(message, 4).map(|_| FieldValue::Other)?,
        _ => return None,
    };
    Some((key >> 3, value))
}

fn take<'a>(message: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = message.split_at_checked(count)?;
    *message = rest;
    Some(taken)
}

fn take_varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(message, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found_again() {
        let message =
            ProtobufMessage::new().number(1, 300).bytes(2, "ab").bytes(3, ProtobufMessage::new().number(1, 1)).done();
        assert_eq!(message, [0x08, 0xac, 0x02, 0x12, 2, b'a', b'b', 0x1a, 2, 0x08, 1]);
        assert_eq!(number(&message, 1), 300);
        assert_eq!(field(&message, 2), Some(&b"ab"[..]));
        assert_eq!(number(field(&message, 3).expect("it is there"), 1), 1);
        assert_eq!(field(&message, 4), None);
        assert_eq!(field(&[0x12, 200, 1], 2), None, "a length beyond the end");
    }
}
