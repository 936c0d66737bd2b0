//! A walk over the fields of an encoded protobuf message that copies and allocates nothing.
//!
//! The hot path reads a dozen nested messages per transaction, and needs a few fields of each. It needs them as they
//! were received, because hashes and signatures cover received bytes. So [`Fields`] decodes nothing into structures: it
//! yields each field's number and position ([`Span`]). A parsed view keeps one reference to the received bytes, and
//! positions in them.
//!
//! Invariants:
//! 1. A span lies inside the bytes that it was found in; [`Span::of`] is only called with those bytes.
//! 2. Bytes that are not a protobuf message end the walk with an error; nothing here panics on them.
//!
//! Unlike a protobuf library the walk rejects groups, which Fabric's messages never had. The code that reads a message
//! decides what to do about unknown or repeated fields; [`set_once`] is for code that rejects repetition.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use base::Bytes;

/// Why bytes are not an encoded message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// A field or its length reaches beyond the end.
    #[error("a field reaches beyond the end of its message")]
    Truncated,
    /// A number does not fit 64 bits.
    #[error("a number has more than 64 bits")]
    Overflow,
    /// The field number is 0 or above the largest one.
    #[error("a field has number 0 or a number above 2^29 - 1")]
    FieldNumber,
    /// A group, or a wire type that does not exist.
    #[error("a field has a wire type that no message of Fabric uses")]
    WireType,
    /// A known field has the wire type of another kind of value.
    #[error("a field has the wire type of another kind of value")]
    Mismatch,
    /// A field that may stand once stands twice.
    #[error("a field that may stand once stands twice")]
    Repeated,
    /// A text field is not UTF-8.
    #[error("a text field is not UTF-8")]
    NotText,
    /// The message has 4 GiB or more.
    #[error("a message has 4 GiB or more")]
    TooLarge,
}

/// The place of some bytes within larger ones.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span {
    start: u32,
    end: u32,
}

impl Span {
    /// All of `bytes`.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] from 4 GiB.
    pub fn whole(bytes: &[u8]) -> Result<Span, WireError> {
        Ok(Span { start: 0, end: u32::try_from(bytes.len()).map_err(|_| WireError::TooLarge)? })
    }

    /// The bytes at this place of `source`, which must be what the span was found in.
    #[inline]
    pub fn of<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        &source[self.start as usize..self.end as usize]
    }

    /// As [`Span::of`], sharing the memory of `source`.
    #[inline]
    pub fn slice(&self, source: &Bytes) -> Bytes {
        source.slice(self.start as usize..self.end as usize)
    }

    /// The bytes at this place as text.
    ///
    /// # Errors
    /// [`WireError::NotText`] if they are not UTF-8.
    #[inline]
    pub fn text<'a>(&self, source: &'a [u8]) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.of(source)).map_err(|_| WireError::NotText)
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.start) as usize
    }

    /// Whether there are no bytes here.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// The first byte's position.
    pub fn start(&self) -> usize {
        self.start as usize
    }
}

/// A field's value, by wire type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldValue {
    /// Integers, booleans and enumerations.
    Varint(u64),
    /// Eight bytes, little-endian.
    Fixed64(u64),
    /// Bytes, text and messages.
    Bytes(Span),
    /// Four bytes, little-endian.
    Fixed32(u32),
}

/// One field of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireField {
    /// The field's number in the message's definition.
    pub number: u32,
    /// The field's value.
    pub value: FieldValue,
}

impl WireField {
    /// The value as an integer.
    ///
    /// # Errors
    /// [`WireError::Mismatch`] if it is none.
    #[inline]
    pub fn varint(&self) -> Result<u64, WireError> {
        match self.value {
            FieldValue::Varint(n) => Ok(n),
            _ => Err(WireError::Mismatch),
        }
    }

    /// The value as the place of bytes, text or a message.
    ///
    /// # Errors
    /// [`WireError::Mismatch`] if it is none.
    #[inline]
    pub fn span(&self) -> Result<Span, WireError> {
        match self.value {
            FieldValue::Bytes(span) => Ok(span),
            _ => Err(WireError::Mismatch),
        }
    }
}

/// The fields of one message, in the order of their bytes.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    source: &'a [u8],
    at: usize,
    end: usize,
}

/// The longest encoding of a 64-bit number.
const VARINT_BYTES_MAX: usize = 10;
/// The largest field number that protobuf allows.
const FIELD_NUMBER_MAX: u64 = (1 << 29) - 1;

impl<'a> Fields<'a> {
    /// The fields of the message at `span` of `source`. The spans found are places of `source`.
    #[inline]
    pub fn new(source: &'a [u8], span: Span) -> Fields<'a> {
        Fields { source, at: span.start as usize, end: span.end as usize }
    }

    /// The next field, or nothing at the end of the message.
    ///
    /// # Errors
    /// If the bytes are no message from here on.
    #[allow(clippy::should_implement_trait)]
    #[inline]
    pub fn next(&mut self) -> Result<Option<WireField>, WireError> {
        if self.at == self.end {
            return Ok(None);
        }
        let key = self.varint()?;
        let number = key >> 3;
        if number == 0 || number > FIELD_NUMBER_MAX {
            return Err(WireError::FieldNumber);
        }
        let value = match key & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => FieldValue::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| WireError::Truncated)?;
                let start = self.at;
                self.at = self.behind(length)?;
                FieldValue::Bytes(Span { start: start as u32, end: self.at as u32 })
            }
            5 => FieldValue::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(WireError::WireType),
        };
        Ok(Some(WireField { number: number as u32, value }))
    }

    /// Where the next field starts in the source.
    pub fn position(&self) -> usize {
        self.at
    }

    /// Most numbers have one byte.
    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.source[self.at..self.end].first() {
            Some(byte) if *byte < 0x80 => {
                self.at = self.behind(1)?;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0u64;
        for index in 0..VARINT_BYTES_MAX {
            let [byte] = self.array()?;
            if index == VARINT_BYTES_MAX.saturating_sub(1) && byte > 1 {
                return Err(WireError::Overflow);
            }
            number |= u64::from(byte & 0x7f).unbounded_shl(index.saturating_mul(7) as u32);
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(WireError::Overflow)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let end = self.behind(N)?;
        let bytes = self.source[self.at..end].try_into().expect("the slice has N bytes");
        self.at = end;
        Ok(bytes)
    }

    /// The position that is this many bytes further on, within the message.
    #[inline]
    fn behind(&self, bytes: usize) -> Result<usize, WireError> {
        self.at.checked_add(bytes).filter(|end| *end <= self.end).ok_or(WireError::Truncated)
    }
}

/// Notes the value of a field that may stand once.
///
/// # Errors
/// [`WireError::Repeated`] if it stood before.
pub fn set_once<T>(place: &mut Option<T>, value: T) -> Result<(), WireError> {
    if place.replace(value).is_some() { Err(WireError::Repeated) } else { Ok(()) }
}

/// Appends a number in protobuf's variable-length form.
pub fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// The bytes that [`put_varint`] appends.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub const fn varint_len(number: u64) -> usize {
    let bits = 64 - (number | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Appends a field that holds bytes, text or an encoded message, also where it is empty.
pub fn put_bytes(bytes: &mut Vec<u8>, number: u32, value: &[u8]) {
    put_bytes_header(bytes, number, value.len());
    bytes.extend_from_slice(value);
}

/// Appends the key and length of a field of `length` bytes, which the caller appends.
pub fn put_bytes_header(bytes: &mut Vec<u8>, number: u32, length: usize) {
    put_varint(bytes, u64::from(number) << 3 | 2);
    put_varint(bytes, length as u64);
}

/// The bytes that [`put_bytes`] appends.
#[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
pub const fn bytes_field_len(number: u32, length: usize) -> usize {
    varint_len((number as u64) << 3) + varint_len(length as u64) + length
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields(bytes: &[u8]) -> Result<Vec<WireField>, WireError> {
        let mut walk = Fields::new(bytes, Span::whole(bytes)?);
        let mut found = Vec::new();
        while let Some(field) = walk.next()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn a_field_that_reaches_beyond_its_message_is_refused() {
        assert_eq!(fields(&[0x0a, 2, 1]), Err(WireError::Truncated));
        assert_eq!(fields(&[0x0a]), Err(WireError::Truncated));
        assert_eq!(fields(&[0x09, 1, 2, 3]), Err(WireError::Truncated));
        assert_eq!(fields(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]), Err(WireError::Truncated));
    }

    #[test]
    fn an_inner_message_ends_where_its_field_ends() {
        // The inner message of two bytes claims three more, which the outer one has.
        let bytes = [0x0a, 2, 0x0a, 3, 1, 2, 3];
        let mut outer = Fields::new(&bytes, Span::whole(&bytes).expect("small"));
        let inner = outer.next().expect("one field").expect("one field").span().expect("bytes");
        assert_eq!(Fields::new(&bytes, inner).next(), Err(WireError::Truncated));
    }

    #[test]
    fn numbers_above_64_bits_groups_and_field_zero_are_refused() {
        assert_eq!(fields(&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), Err(WireError::Overflow));
        assert_eq!(fields(&[0x0b, 0x0c]), Err(WireError::WireType));
        assert_eq!(fields(&[0x02, 0]), Err(WireError::FieldNumber));
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = fields(&bytes);
        }

        #[test]
        fn numbers_and_bytes_come_back(number in any::<u64>(), id in 1u32..(1 << 29), value in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, u64::from(id) << 3);
            put_varint(&mut bytes, number);
            prop_assert_eq!(bytes.len(), varint_len(u64::from(id) << 3) + varint_len(number));
            let before = bytes.len();
            put_bytes(&mut bytes, id, &value);
            prop_assert_eq!(bytes.len() - before, bytes_field_len(id, value.len()));
            let found = fields(&bytes).expect("well formed");
            prop_assert_eq!(found[0], WireField { number: id, value: FieldValue::Varint(number) });
            prop_assert_eq!(found[1].span().expect("bytes").of(&bytes), &value[..]);
        }
    }
}
