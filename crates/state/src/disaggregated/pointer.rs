//! Pointers to buffers of an address space, and the words that contain them.
//!
//! ```text
//! bit  0..39  address in units of 16 bytes; 0 is null
//!     39..46  class: an upper bound of the buffer's length
//!     46..54  incarnation of the buffer
//!     54..64  of a slot: fingerprint. Of a record's word: the record's own incarnation, validity and a zero bit
//! ```
//!
//! A buffer that is reused has another incarnation than before, so that a pointer to an earlier incarnation is
//! recognised. The class lets a reader that has only a pointer read the whole record with one verb.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

/// Bytes of a unit, the granularity of allocation.
pub const UNIT_BYTES: u64 = 16;
const UNIT_BITS: u32 = 39;
const CLASS_BITS: u32 = 7;
const INCARNATION_BITS: u32 = 8;
/// Bits of a pointer; the word that contains it uses the others.
pub const POINTER_BITS: u32 = UNIT_BITS + CLASS_BITS + INCARNATION_BITS;
/// Bytes that pointers can address: 8 TiB.
pub const ADDRESS_BYTES_MAX: u64 = UNIT_BYTES << UNIT_BITS;
const POINTER_MASK: u64 = (1 << POINTER_BITS) - 1;

const _: () = assert!(POINTER_BITS == 54, "the ten bits above belong to fingerprints and states");

/// Distinguishes the successive uses of a buffer; wraps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Incarnation(u8);

impl Incarnation {
    pub const BITS: u32 = INCARNATION_BITS;

    pub const fn new(bits: u64) -> Incarnation {
        Incarnation((bits & ((1 << INCARNATION_BITS) - 1)) as u8)
    }

    pub const fn bits(self) -> u64 {
        self.0 as u64
    }

    #[must_use]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn next(self) -> Incarnation {
        Incarnation::new(self.0 as u64 + 1)
    }
}

/// An upper bound of a length, in seven bits: class `8 e + m` is `m` units for `e = 0`, and `(8 + m) << (e - 1)` for others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Class(u8);

impl Class {
    /// The longest buffer that a pointer can describe.
    pub const BYTES_MAX: usize = Class((1 << CLASS_BITS) - 1).bytes();

    /// The smallest class whose buffers hold `bytes`; `None` above [`Class::BYTES_MAX`].
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn holding(bytes: usize) -> Option<Class> {
        let units = (bytes as u64).div_ceil(UNIT_BYTES);
        // The bits below the four highest are rounded up; a mantissa of 16 is the first class of the next exponent.
        let shift = (u64::BITS - units.leading_zeros()).saturating_sub(4);
        let mantissa = (units + (1 << shift) - 1) >> shift;
        let class = u64::from(shift) * 8 + mantissa;
        (class < 1 << CLASS_BITS).then_some(Class(class as u8))
    }

    /// The most bytes that a buffer of this class has.
    #[inline]
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn bytes(self) -> usize {
        let (exponent, mantissa) = (self.0 >> 3, (self.0 & 7) as usize);
        let units = if exponent == 0 { mantissa } else { (8 + mantissa) << (exponent - 1) };
        units * UNIT_BYTES as usize
    }
}

/// A buffer's address, an upper bound of its length, and its incarnation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Pointer(u64);

impl Pointer {
    pub const NULL: Pointer = Pointer(0);

    /// A pointer to a buffer of at most [`Class::BYTES_MAX`] bytes.
    pub fn new(address: u64, bytes: usize, incarnation: Incarnation) -> Pointer {
        assert!(
            address > 0 && address < ADDRESS_BYTES_MAX && address.is_multiple_of(UNIT_BYTES),
            "an allocated address"
        );
        let class = Class::holding(bytes).expect("buffers are no longer than the longest class");
        Pointer(
            (address / UNIT_BYTES)
                | (u64::from(class.0) << UNIT_BITS)
                | (incarnation.bits() << (UNIT_BITS + CLASS_BITS)),
        )
    }

    /// From the low bits of a stored word. Any bits make a pointer; the reader must check whether a record is there.
    pub const fn from_bits(bits: u64) -> Pointer {
        let pointer = bits & POINTER_MASK;
        if pointer & ((1 << UNIT_BITS) - 1) == 0 { Pointer::NULL } else { Pointer(pointer) }
    }

    pub const fn bits(self) -> u64 {
        self.0
    }

    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub const fn address(self) -> u64 {
        (self.0 & ((1 << UNIT_BITS) - 1)) * UNIT_BYTES
    }

    pub const fn class(self) -> Class {
        Class(((self.0 >> UNIT_BITS) & ((1 << CLASS_BITS) - 1)) as u8)
    }

    pub const fn incarnation(self) -> Incarnation {
        Incarnation::new(self.0 >> (UNIT_BITS + CLASS_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_what_it_was_chosen_for_and_wastes_at_most_an_eighth() {
        for bytes in (1..5_000).chain([10_000, 65_535, 1 << 20, Class::BYTES_MAX - 1, Class::BYTES_MAX]) {
            let class = Class::holding(bytes).expect("it is not too long");
            assert!(class.bytes() >= bytes, "{bytes}");
            assert!(class.bytes() <= (bytes + 15) * 9 / 8, "{bytes} {}", class.bytes());
            assert_eq!(Class::holding(class.bytes()), Some(class), "{bytes}");
        }
        assert_eq!(Class::holding(Class::BYTES_MAX + 1), None);
        assert_eq!(Class::holding(1).map(Class::bytes), Some(16));
        assert_eq!(Class::holding(240).map(Class::bytes), Some(240));
        assert_eq!(Class::holding(257).map(Class::bytes), Some(288));
        assert_eq!(Class::BYTES_MAX, 3_932_160);
    }

    #[test]
    fn pointers_have_the_documented_bits() {
        let pointer = Pointer::new(0x1000, 1_100, Incarnation::new(3));
        assert_eq!(pointer.bits(), 0x100 | (33 << 39) | (3 << 46));
        assert_eq!(pointer.class().bytes(), 1_152);
        assert_eq!((pointer.address(), pointer.incarnation()), (0x1000, Incarnation::new(3)));
        assert_eq!(Pointer::from_bits(pointer.bits() | 0x3ff << 54), pointer);
        assert_eq!(Pointer::from_bits(7 << 44), Pointer::NULL, "whatever has no address is null");
        assert_eq!(Incarnation::new(255).next(), Incarnation::new(0));
    }
}
