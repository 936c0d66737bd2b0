//! Chaincodes that break the protocol, and clients that give up, against a checker: whatever a call records or answers comes
//! from that call's own reads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::rt::simulation::Simulation;
use base::{Bytes, ChannelId, TxId, rt};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::{ChaincodeMessage, GetState, PutState, Response};

use super::super::fault::{Mutant, plant};
use super::super::{ChaincodeConnection, ChaincodeService};
use super::{ChaincodeEnd, registration, reply, service};
use crate::key::KeyRange;
use crate::{Contract, ContractError, ContractResponse, ContractStub, QueryId, StatePage, StubError, Timestamp};

/// A call whose every read has the call's own token, and which notes what is written.
struct TokenStub {
    token: Bytes,
    channel: ChannelId,
    tx_id: TxId,
    transient: BTreeMap<String, Bytes>,
    written: Vec<Bytes>,
}

#[async_trait]
impl ContractStub for TokenStub {
    async fn get_state(&mut self, _key: &str) -> Result<Option<Bytes>, StubError> {
        rt::sleep(Duration::from_millis(rt::random_below(5))).await;
        Ok(Some(self.token.clone()))
    }

    fn put_state(&mut self, _key: &str, value: Bytes) -> Result<(), StubError> {
        self.written.push(value);
        Ok(())
    }

    fn delete_state(&mut self, _key: &str) -> Result<(), StubError> {
        Ok(())
    }

    async fn open_range(&mut self, _range: KeyRange) -> Result<QueryId, StubError> {
        Err(StubError::Unsupported("a range"))
    }

    async fn next_page(&mut self, query: QueryId, _entries_max: usize) -> Result<StatePage, StubError> {
        Err(StubError::UnknownQuery(query.0))
    }

    fn close_query(&mut self, _query: QueryId) {}

    async fn invoke_contract(
        &mut self,
        name: &str,
        _args: Vec<Bytes>,
        _channel: &str,
    ) -> Result<ContractResponse, StubError> {
        Err(StubError::UnknownContract(name.to_owned()))
    }

    fn set_event(&mut self, _name: &str, _payload: Bytes) -> Result<(), StubError> {
        Ok(())
    }

    fn tx_id(&self) -> &TxId {
        &self.tx_id
    }

    fn channel_id(&self) -> &ChannelId {
        &self.channel
    }

    fn timestamp(&self) -> Timestamp {
        Timestamp::default()
    }

    fn creator(&self) -> &Bytes {
        &self.token
    }

    fn transient(&self) -> &BTreeMap<String, Bytes> {
        &self.transient
    }

    fn args(&self) -> &[Bytes] {
        std::slice::from_ref(&self.token)
    }
}

/// A chaincode that copies what it reads, at its own pace; every run is honest. A hostile one sends garbage in between.
async fn copy(mut end: ChaincodeEnd, is_hostile: bool) {
    end.send(registration("assets_1:ab")).await;
    let sender = Arc::new(end.sender);
    let send = |message: ChaincodeMessage| {
        let sender = sender.clone();
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(rt::random_below(30))).await;
            let _ = sender.send(message.encode_to_vec().into()).await;
        })
    };
    // What each run has read, by its transaction and channel.
    let mut read: BTreeMap<(String, String), Option<Bytes>> = BTreeMap::new();
    while let Some(message) = end.receiver.recv().await {
        let message = ChaincodeMessage::decode(message).expect("a peer sends messages");
        let run = (message.txid.clone(), message.channel_id.clone());
        match message.r#type() {
            Type::Transaction => {
                read.insert(run, None);
                drop(send(reply(&message, Type::GetState, GetState { key: "a".into(), ..GetState::default() })));
            }
            Type::Response => match read.get_mut(&run) {
                Some(read @ None) => {
                    *read = Some(message.payload.clone());
                    let put = PutState { key: "b".into(), value: message.payload.clone(), ..PutState::default() };
                    drop(send(reply(&message, Type::PutState, put)));
                }
                Some(Some(value)) => {
                    let response = Response { status: 200, message: String::new(), payload: value.clone() };
                    drop(send(reply(&message, Type::Completed, response)));
                }
                None => {}
            },
            Type::Error => drop(send(reply(&message, Type::Error, Response::default()))),
            _ => {}
        }
        if is_hostile {
            let lie = ChaincodeMessage { txid: format!("tx{}", rt::random_below(9)), ..ChaincodeMessage::default() };
            let kinds = [Type::GetState, Type::PutState, Type::QueryStateNext, Type::Keepalive, Type::Completed];
            for _ in 0..rt::random_below(3) {
                let kind = kinds[rt::random_below(kinds.len() as u64) as usize];
                drop(send(ChaincodeMessage { channel_id: "nowhere".into(), ..reply(&lie, kind, GetState::default()) }));
            }
        }
    }
}

/// Calls on two channels with few transaction ids, whose clients lose patience now and then. Returns what the checker found.
fn isolation(seed: u64, is_hostile: bool) -> Vec<String> {
    let report = Simulation::new(seed).run(|_| async move {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            while let Some(end) = ends.recv().await {
                copy(end, is_hostile).await;
            }
        });
        let found = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..60 {
            let (service, found) = (service.clone(), found.clone());
            tasks.push(rt::spawn(async move {
                rt::sleep(Duration::from_millis(rt::random_below(600))).await;
                check_call(number, &service, &found).await;
            }));
        }
        for task in tasks {
            task.await.expect("no call panics");
        }
        drop(chaincode);
        let found = found.lock().unwrap_or_else(PoisonError::into_inner);
        found.clone()
    });
    report.expect("the run succeeds").value
}

async fn check_call(number: usize, service: &ChaincodeService, found: &Mutex<Vec<String>>) {
    let token = Bytes::from(format!("token {number}"));
    let mut stub = TokenStub {
        token: token.clone(),
        channel: ChannelId::from(["one", "two"][number % 2]),
        tx_id: TxId::from(format!("tx{}", rt::random_below(4)).as_str()),
        transient: BTreeMap::new(),
        written: Vec::new(),
    };
    let patience = Duration::from_millis(10 + rt::random_below(150));
    let outcome = rt::timeout(patience, service.invoke(&mut stub, "", &[])).await;
    let report = |problem: String| found.lock().unwrap_or_else(PoisonError::into_inner).push(problem);
    if let Some(other) = stub.written.iter().find(|value| **value != token) {
        report(format!("call {number} recorded a write that was computed from the reads of {other:?}"));
    }
    match outcome {
        Ok(Ok(response)) if response.payload != token => {
            report(format!("call {number} was answered with the answer of {:?}", response.payload));
        }
        Ok(Ok(_)) if stub.written.len() != 1 => report(format!("call {number} recorded {:?}", stub.written)),
        Ok(Err(ContractError::Application { message, .. })) if !message.contains("already runs") => {
            report(format!("call {number} failed: {message}"));
        }
        _ => {}
    }
}

#[test]
fn what_a_call_records_comes_from_its_own_reads() {
    for seed in 0..20 {
        assert_eq!(isolation(seed, seed % 2 == 0), Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn the_checker_finds_an_abandoned_call_whose_name_is_given_away() {
    plant(Mutant::ForgetAbandoned);
    let found: Vec<String> = (0..20).flat_map(|seed| isolation(seed, false)).collect();
    plant(Mutant::None);
    assert!(found.iter().any(|problem| problem.contains("computed from the reads of")), "{found:?}");
}

/// Connects a service to a chaincode that has registered.
async fn connected() -> (Arc<ChaincodeService>, ChaincodeEnd, Arc<ChaincodeConnection>) {
    let service = Arc::new(ChaincodeService::awaited("assets", None));
    let (stream, mut end) = super::stream();
    let chaincode = rt::spawn(async move {
        end.register("anything").await;
        end
    });
    let registration = super::Registration::read(stream).await.expect("it registers");
    let connection = service.attach(registration).await.expect("any package will do");
    (service, chaincode.await.expect("it has registered"), connection)
}

fn stub(tx_id: &str) -> TokenStub {
    TokenStub {
        token: Bytes::from_static(b"token"),
        channel: ChannelId::from("one"),
        tx_id: TxId::from(tx_id),
        transient: BTreeMap::new(),
        written: Vec::new(),
    }
}

#[test]
fn a_stream_that_carries_anything_else_is_closed() {
    super::simulate(|| async {
        let peers_own = reply(&ChaincodeMessage::default(), Type::Transaction, GetState::default());
        let again = registration("anything");
        for garbage in
            [Bytes::from_static(b"\xff\xff\xff"), peers_own.encode_to_vec().into(), again.encode_to_vec().into()]
        {
            let (_service, end, connection) = connected().await;
            end.sender.send(garbage).await.expect("the stream is open");
            connection.ended().await;
            assert!(connection.closed().is_some());
        }
    });
}

#[test]
fn a_second_request_is_dropped_while_the_first_one_is_under_way() {
    super::simulate(|| async {
        let (service, mut end, _connection) = connected().await;
        let running = rt::spawn(async move { service.invoke(&mut stub("tx1"), "", &[]).await });
        let call = end.receive().await.expect("a call");
        let get = || reply(&call, Type::GetState, GetState { key: "a".into(), ..GetState::default() });
        for _ in 0..7 {
            end.sender.try_send(get().encode_to_vec().into()).expect("there is room");
        }
        assert_eq!(end.receive().await.expect("an answer").r#type(), Type::Response);
        end.complete(&call, "done").await;
        assert_eq!(running.await.expect("no panic").expect("it completes").payload, "done");
        assert_eq!(rt::timeout(Duration::from_secs(1), end.receive()).await.ok(), None, "one answer for one request");
    });
}

#[test]
fn an_abandoned_run_is_told_so_and_frees_its_name_at_its_end() {
    super::simulate(|| async {
        let (service, mut end, _connection) = connected().await;
        let hasty = rt::timeout(Duration::from_secs(1), async {
            let _ = service.invoke(&mut stub("tx1"), "", &[]).await;
        });
        hasty.await.expect_err("the chaincode does not answer");
        let call = end.receive().await.expect("a call");
        let error = service.invoke(&mut stub("tx1"), "", &[]).await.expect_err("the first run goes on");
        assert!(error.to_string().contains("still runs an earlier call"), "{error}");
        let refused = end.ask(&call, Type::GetState, GetState { key: "a".into(), ..GetState::default() }).await;
        assert_eq!(refused.expect_err("it is abandoned"), "the peer has abandoned the transaction");
        end.complete(&call, "too late").await;
        rt::sleep(Duration::from_millis(10)).await;
        let running = rt::spawn(async move { service.invoke(&mut stub("tx1"), "", &[]).await });
        let call = end.receive().await.expect("the call runs again");
        end.complete(&call, "done").await;
        assert_eq!(running.await.expect("no panic").expect("it completes").payload, "done");
    });
}

#[test]
fn a_chaincode_that_hangs_is_disconnected() {
    super::simulate(|| async {
        let (service, mut end, connection) = connected().await;
        let hung = rt::timeout(Duration::from_secs(30), async {
            let _ = service.invoke(&mut stub("tx1"), "", &[]).await;
        });
        hung.await.expect_err("the chaincode hangs");
        connection.ended().await;
        end.receive().await.expect("the call");
        assert_eq!(end.receive().await, None);
    });
}
