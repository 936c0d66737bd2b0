//! SHA-256 of bytes in one or several pieces, and a comparison in constant time.

use aws_lc_rs::digest::{self, SHA256};

/// A SHA-256 digest.
pub type Hash = [u8; 32];

/// The digest of these slices laid end to end.
pub fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Hash {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update(part);
    }
    hasher.finish()
}

/// A digest in the making.
#[derive(Clone)]
pub struct Sha256(digest::Context);

impl Sha256 {
    /// The digest of nothing yet.
    pub fn new() -> Sha256 {
        Sha256(digest::Context::new(&SHA256))
    }

    /// Appends bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all that was appended.
    pub fn finish(self) -> Hash {
        let mut hash = [0; 32];
        hash.copy_from_slice(self.0.finish().as_ref());
        hash
    }

    pub(crate) fn finish_digest(self) -> digest::Digest {
        self.0.finish()
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Sha256::new()
    }
}

/// Whether two byte strings are equal, in time that depends on their lengths alone. For secrets, and for
/// authenticators that a caller could otherwise guess byte by byte; public bytes compare with `==`.
pub fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_hash_as_their_concatenation() {
        let whole = sha256([&b"abc"[..]]);
        assert_eq!(hex::encode(whole), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(sha256([&b"a"[..], b"", b"bc"]), whole);
        assert_eq!(
            hex::encode(Sha256::default().finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn constant_time_comparison_agrees_with_equality() {
        assert!(equal_in_constant_time(b"same", b"same"));
        assert!(!equal_in_constant_time(b"same", b"sane"));
        assert!(!equal_in_constant_time(b"same", b"same longer"));
    }
}
