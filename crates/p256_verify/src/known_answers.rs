//! Known-answer tests, which a program runs when it starts. If one fails, the processor, the memory or the compiler is
//! faulty, and the program must not use the verifier.

use std::fmt;

use crate::key::PublicKey;
use crate::limbs::{self, Limbs};
use crate::signature::Signature;
use crate::verifier::{Backend, KeyRef, Verdict, Verifier, VerifyItem};

/// RFC 6979, appendix A.2.5: the public key of its signatures for P-256.
const KEY: PublicKey = PublicKey {
    x: [0xe669_622e_60f2_9fb6, 0xc049_b892_3b61_fa6c, 0xc961_eb74_c635_6d68, 0x60fe_d4ba_255a_9d31],
    y: [0x77a3_c294_d446_2299, 0xf2f1_b20c_2d7e_9f51, 0xa41a_e9e9_5628_bc64, 0x7903_fe10_08b8_bc99],
};

/// From the same appendix: SHA-256 of "sample", r and s; and the same of "test".
const ANSWERS: [[Limbs; 3]; 2] = [
    [
        [0x6211_3d8a_62ad_d1bf, 0x1a83_1d02_68e9_8915, 0xe2ad_e1d6_94f4_1fc7, 0xaf2b_dbe1_aa9b_6ec1],
        [0xc34d_0ea8_4eaf_3716, 0x9d2c_877b_56aa_f991, 0x1140_dd9c_d45e_81d6, 0xefd4_8b2a_acb6_a8fd],
        [0x4dc4_ab2f_843a_cda8, 0xf3e9_00db_b9af_f406, 0xd436_c7a1_b6e2_9f65, 0xf7cb_1c94_2d65_7c41],
    ],
    [
        [0xd15d_6c15_b0f0_0a08, 0xa3bf_4f1b_2b0b_822c, 0x9a2f_eaa0_c55a_d015, 0x9f86_d081_884c_7d65],
        [0x4f28_d3b0_b7d3_8367, 0xed3e_fcf6_c513_2b35, 0x71d8_8156_7b1e_a663, 0xf1ab_b023_5183_51cd],
        [0x0cc8_4250_e46f_0083, 0x5f26_7e60_d381_4b4c, 0xbd25_926b_49c6_4915, 0x019f_4113_742a_2b14],
    ],
];

/// Signatures in the test: some groups of eight and a rest, so that every way to share the lanes occurs.
const ITEMS: usize = 31;

/// A known answer came out wrong: the verifier must not be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongAnswer {
    /// The path that gave it.
    pub path: Backend,
}

impl fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "P-256 verification by the path {:?} fails its self test: verify with the library, and test this machine",
            self.path
        )
    }
}

impl std::error::Error for WrongAnswer {}

/// The signature of an answer over its digest, or over another digest if it is to be invalid.
fn item<'a>(key: KeyRef<'a>, [digest, r, s]: &[Limbs; 3], valid: bool) -> VerifyItem<'a> {
    let mut digest = limbs::to_bytes(digest);
    digest[31] ^= u8::from(!valid);
    VerifyItem { key, digest, signature: Signature { r: limbs::to_bytes(r), s: limbs::to_bytes(s) } }
}

/// Item i is invalid where i is a multiple of three.
fn items(key: KeyRef<'_>) -> Vec<VerifyItem<'_>> {
    (0..ITEMS).map(|i| item(key, &ANSWERS[i % ANSWERS.len()], i % 3 != 0)).collect()
}

impl Verifier {
    /// Verifies known signatures, valid and not, one by one and together, with tables and without. It takes less than a
    /// millisecond on the fast paths.
    ///
    /// # Errors
    /// [`WrongAnswer`] if a verdict differs from the known one.
    pub fn self_test(&self) -> Result<(), WrongAnswer> {
        let table = self.table(&KEY);
        let is_right = |items: &[VerifyItem], is_valid: &dyn Fn(usize) -> bool| {
            let verdicts = self.verify_many(items);
            verdicts.len() == items.len()
                && verdicts.iter().enumerate().all(|(i, verdict)| (*verdict == Verdict::Valid) == is_valid(i))
        };
        let mut right = true;
        for (answer, valid) in ANSWERS.iter().flat_map(|answer| [(answer, true), (answer, false)]) {
            let VerifyItem { digest, signature, .. } = item(KeyRef::Table(&table), answer, valid);
            right &= (self.verify_one(&table, &digest, &signature) == Verdict::Valid) == valid;
        }
        // Item i is invalid where i is a multiple of three.
        let with_table = items(KeyRef::Table(&table));
        for count in 1..=ITEMS {
            right &= is_right(&with_table[..count], &|i| i % 3 != 0);
        }
        let takes_cold_keys = self.backend() != Backend::Portable;
        right &= is_right(&items(KeyRef::Cold(&KEY)), &|i| takes_cold_keys && i % 3 != 0);
        if right { Ok(()) } else { Err(WrongAnswer { path: self.backend() }) }
    }
}
