//! The crypto floor: the processor time that the servers would need for one transaction if everything but its
//! signatures were free.
//!
//! The operations of a transaction, with `E` endorsers and `P` peers, where each organisation verifies for itself:
//! - each endorser verifies the proposal (E verifications) and signs its endorsement (E signatures);
//! - the orderer verifies the envelope (1 verification);
//! - each peer verifies the creator and every endorsement (P × (1 + E) verifications);
//! - the gateway verifies the signature of a CommitStatus request (1 verification).
//!
//! The price of one operation is measured in the same run, on a warm processor, as the median of several batches. The
//! price is processor time of the measuring thread, which leaves out the load of other processes, just as the processor
//! time of the servers does.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, ParsedPublicKey, Signature,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Price of one P-256 operation on one processor, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SignaturePrices {
    /// Microseconds to verify one signature.
    pub verify_us: f64,
    /// Microseconds to make one signature.
    pub sign_us: f64,
}

/// How many operations one transaction needs on the servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SignatureNeeds {
    /// Signatures that the servers verify.
    pub verifications: u32,
    /// Signatures that the servers make.
    pub signatures: u32,
}

const BATCHES: usize = 25;
const OPERATIONS_PER_BATCH: usize = 300;

impl SignatureNeeds {
    /// The operations of one transaction with this many endorsers and peers; `status` counts the CommitStatus request.
    pub fn new(endorsers: u32, peers: u32, status: bool) -> SignatureNeeds {
        SignatureNeeds {
            verifications: endorsers + 1 + peers * (1 + endorsers) + u32::from(status),
            signatures: endorsers,
        }
    }

    /// The floor in microseconds of processor time per transaction.
    pub fn floor_us(&self, prices: &SignaturePrices) -> f64 {
        f64::from(self.verifications) * prices.verify_us + f64::from(self.signatures) * prices.sign_us
    }
}

/// A key with which signatures are made and verified, for their cost alone.
pub struct SignatureWork {
    key: EcdsaKeyPair,
    public: ParsedPublicKey,
    random: SystemRandom,
    signature: Signature,
}

/// What is signed.
const MESSAGE: [u8; 64] = [0x5a; 64];

impl SignatureWork {
    /// Makes a key.
    pub fn new() -> SignatureWork {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).expect("a key pair can be generated");
        let random = SystemRandom::new();
        let signature = key.sign(&random, &MESSAGE).expect("signing works");
        let public = ParsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key.public_key().as_ref())
            .expect("the public half of a generated key is valid");
        SignatureWork { key, public, random, signature }
    }

    /// Verifies one signature.
    pub fn verify(&self) {
        let message = std::hint::black_box(&MESSAGE);
        self.public.verify_sig(message, self.signature.as_ref()).expect("the signature is good");
    }

    /// Makes one signature.
    pub fn sign(&self) {
        std::hint::black_box(self.key.sign(&self.random, std::hint::black_box(&MESSAGE)).expect("signing works"));
    }

    /// Performs the operations of one transaction.
    pub fn transaction(&self, needs: &SignatureNeeds) {
        (0..needs.verifications).for_each(|_| self.verify());
        (0..needs.signatures).for_each(|_| self.sign());
    }
}

impl Default for SignatureWork {
    fn default() -> SignatureWork {
        SignatureWork::new()
    }
}

impl SignaturePrices {
    /// Measures for less than half a second on the calling thread.
    pub fn measure() -> SignaturePrices {
        let work = SignatureWork::new();
        SignaturePrices { verify_us: median_us(|| work.verify()), sign_us: median_us(|| work.sign()) }
    }

    /// The mean of two measurements, before and after a load.
    pub fn mean(self, other: SignaturePrices) -> SignaturePrices {
        SignaturePrices {
            verify_us: (self.verify_us + other.verify_us) / 2.0,
            sign_us: (self.sign_us + other.sign_us) / 2.0,
        }
    }
}

/// Processor time of the calling thread so far, in microseconds.
pub fn thread_us() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

fn median_us(mut operation: impl FnMut()) -> f64 {
    (0..OPERATIONS_PER_BATCH).for_each(|_| operation());
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let start = thread_us();
            (0..OPERATIONS_PER_BATCH).for_each(|_| operation());
            (thread_us() - start) / OPERATIONS_PER_BATCH as f64
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_organisations_and_one_endorser_need_nine_verifications_and_one_signature() {
        let needs = SignatureNeeds::new(1, 3, true);
        assert_eq!((needs.verifications, needs.signatures), (9, 1));
        let floor = needs.floor_us(&SignaturePrices { verify_us: 33.0, sign_us: 11.0 });
        assert!((floor - 308.0).abs() < 1e-9);
    }
}
