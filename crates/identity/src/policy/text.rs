//! Signature policies in text, as Fabric's tools write them:
//! `OR('Org1MSP.peer', AND('Org2MSP.admin', 'Org3MSP.member'))` or `OutOf(2, 'A.peer', 'B.peer', 'C.peer')`.
//!
//! ```text
//! policy    = gate | principal
//! gate      = ("AND" | "OR") "(" policy ("," policy)* ")" | "OutOf" "(" number ("," policy)+ ")"
//! principal = quote msp "." role quote         role = "member" | "admin" | "client" | "peer" | "orderer"
//! ```
//! Gates may also be written `And`, `and`, `Or`, `or`, `outof` and `OUTOF`. Quotes are single or double. The number may
//! be quoted, and it may be at most one more than the number of rules. Each mention of a principal makes a separate
//! entry, so that the encoding equals the encoding that Fabric's parser makes. A bare principal is a policy of one
//! leaf; Fabric's parser refuses it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt::Write as _;

use proto::common::signature_policy::{NOutOf, Type};
use proto::common::{MspPrincipal, SignaturePolicy as WireRule, SignaturePolicyEnvelope};

use super::signature::SignatureRule;
use super::{DEPTH_MAX, PRINCIPALS_MAX, RULES_MAX, SignaturePolicy, malformed};
use crate::error::Error;
use crate::principal::{MemberRole, Principal};

/// The longest text that is read, in bytes.
const TEXT_BYTES_MAX: usize = 256 * 1024;

/// Reads a policy.
///
/// # Errors
/// [`Error::MalformedPolicy`], which says where.
pub fn parse(text: &str) -> Result<SignaturePolicyEnvelope, Error> {
    if text.len() > TEXT_BYTES_MAX {
        return malformed("the text is too long");
    }
    let mut parser = PolicyParser { text, at: 0, principals: Vec::new(), rules: 0 };
    let rule = parser.policy(DEPTH_MAX)?;
    match parser.next_token()? {
        None => Ok(SignaturePolicyEnvelope { version: 0, rule: Some(rule), identities: parser.principals }),
        Some(_) => parser.fail("text follows the policy"),
    }
}

struct PolicyParser<'a> {
    text: &'a str,
    at: usize,
    principals: Vec<MspPrincipal>,
    rules: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PolicyToken<'a> {
    Open,
    Close,
    Comma,
    Word(&'a str),
    Quoted(&'a str),
}

impl<'a> PolicyParser<'a> {
    fn fail<T>(&self, reason: &str) -> Result<T, Error> {
        malformed(format!("{reason} (at byte {})", self.at))
    }

    fn next_token(&mut self) -> Result<Option<PolicyToken<'a>>, Error> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len().saturating_sub(rest.len());
        let Some(first) = rest.chars().next() else { return Ok(None) };
        let (token, length) = match first {
            '(' => (PolicyToken::Open, 1),
            ')' => (PolicyToken::Close, 1),
            ',' => (PolicyToken::Comma, 1),
            '\'' | '"' => match rest[1..].find(first) {
                Some(end) => (PolicyToken::Quoted(&rest[1..=end]), end.saturating_add(2)),
                None => return self.fail("a quote is not closed"),
            },
            c if c.is_ascii_alphanumeric() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                (PolicyToken::Word(&rest[..end]), end)
            }
            other => return self.fail(&format!("unexpected character {other:?}")),
        };
        self.at = self.at.saturating_add(length);
        Ok(Some(token))
    }

    fn expect(&mut self, token: PolicyToken<'_>, what: &str) -> Result<(), Error> {
        if self.next_token()? == Some(token) { Ok(()) } else { self.fail(&format!("expected {what}")) }
    }

    fn policy(&mut self, depth: usize) -> Result<WireRule, Error> {
        let Some(depth) = depth.checked_sub(1) else { return self.fail("it nests too deep") };
        self.rules = self.rules.saturating_add(1);
        if self.rules > RULES_MAX {
            return self.fail("it has too many rules");
        }
        match self.next_token()? {
            Some(PolicyToken::Quoted(principal)) => self.principal(principal),
            Some(PolicyToken::Word(gate)) => self.gate(gate, depth),
            _ => self.fail("expected a gate or a principal"),
        }
    }

    fn gate(&mut self, gate: &str, depth: usize) -> Result<WireRule, Error> {
        self.expect(PolicyToken::Open, "(")?;
        let n = match gate {
            "AND" | "And" | "and" => None,
            "OR" | "Or" | "or" => Some(1),
            "OutOf" | "outof" | "OUTOF" => {
                let n = match self.next_token()? {
                    Some(PolicyToken::Word(number) | PolicyToken::Quoted(number)) => number.parse::<u16>().ok(),
                    _ => None,
                };
                let Some(n) = n else { return self.fail("expected a number") };
                self.expect(PolicyToken::Comma, ",")?;
                Some(usize::from(n))
            }
            _ => return self.fail(&format!("{gate} is not a gate")),
        };
        let mut rules = vec![self.policy(depth)?];
        loop {
            match self.next_token()? {
                Some(PolicyToken::Comma) => rules.push(self.policy(depth)?),
                Some(PolicyToken::Close) => break,
                _ => return self.fail("expected , or )"),
            }
        }
        let n = n.unwrap_or(rules.len());
        if n > rules.len().saturating_add(1) {
            return self.fail(&format!("{n} out of {} rules", rules.len()));
        }
        let n = i32::try_from(n).expect("bounded by the number of rules");
        Ok(WireRule { r#type: Some(Type::NOutOf(NOutOf { n, rules })) })
    }

    fn principal(&mut self, text: &str) -> Result<WireRule, Error> {
        if self.principals.len() >= PRINCIPALS_MAX {
            return self.fail("it names too many principals");
        }
        let is_msp_character = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-');
        let Some((msp, role)) =
            text.rsplit_once('.').filter(|(msp, _)| !msp.is_empty() && msp.chars().all(is_msp_character))
        else {
            return self.fail(&format!("{text:?} is not a principal"));
        };
        let Some(role) = MemberRole::ALL.into_iter().find(|candidate| candidate.as_str() == role) else {
            return self.fail(&format!("{role:?} is not a role"));
        };
        let position = i32::try_from(self.principals.len()).expect("principals are bounded");
        self.principals.push(Principal::role_to_wire(msp, role));
        Ok(WireRule { r#type: Some(Type::SignedBy(position)) })
    }
}

/// Writes a policy so that [`parse`] reads it back, as far as its principals are roles and its numbers make sense; the
/// others are shown in angle brackets.
pub fn print(policy: &SignaturePolicy) -> String {
    let mut text = String::new();
    print_rule(policy, policy.rule(), &mut text);
    text
}

impl std::fmt::Display for SignaturePolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&print(self))
    }
}

fn print_rule(policy: &SignaturePolicy, rule: &SignatureRule, text: &mut String) {
    match rule {
        SignatureRule::SignedBy(position) => print_principal(&policy.principals()[*position], text),
        SignatureRule::OutOf(n, rules) => {
            let count = i32::try_from(rules.len()).expect("rules are bounded");
            // "All of one" could be either; OR is what "any of one" prints as, so it is that.
            match *n {
                1 => text.push_str("OR("),
                n if n == count => text.push_str("AND("),
                n => write!(text, "OutOf({n}, ").expect("writing to a string cannot fail"),
            }
            for (position, rule) in rules.iter().enumerate() {
                if position > 0 {
                    text.push_str(", ");
                }
                print_rule(policy, rule, text);
            }
            text.push(')');
        }
    }
}

fn print_principal(principal: &Principal, text: &mut String) {
    match principal {
        Principal::Role(msp, role) => write!(text, "'{msp}.{}'", role.as_str()),
        Principal::OrganizationalUnit { msp, unit, .. } => write!(text, "<unit {unit:?} of {msp}>"),
        Principal::Identity(msp, id) => write!(text, "<{id:?} of {msp}>"),
        Principal::Combined(all) => {
            text.push_str("<all of");
            for principal in all {
                text.push(' ');
                print_principal(principal, text);
            }
            text.push('>');
            Ok(())
        }
        Principal::Nominal => write!(text, "<anybody>"),
        Principal::Nobody => write!(text, "<nobody>"),
    }
    .expect("writing to a string cannot fail");
}
