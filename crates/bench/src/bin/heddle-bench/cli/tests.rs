use clap::CommandFactory as _;

use super::*;

/// Where the part of this program begins in `docs/cli.md`.
const BENCH: &str = "\n## `heddle bench`\n";

/// This program's part of `docs/cli.md`.
fn document() -> String {
    heddle_cli::document::of(Cli::command(), "heddle bench", |_| false)
}

#[test]
fn declarations_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_command_line_document_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let (document, written) = (document(), std::fs::read_to_string(path).unwrap_or_default());
    let (other, own) = written.split_once(BENCH).unwrap_or_default();
    let mut own = [BENCH, own].concat();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, [other, &document].concat()).expect("the document can be written");
        own = document.clone();
    }
    assert!(own == document, "docs/cli.md is out of date: UPDATE_DOCS=1 cargo test --package heddle-bench cli");
}

#[test]
fn no_line_of_help_is_too_wide_for_a_terminal() {
    for line in document().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[test]
fn everyday_command_lines_are_understood() {
    for line in [
        "heddle-bench kv --keys 1000 --connect x",
        "heddle-bench smallbank --seconds 2.5 --clients 10 --json r.json",
        "heddle-bench smallbank --connect ./heddle-data --no-load",
        "heddle-bench smallbank --pairs 5 --seconds 10",
        "heddle-bench smallbank --before ./heddle-old --pairs 5 --isolate",
        "heddle-bench smallbank --timer --clients 50 --pairs 5",
        "heddle-bench smallbank --library --clients 8",
        "heddle-bench ycsb --mix read=90,scan=10 --zipf 0.99 --wait events",
        "heddle-bench kmeans --k 5 --threshold 0.5",
        "heddle-bench ycsb --zipf 2",
        "heddle-bench under-attack --pairs 3 --factor 0.5 --attacks ./attack --json r.json",
        "heddle-bench elastic --rounds 1 --cpu-percent 40 --calm 5 --json r.json",
        "heddle-bench flexchain-fig1 --quick --scale 5",
        "heddle-bench flexchain-fig5a --quick --compute-nodes 3 --cpu-percent 50",
        "heddle-bench flexchain-fig7d --quick --rounds 2",
        "heddle-bench flexchain-fig7a --scale 40 --cpu-percent 30",
        "heddle-bench flexchain-fig7c --clients 96 --json r.json",
        "heddle-bench flexchain-fig7 --only c --link-latency-us 8",
        "heddle-bench flexchain-fig8a --only smallbank --cache-percent 5,50",
        "heddle-bench flexchain-fig5b --quick --memory-percent 50,100 --delay-us 0",
        "heddle-bench flexchain-fig7 --only state --json r.json",
        "heddle-bench flexchain-fig8a --cache-percent 0.5,10 --skew 0,1.2",
        "heddle-bench flexchain-fig8b --limit pauses --processor-percent 10",
        "heddle-bench sift-fig7 --limit pauses --processor-percent 10,100",
        "heddle-bench sift-fig8 --groups 10,1000 --repeats 5",
        "heddle-bench sift-fig11 --coded --copy-mib 512",
        "heddle-bench sift-fig12 --kills 20 --log-mib 64 --json r.json",
        "heddle-bench sift-table2 --quick",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    for line in [
        "heddle-bench",
        "heddle-bench smallbank --clients 0",
        "heddle-bench smallbank --seconds 0",
        "heddle-bench smallbank --seconds nan",
        "heddle-bench smallbank --zipf 5",
        "heddle-bench smallbank --accounts 1",
        "heddle-bench smallbank --connect d --orgs 3",
        "heddle-bench smallbank --no-load",
        "heddle-bench smallbank --pairs 0",
        "heddle-bench smallbank --pairs 5 --monolithic",
        "heddle-bench smallbank --before ./heddle-old --connect d",
        "heddle-bench smallbank --timer --before ./heddle-old",
        "heddle-bench smallbank --timer --library",
        "heddle-bench under-attack --factor 0",
        "heddle-bench elastic --cpu-percent 10",
        "heddle-bench ycsb --mix read=90",
        "heddle-bench flexchain-fig5b --memory-percent 0",
        "heddle-bench flexchain-fig7 --only network,state",
        "heddle-bench flexchain-fig8a --skew -1",
        "heddle-bench flexchain-fig8b --processor-percent 5",
        "heddle-bench sift-fig7 --processor-percent 101",
        "heddle-bench sift-fig12 --kills 0",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
