//! P-256 keys with deterministic signatures: keys follow from the seed, and the nonce is that of RFC 6979. So a seed gives the
//! same bytes in every run.
//!
//! The code is slow and not hardened against side channels: for simulation only.

use std::sync::Arc;

use base::Bytes;
use identity::SeededKey;
use identity::sha256;
use p256::ecdsa::signature::hazmat::PrehashSigner;
use p256::ecdsa::{Signature, SigningKey};

struct SimulatedKey {
    signing: SigningKey,
    point: Vec<u8>,
}

/// The key of a seed.
pub fn of_seed(seed: &[u8; 32]) -> Arc<dyn SeededKey> {
    // One in 2^32 seeds is not a scalar of the group.
    let mut scalar = *seed;
    let signing = loop {
        match SigningKey::from_slice(&scalar) {
            Ok(signing) => break signing,
            Err(_) => scalar = sha256([&scalar[..]]),
        }
    };
    let point = signing.verifying_key().to_sec1_point(false).as_bytes().to_vec();
    Arc::new(SimulatedKey { signing, point })
}

impl SeededKey for SimulatedKey {
    fn point(&self) -> &[u8] {
        &self.point
    }

    fn sign(&self, digest: &[u8; 32]) -> Bytes {
        let signature: Signature = self.signing.sign_prehash(digest).expect("a digest of 32 bytes can be signed");
        Bytes::copy_from_slice(signature.normalize_s().to_der().as_bytes())
    }
}

/// A P-256 signature with the other S: mathematically valid, but rejected by Fabric. `None` if the input is no signature.
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
