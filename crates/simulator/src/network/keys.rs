//! Keys on P-256 whose signatures follow from the seed: the nonce is the one of RFC 6979, so that a seed gives the same bytes on every run.
//!
//! Slow, and not hardened against anything: for simulation only.

use std::sync::Arc;

use base::Bytes;
use identity::SeededKey;
use identity::sha256;
use p256::ecdsa::signature::hazmat::PrehashSigner;
use p256::ecdsa::{Signature, SigningKey};

struct Key {
    signing: SigningKey,
    point: Vec<u8>,
}

/// The key of a seed.
pub fn of_seed(seed: &[u8; 32]) -> Arc<dyn SeededKey> {
    // One in 2^32 seeds is no scalar of the group.
    let mut scalar = *seed;
    let signing = loop {
        match SigningKey::from_slice(&scalar) {
            Ok(signing) => break signing,
            Err(_) => scalar = sha256([&scalar[..]]),
        }
    };
    let point = signing.verifying_key().to_sec1_point(false).as_bytes().to_vec();
    Arc::new(Key { signing, point })
}

impl SeededKey for Key {
    fn point(&self) -> &[u8] {
        &self.point
    }

    fn sign(&self, digest: &[u8; 32]) -> Bytes {
        let signature: Signature = self.signing.sign_prehash(digest).expect("a digest of 32 bytes can be signed");
        Bytes::copy_from_slice(signature.normalize_s().to_der().as_bytes())
    }
}

/// A signature on P-256 with the other S: the mathematics allow it, and Fabric does not. Nothing if it is none.
pub fn with_high_s(signature: &[u8]) -> Option<Bytes> {
    let (r, s) = Signature::from_der(signature).ok()?.split_scalars();
    let high = Signature::from_scalars(r, -*s).ok()?;
    Some(Bytes::copy_from_slice(high.to_der().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6979, A.2.5, with SHA-256 and the message "sample".
    #[test]
    fn signatures_are_those_of_rfc_6979_with_low_s() {
        let number = |text: &str| <[u8; 32]>::try_from(identity::hex::decode(text).expect("hex")).expect("32 bytes");
        let key = of_seed(&number("c9afa9d845ba75166b5c215767b1d6934e50c3db36e89b127b8a622b120f6721"));
        let signature = key.sign(&sha256([&b"sample"[..]]));
        let r = number("efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716");
        let high = number("f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8");
        let expected = Signature::from_scalars(r, high).expect("in range");
        let high = Bytes::copy_from_slice(expected.to_der().as_bytes());
        assert_ne!(signature, high);
        assert_eq!(with_high_s(&signature), Some(high));
        assert_eq!(key.sign(&sha256([&b"sample"[..]])), signature);
        assert_eq!(with_high_s(b"no signature"), None);
    }
}
