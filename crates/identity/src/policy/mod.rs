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
mod channel_policy;
mod decode;
mod evaluate;
mod layout;
mod limits;
mod signature;
mod text;
mod tree;

pub use application::{ApplicationPolicy, channel_reference, of_signature};
pub use channel_policy::{ImplicitMeta, MetaRule, Policy};
pub use evaluate::{KnownSignatures, SignatureSet, SignedData, SignedMessage};
pub use layout::{EndorsementLayout, LAYOUTS_MAX, LayoutBudget};
pub use limits::{DEPTH_MAX, PRINCIPALS_MAX, RULES_MAX, SIGNATURES_MAX};
pub use signature::SignaturePolicy;
pub use text::{parse, print};
pub use tree::{PolicyTree, implicit_meta_to_wire, signature_to_wire};

use decode::{decode, malformed};
