use clap::CommandFactory as _;

use super::*;

/// The whole of `docs/cli.md`.
fn document() -> String {
    let mut text = String::from(
        "# Command line\n\nMade from `crates/heddle/src/cli` by `UPDATE_DOCS=1 cargo test --package heddle cli`. Do not edit.\n",
    );
    let mut root = Cli::command();
    root.build();
    describe(&mut root, "heddle", &mut text);
    text
}

fn describe(command: &mut clap::Command, path: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    // Values like the version differ between releases, and trailing blanks between versions of clap.
    let help: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## `{path}`\n\n```text\n{}\n```\n", help.join("\n")));
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        let sub = command.find_subcommand_mut(&name).expect("it was just listed");
        describe(sub, &format!("{path} {name}"), text);
    }
}

#[test]
fn declarations_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn the_command_line_document_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
    let document = document();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &document).expect("the document can be written");
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == document, "docs/cli.md is out of date: UPDATE_DOCS=1 cargo test --package heddle cli");
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
        "heddle up",
        "heddle up --orgs 5 --policy majority --dir x --any-ports --detach",
        "heddle up --config heddle.toml --gateway-port 8051",
        "heddle down",
        "heddle status --json",
        "heddle config",
        "heddle orderer members --json",
        "heddle orderer members --node x",
        "heddle orderer add --dir x",
        "heddle orderer add --node x --number 4 --address tcp:10.0.0.4:7303",
        "heddle orderer plan --host 10.0.0.4 --port 7300",
        "heddle orderer plan --removed orderer-4",
        "heddle orderer remove orderer-4",
        "heddle peer memory org1",
        "heddle peer memory org1 --set 512MiB --no-wait --json",
        "heddle peer memory --node x --set 1GiB",
        "heddle ledger verify --peer org2",
        "heddle ledger show --block 3 --json",
        "heddle kv up --listen 127.0.0.1:0 --memory-nodes 5 --keys 1000 --block-bytes 4KiB",
        "heddle kv up --isolate --backups 2",
        "heddle kv get key --json",
        "heddle kv cas key - --if-version 3 --dir x",
        "heddle kv cas key --if-value -1",
        "heddle kv watch --from 7 --count 1",
        "heddle bench kv --keys 1000 --connect x",
        "heddle bench smallbank --seconds 2.5 --clients 10 --json r.json",
        "heddle bench smallbank --connect ./heddle-data --no-load",
        "heddle bench smallbank --pairs 5 --seconds 10",
        "heddle bench smallbank --before ./heddle-old --pairs 5 --isolate",
        "heddle bench smallbank --timer --clients 50 --pairs 5",
        "heddle bench smallbank --library --clients 8",
        "heddle bench ycsb --mix read=90,scan=10 --zipf 0.99 --wait events",
        "heddle bench kmeans --k 5 --threshold 0.5",
        "heddle bench under-attack --pairs 3 --factor 0.5 --attacks ./attack --json r.json",
        "heddle bench flexchain-fig5b --quick --memory-percent 50,100 --delay-us 0",
        "heddle bench flexchain-fig7 --only state --json r.json",
        "heddle bench flexchain-fig8a --cache-percent 0.5,10 --skew 0,1.2",
        "heddle bench flexchain-fig8b --limit pauses --processor-percent 10",
        "heddle bench sift-fig7 --limit pauses --processor-percent 10,100",
        "heddle bench sift-fig8 --groups 10,1000 --repeats 5",
        "heddle bench sift-fig11 --coded --copy-mib 512",
        "heddle bench sift-fig12 --kills 20 --log-mib 64 --json r.json",
        "heddle bench sift-table2 --quick",
    ] {
        assert!(parse(line).is_ok(), "{line}");
    }
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    for line in [
        "heddle",
        "heddle up --orgs 0",
        "heddle up --orgs 17",
        "heddle up --policy some",
        "heddle up --any-ports --orderer-port 7050",
        "heddle ledger show --block 1 --tx a",
        "heddle orderer add --number 4 --address tcp:10.0.0.4:7303",
        "heddle orderer add --node x --number 4",
        "heddle orderer plan --host 10.0.0.4",
        "heddle orderer plan --removed orderer --host 10.0.0.4 --port 7300",
        "heddle orderer remove",
        "heddle orderer remove orderer-1",
        "heddle peer memory",
        "heddle peer memory org1 --set 512MB",
        "heddle peer memory org1 --no-wait",
        "heddle peer memory org1 --node x",
        "heddle kv",
        "heddle kv up --memory-nodes 4",
        "heddle kv put key",
        "heddle kv cas key value",
        "heddle kv cas key value --if-absent --if-version 3",
        "heddle bench smallbank --clients 0",
        "heddle bench smallbank --seconds 0",
        "heddle bench smallbank --seconds nan",
        "heddle bench smallbank --zipf 1",
        "heddle bench smallbank --accounts 1",
        "heddle bench smallbank --connect d --orgs 3",
        "heddle bench smallbank --no-load",
        "heddle bench smallbank --pairs 0",
        "heddle bench smallbank --pairs 5 --monolithic",
        "heddle bench smallbank --before ./heddle-old --connect d",
        "heddle bench smallbank --timer --before ./heddle-old",
        "heddle bench smallbank --timer --library",
        "heddle bench under-attack --factor 0",
        "heddle bench ycsb --mix read=90",
        "heddle bench flexchain-fig5b --memory-percent 0",
        "heddle bench flexchain-fig7 --only network,state",
        "heddle bench flexchain-fig8a --skew -1",
        "heddle bench flexchain-fig8b --processor-percent 5",
        "heddle bench sift-fig7 --processor-percent 101",
        "heddle bench sift-fig12 --kills 0",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
