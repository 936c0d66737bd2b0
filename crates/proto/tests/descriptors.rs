//! Checks names and numbers of messages and fields that are easy to get wrong. It looks at the descriptors, not at the
//! generated code.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorSet};

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("the descriptor set decodes")
}

fn message(descriptors: &FileDescriptorSet, full_name: &str) -> DescriptorProto {
    let (package, name) = full_name.rsplit_once('.').expect("package and name");
    let files = descriptors.file.iter().filter(|file| file.package() == package);
    let found = files.flat_map(|file| &file.message_type).find(|message| message.name() == name);
    found.unwrap_or_else(|| panic!("no message {full_name}")).clone()
}

#[test]
fn field_numbers_with_gaps_are_fabrics() {
    let descriptors = descriptors();
    for (name, fields) in [
        ("protos.ProposalResponse", "version=1 timestamp=2 response=4 payload=5 endorsement=6 interest=7"),
        ("protos.ChaincodeHeaderExtension", "payload_visibility=1 chaincode_id=2"),
        ("protos.FilteredBlock", "channel_id=1 number=2 filtered_transactions=4"),
        ("protos.PutStateMetadata", "key=1 collection=3 metadata=4"),
        ("protos.ChaincodeProposalPayload", "input=1 TransientMap=2"),
        ("protos.ChaincodeDeploymentSpec", "chaincode_spec=1 code_package=3"),
        ("common.ConfigUpdate", "channel_id=1 read_set=2 write_set=3 isolated_data=5"),
        ("gateway.SubmitRequest", "transaction_id=1 channel_id=2 prepared_transaction=3"),
        ("gateway.EndorseResponse", "prepared_transaction=1"),
        ("google.rpc.Status", "code=1 message=2 details=3"),
        ("commit_hash.KVWrite", "namespace=1 collection=2 key=3 is_delete=4 value=5 version=6"),
    ] {
        let message = message(&descriptors, name);
        let found: Vec<_> = message.field.iter().map(|field| format!("{}={}", field.name(), field.number())).collect();
        assert_eq!(found.join(" "), fields, "{name}");
    }
}

#[test]
fn chaincode_message_types_skip_twelve() {
    let message = message(&descriptors(), "protos.ChaincodeMessage");
    let numbers: Vec<i32> = message.enum_type[0].value.iter().map(|value| value.number()).collect();
    assert_eq!(numbers, (0..=25).filter(|&number| number != 12).collect::<Vec<_>>());
}

#[test]
fn validation_codes_fit_the_transactions_filter() {
    let codes: Vec<u8> = (0..=i32::from(u8::MAX))
        .filter(|&code| proto::protos::TxValidationCode::try_from(code).is_ok())
        .map(|code| code as u8)
        .collect();
    assert_eq!(codes, (0..=25).chain([254, 255]).collect::<Vec<_>>());
}

#[test]
fn services_and_methods_are_fabrics_and_our_own() {
    let mut found = Vec::new();
    for file in descriptors().file {
        for service in &file.service {
            let methods: Vec<_> = service.method.iter().map(|method| method.name().to_owned()).collect();
            found.push(format!("{}.{}: {}", file.package(), service.name(), methods.join(" ")));
        }
    }
    found.sort();
    assert_eq!(
        found,
        [
            "discovery.Discovery: Discover",
            "gateway.Gateway: Endorse Submit CommitStatus Evaluate ChaincodeEvents",
            "heddle.kv.KeyValues: Get Put Delete CompareAndSet Watch Status Exchange",
            "orderer.AtomicBroadcast: Broadcast Deliver",
            "protos.Chaincode: Connect",
            "protos.ChaincodeSupport: Register",
            "protos.Deliver: Deliver DeliverFiltered DeliverWithPrivateData",
            "protos.Endorser: ProcessProposal",
        ]
    );
}
