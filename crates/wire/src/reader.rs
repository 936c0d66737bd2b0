//! The reader of all our own binary formats.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::{Buf as _, Bytes};

/// The bytes are not what their format says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} (at byte {at})")]
pub struct Malformed {
    /// What is wrong.
    pub what: &'static str,
    /// How many bytes of the message lie before the field that is wrong.
    pub at: usize,
}

const SHORT: &str = "the bytes end early";
const NO_TEXT: &str = "a text is not UTF-8";

/// Bytes that a [`Reader`] reads: `&[u8]` or [`Bytes`].
pub trait Input: AsRef<[u8]> + Default {
    /// Splits off the first `count` bytes, which are there.
    #[must_use]
    fn split_front(&mut self, count: usize) -> Self;

    /// Drops the first `count` bytes, which are there.
    fn skip(&mut self, count: usize);
}

impl Input for &[u8] {
    #[inline]
    fn split_front(&mut self, count: usize) -> Self {
        let (front, rest) = self.split_at(count);
        *self = rest;
        front
    }

    #[inline]
    fn skip(&mut self, count: usize) {
        *self = &self[count..];
    }
}

impl Input for Bytes {
    #[inline]
    fn split_front(&mut self, count: usize) -> Self {
        self.split_to(count)
    }

    #[inline]
    fn skip(&mut self, count: usize) {
        self.advance(count);
    }
}

/// Takes fields off the front of a message, one after another. All integers are little-endian.
#[derive(Clone, Debug)]
pub struct Reader<I> {
    rest: I,
    /// Bytes of the whole message.
    length: usize,
}

impl<I: Input> Reader<I> {
    /// A reader at the first byte of a message.
    #[inline]
    pub fn new(message: I) -> Reader<I> {
        let length = message.as_ref().len();
        Reader { rest: message, length }
    }

    /// Bytes that have been read.
    #[inline]
    pub fn at(&self) -> usize {
        self.length.saturating_sub(self.left())
    }

    /// Bytes that have not been read yet.
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.as_ref().len()
    }

    /// Whether everything has been read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.as_ref().is_empty()
    }

    /// What has not been read yet.
    #[inline]
    pub fn peek(&self) -> &[u8] {
        self.rest.as_ref()
    }

    /// An error at the next byte, for a rule of the format that the reader does not know.
    #[cold]
    pub fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { what, at: self.at() }
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Malformed`] if the message has fewer; as all methods below.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        match self.rest.as_ref().first_chunk::<N>() {
            Some(array) => {
                let array = *array;
                self.rest.skip(N);
                Ok(array)
            }
            None => Err(self.malformed(SHORT)),
        }
    }

    /// A byte.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of sixteen bytes.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// [`Malformed`] if it is another, or is not there.
    #[inline]
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.rest.as_ref().first() {
            Some(0 | 1) => Ok(self.u8()? == 1),
            Some(_) => Err(self.malformed("a flag is neither 0 nor 1")),
            None => Err(self.malformed(SHORT)),
        }
    }

    /// Reserved bytes, which are zero.
    ///
    /// # Errors
    /// [`Malformed`] if one is not, or is not there.
    #[inline]
    pub fn zeros(&mut self, count: usize) -> Result<(), Malformed> {
        match self.rest.as_ref().get(..count) {
            Some(reserved) if reserved.iter().all(|byte| *byte == 0) => {
                self.rest.skip(count);
                Ok(())
            }
            Some(_) => Err(self.malformed("reserved bytes are set")),
            None => Err(self.malformed(SHORT)),
        }
    }

    /// Bytes that every message of a format has here.
    ///
    /// # Errors
    /// [`Malformed`] with `what` if the message has others.
    #[inline]
    pub fn expect(&mut self, magic: &[u8], what: &'static str) -> Result<(), Malformed> {
        if !self.rest.as_ref().starts_with(magic) {
            return Err(self.malformed(what));
        }
        self.rest.skip(magic.len());
        Ok(())
    }

    /// The next `count` bytes; over [`Bytes`] they share the message's memory.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn bytes(&mut self, count: usize) -> Result<I, Malformed> {
        if count > self.left() {
            return Err(self.malformed(SHORT));
        }
        Ok(self.rest.split_front(count))
    }

    /// As [`bytes`](Reader::bytes), for a count that was read from the message.
    ///
    /// # Errors
    /// See [`array`](Reader::array).
    #[inline]
    pub fn bytes_u64(&mut self, count: u64) -> Result<I, Malformed> {
        self.bytes(usize::try_from(count).unwrap_or(usize::MAX))
    }

    /// All bytes that are left.
    #[inline]
    pub fn rest(&mut self) -> I {
        std::mem::take(&mut self.rest)
    }

    /// Bytes of any number up to `max`, behind their number in two bytes.
    ///
    /// # Errors
    /// [`Malformed`] if there are more than `max`, or fewer than their number says.
    #[inline]
    pub fn short(&mut self, max: usize) -> Result<I, Malformed> {
        let count = self.u16()?;
        self.bounded(count.into(), max)
    }

    /// Bytes of any number up to `max`, behind their number in four bytes.
    ///
    /// # Errors
    /// See [`short`](Reader::short).
    #[inline]
    pub fn long(&mut self, max: usize) -> Result<I, Malformed> {
        let count = self.u32()? as usize;
        self.bounded(count, max)
    }

    #[inline]
    fn bounded(&mut self, count: usize, max: usize) -> Result<I, Malformed> {
        if count > max {
            return Err(self.malformed("a field is longer than its limit"));
        }
        self.bytes(count)
    }

    /// A text of up to `max` bytes, behind their number in two bytes.
    ///
    /// # Errors
    /// As [`short`](Reader::short), or [`Malformed`] if the bytes are not UTF-8.
    pub fn text(&mut self, max: usize) -> Result<String, Malformed> {
        let at = self.at();
        let bytes = self.short(max)?;
        std::str::from_utf8(bytes.as_ref()).map(str::to_owned).map_err(|_| Malformed { what: NO_TEXT, at })
    }

    /// A number of items in four bytes, of which each takes `item_bytes` bytes or more: at most `max`, and no more than the
    /// bytes behind the number can hold.
    ///
    /// # Errors
    /// [`Malformed`] if there are more.
    #[inline]
    pub fn count(&mut self, item_bytes: usize, max: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > max || count.saturating_mul(item_bytes) > self.left() {
            return Err(self.malformed("a count exceeds its limit or the bytes behind it"));
        }
        Ok(count)
    }

    /// The bytes that `walk` reads; `walk` borrows them, and cannot allocate through this reader.
    ///
    /// # Errors
    /// The error of `walk`.
    pub fn span<E>(&mut self, walk: impl FnOnce(&mut Reader<&[u8]>) -> Result<(), E>) -> Result<I, E> {
        let mut ahead = Reader { rest: self.rest.as_ref(), length: self.length };
        walk(&mut ahead)?;
        let count = self.left().saturating_sub(ahead.left());
        Ok(self.rest.split_front(count))
    }

    /// Checks that the message ends here.
    ///
    /// # Errors
    /// [`Malformed`] if bytes are left.
    #[inline]
    pub fn end(&self) -> Result<(), Malformed> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(self.malformed("bytes behind the end of the message")),
        }
    }
}

impl<'a> Reader<&'a [u8]> {
    /// A text of up to `max` bytes, behind their number in two bytes, without a copy.
    ///
    /// # Errors
    /// See [`text`](Reader::text).
    #[inline]
    pub fn str(&mut self, max: usize) -> Result<&'a str, Malformed> {
        let at = self.at();
        std::str::from_utf8(self.short(max)?).map_err(|_| Malformed { what: NO_TEXT, at })
    }
}

/// The number of two bytes at `at`.
///
/// # Panics
/// If the bytes end before: the caller has checked the length of the frame.
#[inline]
#[allow(clippy::arithmetic_side_effects, reason = "`at` is a place of a format, not a number of its bytes")]
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("a slice of two bytes"))
}

/// The number of four bytes at `at`.
///
/// # Panics
/// See [`u16_at`].
#[inline]
#[allow(clippy::arithmetic_side_effects, reason = "`at` is a place of a format, not a number of its bytes")]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a slice of four bytes"))
}

/// The number of eight bytes at `at`.
///
/// # Panics
/// See [`u16_at`].
#[inline]
#[allow(clippy::arithmetic_side_effects, reason = "`at` is a place of a format, not a number of its bytes")]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("a slice of eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_say_what_is_wrong_and_where() {
        let error = |bytes: &[u8], read: fn(&mut Reader<&[u8]>) -> Result<(), Malformed>| {
            read(&mut Reader::new(bytes)).expect_err("it is malformed").to_string()
        };
        assert_eq!(error(&[1, 2, 3], |reader| reader.u32().map(drop)), "the bytes end early (at byte 0)");
        assert_eq!(error(&[0, 1], |reader| reader.zeros(1).and(reader.zeros(1))), "reserved bytes are set (at byte 1)");
        assert_eq!(error(&[2], |reader| reader.flag().map(drop)), "a flag is neither 0 nor 1 (at byte 0)");
        assert_eq!(error(&[3, 0, b'a'], |reader| reader.text(3).map(drop)), "the bytes end early (at byte 2)");
        assert_eq!(
            error(&[3, 0, b'a'], |reader| reader.text(2).map(drop)),
            "a field is longer than its limit (at byte 2)"
        );
        assert_eq!(error(&[1, 0, 0xff], |reader| reader.str(2).map(drop)), "a text is not UTF-8 (at byte 0)");
        assert_eq!(error(&[1], |reader| reader.end()), "bytes behind the end of the message (at byte 0)");
    }

    #[test]
    fn a_slice_of_a_message_shares_its_memory() {
        let message = Bytes::from(vec![2, 0, 0, 0, 7, 8, 9]);
        let mut reader = Reader::new(message.clone());
        let field = reader.long(2).expect("it is there");
        assert_eq!((&field[..], field.as_ptr()), (&[7, 8][..], message[4..].as_ptr()));
        assert_eq!((reader.at(), reader.left(), reader.rest()), (6, 1, Bytes::from_static(&[9])));
    }

    #[test]
    fn a_claimed_length_beyond_the_bytes_is_refused() {
        for claim in [1, 1 << 20, u32::MAX] {
            let message = claim.to_le_bytes();
            assert!(Reader::new(&message[..]).long(usize::MAX).is_err());
            assert!(Reader::new(&message[..]).count(1, usize::MAX).is_err());
            assert!(Reader::new(&message[..]).count(usize::MAX, usize::MAX).is_err());
        }
        assert!(Reader::new(&[][..]).bytes_u64(u64::MAX).is_err());
        assert_eq!(Reader::new(&[9, 0, 0, 0][..]).count(0, 9), Ok(9));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_alike_from_a_slice_and_from_bytes(input in prop::collection::vec(any::<u8>(), 0..200)) {
            crate::fuzz::read(&input);
        }

        #[test]
        fn numbers_at_a_place_are_those_that_a_reader_finds(bytes in prop::collection::vec(any::<u8>(), 30), at in 0_usize..10) {
            let mut reader = Reader::new(&bytes[at..]);
            prop_assert_eq!(Ok(u16_at(&bytes, at)), reader.u16());
            prop_assert_eq!(Ok(u32_at(&bytes, at + 2)), reader.u32());
            prop_assert_eq!(Ok(u64_at(&bytes, at + 6)), reader.u64());
        }
    }
}
