//! ECDSA P-256 verification of SHA-256 digests, for a service that verifies many signatures of a few hundred keys.
//!
//! A general library verifies one signature of a key that it has never seen. Such a service knows more: keys repeat, so
//! tables of their multiples pay; signatures, digests and public keys are public, so run time may depend on them; and
//! many signatures arrive together, so they can fill vector units.
//!
//! ```
//! use p256_verify::{PublicKey, Signature, Verdict, Verifier};
//!
//! # fn bytes<const N: usize>(hex: &str) -> [u8; N] {
//! #     hex::decode(hex).expect("hexadecimal digits").try_into().expect("as many bytes")
//! # }
//! // Once: the generator's table, and a test of known answers.
//! let verifier = Verifier::new();
//! verifier.self_test().expect("this machine computes correctly");
//!
//! // Once a key: its table, 256 KiB.
//! let key = PublicKey::from_sec1(&bytes(
//!     "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
//!      7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299",
//! ))
//! .expect("a point of the curve");
//! let table = verifier.table(&key);
//!
//! // Every signature.
//! let digest = bytes("af2bdbe1aa9b6ec1e2ade1d694f41fc71a831d0268e9891562113d8a62add1bf");
//! let der: [u8; 72] = bytes(
//!     "3046022100efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
//!      022100f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8",
//! );
//! let signature = Signature::from_der(&der).expect("strict DER");
//! let verdict = verifier.verify_one(&table, &digest, &signature);
//! assert_eq!(verdict, Verdict::Valid); // After `Verdict::Unsure`, ask the library.
//! ```
//!
//! # What it promises
//! - **[`Verdict::Valid`] means that the signature is valid**: r and s are between 1 and n − 1, and the x-coordinate of
//!   (e/s)·G + (r/s)·Q is r modulo n.
//! - **The crate never says that a signature is invalid.** Every other verdict is [`Verdict::Unsure`], and the caller
//!   asks a library. A defect that refuses valid signatures therefore costs time and nothing else. An invalid signature
//!   costs the library's time and ours.
//! - The verdict on a valid signature of an honest signer is `Valid` if its key has a table. It is `Unsure` in two
//!   cases: an addition of points was exceptional, which only the owner of a key can bring about; or the key has no
//!   table and fewer than [`COLD_MIN`] such signatures are left over from groups of eight.
//! - No secrets enter the crate: run time and memory accesses depend on all inputs. Signing does not belong here.
//! - Both (r, s) and (r, n − s) are valid, as in ECDSA's definition. A caller that wants low s only checks that itself.
//! - Calls share only what the caller holds: a [`Verifier`] and [`Table`]s, both immutable. The crate has no
//!   dependencies, and uses no threads, clocks or randomness.
//!
//! # How
//! 1. A [`Table`] has the 128 odd multiples of the key for each window of eight bits of a scalar. A scalar is a sum of
//!    signed odd digits (module `digits`). So u₂·Q is the sum of 32 entries, and u₁·G of 20, because the generator's
//!    windows have 13 bits. No point is doubled.
//! 2. With AVX-512 IFMA ([`Path::Ifma`]), a vector holds a limb of eight field elements, and an element has five limbs
//!    of 52 bits (module `field`, which derives the bounds of every limb). [`Verifier::verify_many`] gives each of
//!    eight signatures a lane. [`Verifier::verify_one`] spreads the terms of one signature over the eight lanes. Two to
//!    six signatures share the lanes. One inversion serves all s of a call.
//! 3. Keys without a table ([`Key::Cold`]) get a small one for one use. The key's part then takes doublings, for eight
//!    signatures side by side.
//! 4. Without that unit ([`Path::Portable`]), the same sums are computed with 64-bit words, one signature at a time.
//! 5. An exceptional addition (P + P, P − P) makes a coordinate zero, and it stays zero. One comparison at the end
//!    detects that, exactly (module `points`).
//!
//! # How it is checked
//! - The vector operations are a trait with a scalar model, the 52-bit multiply-add included. Each operation of the
//!   vector unit is compared with its model on boundary and random words. The whole algorithm also runs on the model
//!   ([`Path::Model`]), on every machine.
//! - The field's bounds are proved by running the same code on intervals instead of words (`tests/bounds.rs`), and its
//!   results are compared with big integers at those bounds. Inverses, digits and the curve's constants are compared
//!   with big integers as well.
//! - The tables of all builders equal those of a textbook's affine arithmetic.
//! - Wycheproof's vectors pass in both encodings on every path.
//! - Differential tests compare every path with aws-lc-rs, and some cases with the `p256` crate: half of the signatures
//!   are valid, the others are broken in every part. `examples/differential.rs` runs any number of them on all
//!   processors.
//! - Two fuzz targets compare every path with aws-lc-rs on arbitrary DER, and on arbitrary digests, r and s.
//! - Signatures for chosen (u₁, u₂) and keys make every addition exceptional once as P + P and once as P − P. Others
//!   have an R with an x-coordinate of n or more.
//! - [`Verifier::self_test`] tests known answers at start.
//!
//! # What it needs around it
//! The caller keeps tables of the keys that are used often ([`Table::bytes`]), asks the library after
//! [`Verdict::Unsure`], and rechecks a sample of the signatures that were found valid.
//!
//! `unsafe` occurs in the module `ifma` alone: calls of instructions that the processor was found to have, and aligned
//! loads and stores.

#![deny(unsafe_op_in_unsafe_fn)]

mod builder;
mod digits;
mod engine;
mod field;
#[cfg(target_arch = "x86_64")]
mod ifma;
mod inverse;
mod key;
mod known_answers;
mod lanes;
mod limbs;
mod points;
mod portable;
mod residue;
mod scalars;
mod signature;
mod verifier;

#[cfg(test)]
mod tests;

pub use key::{POINT_BYTES, PublicKey};
pub use known_answers::WrongAnswer;
pub use signature::Signature;
pub use verifier::{COLD_MIN, Item, Key, Path, Table, Verdict, Verifier};
