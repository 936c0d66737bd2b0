//! Signatures, decoded from DER or from the form of IEEE P1363.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

/// Bytes of r and of s.
const NUMBER_BYTES: usize = 32;

/// r and s of a signature, each 32 bytes, most significant first. They may be any numbers: the verifier checks their
/// range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Signature {
    /// The r of the signature.
    pub r: [u8; NUMBER_BYTES],
    /// The s of the signature.
    pub s: [u8; NUMBER_BYTES],
}

impl Signature {
    /// Reads the ASN.1 form, `SEQUENCE { r INTEGER, s INTEGER }`, in strict DER: shortest lengths, shortest
    /// non-negative numbers, nothing behind them. Returns nothing for any other bytes, and for numbers of more than 256
    /// bits, which are out of range.
    pub fn from_der(der: &[u8]) -> Option<Signature> {
        let (content, behind) = value(0x30, der)?;
        let (r, content) = value(0x02, content)?;
        let (s, content) = value(0x02, content)?;
        (behind.is_empty() && content.is_empty()).then_some(())?;
        Some(Signature { r: number(r)?, s: number(s)? })
    }

    /// Reads the form of IEEE P1363: r and s, 32 bytes each.
    pub fn from_p1363(bytes: &[u8]) -> Option<Signature> {
        let bytes: &[u8; 2 * NUMBER_BYTES] = bytes.try_into().ok()?;
        let (r, s) = bytes.split_first_chunk::<NUMBER_BYTES>()?;
        Some(Signature { r: *r, s: *s.first_chunk()? })
    }
}

/// The content of a value with this tag, and what follows. Its length is below 128, as in every signature that is in
/// range.
#[inline]
fn value(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match bytes {
        [first, length, rest @ ..] if *first == tag && *length < 0x80 => rest.split_at_checked(usize::from(*length)),
        _ => None,
    }
}

/// A non-negative number in its shortest form.
#[inline]
fn number(content: &[u8]) -> Option<[u8; NUMBER_BYTES]> {
    let digits = match content {
        // A zero in front is there exactly if the number would be negative without.
        [0, next, ..] if *next >= 0x80 => &content[1..],
        [0] => content,
        [first, ..] if (1..0x80).contains(first) => content,
        _ => return None,
    };
    let mut number = [0; NUMBER_BYTES];
    let start = NUMBER_BYTES.checked_sub(digits.len())?;
    number[start..].copy_from_slice(digits);
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strict_der_is_read() {
        let read = |der: &[u8]| Signature::from_der(der).map(|signature| (signature.r[31], signature.s[31]));
        assert_eq!(read(&[0x30, 6, 2, 1, 5, 2, 1, 7]), Some((5, 7)));
        assert_eq!(read(&[0x30, 6, 2, 1, 0, 2, 1, 0]), Some((0, 0)));
        assert_eq!(read(&[0x30, 7, 2, 2, 0, 0x80, 2, 1, 7]), Some((0x80, 7)));
        for refused in [
            &[][..],
            &[0x30],
            &[0x30, 0],
            &[0x30, 6, 2, 1, 5, 2, 1],
            &[0x30, 6, 2, 1, 5, 2, 1, 7, 0],
            &[0x30, 7, 2, 1, 5, 2, 1, 7, 0],
            &[0x30, 5, 2, 1, 5, 2, 1, 7],
            &[0x31, 6, 2, 1, 5, 2, 1, 7],
            &[0x30, 6, 3, 1, 5, 2, 1, 7],
            &[0x30, 0x81, 6, 2, 1, 5, 2, 1, 7],
            &[0x30, 0x80, 2, 1, 5, 2, 1, 7, 0, 0],
            &[0x30, 7, 2, 0x81, 1, 5, 2, 1, 7],
            &[0x30, 7, 2, 2, 0, 5, 2, 1, 7],
            &[0x30, 6, 2, 1, 0x80, 2, 1, 7],
            &[0x30, 5, 2, 0, 2, 1, 7],
            &[0x30, 7, 2, 2, 0xff, 5, 2, 1, 7],
        ] {
            assert_eq!(read(refused), None, "{refused:x?}");
        }
        let mut long = vec![0x30, 39, 2, 34, 0x01];
        long.extend([0; 33]);
        long.extend([2, 1, 7]);
        assert_eq!(read(&long), None);
    }

    #[test]
    fn p1363_has_64_bytes() {
        let bytes: [u8; 64] = std::array::from_fn(|i| i as u8);
        let read = Signature::from_p1363(&bytes).expect("64 bytes");
        assert_eq!((&read.r[..], &read.s[..]), (&bytes[..32], &bytes[32..]));
        assert_eq!(Signature::from_p1363(&bytes[1..]), None);
        assert_eq!(Signature::from_p1363(&[0; 65]), None);
    }
}
