//! A compiled policy of a channel: a signature policy, or a rule over the policies of subgroups.

use std::sync::Arc;

use super::evaluate::{SignatureSet, SignedData};
use super::signature::SignaturePolicy;
use crate::error::Error;
use crate::identity::Identity;
use crate::manager::MspManager;

/// A policy, ready to be evaluated. Clones share it.
#[derive(Clone, Debug)]
pub enum Policy {
    /// Gates over principals.
    Signature(Arc<SignaturePolicy>),
    /// A required number of the policies below.
    ImplicitMeta(Arc<ImplicitMeta>),
    /// A policy that does not exist: nothing satisfies it.
    Missing,
}

impl Policy {
    /// Decides whether these signatures satisfy the policy.
    ///
    /// # Errors
    /// [`Error::PolicyUnsatisfied`].
    pub fn evaluate(&self, signatures: &SignatureSet<'_>) -> Result<(), Error> {
        if self.is_satisfied(signatures) { Ok(()) } else { Err(Error::PolicyUnsatisfied) }
    }

    /// Identifies the signers in this channel, then decides whether their signatures satisfy the policy.
    ///
    /// # Errors
    /// [`Error::PolicyUnsatisfied`], [`Error::TooManySignatures`].
    pub fn evaluate_signed(&self, signatures: &[SignedData], members: &MspManager) -> Result<(), Error> {
        self.evaluate(&SignatureSet::new(signatures, members)?)
    }

    /// Decides whether these identities satisfy the policy, when their signatures are known to be good.
    ///
    /// # Errors
    /// [`Error::PolicyUnsatisfied`], [`Error::TooManySignatures`].
    pub fn evaluate_identities(&self, signers: &[Arc<Identity>]) -> Result<(), Error> {
        self.evaluate(&SignatureSet::of_verified(signers)?)
    }

    fn is_satisfied(&self, signatures: &SignatureSet<'_>) -> bool {
        match self {
            Policy::Signature(policy) => policy.is_satisfied(signatures),
            Policy::ImplicitMeta(policy) => policy.is_satisfied(|below| below.is_satisfied(signatures)),
            Policy::Missing => false,
        }
    }
}

impl From<SignaturePolicy> for Policy {
    fn from(policy: SignaturePolicy) -> Self {
        Policy::Signature(Arc::new(policy))
    }
}

/// How many of the policies below must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetaRule {
    /// One.
    Any,
    /// Every one.
    All,
    /// More than half.
    Majority,
}

/// A policy that evaluates the policies of one name in all groups directly below.
#[derive(Clone, Debug)]
pub struct ImplicitMeta {
    threshold: usize,
    below: Vec<Policy>,
}

impl ImplicitMeta {
    /// Asks these policies. A group without the policy counts with [`Policy::Missing`]; with no groups the policy holds.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub fn new(rule: MetaRule, below: Vec<Policy>) -> ImplicitMeta {
        let threshold = match rule {
            _ if below.is_empty() => 0,
            MetaRule::Any => 1,
            MetaRule::All => below.len(),
            MetaRule::Majority => below.len() / 2 + 1,
        };
        ImplicitMeta { threshold, below }
    }

    /// How many of the policies below must hold.
    pub fn threshold(&self) -> usize {
        self.threshold
    }

    /// The policies that are asked.
    pub fn below(&self) -> &[Policy] {
        &self.below
    }

    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    pub(super) fn is_satisfied(&self, mut holds: impl FnMut(&Policy) -> bool) -> bool {
        let mut remaining = self.threshold;
        for policy in &self.below {
            if remaining == 0 {
                break;
            }
            remaining -= usize::from(holds(policy));
        }
        remaining == 0
    }
}

#[cfg(test)]
mod tests;
