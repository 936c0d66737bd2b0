//! Sets of signatures, as policies look at them.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;

use super::SIGNATURES_MAX;
use crate::error::Error;
use crate::identity::Identity;
use crate::manager::MspManager;
use crate::principal::Principal;
use crate::verifier::{Claim, Verifier};

/// The bytes that a signature covers: up to three slices laid end to end, so that nobody has to copy them together.
#[derive(Clone, Default, Debug)]
pub struct Message([Bytes; 3]);

impl Message {
    fn parts(&self) -> [&[u8]; 3] {
        self.0.each_ref().map(|part| &part[..])
    }
}

impl From<Bytes> for Message {
    fn from(whole: Bytes) -> Self {
        Message([whole, Bytes::new(), Bytes::new()])
    }
}

impl From<[Bytes; 2]> for Message {
    fn from([first, second]: [Bytes; 2]) -> Self {
        Message([first, second, Bytes::new()])
    }
}

impl From<[Bytes; 3]> for Message {
    fn from(parts: [Bytes; 3]) -> Self {
        Message(parts)
    }
}

/// A signature, what it covers and whose it claims to be.
#[derive(Clone, Debug)]
pub struct SignedData {
    /// What was signed.
    pub data: Message,
    /// The signer, an encoded `SerializedIdentity`.
    pub identity: Bytes,
    /// The signature.
    pub signature: Bytes,
}

/// The signers of one message or of several, identified once and verified at most once each, for any number of policies.
#[derive(Debug)]
pub struct SignatureSet<'a> {
    entries: Vec<Entry<'a>>,
    verifier: Verifier,
}

#[derive(Debug)]
struct Entry<'a> {
    identity: Arc<Identity>,
    /// What to verify; nothing when the caller vouches for it.
    signed: Option<&'a SignedData>,
    /// What somebody has found who verified it together with others. It counts once it is asked for: a holder counts by his first
    /// signature that was *asked for* and good, and which those are must not depend on who verifies ahead.
    ahead: Cell<Option<bool>>,
    verdict: Cell<Verdict>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
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
        SignatureSet::verified_by(Verifier::of_process(), signatures, members)
    }

    /// As [`SignatureSet::new`], where another verifier than this process's is to be asked.
    ///
    /// # Errors
    /// [`Error::TooManySignatures`].
    pub fn verified_by(
        verifier: Verifier,
        signatures: &'a [SignedData],
        members: &MspManager,
    ) -> Result<SignatureSet<'a>, Error> {
        check_count(signatures.len())?;
        let entries = signatures.iter().filter_map(|signed| {
            let identity = members.identify(&signed.identity).ok()?;
            Some(Entry { identity, signed: Some(signed), ahead: Cell::new(None), verdict: Cell::new(Verdict::Unknown) })
        });
        Ok(SignatureSet { entries: entries.collect(), verifier })
    }

    /// Takes signers whose signatures the caller has verified.
    ///
    /// # Errors
    /// [`Error::TooManySignatures`].
    pub fn of_verified(signers: &[Arc<Identity>]) -> Result<SignatureSet<'a>, Error> {
        check_count(signers.len())?;
        let entries = signers.iter().map(|identity| Entry {
            identity: identity.clone(),
            signed: None,
            ahead: Cell::new(None),
            verdict: Cell::new(Verdict::Good),
        });
        Ok(SignatureSet { entries: entries.collect(), verifier: Verifier::of_process() })
    }

    /// Marks the first unused good signer that satisfies `principal` as used; false when there is none.
    ///
    /// A holder counts by their first good signature. Those of their signatures that come before the one looked at have
    /// been judged by then: they satisfy the same principal, so that they were either taken, now or earlier, or found
    /// wrong. It follows that looking at known verdicts suffices to count nobody twice.
    pub(super) fn take(&self, principal: &Principal, used: &mut Used) -> bool {
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

    /// The signatures that have not been verified yet, so that a caller can verify them in one batch.
    pub fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        self.entries.iter().filter_map(Entry::claim)
    }

    /// Takes verdicts on the first of [`SignatureSet::claims`], in their order.
    pub fn settle(&self, verdicts: impl IntoIterator<Item = bool>) {
        let unverified = self.entries.iter().filter(|entry| entry.claim().is_some());
        for (entry, is_good) in unverified.zip(verdicts) {
            entry.ahead.set(Some(is_good));
        }
    }

    /// How many signatures have been verified so far.
    #[cfg(test)]
    pub(super) fn verified(&self) -> usize {
        self.entries.iter().filter(|entry| entry.verdict.get() != Verdict::Unknown).count()
    }

    fn counted_before(&self, position: usize) -> bool {
        let identity = &self.entries[position].identity;
        let mut earlier = self.entries[..position].iter();
        earlier.any(|entry| entry.verdict.get() == Verdict::Good && entry.identity.is_same_holder(identity))
    }
}

impl Entry<'_> {
    /// What there is to verify, unless that was done.
    fn claim(&self) -> Option<Claim<'_>> {
        let is_open = self.verdict.get() == Verdict::Unknown && self.ahead.get().is_none();
        let signed = self.signed.filter(|_| is_open)?;
        Some(Claim::in_parts(&self.identity, signed.data.parts(), &signed.signature))
    }

    fn is_good(&self, verifier: Verifier) -> bool {
        if self.verdict.get() == Verdict::Unknown {
            let found = self.ahead.get().or_else(|| self.claim().map(|claim| verifier.verify(&claim).is_ok()));
            self.verdict.set(if found == Some(true) { Verdict::Good } else { Verdict::Wrong });
        }
        self.verdict.get() == Verdict::Good
    }
}

fn check_count(count: usize) -> Result<(), Error> {
    if count > SIGNATURES_MAX { Err(Error::TooManySignatures(count)) } else { Ok(()) }
}

/// Which signers a rule has taken, by position.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Used([u64; SIGNATURES_MAX / 64]);

impl Used {
    fn contains(&self, position: usize) -> bool {
        self.0[position / 64] & (1 << (position % 64)) != 0
    }

    fn insert(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }
}
