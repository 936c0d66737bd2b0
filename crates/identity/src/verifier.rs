//! Verification of signatures: P-256 by tables of each key's multiples, and by the library (aws-lc-rs) where the tables
//! give no answer.
//!
//! P-256 verification is most of the cost of a transaction, and most of it is for the same few hundred keys. Therefore
//! [`SignatureVerifier::Tables`] works as follows:
//!
//! 1. A key that has been used a few times gets a [table](tables). With it `p256_verify` finds a signature valid at a
//!    tenth of the library's cost, and at a thirtieth when many signatures are verified together.
//! 2. `p256_verify` never says that a signature is invalid. The library decides on every signature that `p256_verify`
//!    does not find valid.
//! 3. The library also verifies one in [`RECHECKED_ONE_IN`] of the signatures that `p256_verify` finds valid, chosen so
//!    that no outsider can tell which. If the library finds such a signature invalid, the process reports the
//!    difference and [ends](differs), because it must not verify another signature.
//!
//! [`SignatureVerifier::Library`] uses the library only. Signatures of other kinds of key are always verified by the
//! library.
//!
//! Invariant: both variants give the same verdict on every signature.
//!
//! In a simulation the library checks every signature too, and its verdicts are [cached](memo); the verdicts of tables
//! are not cached. Each parsed key has its own table there, so that neither runs nor the nodes of a run share tables.

mod tables;

use std::cell::Cell;
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

use aws_lc_rs::digest;
use aws_lc_rs::digest::Digest;
use base::rt;
use p256_verify::Backend;

use crate::der::EcdsaSignature;
use crate::digest::Sha256;
use crate::error::Error;
use crate::identity::Identity;
use crate::key::{KeyKind, PublicKey};
use crate::{event, memo};
use tables::count;

pub(crate) use tables::TabledKey;
pub use tables::{BUDGET_BYTES_DEFAULT, set_budget};

/// Of this many signatures that tables found valid, the library checks one again, on average.
pub const RECHECKED_ONE_IN: u64 = 1_000;

/// How P-256 signatures are verified.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(u8)]
pub enum SignatureVerifier {
    /// By tables of each key's multiples where there are some, otherwise by the library.
    #[default]
    Tables = 0,
    /// By the library.
    Library = 1,
}

/// What [`Verifier::of_process`] says.
static OF_PROCESS: AtomicU8 = AtomicU8::new(SignatureVerifier::Tables as u8);

/// A signature, what it covers and whose it claims to be.
#[derive(Clone, Copy, Debug)]
pub struct SignatureClaim<'a> {
    pub(crate) key: &'a PublicKey,
    /// The message, end to end.
    pub(crate) message: [&'a [u8]; 3],
    pub(crate) signature: &'a [u8],
}

impl<'a> SignatureClaim<'a> {
    /// The claim that a holder has signed this message.
    pub fn new(holder: &'a Identity, message: &'a [u8], signature: &'a [u8]) -> SignatureClaim<'a> {
        SignatureClaim::in_parts(holder, [message, &[], &[]], signature)
    }

    /// The claim that the owner of a key has signed this message.
    pub fn by_key(key: &'a PublicKey, message: &'a [u8], signature: &'a [u8]) -> SignatureClaim<'a> {
        SignatureClaim { key, message: [message, &[], &[]], signature }
    }

    /// The claim that a holder has signed the message that these slices make end to end.
    pub fn in_parts(holder: &'a Identity, message: [&'a [u8]; 3], signature: &'a [u8]) -> SignatureClaim<'a> {
        SignatureClaim { key: holder.certificate().key(), message, signature }
    }

    /// Refuses a signature whose form is wrong; the scalars, if the key is on a curve.
    fn check_form(&self) -> Result<Option<EcdsaSignature<'a>>, Error> {
        let Some(curve) = self.key.kind().curve() else { return Ok(None) };
        let parsed = EcdsaSignature::parse(self.signature).ok_or(Error::MalformedSignature)?;
        if parsed.is_low(curve) { Ok(Some(parsed)) } else { Err(Error::HighS) }
    }

    fn digest(&self) -> Digest {
        if let [whole, [], []] = self.message {
            return digest::digest(&digest::SHA256, whole);
        }
        let mut hasher = Sha256::new();
        self.message.iter().for_each(|part| hasher.update(part));
        hasher.finish_digest()
    }

    /// The library's verdict; in a simulation it may be a cached one.
    fn memoized(&self, library: impl FnOnce() -> bool) -> bool {
        memo::verdict(memo::SCHEME_MESSAGE, self.key.as_bytes(), &self.message, self.signature, library)
    }

    fn is_right_by_library(&self) -> bool {
        match (self.key.kind(), self.message) {
            (KeyKind::P256 | KeyKind::P384, _) => self.key.verifies_digest(&self.digest(), self.signature),
            (KeyKind::Ed25519, [whole, [], []]) => self.key.verifies(whole, self.signature),
            (KeyKind::Ed25519, parts) => self.key.verifies(&parts.concat(), self.signature),
        }
    }
}

impl SignatureVerifier {
    /// The verifier that the operator of this process chose.
    pub fn of_process() -> SignatureVerifier {
        match OF_PROCESS.load(Ordering::Relaxed) {
            1 => SignatureVerifier::Library,
            _ => SignatureVerifier::Tables,
        }
    }

    /// Makes this the verifier of this process from now on, after the known-answer tests have passed.
    ///
    /// # Errors
    /// [`Error::WrongAnswers`]: this machine or this build does not compute what it should.
    pub fn set_of_process(self) -> Result<(), Error> {
        if self == SignatureVerifier::Tables {
            tables::engine().map_err(|wrong| Error::WrongAnswers(wrong.to_owned()))?;
        }
        OF_PROCESS.store(self as u8, Ordering::Relaxed);
        Ok(())
    }

    /// Whether signatures verified together are so cheap that it pays to verify some that no rule may ask for.
    pub fn benefits_from_batching(self) -> bool {
        self == SignatureVerifier::Tables && tables::engine().is_ok_and(|engine| engine.backend() == Backend::Ifma)
    }

    /// Checks a signature.
    ///
    /// # Errors
    /// [`Error::MalformedSignature`], [`Error::HighS`] or [`Error::WrongSignature`].
    pub fn verify(self, claim: &SignatureClaim<'_>) -> Result<(), Error> {
        event::SignatureVerified.add(1);
        let parsed = claim.check_form()?;
        let is_right = match (self, claim.key.tabled(), parsed) {
            (SignatureVerifier::Tables, Some(key), Some(signature)) => {
                let digest = claim.digest();
                let found = signature.words().is_some_and(|signature| key.finds_valid(bytes_of(&digest), &signature));
                confirm_verdict(key, claim, &digest, found)
            }
            _ => claim.memoized(|| claim.is_right_by_library()),
        };
        is_right.then_some(()).ok_or(Error::WrongSignature)
    }

    /// Checks signatures together; whether each is right, in their order.
    pub fn verify_batch(self, claims: &[SignatureClaim<'_>]) -> Vec<bool> {
        if self == SignatureVerifier::Library || claims.len() < 2 {
            return claims.iter().map(|claim| self.verify(claim).is_ok()).collect();
        }
        count(&event::SignatureBatch);
        let mut verdicts = vec![false; claims.len()];
        let mut batch = Vec::with_capacity(claims.len());
        for (claim, verdict) in claims.iter().zip(&mut verdicts) {
            let Ok(parsed) = claim.check_form() else {
                event::SignatureVerified.add(1);
                continue;
            };
            match (claim.key.tabled(), parsed.and_then(|signature| signature.words())) {
                (Some(key), Some(signature)) => batch.push((claim, verdict, key, claim.digest(), signature)),
                _ => *verdict = self.verify(claim).is_ok(),
            }
        }
        event::SignatureVerified.add(batch.len() as u64);
        let asked = batch.iter().map(|(_, _, key, digest, signature)| (*key, bytes_of(digest), signature));
        let found = TabledKey::find_valid(asked);
        for ((claim, verdict, key, digest, _), found) in batch.into_iter().zip(found) {
            *verdict = confirm_verdict(key, claim, &digest, found);
        }
        verdicts
    }
}

/// Whether a signature is right. `found` says whether the tables found it valid.
fn confirm_verdict(key: &TabledKey, claim: &SignatureClaim<'_>, digest: &Digest, found: bool) -> bool {
    // A test of a whole process asks for this.
    let found = found || (!rt::is_simulation() && rt::fault_point("identity.verifier.mutant.accepts"));
    let found = found && tables::engine().is_ok();
    let by_library = || claim.memoized(|| claim.key.verifies_digest(digest, claim.signature));
    if !found {
        count(&event::SignatureUnsure);
        let is_right = by_library();
        if is_right {
            key.used();
        }
        // A mistake for a simulation to find. It is behind the tables, since whether this key has one may not decide anything.
        return is_right || (rt::is_simulation() && rt::fault_point("identity.verifier.mutant.wrong"));
    }
    if rt::is_simulation() || is_chosen() {
        count(&event::SignatureRechecked);
        if !by_library() {
            differs(claim, digest);
        }
    }
    key.used();
    true
}

fn bytes_of(digest: &Digest) -> &[u8; 32] {
    digest.as_ref().try_into().expect("a digest of SHA-256 has 32 bytes")
}

thread_local! {
    /// Signatures found valid until the next one is checked again.
    static UNTIL_RECHECK: Cell<u64> = const { Cell::new(0) };
}

/// Chooses one in [`RECHECKED_ONE_IN`].
fn is_chosen() -> bool {
    UNTIL_RECHECK.with(|left| {
        let is_chosen = left.get() <= 1;
        left.set(if is_chosen { 1 + rt::random_below(2 * RECHECKED_ONE_IN - 1) } else { left.get() - 1 });
        is_chosen
    })
}

/// Ends the process: a signature that the library rejects was found valid, and there may have been others.
#[cold]
fn differs(claim: &SignatureClaim<'_>, digest: &Digest) -> ! {
    let report = format!(
        "this build or this machine has taken a P-256 signature for valid that the library refuses. Blocks judged by this process \
         may be judged otherwise by others. Set [crypto] verify = \"library\", rebuild this peer's state from the ledger of another one, \
         and report: key {} digest {} signature {} path {:?}",
        hex::encode(claim.key.as_bytes()),
        hex::encode(digest.as_ref()),
        hex::encode(claim.signature),
        tables::engine().map(p256_verify::Verifier::backend),
    );
    assert!(!rt::is_simulation(), "{report}");
    // Until the process has ended, other threads ask the library.
    tables::distrust();
    // Standard error may be closed; the process ends all the same.
    let _ = writeln!(std::io::stderr(), "heddle: {report}");
    std::process::exit(EXIT_SOFTWARE)
}

/// The code with which a process ends that can no longer vouch for what it says (sysexits.h).
const EXIT_SOFTWARE: i32 = 70;

#[cfg(test)]
mod tests;
