//! The erasure code: F+1 data shards and F parity shards; the data can be rebuilt from any F+1 of these 2F+1 shards
//! (Sift, section 5.1).
//!
//! 1. Bytes are elements of the field with 256 elements (polynomial x⁸+x⁴+x³+x²+1). A parity shard is a sum of the data
//!    shards, each multiplied by a coefficient, byte by byte.
//! 2. The coefficients are a Cauchy matrix whose rows and columns are scaled so that the first row and the first column
//!    consist of ones. Every square submatrix of a Cauchy matrix is invertible, and stays invertible under scaling;
//!    therefore any F+1 shards suffice. Since the first row consists of ones, the first parity shard is the exclusive
//!    or of the data shards. With F = 1 it is the only parity shard.
//! 3. A reader that lacks some data shards takes the same number of parity shards, subtracts the known data shards'
//!    contribution from each, and solves the linear equations for the missing data shards.
//!
//! Why no external crate is used: `docs/adr/0025-an-erasure-code-of-few-shares.md`. The coefficients are part of the
//! format.
//!
//! Invariant: equal data gives equal shards, on every machine and whatever the order in which contributions are added.

use crate::quorum::NODES_MAX;

/// Data shards of the largest code.
pub(crate) const DATA_MAX: usize = NODES_MAX / 2 + 1;

/// The polynomial without its highest power.
const POLYNOMIAL: u8 = 0x1d;

const fn double(value: u8) -> u8 {
    (value << 1) ^ (if value & 0x80 == 0 { 0 } else { POLYNOMIAL })
}

const fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 == 1 {
            sum ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    sum
}

/// One over a value that is not zero: its 254th power.
const fn inverse(value: u8) -> u8 {
    let (mut power, mut result, mut exponent) = (value, 1, 254_u8);
    while exponent != 0 {
        if exponent & 1 == 1 {
            result = product(result, power);
        }
        power = product(power, power);
        exponent >>= 1;
    }
    result
}

/// The factor of the data shard `column` in the parity shard `row`, in a code of `data` data shards.
fn coefficient(data: usize, row: usize, column: usize) -> u8 {
    assert!(data <= DATA_MAX && row < data && column < data, "a share of the code");
    COEFFICIENTS[data][row][column]
}

/// Indexed by the number of data shards, row and column.
static COEFFICIENTS: [[[u8; DATA_MAX]; DATA_MAX]; DATA_MAX + 1] = {
    const fn scaled(data: usize, row: usize, column: usize) -> u8 {
        let (first, own) = (data as u8 ^ column as u8, (data + row) as u8 ^ column as u8);
        product(inverse(own), first)
    }
    let mut all = [[[0; DATA_MAX]; DATA_MAX]; DATA_MAX + 1];
    let mut data = 1;
    while data <= DATA_MAX {
        let mut at = 0;
        while at < data * data {
            let (row, column) = (at / data, at % data);
            all[data][row][column] = product(scaled(data, row, column), inverse(scaled(data, row, 0)));
            at += 1;
        }
        data += 1;
    }
    all
};

/// Adds `factor` times the bytes of `from` to those of `into`.
fn add_multiple(factor: u8, from: &[u8], into: &mut [u8]) {
    assert_eq!(from.len(), into.len(), "shares are of one length");
    match factor {
        0 => {}
        1 => into.iter_mut().zip(from).for_each(|(into, from)| *into ^= from),
        _ => {
            // The same operations in every lane, so that the compiler can vectorise the loop.
            let bits: [u8; 8] = std::array::from_fn(|bit| 0_u8.wrapping_sub((factor >> bit) & 1));
            for (into, from) in into.iter_mut().zip(from) {
                let (mut power, mut sum) = (*from, 0);
                for bit in bits {
                    sum ^= power & bit;
                    power = (power << 1) ^ (((power as i8) >> 7) as u8 & POLYNOMIAL);
                }
                *into ^= sum;
            }
        }
    }
}

/// Adds a data shard's contribution to a parity shard, which starts as zeros.
pub(crate) fn add_to_parity(data: usize, row: usize, column: usize, shard: &[u8], parity: &mut [u8]) {
    add_multiple(coefficient(data, row, column), shard, parity);
}

/// The missing data shards, in order, computed from as many shards as the code has data shards. `shares` holds pairs of
/// slot and bytes, the data shards first, parity shards from slot `data` on.
pub(crate) fn restore(data: usize, shards: &[(usize, &[u8])]) -> Vec<(usize, Vec<u8>)> {
    assert_eq!(shards.len(), data, "as many shares as there are data shares");
    let missing: Vec<usize> = (0..data).filter(|slot| shards.iter().all(|(other, _)| other != slot)).collect();
    let parities: Vec<&(usize, &[u8])> = shards.iter().filter(|(slot, _)| *slot >= data).collect();
    assert_eq!(missing.len(), parities.len(), "no share is given twice");
    let rows: Vec<usize> = parities.iter().map(|(slot, _)| slot - data).collect();
    let matrix = rows.iter().map(|row| missing.iter().map(|column| coefficient(data, *row, *column)).collect());
    let solved = inverted(matrix.collect());
    let known = shards.iter().filter(|(slot, _)| *slot < data);
    let rests: Vec<Vec<u8>> = parities
        .iter()
        .zip(&rows)
        .map(|((_, parity), row)| {
            let mut rest = parity.to_vec();
            known.clone().for_each(|(column, share)| add_to_parity(data, *row, *column, share, &mut rest));
            rest
        })
        .collect();
    let restored = missing.iter().zip(&solved).map(|(slot, factors)| {
        let mut share = vec![0; rests.first().map_or(0, Vec::len)];
        factors.iter().zip(&rests).for_each(|(factor, rest)| add_multiple(*factor, rest, &mut share));
        (*slot, share)
    });
    restored.collect()
}

/// The inverse of an invertible matrix.
fn inverted(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let size = matrix.len();
    let mut result: Vec<Vec<u8>> = (0..size).map(|row| (0..size).map(|at| u8::from(at == row)).collect()).collect();
    for pivot in 0..size {
        let found = (pivot..size).find(|row| matrix[*row][pivot] != 0).expect("parts of a Cauchy matrix are regular");
        matrix.swap(pivot, found);
        result.swap(pivot, found);
        let factor = inverse(matrix[pivot][pivot]);
        for side in [&mut matrix, &mut result] {
            side[pivot].iter_mut().for_each(|value| *value = product(*value, factor));
        }
        for row in (0..size).filter(|row| *row != pivot) {
            let factor = matrix[row][pivot];
            for side in [&mut matrix, &mut result] {
                let from = side[pivot].clone();
                add_multiple(factor, &from, &mut side[row]);
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_are_the_documented_ones() {
        let matrix = |data: usize| -> Vec<Vec<u8>> {
            let row = |row| (0..data).map(|column| coefficient(data, row, column)).collect();
            (0..data - 1).map(row).collect()
        };
        assert_eq!(matrix(2), [[1, 1]]);
        assert_eq!(matrix(3), GOLDEN_3);
        assert_eq!(matrix(5), GOLDEN_5);
    }

    const GOLDEN_3: [[u8; 3]; 2] = [[1, 1, 1], [1, 196, 83]];
    const GOLDEN_5: [[u8; 5]; 4] =
        [[1, 1, 1, 1, 1], [1, 156, 123, 166, 244], [1, 151, 212, 123, 197], [1, 176, 17, 216, 49]];

    /// Every code of a group, with every choice of the remaining shards.
    #[test]
    fn any_shares_that_are_enough_give_all_data_back() {
        for data in 2..=5_usize {
            let all = 2 * data - 1;
            let length = 37;
            let mut shares: Vec<Vec<u8>> = (0..data)
                .map(|slot| (0..length).map(|at| (slot * 89 + at * 53 + at * at * slot) as u8).collect())
                .collect();
            for row in 0..data - 1 {
                let mut parity = vec![0; length];
                (0..data).for_each(|column| add_to_parity(data, row, column, &shares[column], &mut parity));
                shares.push(parity);
            }
            for left in (0_u32..1 << all).filter(|left| left.count_ones() as usize == data) {
                let slots = (0..all).filter(|slot| left & (1 << slot) != 0);
                let given: Vec<(usize, &[u8])> = slots.map(|slot| (slot, &shares[slot][..])).collect();
                for (slot, share) in restore(data, &given) {
                    assert_eq!(share, shares[slot], "{data} data shares, {left:b} are left, share {slot}");
                }
            }
        }
    }

    #[test]
    fn multiples_are_products() {
        let from: Vec<u8> = (0..=255).collect();
        for factor in 0..=255 {
            let mut into = vec![7; 256];
            add_multiple(factor, &from, &mut into);
            assert!(from.iter().zip(&into).all(|(from, into)| *into == product(*from, factor) ^ 7), "{factor}");
        }
        assert!((1..=255).all(|value| product(value, inverse(value)) == 1));
    }
}
