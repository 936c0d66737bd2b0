//! Decodes blocks that Hyperledger Fabric 3.1 wrote, down to the innermost message.
//!
//! `tests/golden/b<number>.block` are encoded `common.Block`s of one channel: 0 is its configuration, 1 is an
//! organisation's approval of a chaincode definition, 8 and 9 are transactions of that chaincode. The `.json` files
//! have the same content as Fabric's own decoder prints it, with bytes as base64 and 64-bit numbers as strings. The
//! tests of other crates also read these files.

use bytes::Bytes;
use prost::Message;
use proto::{common, etcdraft, kvrwset, lifecycle, msp, orderer, protos, rwset};
use serde_json::Value;

fn golden(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn golden_json(name: &str) -> Value {
    serde_json::from_slice(&golden(name)).expect("golden JSON is valid")
}

fn golden_block(number: u64) -> common::Block {
    decode_exact(golden(&format!("b{number}.block")))
}

/// Decodes `bytes` and checks that the message, encoded again, is the same to the last byte.
#[track_caller]
fn decode_exact<M: Message + Default>(bytes: impl Into<Bytes>) -> M {
    let bytes = bytes.into();
    let message = M::decode(bytes.clone()).expect("golden bytes decode");
    assert_eq!(hex::encode(message.encode_to_vec()), hex::encode(&bytes), "encoded again, the message differs");
    message
}

/// Walks from a block's only envelope to its payload and both headers.
fn only_payload(block: &common::Block) -> (common::Payload, common::ChannelHeader, common::SignatureHeader) {
    let transactions = &block.data.as_ref().expect("a block has data").data;
    assert_eq!(transactions.len(), 1);
    let envelope: common::Envelope = decode_exact(transactions[0].clone());
    let payload: common::Payload = decode_exact(envelope.payload);
    let header = payload.header.as_ref().expect("a payload has a header");
    let channel_header = decode_exact(header.channel_header.clone());
    let signature_header = decode_exact(header.signature_header.clone());
    (payload, channel_header, signature_header)
}

fn base64(value: &Value) -> Bytes {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut bit_count) = (Vec::new(), 0_u32, 0);
    for digit in text(value).bytes().take_while(|&digit| digit != b'=') {
        let six = ALPHABET.iter().position(|&known| known == digit).expect("a base64 digit");
        bits = bits << 6 | six as u32;
        bit_count += 6;
        if bit_count >= 8 {
            bit_count -= 8;
            bytes.push((bits >> bit_count) as u8);
            bits &= (1 << bit_count) - 1;
        }
    }
    bytes.into()
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a JSON string")
}

#[test]
fn every_block_is_the_same_when_encoded_again() {
    for number in [0, 1, 8, 9] {
        let block = golden_block(number);
        assert_eq!(block.header.expect("a block has a header").number, number);
        let metadata = block.metadata.expect("a block has metadata").metadata;
        assert_eq!(metadata.len(), 5);
        assert!(metadata[common::BlockMetadataIndex::LastConfig as usize].is_empty());
        assert!(metadata[common::BlockMetadataIndex::Orderer as usize].is_empty());
        assert_eq!(metadata[common::BlockMetadataIndex::TransactionsFilter as usize], [0_u8][..]);
    }
}

#[test]
fn block_header_and_metadata_say_what_fabric_says() {
    let json = golden_json("b8.json");
    let block = golden_block(8);
    let header = block.header.expect("a block has a header");
    assert_eq!(header.number.to_string(), text(&json["header"]["number"]));
    assert_eq!(header.previous_hash, base64(&json["header"]["previous_hash"]));
    assert_eq!(header.data_hash, base64(&json["header"]["data_hash"]));

    let slots = block.metadata.expect("a block has metadata").metadata;
    let json_slots: Vec<Bytes> =
        json["metadata"]["metadata"].as_array().expect("a JSON array").iter().map(base64).collect();
    assert_eq!(slots, json_slots);

    let signatures: common::Metadata = decode_exact(slots[common::BlockMetadataIndex::Signatures as usize].clone());
    assert_eq!(signatures.signatures.len(), 1);
    let signer: common::SignatureHeader = decode_exact(signatures.signatures[0].signature_header.clone());
    let orderer: msp::SerializedIdentity = decode_exact(signer.creator);
    assert_eq!(orderer.mspid, "OrdererMSP");
    let signed: common::OrdererBlockMetadata = decode_exact(signatures.value);
    assert_eq!(signed.last_config, Some(common::LastConfig { index: 0 }));
    let consenter: common::Metadata = decode_exact(signed.consenter_metadata);
    let raft: etcdraft::BlockMetadata = decode_exact(consenter.value);
    assert_eq!(raft, etcdraft::BlockMetadata { consenter_ids: vec![1, 2, 3], next_consenter_id: 4, raft_index: 12 });

    let commit_hash: common::Metadata = decode_exact(slots[common::BlockMetadataIndex::CommitHash as usize].clone());
    assert_eq!(commit_hash.value.len(), 32);
    assert!(commit_hash.signatures.is_empty());
}

#[test]
fn chaincode_transaction_decodes_down_to_keys_and_versions() {
    let json = &golden_json("b8.json")["data"]["data"][0];
    let block = golden_block(8);
    let (payload, channel_header, signature_header) = only_payload(&block);

    let json_header = &json["payload"]["header"];
    assert_eq!(channel_header.r#type, common::HeaderType::EndorserTransaction as i32);
    assert_eq!(channel_header.channel_id, text(&json_header["channel_header"]["channel_id"]));
    assert_eq!(channel_header.tx_id, text(&json_header["channel_header"]["tx_id"]));
    assert_eq!(channel_header.epoch, 0);
    // 2026-11-20T10:25:43.423Z
    assert_eq!(channel_header.timestamp, Some(prost_types::Timestamp { seconds: 1_795_170_343, nanos: 423_000_000 }));
    let extension: protos::ChaincodeHeaderExtension = decode_exact(channel_header.extension);
    assert_eq!(extension.chaincode_id.expect("the extension names the chaincode").name, "basic");

    assert_eq!(signature_header.nonce, base64(&json_header["signature_header"]["nonce"]));
    let creator: msp::SerializedIdentity = decode_exact(signature_header.creator);
    assert_eq!(creator.mspid, text(&json_header["signature_header"]["creator"]["mspid"]));
    assert_eq!(creator.id_bytes, base64(&json_header["signature_header"]["creator"]["id_bytes"]));

    let transaction: protos::Transaction = decode_exact(payload.data);
    assert_eq!(transaction.actions.len(), 1);
    let action = &transaction.actions[0];
    assert_eq!(action.header, payload.header.expect("a payload has a header").signature_header);

    let json_action = &json["payload"]["data"]["actions"][0]["payload"];
    let action: protos::ChaincodeActionPayload = decode_exact(action.payload.clone());
    let proposal: protos::ChaincodeProposalPayload = decode_exact(action.chaincode_proposal_payload);
    assert!(proposal.transient_map.is_empty());
    let invocation: protos::ChaincodeInvocationSpec = decode_exact(proposal.input);
    let spec = invocation.chaincode_spec.expect("an invocation has a specification");
    assert_eq!(spec.r#type(), protos::chaincode_spec::Type::Node);
    let json_args = &json_action["chaincode_proposal_payload"]["input"]["chaincode_spec"]["input"]["args"];
    let json_args: Vec<Bytes> = json_args.as_array().expect("a JSON array").iter().map(base64).collect();
    assert_eq!(spec.input.expect("a specification has an input").args, json_args);
    assert_eq!(json_args[0], "CreateAsset");

    let endorsed = action.action.expect("the action is endorsed");
    let json_endorsements = json_action["action"]["endorsements"].as_array().expect("a JSON array");
    assert_eq!(endorsed.endorsements.len(), json_endorsements.len());
    for (endorsement, json) in endorsed.endorsements.iter().zip(json_endorsements) {
        assert_eq!(endorsement.endorser, base64(&json["endorser"]));
        assert_eq!(endorsement.signature, base64(&json["signature"]));
        decode_exact::<msp::SerializedIdentity>(endorsement.endorser.clone());
    }

    let response: protos::ProposalResponsePayload = decode_exact(endorsed.proposal_response_payload);
    let json_response = &json_action["action"]["proposal_response_payload"];
    assert_eq!(response.proposal_hash, base64(&json_response["proposal_hash"]));
    let action: protos::ChaincodeAction = decode_exact(response.extension);
    assert!(action.events.is_empty());
    assert_eq!(action.response.expect("an action has a response").status, 200);
    assert_eq!(action.chaincode_id.expect("an action names its chaincode").version, "2");

    let results: rwset::TxReadWriteSet = decode_exact(action.results);
    assert_eq!(results.data_model(), rwset::tx_read_write_set::DataModel::Kv);
    let [lifecycle, basic] = &results.ns_rwset[..] else { panic!("two namespaces, got {results:?}") };
    assert_eq!((&lifecycle.namespace[..], &basic.namespace[..]), ("_lifecycle", "basic"));

    let lifecycle: kvrwset::KvrwSet = decode_exact(lifecycle.rwset.clone());
    let sequence = kvrwset::KvRead {
        key: "namespaces/fields/basic/Sequence".into(),
        version: Some(kvrwset::Version { block_num: 6, tx_num: 0 }),
    };
    assert_eq!(lifecycle, kvrwset::KvrwSet { reads: vec![sequence], ..Default::default() });

    let json_write = &json_response["extension"]["results"]["ns_rwset"][1]["rwset"]["writes"][0];
    let basic: kvrwset::KvrwSet = decode_exact(basic.rwset.clone());
    let key = text(&json_write["key"]).to_owned();
    let missing = kvrwset::KvRead { key: key.clone(), version: None };
    let write = kvrwset::KvWrite { key, is_delete: false, value: base64(&json_write["value"]) };
    assert_eq!(basic, kvrwset::KvrwSet { reads: vec![missing], writes: vec![write], ..Default::default() });
}

#[test]
fn approval_decodes_down_to_hashed_writes() {
    let (payload, _, _) = only_payload(&golden_block(1));
    let transaction: protos::Transaction = decode_exact(payload.data);
    let action: protos::ChaincodeActionPayload = decode_exact(transaction.actions[0].payload.clone());

    let proposal: protos::ChaincodeProposalPayload = decode_exact(action.chaincode_proposal_payload);
    let invocation: protos::ChaincodeInvocationSpec = decode_exact(proposal.input);
    let args = invocation.chaincode_spec.and_then(|spec| spec.input).expect("an invocation has an input").args;
    assert_eq!(args[0], "ApproveChaincodeDefinitionForMyOrg");
    let approval: lifecycle::ApproveChaincodeDefinitionForMyOrgArgs = decode_exact(args[1].clone());
    assert_eq!((&approval.name[..], approval.sequence), ("basic", 1));
    let policy: protos::ApplicationPolicy = decode_exact(approval.validation_parameter);
    assert!(matches!(policy.r#type, Some(protos::application_policy::Type::SignaturePolicy(_))));
    let source = approval.source.and_then(|source| source.r#type).expect("an approval names its package");
    assert!(matches!(source, lifecycle::chaincode_source::Type::LocalPackage(_)));

    let response = action.action.expect("the action is endorsed").proposal_response_payload;
    let response: protos::ProposalResponsePayload = decode_exact(response);
    let action: protos::ChaincodeAction = decode_exact(response.extension);
    let results: rwset::TxReadWriteSet = decode_exact(action.results);
    let namespaces: Vec<&str> = results.ns_rwset.iter().map(|namespace| &namespace.namespace[..]).collect();
    assert_eq!(namespaces, ["_lifecycle", "lscc"]);
    let [collection] = &results.ns_rwset[0].collection_hashed_rwset[..] else {
        panic!("one collection, got {results:?}")
    };
    assert_eq!(collection.collection_name, "_implicit_org_Org1MSP");
    assert_eq!(collection.pvt_rwset_hash.len(), 32);
    let hashed: kvrwset::HashedRwSet = decode_exact(collection.hashed_rwset.clone());
    assert!(!hashed.hashed_writes.is_empty());
    for write in &hashed.hashed_writes {
        assert_eq!((write.key_hash.len(), write.value_hash.len()), (32, 32));
    }
}

#[test]
fn configuration_decodes_down_to_certificates_and_consenters() {
    let json = &golden_json("b0.json")["data"]["data"][0]["payload"]["data"]["config"]["channel_group"];
    let (payload, channel_header, _) = only_payload(&golden_block(0));
    assert_eq!(channel_header.r#type, common::HeaderType::Config as i32);
    assert_eq!(channel_header.channel_id, "mychannel");
    // Not exact: Fabric writes map entries in any order, we write them sorted.
    let envelope = common::ConfigEnvelope::decode(payload.data.clone()).expect("the payload is a configuration");
    let sorted = Bytes::from(envelope.encode_to_vec());
    assert_eq!(sorted.len(), payload.data.len());
    assert_eq!(decode_exact::<common::ConfigEnvelope>(sorted), envelope);
    let root = envelope.config.expect("the envelope has a configuration").channel_group.expect("a root group");
    assert_group_is_known(&root, json);

    let ordering = &root.groups["Orderer"];
    let consensus: orderer::ConsensusType = decode_exact(ordering.values["ConsensusType"].value.clone());
    assert_eq!(consensus.r#type, "etcdraft");
    assert_eq!(consensus.state(), orderer::consensus_type::State::Normal);
    let raft: etcdraft::ConfigMetadata = decode_exact(consensus.metadata);
    let json_raft = &json["groups"]["Orderer"]["values"]["ConsensusType"]["value"]["metadata"];
    let json_consenters = json_raft["consenters"].as_array().expect("a JSON array");
    assert_eq!(raft.consenters.len(), json_consenters.len());
    for (consenter, json) in raft.consenters.iter().zip(json_consenters) {
        assert_eq!(consenter.host, text(&json["host"]));
        assert_eq!(u64::from(consenter.port), json["port"]);
        assert_eq!(consenter.client_tls_cert, base64(&json["client_tls_cert"]));
        assert_eq!(consenter.server_tls_cert, base64(&json["server_tls_cert"]));
    }
    let options = raft.options.expect("Raft has options");
    assert_eq!(options.tick_interval, text(&json_raft["options"]["tick_interval"]));
    assert_eq!(u64::from(options.election_tick), json_raft["options"]["election_tick"]);
    assert_eq!(u64::from(options.snapshot_interval_size), json_raft["options"]["snapshot_interval_size"]);
}

/// Checks a configuration group and all below it against Fabric's view, decoding every value by its key.
fn assert_group_is_known(group: &common::ConfigGroup, json: &Value) {
    let json_keys = |kind: &str| -> Vec<String> {
        let mut keys: Vec<String> = json[kind].as_object().expect("a JSON object").keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(group.mod_policy, text(&json["mod_policy"]));
    assert!(group.groups.keys().eq(&json_keys("groups")));
    assert!(group.values.keys().eq(&json_keys("values")));
    assert!(group.policies.keys().eq(&json_keys("policies")));
    for (key, value) in &group.values {
        assert_eq!(value.mod_policy, text(&json["values"][key]["mod_policy"]), "{key}");
        assert_value_is_known(key, &value.value, &json["values"][key]["value"]);
    }
    for (key, policy) in &group.policies {
        assert_policy_is_known(policy.policy.as_ref().expect("a policy"), &json["policies"][key]["policy"]);
    }
    for (key, group) in &group.groups {
        assert_group_is_known(group, &json["groups"][key]);
    }
}

fn assert_value_is_known(key: &str, value: &Bytes, json: &Value) {
    let bytes = value.clone();
    let strings = |json: &Value| -> Vec<String> {
        json.as_array().expect("a JSON array").iter().map(|value| text(value).to_owned()).collect()
    };
    match key {
        "HashingAlgorithm" => {
            assert_eq!(decode_exact::<common::HashingAlgorithm>(bytes).name, text(&json["name"]));
        }
        "BlockDataHashingStructure" => {
            assert_eq!(u64::from(decode_exact::<common::BlockDataHashingStructure>(bytes).width), json["width"]);
        }
        "OrdererAddresses" | "Endpoints" => {
            assert_eq!(decode_exact::<common::OrdererAddresses>(bytes).addresses, strings(&json["addresses"]));
        }
        "Consortium" => assert_eq!(decode_exact::<common::Consortium>(bytes).name, text(&json["name"])),
        "Capabilities" => {
            // Not exact: an entry's empty value is written by Fabric and left out by us.
            let capabilities = common::Capabilities::decode(bytes).expect("capabilities").capabilities;
            assert!(capabilities.keys().eq(json["capabilities"].as_object().expect("a JSON object").keys()));
        }
        "AnchorPeers" => {
            let peers = decode_exact::<protos::AnchorPeers>(bytes).anchor_peers;
            assert_eq!(peers.len(), json["anchor_peers"].as_array().expect("a JSON array").len());
            assert_eq!(peers[0].host, text(&json["anchor_peers"][0]["host"]));
            assert_eq!(i64::from(peers[0].port), json["anchor_peers"][0]["port"]);
        }
        "MSP" => {
            let config = decode_exact::<msp::MspConfig>(bytes);
            assert_eq!(config.r#type, 0);
            let config: msp::FabricMspConfig = decode_exact(config.config);
            let json = &json["config"];
            assert_eq!(config.name, text(&json["name"]));
            assert_eq!(config.root_certs, [base64(&json["root_certs"][0])]);
            assert_eq!(config.tls_root_certs, [base64(&json["tls_root_certs"][0])]);
            assert_eq!(config.crypto_config.expect("algorithms").signature_hash_family, "SHA2");
            let units = config.fabric_node_ous.expect("organisational units");
            let unit = units.orderer_ou_identifier.expect("the orderers' unit").organizational_unit_identifier;
            assert_eq!((units.enable, &unit[..]), (true, "orderer"));
        }
        "ConsensusType" => assert_eq!(decode_exact::<orderer::ConsensusType>(bytes).r#type, text(&json["type"])),
        "BatchSize" => {
            let size = decode_exact::<orderer::BatchSize>(bytes);
            assert_eq!(u64::from(size.max_message_count), json["max_message_count"]);
            assert_eq!(u64::from(size.absolute_max_bytes), json["absolute_max_bytes"]);
            assert_eq!(u64::from(size.preferred_max_bytes), json["preferred_max_bytes"]);
        }
        "BatchTimeout" => assert_eq!(decode_exact::<orderer::BatchTimeout>(bytes).timeout, text(&json["timeout"])),
        "ChannelRestrictions" => {
            let max_count = decode_exact::<orderer::ChannelRestrictions>(bytes).max_count;
            assert!(json.is_null() || max_count.to_string() == text(&json["max_count"]));
        }
        other => panic!("no message is known for the configuration value {other}"),
    }
}

fn assert_policy_is_known(policy: &common::Policy, json: &Value) {
    use common::implicit_meta_policy::Rule;
    use common::policy::PolicyType;
    assert_eq!(i64::from(policy.r#type), json["type"]);
    let json = &json["value"];
    match PolicyType::try_from(policy.r#type).expect("a known type of policy") {
        PolicyType::Signature => {
            let signature: common::SignaturePolicyEnvelope = decode_exact(policy.value.clone());
            assert!(signature.rule.is_some());
            let json_identities = json["identities"].as_array().expect("a JSON array");
            assert_eq!(signature.identities.len(), json_identities.len());
            for (identity, json) in signature.identities.iter().zip(json_identities) {
                let role: common::MspRole = decode_exact(identity.principal.clone());
                assert_eq!(role.msp_identifier, text(&json["principal"]["msp_identifier"]));
                assert_eq!(role.role().as_str_name(), text(&json["principal"]["role"]));
            }
        }
        PolicyType::ImplicitMeta => {
            let implicit: common::ImplicitMetaPolicy = decode_exact(policy.value.clone());
            assert_eq!(implicit.sub_policy, text(&json["sub_policy"]));
            assert_eq!(implicit.rule(), Rule::from_str_name(text(&json["rule"])).expect("a known rule"));
        }
        other => panic!("no golden policy is of type {other:?}"),
    }
}
