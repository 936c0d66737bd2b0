//! Frames whose last eight bytes are the checksum of all bytes before them.

use crate::Malformed;

/// Bytes of a seal.
pub const SEAL_BYTES: usize = 8;

/// Puts the checksum of all bytes before the last eight into the last eight.
///
/// # Panics
/// If the frame has fewer than eight bytes.
#[inline]
pub fn seal(frame: &mut [u8], checksum: impl FnOnce(&[u8]) -> u64) {
    let (fields, sum) = frame.split_last_chunk_mut::<SEAL_BYTES>().expect("a frame has room for its seal");
    *sum = checksum(fields).to_le_bytes();
}

/// The bytes before the seal.
///
/// # Errors
/// [`Malformed`] if the last eight bytes are not the checksum of all bytes before them.
#[inline]
pub fn unseal(frame: &[u8], checksum: impl FnOnce(&[u8]) -> u64) -> Result<&[u8], Malformed> {
    match frame.split_last_chunk::<SEAL_BYTES>() {
        Some((fields, sum)) if checksum(fields) == u64::from_le_bytes(*sum) => Ok(fields),
        Some((fields, _)) => {
            Err(Malformed { what: "the checksum is not the one it was written with", at: fields.len() })
        }
        None => Err(Malformed { what: "the bytes end before the checksum", at: 0 }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn checksum(bytes: &[u8]) -> u64 {
        bytes.iter().fold(7, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    }

    proptest! {
        #[test]
        fn any_changed_bit_is_noticed(mut frame in prop::collection::vec(any::<u8>(), 8..60), at: prop::sample::Index, bit in 0_u8..8) {
            seal(&mut frame, checksum);
            prop_assert_eq!(unseal(&frame, checksum), Ok(&frame[..frame.len() - 8]));
            let at = at.index(frame.len());
            frame[at] ^= 1 << bit;
            prop_assert!(unseal(&frame, checksum).is_err());
        }
    }

    #[test]
    fn a_frame_without_room_for_a_seal_is_malformed() {
        assert_eq!(unseal(&[0; 7], checksum).map_err(|error| error.at), Err(0));
    }
}
