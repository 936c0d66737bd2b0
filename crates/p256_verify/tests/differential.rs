//! Compares the verdicts of every path of this crate with those of aws-lc-rs and, for a few cases, of the `p256` crate.
//! `examples/differential.rs` does the same with millions of cases.

mod cases;

use cases::{Cases, Harness, Prng, der, library};
use p256_verify::{Backend, Signature};

#[test]
fn every_path_agrees_with_the_library() {
    let harness = Harness::with_keys(12, 1, &[Backend::Ifma, Backend::Portable]);
    let mut cases = Cases::new(2);
    let cases: Vec<_> = (0..4000).map(|_| cases.next(&harness.signers)).collect();
    let counts = harness.run(&cases, &mut Prng::new(3), 1, Some(40));
    println!("{counts:?}");
    assert_eq!(counts.differences, 0);
    assert!((1600..2400).contains(&counts.valid), "about half is valid: {counts:?}");
    assert!(counts.portable >= 4000 && counts.second >= 100);
    if Backend::Ifma.is_available() {
        assert!(counts.one > 500 && counts.many > 2000 && counts.cold > 200);
    }
}

#[test]
fn the_model_of_the_vector_unit_agrees_with_the_library() {
    let harness = Harness::with_keys(3, 4, &[Backend::Model]);
    let mut cases = Cases::new(5);
    let cases: Vec<_> = (0..400).map(|_| cases.next(&harness.signers)).collect();
    let counts = harness.run(&cases, &mut Prng::new(6), 1, None);
    println!("{counts:?}");
    assert_eq!(counts.differences, 0);
    assert!(counts.one > 20 && counts.many > 100 && counts.cold > 10 && counts.valid > 100);
}

#[test]
fn der_is_read_as_the_library_reads_it() {
    let harness = Harness::with_keys(2, 7, &[]);
    let (mut cases, mut rng) = (Cases::new(8), Prng::new(9));
    let (mut read, mut accepted, mut refused) = (0, 0, 0);
    for _ in 0..12_000 {
        let case = cases.next(&harness.signers);
        let mut bytes = der(&case.signature);
        for _ in 0..=rng.below(2) {
            // Most of what matters are the tags and lengths in front, and the first bytes of s.
            let places =
                [0, 1, 2, 3, 4, 5, 4 + usize::from(bytes[3]), 5 + usize::from(bytes[3]), 6 + usize::from(bytes[3])];
            let at = if rng.below(4) == 0 { rng.below(bytes.len()) } else { places[rng.below(9)] % bytes.len() };
            match rng.below(6) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = [0, 1, 2, 0x20, 0x21, 0x30, 0x7f, 0x80, 0x81, 0xff][rng.below(10)],
                2 => bytes.insert(at, [0, 0x80, 0x81, 0xff][rng.below(4)]),
                3 => drop(bytes.remove(at)),
                4 => {
                    // A longer number, with its lengths.
                    let place = if rng.below(2) == 0 { 3 } else { (5 + usize::from(bytes[3])).min(bytes.len() - 1) };
                    bytes[1] = bytes[1].wrapping_add(1);
                    bytes[place] = bytes[place].wrapping_add(1);
                    bytes.insert(place + 1, 0);
                }
                _ => {}
            }
            bytes.resize(bytes.len().max(8), 0);
        }
        let signer = &harness.signers[case.key];
        let expected = library(signer, &case.digest, &bytes);
        match Signature::from_der(&bytes) {
            Some(signature) => {
                read += 1;
                accepted += u32::from(expected);
                assert_eq!(der(&signature), bytes, "only the one form is read");
                assert_eq!(library(signer, &case.digest, &der(&signature)), expected);
            }
            None => {
                refused += 1;
                assert!(!expected, "the library accepts {bytes:x?}");
            }
        }
    }
    println!("{read} read, of which {accepted} valid; {refused} refused");
    assert!(read > 1000 && accepted > 500 && refused > 5000);
}
