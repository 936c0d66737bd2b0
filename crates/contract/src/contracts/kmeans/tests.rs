use super::*;
use crate::model::{ModelInvocation, ModelLedger, run};
use crate::{ContractRegistry, StubError};

fn population(profiles: u64, dimensions: u64) -> ModelLedger {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    let args = ["0".to_owned(), profiles.to_string(), dimensions.to_string(), "5".to_owned()];
    ledger.call("kmeans", "load", &args).expect("within bounds");
    ledger
}

const FOOD: [&str; 8] = ["3", "4", "50", "8", "0.01", "60", "100", "42"];

#[test]
fn food_is_computed_and_written_down() {
    let mut ledger = population(100, 8);
    let effects = run(ledger.submit(&ModelInvocation::new("kmeans", "getFood", &FOOD))).expect("a healthy state");
    assert!(effects.response.is_endorsable(), "{}", effects.response.message);
    assert!((60..=61).contains(&effects.reads.len()), "sixty points, and the profile unless it is one of them");
    assert_eq!(effects.writes.keys().map(|(_, key)| key.as_str()).collect::<Vec<_>>(), ["food_3"]);
    let food: Food = serde_json::from_slice(&effects.response.payload).expect("JSON");
    assert!(food.cluster < 4 && food.clusters == 4 && (2..=50).contains(&food.epochs), "{food:?}");
    assert!(food.distance > 0.0 && food.error > 0.0);
    assert_eq!(ledger.call("kmeans", "readFood", &["3"]).expect("written"), effects.response.payload);
}

#[test]
fn food_is_the_same_bytes_for_every_endorser() {
    // Computed by a separate implementation of the same steps. Where this changes, endorsers of different versions disagree.
    let mut ledger = population(100, 8);
    let food = ledger.call("kmeans", "getFood", &FOOD).expect("within bounds");
    let expected = r#"{"cluster":3,"clusters":4,"distance":0.9993175656325145,"epochs":8,"error":39.76493269117291}"#;
    assert_eq!(food, expected);
}

#[test]
fn seed_decides_which_profiles_are_read() {
    let ledger = population(100, 2);
    let reads = |seed: &str| {
        let args = ["0", "2", "5", "2", "0.1", "10", "100", seed];
        run(ledger.execute(&ModelInvocation::new("kmeans", "getFood", &args))).expect("healthy").reads
    };
    assert_eq!(reads("1"), reads("1"));
    assert_ne!(reads("1"), reads("2"));
    // The whole population can be asked for.
    let args = ["0", "2", "5", "2", "0.1", "100", "100", "9"];
    let all = run(ledger.execute(&ModelInvocation::new("kmeans", "getFood", &args))).expect("healthy");
    assert_eq!(all.reads.len(), 100);
}

#[test]
fn profiles_are_written_without_being_read() {
    let mut ledger = ModelLedger::new(ContractRegistry::native());
    let forms: [&[&str]; 3] = [&["ann", "1,2.5,-3"], &["ann", "1", "2.5", "-3"], &["ann", "1, 2.5", " -3e0 "]];
    for args in forms {
        let effects = run(ledger.submit(&ModelInvocation::new("kmeans", "updateProfile", args))).expect("healthy");
        assert!(effects.response.is_endorsable() && effects.reads.is_empty(), "{}", effects.response.message);
        assert_eq!(ledger.call("kmeans", "readProfile", &["ann"]).expect("written"), "[1.0,2.5,-3.0]");
    }
}

#[test]
fn bad_calls_are_refused_with_a_reason() {
    let mut ledger = population(10, 2);
    let long = "x".repeat(ID_BYTES_MAX + 1);
    let many = vec!["1"; usize::try_from(DIMENSIONS_MAX).expect("small") + 1].join(",");
    let cases: [(&str, &[&str], &str); 24] = [
        ("updateProfile", &["ann"], "updateProfile takes at least 2 (id, values), 1 were given"),
        ("updateProfile", &["ann", ""], "argument values of updateProfile has no number"),
        ("updateProfile", &["ann", "1,,2"], "has no number"),
        ("updateProfile", &["ann", "1", "NaN"], "has no number"),
        ("updateProfile", &["ann", "1e13"], "has no number of at most 1e12"),
        ("updateProfile", &["ann", &many], "has more than 10000 numbers"),
        ("updateProfile", &["", "1"], "argument id of updateProfile has 1 to 64 bytes, not 0"),
        ("updateProfile", &[&long, "1"], "has 1 to 64 bytes, not 65"),
        ("getFood", &["1", "0", "1", "2", "0", "5", "10", "1"], "argument k of getFood must be from 1 to 256"),
        ("getFood", &["1", "257", "1", "2", "0", "5", "10", "1"], "argument k"),
        ("getFood", &["1", "2", "10001", "2", "0", "5", "10", "1"], "argument epochs"),
        ("getFood", &["1", "2", "1", "10001", "0", "5", "10", "1"], "argument dimensions"),
        ("getFood", &["1", "2", "1", "2", "-1", "5", "10", "1"], "argument threshold of getFood must not be negative"),
        ("getFood", &["1", "2", "1", "2", "inf", "5", "10", "1"], "argument threshold of getFood is not a number"),
        ("getFood", &["1", "2", "1", "2", "0", "0", "10", "1"], "argument points"),
        ("getFood", &["1", "2", "1", "2", "0", "10001", "99999", "1"], "argument points"),
        ("getFood", &["1", "256", "10000", "10000", "0", "2", "10", "1"], "points of getFood must be from 1 to 1,"),
        ("getFood", &["1", "2", "1", "2", "0", "11", "10", "1"], "argument population of getFood must be from 11"),
        ("getFood", &["1", "2", "1", "2", "0", "5", "10", "-1"], "argument seed"),
        ("getFood", &["99", "2", "1", "2", "0", "5", "10", "1"], "there is no profile of 99"),
        ("getFood", &["1", "2", "1", "3", "0", "5", "10", "1"], "the profile of 1 has 2 dimensions, not 3"),
        ("getFood", &["1", "2", "1", "2", "0", "20", "1000000", "1"], "there is no profile of"),
        ("load", &["0", "100000", "84", "1"], "argument dimensions of load must be from 1 to 83"),
        ("readFood", &["1"], "1 got no food yet"),
    ];
    for (function, args, reason) in cases {
        let message = ledger.call("kmeans", function, args).expect_err(reason);
        assert!(message.contains(reason), "{function} {args:?}: {message}");
    }
}

#[test]
fn greatest_population_can_be_sampled() {
    let request = TrainingRequest {
        id: "x",
        k: 1,
        epochs: 1,
        dimensions: 1,
        threshold: 0.0,
        points: 1_000,
        population: u64::MAX,
        seed: 3,
    };
    assert_eq!(request.sample().len(), 1_000);
    let all = TrainingRequest { points: 50, population: 50, ..request };
    assert_eq!(all.sample().into_iter().collect::<BTreeSet<_>>(), (0..50).collect());
}

#[test]
fn damaged_profiles_and_failing_state_are_told_apart() {
    let mut ledger = population(10, 2);
    let not_finite = [f64::NAN.to_le_bytes(), 1.0_f64.to_le_bytes()].concat();
    for damaged in [&b"short"[..], &not_finite] {
        ledger.set("kmeans", "profile_1", damaged.to_vec());
        let message = ledger.call("kmeans", "readProfile", &["1"]).expect_err("damaged");
        assert_eq!(message, "the record of profile 1 is damaged");
    }
    let busy = StubError::State { kind: base::ErrorKind::Retry, message: "behind".into() };
    ledger.fail_reads_from(3, busy.clone());
    let args = ["2", "2", "1", "2", "0", "5", "10", "1"];
    assert_eq!(run(ledger.execute(&ModelInvocation::new("kmeans", "getFood", &args))), Err(busy));
}

#[test]
fn a_prediction_names_the_nearest_centroid_and_writes_nothing() {
    let mut ledger = population(10, 8);
    let own = ledger.call("kmeans", "readProfile", &["6"]).expect("loaded").to_vec();
    let own = String::from_utf8(own).expect("JSON").trim_matches(['[', ']']).to_owned();
    let effects = run(ledger.submit(&ModelInvocation::new("kmeans", "predict", &["10", &own]))).expect("healthy");
    let prediction: Prediction = serde_json::from_slice(&effects.response.payload).expect("JSON");
    assert_eq!(prediction, Prediction { cluster: 6, distance: 0.0 });
    assert!(effects.writes.is_empty() && effects.reads.len() == 10);
    // Profile 6 is none of the first five.
    let other = ledger.call("kmeans", "predict", &["5", &own]).expect("within bounds");
    assert!(serde_json::from_slice::<Prediction>(&other).is_ok_and(|found| found.cluster < 5 && found.distance > 0.0));
    for (args, reason) in [
        (["11", &*own], "there is no profile of"),
        (["5", "1,2"], "has 8 dimensions, not 2"),
        (["0", own.as_str()], "k"),
        (["257", own.as_str()], "k"),
    ] {
        let error = ledger.call("kmeans", "predict", &args).expect_err("refused");
        assert!(error.contains(reason), "{error}");
    }
}
