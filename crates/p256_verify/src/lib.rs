//! ECDSA P-256 verification of SHA-256 digests, for a service that verifies many signatures of a few hundred keys.
//!
//! A general library verifies one signature, of a key that it has never seen. The service can do better, for three
//! reasons. Keys repeat, so tables of their multiples pay. Signatures, digests and public keys are public, so run time
//! may depend on them. Many signatures arrive together, so they can fill vector units.
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
//! # Guarantees
//! - **[`Verdict::Valid`] means that the signature is valid**: r and s are between 1 and n − 1, and the x-coordinate of
//!   (e/s)·G + (r/s)·Q is r modulo n.
//! - **The crate never says that a signature is invalid.** Every other verdict is [`Verdict::Unsure`], and the caller
//!   asks a library. A defect that refuses valid signatures therefore costs time and nothing else. An invalid signature
//!   costs the time of both verifications.
//! - A valid signature gets the verdict `Valid` if its key has a table of this [`Verifier`]. There is one exception: an
//!   addition of points that the formulas do not cover, which only the owner of the key can bring about.
//! - A valid signature of a key without a table may be `Unsure`. The portable backend leaves all such signatures to the
//!   library. The other backends verify them in groups of eight; if the last group would have fewer than [`COLD_MIN`],
//!   they leave that group to the library.
//! - No secrets enter the crate: run time and memory accesses depend on all inputs. Signing does not belong here.
//! - Both (r, s) and (r, n − s) are valid, as in ECDSA's definition. A caller that accepts only a low s checks s
//!   itself.
//! - The crate has no state of its own: the caller holds a [`Verifier`] and [`KeyTable`]s, both immutable. It has no
//!   dependencies, and uses no threads, clocks or randomness.
//!
//! # What it needs around it
//! The caller keeps tables of the keys that are used often ([`KeyTable::bytes`]), asks the library after
//! [`Verdict::Unsure`], and rechecks a sample of the signatures that were found valid.
//!
//! The crate calls no other crate. In Heddle `identity` calls it; `bench` measures it.
//!
//! # How
//! 1. A [`KeyTable`] has the 128 odd multiples of the key for each window of eight bits of a scalar. A scalar is a sum
//!    of signed odd digits (module `digits`). So u₂·Q is the sum of 32 entries. u₁·G is the sum of 20 entries, because
//!    the generator's windows have 13 bits. No point is doubled.
//! 2. With AVX-512 IFMA ([`Backend::Ifma`]), a vector holds a limb of eight field elements, and an element has five
//!    limbs of 52 bits (module `field`, which derives the bounds of every limb). [`Verifier::verify_many`] gives each
//!    signature one lane while seven or more are left, and two to eight lanes to each of the last ones.
//!    [`Verifier::verify_one`] spreads the terms of one signature over all lanes. Many signatures of a call share one
//!    inversion of s.
//! 3. Keys without a table ([`KeyRef::Cold`]) get a small table that is used once. The sum for the key then needs
//!    doublings, which are done for eight signatures side by side.
//! 4. Without AVX-512 IFMA ([`Backend::Portable`]), the same sums are computed with 64-bit words, one signature at a
//!    time. Keys without a table are left to the library.
//! 5. An exceptional addition (P + P, P − P) makes a coordinate zero, and the coordinate stays zero. One comparison at
//!    the end detects exactly these cases (module `points`).
//!
//! # How it is checked
//! - The vector operations are a trait with a scalar model, including the 52-bit multiply-add. Each operation of the
//!   vector unit is compared with its model on boundary and random words. The whole algorithm also runs on the model
//!   ([`Backend::Model`]), on every machine.
//! - The field's bounds are proved by running the same code on intervals instead of words (`tests/bounds.rs`), and its
//!   results are compared with big integers at those bounds. Inverses, digits and the curve's constants are compared
//!   with big integers as well.
//! - The tables of all builders equal the tables that textbook affine arithmetic gives.
//! - Wycheproof's vectors pass in both encodings on every path.
//! - Differential tests compare every path with aws-lc-rs, and some cases with the `p256` crate. About half of the
//!   signatures are valid. In the others the key, the digest, r or s is altered. `examples/differential.rs` runs any
//!   number of them on all processors.
//! - Two fuzz targets compare every path with aws-lc-rs on arbitrary DER, and on arbitrary digests, r and s.
//! - Signatures for chosen (u₁, u₂) and keys make every addition exceptional once as P + P and once as P − P. In other
//!   signatures the x-coordinate of R is n or more.
//! - [`Verifier::self_test`] runs known-answer tests at start.
//!
//! `unsafe` occurs in the module `ifma` alone: calls of instructions that the processor was found to have, and aligned
//! loads and stores.

#![deny(missing_docs)]
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
pub use verifier::{Backend, COLD_MIN, KeyRef, KeyTable, Verdict, Verifier, VerifyItem};
