//! The parameters of an operation, and the forms of its results.

use contract::key::{self, KeyRange};
use contract::{Bytes, ContractError, ContractStub, StubError};
use identity::hex;
use ledger::sha256;
use prost::Message as _;
use proto::common::{Header, SignatureHeader};
use proto::protos::{Proposal, SignedProposal};

/// A value in hexadecimal begins with this.
const HEX_PREFIX: &str = "hex:";

/// The parameters of an operation.
pub struct Parameters<'a>(pub &'a [Bytes]);

impl Parameters<'_> {
    fn bytes(&self, index: usize) -> Result<&Bytes, ContractError> {
        self.0.get(index).ok_or_else(|| ContractError::application(format!("parameter {index} is missing")))
    }

    pub fn text(&self, index: usize) -> Result<&str, ContractError> {
        std::str::from_utf8(self.bytes(index)?)
            .map_err(|_| ContractError::application(format!("parameter {index} is not text")))
    }

    /// This parameter and all after it.
    pub fn texts(&self, from: usize) -> Result<Vec<String>, ContractError> {
        (from..self.0.len()).map(|index| self.text(index).map(str::to_owned)).collect()
    }

    pub fn number(&self, index: usize) -> Result<usize, ContractError> {
        let text = self.text(index)?;
        text.parse().map_err(|_| ContractError::application(format!("{text:?} is not a number")))
    }

    pub fn value(&self, index: usize) -> Result<Bytes, ContractError> {
        let value = self.bytes(index)?;
        let Some(digits) = value.strip_prefix(HEX_PREFIX.as_bytes()) else { return Ok(value.clone()) };
        let digits = std::str::from_utf8(digits).unwrap_or_default();
        hex::decode(digits).map(Bytes::from).map_err(|error| ContractError::application(error.to_string()))
    }

    /// A range of simple keys: its start and the end after it.
    pub fn range(&self, index: usize) -> Result<KeyRange, ContractError> {
        Ok(KeyRange::simple(self.text(index)?, self.text(index + 1)?)?)
    }

    /// The attributes of a composite key, which commas separate.
    pub fn attributes(&self, index: usize) -> Result<Vec<&str>, ContractError> {
        let text = self.text(index)?;
        Ok(if text.is_empty() { Vec::new() } else { text.split(',').collect() })
    }

    /// A composite key: its object type and the attributes after it.
    pub fn composite_key(&self, index: usize) -> Result<String, ContractError> {
        Ok(key::composite(self.text(index)?, &self.attributes(index + 1)?)?)
    }
}

/// An entry of a listing.
pub fn line(key: &str, value: &[u8]) -> String {
    format!("{}={}\n", hex::encode(key), hex::encode(value))
}

/// The decimal number after that of a value; a missing one counts as 0.
pub fn next_number(value: Option<Bytes>) -> Result<Bytes, ContractError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(Bytes::from("1")) };
    let number = std::str::from_utf8(&value).ok().and_then(|text| text.parse::<i64>().ok());
    let next = number.and_then(|number| number.checked_add(1));
    let next = next.ok_or_else(|| ContractError::application("the value is not a decimal number"))?;
    Ok(next.to_string().into())
}

/// The error of a request that the peer refused, in the words of Fabric's library for contracts.
pub fn failed(tx: &dyn ContractStub, request: &str, error: StubError) -> ContractError {
    match error {
        error @ StubError::State { .. } => error.into(),
        error => ContractError::application(format!("{request} failed: transaction ID: {}: {error}", tx.tx_id())),
    }
}

/// The hash that binds a transaction to its creator: that of nonce, creator and epoch.
pub fn binding(signed_proposal: Bytes) -> Result<[u8; 32], prost::DecodeError> {
    let proposal = Proposal::decode(SignedProposal::decode(signed_proposal)?.proposal_bytes)?;
    let SignatureHeader { creator, nonce, .. } =
        SignatureHeader::decode(Header::decode(proposal.header)?.signature_header)?;
    // Every proposal is of epoch 0.
    Ok(sha256(&[&nonce[..], &creator, &0_u64.to_le_bytes()].concat()))
}
