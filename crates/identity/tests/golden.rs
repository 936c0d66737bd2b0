//! Blocks that Fabric wrote: every identity in them is valid, every signature verifies, every policy is satisfied.

use std::sync::Arc;

use identity::policy::{SignaturePolicy, SignatureSet, SignedData, SignedMessage, parse};
use identity::{Error, Identity, MemberRole, Msp, MspManager, Policy, PolicyTree, sha256};
use prost::Message as _;
use prost::bytes::Bytes;
use proto::common::{Block, ChannelHeader, ConfigEnvelope, ConfigGroup, Envelope, Metadata, Payload, SignatureHeader};
use proto::msp::{FabricMspConfig, MspConfig, SerializedIdentity};
use proto::protos::{ChaincodeActionPayload, Transaction};

fn block(name: &str) -> Block {
    let path = format!("{}/../proto/tests/golden/{name}.block", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).expect("the golden blocks are there");
    Block::decode(Bytes::from(bytes)).expect("a block")
}

fn envelopes(block: &Block) -> Vec<Envelope> {
    let data = &block.data.as_ref().expect("blocks have data").data;
    data.iter().map(|envelope| Envelope::decode(envelope.clone()).expect("an envelope")).collect()
}

fn payload(envelope: &Envelope) -> Payload {
    Payload::decode(envelope.payload.clone()).expect("a payload")
}

fn channel_group() -> ConfigGroup {
    let payload = payload(&envelopes(&block("b0"))[0]);
    let config = ConfigEnvelope::decode(payload.data).expect("a configuration").config;
    config.and_then(|config| config.channel_group).expect("a channel group")
}

/// The definitions of all organisations in the configuration.
fn definitions(channel: &ConfigGroup) -> Vec<FabricMspConfig> {
    let groups = channel.groups.values().flat_map(|group| group.groups.values());
    let wire = groups.map(|organization| MspConfig::decode(organization.values["MSP"].value.clone()).expect("an MSP"));
    wire.map(|msp| FabricMspConfig::decode(msp.config).expect("a definition")).collect()
}

struct Channel {
    members: MspManager,
    policies: PolicyTree,
}

fn channel() -> Channel {
    let group = channel_group();
    let msps = definitions(&group).iter().map(|d| Arc::new(Msp::from_fabric(d).expect("valid"))).collect::<Vec<_>>();
    let policies = PolicyTree::compile("Channel", &group).expect("policies compile");
    Channel { members: MspManager::new(msps), policies }
}

fn signature_header(payload: &Payload) -> SignatureHeader {
    let header = payload.header.as_ref().expect("a header").signature_header.clone();
    SignatureHeader::decode(header).expect("a signature header")
}

fn creator_signed(envelope: &Envelope) -> SignedData {
    SignedData {
        data: envelope.payload.clone().into(),
        identity: signature_header(&payload(envelope)).creator,
        signature: envelope.signature.clone(),
    }
}

/// The endorsements of an envelope's one action.
fn endorsements(envelope: &Envelope) -> Vec<SignedData> {
    let transaction = Transaction::decode(payload(envelope).data).expect("a transaction");
    let action = ChaincodeActionPayload::decode(transaction.actions[0].payload.clone()).expect("an action");
    let action = action.action.expect("an endorsed action");
    let signed = |endorsement: &proto::protos::Endorsement| SignedData {
        data: SignedMessage::from([action.proposal_response_payload.clone(), endorsement.endorser.clone()]),
        identity: endorsement.endorser.clone(),
        signature: endorsement.signature.clone(),
    };
    action.endorsements.iter().map(signed).collect()
}

/// DER SEQUENCE{INTEGER number, OCTET STRING previous, OCTET STRING data}, for the small numbers at hand.
fn header_der(block: &Block) -> Bytes {
    let header = block.header.as_ref().expect("a header");
    let number = u8::try_from(header.number).expect("golden blocks have small numbers");
    let mut body = vec![2, 1, number];
    for hash in [&header.previous_hash, &header.data_hash] {
        body.extend_from_slice(&[4, hash.len() as u8]);
        body.extend_from_slice(hash);
    }
    let mut der = vec![0x30, body.len() as u8];
    der.extend_from_slice(&body);
    der.into()
}

/// The orderers' signatures on a block.
fn orderer_signed(block: &Block) -> Vec<SignedData> {
    let slot = block.metadata.as_ref().expect("metadata").metadata[0].clone();
    let metadata = Metadata::decode(slot).expect("metadata");
    let signed = |signature: &proto::common::MetadataSignature| SignedData {
        data: [metadata.value.clone(), signature.signature_header.clone(), header_der(block)].into(),
        identity: SignatureHeader::decode(signature.signature_header.clone()).expect("a header").creator,
        signature: signature.signature.clone(),
    };
    metadata.signatures.iter().map(signed).collect()
}

#[test]
fn organisations_of_the_genesis_block_are_understood() {
    let channel = channel();
    let names: Vec<_> = channel.members.msps().map(|msp| msp.id().to_string()).collect();
    assert_eq!(names, ["OrdererMSP", "Org1MSP", "Org2MSP"]);
    for msp in channel.members.msps() {
        assert_eq!(msp.tls_roots().len(), 1);
    }
}

#[test]
fn creators_and_endorsers_verify_and_satisfy_the_channel_policies() {
    let channel = channel();
    for name in ["b8", "b9"] {
        for envelope in envelopes(&block(name)) {
            let creator = creator_signed(&envelope);
            let identity = channel.members.identify(&creator.identity).expect("a member");
            assert_eq!(identity.verify(&envelope.payload, &creator.signature), Ok(()));
            assert!(identity.has_role(MemberRole::Client) && !identity.has_role(MemberRole::Peer));
            let writers = channel.policies.require("/Channel/Application/Writers").expect("defined");
            assert_eq!(writers.evaluate_signed(std::slice::from_ref(&creator), &channel.members), Ok(()));

            let endorsements = endorsements(&envelope);
            assert!(endorsements.len() >= 2);
            let signatures = SignatureSet::new(&endorsements, &channel.members).expect("few");
            let endorsement = channel.policies.get("/Channel/Application/Endorsement");
            assert_eq!(endorsement.evaluate(&signatures), Ok(()));
            let both = parse("AND('Org1MSP.peer','Org2MSP.peer')").and_then(|wire| SignaturePolicy::compile(&wire));
            let both = Policy::from(both.expect("compiles"));
            assert_eq!(both.evaluate_signed(&endorsements, &channel.members), Ok(()));
            assert_eq!(both.evaluate_signed(&endorsements[..1], &channel.members), Err(Error::PolicyUnsatisfied));
            let admins = channel.policies.get("Application/Admins");
            assert_eq!(admins.evaluate(&signatures), Err(Error::PolicyUnsatisfied));
            for (text, holds) in [
                ("AND('Org1MSP.peer','Org2MSP.peer')", true),
                ("AND('Org1MSP.peer','Org1MSP.member')", false),
                ("OR('Org1MSP.admin','Org2MSP.member')", true),
                ("OutOf(2,'Org1MSP.member','Org2MSP.member','OrdererMSP.member')", true),
            ] {
                let policy = SignaturePolicy::compile(&parse(text).expect("parses")).expect("compiles");
                assert_eq!(Policy::from(policy).evaluate(&signatures).is_ok(), holds, "{text}");
            }
        }
    }
}

#[test]
fn orderers_signed_the_blocks() {
    let channel = channel();
    for name in ["b1", "b8", "b9"] {
        let block = block(name);
        let signatures = orderer_signed(&block);
        assert!(!signatures.is_empty());
        let policy = channel.policies.require("/Channel/Orderer/BlockValidation").expect("defined");
        assert_eq!(policy.evaluate_signed(&signatures, &channel.members), Ok(()), "{name}");
        let mut other = signatures.clone();
        for signed in &mut other {
            signed.data = Bytes::from_static(b"another block").into();
        }
        assert_eq!(policy.evaluate_signed(&other, &channel.members), Err(Error::PolicyUnsatisfied));
    }
}

#[test]
fn transaction_ids_hash_nonce_and_creator() {
    for envelope in envelopes(&block("b8")) {
        let payload = payload(&envelope);
        let header = signature_header(&payload);
        let channel_header = payload.header.as_ref().expect("a header").channel_header.clone();
        let tx_id = ChannelHeader::decode(channel_header).expect("a channel header").tx_id;
        assert_eq!(identity::hex::encode(sha256([&header.nonce[..], &header.creator])), tx_id);
    }
}

/// The first creator of block 8, with what it signed.
fn creator() -> (SignedData, Bytes) {
    let envelope = envelopes(&block("b8")).remove(0);
    (creator_signed(&envelope), envelope.payload)
}

fn identity_of(channel: &Channel, signed: &SignedData) -> Arc<Identity> {
    channel.members.identify(&signed.identity).expect("a member")
}

#[test]
fn tampered_signatures_and_messages_are_refused() {
    let channel = channel();
    let (signed, message) = creator();
    let identity = identity_of(&channel, &signed);
    let mut altered = message.to_vec();
    altered[10] ^= 1;
    assert_eq!(identity.verify(&altered, &signed.signature), Err(Error::WrongSignature));
    for position in 0..signed.signature.len() {
        let mut bad = signed.signature.to_vec();
        bad[position] ^= 1;
        assert!(identity.verify(&message, &bad).is_err(), "byte {position}");
    }
    let mut long = signed.signature.to_vec();
    long.push(0);
    assert_eq!(identity.verify(&message, &long), Err(Error::MalformedSignature));
    assert_eq!(identity.verify(&message, b""), Err(Error::MalformedSignature));
}

#[test]
fn an_identity_under_another_organisations_name_is_foreign() {
    let channel = channel();
    let (signed, _) = creator();
    let mut claimed = SerializedIdentity::decode(signed.identity).expect("an identity");
    let owner = claimed.mspid.clone();
    for other in ["Org1MSP", "Org2MSP", "OrdererMSP"].into_iter().filter(|other| *other != owner) {
        claimed.mspid = other.to_owned();
        let error = channel.members.identify(&claimed.encode_to_vec().into()).expect_err("refused");
        assert!(matches!(error, Error::ForeignChain { .. }), "{error}");
    }
    claimed.mspid = "NobodyMSP".to_owned();
    let error = channel.members.identify(&claimed.encode_to_vec().into()).expect_err("refused");
    assert_eq!(error, Error::UnknownMsp("NobodyMSP".into()));
}

#[test]
fn authorities_cannot_act_as_identities() {
    let channel = channel();
    for definition in definitions(&channel_group()) {
        let identity = SerializedIdentity { mspid: definition.name, id_bytes: definition.root_certs[0].clone() };
        let error = channel.members.identify(&identity.encode_to_vec().into()).expect_err("refused");
        assert_eq!(error, Error::AuthorityAsIdentity);
    }
}

#[test]
fn peers_that_sign_the_same_twice_count_once() {
    let channel = channel();
    let envelope = envelopes(&block("b8")).remove(0);
    let mut one = endorsements(&envelope);
    one.truncate(1);
    // The same peer again, under bytes that differ: a line break more after the certificate.
    let mut again = one[0].clone();
    let mut identity = SerializedIdentity::decode(again.identity).expect("an identity");
    identity.id_bytes = [&identity.id_bytes[..], b"\n"].concat().into();
    again.identity = identity.encode_to_vec().into();
    one.push(again);
    let signer = identity_of(&channel, &one[0]).msp_id().clone();
    let twice = parse(&format!("OutOf(2,'{signer}.peer','{signer}.peer')")).expect("parses");
    let twice = Policy::from(SignaturePolicy::compile(&twice).expect("compiles"));
    assert_eq!(twice.evaluate_signed(&one, &channel.members), Err(Error::PolicyUnsatisfied));
}

#[test]
fn a_second_look_at_an_identity_comes_from_memory_and_is_the_same() {
    let channel = channel();
    let (signed, _) = creator();
    let first = identity_of(&channel, &signed);
    let second = identity_of(&channel, &signed);
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(channel.members.remembered(), 1);
}
