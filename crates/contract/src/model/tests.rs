use std::sync::Arc;

use super::*;

fn ledger() -> ModelLedger {
    let mut registry = ContractRegistry::native();
    registry.register("probe", Arc::new(ProbeContract)).expect("a free name");
    registry.register("other", Arc::new(ProbeContract)).expect("a free name");
    let mut ledger = ModelLedger::new(registry);
    for (key, value) in [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")] {
        ledger.set("probe", key, value);
    }
    ledger
}

/// Runs a script: one step a line.
fn script(ledger: &mut ModelLedger, steps: &str) -> ModelEffects {
    let steps: Vec<&str> = steps.lines().map(str::trim_start).filter(|step| !step.is_empty()).collect();
    run(ledger.submit(&ModelInvocation::new("probe", "run", &steps))).expect("a healthy state")
}

fn answer(effects: &ModelEffects) -> String {
    assert!(effects.response.is_endorsable(), "{}", effects.response.message);
    String::from_utf8(effects.response.payload.to_vec()).expect("text")
}

#[test]
fn reads_never_see_own_writes() {
    let mut ledger = ledger();
    let effects = script(&mut ledger, "put a new\n delete b\n put x 9\n get a\n get b\n get x\n range - - 10");
    assert_eq!(answer(&effects), "a=1;b=2;x!;a=1;b=2;c=3;d=4;");
    let effects = script(&mut ledger, "get a\n get b\n get x");
    assert_eq!(answer(&effects), "a=new;b!;x=9;");
}

#[test]
fn last_write_of_a_key_counts_and_an_empty_value_deletes() {
    let mut ledger = ledger();
    let effects = script(&mut ledger, "put a x\n put a y\n delete b\n put b z\n put c w\n put c ");
    let at = |key: &str| effects.writes[&("probe".to_owned(), key.to_owned())].clone();
    assert_eq!((at("a"), at("b"), at("c")), (Some("y".into()), Some("z".into()), None));
    assert!(ledger.get("probe", "c").is_none());
}

#[test]
fn ranges_are_half_open_and_record_what_they_handed_out() {
    let mut ledger = ledger();
    let effects = script(&mut ledger, "range b d 10\n range a - 2\n range d b 10");
    assert_eq!(answer(&effects), "b=2;c=3;a=1;b=2;");
    let handed_out: Vec<&[String]> = effects.ranges.iter().map(|(_, _, keys)| keys.as_slice()).collect();
    assert_eq!(handed_out, [&["b".to_owned(), "c".to_owned()][..], &["a".to_owned(), "b".to_owned()], &[]]);
}

#[test]
fn composite_keys_live_apart_from_simple_ones() {
    let mut ledger = ledger();
    script(&mut ledger, "put-composite 1 owner ann x\n put-composite 2 owner ann y\n put-composite 3 owner bob x");
    let effects = script(&mut ledger, "attributes owner ann\n attributes owner\n attributes own\n range - - 9");
    assert_eq!(answer(&effects), "ann/x=1;ann/y=2;ann/x=1;ann/y=2;bob/x=3;a=1;b=2;c=3;d=4;");
}

#[test]
fn pages_are_bounded_in_entries_and_bytes() {
    let mut ledger = ledger();
    let value = vec![b'x'; PAGE_BYTES_SOFT_MAX / 2];
    for number in 0..300 {
        ledger.set("other", &format!("k{number:03}"), if number < 200 { vec![b'x'] } else { value.clone() });
    }
    let invocation = ModelInvocation::new::<&str>("other", "run", &[]);
    let mut stub = ModelStub::new(&ledger, &invocation);
    let sizes = run(async {
        let query = stub.open_range(KeyRange::all()).await.expect("opens");
        let mut sizes = Vec::new();
        loop {
            let page = stub.next_page(query, if sizes.is_empty() { 7 } else { usize::MAX }).await.expect("open");
            sizes.push(page.entries.len());
            if !page.has_more {
                break;
            }
        }
        let closed = stub.next_page(query, 1).await;
        assert_eq!(closed, Err(StubError::UnknownQuery(query.0)));
        sizes
    });
    assert_eq!(sizes.iter().sum::<usize>(), 300);
    assert_eq!(sizes[..3], [7, PAGE_ENTRIES_MAX, 95]);
    assert!(sizes[3..].iter().all(|size| *size <= 2), "{sizes:?}");
}

#[test]
fn open_queries_are_bounded() {
    let ledger = ledger();
    let invocation = ModelInvocation::new::<&str>("probe", "run", &[]);
    let mut stub = ModelStub::new(&ledger, &invocation);
    run(async {
        for _ in 0..OPEN_QUERIES_MAX {
            stub.open_range(KeyRange::all()).await.expect("within the bound");
        }
        let refused = stub.open_range(KeyRange::all()).await;
        assert!(matches!(refused, Err(StubError::LimitExceeded { .. })));
        stub.close_query(QueryId(0));
        stub.open_range(KeyRange::all()).await.expect("one was closed");
    });
}

#[test]
fn called_contract_joins_the_transaction_in_its_own_namespace() {
    let mut ledger = ledger();
    ledger.set("other", "a", "theirs");
    let effects = script(&mut ledger, "event mine 1\n call basic AssetExists asset1\n call basic InitLedger\n get a");
    assert_eq!(answer(&effects), "200:false;200:;a=1;");
    assert_eq!(effects.event, Some(("mine".to_owned(), "1".into())));
    assert!(ledger.get("basic", "asset1").is_some(), "the callee's writes join the transaction");
    let effects = script(&mut ledger, "call basic DeleteAsset asset1\n call basic ReadAsset asset1");
    assert!(answer(&effects).starts_with("200:;200:{"), "a callee does not see the transaction's writes either");
    assert_eq!(effects.event, None, "a callee's event is dropped");
}

#[test]
fn failed_call_is_a_response_to_its_caller() {
    let mut ledger = ledger();
    let effects = script(&mut ledger, "call basic ReadAsset none");
    assert_eq!(answer(&effects), "500:the asset none does not exist;");
    let effects = script(&mut ledger, "call nobody f");
    assert_eq!(effects.response.message, "contract nobody is not known on this channel");
}

#[test]
fn endless_recursion_is_refused() {
    #[derive(Debug)]
    struct Recursive;
    #[async_trait]
    impl crate::Contract for Recursive {
        fn name(&self) -> &str {
            "recursive"
        }
        async fn invoke(
            &self,
            tx: &mut dyn ContractStub,
            _: &str,
            args: &[Bytes],
        ) -> Result<ContractResponse, ContractError> {
            let mut input = vec![Bytes::new()];
            input.extend_from_slice(args);
            let response = tx.invoke_contract("recursive", input, "").await?;
            if response.is_endorsable() { Ok(response) } else { Err(ContractError::application(response.message)) }
        }
    }
    let mut registry = ContractRegistry::empty();
    registry.register("recursive", Arc::new(Recursive)).expect("a free name");
    let mut ledger = ModelLedger::new(registry);
    let refused = ledger.call::<&str>("recursive", "f", &[]);
    assert_eq!(refused, Err(format!("nested calls of one transaction may be at most {CALL_DEPTH_MAX}")));
}

#[test]
fn failed_execution_changes_nothing() {
    let mut ledger = ledger();
    let effects = script(&mut ledger, "put a lost\n fail no");
    assert_eq!((effects.response.status, effects.response.message.as_str()), (500, "no"));
    assert_eq!(ledger.get("probe", "a").expect("kept"), "1");
}

#[test]
fn bad_requests_are_answers() {
    let mut ledger = ledger();
    for (step, message) in [
        ("get ", "invalid state key: a key must not be empty"),
        ("put  v", "invalid state key: a key must not be empty"),
        ("delete ", "invalid state key: a key must not be empty"),
        ("event  x", "invalid event: an event's name must not be empty"),
        ("range \0 - 1", "invalid state key: a range of simple keys may not start with U+0000: \"\\0\""),
    ] {
        let steps = [step];
        let effects =
            run(ledger.submit(&ModelInvocation::new("probe", "run", &steps))).expect("not a failure of the state");
        assert_eq!((effects.response.status, effects.response.message.as_str()), (500, message), "{step:?}");
    }
}

#[test]
fn rich_queries_are_refused_until_the_state_has_them() {
    let ledger = ledger();
    let invocation = ModelInvocation::new::<&str>("probe", "run", &[]);
    let mut stub = ModelStub::new(&ledger, &invocation);
    let refused = run(stub.open_query("{}")).expect_err("unsupported");
    assert_eq!(refused.to_string(), "a rich query is not supported on this channel");
    assert_eq!(refused.kind(), base::ErrorKind::Rejected);
}
