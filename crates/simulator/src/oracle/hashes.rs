//! The hashes of Fabric: of a block's header, and of its writes.

use std::collections::BTreeMap;

use identity::{Hash, hex, sha256};
use prost::Message as _;
use proto::common;

use super::state_row::{StateKey, StateRow};

/// SHA-256 over the DER encoding of SEQUENCE { INTEGER number, OCTET STRING previous, OCTET STRING data }.
pub(super) fn header_hash(header: &common::BlockHeader) -> Hash {
    let mut number: Vec<u8> = header.number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    if number.first().is_none_or(|byte| *byte >= 0x80) {
        number.insert(0, 0);
    }
    let element = |tag: u8, content: &[u8]| [&[tag, u8::try_from(content.len()).expect("short")], content].concat();
    let fields = [element(2, &number), element(4, &header.previous_hash), element(4, &header.data_hash)].concat();
    sha256([&element(0x30, &fields)[..]])
}

/// Fabric's commit hash: over the filter, the block's writes in the order of keys, and the previous commit hash.
pub(super) fn commit_hash(filter: &[u8], written: &BTreeMap<StateKey, StateRow>, previous: Option<&Hash>) -> Hash {
    let number = |number: u64| {
        let bytes: Vec<u8> = number.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
        // Zero is only a length byte of zero.
        [&[bytes.len() as u8], &bytes[..]].concat()
    };
    let mut last = ("", "");
    let mut updates = proto::commit_hash::Updates::default();
    for ((place, key), StateRow { value, version }) in written {
        let (namespace, collection, key) = match place.split_once("$$") {
            None => (place.as_str(), "", key.clone().into_bytes()),
            // Metadata are not covered.
            Some((namespace, rest)) => match rest.strip_prefix('h') {
                Some(collection) => (namespace, collection, hex::decode(key).expect("the oracle has encoded it")),
                None => continue,
            },
        };
        let is_same_namespace = namespace == last.0;
        updates.writes.push(proto::commit_hash::KvWrite {
            namespace: if is_same_namespace { String::new() } else { namespace.to_owned() },
            collection: if (namespace, collection) == last { String::new() } else { collection.to_owned() },
            key: key.into(),
            is_delete: value.is_empty(),
            value: value.clone(),
            version: [number(version.0), number(version.1)].concat().into(),
        });
        last = (namespace, collection);
    }
    let mut length = Vec::new();
    prost::encoding::encode_varint(filter.len() as u64, &mut length);
    sha256([&length[..], filter, &updates.encode_to_vec()[..], previous.map(|hash| &hash[..]).unwrap_or_default()])
}
