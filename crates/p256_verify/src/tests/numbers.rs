//! Tests of the curve's constants, of residues and of inverses.

use num_bigint::BigUint;

use super::{Prng, big, edges, small};
use crate::inverse;
use crate::limbs::{B, GX, GY, Limbs, N, P, is_less};
use crate::residue::{FieldElement, FieldPrime, GroupOrder, Modulus, Residue, Scalar};

fn hex(digits: &str) -> BigUint {
    BigUint::parse_bytes(digits.as_bytes(), 16).expect("hexadecimal digits")
}

/// Miller and Rabin's test with the first primes as bases.
fn is_probably_prime(n: &BigUint) -> bool {
    let one = BigUint::from(1u8);
    let minus_one = n - &one;
    let twos = minus_one.trailing_zeros().expect("n is not one");
    let odd = &minus_one >> twos;
    [2u8, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37].iter().all(|base| {
        let mut power = BigUint::from(*base).modpow(&odd, n);
        if power == one || power == minus_one {
            return true;
        }
        (1..twos).any(|_| {
            power = &power * &power % n;
            power == minus_one
        })
    })
}

#[test]
fn constants_are_those_of_the_standards() {
    let one = BigUint::from(1u8);
    let power = |bit: u32| &one << bit;
    // FIPS 186-4, D.1.2.3 and SEC 2, 2.4.2.
    assert_eq!(big(&P), power(256) - power(224) + power(192) + power(96) - &one);
    assert_eq!(big(&N), hex("ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551"));
    assert_eq!(big(&B), hex("5ac635d8aa3a93e7b3ebbd55769886bc651d06b0cc53b0f63bce3c3e27d2604b"));
    assert_eq!(big(&GX), hex("6b17d1f2e12c4247f8bce6e563a440f277037d812deb33a0f4a13945d898c296"));
    assert_eq!(big(&GY), hex("4fe342e2fe1a7f9b8ee7eb4a7c0f9e162bce33576b315ececbb6406837bf51f5"));
    // b comes from a seed by way of c: b²·c = −27 modulo p.
    let c = hex("7efba1662985be9403cb055c75d4f7e0ce8d84a9c5114abcaf3177680104fa0d");
    assert_eq!((big(&B) * big(&B) * c + 27u8) % big(&P), BigUint::ZERO);
    assert!(is_probably_prime(&big(&P)) && is_probably_prime(&big(&N)));
}

/// Residues of all pairs of edges and of random numbers are what big integers say.
fn check_residues<M: Modulus + std::fmt::Debug>() {
    let m = big(&M::MODULUS);
    let r = BigUint::from(1u8) << 256u32;
    let r_inverse = r.modinv(&m).expect("m is odd");
    let mut rng = Prng::new(1);
    let mut numbers = edges(&M::MODULUS);
    numbers.extend((0..40).map(|_| rng.limbs()));
    for a in &numbers {
        let residue = Residue::<M>::new(a);
        assert_eq!(big(residue.montgomery()), big(a) * &r % &m);
        assert_eq!(big(&residue.number()), big(a) % &m);
        assert_eq!(residue.is_zero(), (big(a) % &m) == BigUint::ZERO);
        assert_eq!(big(&residue.negated().number()), (&m - big(a) % &m) % &m);
        assert_eq!(big(&residue.doubled().number()), big(a) * 2u8 % &m);
        assert_eq!(big(&residue.squared().number()), big(a) * big(a) % &m);
        for b in &numbers {
            let other = Residue::<M>::new(b);
            assert_eq!(big(&residue.times(&other).number()), big(a) * big(b) % &m, "{a:x?} {b:x?}");
            assert_eq!(big(&residue.plus(&other).number()), (big(a) + big(b)) % &m);
            assert_eq!(big(&residue.minus(&other).number()), (big(a) % &m + &m - big(b) % &m) % &m);
            assert_eq!(big(&residue.times_number(b)), big(a) * big(b) % &m);
            // The raw product with one factor up to 2^256, in both places, and what it promises: below m.
            if is_less(b, &M::MODULUS) {
                let expected = big(a) * big(b) * &r_inverse % &m;
                assert_eq!(big(&M::product(a, b)), expected);
                assert_eq!(big(&M::product(b, a)), expected);
            }
        }
    }
}

#[test]
fn residues_compute_as_big_integers_do() {
    check_residues::<FieldPrime>();
    check_residues::<GroupOrder>();
}

fn check_inverses<M: Modulus + std::fmt::Debug>() {
    let m = big(&M::MODULUS);
    let mut rng = Prng::new(2);
    let mut numbers: Vec<Limbs> = edges(&M::MODULUS).into_iter().filter(|n| is_less(n, &M::MODULUS)).collect();
    numbers.extend((0..2000).map(|_| small(&(big(&rng.limbs()) % &m))));
    // Numbers of every length, which take the most different numbers of steps.
    numbers.extend((1..256u32).map(|bits| small(&(big(&rng.limbs()) % (BigUint::from(1u8) << bits)))));
    for number in &numbers {
        let expected = big(number).modinv(&m);
        // Without the fallback: the algorithm itself is right.
        assert_eq!(inverse::modulo(&M::MODULUS, number).map(|inverse| big(&inverse)), expected, "{number:x?}");
        let residue = Residue::<M>::new(number);
        assert_eq!(residue.inverted().map(|inverse| big(&inverse.number())), expected);
    }
    for number in numbers.iter().rev().take(20) {
        let residue = Residue::<M>::new(number);
        assert_eq!(residue.inverted().expect("not zero"), residue.inverted_by_power());
    }
}

#[test]
fn inverses_are_those_of_big_integers() {
    check_inverses::<FieldPrime>();
    check_inverses::<GroupOrder>();
    assert_eq!(FieldElement::ZERO.inverted(), None);
    assert_eq!(Scalar::ZERO.inverted(), None);
}
