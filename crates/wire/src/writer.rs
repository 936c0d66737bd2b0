//! The writer of all our own binary formats.

use bytes::{BufMut, Bytes, BytesMut};

/// Appends fields to a buffer, one after another. All integers are little-endian.
#[derive(Debug)]
pub struct Writer<B = BytesMut>(B);

impl Writer {
    /// A writer of a new message.
    #[inline]
    pub fn new() -> Writer {
        Writer(BytesMut::new())
    }

    /// A writer of a new message of about `bytes` bytes.
    #[inline]
    pub fn with_capacity(bytes: usize) -> Writer {
        Writer(BytesMut::with_capacity(bytes))
    }

    /// Makes room for `bytes` more bytes.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> &mut Self {
        self.0.reserve(bytes);
        self
    }

    /// The message; the writer begins another.
    #[inline]
    pub fn done(&mut self) -> Bytes {
        std::mem::take(&mut self.0).freeze()
    }
}

impl Default for Writer {
    fn default() -> Writer {
        Writer::new()
    }
}

impl<B: BufMut> Writer<B> {
    /// A writer at the end of `buffer`; a slice is filled from its start.
    #[inline]
    pub fn onto(buffer: B) -> Writer<B> {
        Writer(buffer)
    }

    /// The buffer with what was written; of a slice, the part that was not.
    #[inline]
    pub fn into_inner(self) -> B {
        self.0
    }

    /// Bytes as they are.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.put_slice(bytes);
        self
    }

    /// A byte.
    #[inline]
    pub fn u8(&mut self, number: u8) -> &mut Self {
        self.0.put_u8(number);
        self
    }

    /// A number in two bytes.
    #[inline]
    pub fn u16(&mut self, number: u16) -> &mut Self {
        self.0.put_u16_le(number);
        self
    }

    /// A number in four bytes.
    #[inline]
    pub fn u32(&mut self, number: u32) -> &mut Self {
        self.0.put_u32_le(number);
        self
    }

    /// A number in eight bytes.
    #[inline]
    pub fn u64(&mut self, number: u64) -> &mut Self {
        self.0.put_u64_le(number);
        self
    }

    /// Numbers in eight bytes each.
    #[inline]
    pub fn u64s(&mut self, numbers: impl IntoIterator<Item = u64>) -> &mut Self {
        numbers.into_iter().for_each(|number| self.0.put_u64_le(number));
        self
    }

    /// A number in sixteen bytes.
    #[inline]
    pub fn u128(&mut self, number: u128) -> &mut Self {
        self.0.put_u128_le(number);
        self
    }

    /// A byte that is 0 or 1.
    #[inline]
    pub fn flag(&mut self, flag: bool) -> &mut Self {
        self.u8(flag.into())
    }

    /// Reserved bytes.
    #[inline]
    pub fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.put_bytes(0, count);
        self
    }

    /// Bytes behind their number in two bytes.
    ///
    /// # Panics
    /// If there are more than 65,535: the caller has refused longer fields.
    #[inline]
    pub fn short(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(u16::try_from(bytes.len()).expect("the caller has refused longer fields")).put(bytes)
    }

    /// Bytes behind their number in four bytes.
    ///
    /// # Panics
    /// If there are 4 GiB or more: the caller has refused longer fields.
    #[inline]
    pub fn long(&mut self, bytes: &[u8]) -> &mut Self {
        self.u32(u32::try_from(bytes.len()).expect("the caller has refused longer fields")).put(bytes)
    }

    /// A text behind its length in two bytes.
    ///
    /// # Panics
    /// See [`short`](Writer::short).
    #[inline]
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.short(text.as_bytes())
    }
}

/// An array that `fill` fills.
///
/// # Panics
/// If `fill` writes more or fewer than `N` bytes: the fields of a fixed layout add up to it.
#[inline]
pub fn array<const N: usize>(fill: impl FnOnce(&mut Writer<&mut [u8]>)) -> [u8; N] {
    let mut bytes = [0; N];
    let mut writer = Writer(&mut bytes[..]);
    fill(&mut writer);
    assert!(writer.0.is_empty(), "the fields of a fixed layout fill it");
    bytes
}

/// As much of the beginning of a text as fits into so many bytes, to the end of a character.
pub fn beginning(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or("")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Reader;

    #[test]
    fn fields_have_the_documented_layout() {
        let message =
            Writer::new().u8(1).u16(2).u32(3).u64(4).flag(true).zeros(2).short(b"a").long(b"b").text("ä").done();
        let golden =
            [1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, b'a', 1, 0, 0, 0, b'b', 2, 0, 0xc3, 0xa4];
        assert_eq!(message[..], golden);
        assert_eq!(array::<5>(|writer| _ = writer.u8(9).u32(1)), [9, 1, 0, 0, 0]);
    }

    #[test]
    #[should_panic(expected = "the fields of a fixed layout fill it")]
    fn an_array_with_too_few_fields_is_a_mistake_of_the_program() {
        let _ = array::<5>(|writer| _ = writer.u32(1));
    }

    proptest! {
        #[test]
        fn fields_are_read_as_they_were_written(
            a: u8, b: u16, c: u32, d: u64, e: u128, flag: bool, text in ".{0,30}", bytes in prop::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut writer = Writer::with_capacity(8);
            writer.u8(a).u16(b).u32(c).u64(d).u128(e).flag(flag).zeros(3).text(&text).short(&bytes).long(&bytes).put(&bytes);
            let mut reader = Reader::new(writer.done());
            prop_assert_eq!((reader.u8(), reader.u16(), reader.u32(), reader.u64()), (Ok(a), Ok(b), Ok(c), Ok(d)));
            prop_assert_eq!((reader.u128(), reader.flag(), reader.zeros(3)), (Ok(e), Ok(flag), Ok(())));
            prop_assert_eq!(reader.text(text.len()), Ok(text));
            prop_assert_eq!(reader.short(bytes.len()), Ok(bytes.clone().into()));
            prop_assert_eq!(reader.long(bytes.len()), Ok(bytes.clone().into()));
            prop_assert_eq!(reader.rest(), Bytes::from(bytes));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }
}
