//! Mutations that keep the structure of an input. A search that changes single bytes would take years to find such
//! inputs.
//!
//! Half of the mutations change bytes: flips, boundary numbers, cuts, copies. The other half split an input into its
//! elements (fields of protobuf, elements of DER). They change, drop, repeat or move one element, at any depth, and
//! encode the input again with correct lengths.

use base::fuzz::InputShape;

/// Depth to which elements are split.
const DEPTH_MAX: u32 = 12;
/// Elements of one list; a longer one is mutated as bytes.
const ELEMENTS_MAX: usize = 4096;

/// A deterministic sequence of numbers.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((self.next() >> 11) % end as u64) as usize
    }
}

/// A mutated copy of `input`, at most `bytes_max` long.
pub fn mutated(shape: InputShape, input: &[u8], bytes_max: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes = match random.below(2) {
        0 => change_structure(shape, input, random, DEPTH_MAX),
        _ => None,
    }
    .unwrap_or_else(|| change_bytes(input, random));
    bytes.truncate(bytes_max);
    bytes
}

/// As [`restructured`], on the first `size` bytes of `data`, for every other `seed`; returns the new size. `None` if the bytes
/// are to be mutated in another way. Here rather than beside libFuzzer, so that every build compiles it.
pub fn restructured_in_place(
    shape: InputShape,
    data: &mut [u8],
    size: usize,
    size_max: usize,
    seed: u32,
) -> Option<usize> {
    let mut random = Random::new(u64::from(seed));
    if shape == InputShape::Bytes || random.below(2) != 0 {
        return None;
    }
    let bytes = restructured(shape, &data[..size], size_max, &mut random)?;
    data.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    Some(bytes.len())
}

/// As [`mutated`], always by structure; `None` if the input has none.
pub fn restructured(shape: InputShape, input: &[u8], bytes_max: usize, random: &mut Random) -> Option<Vec<u8>> {
    change_structure(shape, input, random, DEPTH_MAX).filter(|bytes| bytes.len() <= bytes_max)
}

/// One element of a list.
#[derive(Clone, Debug)]
struct Element {
    /// Protobuf: the field's key. DER: the tag.
    tag: Vec<u8>,
    body: Vec<u8>,
    /// Whether the body's length precedes it.
    counted: bool,
}

fn change_structure(shape: InputShape, input: &[u8], random: &mut Random, depth: u32) -> Option<Vec<u8>> {
    let mut elements = split(shape, input)?;
    if elements.is_empty() || elements.len() > ELEMENTS_MAX || depth == 0 {
        return None;
    }
    let at = random.below(elements.len());
    match random.below(12) {
        0 => {
            elements.remove(at);
        }
        1 => {
            let copy = elements[at].clone();
            elements.insert(random.below(elements.len()), copy);
        }
        2 => {
            // Many small elements of one kind are what amplifies memory.
            let copy = Element { body: Vec::new(), ..elements[at].clone() };
            let copy = if random.below(2) == 0 && copy.counted { copy } else { elements[at].clone() };
            let times = 1 << random.below(11);
            elements.extend(std::iter::repeat_n(copy, times));
        }
        3 => {
            let other = random.below(elements.len());
            elements.swap(at, other);
        }
        4 => elements[at].tag = change_bytes(&elements[at].tag, random),
        _ => {
            let element = &mut elements[at];
            let inner = if element.counted { change_structure(shape, &element.body, random, depth - 1) } else { None };
            element.body = inner.unwrap_or_else(|| match (element.counted, shape) {
                (false, InputShape::Protobuf) if element.tag[0] & 7 == 0 => varint(random.next() >> random.below(64)),
                (false, _) => element.body.iter().map(|byte| byte ^ (random.next() & random.next()) as u8).collect(),
                (true, _) => change_bytes(&element.body, random),
            });
        }
    }
    Some(join(shape, &elements))
}

fn change_bytes(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len() + 1);
        match random.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next() as u8),
            4 if at < bytes.len() => {
                bytes.remove(at);
            }
            5 => {
                // A boundary number, over whatever length stands there.
                let number =
                    [0, 1, u64::MAX, u64::MAX - 7, 1 << 63, 1 << 31, u64::from(u32::MAX), 0xffff][random.below(8)];
                let width = [1, 2, 4, 8][random.below(4)];
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
            }
            _ if !bytes.is_empty() => {
                let from = random.below(bytes.len());
                let piece = bytes[from..(from + 1 + random.below(32)).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => bytes.push(random.next() as u8),
        }
    }
    bytes
}

fn split(shape: InputShape, bytes: &[u8]) -> Option<Vec<Element>> {
    let mut rest = bytes;
    let mut elements = Vec::new();
    while !rest.is_empty() {
        let (element, after) = match shape {
            InputShape::Bytes => return None,
            InputShape::Protobuf => split_field(rest)?,
            InputShape::Der => split_der(rest)?,
        };
        elements.push(element);
        rest = after;
    }
    Some(elements)
}

fn split_field(bytes: &[u8]) -> Option<(Element, &[u8])> {
    let (key, rest) = split_varint(bytes)?;
    let tag = varint(key);
    let (counted, bytes_of_body, rest) = match key & 7 {
        0 => (false, rest.len() - split_varint(rest)?.1.len(), rest),
        1 => (false, 8, rest),
        2 => {
            let (length, rest) = split_varint(rest)?;
            (true, usize::try_from(length).ok()?, rest)
        }
        5 => (false, 4, rest),
        _ => return None,
    };
    let (body, rest) = rest.split_at_checked(bytes_of_body)?;
    (key >> 3 != 0).then(|| (Element { tag, body: body.to_vec(), counted }, rest))
}

fn split_der(bytes: &[u8]) -> Option<(Element, &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x84 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 7))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (body, rest) = rest.split_at_checked(length)?;
    Some((Element { tag: vec![*tag], body: body.to_vec(), counted: true }, rest))
}

fn join(shape: InputShape, elements: &[Element]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for element in elements {
        bytes.extend_from_slice(&element.tag);
        match (element.counted, shape) {
            (true, InputShape::Der) => match element.body.len() {
                length @ 0..0x80 => bytes.push(length as u8),
                length => {
                    let digits = (length as u64).to_be_bytes();
                    let zeroes = digits.iter().take_while(|digit| **digit == 0).count();
                    bytes.push(0x80 | (8 - zeroes) as u8);
                    bytes.extend_from_slice(&digits[zeroes..]);
                }
            },
            (true, _) => bytes.extend(varint(element.body.len() as u64)),
            (false, _) => {}
        }
        bytes.extend_from_slice(&element.body);
    }
    bytes
}

fn split_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (position, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * position as u32)?;
        if byte & 0x80 == 0 {
            return Some((number, &bytes[position + 1..]));
        }
    }
    None
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_apart_goes_together_again() {
        let field = [0x0a, 3, 1, 2, 3, 0x10, 0x96, 1, 0x1d, 1, 2, 3, 4];
        let elements = split(InputShape::Protobuf, &field).expect("three fields");
        assert_eq!((elements.len(), join(InputShape::Protobuf, &elements)), (3, field.to_vec()));
        let mut der = vec![0x30, 0x81, 0x85, 0x04, 0x81, 0x82];
        der.extend([7; 0x82]);
        let elements = split(InputShape::Der, &der).expect("a sequence");
        assert_eq!((elements.len(), join(InputShape::Der, &elements)), (1, der));
    }

    #[test]
    fn changes_by_structure_keep_the_structure_and_repeat_for_a_seed() {
        let field = [0x0a, 4, 0x12, 2, 8, 1, 0x10, 0x96, 1];
        let all = |first: u64| -> Vec<Vec<u8>> {
            (first..first + 500)
                .filter_map(|seed| restructured(InputShape::Protobuf, &field, 1 << 16, &mut Random::new(seed)))
                .collect()
        };
        let whole = all(1).iter().filter(|bytes| split(InputShape::Protobuf, bytes).is_some()).count();
        assert!(whole > 400, "{whole} of 500");
        assert_eq!(all(1), all(1));
        assert!(restructured(InputShape::Bytes, &field, 100, &mut Random::new(1)).is_none());
    }
}
