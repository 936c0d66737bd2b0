//! The first step of validation: the checks that need only one transaction.
//!
//! The duplicate check stands in the middle of Fabric's order but needs the chain. So a transaction gets two verdicts here:
//! one from the checks before the duplicate check, and one from the checks after it.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::cell::Cell;
use std::sync::Arc;

use base::{Bytes, Set, TxId};
use identity::policy::{KnownSignatures, SignedData};
use identity::{Identity, SignatureClaim, SignatureSet};
use ledger::transaction::{ActionOutcome, EndorsedAction, InvalidTransaction, Transaction};
use ledger::wire::{Fields, Span};
use proto::common::HeaderType;

use crate::endorsement::check_endorsements;
use crate::footprint::Footprint;
use ledger::Code;
use ledger::rwset::ReadWriteSet;
use rules::access::{ChannelPolicies, endorsements, satisfies};

/// The result of the checks that do not need the chain.
#[derive(Debug)]
pub struct VerifiedTransaction {
    /// The id that it claims, if it claims one.
    pub tx_id: Option<TxId>,
    /// The id under which the block store finds it; empty if it has none.
    pub indexed_tx_id: TxId,
    /// Fabric's header type; 0 if there is no header.
    pub kind: i32,
    /// The verdict of steps 1 to 6.
    pub form: Code,
    /// The verdict of steps 8 to 10, if steps 1 to 6 passed.
    pub endorsement: Code,
    /// Its read-write set, if steps 1 to 9 passed.
    pub set: ReadWriteSet,
    /// The footprint of the set, if it was computed ahead.
    pub footprint: Option<Footprint>,
    /// The chaincode's answer, if it could be read.
    pub outcome: Option<ActionOutcome>,
    /// The endorsements whose signatures were verified here.
    pub known_endorsements: KnownSignatures,
}

/// The largest number of a transaction's endorsements that are verified before a policy asks for them.
const ENDORSEMENTS_AHEAD_MAX: usize = 8;

/// The result of a transaction's signature and policy checks, as another compute node of the same peer reports it
/// ([`crate::offload`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SignatureVerdict {
    /// Its creator is no member, or has not signed.
    Unsigned = 0,
    /// Its endorsements do not satisfy a policy.
    Unendorsed = 1,
    /// Neither. The transaction may be invalid for any other reason.
    Valid = 2,
}

impl VerifiedTransaction {
    /// Whether it is a channel configuration.
    pub fn is_config(&self) -> bool {
        self.kind == HeaderType::Config as i32
    }

    /// Computes the footprint ahead, for a check of conflicts by several workers.
    pub fn find_footprint(&mut self) {
        self.footprint = Some(Footprint::of(&self.set));
    }

    /// The result of the transaction's signature and policy checks.
    pub fn signature_verdict(&self) -> SignatureVerdict {
        match (self.form, self.endorsement) {
            (Code::BAD_CREATOR_SIGNATURE, _) => SignatureVerdict::Unsigned,
            (_, Code::ENDORSEMENT_POLICY_FAILURE) => SignatureVerdict::Unendorsed,
            _ => SignatureVerdict::Valid,
        }
    }
}

/// Verifies envelopes of a block. A pure function of its arguments. Most of its cost is the verification of signatures,
/// which is done in one batch where that is cheaper.
pub fn verify_transactions(
    envelopes: impl IntoIterator<Item = Bytes>,
    policies: &ChannelPolicies,
) -> Vec<VerifiedTransaction> {
    verify_transactions_as(envelopes, policies, policies.verifier().benefits_from_batching())
}

/// As [`verify_transactions`]; `is_together` says whether signatures are verified in one batch, before a policy asks for them.
pub fn verify_transactions_as(
    envelopes: impl IntoIterator<Item = Bytes>,
    policies: &ChannelPolicies,
    is_together: bool,
) -> Vec<VerifiedTransaction> {
    let drafts: Vec<UnverifiedTransaction> =
        envelopes.into_iter().map(|envelope| UnverifiedTransaction::read(&envelope, policies)).collect();
    let signed: Vec<TransactionSignatures<'_>> = drafts.iter().map(|draft| draft.signed(policies)).collect();
    if is_together {
        let claims: Vec<SignatureClaim<'_>> = signed.iter().flat_map(TransactionSignatures::claims).collect();
        let mut verdicts = policies.verifier().verify_batch(&claims).into_iter();
        signed.iter().for_each(|signed| signed.set_verdicts(&mut verdicts));
    }
    let codes: Vec<(StepCodes, KnownSignatures)> = drafts
        .iter()
        .zip(&signed)
        .map(|(draft, signed)| (draft.validate(&SignatureSource::Local(signed), policies), signed.known_endorsements()))
        .collect();
    drop(signed);
    drafts.into_iter().zip(codes).map(|(draft, (codes, known))| draft.into_verified(codes, known)).collect()
}

/// As [`verify_transactions`], of one envelope, with somebody's word for its signatures, who has examined it by the same rules.
pub fn verify_with_verdict(
    envelope: &Bytes,
    rules: &ChannelPolicies,
    verdict: SignatureVerdict,
) -> VerifiedTransaction {
    let draft = UnverifiedTransaction::read(envelope, rules);
    let codes = draft.validate(&SignatureSource::Remote(verdict), rules);
    draft.into_verified(codes, KnownSignatures::default())
}

/// The verdicts of steps 1 to 6 and of steps 8 to 10.
#[derive(Clone, Copy)]
struct StepCodes {
    form: Code,
    endorsement: Code,
}

impl StepCodes {
    /// If the first verdict is not valid, the second one is not needed.
    fn of_form(form: Code) -> StepCodes {
        StepCodes { form, endorsement: form }
    }
}

/// The source of the verdict on a transaction's signatures.
enum SignatureSource<'a> {
    Local(&'a TransactionSignatures<'a>),
    Remote(SignatureVerdict),
}

/// The content of an envelope, before any of its signatures is verified.
struct UnverifiedTransaction {
    tx_id: Option<TxId>,
    indexed_tx_id: TxId,
    kind: i32,
    /// The verdict of step 1.
    transaction: Result<Transaction, Code>,
    /// The verdict of steps 3 to 6. It counts only if the creator has signed.
    form: Result<(), Code>,
    outcome: Option<ActionOutcome>,
    /// The verdict of steps 8 and 9. It counts only if steps 1 to 6 passed.
    content: Result<ReadWriteSet, Code>,
    endorsements: Vec<SignedData>,
}

impl UnverifiedTransaction {
    fn read(envelope: &Bytes, policies: &ChannelPolicies) -> UnverifiedTransaction {
        let transaction = match Transaction::parse(envelope) {
            Ok(transaction) => transaction,
            Err(invalid) => {
                let code = code(&invalid);
                let (tx_id, kind) = claimed(envelope);
                let transaction = Err(code);
                return UnverifiedTransaction {
                    indexed_tx_id: tx_id.clone().unwrap_or_else(|| TxId::from("")),
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
        let outcome = action.clone().and_then(|action| action.outcome(header));
        let form = check_form(&transaction, &action, policies);
        let content = match &outcome {
            Ok(outcome) => check_content(&transaction, outcome),
            Err(invalid) => Err(code(invalid)),
        };
        let endorsements = match (&action, form, &content) {
            (Ok(action), Ok(()), Ok(_)) => endorsements(action),
            _ => Vec::new(),
        };
        UnverifiedTransaction {
            tx_id: Some(header.to_tx_id()).filter(|tx_id| !tx_id.is_empty()),
            indexed_tx_id: header.indexed_tx_id(),
            kind: header.kind(),
            form,
            outcome: outcome.ok(),
            content,
            endorsements,
            transaction: Ok(transaction),
        }
    }

    /// Its creator and its endorsers, as far as they are members.
    fn signed(&self, policies: &ChannelPolicies) -> TransactionSignatures<'_> {
        let creator = self.transaction.as_ref().ok().and_then(|transaction| {
            let identity = policies.identify(&transaction.header().creator()).ok()?;
            Some(CreatorSignature { identity, transaction, is_good: Cell::new(None) })
        });
        // If the creator is no member, the endorsements are not needed.
        let endorsements = if creator.is_some() { &self.endorsements[..] } else { &[] };
        TransactionSignatures {
            creator,
            endorsers: SignatureSet::verified_by(policies.verifier(), endorsements, policies.members()).ok(),
        }
    }

    fn validate(&self, source: &SignatureSource<'_>, policies: &ChannelPolicies) -> StepCodes {
        if let Err(code) = self.transaction {
            return StepCodes::of_form(code);
        }
        let is_signed = match source {
            SignatureSource::Local(signed) => signed.creator.as_ref().is_some_and(|creator| creator.is_good(policies)),
            SignatureSource::Remote(word) => *word != SignatureVerdict::Unsigned,
        };
        if !is_signed {
            return StepCodes::of_form(Code::BAD_CREATOR_SIGNATURE);
        }
        match self.form {
            // Nobody endorses a configuration.
            Ok(()) if self.kind == HeaderType::Config as i32 => StepCodes::of_form(Code::VALID),
            Ok(()) => {
                let endorsement = self.check_endorsements(source, policies).err().unwrap_or(Code::VALID);
                StepCodes { form: Code::VALID, endorsement }
            }
            Err(code) => StepCodes::of_form(code),
        }
    }

    /// Steps 8 to 10, as if no key had a policy of its own. Each signature is verified once, however many policies there are.
    fn check_endorsements(&self, source: &SignatureSource<'_>, policies: &ChannelPolicies) -> Result<(), Code> {
        let set = self.content.as_ref().map_err(|code| *code)?;
        let is_unendorsed = match source {
            SignatureSource::Local(signed) => signed.endorsers.is_none(),
            SignatureSource::Remote(verdict) => *verdict == SignatureVerdict::Unendorsed,
        };
        if is_unendorsed {
            return Err(Code::ENDORSEMENT_POLICY_FAILURE);
        }
        let chaincode = self.outcome.as_ref().and_then(ActionOutcome::chaincode).ok_or(Code::INVALID_CHAINCODE)?;
        check_endorsements(chaincode.name, set, policies, None, |policy| match source {
            SignatureSource::Local(signed) => {
                signed.endorsers.as_ref().is_some_and(|endorsers| satisfies(policy, endorsers))
            }
            SignatureSource::Remote(verdict) => *verdict == SignatureVerdict::Valid,
        })
    }

    fn into_verified(self, codes: StepCodes, known_endorsements: KnownSignatures) -> VerifiedTransaction {
        let StepCodes { form, endorsement } = codes;
        let UnverifiedTransaction { tx_id, indexed_tx_id, kind, outcome, content, .. } = self;
        let set = content.ok().filter(|_| form == Code::VALID).unwrap_or_default();
        VerifiedTransaction {
            tx_id,
            indexed_tx_id,
            kind,
            form,
            endorsement,
            set,
            footprint: None,
            outcome,
            known_endorsements,
        }
    }
}

/// The members whose endorsements of a transaction are genuine; `None` if the transaction cannot be read, or has too many
/// endorsements. `verified` is the result of the earlier checks of this envelope under the same policies; signatures that
/// were verified then are not verified again.
pub fn genuine_endorsers(
    envelope: &Bytes,
    verified: &VerifiedTransaction,
    policies: &ChannelPolicies,
) -> Option<Vec<Arc<Identity>>> {
    let action = Transaction::parse(envelope).ok()?.action().ok()?;
    let endorsements = endorsements(&action);
    let signed = SignatureSet::verified_by(policies.verifier(), &endorsements, policies.members()).ok()?;
    signed.recall(verified.known_endorsements);
    let claims: Vec<SignatureClaim<'_>> = signed.claims().collect();
    signed.set_verdicts(policies.verifier().verify_batch(&claims));
    Some(signed.genuine_signers())
}

/// The signatures of a draft, each verified at most once.
struct TransactionSignatures<'a> {
    /// `None` if the creator is no member.
    creator: Option<CreatorSignature<'a>>,
    /// `None` if there are too many endorsements.
    endorsers: Option<SignatureSet<'a>>,
}

struct CreatorSignature<'a> {
    identity: Arc<Identity>,
    transaction: &'a Transaction,
    is_good: Cell<Option<bool>>,
}

impl TransactionSignatures<'_> {
    /// The signatures that are worth verifying in one batch with those of other transactions. Endorsements beyond the
    /// usual number are verified only if a policy asks for them: a client may send hundreds.
    fn claims(&self) -> impl Iterator<Item = SignatureClaim<'_>> {
        let creator = self.creator.iter().map(CreatorSignature::claim);
        creator.chain(self.endorsers.iter().flat_map(|endorsers| endorsers.claims().take(ENDORSEMENTS_AHEAD_MAX)))
    }

    /// The endorsements verified so far.
    fn known_endorsements(&self) -> KnownSignatures {
        self.endorsers.as_ref().map(SignatureSet::known).unwrap_or_default()
    }

    /// Stores the verdicts on the claims, in their order.
    fn set_verdicts(&self, verdicts: &mut impl Iterator<Item = bool>) {
        if let Some(creator) = &self.creator {
            creator.is_good.set(verdicts.next());
        }
        if let Some(endorsers) = &self.endorsers {
            endorsers.set_verdicts(verdicts.by_ref().take(endorsers.claims().take(ENDORSEMENTS_AHEAD_MAX).count()));
        }
    }
}

impl CreatorSignature<'_> {
    fn claim(&self) -> SignatureClaim<'_> {
        SignatureClaim::new(&self.identity, self.transaction.payload(), self.transaction.signature())
    }

    fn is_good(&self, policies: &ChannelPolicies) -> bool {
        self.is_good.get().unwrap_or_else(|| policies.verifier().verify(&self.claim()).is_ok())
    }
}

/// Steps 3 to 6.
fn check_form(
    transaction: &Transaction,
    action: &Result<EndorsedAction, InvalidTransaction>,
    policies: &ChannelPolicies,
) -> Result<(), Code> {
    let header = transaction.header();
    transaction.check_type().map_err(|invalid| code(&invalid))?;
    if transaction.is_config() {
        // Its orderer has signed it. Whether it may follow the configuration in force is decided in the order of blocks.
        return header.check_channel(policies.channel()).map_err(|invalid| code(&invalid));
    }
    header.check_tx_id().map_err(|invalid| code(&invalid))?;
    action.as_ref().map_err(code)?;
    header.check_channel(policies.channel()).map_err(|invalid| code(&invalid))
}

/// Steps 8 and 9.
fn check_content(transaction: &Transaction, outcome: &ActionOutcome) -> Result<ReadWriteSet, Code> {
    let set = ReadWriteSet::decode(outcome.results()).map_err(|_| Code::BAD_RWSET)?;
    outcome.check(transaction.header()).map_err(|invalid| code(&invalid))?;

    // An empty set allocates nothing: the usual single namespace costs nothing.
    let mut names = Set::default();
    for namespace in &set.namespaces {
        let name = set.name(namespace);
        if set.namespaces.len() > 1 && !names.insert(name) {
            return Err(Code::ILLEGAL_WRITESET);
        }
    }
    if set.has_valid_keys() { Ok(set) } else { Err(Code::INVALID_WRITESET) }
}

fn code(invalid: &InvalidTransaction) -> Code {
    Code(invalid.code_byte())
}

/// The id and type that a malformed envelope claims: Fabric indexes the id nevertheless.
pub fn claimed(envelope: &Bytes) -> (Option<TxId>, i32) {
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
