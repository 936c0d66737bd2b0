//! Filtered blocks: ids, validation codes and the names of events, without anybody's data.
//!
//! As in Fabric, an endorser transaction names its chaincode's events whatever its validation code is, as far as its bytes can be
//! read. Validation keeps the result of a well-formed transaction. The others are decoded here from their envelopes, as
//! leniently as Fabric's peers do it: no header is checked, and there may be any number of actions.
//!
//! Where a payload, an action or an event does not parse, Fabric's peers end the stream. A stream here goes on: such a transaction
//! is listed with the id, the type and the events that can be read.
//!
//! Anybody who may write to the channel chooses these bytes, and a repeated field of two bytes becomes a structure of sixty. So
//! messages with more than [`FIELDS_MAX`] fields are not decoded: no client has a use for them.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use bytes::Bytes;
use chain::commit::recent::{CommittedBlock, CommittedTransaction};
use ledger::wire::{Fields, Span};
use prost::{DecodeError, Message as _};
use proto::common::{ChannelHeader, Envelope, HeaderType, Payload};
use proto::protos::filtered_transaction::Data;
use proto::protos::{
    ChaincodeAction, ChaincodeActionPayload, ChaincodeEvent, FilteredBlock, FilteredChaincodeAction,
    FilteredTransaction, FilteredTransactionActions, ProposalResponsePayload, Transaction,
};

/// The largest number of fields in a message with repeated fields: the actions of a transaction, or the endorsements of an
/// action.
const FIELDS_MAX: usize = 256;

/// The filtered form of a block. Transactions without a header are left out, as in Fabric.
pub(super) fn filtered(block: &CommittedBlock, channel: &str) -> FilteredBlock {
    let transactions = block.block().envelopes().zip(block.transactions());
    FilteredBlock {
        channel_id: channel.to_owned(),
        number: block.number(),
        filtered_transactions: transactions.filter_map(|(envelope, read)| transaction(envelope, read)).collect(),
    }
}

fn transaction(envelope: Bytes, read: &CommittedTransaction) -> Option<FilteredTransaction> {
    let is_endorser_transaction = |kind| kind == HeaderType::EndorserTransaction as i32;
    let mut filtered = FilteredTransaction {
        txid: read.tx_id.as_ref().map(ToString::to_string).unwrap_or_default(),
        r#type: read.kind,
        tx_validation_code: i32::from(read.code.0),
        data: None,
    };
    let events = match &read.outcome {
        Some(outcome) => {
            let event = outcome.event().map(|event| (event.chaincode, event.tx_id, event.name));
            event.into_iter().filter_map(|(chaincode, tx_id, name)| action(chaincode, tx_id, name)).collect()
        }
        None => match decode_headers(envelope) {
            Ok((header, data)) => {
                let header = header?;
                (filtered.txid, filtered.r#type) = (header.tx_id, header.r#type);
                if is_endorser_transaction(filtered.r#type) { decode_events(data) } else { Vec::new() }
            }
            Err(_) => Vec::new(),
        },
    };
    let actions = FilteredTransactionActions { chaincode_actions: events };
    filtered.data = is_endorser_transaction(filtered.r#type).then_some(Data::TransactionActions(actions));
    Some(filtered)
}

/// An event without its payload; `None` if it names no chaincode.
fn action(chaincode: &str, tx_id: &str, name: &str) -> Option<FilteredChaincodeAction> {
    (!chaincode.is_empty()).then(|| FilteredChaincodeAction {
        chaincode_event: Some(ChaincodeEvent {
            chaincode_id: chaincode.to_owned(),
            tx_id: tx_id.to_owned(),
            event_name: name.to_owned(),
            payload: Bytes::new(),
        }),
    })
}

/// The channel header, if there is a header, and the payload's data.
fn decode_headers(envelope: Bytes) -> Result<(Option<ChannelHeader>, Bytes), DecodeError> {
    let payload = Payload::decode(Envelope::decode(envelope)?.payload)?;
    let header = payload.header.map(|header| ChannelHeader::decode(header.channel_header)).transpose()?;
    Ok((header, payload.data))
}

/// The events of an encoded `Transaction`, up to the first action that does not parse.
fn decode_events(transaction: Bytes) -> Vec<FilteredChaincodeAction> {
    if !has_few_fields(&transaction) {
        return Vec::new();
    }
    let Ok(transaction) = Transaction::decode(transaction) else { return Vec::new() };
    let decode = |payload: Bytes| endorsed_action_has_few_fields(&payload).then(|| decode_event(payload).ok())?;
    let events = transaction.actions.into_iter().map_while(|action| decode(action.payload));
    events.flatten().filter_map(|event| action(&event.chaincode_id, &event.tx_id, &event.event_name)).collect()
}

/// Whether a message has at most [`FIELDS_MAX`] fields, repeated ones counted each; false if it does not parse.
fn has_few_fields(message: &[u8]) -> bool {
    let Ok(whole) = Span::whole(message) else { return false };
    let mut fields = Fields::new(message, whole);
    for _ in 0..=FIELDS_MAX {
        match fields.next() {
            Ok(Some(_)) => {}
            Ok(None) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// The same of the endorsed actions in an encoded `ChaincodeActionPayload`.
fn endorsed_action_has_few_fields(payload: &[u8]) -> bool {
    let Ok(whole) = Span::whole(payload) else { return false };
    let mut fields = Fields::new(payload, whole);
    while let Ok(Some(field)) = fields.next() {
        match (field.number, field.span()) {
            (2, Ok(action)) if !has_few_fields(action.of(payload)) => return false,
            _ => {}
        }
    }
    has_few_fields(payload)
}

fn decode_event(payload: Bytes) -> Result<Option<ChaincodeEvent>, DecodeError> {
    let Some(endorsed) = ChaincodeActionPayload::decode(payload)?.action else { return Ok(None) };
    let response = ProposalResponsePayload::decode(endorsed.proposal_response_payload)?;
    let result = ChaincodeAction::decode(response.extension)?;
    ChaincodeEvent::decode(result.events).map(Some)
}

#[cfg(test)]
mod tests;
