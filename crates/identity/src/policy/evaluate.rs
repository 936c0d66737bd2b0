//! The set of signatures that a policy is evaluated on. The set resolves the signers, and verifies each signature at
//! most once.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;

use super::SIGNATURES_MAX;
use crate::error::Error;
use crate::identity::Identity;
use crate::manager::MspManager;
use crate::principal::Principal;
use crate::verifier::{SignatureClaim, SignatureVerifier};

/// The bytes that a signature covers: up to three slices, whose concatenation is signed and is never copied together.
#[derive(Clone, Default, Debug)]
pub struct SignedMessage([Bytes; 3]);

impl SignedMessage {
    fn parts(&self) -> [&[u8]; 3] {
        self.0.each_ref().map(|part| &part[..])
    }
}

impl From<Bytes> for SignedMessage {
    fn from(whole: Bytes) -> Self {
        SignedMessage([whole, Bytes::new(), Bytes::new()])
    }
}

impl From<[Bytes; 2]> for SignedMessage {
    fn from([first, second]: [Bytes; 2]) -> Self {
        SignedMessage([first, second, Bytes::new()])
    }
}

impl From<[Bytes; 3]> for SignedMessage {
    fn from(parts: [Bytes; 3]) -> Self {
        SignedMessage(parts)
    }
}

/// A signature, what it covers and whose it claims to be.
#[derive(Clone, Debug)]
pub struct SignedData {
    /// What was signed.
    pub data: SignedMessage,
    /// The signer, an encoded `SerializedIdentity`.
    pub identity: Bytes,
    /// The signature.
    pub signature: Bytes,
}

/// Verdicts on the first [`KNOWN_MAX`] signatures of a set, by position.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KnownSignatures {
    verified: u64,
    /// The good ones among those verified.
    good: u64,
}

/// The largest number of verdicts that are remembered.
const KNOWN_MAX: usize = 64;

/// The signers of one message or of several, identified once and verified at most once each, for any number of policies.
#[derive(Debug)]
pub struct SignatureSet<'a> {
    entries: Vec<SignerEntry<'a>>,
    verifier: SignatureVerifier,
}

#[derive(Debug)]
struct SignerEntry<'a> {
    identity: Arc<Identity>,
    /// What to verify; nothing when the caller vouches for it.
    signed: Option<&'a SignedData>,
    /// The verdict of a batch verification ahead of need. It takes effect once a rule asks for this signature: a holder
    /// counts by the first good signature that was *asked for*, and the choice must not depend on verification ahead.
    ahead: Cell<Option<bool>>,
    verdict: Cell<EntryVerdict>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EntryVerdict {
    Unknown,
    Good,
    Wrong,
}

impl<'a> SignatureSet<'a> {
    /// Identifies the signers. Those who are not valid members of the channel are left out.
    ///
    /// # Errors
    /// [`Error::TooManySignatures`].
    pub fn new(signatures: &'a [SignedData], members: &MspManager) -> Result<SignatureSet<'a>, Error> {
        SignatureSet::verified_by(SignatureVerifier::of_process(), signatures, members)
    }

    /// As [`SignatureSet::new`], where another verifier than this process's is to be asked.
    ///
    /// # Errors
    /// [`Error::TooManySignatures`].
    pub fn verified_by(
        verifier: SignatureVerifier,
        signatures: &'a [SignedData],
        members: &MspManager,
    ) -> Result<SignatureSet<'a>, Error> {
        check_count(signatures.len())?;
        let entries = signatures.iter().filter_map(|signed| {
            let identity = members.identify(&signed.identity).ok()?;
            Some(SignerEntry {
                identity,
                signed: Some(signed),
                ahead: Cell::new(None),
                verdict: Cell::new(EntryVerdict::Unknown),
            })
        });
        Ok(SignatureSet { entries: entries.collect(), verifier })
    }

    /// Takes signers whose signatures the caller has verified.
    ///
    /// # Errors
    /// [`Error::TooManySignatures`].
    pub fn of_verified(signers: &[Arc<Identity>]) -> Result<SignatureSet<'a>, Error> {
        check_count(signers.len())?;
        let entries = signers.iter().map(|identity| SignerEntry {
            identity: identity.clone(),
            signed: None,
            ahead: Cell::new(None),
            verdict: Cell::new(EntryVerdict::Good),
        });
        Ok(SignatureSet { entries: entries.collect(), verifier: SignatureVerifier::of_process() })
    }

    /// Marks the first unused good signer that satisfies `principal` as used; false when there is none.
    ///
    /// A holder counts by their first good signature. Those of their signatures that come before the one looked at have
    /// been judged by then: they satisfy the same principal, so that they were either taken, now or earlier, or found
    /// wrong. It follows that looking at known verdicts suffices to count nobody twice.
    pub(super) fn take(&self, principal: &Principal, used: &mut UsedSigners) -> bool {
        for (position, entry) in self.entries.iter().enumerate() {
            if used.contains(position) || !entry.identity.satisfies(principal) || self.counted_before(position) {
                continue;
            }
            if entry.is_good(self.verifier) {
                used.insert(position);
                return true;
            }
        }
        false
    }

    /// The signers whose signatures are good; verifies those that have not been verified yet.
    pub fn genuine_signers(&self) -> Vec<Arc<Identity>> {
        self.entries.iter().filter(|entry| entry.is_good(self.verifier)).map(|entry| entry.identity.clone()).collect()
    }

    /// The signatures that have not been verified yet, so that a caller can verify them in one batch.
    pub fn claims(&self) -> impl Iterator<Item = SignatureClaim<'_>> {
        self.entries.iter().filter_map(SignerEntry::claim)
    }

    /// Takes verdicts on the first of [`SignatureSet::claims`], in their order.
    pub fn set_verdicts(&self, verdicts: impl IntoIterator<Item = bool>) {
        let unverified = self.entries.iter().filter(|entry| entry.claim().is_some());
        for (entry, is_good) in unverified.zip(verdicts) {
            entry.ahead.set(Some(is_good));
        }
    }

    /// The verdicts so far, for a set of the same signatures and members that is made later.
    pub fn known(&self) -> KnownSignatures {
        let mut known = KnownSignatures::default();
        for (position, entry) in self.entries.iter().take(KNOWN_MAX).enumerate() {
            let verdict = match entry.verdict.get() {
                EntryVerdict::Unknown => entry.ahead.get(),
                found => Some(found == EntryVerdict::Good),
            };
            known.verified |= u64::from(verdict.is_some()) << position;
            known.good |= u64::from(verdict == Some(true)) << position;
        }
        known
    }

    /// Takes the verdicts of an earlier set of the same signatures and members. These signatures are not verified again.
    pub fn recall(&self, known: KnownSignatures) {
        for (position, entry) in self.entries.iter().take(KNOWN_MAX).enumerate() {
            if known.verified & (1 << position) != 0 {
                entry.ahead.set(Some(known.good & (1 << position) != 0));
            }
        }
    }

    /// How many signatures have been verified so far.
    #[cfg(test)]
    pub(super) fn verified(&self) -> usize {
        self.entries.iter().filter(|entry| entry.verdict.get() != EntryVerdict::Unknown).count()
    }

    fn counted_before(&self, position: usize) -> bool {
        let identity = &self.entries[position].identity;
        let mut earlier = self.entries[..position].iter();
        earlier.any(|entry| entry.verdict.get() == EntryVerdict::Good && entry.identity.is_same_holder(identity))
    }
}

impl SignerEntry<'_> {
    /// What there is to verify, unless that was done.
    fn claim(&self) -> Option<SignatureClaim<'_>> {
        let is_open = self.verdict.get() == EntryVerdict::Unknown && self.ahead.get().is_none();
        let signed = self.signed.filter(|_| is_open)?;
        Some(SignatureClaim::in_parts(&self.identity, signed.data.parts(), &signed.signature))
    }

    fn is_good(&self, verifier: SignatureVerifier) -> bool {
        if self.verdict.get() == EntryVerdict::Unknown {
            let found = self.ahead.get().or_else(|| self.claim().map(|claim| verifier.verify(&claim).is_ok()));
            self.verdict.set(if found == Some(true) { EntryVerdict::Good } else { EntryVerdict::Wrong });
        }
        self.verdict.get() == EntryVerdict::Good
    }
}

fn check_count(count: usize) -> Result<(), Error> {
    if count > SIGNATURES_MAX { Err(Error::TooManySignatures(count)) } else { Ok(()) }
}

/// Which signers a rule has taken, by position.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct UsedSigners([u64; SIGNATURES_MAX / 64]);

impl UsedSigners {
    fn contains(&self, position: usize) -> bool {
        self.0[position / 64] & (1 << (position % 64)) != 0
    }

    fn insert(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }
}
