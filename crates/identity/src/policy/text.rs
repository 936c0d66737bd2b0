//! Signature policies in text, as Fabric's tools write them: `OR('Org1MSP.peer', AND('Org2MSP.admin', 'Org3MSP.member'))`
//! or `OutOf(2, 'A.peer', 'B.peer', 'C.peer')`.
//!
//! ```text
//! policy    = gate | principal
//! gate      = ("AND" | "OR") "(" policy ("," policy)* ")" | "OutOf" "(" number ("," policy)+ ")"
//! principal = quote msp "." role quote         role = "member" | "admin" | "client" | "peer" | "orderer"
//! ```
//! Gates may also be written `And`, `and`, `Or`, `or`, `outof` and `OUTOF`; quotes are single or double; the number may be
//! quoted and at most one more than there are rules. Each mention of a principal makes an entry of its own, so that the
//! encoding is the one Fabric's parser makes. A bare principal, which Fabric's parser refuses, is a policy of one leaf.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::fmt::Write as _;

use proto::common::signature_policy::{NOutOf, Type};
use proto::common::{MspPrincipal, SignaturePolicy as WireRule, SignaturePolicyEnvelope};

use super::signature::Rule;
use super::{DEPTH_MAX, PRINCIPALS_MAX, RULES_MAX, SignaturePolicy, malformed};
use crate::error::Error;
use crate::principal::{Principal, Role};

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
    let mut parser = Parser { text, at: 0, principals: Vec::new(), rules: 0 };
    let rule = parser.policy(DEPTH_MAX)?;
    match parser.next_token()? {
        None => Ok(SignaturePolicyEnvelope { version: 0, rule: Some(rule), identities: parser.principals }),
        Some(_) => parser.fail("text follows the policy"),
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    principals: Vec<MspPrincipal>,
    rules: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Comma,
    Word(&'a str),
    Quoted(&'a str),
}

impl<'a> Parser<'a> {
    fn fail<T>(&self, reason: &str) -> Result<T, Error> {
        malformed(format!("{reason} (at byte {})", self.at))
    }

    fn next_token(&mut self) -> Result<Option<Token<'a>>, Error> {
        let rest = self.text[self.at..].trim_start();
        self.at = self.text.len().saturating_sub(rest.len());
        let Some(first) = rest.chars().next() else { return Ok(None) };
        let (token, length) = match first {
            '(' => (Token::Open, 1),
            ')' => (Token::Close, 1),
            ',' => (Token::Comma, 1),
            '\'' | '"' => match rest[1..].find(first) {
                Some(end) => (Token::Quoted(&rest[1..=end]), end.saturating_add(2)),
                None => return self.fail("a quote is not closed"),
            },
            c if c.is_ascii_alphanumeric() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
                (Token::Word(&rest[..end]), end)
            }
            other => return self.fail(&format!("unexpected character {other:?}")),
        };
        self.at = self.at.saturating_add(length);
        Ok(Some(token))
    }

    fn expect(&mut self, token: Token<'_>, what: &str) -> Result<(), Error> {
        if self.next_token()? == Some(token) { Ok(()) } else { self.fail(&format!("expected {what}")) }
    }

    fn policy(&mut self, depth: usize) -> Result<WireRule, Error> {
        let Some(depth) = depth.checked_sub(1) else { return self.fail("it nests too deep") };
        self.rules = self.rules.saturating_add(1);
        if self.rules > RULES_MAX {
            return self.fail("it has too many rules");
        }
        match self.next_token()? {
            Some(Token::Quoted(principal)) => self.principal(principal),
            Some(Token::Word(gate)) => self.gate(gate, depth),
            _ => self.fail("expected a gate or a principal"),
        }
    }

    fn gate(&mut self, gate: &str, depth: usize) -> Result<WireRule, Error> {
        self.expect(Token::Open, "(")?;
        let n = match gate {
            "AND" | "And" | "and" => None,
            "OR" | "Or" | "or" => Some(1),
            "OutOf" | "outof" | "OUTOF" => {
                let n = match self.next_token()? {
                    Some(Token::Word(number) | Token::Quoted(number)) => number.parse::<u16>().ok(),
                    _ => None,
                };
                let Some(n) = n else { return self.fail("expected a number") };
                self.expect(Token::Comma, ",")?;
                Some(usize::from(n))
            }
            _ => return self.fail(&format!("{gate} is not a gate")),
        };
        let mut rules = vec![self.policy(depth)?];
        loop {
            match self.next_token()? {
                Some(Token::Comma) => rules.push(self.policy(depth)?),
                Some(Token::Close) => break,
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
        let Some(role) = Role::ALL.into_iter().find(|candidate| candidate.as_str() == role) else {
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

fn print_rule(policy: &SignaturePolicy, rule: &Rule, text: &mut String) {
    match rule {
        Rule::SignedBy(position) => print_principal(&policy.principals()[*position], text),
        Rule::OutOf(n, rules) => {
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
