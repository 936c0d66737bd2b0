//! A test of every compiled-in contract: no call can make it panic, whatever is in the call's arguments or in the
//! state.

use proptest::prelude::*;
use serde_json::Value;

use crate::model::{ModelInvocation, ModelLedger, run};
use crate::{Bytes, ContractRegistry};

const CONTRACTS: [&str; 4] = ["basic", "kmeans", "smallbank", "ycsb"];

fn functions(contract: &str) -> Vec<String> {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    let metadata = ledger.call::<&str>(contract, "org.hyperledger.fabric:GetMetadata", &[]).expect("always there");
    let metadata: Value = serde_json::from_slice(&metadata).expect("JSON");
    let own = metadata["contracts"].as_object().expect("an object").values();
    own.flat_map(|contract| contract["transactions"].as_array().expect("a list"))
        .map(|transaction| transaction["name"].as_str().expect("a name").to_owned())
        .filter(|name| name != "GetMetadata")
        .collect()
}

fn call() -> impl Strategy<Value = (&'static str, String)> {
    let declared: Vec<(&str, String)> = CONTRACTS
        .into_iter()
        .flat_map(|contract| functions(contract).into_iter().map(move |function| (contract, function)))
        .collect();
    prop_oneof![
        20 => prop::sample::select(declared),
        1 => (prop::sample::select(CONTRACTS.to_vec()), ".{0,12}"),
    ]
}

fn argument() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..12_u32).prop_map(|number| number.to_string().into_bytes()),
        2 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        2 => any::<u64>().prop_map(|number| number.to_string().into_bytes()),
        2 => any::<f64>().prop_map(|number| number.to_string().into_bytes()),
        2 => "[a-c]{0,2}".prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..20),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_sequence_of_calls_panics(
        calls in prop::collection::vec((call(), prop::collection::vec(argument(), 0..9)), 1..12),
        planted in prop::collection::vec(("(checking_|savings_|profile_|food_|)[0-9a-c]", argument()), 0..6),
    ) {
        let mut ledger = ModelLedger::new(ContractRegistry::native());
        for (key, value) in planted {
            for contract in CONTRACTS {
                ledger.set(contract, &key, value.clone());
            }
        }
        for ((contract, function), args) in calls {
            let effects = run(ledger.submit(&ModelInvocation::new(contract, &function, &args))).expect("a healthy state");
            let response = effects.response;
            prop_assert!([200, 500].contains(&response.status));
            prop_assert_eq!(response.is_endorsable(), response.message.is_empty());
            // An execution depends on nothing but the state and its arguments.
            let again = [(); 2].map(|()| run(ledger.execute(&ModelInvocation::new(contract, &function, &args))));
            prop_assert_eq!(&again[0], &again[1]);
        }
    }
}

#[test]
fn every_declared_function_is_handled() {
    for contract in CONTRACTS {
        for function in functions(contract) {
            // Whatever the number of arguments it takes, one of these fits.
            for count in 0..9 {
                let mut ledger = ModelLedger::new(ContractRegistry::native());
                let _ = ledger.call(contract, &function, &vec!["1"; count]);
            }
        }
    }
}

#[test]
fn function_name_may_be_missing_or_not_text() {
    let ledger = ModelLedger::new(ContractRegistry::native());
    for contract in CONTRACTS {
        for args in [vec![], vec![Bytes::new()], vec![Bytes::from_static(b"\xff")]] {
            let invocation = ModelInvocation { contract: contract.to_owned(), args, ..ModelInvocation::default() };
            let effects = run(ledger.execute(&invocation)).expect("a healthy state");
            assert_eq!(effects.response.status, 500, "{contract}");
        }
    }
}
