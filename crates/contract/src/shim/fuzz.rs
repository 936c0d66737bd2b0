//! Fuzz harnesses of the decoders of chaincodes' bytes; see [`base::fuzz`].

use std::sync::Arc;

use async_trait::async_trait;
use base::Bytes;
use base::fuzz::{FuzzTarget, InputShape, authenticated, within};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::{
    ChaincodeId, ChaincodeInput, ChaincodeMessage, ChaincodeSpec, DelState, GetHistoryForKey, GetState,
    GetStateByRange, GetStateMultiple, PurgePrivateState, PutState, PutStateMetadata, QueryMetadata, QueryStateNext,
    StateMetadata, WriteBatchState, WriteRecord,
};

use super::answer::CallRequests;
use super::registration::{decode, registered};
use crate::model::{ModelInvocation, ModelLedger, run};
use crate::{Contract, ContractError, ContractRegistry, ContractResponse, ContractStub};

/// The targets of this module.
pub const TARGETS: &[FuzzTarget] =
    &[FuzzTarget { name: "contract-shim-messages", shape: InputShape::Protobuf, run: message, seeds: messages }];

/// A batch is at most 1,000 records, counted before they are built. An empty record takes two bytes on the wire, and many
/// more in memory.
const BATCH_TIMES: usize = 256;

/// A chaincode that makes one request. What the peer answers is the payload of its response.
struct OneRequest(ChaincodeMessage);

#[async_trait]
impl Contract for OneRequest {
    fn name(&self) -> &str {
        "one"
    }

    async fn invoke(
        &self,
        tx: &mut dyn ContractStub,
        _function: &str,
        _args: &[Bytes],
    ) -> Result<ContractResponse, ContractError> {
        let mut requests = CallRequests::new(false);
        let answered = requests.answer(tx, self.0.r#type(), self.0.clone()).await;
        requests.finish(tx);
        match answered {
            Ok(payload) => Ok(ContractResponse::success(payload)),
            Err(refused) => Err(ContractError::application(format!("{refused:?}"))),
        }
    }
}

/// A chaincode's message is a registration or a request. Neither makes the peer panic, and a request leaves the state as it
/// was until its transaction is valid.
fn message(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    if let Ok(package_id) = authenticated(input, || registered(bytes.clone())) {
        assert!(!package_id.is_empty());
    }
    let Ok(message) = authenticated(input, || decode(bytes)) else { return };
    let mut registry = ContractRegistry::empty();
    registry.register("one", Arc::new(OneRequest(message))).expect("the name is free");
    let mut ledger = ModelLedger::new(registry);
    ledger.set("one", "car", "red");
    let call = ModelInvocation::new::<&str>("one", "call", &[]);
    let effects = within(BATCH_TIMES, input.len(), || run(ledger.execute(&call)));
    let effects = effects.expect("the state of the model serves");
    if effects.response.status >= ContractResponse::ERROR {
        assert!(effects.event.is_none());
    }
    assert_eq!(ledger.get("one", "car").map(|value| &value[..]), Some(&b"red"[..]));
}

fn messages() -> Vec<Vec<u8>> {
    let of = |kind: Type, payload: Vec<u8>| {
        let message = ChaincodeMessage {
            r#type: kind.into(),
            payload: payload.into(),
            txid: "tx1".into(),
            channel_id: "mychannel".into(),
            ..ChaincodeMessage::default()
        };
        message.encode_to_vec()
    };
    let (key, value) = (String::from("car"), Bytes::from_static(b"blue"));
    let id = ChaincodeId { name: "assets_1:ab".into(), ..ChaincodeId::default() };
    let get = GetState { key: key.clone(), collection: String::new() };
    let private = GetState { key: key.clone(), collection: "shared".into() };
    let page = QueryMetadata { page_size: 3, bookmark: "b".into() }.encode_to_vec();
    let range = GetStateByRange { start_key: "a".into(), end_key: "z".into(), ..GetStateByRange::default() };
    let metadata = Some(StateMetadata { metakey: "VALIDATION_PARAMETER".into(), value: value.clone() });
    let record = WriteRecord { key: key.clone(), value: value.clone(), ..WriteRecord::default() };
    let batch: Vec<_> =
        (0..=5).map(|kind| WriteRecord { r#type: kind, metadata: metadata.clone(), ..record.clone() }).collect();
    let spec = ChaincodeSpec {
        chaincode_id: Some(ChaincodeId { name: "basic:1.0/mychannel".into(), ..ChaincodeId::default() }),
        input: Some(ChaincodeInput { args: vec![value.clone(), Bytes::new()], ..ChaincodeInput::default() }),
        ..ChaincodeSpec::default()
    };
    vec![
        of(Type::Register, id.encode_to_vec()),
        of(Type::GetState, get.encode_to_vec()),
        of(Type::GetState, private.encode_to_vec()),
        of(Type::GetPrivateDataHash, private.encode_to_vec()),
        of(Type::GetStateMetadata, get.encode_to_vec()),
        of(
            Type::GetStateMultiple,
            GetStateMultiple { keys: vec![key.clone(), "x".into()], ..Default::default() }.encode_to_vec(),
        ),
        of(Type::PutState, PutState { key: key.clone(), value, collection: String::new() }.encode_to_vec()),
        of(
            Type::PutStateMetadata,
            PutStateMetadata { key: key.clone(), metadata, ..Default::default() }.encode_to_vec(),
        ),
        of(Type::DelState, DelState { key: key.clone(), ..DelState::default() }.encode_to_vec()),
        of(Type::PurgePrivateData, PurgePrivateState { key: key.clone(), collection: "shared".into() }.encode_to_vec()),
        of(Type::WriteBatchState, WriteBatchState { rec: batch }.encode_to_vec()),
        of(Type::GetStateByRange, range.encode_to_vec()),
        of(Type::GetStateByRange, GetStateByRange { metadata: page.into(), ..range }.encode_to_vec()),
        of(Type::GetHistoryForKey, GetHistoryForKey { key }.encode_to_vec()),
        of(Type::QueryStateNext, QueryStateNext { id: "1".into() }.encode_to_vec()),
        of(Type::InvokeChaincode, spec.encode_to_vec()),
        of(Type::Completed, Vec::new()),
    ]
}
