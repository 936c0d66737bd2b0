//! The lanes on AVX-512: one vector register each, with the 52-bit multiply-add of IFMA.
//!
//! This module has all `unsafe` expressions of the crate. There are two kinds:
//! * Functions that are not compiled for AVX-512 call its instructions, which a processor may lack. This is sound,
//!   because an [`Ifma`] exists only where [`Ifma::detect`] has found the instructions.
//! * Vectors are read and written through pointers. This is sound, because [`Words`] has the size and the alignment of
//!   a vector.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use crate::lanes::{LANES, Lanes, Mask, Operation, Words};

/// Proof that this processor has what the lanes use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ifma(());

impl Ifma {
    /// Asks the processor.
    pub(crate) fn detect() -> Option<Ifma> {
        let found = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512ifma")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("adx");
        found.then_some(Ifma(()))
    }
}

const _: () = assert!(size_of::<Words>() == size_of::<__m512i>() && align_of::<Words>() == align_of::<__m512i>());

/// An operation, compiled for the vector unit.
#[target_feature(enable = "avx512f,avx512ifma,avx512dq,avx512vl,bmi2,adx")]
fn run_compiled<O: Operation>(lanes: Ifma, operation: O) -> O::Output {
    // The compiler aligns a stack frame to what its variables ask for, but not to what the vectors ask for that it
    // spills there. Without this variable many of them would lie across two cache lines.
    let mut aligned = Words::default();
    std::hint::black_box(&mut aligned);
    operation.run(lanes)
}

/// Calls an instruction of the vector unit.
macro_rules! instruction {
    ($lanes:expr, $call:expr) => {{
        let Ifma(()) = $lanes;
        // SAFETY: a value of `Ifma` exists only where `Ifma::detect` has found every feature that the callee is
        // compiled for. Where the callee takes a pointer, it comes from a reference to `Words`, which has the size and
        // the alignment of a vector.
        unsafe { $call }
    }};
}

impl Lanes for Ifma {
    type Vector = __m512i;
    const INLINE: bool = true;

    #[inline]
    fn run<O: Operation>(self, operation: O) -> O::Output {
        instruction!(self, run_compiled(self, operation))
    }

    #[inline(always)]
    fn splat(self, word: u64) -> __m512i {
        instruction!(self, _mm512_set1_epi64(word as i64))
    }

    #[inline(always)]
    fn load(self, words: &Words) -> __m512i {
        instruction!(self, _mm512_load_si512((&raw const *words).cast()))
    }

    #[inline(always)]
    fn store(self, vector: __m512i, words: &mut Words) {
        instruction!(self, _mm512_store_si512((&raw mut *words).cast(), vector));
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_add_epi64(a, b))
    }

    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_sub_epi64(a, b))
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn shift_right<const BITS: u32>(self, a: __m512i) -> __m512i {
        instruction!(self, _mm512_srli_epi64::<BITS>(a))
    }

    #[inline(always)]
    fn shift_right_signed<const BITS: u32>(self, a: __m512i) -> __m512i {
        instruction!(self, _mm512_srai_epi64::<BITS>(a))
    }

    #[inline(always)]
    fn shift_left<const BITS: u32>(self, a: __m512i) -> __m512i {
        instruction!(self, _mm512_slli_epi64::<BITS>(a))
    }

    #[inline(always)]
    fn multiply_add_low(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_madd52lo_epu64(sum, a, b))
    }

    #[inline(always)]
    fn multiply_add_high(self, sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_madd52hi_epu64(sum, a, b))
    }

    #[inline(always)]
    fn select(self, mask: Mask, a: __m512i, b: __m512i) -> __m512i {
        instruction!(self, _mm512_mask_blend_epi64(mask, a, b))
    }

    #[inline(always)]
    fn equal(self, a: __m512i, b: __m512i) -> Mask {
        instruction!(self, _mm512_cmpeq_epi64_mask(a, b))
    }

    #[inline(always)]
    fn exchange<const DISTANCE: usize>(self, a: __m512i) -> __m512i {
        match DISTANCE {
            1 => instruction!(self, _mm512_permutex_epi64::<0b10_11_00_01>(a)),
            2 => instruction!(self, _mm512_permutex_epi64::<0b01_00_11_10>(a)),
            4 => instruction!(self, _mm512_shuffle_i64x2::<0b01_00_11_10>(a, a)),
            _ => unreachable!("lanes are exchanged over a distance of 1, 2 or 4"),
        }
    }

    #[inline(always)]
    fn transpose(self, rows: [&Words; LANES]) -> [__m512i; LANES] {
        let [a, b, c, d, e, f, g, h] = rows;
        transpose_registers(
            self,
            [
                self.load(a),
                self.load(b),
                self.load(c),
                self.load(d),
                self.load(e),
                self.load(f),
                self.load(g),
                self.load(h),
            ],
        )
    }

    #[inline(always)]
    fn transpose_back(self, vectors: [__m512i; LANES], rows: &mut [Words; LANES]) {
        let vectors = transpose_registers(self, vectors);
        for i in 0..LANES {
            self.store(vectors[i], &mut rows[i]);
        }
    }

    #[inline(always)]
    fn prefetch(self, row: &Words) {
        instruction!(self, _mm_prefetch::<_MM_HINT_T0>((&raw const *row).cast()));
    }
}

/// Lane i of vector j becomes lane j of vector i.
#[inline(always)]
fn transpose_registers(lanes: Ifma, r: [__m512i; LANES]) -> [__m512i; LANES] {
    macro_rules! low {
        ($a:expr, $b:expr) => {
            instruction!(lanes, _mm512_unpacklo_epi64($a, $b))
        };
    }
    macro_rules! high {
        ($a:expr, $b:expr) => {
            instruction!(lanes, _mm512_unpackhi_epi64($a, $b))
        };
    }
    macro_rules! even {
        ($a:expr, $b:expr) => {
            instruction!(lanes, _mm512_shuffle_i64x2::<0b10_00_10_00>($a, $b))
        };
    }
    macro_rules! odd {
        ($a:expr, $b:expr) => {
            instruction!(lanes, _mm512_shuffle_i64x2::<0b11_01_11_01>($a, $b))
        };
    }
    // Pairs of words, then of 128-bit quarters, then of 256-bit halves. Row pairs first: words (0, 2, 4, 6) and (1, 3,
    // 5, 7), a quarter each, of two rows beside one another.
    let (l01, h01) = (low!(r[0], r[1]), high!(r[0], r[1]));
    let (l23, h23) = (low!(r[2], r[3]), high!(r[2], r[3]));
    let (l45, h45) = (low!(r[4], r[5]), high!(r[4], r[5]));
    let (l67, h67) = (low!(r[6], r[7]), high!(r[6], r[7]));
    // Quarters of words (0, 4) and (2, 6) of rows 0 to 3, and so on.
    let (l03_04, l03_26) = (even!(l01, l23), odd!(l01, l23));
    let (h03_15, h03_37) = (even!(h01, h23), odd!(h01, h23));
    let (l47_04, l47_26) = (even!(l45, l67), odd!(l45, l67));
    let (h47_15, h47_37) = (even!(h45, h67), odd!(h45, h67));
    [
        even!(l03_04, l47_04),
        even!(h03_15, h47_15),
        even!(l03_26, l47_26),
        even!(h03_37, h47_37),
        odd!(l03_04, l47_04),
        odd!(h03_15, h47_15),
        odd!(l03_26, l47_26),
        odd!(h03_37, h47_37),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::Model;

    /// Words at the bounds of 52 and of 64 bits, and random ones.
    fn patterns() -> Vec<Words> {
        const EDGES: [u64; 12] = [
            0,
            1,
            (1 << 52) - 1,
            1 << 52,
            (1 << 52) + 1,
            (1 << 51) - 1,
            u64::MAX,
            u64::MAX - 1,
            1 << 63,
            (1 << 63) - 1,
            0xaaaa_aaaa_aaaa_aaaa,
            0x5555_5555_5555_5555,
        ];
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut patterns: Vec<Words> =
            (0..EDGES.len()).map(|i| Words(std::array::from_fn(|lane| EDGES[(i + lane * 5) % EDGES.len()]))).collect();
        patterns.extend((0..40).map(|_| Words(std::array::from_fn(|_| random()))));
        patterns
    }

    fn words(lanes: Ifma, vector: __m512i) -> [u64; LANES] {
        let mut words = Words::default();
        lanes.store(vector, &mut words);
        words.0
    }

    #[test]
    fn each_instruction_does_what_the_model_does() {
        let Some(lanes) = Ifma::detect() else {
            eprintln!("this processor has no AVX-512 IFMA: nothing to compare");
            return;
        };
        let patterns = patterns();
        for (i, a) in patterns.iter().enumerate() {
            let va = lanes.load(a);
            assert_eq!(words(lanes, va), Model.load(a));
            assert_eq!(words(lanes, lanes.splat(a.0[0])), Model.splat(a.0[0]));
            assert_eq!(words(lanes, lanes.shift_right::<52>(va)), Model.shift_right::<52>(a.0));
            assert_eq!(words(lanes, lanes.shift_right::<12>(va)), Model.shift_right::<12>(a.0));
            assert_eq!(words(lanes, lanes.shift_right_signed::<52>(va)), Model.shift_right_signed::<52>(a.0));
            assert_eq!(words(lanes, lanes.shift_right_signed::<48>(va)), Model.shift_right_signed::<48>(a.0));
            assert_eq!(words(lanes, lanes.shift_left::<44>(va)), Model.shift_left::<44>(a.0));
            assert_eq!(words(lanes, lanes.shift_left::<12>(va)), Model.shift_left::<12>(a.0));
            assert_eq!(words(lanes, lanes.exchange::<1>(va)), Model.exchange::<1>(a.0));
            assert_eq!(words(lanes, lanes.exchange::<2>(va)), Model.exchange::<2>(a.0));
            assert_eq!(words(lanes, lanes.exchange::<4>(va)), Model.exchange::<4>(a.0));
            let rows: [&Words; LANES] = std::array::from_fn(|row| &patterns[(i + row * 7) % patterns.len()]);
            let transposed = lanes.transpose(rows).map(|vector| words(lanes, vector));
            assert_eq!(transposed, Model.transpose(rows));
            let (mut back, mut back_on_model) = ([Words::default(); LANES], [Words::default(); LANES]);
            lanes.transpose_back(rows.map(|row| lanes.load(row)), &mut back);
            Model.transpose_back(rows.map(|row| row.0), &mut back_on_model);
            assert_eq!(back, back_on_model);
            for b in &patterns {
                let vb = lanes.load(b);
                lanes.prefetch(a);
                assert_eq!(words(lanes, lanes.add(va, vb)), Model.add(a.0, b.0));
                assert_eq!(words(lanes, lanes.sub(va, vb)), Model.sub(a.0, b.0));
                assert_eq!(words(lanes, lanes.and(va, vb)), Model.and(a.0, b.0));
                assert_eq!(words(lanes, lanes.or(va, vb)), Model.or(a.0, b.0));
                let mask = (a.0[3] ^ b.0[5]) as u8;
                assert_eq!(words(lanes, lanes.select(mask, va, vb)), Model.select(mask, a.0, b.0));
                assert_eq!(lanes.equal(va, vb), Model.equal(a.0, b.0));
                let mut half = *a;
                half.0[..4].copy_from_slice(&b.0[..4]);
                assert_eq!(lanes.equal(lanes.load(&half), vb), Model.equal(half.0, b.0));
                let c = &patterns[(i * 3 + 1) % patterns.len()];
                let vc = lanes.load(c);
                assert_eq!(words(lanes, lanes.multiply_add_low(vc, va, vb)), Model.multiply_add_low(c.0, a.0, b.0));
                assert_eq!(words(lanes, lanes.multiply_add_high(vc, va, vb)), Model.multiply_add_high(c.0, a.0, b.0));
            }
        }
    }
}
