//! Runs operations of the recorded program on a ledger in memory. What they record on a real one, and private data, is compared
//! with Fabric's peers by the replay itself.

use contract::ContractRegistry;
use contract::model::ModelLedger;

use super::*;

fn ledger() -> ModelLedger {
    let mut registry = ContractRegistry::empty();
    registry.register("kv", std::sync::Arc::new(RecordedProgram)).expect("a name");
    ModelLedger::new(registry)
}

/// The answer of a call, as text; its error begins with `!`.
fn answer(ledger: &mut ModelLedger, words: &[&str]) -> String {
    let (function, args) = words.split_first().expect("an operation");
    match ledger.call("kv", function, args) {
        Ok(payload) => String::from_utf8(payload.to_vec()).expect("text"),
        Err(message) => format!("!{message}"),
    }
}

#[test]
fn operations_do_what_their_table_says() {
    let mut ledger = ledger();
    for (words, expected) in [
        (&["put", "a", "1"][..], ""),
        (&["put", "b", "hex:0aff"], ""),
        (&["getm", "a", "b", "c"], "61=31\n62=0aff\n63=\n"),
        (&["rmw", "a"], "2"),
        (&["rmw", "x1"], "1"),
        (&["rmw", "b"], "!the value is not a decimal number"),
        (&["get", "a"], "2"),
        (&["del", "b"], ""),
        (&["get", "b"], ""),
        (&["many", "m", "3", "v"], ""),
        (&["batch", "n", "1", "w"], ""),
        (&["range", "m", "n"], "6d30303030=762d30\n6d30303031=762d31\n6d30303032=762d32\n"),
        (&["range1", "m", "o", "1"], "6d30303030=762d30\n"),
        (&["rangecount", "m", "o", "count"], "4"),
        (&["get", "count"], "4"),
        (&["rangedel", "m", "n"], ""),
        (&["range", "m", "n"], ""),
        (&["big", "large", "3"], ""),
        (&["get", "large"], "\u{0}\u{0}\u{1}"),
        (&["cput", "t", "x,y", "1"], ""),
        (&["cget", "t", "x,y"], "1"),
        (&["cquery", "t", "x"], "00740078007900=31\n"),
        (&["cdel", "t", "x,y"], ""),
        (&["cquery", "t", ""], ""),
        (&["do", r#"["put","a","9"]"#, r#"["get","a"]"#, r#"["noop"]"#], "\n2\n"),
        (&["do", r#"["put","z","9"]"#, r#"["fail","enough"]"#], "!enough"),
        (&["get", "z"], ""),
        (&["status", "201", "k"], "payload 201"),
        (&["get", "k"], "written with status 201"),
        (&["fail", "reason"], "!reason"),
        (&["put", "", "x"], "!key must not be an empty string"),
        (&["event", "", "x"], "!event name can not be empty string"),
        (&["nothing"], "!unknown function nothing"),
        (&["get"], "!parameter 0 is missing"),
        (&["do", "no array"], "!expected ident at line 1 column 2"),
    ] {
        assert_eq!(answer(&mut ledger, words), expected, "{words:?}");
    }
}

#[test]
fn a_called_contract_fails_its_caller() {
    let mut ledger = ledger();
    assert_eq!(answer(&mut ledger, &["call", "kv", "", "put", "a", "1"]), "");
    assert_eq!(answer(&mut ledger, &["call", "kv", "", "status", "299"]), "payload 299");
    assert_eq!(answer(&mut ledger, &["call", "kv", "", "status", "404"]), "!called: 404 message 404 payload 404");
    let unknown = answer(&mut ledger, &["call", "nobody", "", "get", "a"]);
    assert!(unknown.starts_with("!called: 500  INVOKE_CHAINCODE failed: transaction ID: "), "{unknown}");
}
