//! The first stage of validation: what can be said of one transaction by itself.
//!
//! The duplicate check stands in the middle of Fabric's order but needs the chain, so a transaction gets two verdicts
//! here: one of the steps before that check and one of the steps after it.

use base::{Bytes, Set, TxId};
use identity::SignatureSet;
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

impl Examined {
    fn of_form(tx_id: Option<TxId>, kind: i32, form: Code) -> Examined {
        Examined { tx_id, kind, form, endorsement: form, set: ReadWriteSet::default(), outcome: None }
    }
}

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

/// Examines one envelope of a block. A pure function of its arguments; costs the signatures it verifies.
pub fn examine(envelope: &Bytes, rules: &Rules) -> Examined {
    examine_by(envelope, rules, None)
}

/// As [`examine`], with somebody's word for the signatures, who has examined the same envelope by the same rules.
pub fn examine_with(envelope: &Bytes, rules: &Rules, word: Word) -> Examined {
    examine_by(envelope, rules, Some(word))
}

fn examine_by(envelope: &Bytes, rules: &Rules, word: Option<Word>) -> Examined {
    let transaction = match Transaction::parse(envelope) {
        Ok(transaction) => transaction,
        Err(invalid) => {
            let (tx_id, kind) = claimed(envelope);
            return Examined::of_form(tx_id, kind, code(&invalid));
        }
    };
    let header = transaction.header();
    let tx_id = Some(header.to_tx_id()).filter(|tx_id| !tx_id.is_empty());
    let kind = header.kind();
    let action = match check_form(&transaction, rules, word) {
        Ok(action) => action,
        Err(code) => {
            // Filtered blocks name the event of invalid transactions too, as far as it can be read.
            let outcome = transaction.action().and_then(|action| action.outcome(header)).ok();
            return Examined { outcome, ..Examined::of_form(tx_id, kind, code) };
        }
    };
    let mut examined = Examined {
        tx_id,
        kind,
        form: Code::VALID,
        endorsement: Code::VALID,
        set: ReadWriteSet::default(),
        outcome: None,
    };
    match action.outcome(header) {
        Ok(outcome) => {
            match check_endorsement(&transaction, &action, &outcome, rules, word) {
                Ok(set) => examined.set = set,
                Err(code) => examined.endorsement = code,
            }
            examined.outcome = Some(outcome);
        }
        Err(invalid) => examined.endorsement = code(&invalid),
    }
    examined
}

/// Steps 2 to 6.
fn check_form(transaction: &Transaction, rules: &Rules, word: Option<Word>) -> Result<Action, Code> {
    let header = transaction.header();
    match word {
        None => {
            let creator = rules.identify(&header.creator()).map_err(|_| Code::BAD_CREATOR_SIGNATURE)?;
            creator.verify(transaction.payload(), transaction.signature()).map_err(|_| Code::BAD_CREATOR_SIGNATURE)?;
        }
        Some(Word::Unsigned) => return Err(Code::BAD_CREATOR_SIGNATURE),
        Some(Word::Unendorsed | Word::Sound) => {}
    }
    transaction.check_type().map_err(|invalid| code(&invalid))?;
    if transaction.is_config() {
        // Reconfiguration is not offered; orderers refuse it, and a block that holds one all the same changes nothing.
        return Err(Code::INVALID_CONFIG_TRANSACTION);
    }
    header.check_tx_id().map_err(|invalid| code(&invalid))?;
    let action = transaction.action().map_err(|invalid| code(&invalid))?;
    header.check_channel(rules.channel()).map_err(|invalid| code(&invalid))?;
    Ok(action)
}

/// Steps 8 to 10.
fn check_endorsement(
    transaction: &Transaction,
    action: &Action,
    outcome: &Outcome,
    rules: &Rules,
    word: Option<Word>,
) -> Result<ReadWriteSet, Code> {
    let set = ReadWriteSet::decode(outcome.results()).map_err(|_| Code::BAD_RWSET)?;
    let chaincode = outcome.check(transaction.header()).map_err(|invalid| code(&invalid))?;

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
    if !set.has_sound_keys() {
        return Err(Code::INVALID_WRITESET);
    }

    // Each signature is verified once, whatever the number of policies, and none for which somebody gives his word.
    let endorsements = word.is_none().then(|| endorsements(action));
    let signatures = match (&endorsements, word) {
        (_, Some(Word::Unendorsed)) => return Err(Code::ENDORSEMENT_POLICY_FAILURE),
        (Some(endorsements), _) => {
            Some(SignatureSet::new(endorsements, rules.members()).map_err(|_| Code::ENDORSEMENT_POLICY_FAILURE)?)
        }
        (None, _) => None,
    };
    let satisfied = |policy| signatures.as_ref().is_none_or(|signatures| satisfies(policy, signatures));
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
    Ok(set)
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
