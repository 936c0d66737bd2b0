use std::time::Duration;

use super::*;
use crate::figure::RatioBound;
use crate::outcome::{CommittedTransaction, RejectedTransaction, TransactionStage};
use crate::report::pairs::{Baseline, ReportPairs};
use crate::tally::Tally;
use crate::workload::Workload as _;
use crate::workload::smallbank::SmallBank;

/// A report of a made-up run: 10 s, 40 valid transactions a second of 25 ms each.
pub(crate) fn report() -> BenchmarkReport {
    let mut tally = Tally::default();
    let millis = Duration::from_millis;
    for number in 0..400u64 {
        let committed =
            CommittedTransaction { code: VALID, block: number / 10, stages: [millis(5), millis(2), millis(18)] };
        tally.record(millis(number * 25), millis(25), Ok(committed));
    }
    let conflict = CommittedTransaction { code: 11, block: 3, stages: [millis(1); 3] };
    tally.record(millis(10), millis(9), Ok(conflict));
    for (stage, status) in
        [(TransactionStage::Endorse, REJECTED_BY_CONTRACT), (TransactionStage::Submit, "UNAVAILABLE")]
    {
        tally.record(millis(10), millis(9), Err(RejectedTransaction { stage, status, message: "no".to_owned() }));
    }
    let measurement = Measurement {
        tally,
        elapsed: Duration::from_secs(10),
        server_cpu_us: 400 * 616,
        chaincode_cpu_us: 0,
        client_cpu_us: 400 * 100,
        idle_us: 5_000_000,
        server_resident_bytes: 100 << 20,
        signatures_verified: Some(400 * 9 + 36),
        disk_bytes: (1_000_000, 2_000_000),
        load: Some(millis(1500)),
    };
    let settings = BenchmarkConfig {
        figure: "smallbank".to_owned(),
        organizations: 3,
        policy: "any".to_owned(),
        endorsers: 1,
        clients: 1,
        connections: 3,
        wait: "status".to_owned(),
        tls: true,
        seed: 1,
        warm_up_seconds: 2.0,
        workload: SmallBank::default().parameters(),
    };
    BenchmarkReport::new(settings, measurement, SignaturePrices { verify_us: 33.0, sign_us: 11.0 })
}

#[test]
fn json_has_what_a_script_needs() {
    let json = report().to_json();
    assert_eq!(json["figure"], "smallbank");
    assert_eq!(json["valid_tps"], 40.0);
    assert_eq!(json["ratios"]["server_cpu_over_crypto_floor"], 2.0);
    assert!(json["machine"].as_str().is_some_and(|machine| machine.contains("processors")));
    let [heddle, floor] = json["rows"].as_array().expect("rows").as_slice() else { panic!("two rows: {json}") };
    assert_eq!(heddle["codes"], json!({ "VALID": 400, "MVCC_READ_CONFLICT": 1 }));
    assert_eq!(heddle["errors"], json!({ "submit UNAVAILABLE": { "count": 1, "example": "no" } }));
    assert_eq!(heddle["latency_ms"]["max"], 25.0);
    assert_eq!(heddle["verifications_per_valid"], 9.09);
    assert_eq!(heddle["idle_processors"], 0.5);
    assert_eq!(heddle["per_second"][0], json!([40, 1, 2]));
    assert_eq!(floor["server_cpu_us_per_valid"], 308.0);
    assert_eq!(json["settings"]["workload"]["accounts"], 10_000);
}

#[test]
fn the_table_shows_every_kind_of_outcome() {
    let table = report().to_table();
    for part in [
        "smallbank: 3 organisations, policy any, 1 clients, 10.0 s",
        "40 a second",
        "1 MVCC_READ_CONFLICT",
        "refused by contract  1",
        "1 UNAVAILABLE at submit, the first: no",
        "2.00 times its signatures",
        "9 verifications of 33.0 µs, 1 signatures of 11.0 µs",
    ] {
        assert!(table.contains(part), "`{part}` is missing in\n{table}");
    }
}

#[test]
fn a_run_without_valid_transactions_still_has_a_report() {
    let mut report = report();
    report.measurement.tally = Tally::default();
    assert!(report.to_json()["ratios"]["server_cpu_over_crypto_floor"].is_number());
    assert!(report.to_table().contains("0 a second"));
}

#[test]
fn thousands_are_grouped() {
    for (number, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(grouped(number), text);
    }
}

#[test]
fn pairs_show_the_one_whose_ratio_is_the_median_and_every_ratio() {
    let costing = |us: u64| {
        let mut report = report();
        report.measurement.server_cpu_us = 400 * us;
        report
    };
    let pairs = vec![(costing(600), costing(500)), (costing(515), costing(500)), (costing(400), costing(500))];
    let (asked, pairs) = ReportPairs::new(pairs, Baseline::Monolithic(Some(RatioBound::AtMost(1.05))));
    assert_eq!(asked.server_cpu_us(), 515.0);
    let mut json = asked.to_json();
    pairs.add_to(&mut json);
    assert_eq!(json["ratios"]["server_cpu_over_monolithic"], 1.03);
    assert_eq!(json["pairs"], json!([1.2, 1.03, 0.8]));
    assert_eq!(json["bounds"]["server_cpu_over_monolithic"], "at most 1.05");
    assert_eq!(json["rows"][2]["name"], "monolithic");
    assert_eq!(json["rows"][2]["server_cpu_us_per_valid"], 500.0);
    assert!(pairs.to_table().contains("1.030, the median of 1.200, 1.030, 0.800; bound at most 1.05: kept"));
}

#[test]
fn pairs_beside_an_older_build_show_the_mean_ratios_with_their_intervals() {
    let taking = |seconds: u64, us: u64| {
        let mut report = report();
        report.measurement.elapsed = Duration::from_secs(seconds);
        report.measurement.server_cpu_us = 400 * us;
        report
    };
    let pairs =
        vec![(taking(10, 550), taking(10, 500)), (taking(8, 500), taking(10, 500)), (taking(10, 500), taking(8, 550))];
    let (asked, pairs) = ReportPairs::new(pairs, Baseline::Before(RatioBound::AtLeast(0.98)));
    assert_eq!(asked.server_cpu_us(), 550.0, "the pair whose throughput is the median");
    let mut json = asked.to_json();
    pairs.add_to(&mut json);
    assert_eq!(json["ratios"]["tps_over_before"], 1.0);
    assert_eq!(json["ratios"]["cpu_over_before"], 1.0);
    assert_eq!(json["pairs"][1], json!({ "tps_over_before": 1.25, "cpu_over_before": 1.0, "p50_over_before": 1.0 }));
    let low = json["intervals"]["tps_over_before"][0].as_f64().expect("a number");
    assert!((0.5..0.6).contains(&low), "ln 1.25 × 4.303 / √3 below one: {low}");
    assert_eq!(json["bounds"]["tps_over_before"], "at least 0.98");
    assert_eq!(json["rows"][2]["name"], "before");
    let table = pairs.to_table();
    assert!(table.contains("tps_over_before    1.000, 95 % interval 0.5"), "{table}");
    assert!(table.contains("of 3 pairs; bound at least 0.98: kept"), "{table}");
}
