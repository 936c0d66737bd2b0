//! SHA-256 of one slice or of several pieces.

pub use identity::{Hash, Sha256};

/// The hash of one piece of bytes.
pub fn sha256(bytes: &[u8]) -> Hash {
    identity::sha256([bytes])
}

/// The hash of several pieces, one after the other.
pub fn sha256_of(pieces: &[&[u8]]) -> Hash {
    identity::sha256(pieces.iter().copied())
}

/// Shows a hash as the first bytes of its hexadecimal form, for messages.
pub(crate) struct ShortHash<'a>(pub &'a [u8]);

impl std::fmt::Display for ShortHash<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return f.write_str("(none)");
        }
        for byte in self.0.iter().take(8) {
            write!(f, "{byte:02x}")?;
        }
        if self.0.len() > 8 {
            f.write_str("…")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_hash_as_the_whole_does() {
        assert_eq!(sha256_of(&[b"ab", b"", b"c"]), sha256(b"abc"));
        assert_eq!(hex::encode(sha256(b"abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_hash_is_shown_by_its_first_bytes() {
        assert_eq!(ShortHash(&sha256(b"abc")).to_string(), "ba7816bf8f01cfea…");
        assert_eq!(ShortHash(&[]).to_string(), "(none)");
    }
}
