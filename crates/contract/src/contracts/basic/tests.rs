use super::*;
use crate::model::{ModelInvocation, ModelLedger, run};
use crate::{ContractRegistry, StubError};

fn ledger() -> ModelLedger {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    ledger.call::<&str>("basic", "InitLedger", &[]).expect("no assets yet");
    ledger
}

fn text(payload: Bytes) -> String {
    String::from_utf8(payload.to_vec()).expect("text")
}

const NEW_ASSET: [&str; 5] = ["asset13", "yellow", "5", "Tom", "1300"];
const NEW_ASSET_JSON: &str = r#"{"AppraisedValue":1300,"Color":"yellow","ID":"asset13","Owner":"Tom","Size":5}"#;

#[test]
fn sample_application_runs_through() {
    // The calls of Fabric's sample gateway applications, in their order.
    let mut ledger = ledger();
    let all = text(ledger.call::<&str>("basic", "GetAllAssets", &[]).expect("readable"));
    let all: Vec<Asset> = serde_json::from_str(&all).expect("a JSON array");
    assert_eq!(all.len(), 6);
    assert_eq!(all[2].owner, "Jin Soo");

    ledger.call("basic", "CreateAsset", &NEW_ASSET).expect("a new id");
    let old_owner = ledger.call("basic", "TransferAsset", &["asset13", "Mark"]).expect("exists");
    assert_eq!(text(old_owner), "Tom");
    ledger.call("basic", "UpdateAsset", &["asset1", "blue", "5", "Tomoko", "400"]).expect("exists");
    let asset = text(ledger.call("basic", "ReadAsset", &["asset1"]).expect("exists"));
    assert_eq!(asset, r#"{"AppraisedValue":400,"Color":"blue","ID":"asset1","Owner":"Tomoko","Size":5}"#);

    let refused = ledger.call("basic", "UpdateAsset", &["asset70", "blue", "5", "Tomoko", "300"]);
    assert_eq!(refused, Err("the asset asset70 does not exist".to_owned()));
}

#[test]
fn asset_json_has_the_samples_fields_in_alphabetical_order() {
    let mut ledger = ledger();
    ledger.call("basic", "CreateAsset", &NEW_ASSET).expect("a new id");
    assert_eq!(text(ledger.call("basic", "ReadAsset", &["asset13"]).expect("exists")), NEW_ASSET_JSON);
    assert_eq!(ledger.get("basic", "asset13").expect("stored"), NEW_ASSET_JSON);
}

#[test]
fn each_change_of_one_asset_sets_its_event() {
    let mut ledger = ledger();
    let transferred = NEW_ASSET_JSON.replace("Tom", "Saptha").replace("1300", "200");
    let cases: [(&str, &[&str], Option<String>); 7] = [
        ("CreateAsset", &NEW_ASSET, Some(NEW_ASSET_JSON.to_owned())),
        ("UpdateAsset", &["asset13", "yellow", "5", "Tom", "200"], Some(NEW_ASSET_JSON.replace("1300", "200"))),
        ("TransferAsset", &["asset13", "Saptha"], Some(transferred.clone())),
        ("ReadAsset", &["asset13"], None),
        ("DeleteAsset", &["asset13"], Some(transferred)),
        ("GetAllAssets", &[], None),
        ("InitLedger", &[], None),
    ];
    for (function, args, payload) in cases {
        let effects = run(ledger.submit(&ModelInvocation::new("basic", function, args))).expect("a healthy state");
        assert!(effects.response.is_endorsable(), "{function}: {}", effects.response.message);
        let event = payload.map(|payload| (function.to_owned(), Bytes::from(payload)));
        assert_eq!(effects.event, event, "{function}");
    }
}

#[test]
fn deleted_asset_is_gone() {
    let mut ledger = ledger();
    assert_eq!(text(ledger.call("basic", "AssetExists", &["asset2"]).expect("readable")), "true");
    ledger.call("basic", "DeleteAsset", &["asset2"]).expect("exists");
    assert_eq!(text(ledger.call("basic", "AssetExists", &["asset2"]).expect("readable")), "false");
    for function in ["ReadAsset", "DeleteAsset"] {
        let refused = ledger.call("basic", function, &["asset2"]);
        assert_eq!(refused, Err("the asset asset2 does not exist".to_owned()), "{function}");
    }
    let refused = ledger.call("basic", "TransferAsset", &["asset2", "Mark"]);
    assert_eq!(refused, Err("the asset asset2 does not exist".to_owned()));
}

#[test]
fn history_of_an_asset_has_every_change_newest_first() {
    let mut ledger = ledger();
    let mut submit = |tx_id: &str, seconds, function: &str, args: &[&str]| {
        let timestamp = crate::Timestamp { seconds, nanos: if seconds == 86_400 { 120_000_000 } else { 0 } };
        let invocation =
            ModelInvocation { tx_id: tx_id.into(), timestamp, ..ModelInvocation::new("basic", function, args) };
        let effects = run(ledger.submit(&invocation)).expect("a healthy state");
        assert!(effects.response.is_endorsable(), "{function}: {}", effects.response.message);
        effects
    };
    assert_eq!(text(submit("q", 0, "GetAssetHistory", &["asset13"]).response.payload), "[]");
    submit("one", 0, "CreateAsset", &NEW_ASSET);
    submit("two", 86_400, "TransferAsset", &["asset13", "Mark"]);
    submit("three", 1_709_210_096, "DeleteAsset", &["asset13"]);
    let effects = submit("q", 0, "GetAssetHistory", &["asset13"]);
    let gone = r#"{"record":{"AppraisedValue":0,"Color":"","ID":"asset13","Owner":"","Size":0},"txId":"three","timestamp":"2024-02-29T12:34:56Z","isDelete":true}"#;
    let mark = NEW_ASSET_JSON.replace("Tom", "Mark");
    let rest = [(mark.as_str(), "two", "1970-01-02T00:00:00.12Z"), (NEW_ASSET_JSON, "one", "1970-01-01T00:00:00Z")];
    let rest = rest.map(|(record, tx, time)| {
        format!(r#"{{"record":{record},"txId":"{tx}","timestamp":"{time}","isDelete":false}}"#)
    });
    assert_eq!(text(effects.response.payload), format!("[{gone},{}]", rest.join(",")));
    assert!(effects.reads.is_empty() && effects.ranges.is_empty(), "a history is no part of the read set");
}

#[test]
fn asset_is_created_once() {
    let mut ledger = ledger();
    ledger.call("basic", "CreateAsset", &NEW_ASSET).expect("a new id");
    let refused = ledger.call("basic", "CreateAsset", &NEW_ASSET);
    assert_eq!(refused, Err("the asset asset13 already exists".to_owned()));
}

#[test]
fn all_assets_of_an_empty_ledger_are_an_empty_array() {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    assert_eq!(text(ledger.call::<&str>("basic", "GetAllAssets", &[]).expect("readable")), "[]");
}

#[test]
fn all_assets_span_many_pages() {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    for number in 0..crate::PAGE_ENTRIES_MAX * 2 + 1 {
        let id = format!("asset{number:05}");
        ledger.call("basic", "CreateAsset", &[id.as_str(), "red", "1", "Ann", "-1"]).expect("a new id");
    }
    let all = ledger.call::<&str>("basic", "GetAllAssets", &[]).expect("readable");
    let all: Vec<Asset> = serde_json::from_slice(&all).expect("a JSON array");
    assert_eq!(all.len(), crate::PAGE_ENTRIES_MAX * 2 + 1);
    assert!(all.is_sorted_by_key(|asset| asset.id.clone()));
}

#[test]
fn bad_calls_are_refused_with_a_reason() {
    let mut ledger = ledger();
    let cases: [(&str, &[&str], &str); 8] = [
        ("CreateAsset", &["a", "red", "5", "Ann"], "5 (id, color, size, owner, appraisedValue), 4 were given"),
        ("CreateAsset", &["a", "red", "five", "Ann", "1"], "argument size of CreateAsset is not an integer"),
        ("CreateAsset", &["a", "red", "5", "Ann", "9223372036854775808"], "argument appraisedValue of CreateAsset"),
        ("CreateAsset", &["", "red", "5", "Ann", "1"], "a key must not be empty"),
        ("CreateAsset", &["\0a\0", "red", "5", "Ann", "1"], "must not start with U+0000"),
        ("ReadAsset", &["asset1", "asset2"], "ReadAsset takes 1 (id), 2 were given"),
        ("Mint", &[], "contract SmartContract has no function named Mint"),
        ("other:ReadAsset", &["asset1"], "there is no contract named other"),
    ];
    for (function, args, reason) in cases {
        let message = ledger.call("basic", function, args).expect_err(function);
        assert!(message.contains(reason), "{function}: {message}");
    }
    let before: Vec<_> = ledger.rows("basic").map(|(key, _)| key.to_owned()).collect();
    assert_eq!(before.len(), 6, "refused calls leave no trace");
}

#[test]
fn contract_prefix_is_accepted() {
    let mut ledger = ledger();
    for prefix in ["basic", "SmartContract"] {
        ledger.call("basic", &format!("{prefix}:ReadAsset"), &["asset1"]).expect("exists");
    }
    let metadata = ledger.call::<&str>("basic", "org.hyperledger.fabric:GetMetadata", &[]).expect("always there");
    let metadata: serde_json::Value = serde_json::from_slice(&metadata).expect("JSON");
    assert_eq!(metadata["contracts"]["SmartContract"]["transactions"].as_array().expect("a list").len(), 9);
}

#[test]
fn failing_state_is_no_answer_of_the_contract() {
    let mut ledger = ledger();
    let fenced = StubError::State { kind: base::ErrorKind::Fenced, message: "a newer primary".into() };
    ledger.fail_reads_from(0, fenced.clone());
    for (function, args) in [("ReadAsset", &["asset1"][..]), ("GetAllAssets", &[]), ("CreateAsset", &NEW_ASSET)] {
        let failed = run(ledger.execute(&ModelInvocation::new("basic", function, args)));
        assert_eq!(failed, Err(fenced.clone()), "{function}");
    }
    ledger.heal();
    ledger.call("basic", "ReadAsset", &["asset1"]).expect("healthy again");
}

#[test]
fn foreign_state_is_an_error_not_a_panic() {
    let mut ledger = ledger();
    ledger.set("basic", "asset1", "not JSON");
    let message = ledger.call("basic", "TransferAsset", &["asset1", "Ann"]).expect_err("no asset");
    assert!(message.contains("the state of asset asset1 is no asset"), "{message}");
}
