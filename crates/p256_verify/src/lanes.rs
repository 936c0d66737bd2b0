//! Eight 64-bit lanes: the operations of the vector algorithms, and their scalar model.
//!
//! Algorithms are generic over [`Lanes`]. There are two implementations: [`crate::ifma::Ifma`] uses the vector unit,
//! and [`Model`] computes the same, including `vpmadd52`, with eight words. A [`Lanes`] value proves that its
//! operations may be used: a [`Model`] can always be made, an [`crate::ifma::Ifma`] only if the processor was found
//! to have the instructions. Each [`Operation`] is inlined into one function ([`Lanes::run`]), which is compiled for
//! the vector unit. The tests compare the model with the vector unit, operation by operation, and run every algorithm
//! on both.

/// Lanes of a vector.
pub(crate) const LANES: usize = 8;

/// Eight words in memory, aligned as vectors are loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Words(pub(crate) [u64; LANES]);

/// A mask: bit i stands for lane i.
pub(crate) type Mask = u8;

/// A computation on lanes, compiled as one function.
pub(crate) trait Operation {
    type Output;
    /// Runs it. Implementations are `#[inline(always)]`, and so is every function that they call with lanes.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// The operations. Each works lane by lane, except for the exchange and the transpositions; arithmetic wraps.
pub(crate) trait Lanes: Copy {
    /// Eight 64-bit words.
    type Vector: Copy;
    /// Whether field operations are inlined: where they are to be fast, rather than to compile fast.
    const INLINE: bool;

    /// Runs an operation in a function that is compiled for these lanes.
    fn run<O: Operation>(self, operation: O) -> O::Output;

    fn splat(self, word: u64) -> Self::Vector;
    fn load(self, words: &Words) -> Self::Vector;
    fn store(self, vector: Self::Vector, words: &mut Words);

    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn or(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Shifts towards the low bits, zeroes in.
    fn shift_right<const BITS: u32>(self, a: Self::Vector) -> Self::Vector;
    /// Shifts towards the low bits, copies of the sign in.
    fn shift_right_signed<const BITS: u32>(self, a: Self::Vector) -> Self::Vector;
    /// Shifts towards the high bits, zeroes in.
    fn shift_left<const BITS: u32>(self, a: Self::Vector) -> Self::Vector;
    /// sum + (the low 52 bits of a's low 52 bits times b's low 52 bits).
    fn multiply_add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// sum + (the upper 52 bits of a's low 52 bits times b's low 52 bits).
    fn multiply_add_high(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Lanes of `b` where the mask's bit is set, else of `a`.
    fn select(self, mask: Mask, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The lanes in which a and b are equal.
    fn equal(self, a: Self::Vector, b: Self::Vector) -> Mask;

    /// Lane i takes what lane i ^ DISTANCE has, for a distance of 1, 2 or 4.
    fn exchange<const DISTANCE: usize>(self, a: Self::Vector) -> Self::Vector;
    /// Vector i takes word i of each row: lane j from row j.
    fn transpose(self, rows: [&Words; LANES]) -> [Self::Vector; LANES];
    /// Row j takes lane j of each vector: word i from vector i.
    fn transpose_back(self, vectors: [Self::Vector; LANES], rows: &mut [Words; LANES]);
    /// States that every lane is below 2^BITS, which the operations themselves do not show. Models check or use it.
    #[inline(always)]
    fn known_below<const BITS: u32>(self, a: Self::Vector) -> Self::Vector {
        a
    }
    /// Requires that every lane, as a signed number, is at most 2^BITS in absolute value. Models check it.
    #[inline(always)]
    fn require_within<const BITS: u32>(self, _a: Self::Vector) {}
    /// Announces that a row will be read soon. It changes nothing but the caches.
    fn prefetch(self, row: &Words);
}

/// The lanes as eight words: the reference for the vector unit, and a model that runs everywhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model;

const MASK_52: u64 = (1 << 52) - 1;

fn product_52(a: u64, b: u64) -> u128 {
    u128::from(a & MASK_52).wrapping_mul(u128::from(b & MASK_52))
}

fn map(a: [u64; 8], b: [u64; 8], f: impl Fn(u64, u64) -> u64) -> [u64; 8] {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

// Calls instead of inlined loops: algorithms on the model need not be fast, and they compile in half the time.
impl Lanes for Model {
    type Vector = [u64; LANES];
    const INLINE: bool = false;

    fn run<O: Operation>(self, operation: O) -> O::Output {
        operation.run(self)
    }

    #[inline(never)]
    fn splat(self, word: u64) -> Self::Vector {
        [word; LANES]
    }

    fn load(self, words: &Words) -> Self::Vector {
        words.0
    }

    fn store(self, vector: Self::Vector, words: &mut Words) {
        words.0 = vector;
    }

    #[inline(never)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(a, b, u64::wrapping_add)
    }

    #[inline(never)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(a, b, u64::wrapping_sub)
    }

    #[inline(never)]
    fn and(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(a, b, |a, b| a & b)
    }

    #[inline(never)]
    fn or(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(a, b, |a, b| a | b)
    }

    #[inline(never)]
    fn shift_right<const BITS: u32>(self, a: Self::Vector) -> Self::Vector {
        a.map(|word| word >> BITS)
    }

    #[inline(never)]
    fn shift_right_signed<const BITS: u32>(self, a: Self::Vector) -> Self::Vector {
        a.map(|word| (word as i64 >> BITS) as u64)
    }

    #[inline(never)]
    fn shift_left<const BITS: u32>(self, a: Self::Vector) -> Self::Vector {
        a.map(|word| word << BITS)
    }

    #[inline(never)]
    fn multiply_add_low(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(sum, map(a, b, |a, b| product_52(a, b) as u64 & MASK_52), u64::wrapping_add)
    }

    #[inline(never)]
    fn multiply_add_high(self, sum: Self::Vector, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        map(sum, map(a, b, |a, b| (product_52(a, b) >> 52) as u64), u64::wrapping_add)
    }

    #[inline(never)]
    fn select(self, mask: Mask, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| if mask >> lane & 1 == 1 { b[lane] } else { a[lane] })
    }

    #[inline(never)]
    fn equal(self, a: Self::Vector, b: Self::Vector) -> Mask {
        (0..LANES).fold(0, |mask, lane| mask | u8::from(a[lane] == b[lane]) << lane)
    }

    #[inline(never)]
    fn exchange<const DISTANCE: usize>(self, a: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| a[lane ^ DISTANCE])
    }

    #[inline(never)]
    fn transpose(self, rows: [&Words; LANES]) -> [Self::Vector; LANES] {
        std::array::from_fn(|word| rows.map(|row| row.0[word]))
    }

    #[inline(never)]
    fn transpose_back(self, vectors: [Self::Vector; LANES], rows: &mut [Words; LANES]) {
        for (lane, row) in rows.iter_mut().enumerate() {
            row.0 = vectors.map(|vector| vector[lane]);
        }
    }

    fn known_below<const BITS: u32>(self, a: Self::Vector) -> Self::Vector {
        assert!(a.iter().all(|word| word >> BITS == 0), "the bounds of the module `field` are wrong: {a:x?}");
        a
    }

    fn require_within<const BITS: u32>(self, a: Self::Vector) {
        assert!(
            a.iter().all(|word| (*word as i64).unsigned_abs() <= 1 << BITS),
            "a sum is larger than the field allows: {a:x?}"
        );
    }

    fn prefetch(self, _row: &Words) {}
}
