//! Signature policies: trees of gates ("n out of these rules") whose leaves are principals.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;
use proto::common::signature_policy::Type as Wire;
use proto::common::{SignaturePolicy as WireRule, SignaturePolicyEnvelope};

use super::evaluate::{SignatureSet, UsedSigners};
use super::{DEPTH_MAX, PRINCIPALS_MAX, RULES_MAX, decode, malformed};
use crate::error::Error;
use crate::principal::Principal;

/// A tree of gates whose leaves are principals.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignaturePolicy {
    rule: SignatureRule,
    principals: Vec<Principal>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum SignatureRule {
    /// A position among the principals.
    SignedBy(usize),
    /// This many of the rules. A number below 1 always holds, one above the number of rules never does.
    OutOf(i32, Vec<SignatureRule>),
}

impl SignaturePolicy {
    /// Compiles an encoded `SignaturePolicyEnvelope`.
    ///
    /// # Errors
    /// [`Error::MalformedPolicy`].
    pub fn decode(bytes: &Bytes) -> Result<SignaturePolicy, Error> {
        SignaturePolicy::compile(&decode(bytes, "SignaturePolicyEnvelope")?)
    }

    /// Compiles a policy. Principals that cannot be decoded stay, as principals that nobody satisfies.
    ///
    /// # Errors
    /// [`Error::MalformedPolicy`] when the version is not 0, a rule is missing or names a principal that is not there,
    /// or a bound is exceeded.
    pub fn compile(wire: &SignaturePolicyEnvelope) -> Result<SignaturePolicy, Error> {
        if wire.version != 0 {
            return malformed(format!("version {} is unknown", wire.version));
        }
        if wire.identities.len() > PRINCIPALS_MAX {
            return malformed("too many principals");
        }
        let Some(rule) = &wire.rule else { return malformed("it has no rule") };
        let mut budget = RULES_MAX;
        let rule = compile(rule, wire.identities.len(), DEPTH_MAX, &mut budget)?;
        Ok(SignaturePolicy { rule, principals: wire.identities.iter().map(Principal::from_wire).collect() })
    }

    /// Whom the policy names, in the order of its definition.
    pub fn principals(&self) -> &[Principal] {
        &self.principals
    }

    pub(super) fn rule(&self) -> &SignatureRule {
        &self.rule
    }

    pub(super) fn is_satisfied(&self, signatures: &SignatureSet<'_>) -> bool {
        let mut used = UsedSigners::default();
        self.ask(&self.rule, signatures, &mut used, true)
    }

    /// Whether the rule holds; if so, `used` has grown by the signers it took.
    ///
    /// `is_last` says that `used` is not read after a success. Then the gate may stop at once when enough rules hold.
    /// Otherwise its remaining rules also take the signers that they can take, as in Fabric.
    #[allow(clippy::arithmetic_side_effects, reason = "on numbers that this process made or has checked")]
    fn ask(&self, rule: &SignatureRule, signatures: &SignatureSet<'_>, used: &mut UsedSigners, is_last: bool) -> bool {
        match rule {
            SignatureRule::SignedBy(principal) => signatures.take(&self.principals[*principal], used),
            SignatureRule::OutOf(n, rules) => {
                let needed = usize::try_from(*n).unwrap_or(0);
                let mut held = 0;
                for (position, rule) in rules.iter().enumerate() {
                    if held + (rules.len() - position) < needed {
                        return false;
                    }
                    if is_last && held >= needed {
                        return true;
                    }
                    let mut attempt = *used;
                    if self.ask(rule, signatures, &mut attempt, is_last && held + 1 == needed) {
                        held += 1;
                        *used = attempt;
                    }
                }
                held >= needed
            }
        }
    }
}

fn compile(wire: &WireRule, principals: usize, depth: usize, budget: &mut usize) -> Result<SignatureRule, Error> {
    let (Some(depth), Some(left)) = (depth.checked_sub(1), budget.checked_sub(1)) else {
        return malformed("it nests too deep or has too many rules");
    };
    *budget = left;
    match &wire.r#type {
        None => malformed("a rule is empty"),
        Some(Wire::SignedBy(position)) => match usize::try_from(*position) {
            Ok(position) if position < principals => Ok(SignatureRule::SignedBy(position)),
            _ => malformed(format!("principal {position} does not exist")),
        },
        Some(Wire::NOutOf(gate)) => {
            let rules = gate.rules.iter().map(|rule| compile(rule, principals, depth, budget));
            Ok(SignatureRule::OutOf(gate.n, rules.collect::<Result<_, _>>()?))
        }
    }
}
