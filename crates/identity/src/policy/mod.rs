//! Policies: rules that decide which signatures suffice.
//!
//! A **signature policy** is a tree of gates ("n out of these rules") over principals. An **implicit meta policy**
//! evaluates the policies of one name in all groups directly below its own group, and requires any, all or the majority
//! of them. A **tree** gives each policy of a channel's configuration its path. An **application policy**, which
//! belongs to a contract, is either a signature policy or a path.
//!
//! Evaluation follows Fabric's, because the verdict is part of the ledger:
//! 1. A signer counts only if its identity is valid in the channel and its signature is right.
//! 2. Each holder of a certificate counts once, however often it signed.
//! 3. A gate evaluates all its rules in order, even after enough of them are satisfied. A rule takes the first unused
//!    signer that satisfies its principal. A gate that fails gives back the signers that its rules took. There is no
//!    backtracking, so a policy may fail although another assignment of signers would satisfy it.
//! 4. Each policy below an implicit meta policy sees all signers, including those that another policy has used.
//!
//! A signature is verified when a rule first needs its signer, and at most once ([`SignatureSet`]).
//!
//! The constants below bound everything that comes from the wire.

mod application;
mod evaluate;
mod layout;
mod signature;
mod text;
mod tree;

use std::sync::Arc;

use bytes::Bytes;

pub use application::{ApplicationPolicy, channel_reference, of_signature};
pub use evaluate::{SignatureSet, SignedData, SignedMessage};
pub use layout::{EndorsementLayout, LAYOUTS_MAX};
pub use signature::SignaturePolicy;
pub use text::{parse, print};
pub use tree::{ImplicitMeta, MetaRule, PolicyTree, implicit_meta_to_wire, signature_to_wire};

use crate::error::Error;
use crate::identity::Identity;
use crate::manager::MspManager;

/// How many signatures one set may hold. A larger set is refused whole.
pub const SIGNATURES_MAX: usize = 256;
/// How deep gates may nest.
pub const DEPTH_MAX: usize = 32;
/// How many gates and leaves one signature policy may have.
pub const RULES_MAX: usize = 4096;
/// How many principals one signature policy may name.
pub const PRINCIPALS_MAX: usize = 1024;

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

    /// The smallest choices of organisations whose peers could satisfy the policy, at most [`LAYOUTS_MAX`] of them, each
    /// with how many signers of each organisation it takes. Empty when peers alone cannot satisfy it.
    pub fn layouts(&self) -> Vec<EndorsementLayout> {
        layout::layouts(self)
    }
}

impl From<SignaturePolicy> for Policy {
    fn from(policy: SignaturePolicy) -> Self {
        Policy::Signature(Arc::new(policy))
    }
}

fn decode<M: prost::Message + Default>(bytes: &Bytes, what: &str) -> Result<M, Error> {
    M::decode(bytes.clone()).map_err(|e| Error::MalformedPolicy(format!("not a {what}: {e}")))
}

fn malformed<T>(reason: impl Into<String>) -> Result<T, Error> {
    Err(Error::MalformedPolicy(reason.into()))
}

#[cfg(test)]
mod tests;
