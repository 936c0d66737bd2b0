//! Encodes the results that tell which organisations have approved a definition.
//!
//! Fabric's peers encode the value of each entry of a map, false included, where most protobuf libraries leave it out. Both
//! mean the same; here the bytes are Fabric's, with the organisations in the order of their names.

use std::collections::BTreeMap;

use base::Bytes;
use ledger::wire::{bytes_field_len, put_bytes, put_bytes_header};
use prost::Message;
use proto::lifecycle::{CheckCommitReadinessResult, QueryChaincodeDefinitionResult};

/// `CheckCommitReadinessResult.approvals`.
const READINESS_APPROVALS: u32 = 1;
/// `QueryChaincodeDefinitionResult.approvals`, the last field.
const DEFINITION_APPROVALS: u32 = 8;
/// The value of a map's entry: the tag of field 2, a number.
const ENTRY_VALUE_TAG: u8 = 2 << 3;

/// Encodes the organisations that have approved a definition, and what differs in the approvals of the others.
pub fn encode_readiness(mut result: CheckCommitReadinessResult) -> Vec<u8> {
    let mut encoded = Vec::new();
    put_approvals(&mut encoded, READINESS_APPROVALS, &std::mem::take(&mut result.approvals));
    encoded.extend(result.encode_to_vec());
    encoded
}

/// Encodes a definition and the organisations that have approved it.
pub fn encode_definition(mut result: QueryChaincodeDefinitionResult) -> Vec<u8> {
    let approvals = std::mem::take(&mut result.approvals);
    let mut encoded = result.encode_to_vec();
    put_approvals(&mut encoded, DEFINITION_APPROVALS, &approvals);
    encoded
}

fn put_approvals(encoded: &mut Vec<u8>, field: u32, approvals: &BTreeMap<String, bool>) {
    for (organization, is_approved) in approvals {
        let name = Bytes::copy_from_slice(organization.as_bytes());
        put_bytes_header(encoded, field, bytes_field_len(1, name.len()).saturating_add(2));
        put_bytes(encoded, 1, &name);
        encoded.extend([ENTRY_VALUE_TAG, u8::from(*is_approved)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_of_a_map_has_its_value() {
        let approvals = BTreeMap::from([("A".to_owned(), false), ("B".to_owned(), true)]);
        let readiness = CheckCommitReadinessResult { approvals: approvals.clone(), ..Default::default() };
        let encoded = encode_readiness(readiness.clone());
        assert_eq!(encoded, b"\x0a\x05\x0a\x01A\x10\x00\x0a\x05\x0a\x01B\x10\x01");
        assert_eq!(CheckCommitReadinessResult::decode(&encoded[..]).expect("a result"), readiness);
        let definition = QueryChaincodeDefinitionResult { sequence: 1, approvals, ..Default::default() };
        let encoded = encode_definition(definition.clone());
        assert_eq!(QueryChaincodeDefinitionResult::decode(&encoded[..]).expect("a result"), definition);
        assert!(encoded.ends_with(b"B\x10\x01"));
    }
}
