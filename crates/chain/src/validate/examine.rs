//! The first stage of validation: what can be said of one transaction by itself.
//!
//! The duplicate check stands in the middle of Fabric's order but needs the chain, so a transaction gets two verdicts
//! here: one of the steps before that check and one of the steps after it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::cell::Cell;
use std::sync::Arc;

use base::{Bytes, Set, TxId};
use identity::policy::SignedData;
use identity::{Claim, Identity, SignatureSet};
use ledger::transaction::{Action, Invalid, Outcome, Transaction};
use ledger::wire::{Fields, Span};

use super::code::Code;
use crate::access::{Rules, endorsements, is_system_namespace, satisfies};
use crate::rwset::ReadWriteSet;

/// What is known of a transaction before the chain is asked.
#[derive(Debug)]
pub struct Examined {
    /// The id that it claims, if it claims one.
    pub tx_id: Option<TxId>,
    /// Fabric's header type; 0 where there is no header.
    pub kind: i32,
    /// The verdict of steps 1 to 6.
    pub form: Code,
    /// The verdict of steps 8 to 10, if steps 1 to 6 passed.
    pub endorsement: Code,
    /// What it read and wrote, if that could be read.
    pub set: ReadWriteSet,
    /// What the chaincode answered, if that could be read.
    pub outcome: Option<Outcome>,
}

/// Endorsements of one transaction that are verified before a policy asks for them.
const ENDORSEMENTS_AHEAD_MAX: usize = 8;

/// How far the signatures of a transaction carry it, by the word of another compute node of the same peer
/// ([`super::borrow`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Word {
    /// Its creator is no member, or has not signed.
    Unsigned = 0,
    /// Its endorsements do not satisfy a policy.
    Unendorsed = 1,
    /// Neither. It may be wrong in any other way.
    Sound = 2,
}

impl Examined {
    /// What was found of its signatures.
    pub fn word(&self) -> Word {
        match (self.form, self.endorsement) {
            (Code::BAD_CREATOR_SIGNATURE, _) => Word::Unsigned,
            (_, Code::ENDORSEMENT_POLICY_FAILURE) => Word::Unendorsed,
            _ => Word::Sound,
        }
    }
}

/// Examines envelopes of a block. A pure function of its arguments; costs the signatures that it verifies, and those are verified
/// together where that is cheaper.
pub fn examine(envelopes: impl IntoIterator<Item = Bytes>, rules: &Rules) -> Vec<Examined> {
    examine_as(envelopes, rules, rules.verifier().pays_in_company())
}

/// As [`examine`], where the caller says whether signatures are verified together, before a rule asks for them.
pub(super) fn examine_as(
    envelopes: impl IntoIterator<Item = Bytes>,
    rules: &Rules,
    is_together: bool,
) -> Vec<Examined> {
    let drafts: Vec<Draft> = envelopes.into_iter().map(|envelope| Draft::read(&envelope, rules)).collect();
    let signed: Vec<Signed<'_>> = drafts.iter().map(|draft| draft.signed(rules)).collect();
    if is_together {
        let claims: Vec<Claim<'_>> = signed.iter().flat_map(Signed::claims).collect();
        let mut verdicts = rules.verifier().verify_together(&claims).into_iter();
        signed.iter().for_each(|signed| signed.settle(&mut verdicts));
    }
    let codes: Vec<Codes> =
        drafts.iter().zip(&signed).map(|(draft, signed)| draft.judge(&Vouched::Here(signed), rules)).collect();
    drop(signed);
    drafts.into_iter().zip(codes).map(|(draft, codes)| draft.examined(codes)).collect()
}

/// As [`examine`], of one envelope.
#[cfg(test)]
pub fn examine_one(envelope: &Bytes, rules: &Rules) -> Examined {
    examine([envelope.clone()], rules).remove(0)
}

/// As [`examine`], of one envelope, with somebody's word for its signatures, who has examined it by the same rules.
pub fn examine_with(envelope: &Bytes, rules: &Rules, word: Word) -> Examined {
    let draft = Draft::read(envelope, rules);
    let codes = draft.judge(&Vouched::Elsewhere(word), rules);
    draft.examined(codes)
}

/// The verdicts of steps 1 to 6 and of steps 8 to 10.
#[derive(Clone, Copy)]
struct Codes {
    form: Code,
    endorsement: Code,
}

impl Codes {
    /// The second verdict is not asked for where the first is not good.
    fn of_form(form: Code) -> Codes {
        Codes { form, endorsement: form }
    }
}

/// Who has verified the signatures of a transaction.
enum Vouched<'a> {
    Here(&'a Signed<'a>),
    Elsewhere(Word),
}

/// What an envelope says, before any signature of it is verified.
struct Draft {
    tx_id: Option<TxId>,
    kind: i32,
    /// The verdict of step 1.
    transaction: Result<Transaction, Code>,
    /// The verdict of steps 3 to 6. It counts if the creator has signed.
    form: Result<(), Code>,
    outcome: Option<Outcome>,
    /// The verdict of steps 8 and 9, but for namespaces that are not known. It counts if the form is right.
    content: Result<ReadWriteSet, Code>,
    endorsements: Vec<SignedData>,
}

impl Draft {
    fn read(envelope: &Bytes, rules: &Rules) -> Draft {
        let transaction = match Transaction::parse(envelope) {
            Ok(transaction) => transaction,
            Err(invalid) => {
                let code = code(&invalid);
                let (tx_id, kind) = claimed(envelope);
                let transaction = Err(code);
                return Draft {
                    tx_id,
                    kind,
                    transaction,
                    form: Err(code),
                    outcome: None,
                    content: Err(code),
                    endorsements: Vec::new(),
                };
            }
        };
        let header = transaction.header();
        let action = transaction.action();
        // Filtered blocks name the event of invalid transactions too, as far as it can be read.
        let outcome = action.clone().and_then(|action| action.outcome(header));
        let form = check_form(&transaction, &action, rules);
        let content = match &outcome {
            Ok(outcome) => check_content(&transaction, outcome),
            Err(invalid) => Err(code(invalid)),
        };
        let endorsements = match (&action, form, &content) {
            (Ok(action), Ok(()), Ok(_)) => endorsements(action),
            _ => Vec::new(),
        };
        Draft {
            tx_id: Some(header.to_tx_id()).filter(|tx_id| !tx_id.is_empty()),
            kind: header.kind(),
            form,
            outcome: outcome.ok(),
            content,
            endorsements,
            transaction: Ok(transaction),
        }
    }

    /// Who signed it, as far as they are members.
    fn signed(&self, rules: &Rules) -> Signed<'_> {
        let creator = self.transaction.as_ref().ok().and_then(|transaction| {
            let identity = rules.identify(&transaction.header().creator()).ok()?;
            Some(Creator { identity, transaction, is_good: Cell::new(None) })
        });
        // Nobody asks for the endorsements of somebody who is no member.
        let endorsements = if creator.is_some() { &self.endorsements[..] } else { &[] };
        Signed { creator, endorsers: SignatureSet::verified_by(rules.verifier(), endorsements, rules.members()).ok() }
    }

    fn judge(&self, vouched: &Vouched<'_>, rules: &Rules) -> Codes {
        if let Err(code) = self.transaction {
            return Codes::of_form(code);
        }
        let is_signed = match vouched {
            Vouched::Here(signed) => signed.creator.as_ref().is_some_and(|creator| creator.is_good(rules)),
            Vouched::Elsewhere(word) => *word != Word::Unsigned,
        };
        if !is_signed {
            return Codes::of_form(Code::BAD_CREATOR_SIGNATURE);
        }
        match self.form {
            Ok(()) => {
                let endorsement = self.check_endorsements(vouched, rules).err().unwrap_or(Code::VALID);
                Codes { form: Code::VALID, endorsement }
            }
            Err(code) => Codes::of_form(code),
        }
    }

    /// Steps 8 to 10. Each signature is verified once, whatever the number of policies.
    fn check_endorsements(&self, vouched: &Vouched<'_>, rules: &Rules) -> Result<(), Code> {
        let set = self.content.as_ref().map_err(|code| *code)?;
        let satisfied = |policy| match vouched {
            Vouched::Here(signed) => signed.endorsers.as_ref().is_some_and(|endorsers| satisfies(policy, endorsers)),
            Vouched::Elsewhere(word) => *word == Word::Sound,
        };
        let is_unendorsed = match vouched {
            Vouched::Here(signed) => signed.endorsers.is_none(),
            Vouched::Elsewhere(word) => *word == Word::Unendorsed,
        };
        if is_unendorsed {
            return Err(Code::ENDORSEMENT_POLICY_FAILURE);
        }
        let chaincode = self.outcome.as_ref().and_then(Outcome::chaincode).ok_or(Code::INVALID_CHAINCODE)?;
        let policy = rules.endorsement_policy(chaincode.name).ok_or(Code::INVALID_CHAINCODE)?;
        if !satisfied(policy) {
            return Err(Code::ENDORSEMENT_POLICY_FAILURE);
        }
        for namespace in &set.namespaces {
            let name = set.name(namespace);
            if !namespace.writes_anything() || name == chaincode.name {
                continue;
            }
            let policy = rules.endorsement_policy(name).ok_or(Code::INVALID_CHAINCODE)?;
            if !satisfied(policy) {
                return Err(Code::ENDORSEMENT_POLICY_FAILURE);
            }
        }
        Ok(())
    }

    fn examined(self, Codes { form, endorsement }: Codes) -> Examined {
        let Draft { tx_id, kind, outcome, content, .. } = self;
        let set = content.ok().filter(|_| endorsement == Code::VALID).unwrap_or_default();
        Examined { tx_id, kind, form, endorsement, set, outcome }
    }
}

/// The signatures of a draft, each verified at most once.
struct Signed<'a> {
    /// Nothing where the creator is no member.
    creator: Option<Creator<'a>>,
    /// Nothing where there are too many.
    endorsers: Option<SignatureSet<'a>>,
}

struct Creator<'a> {
    identity: Arc<Identity>,
    transaction: &'a Transaction,
    is_good: Cell<Option<bool>>,
}

impl Signed<'_> {
    /// What is worth verifying together with that of other transactions. Endorsements beyond the usual number are verified if a policy
    /// asks for them: a client may send hundreds.
    fn claims(&self) -> impl Iterator<Item = Claim<'_>> {
        let creator = self.creator.iter().map(Creator::claim);
        creator.chain(self.endorsers.iter().flat_map(|endorsers| endorsers.claims().take(ENDORSEMENTS_AHEAD_MAX)))
    }

    /// Takes the verdicts on the claims, in their order.
    fn settle(&self, verdicts: &mut impl Iterator<Item = bool>) {
        if let Some(creator) = &self.creator {
            creator.is_good.set(verdicts.next());
        }
        if let Some(endorsers) = &self.endorsers {
            endorsers.settle(verdicts.by_ref().take(endorsers.claims().take(ENDORSEMENTS_AHEAD_MAX).count()));
        }
    }
}

impl Creator<'_> {
    fn claim(&self) -> Claim<'_> {
        Claim::new(&self.identity, self.transaction.payload(), self.transaction.signature())
    }

    fn is_good(&self, rules: &Rules) -> bool {
        self.is_good.get().unwrap_or_else(|| rules.verifier().verify(&self.claim()).is_ok())
    }
}

/// Steps 3 to 6.
fn check_form(transaction: &Transaction, action: &Result<Action, Invalid>, rules: &Rules) -> Result<(), Code> {
    let header = transaction.header();
    transaction.check_type().map_err(|invalid| code(&invalid))?;
    if transaction.is_config() {
        // Reconfiguration is not offered; orderers refuse it, and a block that holds one all the same changes nothing.
        return Err(Code::INVALID_CONFIG_TRANSACTION);
    }
    header.check_tx_id().map_err(|invalid| code(&invalid))?;
    action.as_ref().map_err(code)?;
    header.check_channel(rules.channel()).map_err(|invalid| code(&invalid))
}

/// Steps 8 and 9, but for namespaces that are not known.
fn check_content(transaction: &Transaction, outcome: &Outcome) -> Result<ReadWriteSet, Code> {
    let set = ReadWriteSet::decode(outcome.results()).map_err(|_| Code::BAD_RWSET)?;
    outcome.check(transaction.header()).map_err(|invalid| code(&invalid))?;

    // A set without entries has no memory yet: the usual one namespace costs nothing.
    let mut names = Set::default();
    for namespace in &set.namespaces {
        let name = set.name(namespace);
        if set.namespaces.len() > 1 && !names.insert(name) {
            return Err(Code::ILLEGAL_WRITESET);
        }
        if namespace.writes_anything() && (is_system_namespace(name) || namespace.needs_more_than_keys()) {
            return Err(Code::ILLEGAL_WRITESET);
        }
    }
    if set.has_sound_keys() { Ok(set) } else { Err(Code::INVALID_WRITESET) }
}

fn code(invalid: &Invalid) -> Code {
    Code(invalid.code_byte())
}

/// The id and type that an envelope claims whose form is wrong: Fabric indexes the id all the same.
pub(crate) fn claimed(envelope: &Bytes) -> (Option<TxId>, i32) {
    let inner = |message: Span, number: u32| -> Option<Span> {
        let mut fields = Fields::new(envelope, message);
        while let Ok(Some(field)) = fields.next() {
            if field.number == number {
                return field.span().ok();
            }
        }
        None
    };
    let channel_header = Span::whole(envelope)
        .ok()
        .and_then(|envelope| inner(envelope, 1))
        .and_then(|payload| inner(payload, 1))
        .and_then(|header| inner(header, 1));
    let Some(channel_header) = channel_header else { return (None, 0) };
    let tx_id = inner(channel_header, 5)
        .and_then(|span| span.text(envelope).ok())
        .filter(|tx_id| !tx_id.is_empty())
        .map(TxId::from);
    let mut kind = 0;
    let mut fields = Fields::new(envelope, channel_header);
    while let Ok(Some(field)) = fields.next() {
        if let (1, Ok(number)) = (field.number, field.varint()) {
            kind = number as i32;
            break;
        }
    }
    (tx_id, kind)
}
