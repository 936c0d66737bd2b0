//! Tests of the lanes' field arithmetic with elements at the limits that its bounds allow.

use num_bigint::{BigInt, BigUint, Sign};

use super::{Prng, big};
use crate::field::{Field, Loose, Tight};
#[cfg(target_arch = "x86_64")]
use crate::ifma::Ifma;
use crate::lanes::{LANES, Lanes, Model, Operation, Words};
use crate::limbs::P;

type Five = [i64; 5];

const LIMB: i64 = 1 << 52;
const LOOSE_MAX: i64 = (1 << 60) - 1;

fn value(limbs: &Five) -> BigInt {
    limbs.iter().rev().fold(BigInt::ZERO, |sum, limb| (sum << 52u32) + limb)
}

fn prime() -> BigInt {
    BigInt::from_biguint(Sign::Plus, big(&P))
}

/// The number below p.
fn residue(value: &BigInt) -> BigInt {
    let p = prime();
    ((value % &p) + &p) % p
}

/// value/2^260 modulo p.
fn divided(value: &BigInt) -> BigInt {
    let r = BigUint::from(1u8) << 260u32;
    let inverse = r.modinv(&big(&P)).expect("p is odd");
    residue(&(value * BigInt::from_biguint(Sign::Plus, inverse)))
}

/// Operands of eight lanes.
#[derive(Clone)]
struct Operands {
    tight: [[Five; LANES]; 4],
    loose: [Five; LANES],
}

/// The results of the operations.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Results {
    product: [Five; LANES],
    square: [Five; LANES],
    difference: [Five; LANES],
    carried: [Five; LANES],
    squared: [Five; LANES],
    reduced: [Five; LANES],
    reduced_difference: [Five; LANES],
    negated: [Five; LANES],
    canonical: [Five; LANES],
    zeroes: u8,
    round_trip: [Five; LANES],
}

struct All(Operands);

fn load<L: Lanes>(lanes: L, operands: &[Five; LANES]) -> [L::Vector; 5] {
    std::array::from_fn(|limb| lanes.load(&Words(std::array::from_fn(|lane| operands[lane][limb] as u64))))
}

fn store<L: Lanes>(lanes: L, vectors: &[L::Vector; 5]) -> [Five; LANES] {
    let mut limbs = [[0; 5]; LANES];
    for (limb, vector) in vectors.iter().enumerate() {
        let mut words = Words::default();
        lanes.store(*vector, &mut words);
        for (limbs, word) in limbs.iter_mut().zip(words.0) {
            limbs[limb] = word as i64;
        }
    }
    limbs
}

impl Operation for All {
    type Output = Results;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> Results {
        let f = Field::new(lanes);
        let a = Tight::<L>(load(lanes, &self.0.tight[0]));
        let b = Tight::<L>(load(lanes, &self.0.tight[1]));
        let c = Tight::<L>(load(lanes, &self.0.tight[2]));
        let d = Tight::<L>(load(lanes, &self.0.tight[3]));
        let loose = Loose::<L>(load(lanes, &self.0.loose));
        let difference = f.product_difference(&a, &b, &c, &d);
        let canonical = f.canonical(&a);
        let mut rows = [Words::default(); LANES];
        f.store_pairs(&canonical, &f.canonical(&b), &mut rows);
        let [r0, r1, r2, r3, r4, r5, r6, r7] = &rows;
        let (again, _) = f.load_pairs([r0, r1, r2, r3, r4, r5, r6, r7]);
        Results {
            product: store(lanes, &f.product(&a, &b).0),
            square: store(lanes, &f.square(&a).0),
            difference: store(lanes, &difference.0),
            carried: store(lanes, &f.times(&a, &b).0),
            squared: store(lanes, &f.squared(&a).0),
            reduced: store(lanes, &f.reduce(&loose).0),
            reduced_difference: store(lanes, &f.reduce(&difference).0),
            negated: store(lanes, &f.negate_where(0b1010_0110, &loose).0),
            canonical: store(lanes, &canonical.0),
            zeroes: f.zeroes(&a),
            round_trip: store(lanes, &again.0),
        }
    }
}

fn is_tight(limbs: &Five) -> bool {
    limbs.iter().all(|limb| (0..LIMB).contains(limb)) && value(limbs) < BigInt::from(1) << 258u32
}

/// Checks every result of the model against big integers, and that the limits hold that the module `field` claims.
fn check(operands: &Operands, results: &Results) {
    let within = |limbs: &Five, low: i64, high: i64| limbs.iter().all(|&limb| low * LIMB < limb && limb < high * LIMB);
    let two_257 = BigInt::from(1) << 257u32;
    for lane in 0..LANES {
        let [a, b, c, d] = [0, 1, 2, 3].map(|i| value(&operands.tight[i][lane]));
        let loose = value(&operands.loose[lane]);
        for (limbs, expected) in [(&results.product[lane], &a * &b), (&results.square[lane], &a * &a)] {
            assert!(within(limbs, -1, 17), "{limbs:x?}");
            let value = value(limbs);
            assert!(value >= BigInt::ZERO && value < two_257);
            assert_eq!(residue(&value), divided(&expected));
        }
        let limbs = &results.difference[lane];
        assert!(within(limbs, -11, 17), "{limbs:x?}");
        assert_eq!(residue(&value(limbs)), divided(&(&a * &b - &c * &d)));
        for (limbs, expected) in [
            (&results.carried[lane], divided(&(&a * &b))),
            (&results.squared[lane], divided(&(&a * &a))),
            (&results.reduced[lane], residue(&loose)),
            (&results.reduced_difference[lane], divided(&(&a * &b - &c * &d))),
        ] {
            assert!(is_tight(limbs), "{limbs:x?} from {:x?}", operands.loose[lane]);
            assert_eq!(residue(&value(limbs)), expected);
        }
        assert_eq!(value(&results.carried[lane]), value(&results.product[lane]));
        let turned = 0b1010_0110 >> lane & 1 == 1;
        assert_eq!(value(&results.negated[lane]), if turned { -&loose } else { loose.clone() });
        assert!(is_tight(&results.canonical[lane]));
        assert_eq!(value(&results.canonical[lane]), residue(&a));
        assert_eq!(results.zeroes >> lane & 1 == 1, residue(&a) == BigInt::ZERO);
        assert_eq!(results.round_trip[lane], results.canonical[lane]);
    }
}

/// Tight elements at the limits: extreme limbs in every pattern, multiples of p and their neighbours, and random ones.
fn tight_elements(rng: &mut Prng) -> Vec<Five> {
    const LOW: [i64; 6] = [0, 1, LIMB - 1, LIMB - 2, 1 << 51, (1 << 44) - 1];
    const TOP: [i64; 7] = [0, 1, (1 << 50) - 1, 1 << 49, 1 << 48, (1 << 48) - 1, (1 << 48) - (1 << 16)];
    let split = |value: &BigInt| -> Five {
        let mask = (BigInt::from(1) << 52u32) - 1;
        std::array::from_fn(|i| i64::try_from((value >> (52 * i)) & &mask).expect("52 bits"))
    };
    let mut elements = Vec::new();
    for low in [0, LIMB - 1] {
        for high in [0, LIMB - 1] {
            for top in TOP {
                elements.push([low, high, low, high, top]);
            }
        }
    }
    for k in 0..4 {
        for delta in [-2, -1, 0, 1, 2] {
            let value: BigInt = prime() * k + delta;
            if value >= BigInt::ZERO {
                elements.push(split(&value));
            }
        }
    }
    elements.push(split(&((BigInt::from(1) << 258u32) - 1)));
    for _ in 0..60 {
        let pick = |rng: &mut Prng, from: &[i64]| from[rng.word() as usize % from.len()];
        let mut element: Five = std::array::from_fn(|_| pick(rng, &LOW));
        element[4] = pick(rng, &TOP);
        elements.push(element);
        let mut element: Five = std::array::from_fn(|_| (rng.word() >> 12) as i64);
        element[4] >>= 2;
        elements.push(element);
    }
    for element in &elements {
        assert!(is_tight(element));
    }
    elements
}

fn loose_elements(rng: &mut Prng) -> Vec<Five> {
    let edges = [LOOSE_MAX, -LOOSE_MAX, 0, -1, 1, LIMB, -LIMB, LIMB - 1, 1 << 48, -(1 << 48), (1 << 48) - 1];
    let mut elements = vec![[LOOSE_MAX; 5], [-LOOSE_MAX; 5], [0; 5], [-1; 5]];
    for _ in 0..300 {
        elements.push(std::array::from_fn(|_| edges[rng.word() as usize % edges.len()]));
        elements.push(std::array::from_fn(|_| rng.word() as i64 >> 3));
    }
    elements
}

#[test]
fn lanes_compute_as_big_integers_do_up_to_the_bounds() {
    let mut rng = Prng::new(3);
    let tight = tight_elements(&mut rng);
    let loose = loose_elements(&mut rng);
    let mut pairs = 0;
    for (i, &a) in tight.iter().enumerate() {
        for (j, others) in tight.chunks(LANES).enumerate() {
            let operands = Operands {
                tight: [
                    [a; LANES],
                    std::array::from_fn(|lane| others[lane % others.len()]),
                    std::array::from_fn(|lane| tight[(i * 7 + lane * 3 + j) % tight.len()]),
                    std::array::from_fn(|lane| tight[(j * 11 + lane * 5 + i) % tight.len()]),
                ],
                loose: std::array::from_fn(|lane| loose[(i * 31 + j * LANES + lane) % loose.len()]),
            };
            let results = Model.run(All(operands.clone()));
            // Big integers are slow: every third pair, with the model and the vector unit compared on all.
            if (i + j) % 3 == 0 {
                check(&operands, &results);
                pairs += LANES;
            }
            #[cfg(target_arch = "x86_64")]
            if let Some(lanes) = Ifma::detect() {
                assert_eq!(lanes.run(All(operands)), results);
            }
        }
    }
    assert!(pairs > 5000);
}
