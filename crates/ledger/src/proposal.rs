//! A signed proposal, read and checked in the order of Fabric's endorser.
//!
//! Anyone may send megabytes that claim to be a proposal. So all parts of a proposal are read in place until the creator's
//! signature is checked:
//!
//! 1. [`Proposal::parse`] finds the headers, the name of the chaincode, the payload and the signature, all in place. A
//!    failure here means that the bytes are no proposal at all.
//! 2. [`Proposal::check_form`] checks type, epoch, nonce, creator and transaction id, and that a signature is present.
//! 3. The endorser, which has the channel, checks the creator's identity, signature and rights, and whether the
//!    transaction exists already.
//! 4. [`Proposal::invocation`] reads the payload: it counts arguments and transient entries before it allocates memory for
//!    them.
//!
//! Invariants: steps 1 and 2 allocate nothing that grows with the message. Step 4 allocates at most [`BOOKKEEPING_MAX`] times
//! the message for arguments and transient entries, and copies the names of the transient entries. Names from the client are
//! truncated in error texts ([`shown`]).
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::hash::{Hash, sha256_of};
use crate::transaction::TransactionHeader;
use crate::wire::{Fields, Span, WireError, bytes_field_len, put_bytes_header, set_once};
use base::{Bytes, TxId};
use proto::common::HeaderType;

/// The largest number of arguments of one invocation.
pub const ARGS_MAX: usize = 4096;
/// The largest number of entries of one transient map.
pub const TRANSIENT_MAX: usize = 1024;
/// The bytes that arguments and transient entries may take in memory besides their contents, as a multiple of the
/// proposal's own.
pub const BOOKKEEPING_MAX: usize = 3;
/// The memory of an argument besides its contents.
const ARG_BYTES: usize = size_of::<Bytes>();
/// The memory of a transient entry besides its contents: its slot in a map node that is half full.
const TRANSIENT_BYTES: usize = 2 * (size_of::<String>() + size_of::<Bytes>()) + 32;
/// The largest number of bytes of a name that an error repeats.
const SHOWN_BYTES_MAX: usize = 128;

/// Why bytes are not a proposal that may be run.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposalError {
    /// They are not a proposal.
    #[error("{0}")]
    Malformed(String),
    /// Its format does not permit it.
    #[error("error validating proposal: {0}")]
    Invalid(String),
}

/// A proposal whose headers were read. All parts are slices of the received bytes.
#[derive(Debug)]
pub struct Proposal {
    /// What the creator signed.
    pub bytes: Bytes,
    /// The creator's signature.
    pub signature: Bytes,
    /// The decoded headers.
    pub header: TransactionHeader,
    payload: Span,
}

/// The invocation that a proposal asks for.
#[derive(Debug)]
pub struct Invocation {
    /// The chaincode that is to run.
    pub chaincode: String,
    /// Its arguments, the function name first.
    pub args: Vec<Bytes>,
    /// Whether the client means to initialise the chaincode.
    pub is_init: bool,
    /// The data that only endorsers see.
    pub transient: Arc<BTreeMap<String, Bytes>>,
    /// The hash that ties the transaction to this proposal.
    pub hash: Hash,
    /// The transaction's id.
    pub tx_id: TxId,
}

impl Proposal {
    /// Reads an encoded `SignedProposal` as far as its headers.
    ///
    /// # Errors
    /// [`ProposalError::Malformed`].
    pub fn parse(signed_proposal: &Bytes) -> Result<Proposal, ProposalError> {
        let (bytes, signature) = pair(signed_proposal).map_err(malformed("signed proposal"))?;
        let (bytes, signature) = (bytes.slice(signed_proposal), signature.slice(signed_proposal));
        let (header, payload) = pair(&bytes).map_err(malformed("proposal"))?;
        if header.is_empty() {
            return Err(ProposalError::Malformed("the proposal has no header".to_owned()));
        }
        let header = TransactionHeader::parse(&header.slice(&bytes))
            .map_err(|invalid| ProposalError::Malformed(invalid.reason.to_owned()))?;
        match header.chaincode() {
            Ok(Some(chaincode)) if !chaincode.name.is_empty() => {}
            Ok(_) => return Err(ProposalError::Malformed("the header names no chaincode".to_owned())),
            Err(invalid) => return Err(ProposalError::Malformed(invalid.reason.to_owned())),
        }
        Ok(Proposal { bytes, signature, header, payload })
    }

    /// Makes the checks that need no identity.
    ///
    /// # Errors
    /// [`ProposalError::Invalid`].
    pub fn check_form(&self) -> Result<(), ProposalError> {
        let kind = self.header.kind();
        if kind != HeaderType::EndorserTransaction as i32 {
            return Err(ProposalError::Invalid(format!("invalid header type {kind}")));
        }
        self.header.check_form().map_err(|invalid| ProposalError::Invalid(invalid.reason.to_owned()))?;
        self.header.check_tx_id().map_err(|invalid| ProposalError::Invalid(invalid.reason.to_owned()))?;
        if self.signature.is_empty() {
            return Err(ProposalError::Invalid("the proposal is not signed".to_owned()));
        }
        Ok(())
    }

    /// The chaincode that is to run.
    pub fn chaincode(&self) -> &str {
        match self.header.chaincode() {
            Ok(Some(chaincode)) => chaincode.name,
            _ => unreachable!("checked when the proposal was parsed"),
        }
    }

    /// Reads the invocation, for proposals whose signature was checked.
    ///
    /// # Errors
    /// [`ProposalError::Malformed`], also for more arguments or transient entries than a proposal of this size may have.
    pub fn invocation(&self) -> Result<Invocation, ProposalError> {
        let bytes = &self.bytes;
        let spec = inner(bytes, self.payload, INPUT).map_err(malformed("proposal payload"))?.unwrap_or_default();
        let input = inner(bytes, spec, CHAINCODE_SPEC)
            .and_then(|spec| spec.map_or(Ok(None), |spec| inner(bytes, spec, CHAINCODE_INPUT)))
            .map_err(malformed("chaincode invocation"))?
            .ok_or_else(|| ProposalError::Malformed("the chaincode invocation has no input".to_owned()))?;
        // Counted before memory is allocated for any: two bytes of a message are enough for one of them.
        let args = count(bytes, input, ARG).map_err(malformed("chaincode input"))?;
        let transient = count(bytes, self.payload, TRANSIENT).map_err(malformed("proposal payload"))?;
        let bookkeeping = args.saturating_mul(ARG_BYTES).saturating_add(transient.saturating_mul(TRANSIENT_BYTES));
        let bookkeeping_max = bytes.len().saturating_mul(BOOKKEEPING_MAX);
        if args > ARGS_MAX || transient > TRANSIENT_MAX || bookkeeping > bookkeeping_max {
            return Err(ProposalError::Malformed(format!(
                "the proposal has {args} arguments and {transient} transient entries in {} bytes; at most {ARGS_MAX} and \
                 {TRANSIENT_MAX} are taken, and fewer of a short proposal: pass many small values as one argument",
                bytes.len()
            )));
        }
        let mut taken = Vec::with_capacity(args);
        each(bytes, input, ARG, |arg| {
            taken.push(arg.slice(bytes));
            Ok(())
        })
        .map_err(malformed("chaincode input"))?;
        let mut map = BTreeMap::new();
        each(bytes, self.payload, TRANSIENT, |entry| {
            let name = inner(bytes, entry, 1)?.unwrap_or_default().text(bytes)?.to_owned();
            map.insert(name, inner(bytes, entry, 2)?.unwrap_or_default().slice(bytes));
            Ok(())
        })
        .map_err(malformed("transient map"))?;
        let mut is_init = None;
        let mut fields = Fields::new(bytes, input);
        while let Some(field) = fields.next().map_err(malformed("chaincode input"))? {
            if field.number == IS_INIT {
                let value = field.varint().map_err(malformed("chaincode input"))?;
                set_once(&mut is_init, value != 0).map_err(malformed("chaincode input"))?;
            }
        }
        Ok(Invocation {
            chaincode: self.chaincode().to_owned(),
            args: taken,
            is_init: is_init.unwrap_or(false),
            transient: Arc::new(map),
            hash: proposal_hash(&self.header, spec.of(bytes)),
            tx_id: self.header.to_tx_id(),
        })
    }
}

/// `ChaincodeProposalPayload.input`, an encoded `ChaincodeInvocationSpec`.
const INPUT: u32 = 1;
/// `ChaincodeProposalPayload.TransientMap`, each entry a message of name and value.
const TRANSIENT: u32 = 2;
/// `ChaincodeInvocationSpec.chaincode_spec`.
const CHAINCODE_SPEC: u32 = 1;
/// `ChaincodeSpec.input`.
const CHAINCODE_INPUT: u32 = 3;
/// `ChaincodeInput.args`.
const ARG: u32 = 1;
/// `ChaincodeInput.is_init`.
const IS_INIT: u32 = 3;

/// The field of this number, which may occur once, in a message that is read to its end.
fn inner(source: &[u8], message: Span, number: u32) -> Result<Option<Span>, WireError> {
    let mut found = None;
    each(source, message, number, |span| set_once(&mut found, span))?;
    Ok(found)
}

/// The number of fields of this number in a message.
fn count(source: &[u8], message: Span, number: u32) -> Result<usize, WireError> {
    let mut count = 0_usize;
    each(source, message, number, |_| {
        count = count.saturating_add(1);
        Ok(())
    })?;
    Ok(count)
}

/// Every field of this number, all of which must be bytes, in a message that is read to its end.
fn each(
    source: &[u8],
    message: Span,
    number: u32,
    mut take: impl FnMut(Span) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let mut fields = Fields::new(source, message);
    while let Some(field) = fields.next()? {
        if field.number == number {
            take(field.span()?)?;
        }
    }
    Ok(())
}

/// A name that a client chose, truncated for people.
pub fn shown(name: &str) -> String {
    match name.char_indices().map(|(at, _)| at).find(|at| *at >= SHOWN_BYTES_MAX) {
        Some(end) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// The fields 1 and 2 of a message, both bytes. A field 3 is not used, but it must be bytes too, as a proposal's
/// `extension` is: a protobuf library rejects the message otherwise, and a reader of the proposal with such a library
/// must not find less than is found here.
fn pair(message: &[u8]) -> Result<(Span, Span), WireError> {
    let (mut first, mut second) = (None, None);
    let mut fields = Fields::new(message, Span::whole(message)?);
    while let Some(field) = fields.next()? {
        match field.number {
            1 => set_once(&mut first, field.span()?)?,
            2 => set_once(&mut second, field.span()?)?,
            3 => _ = field.span()?,
            _ => {}
        }
    }
    Ok((first.unwrap_or_default(), second.unwrap_or_default()))
}

/// The hash over both headers as received and over the payload without its transient map, which leaves only its input.
fn proposal_hash(header: &TransactionHeader, input: &[u8]) -> Hash {
    let mut field = Vec::new();
    if !input.is_empty() {
        field.reserve(bytes_field_len(1, input.len()).saturating_sub(input.len()));
        put_bytes_header(&mut field, 1, input.len());
    }
    sha256_of(&[header.channel_header(), header.signature_header(), &field, input])
}

fn malformed(what: &'static str) -> impl Fn(WireError) -> ProposalError {
    move |cause| ProposalError::Malformed(format!("malformed {what}: {cause}"))
}
