//! Queries in batches, and batches of writes and keys.

use base::{Bytes, rt};
use prost::Message;
use proto::protos::chaincode_message::Type;
use proto::protos::write_record::Type as WriteType;
use proto::protos::{
    ChaincodeMessage, GetStateByRange, GetStateMultiple, GetStateMultipleResult, QueryResponse, QueryStateClose,
    QueryStateNext, WriteBatchState, WriteRecord,
};
use proto::queryresult::Kv;

use super::{ChaincodeEnd, call, ledger, service, simulate};

/// Runs `script` as the chaincode of one call on a ledger with `rows` rows, and returns the ledger's ranges and writes.
fn run<F>(rows: usize, script: impl FnOnce(ChaincodeEnd, ChaincodeMessage) -> F + Send + 'static) -> (Vec<usize>, usize)
where
    F: Future<Output = (ChaincodeEnd, ChaincodeMessage)> + Send,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    simulate(move || async move {
        let (service, mut ends) = service();
        let chaincode = rt::spawn(async move {
            let mut end = ends.recv().await.expect("the peer connects");
            end.register("assets_1:ab").await;
            let call = end.receive().await.expect("a call");
            let (end, call) = script(end, call).await;
            end.complete(&call, "done").await;
            end
        });
        let mut ledger = ledger(service);
        for row in 0..rows {
            ledger.set("assets", &format!("k{row:06}"), "v");
        }
        let effects = ledger.execute(&call("scan", "tx1")).await.expect("it serves");
        let ranges = effects.ranges.iter().map(|(_, _, keys)| keys.len()).collect();
        sender.send((ranges, effects.writes.len())).expect("the test waits");
        drop(chaincode);
    });
    receiver.recv().expect("the run has sent it")
}

fn all() -> GetStateByRange {
    GetStateByRange { start_key: "\u{1}".into(), ..GetStateByRange::default() }
}

async fn keys(end: &mut ChaincodeEnd, call: &ChaincodeMessage) -> Vec<(usize, String)> {
    let mut batches = Vec::new();
    let mut batch = end.ask(call, Type::GetStateByRange, all()).await.expect("a query");
    loop {
        let QueryResponse { results, has_more, id, .. } = QueryResponse::decode(batch).expect("a batch");
        let last = results.last().map(|row| Kv::decode(row.result_bytes.clone()).expect("a row").key);
        batches.push((results.len(), last.unwrap_or_default()));
        if !has_more {
            let gone = end.ask(call, Type::QueryStateNext, QueryStateNext { id }).await;
            assert!(gone.expect_err("the query is over").ends_with("the query is not open"));
            return batches;
        }
        batch = end.ask(call, Type::QueryStateNext, QueryStateNext { id }).await.expect("the next batch");
    }
}

#[test]
fn a_range_comes_in_batches_of_a_hundred() {
    for (rows, sizes) in [(0, &[0][..]), (1, &[1]), (100, &[100]), (101, &[100, 1]), (250, &[100, 100, 50])] {
        let (ranges, _) = run(rows, move |mut end, call| async move {
            let batches = keys(&mut end, &call).await;
            assert_eq!(batches.iter().map(|(size, _)| *size).collect::<Vec<_>>(), sizes, "{rows} rows");
            (end, call)
        });
        assert_eq!(ranges, [rows], "the read set has every row");
    }
}

/// A chaincode closes a query after some batches. It has got their rows, and the read set has one row more, if there is one.
#[test]
fn a_closed_query_has_read_one_row_ahead_as_fabrics_peers_do() {
    for rows in [0, 1, 99, 100, 101, 199, 200, 201, 202, 300, 301] {
        for batches in 1..=3 {
            let (ranges, _) = run(rows, move |mut end, call| async move {
                let (mut got, mut left) = (0, batches);
                let mut answer = end.ask(&call, Type::GetStateByRange, all()).await;
                let id = loop {
                    let batch = QueryResponse::decode(answer.expect("a batch")).expect("a batch");
                    for row in batch.results {
                        let key = Kv::decode(row.result_bytes).expect("a row").key;
                        assert_eq!(key, format!("k{got:06}"), "each row comes once, in order");
                        got += 1;
                    }
                    left -= 1;
                    assert_eq!(batch.has_more, got < rows, "{rows} rows, {batches} batches");
                    if left == 0 || !batch.has_more {
                        break batch.id;
                    }
                    answer = end.ask(&call, Type::QueryStateNext, QueryStateNext { id: batch.id }).await;
                };
                assert_eq!(got, rows.min(100 * batches));
                // A library closes a query that is over too.
                let closed = end.ask(&call, Type::QueryStateClose, QueryStateClose { id: id.clone() }).await;
                let closed = QueryResponse::decode(closed.expect("it closes")).expect("an answer");
                assert!(closed.id == id && !closed.has_more && closed.results.is_empty());
                end.ask(&call, Type::QueryStateNext, QueryStateNext { id }).await.expect_err("it is closed");
                (end, call)
            });
            assert_eq!(ranges, [rows.min(100 * batches + 1)], "{rows} rows, {batches} batches");
        }
    }
}

#[test]
fn a_batch_writes_and_reads_in_order() {
    let (_, writes) = run(3, |mut end, call| async move {
        let record = |kind: WriteType, key: &str| WriteRecord {
            key: key.into(),
            value: Bytes::from_static(b"new"),
            r#type: kind.into(),
            ..WriteRecord::default()
        };
        let rec = vec![record(WriteType::PutState, "a"), record(WriteType::DelState, "k000001")];
        end.ask(&call, Type::WriteBatchState, WriteBatchState { rec }).await.expect("a batch");
        let wanted = vec!["k000000".to_owned(), "absent".to_owned(), "k000001".to_owned()];
        let wanted = GetStateMultiple { keys: wanted, collection: String::new() };
        let values = end.ask(&call, Type::GetStateMultiple, wanted).await.expect("values");
        let values = GetStateMultipleResult::decode(values).expect("values").values;
        assert_eq!(values, ["v", "", "v"]);
        (end, call)
    });
    assert_eq!(writes, 2);
}

#[test]
fn a_batch_with_too_many_entries_is_refused_before_it_takes_memory() {
    let (_, writes) = run(0, |mut end, call| async move {
        // Two bytes each; decoded, each would take more than a hundred.
        let bomb = vec![[0x0a, 0]; 200_000].concat();
        for kind in [Type::WriteBatchState, Type::GetStateMultiple] {
            let message = ChaincodeMessage {
                payload: bomb.clone().into(),
                ..super::reply(&call, kind, QueryStateNext::default())
            };
            end.send(message).await;
            let refused = end.receive().await.expect("an answer");
            assert_eq!(refused.r#type(), Type::Error);
            assert!(String::from_utf8_lossy(&refused.payload).contains("at most 1000"));
        }
        let input = [&[0x1a, 0xc0, 0x9a, 0x0c][..], &bomb[..200_000]].concat();
        let message = ChaincodeMessage {
            payload: input.into(),
            ..super::reply(&call, Type::InvokeChaincode, QueryStateNext::default())
        };
        end.send(message).await;
        let refused = end.receive().await.expect("an answer");
        assert!(String::from_utf8_lossy(&refused.payload).contains("at most 4096 arguments"));
        (end, call)
    });
    assert_eq!(writes, 0);
}
