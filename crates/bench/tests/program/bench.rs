//! Short benchmarks of a real network from the command line. No test asserts a speed.

use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::{heddle, program, run, text};
use serde_json::Value;

#[test]
fn a_measurement_reports_valid_transactions_and_its_ratio_to_the_crypto_floor() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, plot) = (folder.path().join("r.json"), folder.path().join("r.svg"));
    let output = run(&[
        "bench",
        "smallbank",
        "--seconds",
        "2",
        "--warm-up",
        "0.5",
        "--clients",
        "20",
        "--accounts",
        "500",
        "--json",
        &json.display().to_string(),
        "--plot",
        &plot.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(report["figure"], "smallbank");
    assert!(report["valid_tps"].as_f64().is_some_and(|tps| tps > 1.0), "{report:#}");
    assert!(report["ratios"]["server_cpu_over_crypto_floor"].as_f64().is_some_and(|ratio| ratio > 0.5), "{report:#}");
    assert_eq!(report["rows"][0]["errors"], serde_json::json!({}), "{report:#}");
    assert_eq!(report["rows"][1]["verifications"], 9);
    assert!(text(&output).contains("crypto floor"));
    assert!(std::fs::read_to_string(&plot).expect("it was drawn").contains("<svg"));
}

#[test]
fn a_measurement_beside_an_older_build_has_both_ratios_with_their_intervals() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("r.json").display().to_string();
    // The same program stands in for the older one.
    let older = program("heddle", "heddle").display().to_string();
    let mut line = vec!["bench", "smallbank", "--before", &older, "--pairs", "2", "--orgs", "1"];
    line.extend(["--seconds", "1", "--warm-up", "0", "--clients", "10", "--accounts", "100", "--json", &json]);
    let output = run(&line);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
    for ratio in ["tps_over_before", "cpu_over_before"] {
        let value = report["ratios"][ratio].as_f64().expect("a ratio");
        let ends = report["intervals"][ratio].as_array().expect("an interval");
        let [low, high] = [&ends[0], &ends[1]].map(|end| end.as_f64().expect("a number"));
        assert!(0.0 < value && low <= value && value <= high, "{report:#}");
    }
    assert_eq!(report["rows"][2]["name"], "before");
    assert_eq!(report["pairs"].as_array().map(Vec::len), Some(2));
    assert!(text(&output).contains("tps_over_before"), "{}", text(&output));
}

#[test]
fn attacks_run_beside_a_load_and_say_what_they_did() {
    program("attack", "heddle-attack");
    let (figure, plot) =
        quick("under-attack", &["tps_over_calm", "p99_over_calm", "memory_over_budget_mib"], &["--clients", "10"]);
    assert!(plot.contains("<svg"));
    let rows = figure["rows"].as_array().expect("rows");
    let attacks: Vec<_> = rows.iter().filter(|row| row["attack"].is_string()).collect();
    assert!(attacks.len() > 30, "{figure:#}");
    let began = attacks.iter().filter(|row| row["reached_per_second"].as_f64().is_some_and(|pace| pace > 0.0));
    // Some attacks get no processor time beside the others, above all on a busy machine; a full run checks for that.
    assert!(began.count() > 10, "{figure:#}");
    assert_eq!(rows.iter().filter(|row| row["window"].is_string()).count(), 2);
}

#[test]
fn a_measured_key_value_store_is_reported_like_other_figures() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("kv.json");
    let output = run(&[
        "bench",
        "kv",
        "--seconds",
        "0.2",
        "--keys",
        "500",
        "--clients",
        "8",
        "--json",
        &json.display().to_string(),
    ]);
    assert!(output.status.success(), "{}", text(&output));
    let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(report["figure"], "kv");
    let rows = report["rows"].as_array().expect("a list");
    let loads: Vec<_> = rows.iter().filter_map(|row| row["load"].as_str()).collect();
    assert_eq!(loads, ["first puts", "puts", "gets", "half and half"], "{report:#}");
    let works = |row: &Value| row["ops_per_second"].as_f64().is_some_and(|rate| rate > 0.0);
    assert!(rows.iter().all(works), "{report:#}");
    assert!(std::fs::read_to_string(json.with_extension("svg")).expect("it was drawn").contains("<svg"));
}

#[test]
fn every_workload_runs_and_commits_through_events_and_with_several_endorsers() {
    for arguments in [
        &["ycsb", "--records", "200", "--mix", "read=40,update=30,rmw=10,scan=10,insert=10", "--wait", "events"][..],
        &["kmeans", "--profiles", "100", "--points", "20", "--k", "4", "--policy", "majority"],
        &["smallbank", "--accounts", "100", "--zipf", "0.9", "--orgs", "1", "--no-tls"],
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let json = folder.path().join("r.json").display().to_string();
        let mut line = vec!["bench"];
        line.extend(arguments);
        line.extend(["--seconds", "1", "--warm-up", "0", "--clients", "10", "--json", &json]);
        let output = run(&line);
        assert!(output.status.success(), "{line:?}: {}", text(&output));
        let report: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
        assert!(report["rows"][0]["valid"].as_u64().is_some_and(|valid| valid > 0), "{line:?}: {report:#}");
        let errors = report["rows"][0]["errors"].as_object().expect("an object");
        // Peers at different heights may read different versions, which clients of Fabric have to expect.
        let expected = |error: &Value| error["example"].as_str().is_some_and(|text| text.contains("do not match"));
        assert!(errors.values().all(expected), "{line:?}: {report:#}");
    }
}

/// Runs one of FlexChain's figures with `--quick`; its ratios have no lower bound.
fn quick_figure(name: &str, ratios: &[&str], more: &[&str]) -> Value {
    let (figure, plot) = quick(name, ratios, more);
    let ratios = figure["ratios"].as_object().expect("ratios");
    assert!(ratios.values().all(|ratio| ratio.as_f64().is_some_and(|ratio| ratio > 0.0)), "{figure:#}");
    assert!(plot.contains("FlexChain"));
    figure
}

/// Runs one of Sift's figures in its quick form.
fn quick_sift(name: &str, ratios: &[&str], more: &[&str]) -> Value {
    let (figure, plot) = quick(name, ratios, more);
    assert!(plot.contains("Sift"));
    figure
}

/// Runs one of TELEPORT's figures in its quick form.
fn quick_teleport(name: &str, ratios: &[&str]) -> Value {
    let (figure, _) = quick(name, ratios, &[]);
    assert_eq!(figure["settings"]["link_latency_us"], 1.2, "{figure:#}");
    assert_eq!(figure["bounds"].as_object().map(serde_json::Map::len), Some(ratios.len()), "{figure:#}");
    assert!(figure["ratios"].as_object().is_some_and(|ratios| ratios.values().all(|ratio| ratio.as_f64() > Some(0.0))));
    figure
}

/// Runs a figure with `--quick`; expects its ratios, at least one row, and its plot.
fn quick(name: &str, ratios: &[&str], more: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let json = folder.path().join("figure.json");
    let path = json.display().to_string();
    let mut line = vec!["bench", name, "--quick", "--json", &path];
    line.extend(more);
    let output = run(&line);
    assert!(output.status.success(), "{line:?}: {}", text(&output));
    let figure: Value = serde_json::from_slice(&std::fs::read(&json).expect("it was written")).expect("JSON");
    assert_eq!(figure["figure"], name);
    assert!(figure["rows"].as_array().is_some_and(|rows| !rows.is_empty()), "{figure:#}");
    let found = figure["ratios"].as_object().expect("ratios");
    let names: std::collections::BTreeSet<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(names, ratios.iter().copied().collect(), "{line:?}");
    let is_sane = |ratio: &Value| ratio.as_f64().is_some_and(f64::is_finite);
    assert!(found.values().all(is_sane), "{figure:#}");
    let plot = std::fs::read_to_string(folder.path().join("figure.svg")).expect("it was drawn beside the JSON");
    assert!(plot.contains("<svg"));
    (figure, plot)
}

#[test]
fn figure_1_says_what_each_role_takes() {
    let ratios = ["prediction_over_store_cpu_a_transaction", "store_over_prediction_memory"];
    let figure = quick_figure("flexchain-fig1", &ratios, &[]);
    for (form, role) in [("disaggregated", "memory"), ("disaggregated", "compute"), ("monolithic", "all")] {
        let is_row = |row: &&Value| row["form"] == form && row["role"] == role;
        let rows: Vec<&Value> = figure["rows"].as_array().expect("rows").iter().filter(is_row).collect();
        assert_eq!(rows.len(), 2, "one for each load: {figure:#}");
        assert!(rows.iter().all(|row| row["memory_mib"].as_f64().is_some_and(|memory| memory > 0.0)), "{rows:?}");
    }
}

#[test]
fn figure_5a_measures_each_size_of_a_peer() {
    let ratios = ["scaling_over_linear_min", "parallel_over_sequential", "parallel_over_sequential_high"];
    let figure = quick_figure("flexchain-fig5a", &ratios, &[]);
    let rows = figure["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "two quotas, two nodes, parallel validation: {figure:#}");
    assert!(rows.iter().all(|row| row["tps"].as_f64().is_some_and(|tps| tps > 0.0)), "{rows:?}");
}

#[test]
fn figure_7d_sets_both_forms_and_both_validations_beside_each_other() {
    let ratios =
        ["d_sequential", "d_parallel", "parallel_over_sequential_disaggregated", "parallel_over_sequential_monolithic"];
    let figure = quick_figure("flexchain-fig7d", &ratios, &[]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(4), "{figure:#}");
}

#[test]
fn figure_5b_sets_half_of_the_memory_beside_all_of_it() {
    let figure = quick_figure("flexchain-fig5b", &["half_over_full", "half_over_full_state"], &[]);
    // Reads that memory cannot answer must have come from storage, and were delayed there.
    let rows = figure["rows"].as_array().expect("rows");
    let least = rows.iter().find(|row| row["memory_percent"] == 10.0).expect("it was measured");
    assert!(least["storage_reads_percent"].as_f64().is_some_and(|percent| percent > 10.0), "{least:#}");
    assert!(least["storage_held_us"].as_f64().is_some_and(|held| held >= 100.0), "{least:#}");
}

#[test]
fn figure_7a_sets_three_sizes_of_memory_beside_each_other() {
    let figure = quick_figure("flexchain-fig7a", &["a_min"], &[]);
    let rows = figure["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 3, "{figure:#}");
    let is_limited = figure["settings"]["memory_limits"] != "none";
    for row in rows {
        assert!(row["tps"].as_f64().is_some_and(|tps| tps > 0.0), "{row}");
        assert!(!is_limited || row["compute_limit_mib"].as_f64().is_some_and(|limit| limit < 1_000.0), "{row}");
    }
    let notes = figure["notes"].as_array().expect("notes");
    let says_none = notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("NO LIMITS OF MEMORY")));
    assert_eq!(is_limited, !says_none, "{figure:#}");
}

#[test]
fn a_part_of_figure_7_is_measured_alone() {
    let figure = quick_figure("flexchain-fig7", &["c_min"], &["--only", "c"]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(2 * 2), "{figure:#}");
}

#[test]
fn figure_7_sets_both_forms_of_the_state_beside_each_other() {
    let parts: [(&str, &[&str]); 3] = [
        ("network", &["cpu_over_monolithic_max"]),
        ("state", &["state_over_monolithic_min", "state_over_monolithic_shaped_min"]),
        ("memtable", &["large_memtable_over_monolithic_min", "large_memtable_equal_caches_min"]),
    ];
    for (part, ratios) in parts {
        let figure = quick_figure("flexchain-fig7", ratios, &["--only", part]);
        let rows = figure["rows"].as_array().expect("rows");
        for load in ["ycsb-a", "ycsb-b", "smallbank 5 %", "smallbank 50 %", "smallbank 95 %"] {
            let of = |row: &&Value| row["load"] == load;
            let count = rows.iter().filter(of).count();
            assert!(part == "memtable" || count >= 2 && count % 2 == 0, "{part}, {load}: {figure:#}");
        }
    }
}

#[test]
fn the_compute_pool_is_measured_with_one_node_and_with_three() {
    let ratios = ["three_nodes_over_one", "three_nodes_over_one_smallbank", "invalidation_64_over_8"];
    let (figure, _) = quick("compute-pool", &ratios, &["--clients", "8"]);
    let rows = figure["rows"].as_array().expect("rows");
    let followers: Vec<&str> = rows.iter().filter_map(|row| row["followers"].as_str()).collect();
    assert_eq!(followers, ["0", "8", "63"]);
    assert!(rows.iter().filter(|row| row["load"].is_string()).all(|row| row["valid_tps"].as_f64() > Some(0.0)));
}

#[test]
fn contention_is_measured_with_the_options_and_without() {
    let ratios = [
        "valid_tps_over_plain_at_zipf_1_2",
        "valid_tps_over_plain_ycsb_a",
        "valid_tps_over_plain_ycsb_f",
        "cost_uniform",
    ];
    let (figure, _) = quick("contention", &ratios, &["--clients", "8", "--records", "200"]);
    let rows = figure["rows"].as_array().expect("rows");
    let offered: Vec<_> = rows.iter().filter(|row| !row["valid_percent"].is_null()).collect();
    assert_eq!(offered.len(), 18, "three loads, three skews, two networks");
    for row in offered {
        let percent = |name: &str| row[name].as_f64().expect("a number");
        let all = ["valid_percent", "invalid_percent", "aborted_percent", "failed_percent"].map(percent);
        assert!((all.iter().sum::<f64>() - 100.0).abs() < 0.1, "{row}");
        assert!(row["network"] != "plain" || all[2] == 0.0, "{row}");
    }
}

#[test]
fn figure_8a_measures_three_settings_of_each_load() {
    let ratios = ["half_memory_over_full", "half_memory_over_full_smallbank"];
    let figure = quick_figure("flexchain-fig8a", &ratios, &[]);
    let rows = figure["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 3, "{figure:#}");
    assert!(rows.iter().all(|row| row["tps"].as_f64().is_some_and(|tps| tps > 0.0)), "{figure:#}");
}

#[test]
fn figure_8a_accounts_for_every_read_of_the_state() {
    let ratios = ["data_hits_over_monolithic_min", "uniform_storage_reads_over_absent_max"];
    let figure = quick_figure("flexchain-fig8a", &ratios, &["--only", "state"]);
    for row in figure["rows"].as_array().expect("rows") {
        let percent = |name: &str| row[name].as_f64().expect("a number");
        let parts = ["data_hit_percent", "remote_percent", "storage_percent", "delta_percent"];
        let sum: f64 = parts.into_iter().map(percent).sum();
        // A read that starts again, because its lease ended, is counted twice.
        assert!(sum >= 99.0, "{row:#}");
    }
}

#[test]
fn figure_8b_limits_the_memory_nodes_processor_in_either_way() {
    let ratios = ["throttled_over_unlimited", "two_sided_throttled_over_unlimited"];
    let figure = quick_figure("flexchain-fig8b", &ratios, &["--limit", "pauses"]);
    assert_eq!(figure["settings"]["limiter"], "pauses (SIGSTOP and SIGCONT)");
    // With a cgroup, if the machine allows one.
    let figure = quick_figure("flexchain-fig8b", &ratios, &[]);
    assert!(figure["settings"]["limiter"].as_str().is_some_and(|name| !name.is_empty()), "{figure:#}");
}

#[test]
fn far_memory_is_measured_over_both_providers() {
    let ratios = ["fault_over_floor", "stream_over_provider", "cores_per_100k_faults"];
    for provider in ["shm", "tcp"] {
        let (figure, _) = quick("farmem", &ratios, &["--provider", provider]);
        // A floor, a fault, a stream and processor time in two ways each; a read and a stream of the provider.
        assert_eq!(figure["rows"].as_array().map(Vec::len), Some(10), "{figure:#}");
        assert_eq!(figure["bounds"].as_object().map(serde_json::Map::len), Some(3), "{figure:#}");
    }
}

#[test]
fn teleports_figure_6_sets_five_ways_beside_each_other() {
    let figure = quick_teleport("teleport-fig6", &["coherent_over_local", "coherent_over_thread"]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(5), "{figure:#}");
    for row in figure["rows"].as_array().expect("rows") {
        assert!(row["seconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{row:#}");
    }
}

#[test]
fn teleports_figure_20_divides_a_call_into_its_parts() {
    let ratios = ["on_demand_over_eager", "call_us", "call_asleep_us", "typical_call_us"];
    let figure = quick_teleport("teleport-fig20", &ratios);
    let rows = figure["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 5 * 2 + 3, "{figure:#}");
    for row in rows {
        // The link takes 1.2 us, and the clock's rate is off by less than a thousandth.
        let [request, response] = ["request_us", "response_us"].map(|part| row[part].as_f64().expect("a number"));
        assert!(request > 1.19 && response > 1.19, "{row:#}");
        assert!(row["online_sync_us"].as_f64() <= row["run_us"].as_f64(), "{row:#}");
    }
}

#[test]
fn teleports_figures_21_and_22_measure_each_way_at_each_contention() {
    let ratios = [
        "contended_access_over_faults",
        "weak_flat",
        "coherent_over_off_unshared",
        "message_over_raw",
        "default_over_weak_at_1_percent",
    ];
    for name in ["teleport-fig21", "teleport-fig22"] {
        let (figure, _) = quick(name, &ratios, &[]);
        assert_eq!(figure["bounds"].as_object().map(serde_json::Map::len), Some(ratios.len() - 1), "{figure:#}");
        let rows = figure["rows"].as_array().expect("rows");
        // Ways, times of parts, and the lowest and highest of each ratio.
        assert_eq!(rows.len(), 3 * 5 + 2 + 5 + ratios.len(), "{figure:#}");
        let of = |way: &str| rows.iter().find(|row| row["way"] == way).expect("a row of that name");
        // The link takes 1.2 us, and the clock's rate is off by less than a thousandth.
        for message in ["one message", "one message of the link alone"] {
            assert!(of(message)["us"].as_f64() > Some(1.19), "{figure:#}");
        }
        assert!(of("local")["messages"] == 0.0 && of("coherent")["messages"].as_f64() > Some(0.0), "{figure:#}");
    }
}

#[test]
fn sifts_figure_5_sets_both_engines_beside_each_other() {
    let ratios = [
        "write_over_raft",
        "read_over_raft",
        "coded_write_over_plain",
        "mixed_over_raft",
        "read_heavy_over_raft",
        "coded_write_over_raft",
        "write_cpu_over_raft",
    ];
    let figure = quick_sift("sift-fig5", &ratios, &[]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(3 * 4), "{figure:#}");
}

#[test]
fn sifts_figure_6_sets_both_engines_beside_each_other() {
    let figure = quick_sift("sift-fig6", &["write_p50_over_raft", "read_p50_over_raft"], &[]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(3 * 2 * 2), "{figure:#}");
}

#[test]
fn sifts_figure_7_limits_every_node() {
    let ratios = ["sift_over_raft_f1", "coded_over_raft_f1", "sift_over_raft_f2", "coded_over_raft_f2"];
    let figure = quick_sift("sift-fig7", &ratios, &["--limit", "pauses"]);
    assert_eq!(figure["rows"].as_array().map(Vec::len), Some(3 * 2 * 2), "{figure:#}");
    assert_eq!(figure["settings"]["limiter"], "pauses (SIGSTOP and SIGCONT)");
}

#[test]
fn sifts_table_2_prices_what_figure_7_finds() {
    let ratios = ["saving_aws_f1", "saving_gcp_f1", "saving_aws_f2", "saving_gcp_f2"];
    let figure = quick_sift("sift-table2", &ratios, &[]);
    let rows = figure["rows"].as_array().expect("rows");
    let cores = |machine: &str| rows.iter().find(|row| row["machine"] == machine).and_then(|row| row["cores"].as_f64());
    assert_eq!((cores("raft node"), cores("sift memory node")), (Some(8.0), Some(1.0)), "{figure:#}");
    assert!(cores("sift processor").is_some_and(|cores| cores >= 1.0), "{figure:#}");
}

#[test]
fn sifts_figures_9_and_10_price_groups_that_survive_one_loss_and_two() {
    quick_sift("sift-fig9", &["saving_aws_f1", "saving_gcp_f1"], &[]);
    quick_sift("sift-fig10", &["saving_aws_f2", "saving_gcp_f2"], &[]);
}

#[test]
fn sifts_figure_8_says_how_many_backups_are_enough() {
    let ratios = [
        "extra_recovery_s_1000_groups_6_backups",
        "extra_recovery_s_3000_groups_20_backups",
        "backups_for_1000_groups",
        "backups_for_3000_groups",
        "extra_recovery_s_1000_groups_6_backups_racks",
        "extra_recovery_s_3000_groups_20_backups_racks",
        "backups_for_1000_groups_racks",
        "backups_for_3000_groups_racks",
    ];
    let figure = quick_sift("sift-fig8", &ratios, &[]);
    let rows = figure["rows"].as_array().expect("rows");
    // Without any backup every group waits for a new machine.
    let none = rows.iter().filter(|row| row["backups"] == 0.0);
    assert!(none.clone().count() == 4 && none.clone().all(|row| row["extra_recovery_s"] == 100.0), "{figure:#}");
}

#[test]
fn sifts_figure_11_has_a_memory_node_back_that_was_killed() {
    figure_11(&[]);
}

#[test]
fn sifts_figure_11_has_a_coded_memory_node_back_that_was_killed() {
    figure_11(&["--coded"]);
}

fn figure_11(more: &[&str]) {
    let ratios = [
        "lowest_over_before",
        "lowest_reads_over_before",
        "lowest_calm_over_before",
        "mean_over_before",
        "longest_without_reads_ms",
        "readmitted_s",
    ];
    let figure = quick_sift("sift-fig11", &ratios, more);
    assert!(figure["ratios"]["readmitted_s"].as_f64().is_some_and(|seconds| seconds > 0.5), "{figure:#}");
    assert!(figure["ratios"]["mean_over_before"].as_f64().is_some_and(|ratio| ratio > 0.0), "{figure:#}");
}

#[test]
fn sifts_figure_12_has_another_processor_serve_after_each_kill() {
    let ratios = [
        "detected_ms",
        "serves_ms",
        "half_recovered_ms",
        "recovered_ms",
        "half_recovered_ms_max",
        "recovered_ms_max",
        "log_full_min",
        "group_log_full_min",
    ];
    let figure = quick_sift("sift-fig12", &ratios, &[]);
    let kills: Vec<&Value> =
        figure["rows"].as_array().expect("rows").iter().filter(|row| !row["serves_ms"].is_null()).collect();
    assert_eq!(kills.len(), 2, "{figure:#}");
    for kill in kills {
        let ms = |name: &str| kill[name].as_f64().expect("a number");
        assert!(ms("detected_ms") <= ms("elected_ms") && ms("elected_ms") <= ms("taken_over_ms"), "{kill:#}");
        assert!(ms("taken_over_ms") <= ms("serves_ms") && ms("ops_per_second_after") > 0.0, "{kill:#}");
        assert!(ms("entries_recovered") > 0.0, "{kill:#}");
        // Logs that are not full would make the takeover look too fast.
        assert!(ms("log_used_bytes") > 0.9 * (16 << 20) as f64, "{kill:#}");
        assert!(ms("group_log_used_bytes") > 0.9 * (4 << 20) as f64, "{kill:#}");
    }
}

#[test]
fn a_signal_ends_a_measurement_and_leaves_nothing_behind() {
    // Ctrl-C while clients are at work, and SIGTERM, as a service manager sends it, while accounts are still loaded.
    interrupt(rustix::process::Signal::INT, "100");
    interrupt(rustix::process::Signal::TERM, "1000000");
}

fn interrupt(signal: rustix::process::Signal, accounts: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = heddle(&["bench", "smallbank", "--seconds", "100", "--clients", "10", "--accounts", accounts]);
    command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program can be started");
    let start = Instant::now();
    let network = loop {
        assert!(start.elapsed() < Duration::from_secs(60), "the network did not start");
        let inside = std::fs::read_dir(folder.path()).expect("a folder").flatten().next();
        match inside.map(|entry| node::Endpoints::load(&entry.path().join("network"))) {
            Some(Ok(endpoints)) => break endpoints.process,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    std::thread::sleep(Duration::from_millis(1_500));
    let process = rustix::process::Pid::from_raw(child.id() as i32).expect("a process");
    rustix::process::kill_process(process, signal).expect("it runs");
    let status = child.wait().expect("it is a child");
    assert_eq!(status.code(), Some(130), "{signal:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "the temporary network is removed");
    assert!(!std::path::Path::new(&format!("/proc/{network}")).exists(), "the network's process has ended");
}
