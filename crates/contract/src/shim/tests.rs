//! Scripted chaincodes, honest and hostile, over streams within the test.

mod batches;
mod hostile;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base::rt::channel::{Receiver, Sender, bounded};
use base::rt::{self, simulation};
use base::{Bytes, ErrorKind};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::{
    ChaincodeAdditionalParams, ChaincodeEvent, ChaincodeId, ChaincodeInput, ChaincodeMessage, GetState, PutState,
    Response,
};

use super::{ChaincodeConnector, ChaincodeService, ChaincodeStream, MessageReceiver, MessageSender, Registration};
use crate::model::{ModelInvocation, ModelLedger};
use crate::{ContractRegistry, StubError};

/// The chaincode's end of a stream.
struct ChaincodeEnd {
    sender: Sender<Bytes>,
    receiver: Receiver<Bytes>,
}

struct PeerReceiver(Receiver<Bytes>);
struct PeerSender(Sender<Bytes>);

#[async_trait]
impl MessageReceiver for PeerReceiver {
    async fn receive(&mut self) -> Result<Option<Bytes>, String> {
        Ok(self.0.recv().await)
    }
}

#[async_trait]
impl MessageSender for PeerSender {
    async fn send(&mut self, message: Bytes) -> Result<(), String> {
        self.0.send(message).await.map_err(|_| "the chaincode has gone".to_owned())
    }
}

fn stream() -> (ChaincodeStream, ChaincodeEnd) {
    let (to_peer, from_chaincode) = bounded(8);
    let (to_chaincode, from_peer) = bounded(8);
    let stream = ChaincodeStream {
        receiver: Box::new(PeerReceiver(from_chaincode)),
        sender: Box::new(PeerSender(to_chaincode)),
    };
    (stream, ChaincodeEnd { sender: to_peer, receiver: from_peer })
}

impl ChaincodeEnd {
    async fn send(&self, message: ChaincodeMessage) {
        // A peer that has closed the stream takes nothing.
        let _ = self.sender.send(message.encode_to_vec().into()).await;
    }

    async fn receive(&mut self) -> Option<ChaincodeMessage> {
        let message = self.receiver.recv().await?;
        Some(ChaincodeMessage::decode(message).expect("a peer sends messages"))
    }

    /// Registers, and takes the answer.
    async fn register(&mut self, package_id: &str) {
        self.send(registration(package_id)).await;
        let registered = self.receive().await.expect("the peer answers");
        assert_eq!(registered.r#type(), Type::Registered);
        let ready = self.receive().await.expect("the peer is ready");
        assert_eq!(ready.r#type(), Type::Ready);
        let offered = ChaincodeAdditionalParams::decode(ready.payload).expect("sizes");
        assert!(offered.use_write_batch && offered.max_size_get_multiple_keys == 1000);
    }

    /// Sends a request for `call` and returns the answer.
    async fn ask(&mut self, call: &ChaincodeMessage, kind: Type, request: impl Message) -> Result<Bytes, String> {
        self.send(reply(call, kind, request)).await;
        let answer = self.receive().await.expect("the peer answers");
        assert_eq!((&answer.txid, &answer.channel_id), (&call.txid, &call.channel_id));
        match answer.r#type() {
            Type::Response => Ok(answer.payload),
            Type::Error => Err(String::from_utf8_lossy(&answer.payload).into_owned()),
            other => panic!("the peer answered with {other:?}"),
        }
    }

    /// Completes `call` with a success.
    async fn complete(&self, call: &ChaincodeMessage, payload: &'static str) {
        self.send(reply(call, Type::Completed, success(payload))).await;
    }
}

fn registration(package_id: &str) -> ChaincodeMessage {
    let id = ChaincodeId { name: package_id.to_owned(), ..ChaincodeId::default() };
    ChaincodeMessage {
        r#type: Type::Register.into(),
        payload: id.encode_to_vec().into(),
        ..ChaincodeMessage::default()
    }
}

fn success(payload: &'static str) -> Response {
    Response { status: 200, message: String::new(), payload: Bytes::from_static(payload.as_bytes()) }
}

fn reply(call: &ChaincodeMessage, kind: Type, message: impl Message) -> ChaincodeMessage {
    ChaincodeMessage {
        r#type: kind.into(),
        payload: message.encode_to_vec().into(),
        txid: call.txid.clone(),
        channel_id: call.channel_id.clone(),
        ..ChaincodeMessage::default()
    }
}

/// Hands out streams whose other ends a test holds.
struct TestConnector(Sender<ChaincodeEnd>);

#[async_trait]
impl ChaincodeConnector for TestConnector {
    async fn connect(&self) -> Result<ChaincodeStream, String> {
        let (stream, end) = stream();
        self.0.send(end).await.map_err(|_| "the chaincode does not run".to_owned())?;
        Ok(stream)
    }
}

/// A service named `assets`, and where its chaincode's ends arrive.
fn service() -> (Arc<ChaincodeService>, Receiver<ChaincodeEnd>) {
    let (ends, arrived) = bounded(4);
    let connector = Box::new(TestConnector(ends));
    (Arc::new(ChaincodeService::dialed("assets", Some("assets_1:ab"), connector)), arrived)
}

fn ledger(service: Arc<ChaincodeService>) -> ModelLedger {
    let mut registry = ContractRegistry::native();
    registry.register("assets", service).expect("the name is free");
    ModelLedger::new(registry)
}

fn simulate<F: Future<Output = ()> + Send + 'static>(test: impl FnOnce() -> F) {
    let test = test();
    simulation::Simulation::new(7).run(|_| test).expect("the run succeeds");
}

fn call(function: &str, tx_id: &str) -> ModelInvocation {
    ModelInvocation { tx_id: tx_id.to_owned(), ..ModelInvocation::new::<&str>("assets", function, &[]) }
}

#[test]
fn a_chaincode_reads_writes_and_completes() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            assert_eq!(call.r#type(), Type::Transaction);
            let input = ChaincodeInput::decode(call.payload.clone()).expect("an input");
            assert_eq!(input.args, [Bytes::from_static(b"move")]);
            let get = GetState { key: "car".into(), collection: String::new() };
            assert_eq!(end.ask(&call, Type::GetState, get).await, Ok(Bytes::from_static(b"red")));
            let put = PutState { key: "car".into(), value: Bytes::from_static(b"blue"), collection: String::new() };
            assert_eq!(end.ask(&call, Type::PutState, put).await, Ok(Bytes::new()));
            let empty = PutState { key: String::new(), ..PutState::default() };
            let refused = end.ask(&call, Type::PutState, empty).await.expect_err("no key is empty");
            assert!(refused.starts_with("PUT_STATE failed: transaction ID: tx1: "), "{refused}");
            let event = ChaincodeEvent {
                event_name: "moved".into(),
                payload: Bytes::from_static(b"car"),
                ..ChaincodeEvent::default()
            };
            let completed = reply(&call, Type::Completed, success("done"));
            end.send(ChaincodeMessage { chaincode_event: Some(event), ..completed }).await;
            end
        });
        let mut ledger = ledger(service);
        ledger.set("assets", "car", "red");
        let effects = ledger.submit(&call("move", "tx1")).await.expect("the chaincode serves");
        assert_eq!(effects.response.payload, "done");
        assert_eq!(effects.event, Some(("moved".to_owned(), Bytes::from_static(b"car"))));
        assert_eq!(ledger.get("assets", "car").expect("it is written"), "blue");
        drop(chaincode);
    });
}

#[test]
fn an_error_of_the_chaincode_is_the_contracts_answer() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            end.send(ChaincodeMessage {
                payload: Bytes::from_static(b"no such car"),
                ..reply(&call, Type::Error, Response::default())
            })
            .await;
            let call = end.receive().await.expect("a call");
            end.send(reply(&call, Type::Completed, Response { status: 404, ..success("nothing") })).await;
            end
        });
        let ledger = ledger(service);
        let effects = ledger.execute(&call("move", "tx1")).await.expect("an answer");
        assert_eq!(effects.response.status, 500);
        assert_eq!(effects.response.message, "transaction returned with failure: no such car");
        let effects = ledger.execute(&call("move", "tx2")).await.expect("an answer");
        assert_eq!((effects.response.status, &effects.response.payload[..]), (404, &b"nothing"[..]));
        drop(chaincode);
    });
}

#[test]
fn a_lost_connection_fails_its_calls_at_once_and_the_next_call_connects_again() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            end.receive().await.expect("a call");
            drop(end);
            let mut end = ends.recv().await.expect("the peer connects again");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            end.complete(&call, "done").await;
            end
        });
        let ledger = ledger(service);
        let started = rt::now();
        let failed = ledger.execute(&call("move", "tx1")).await.expect_err("the chaincode has gone");
        let StubError::State { kind, message } = failed else { panic!("{failed}") };
        assert_eq!(kind, ErrorKind::Retry);
        assert!(message.contains("chaincode assets cannot serve now"), "{message}");
        assert!(started.elapsed() < Duration::from_secs(1));
        let effects = ledger.execute(&call("move", "tx1")).await.expect("it has reconnected");
        assert_eq!(effects.response.payload, "done");
        drop(chaincode);
    });
}

#[test]
fn a_chaincode_with_another_package_is_refused() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.send(registration("other_1:cd")).await;
            assert_eq!(end.receive().await, None, "the peer closes the stream");
        });
        let failed = ledger(service).execute(&call("move", "tx1")).await.expect_err("the package differs");
        assert!(failed.to_string().contains("CORE_CHAINCODE_ID_NAME=assets_1:ab"), "{failed}");
        chaincode.await.expect("the chaincode's checks pass");
    });
}

#[test]
fn a_chaincode_may_connect_by_itself_and_replaces_its_earlier_connection() {
    simulate(|| async {
        let service = Arc::new(ChaincodeService::awaited("assets", Some("assets_1:ab")));
        let ledger = ledger(service.clone());
        let failed = ledger.execute(&call("move", "tx1")).await.expect_err("nothing is connected");
        assert!(failed.to_string().contains("has not connected"), "{failed}");
        for round in ["first", "second"] {
            let (stream, mut end) = stream();
            let chaincode = rt::spawn(async move {
                end.register("assets_1:ab").await;
                let call = end.receive().await.expect("a call");
                end.complete(&call, round).await;
                end
            });
            let registration = Registration::read(stream).await.expect("it registers");
            service.attach(registration).await.expect("it is the package");
            let effects = ledger.execute(&call("move", "tx1")).await.expect("it serves");
            assert_eq!(effects.response.payload, round);
            drop(chaincode);
        }
    });
}

#[test]
fn a_chaincode_cannot_call_itself_in_one_transaction() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            let spec = proto::protos::ChaincodeSpec {
                chaincode_id: Some(ChaincodeId { name: "assets:1.0".into(), ..ChaincodeId::default() }),
                input: Some(ChaincodeInput::default()),
                ..proto::protos::ChaincodeSpec::default()
            };
            let answer = end.ask(&call, Type::InvokeChaincode, spec).await.expect("the called one's answer");
            let inner = ChaincodeMessage::decode(answer).expect("its last message");
            let response = Response::decode(inner.payload).expect("a response");
            assert_eq!((inner.r#type, response.status), (Type::Completed as i32, 500));
            end.complete(&call, "done").await;
            end
        });
        let effects = ledger(service).execute(&call("move", "tx1")).await.expect("it serves");
        assert_eq!(effects.response.payload, "done");
        drop(chaincode);
    });
}

#[test]
fn a_failure_of_the_state_ends_the_call_whatever_the_chaincode_makes_of_it() {
    simulate(|| async {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            let get = GetState { key: "car".into(), collection: String::new() };
            end.ask(&call, Type::GetState, get).await.expect_err("the state is fenced");
            end.complete(&call, "there is no car").await;
            end
        });
        let mut ledger = ledger(service);
        let fenced = StubError::State { kind: ErrorKind::Fenced, message: "another primary".into() };
        ledger.fail_reads_from(0, fenced.clone());
        assert_eq!(ledger.execute(&call("move", "tx1")).await.expect_err("the state is fenced"), fenced);
        drop(chaincode);
    });
}
